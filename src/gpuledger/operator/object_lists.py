"""Complete lists of objects from the API server, with their resource version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.kubernetes.object_client import Json, ObjectClient
from gpuledger.operator.kinds import MANAGED_SELECTOR, ObjectKind, resource_version


@dataclass(frozen=True, slots=True)
class ObjectList:
    """All objects of one kind as of a resource version."""

    bodies: list[Json]
    version: int


async def list_objects(api: ObjectClient, kind: ObjectKind, namespace: str = "", **query: str) -> ObjectList:
    """All objects of a kind. Raises what ObjectClient.get raises."""
    found = await api.get(kind.path(namespace), **query)
    return ObjectList([kind.typed(body) for body in found.get("items") or ()], resource_version(found))


async def list_managed_objects(api: ObjectClient, kind: ObjectKind, namespaces: Sequence[str]) -> ObjectList:
    """All objects of a kind with the operator's label; of namespaced kinds only those in `namespaces`.

    Raises what ObjectClient.get raises.
    """
    listed = [
        await list_objects(api, kind, namespace, labelSelector=MANAGED_SELECTOR)
        for namespace in (namespaces if kind.namespaced else ("",))
    ]
    return ObjectList([body for one in listed for body in one.bodies], min(one.version for one in listed))

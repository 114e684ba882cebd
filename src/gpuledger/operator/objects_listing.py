"""Lists of the API server: what there is of a kind, all of it, as of one version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.kubernetes.writing import Api, Json
from gpuledger.operator.kinds import OURS, Kind, version_of


@dataclass(frozen=True, slots=True)
class Listed:
    """Objects of one kind, and the version as of which these were all of them."""

    bodies: list[Json]
    version: int


async def list_all(api: Api, kind: Kind, namespace: str = "", **query: str) -> Listed:
    """All objects of a kind. Raises as Api.get does."""
    found = await api.get(kind.path(namespace), **query)
    # The items of a list do not say what they are.
    what = {"apiVersion": kind.api_version, "kind": kind.kind}
    return Listed([{**what, **body} for body in found.get("items") or ()], version_of(found))


async def list_made(api: Api, kind: Kind, namespaces: Sequence[str]) -> Listed:
    """All objects of a kind that bear the operator's label, in these namespaces where the kind has any.

    Raises as Api.get does.
    """
    listed = [
        await list_all(api, kind, namespace, labelSelector=OURS)
        for namespace in (namespaces if kind.namespaced else ("",))
    ]
    return Listed([body for one in listed for body in one.bodies], min(one.version for one in listed))

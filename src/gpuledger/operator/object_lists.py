"""Reads of the API server: an object that may not exist, and complete lists with their version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuledger.kubernetes.fields import mappings_at
from gpuledger.kubernetes.object_client import Json, ObjectClient, WriteRefused
from gpuledger.operator.kinds import CRON_JOB_KIND, MANAGED_SELECTOR, ObjectKind, resource_version

_NEWEST_BATCH: Final = CRON_JOB_KIND.api_version


async def get_if_exists(api: ObjectClient, path: str) -> Json | None:
    """An object; None if it does not exist. Raises what ObjectClient.get raises for other reasons."""
    try:
        return await api.get(path)
    except WriteRefused as error:
        if error.status != 404:
            raise
        return None


async def find_cron_job_version(api: ObjectClient) -> str:
    """The newest API version of CronJobs that the server has: batch/v1 since Kubernetes 1.21.

    Raises WriteUnreachable.
    """
    try:
        found = await api.get(f"/apis/{_NEWEST_BATCH}")
    except WriteRefused:
        return _NEWEST_BATCH
    names = {resource.get("name") for resource in mappings_at(found, "resources")}
    return _NEWEST_BATCH if "cronjobs" in names else "batch/v1beta1"


# All objects of one kind, and the resource version of this state.
ObjectList = tuple[list[Json], int]


async def list_objects(api: ObjectClient, kind: ObjectKind, namespace: str = "", **query: str) -> ObjectList:
    """All objects of a kind. Raises what ObjectClient.get raises."""
    found = await api.get(kind.path(namespace), **query)
    return [kind.typed(body) for body in found.get("items") or ()], resource_version(found)


async def list_managed_objects(api: ObjectClient, kind: ObjectKind, namespaces: Sequence[str]) -> ObjectList:
    """All objects of a kind with the operator's label; of namespaced kinds only those in `namespaces`.

    Raises what ObjectClient.get raises.
    """
    listed = [
        await list_objects(api, kind, namespace, labelSelector=MANAGED_SELECTOR)
        for namespace in (namespaces if kind.namespaced else ("",))
    ]
    return [body for bodies, _ in listed for body in bodies], min(version for _, version in listed)

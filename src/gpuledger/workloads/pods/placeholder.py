"""Pods that hold a device for other pods: fraction schedulers create them to reserve a GPU."""

from __future__ import annotations

from gpuledger.model.workload import Workload

# Namespaces in which KAI Scheduler and Run:ai create nothing else.
_NAMESPACES = frozenset(
    {"kai-resource-reservation", "runai-reservation", "kai-scale-adjust", "runai-scale-adjust"}
)
# Their names and container, for another namespace: gpu-reservation-NODE-ID, runai-reservation-gpu-NODE-ID.
_PREFIXES = ("gpu-reservation-", "runai-reservation-")
_CONTAINER = "resource-reservation"


def is_placeholder(owner: Workload) -> bool:
    """Whether the owner is a pod that only reserves its device for pods that a scheduler places there."""
    return owner.kind == "pod" and (
        owner.namespace in _NAMESPACES or (owner.container == _CONTAINER and owner.pod.startswith(_PREFIXES))
    )

"""Pods that hold a device for other pods: fraction schedulers create them to reserve a GPU."""

from __future__ import annotations

from gpuledger.model.workload import Workload

# Namespaces in which KAI Scheduler and Run:ai create nothing else. The names of pods and containers show
# nothing: each user can choose them.
_NAMESPACES = frozenset(
    {"kai-resource-reservation", "runai-reservation", "kai-scale-adjust", "runai-scale-adjust"}
)


def is_reserved_namespace(namespace: str) -> bool:
    """Whether the pods of this namespace only reserve devices for pods that a scheduler places there."""
    return namespace in _NAMESPACES


def is_placeholder(owner: Workload) -> bool:
    """Whether the owner is a pod that only reserves its device for pods that a scheduler places there."""
    return owner.kind == "pod" and is_reserved_namespace(owner.namespace)

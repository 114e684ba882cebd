"""The part of a device that a pod has by its replicas (time-slicing, MPS) of a device plugin. Pure.

A plugin that shares a device registers several ids for it. Their number is that of the device's ids among the
node's allocatable devices (GetAllocatableResources), or among the registered devices of the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

from gpuledger.workloads.pod_resources.device_names import KubeletAllocation, without_replica

# By resource and device id without its replica.
ReplicaCounts = Mapping[tuple[str, str], int]


def count_replicas(ids: Iterable[tuple[str, str]]) -> ReplicaCounts:
    """The number of ids of each device, from (resource, device id) of all devices."""
    return Counter((resource, without_replica(device_id)) for resource, device_id in set(ids))


def allocated_fraction(items: Iterable[KubeletAllocation], replicas: ReplicaCounts) -> Fraction | None:
    """The part of one device that these allocations of one resource to one pod have together.

    An id that several containers share counts once. 1 for a whole device, None if the number of replicas or
    the size of a share is unknown.
    """
    total = Fraction(0)
    for item in {(one.resource, one.device_id): one for one in items}.values():
        if item.claimed_device is not None:
            return None if item.claimed_device.share else Fraction(1)
        name = without_replica(item.device_id)
        if name == item.device_id.strip().lower():
            return Fraction(1)
        count = replicas.get((item.resource, name))
        if not count:
            return None
        total += Fraction(1, count)
    return min(total, Fraction(1))

"""The number of replicas (time-slicing, MPS) into which a device plugin divides a device. Pure.

A plugin that shares a device registers several ids for it. Their number is that of the device's ids among the
node's allocatable devices (GetAllocatableResources), or among the registered devices of the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gpuledger.workloads.pod_resources.device_names import without_replica

# By resource and device id without its replica.
ReplicaCounts = Mapping[tuple[str, str], int]


def count_replicas(ids: Iterable[tuple[str, str]]) -> ReplicaCounts:
    """The number of ids of each device, from (resource, device id) of all devices."""
    return Counter((resource, without_replica(device_id)) for resource, device_id in set(ids))

"""Matches the kubelet's device allocations to the Devices of a Snapshot. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from gpuledger.model.devices import Device
from gpuledger.model.text import matches_any
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import same_objects
from gpuledger.workloads.pod_resources.device_names import (
    DeviceNames,
    DraUuids,
    KubeletAllocation,
    NoMatch,
    PodResources,
    find_claimed_device,
)
from gpuledger.workloads.pod_resources.settings import GPU_DRA_DRIVERS, GPU_RESOURCES
from gpuledger.workloads.pods.pod import NO_PODS, Pod

NO_UUIDS: Final[DraUuids] = {}

# Whether a pod with this UID still has a cgroup; None if unknown. Must not block.
HasCgroup = Callable[[str], bool | None]


class PodLookup(Protocol):
    """Lookup of known pods; `workloads.pods.pod.Pods` implements it."""

    def by_uid(self, uid: str) -> Pod | None:
        """The pod with this UID."""

    def by_name(self, namespace: str, name: str) -> Pod | None:
        """The newest pod with this name."""


@dataclass(frozen=True, slots=True)
class UnmatchedAllocation:
    """An allocation that matches no Device of the Snapshot; `form` is how its name was parsed."""

    allocation: KubeletAllocation
    form: str
    why: str


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The outcome for all kubelet allocations: each is matched, unmatched, ended, repeated or skipped.

    `ended` counts allocations of pods that are finished, gone, or replaced by a newer pod of the same name;
    `ended_allocations` holds them. `repeated` counts further allocations of the same device to the same
    container (replicas). `skipped` counts, by resource name or DRA driver, allocations that the settings do
    not define as GPUs.
    """

    allocations: tuple[Allocation, ...] = ()
    unmatched: tuple[UnmatchedAllocation, ...] = ()
    ended: int = 0
    repeated: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict, hash=False)
    ended_allocations: frozenset[KubeletAllocation] = frozenset()

    @property
    def unmatched_by_form(self) -> Mapping[str, int]:
        """Number of unmatched allocations by the form of their names."""
        return Counter(item.form for item in self.unmatched)


def match_allocations(
    pod_resources: PodResources,
    devices: tuple[Device, ...],
    pods: PodLookup = NO_PODS,
    *,
    uuids: DraUuids = NO_UUIDS,
    parents: DraUuids = NO_UUIDS,
    has_cgroup: HasCgroup | None = None,
    resources: tuple[str, ...] = GPU_RESOURCES,
    drivers: tuple[str, ...] = GPU_DRA_DRIVERS,
    ended_allocations: Collection[KubeletAllocation] = (),
) -> MatchResult:
    """The Allocations in the order of the Devices, then of namespace, pod and container.

    `uuids` and `parents` are the UUIDs of DRA devices from ResourceSlices (`pods.resource_slices`). If the
    phase of a pod is unknown, `has_cgroup` decides whether it has ended; None means that it has not.
    `ended_allocations` are the allocations that had ended before: the API forgets a pod sooner than the
    kubelet does, and such an allocation must not become active again.
    """
    names, order = DeviceNames(devices), {device.uuid: at for at, device in enumerate(devices)}
    found: dict[tuple[str, str, str, str], Allocation] = {}
    unmatched: list[UnmatchedAllocation] = []
    skipped: Counter[str] = Counter()
    ended_now: set[KubeletAllocation] = set()
    ended = repeated = 0
    for item in pod_resources:
        if not _is_gpu(item, resources, drivers):
            skipped[item.claimed_device.driver if item.claimed_device else item.resource] += 1
            continue
        pod = pods.by_uid(item.pod_uid) if item.pod_uid else pods.by_name(item.namespace, item.pod)
        if (pod is None and item in ended_allocations) or _has_ended(item, pod, pods, has_cgroup):
            ended_now.add(item)
            ended += 1
            continue
        device, found_by = _find(item, names, pod_resources.found_by, uuids, parents)
        if isinstance(device, NoMatch):
            unmatched.append(UnmatchedAllocation(item, device.form, device.why))
            continue
        allocation = _allocation(item, pod, device, found_by)
        owner = allocation.workload
        key = (
            device.uuid,
            owner.pod_uid or f"{owner.namespace}/{owner.pod}",
            owner.container,
            allocation.resource,
        )
        repeated += key in found
        found.setdefault(key, allocation)
    ordered = sorted(found.values(), key=lambda item: (order[item.device.uuid], *_sort_key(item)))
    return MatchResult(tuple(ordered), tuple(unmatched), ended, repeated, skipped, frozenset(ended_now))


class AllocationMatcher:
    """`match_allocations` with a cache.

    Nothing is computed while all inputs are the same objects, and an equal result is the same tuple.
    """

    def __init__(
        self,
        *,
        resources: tuple[str, ...] = GPU_RESOURCES,
        drivers: tuple[str, ...] = GPU_DRA_DRIVERS,
        has_cgroup: HasCgroup | None = None,
    ) -> None:
        self.last = MatchResult()
        self._resources = resources
        self._drivers = drivers
        self._has_cgroup = has_cgroup
        self._inputs: tuple[object, ...] = ()

    def match(
        self,
        pod_resources: PodResources,
        devices: tuple[Device, ...],
        pods: PodLookup = NO_PODS,
        uuids: DraUuids = NO_UUIDS,
        parents: DraUuids = NO_UUIDS,
    ) -> tuple[Allocation, ...]:
        """The Allocations of this tick. `last` holds the full MatchResult.

        `has_cgroup` is called only if an input has changed.
        """
        inputs = (pod_resources, devices, pods, uuids, parents)
        if same_objects(inputs, self._inputs):
            return self.last.allocations
        new = match_allocations(
            pod_resources,
            devices,
            pods,
            uuids=uuids,
            parents=parents,
            has_cgroup=self._has_cgroup,
            resources=self._resources,
            drivers=self._drivers,
            ended_allocations=self.last.ended_allocations,
        )
        previous = self.last.allocations
        if _is_equal(new.allocations, previous):
            new = replace(new, allocations=previous)
        self.last, self._inputs = new, inputs
        return new.allocations


def _is_equal(new: tuple[Allocation, ...], old: tuple[Allocation, ...]) -> bool:
    # Devices compare equal by UUID alone; another object can have another index.
    return new == old and all(left.device is right.device for left, right in zip(new, old, strict=True))


def _is_gpu(item: KubeletAllocation, resources: tuple[str, ...], drivers: tuple[str, ...]) -> bool:
    if item.claimed_device is not None:
        return matches_any(item.claimed_device.driver, drivers)
    return matches_any(item.resource, resources)


def _has_ended(
    item: KubeletAllocation, pod: Pod | None, pods: PodLookup, has_cgroup: HasCgroup | None
) -> bool:
    if pod is not None:
        if pod.finished:
            return True
        newest = pods.by_name(pod.namespace, pod.name)
        if newest is not None and newest.uid != pod.uid:
            return True
        if pod.phase:
            return False
    # The cgroup of a static pod is named after its hash.
    uid = item.pod_uid or ((pod.hash or pod.uid) if pod else "")
    return bool(uid) and has_cgroup is not None and has_cgroup(uid) is False


def _find(
    item: KubeletAllocation, names: DeviceNames, found_by: str, uuids: DraUuids, parents: DraUuids
) -> tuple[Device | NoMatch, str]:
    if item.claimed_device is not None:
        return find_claimed_device(names, item.claimed_device, uuids, parents)
    return names.find(item.device_id), found_by


def _allocation(item: KubeletAllocation, pod: Pod | None, device: Device, found_by: str) -> Allocation:
    claimed = item.claimed_device
    ids = _ids(pod, item.container)
    owner = Workload(
        kind="pod",
        namespace=item.namespace or (pod.namespace if pod else ""),
        pod=item.pod or (pod.name if pod else ""),
        container=item.container,
        pod_uid=item.pod_uid or (pod.uid if pod else ""),
        container_id=ids[0] if len(ids) == 1 else "",
        labels=pod.labels if pod else (),
        controller_kind=pod.controller_kind if pod else "",
        controller=pod.controller if pod else "",
        found_by=found_by,
        missing="" if item.pod or pod else "pod_name",
    )
    return Allocation(device, owner, found_by, claimed.claim if claimed else item.resource)


def _ids(pod: Pod | None, container: str) -> list[str]:
    """The current id of the container, and the one from before its last restart."""
    if pod is None:
        return []
    return [container_id for container_id, name in pod.containers.items() if name == container]


def _sort_key(item: Allocation) -> Iterator[str]:
    owner = item.workload
    yield from (owner.namespace, owner.pod, owner.container, owner.pod_uid, item.resource)

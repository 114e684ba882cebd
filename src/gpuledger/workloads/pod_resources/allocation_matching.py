"""Matches the kubelet's device allocations to the Devices of a Snapshot. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from gpuledger.model.devices import Device
from gpuledger.model.text import matches_any
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import same_objects
from gpuledger.workloads.pod_resources.device_names import (
    DeviceNames,
    KubeletAllocation,
    NoMatch,
    PodResources,
    find_claimed_device,
)
from gpuledger.workloads.pod_resources.replicas import allocated_fraction
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.pod import NO_PODS, NO_SLICES, Pod, Pods, ResourceSlices

# Whether a pod with this UID still has a cgroup; None if unknown. Must not block.
HasCgroup = Callable[[str], bool | None]


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The outcome for all kubelet allocations: each is matched, unmatched, ended, repeated or skipped.

    `ended` are allocations of pods that are finished, gone, or replaced by a newer pod of the same name.
    `repeated` counts further allocations of the same device to the same container (replicas). `skipped`
    counts, by resource name or DRA driver, allocations that the settings do not define as GPUs.
    """

    allocations: tuple[Allocation, ...] = ()
    unmatched: tuple[tuple[KubeletAllocation, NoMatch], ...] = ()
    repeated: int = 0
    skipped: Counter[str] = field(default_factory=Counter, hash=False)
    ended: Counter[KubeletAllocation] = field(default_factory=Counter, hash=False)


def match_allocations(
    pod_resources: PodResources,
    devices: tuple[Device, ...],
    pods: Pods = NO_PODS,
    slices: ResourceSlices = NO_SLICES,
    *,
    settings: PodResourcesSettings,
    has_cgroup: HasCgroup = lambda _: None,
    ended_before: Collection[KubeletAllocation] = (),
) -> MatchResult:
    """The Allocations in the order of the Devices, then of namespace, pod and container.

    If the phase of a pod is unknown, `has_cgroup` decides whether it has ended; None means that it has not.
    `ended_before` are the allocations that had ended before: the API forgets a pod sooner than the kubelet
    does, and such an allocation must not become active again.
    """
    names, order = DeviceNames(devices), {device.uuid: at for at, device in enumerate(devices)}
    found: dict[tuple[str, str, str, str], Allocation] = {}
    # By device, pod and resource: all containers of a pod share what it has of a device.
    shared: dict[tuple[str, str, str], list[KubeletAllocation]] = {}
    unmatched: list[tuple[KubeletAllocation, NoMatch]] = []
    skipped: Counter[str] = Counter()
    ended: Counter[KubeletAllocation] = Counter()
    repeated = 0
    for item in pod_resources:
        kind, gpus = item.resource, settings.resources
        if item.claimed_device is not None:
            kind, gpus = item.claimed_device.driver, settings.drivers
        if not matches_any(kind, gpus):
            skipped[kind] += 1
            continue
        pod = pods.by_uid(item.pod_uid) if item.pod_uid else pods.by_name(item.namespace, item.pod)
        if (pod is None and item in ended_before) or _has_ended(item, pod, pods, has_cgroup):
            ended[item] += 1
            continue
        if item.claimed_device is None:
            device, found_by = names.find(item.device_id), pod_resources.found_by
        else:
            device, found_by = find_claimed_device(names, item.claimed_device, slices)
        if isinstance(device, NoMatch):
            unmatched.append((item, device))
            continue
        allocation = _allocation(item, pod, device, found_by)
        owner = allocation.workload
        pod_name = owner.pod_uid or f"{owner.namespace}/{owner.pod}"
        key = (device.uuid, pod_name, owner.container, allocation.resource)
        repeated += key in found
        found.setdefault(key, allocation)
        shared.setdefault((device.uuid, pod_name, allocation.resource), []).append(item)
    for key, allocation in found.items():
        fraction = allocated_fraction(shared[key[0], key[1], key[3]], pod_resources.replicas)
        found[key] = replace(allocation, fraction=fraction)

    def position(item: Allocation) -> tuple[object, ...]:
        owner = item.workload
        names = (owner.namespace, owner.pod, owner.container, owner.pod_uid, item.resource)
        return (order[item.device.uuid], *names)

    return MatchResult(
        tuple(sorted(found.values(), key=position)), tuple(unmatched), repeated, skipped, ended
    )


class AllocationMatcher:
    """`match_allocations` with a cache.

    Nothing is computed while all inputs are the same objects, and an equal result is the same tuple.
    """

    def __init__(self, settings: PodResourcesSettings, has_cgroup: HasCgroup = lambda _: None) -> None:
        self._settings = settings
        self._has_cgroup = has_cgroup
        self._last = MatchResult()
        self._inputs: tuple[object, ...] = ()

    def match(
        self,
        pod_resources: PodResources,
        devices: tuple[Device, ...],
        pods: Pods = NO_PODS,
        slices: ResourceSlices = NO_SLICES,
    ) -> tuple[Allocation, ...]:
        """The Allocations of this tick. `has_cgroup` is called only if an input has changed."""
        inputs = (pod_resources, devices, pods, slices)
        if same_objects(inputs, self._inputs):
            return self._last.allocations
        new = match_allocations(
            *inputs,
            settings=self._settings,
            has_cgroup=self._has_cgroup,
            ended_before=self._last.ended,
        )
        previous = self._last.allocations
        # Devices compare equal by UUID alone; another object can have another index.
        before, now = ([item.device for item in items] for items in (previous, new.allocations))
        if new.allocations == previous and same_objects(before, now):
            new = replace(new, allocations=previous)
        self._last, self._inputs = new, inputs
        return new.allocations


def _has_ended(item: KubeletAllocation, pod: Pod | None, pods: Pods, has_cgroup: HasCgroup) -> bool:
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
    return bool(uid) and has_cgroup(uid) is False


def _allocation(item: KubeletAllocation, pod: Pod | None, device: Device, found_by: str) -> Allocation:
    claimed = item.claimed_device
    known = pod or Pod("", "", "")
    # The current id of the container, and the one from before its last restart.
    ids = [container_id for container_id, name in known.containers.items() if name == item.container]
    owner = Workload(
        kind="pod",
        namespace=item.namespace or known.namespace,
        pod=item.pod or known.name,
        container=item.container,
        pod_uid=item.pod_uid or known.uid,
        container_id=ids[0] if len(ids) == 1 else "",
        labels=known.labels,
        controller_kind=known.controller_kind,
        controller=known.controller,
        found_by=found_by,
        missing="" if item.pod or pod else "pod_name",
    )
    return Allocation(device, owner, found_by, claimed.claim if claimed else item.resource)

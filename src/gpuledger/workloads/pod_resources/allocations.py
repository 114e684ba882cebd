"""From what the kubelet says to the Allocations of a Snapshot: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from gpuledger.model.devices import Device
from gpuledger.model.text import is_wanted
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import same_objects
from gpuledger.workloads.pod_resources.devices import (
    DeviceNames,
    Grant,
    Missing,
    PodResources,
    Uuids,
    find_claimed,
)
from gpuledger.workloads.pod_resources.settings import DRIVERS, RESOURCES
from gpuledger.workloads.pods.pod import NO_PODS, Pod

NO_UUIDS: Final[Uuids] = {}

# Whether a pod of this UID still has a cgroup; None where that is not to be seen. Answers from memory.
HasCgroup = Callable[[str], bool | None]


class PodLookup(Protocol):
    """Pods as they are known; `workloads.pods.index.Pods` is one."""

    def uid(self, uid: str) -> Pod | None:
        """The pod with this UID."""

    def named(self, namespace: str, name: str) -> Pod | None:
        """The newest pod of this name."""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A grant that no Device of the Snapshot answers to, the form that its name was read as, and why."""

    grant: Grant
    form: str
    why: str


@dataclass(frozen=True, slots=True)
class Allocated:
    """What became of all grants: every one is an Allocation, unmatched, ended, or not asked for.

    `ended` counts grants of pods that are finished, gone, or followed by a newer pod of the same name, and
    `over` holds them; `repeated` counts those that say of a container what another said (replicas of one
    device); `others` counts, by resource name or DRA driver, grants that are of no GPU by the settings.
    """

    allocations: tuple[Allocation, ...] = ()
    unmatched: tuple[Unmatched, ...] = ()
    ended: int = 0
    repeated: int = 0
    others: Mapping[str, int] = field(default_factory=dict, hash=False)
    over: frozenset[Grant] = frozenset()

    @property
    def forms(self) -> Mapping[str, int]:
        """How many grants are unmatched, by the form of their names."""
        return Counter(one.form for one in self.unmatched)


def allocate(
    told: PodResources,
    devices: tuple[Device, ...],
    pods: PodLookup = NO_PODS,
    *,
    uuids: Uuids = NO_UUIDS,
    parents: Uuids = NO_UUIDS,
    has_cgroup: HasCgroup | None = None,
    resources: tuple[str, ...] = RESOURCES,
    drivers: tuple[str, ...] = DRIVERS,
    over: Collection[Grant] = (),
) -> Allocated:
    """The Allocations, by order of the Devices, then namespace, pod and container.

    `uuids` and `parents` are what ResourceSlices tell of DRA devices (`workloads.pods.slices`). A pod whose
    phase is not known is asked for with `has_cgroup`; one that knows nothing of it keeps it. `over` are
    grants that had ended before: the API forgets a pod sooner than the kubelet does, and then nobody has it
    again.
    """
    names, place = DeviceNames(devices), {device.uuid: at for at, device in enumerate(devices)}
    found: dict[tuple[str, str, str, str], Allocation] = {}
    unmatched: list[Unmatched] = []
    others: Counter[str] = Counter()
    now_over: set[Grant] = set()
    ended = repeated = 0
    for grant in told:
        if not _is_gpu(grant, resources, drivers):
            others[grant.claimed.driver if grant.claimed else grant.resource] += 1
            continue
        pod = pods.uid(grant.pod_uid) if grant.pod_uid else pods.named(grant.namespace, grant.pod)
        if (pod is None and grant in over) or _has_ended(grant, pod, pods, has_cgroup):
            now_over.add(grant)
            ended += 1
            continue
        device, found_by = _find(grant, names, told.found_by, uuids, parents)
        if isinstance(device, Missing):
            unmatched.append(Unmatched(grant, device.form, device.why))
            continue
        allocation = _allocation(grant, pod, device, found_by)
        owner = allocation.workload
        key = (
            device.uuid,
            owner.pod_uid or f"{owner.namespace}/{owner.pod}",
            owner.container,
            allocation.resource,
        )
        repeated += key in found
        found.setdefault(key, allocation)
    ordered = sorted(found.values(), key=lambda one: (place[one.device.uuid], *_order(one)))
    return Allocated(tuple(ordered), tuple(unmatched), ended, repeated, others, frozenset(now_over))


class Allocations:
    """`allocate` for every tick: nothing is worked out anew while told, Devices, pods and UUIDs are the same
    objects, and Allocations that came out equal stay the same tuple.
    """

    def __init__(
        self,
        *,
        resources: tuple[str, ...] = RESOURCES,
        drivers: tuple[str, ...] = DRIVERS,
        has_cgroup: HasCgroup | None = None,
    ) -> None:
        self.last = Allocated()
        self._resources = resources
        self._drivers = drivers
        self._has_cgroup = has_cgroup
        self._inputs: tuple[object, ...] = ()

    def of(
        self,
        told: PodResources,
        devices: tuple[Device, ...],
        pods: PodLookup = NO_PODS,
        uuids: Uuids = NO_UUIDS,
        parents: Uuids = NO_UUIDS,
    ) -> tuple[Allocation, ...]:
        """The Allocations of this tick. `last` has what became of the other grants.

        `has_cgroup` is asked only when an input has changed.
        """
        inputs = (told, devices, pods, uuids, parents)
        if same_objects(inputs, self._inputs):
            return self.last.allocations
        new = allocate(
            told,
            devices,
            pods,
            uuids=uuids,
            parents=parents,
            has_cgroup=self._has_cgroup,
            resources=self._resources,
            drivers=self._drivers,
            over=self.last.over,
        )
        kept = self.last.allocations
        if _is_equal(new.allocations, kept):
            new = replace(new, allocations=kept)
        self.last, self._inputs = new, inputs
        return new.allocations


def _is_equal(new: tuple[Allocation, ...], old: tuple[Allocation, ...]) -> bool:
    # A Device is equal by UUID alone; another object may have another index.
    return new == old and all(one.device is other.device for one, other in zip(new, old, strict=True))


def _is_gpu(grant: Grant, resources: tuple[str, ...], drivers: tuple[str, ...]) -> bool:
    if grant.claimed is not None:
        return is_wanted(grant.claimed.driver, drivers)
    return is_wanted(grant.resource, resources)


def _has_ended(grant: Grant, pod: Pod | None, pods: PodLookup, has_cgroup: HasCgroup | None) -> bool:
    if pod is not None:
        if pod.finished:
            return True
        newest = pods.named(pod.namespace, pod.name)
        if newest is not None and newest.uid != pod.uid:
            return True
        if pod.phase:
            return False
    # The cgroup of a static pod bears its hash.
    uid = grant.pod_uid or ((pod.hash or pod.uid) if pod else "")
    return bool(uid) and has_cgroup is not None and has_cgroup(uid) is False


def _find(
    grant: Grant, names: DeviceNames, found_by: str, uuids: Uuids, parents: Uuids
) -> tuple[Device | Missing, str]:
    if grant.claimed is not None:
        return find_claimed(names, grant.claimed, uuids, parents)
    return names.find(grant.device_id), found_by


def _allocation(grant: Grant, pod: Pod | None, device: Device, found_by: str) -> Allocation:
    claimed = grant.claimed
    ids = _ids(pod, grant.container)
    owner = Workload(
        kind="pod",
        namespace=grant.namespace or (pod.namespace if pod else ""),
        pod=grant.pod or (pod.name if pod else ""),
        container=grant.container,
        pod_uid=grant.pod_uid or (pod.uid if pod else ""),
        container_id=ids[0] if len(ids) == 1 else "",
        labels=pod.labels if pod else (),
        controller_kind=pod.controller_kind if pod else "",
        controller=pod.controller if pod else "",
        found_by=found_by,
        missing="" if grant.pod or pod else "pod_name",
    )
    return Allocation(device, owner, found_by, claimed.claim if claimed else grant.resource)


def _ids(pod: Pod | None, container: str) -> list[str]:
    """Ids that the container has now or had before it was restarted."""
    return [one for one, name in pod.containers.items() if name == container] if pod else []


def _order(one: Allocation) -> Iterator[str]:
    owner = one.workload
    yield from (owner.namespace, owner.pod, owner.container, owner.pod_uid, one.resource)

"""Matches the kubelet's device allocations to the Devices of a Snapshot. Pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpuledger.model.devices import Device, Gpu
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
from gpuledger.workloads.pod_resources.holdings import (
    FOUND_BY_ANNOTATION,
    Holding,
    find_holdings,
    held_part,
)
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.claims import NO_CLAIMS, ClaimName, ClaimUse, ResourceClaims
from gpuledger.workloads.pods.pod import NO_PODS, NO_SLICES, Pod, Pods, ResourceSlices

log = logging.getLogger("gpuledger.workloads")

# Whether a pod with this UID still has a cgroup; None if unknown. Must not block.
HasCgroup = Callable[[str], bool | None]

# An allocation of a pod that has not ended, and the pod if it is known.
_Live = tuple[KubeletAllocation, Pod | None]


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The outcome for all kubelet allocations: each is matched, unmatched, ended, repeated or skipped.

    `ended` are allocations of pods that are finished, gone, or replaced by a newer pod of the same name.
    `repeated` counts further allocations of the same device to the same container (replicas). `skipped`
    counts, by resource name or DRA driver, allocations that the settings do not define as GPUs. `monitoring`
    counts the devices of each claim that has them for monitoring only: these are no Allocations.
    `is_pending` is whether a claim is not known yet. `problems` name pods with an annotation that is ignored,
    and claims of which it is not known whether they are for monitoring.
    """

    allocations: tuple[Allocation, ...] = ()
    unmatched: tuple[tuple[KubeletAllocation, NoMatch], ...] = ()
    repeated: int = 0
    skipped: Counter[str] = field(default_factory=Counter, hash=False)
    ended: Counter[KubeletAllocation] = field(default_factory=Counter, hash=False)
    monitoring: Counter[ClaimName] = field(default_factory=Counter, hash=False)
    is_pending: bool = False
    problems: tuple[str, ...] = ()


def match_allocations(
    pod_resources: PodResources,
    devices: tuple[Device, ...],
    pods: Pods = NO_PODS,
    slices: ResourceSlices = NO_SLICES,
    claims: ResourceClaims = NO_CLAIMS,
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
    shared: dict[tuple[str, str, str], list[Holding]] = {}
    unmatched: list[tuple[KubeletAllocation, NoMatch]] = []
    repeated = 0
    gpus, skipped = _of_gpus(pod_resources, settings)
    ended: Counter[KubeletAllocation] = Counter()
    live: list[_Live] = []
    for item in gpus:
        pod = pods.by_uid(item.pod_uid) if item.pod_uid else pods.by_name(item.namespace, item.pod)
        if (pod is None and item in ended_before) or _has_ended(item, pod, pods, has_cgroup):
            ended[item] += 1
        else:
            live.append((item, pod))
    live, monitoring, is_pending = _without_monitoring(live, devices, claims, names, slices)
    unknown = [claim for claim in monitoring if not claims.parts.get(claim)]
    holdings = tuple(find_holdings(live, pods))
    for holding in holdings:
        item = holding.item
        device, found_by = _find_device(holding, names, slices, pod_resources.found_by)
        if isinstance(device, NoMatch):
            unmatched.append((item, device))
            continue
        allocation = _allocation(item, holding.pod, device, found_by)
        owner = allocation.workload
        pod_name = owner.pod_uid or f"{owner.namespace}/{owner.pod}"
        key = (device.uuid, pod_name, owner.container, allocation.resource)
        repeated += key in found
        found.setdefault(key, allocation)
        shared.setdefault((device.uuid, pod_name, allocation.resource), []).append(holding)
    for key, allocation in found.items():
        part = held_part(shared[key[0], key[1], key[3]], pod_resources.replicas, claims, slices)
        found[key] = replace(allocation, fraction=part.fraction, memory=part.memory)

    def position(item: Allocation) -> tuple[object, ...]:
        owner = item.workload
        names = (owner.namespace, owner.pod, owner.container, owner.pod_uid, item.resource)
        return (order[item.device.uuid], *names)

    return MatchResult(
        tuple(sorted(found.values(), key=position)),
        tuple(unmatched),
        repeated,
        skipped,
        ended,
        monitoring,
        is_pending,
        tuple(sorted({*_problems(holding.pod for holding in holdings), *map(_unknown_claim, unknown)})),
    )


def _of_gpus(
    pod_resources: PodResources, settings: PodResourcesSettings
) -> tuple[list[KubeletAllocation], Counter[str]]:
    """The allocations of GPUs, and the number of others by resource or driver."""
    kinds = [
        (item, item.claimed_device.driver, settings.drivers)
        if item.claimed_device is not None
        else (item, item.resource, settings.resources)
        for item in pod_resources
    ]
    gpus = [item for item, kind, patterns in kinds if matches_any(kind, patterns)]
    return gpus, Counter(kind for _, kind, patterns in kinds if not matches_any(kind, patterns))


def _find_device(
    holding: Holding, names: DeviceNames, slices: ResourceSlices, found_by: str
) -> tuple[Device | NoMatch, str]:
    item = holding.item
    if item.claimed_device is not None:
        return find_claimed_device(names, item.claimed_device, slices)
    device = names.find(item.device_id)
    if holding.share is None:
        return device, found_by
    if isinstance(device, Gpu) and names.has_instances(device):
        device = NoMatch("annotation", f"GPU {device.index} is divided: which instance it is, is not known")
    return device, FOUND_BY_ANNOTATION


def _without_monitoring(
    live: Iterable[_Live],
    devices: tuple[Device, ...],
    claims: ResourceClaims,
    names: DeviceNames,
    slices: ResourceSlices,
) -> tuple[list[_Live], Counter[ClaimName], bool]:
    """Allocations that keep a device from others, the claims left out, and whether one is not read yet."""
    kept: list[_Live] = []
    monitoring: Counter[ClaimName] = Counter()
    # The GPUs of each claim, and the claims that could not be read.
    had: dict[ClaimName, set[Gpu]] = {}
    unread: set[ClaimName] = set()
    is_pending = False
    for item, pod in live:
        claimed = item.claimed_device
        if claimed is None:
            kept.append((item, pod))
            continue
        name = item.claim_name
        if claims.is_pending(name):
            is_pending = True
            continue
        part = claims.find(name, (claimed.driver, claimed.pool, claimed.device), claimed.share)
        if part is not None and part.is_admin:
            monitoring[name] += 1
            continue
        kept.append((item, pod))
        if part is None and not claimed.share:
            unread.add(name)
        device, _ = find_claimed_device(names, claimed, slices)
        if not isinstance(device, NoMatch):
            had.setdefault(name, set()).add(device.gpu)
    suspects = _likely_monitors(had, unread, {device.gpu for device in devices})
    monitoring.update(item.claim_name for item, _ in kept if item.claim_name in suspects)
    return [one for one in kept if one[0].claim_name not in suspects], monitoring, is_pending


def _likely_monitors(
    had: Mapping[ClaimName, set[Gpu]], unread: Collection[ClaimName], gpus: Collection[Gpu]
) -> frozenset[ClaimName]:
    """Claims that may be for monitoring, and cannot be read: they have every GPU of the machine.

    On a machine with one GPU that says nothing, unless another claim has it, too: only monitors share one.
    """
    every = frozenset(name for name in unread if had.get(name) == gpus)
    return every if len(gpus) > 1 or len(had) > 1 else frozenset()


def _unknown_claim(claim: ClaimName) -> str:
    return (
        f"ResourceClaim {'/'.join(claim)} has every GPU and cannot be read: it may be for monitoring, and "
        "does not count; see `gpuledger doctor`"
    )


def _problems(pods: Iterable[Pod | None]) -> Iterator[str]:
    for pod in pods:
        if pod is not None and pod.shares.problem:
            yield f"pod {pod.namespace}/{pod.name}: {pod.shares.problem}"


def claim_uses(pod_resources: PodResources, settings: PodResourcesSettings) -> tuple[ClaimUse, ...]:
    """The claims by which pods have GPUs."""
    return tuple(
        dict.fromkeys(
            ClaimUse(item.claim_name, item.pod)
            for item in pod_resources
            if item.claimed_device is not None and matches_any(item.claimed_device.driver, settings.drivers)
        )
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
        self._logged: frozenset[str] = frozenset()

    @property
    def is_pending(self) -> bool:
        """Whether a claim of the last match is not read yet."""
        return self._last.is_pending

    def match(
        self,
        pod_resources: PodResources,
        devices: tuple[Device, ...],
        pods: Pods = NO_PODS,
        slices: ResourceSlices = NO_SLICES,
        claims: ResourceClaims = NO_CLAIMS,
    ) -> tuple[Allocation, ...]:
        """The Allocations of this tick. `has_cgroup` is called only if an input has changed."""
        inputs = (pod_resources, devices, pods, slices, claims)
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
        self._log_problems(
            frozenset((*new.problems, *map(_unmatched_text, new.unmatched))) if devices else frozenset()
        )
        return new.allocations

    def _log_problems(self, problems: frozenset[str]) -> None:
        """Log each problem once, and again only after it was gone."""
        for problem in sorted(problems - self._logged):
            log.warning("%s", problem)
        self._logged = problems


def _unmatched_text(unmatched: tuple[KubeletAllocation, NoMatch]) -> str:
    item, reason = unmatched
    pod = f"{item.namespace}/{item.pod}" if item.pod else item.pod_uid
    claimed = item.claimed_device
    device = claimed.device if claimed else item.device_id
    return f"pod {pod}: its device {device or '(no name)'} is not known here: {reason.why}"


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
    names = {*known.containers.values()}
    container = item.container or (names.pop() if len(names) == 1 else "")
    # The current id of the container, and the one from before its last restart.
    ids = [container_id for container_id, name in known.containers.items() if name == container]
    owner = Workload(
        kind="pod",
        namespace=item.namespace or known.namespace,
        pod=item.pod or known.name,
        container=container,
        pod_uid=item.pod_uid or known.uid,
        container_id=ids[0] if len(ids) == 1 else "",
        labels=known.labels,
        **known.facts,
        found_by=found_by,
        missing="" if item.pod or pod else "pod_name",
    )
    return Allocation(device, owner, found_by, claimed.claim if claimed else item.resource)

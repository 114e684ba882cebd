"""Matches the kubelet's device allocations to the Devices of a Snapshot. Pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

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
    find_workers,
    held_part,
)
from gpuledger.workloads.pod_resources.monitoring_claims import (
    LiveAllocation,
    unknown_claim_problem,
    without_monitoring,
)
from gpuledger.workloads.pod_resources.replicas import ReplicaCounts
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.claims import NO_CLAIMS, ClaimName, ClaimUse, ResourceClaims
from gpuledger.workloads.pods.pod import NO_PODS, NO_SLICES, Pod, Pods, ResourceSlices

log = logging.getLogger("gpuledger.workloads")

# Whether a pod with this UID still has a cgroup; None if unknown. Must not block.
HasCgroup = Callable[[str], bool | None]


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The outcome for all kubelet allocations: each is matched, unmatched, ended, repeated or skipped.

    `ended` are allocations of pods that are finished, gone, or replaced by a newer pod of the same name.
    `repeated` counts further allocations of the same device to the same container (replicas). `skipped`
    counts, by resource name or DRA driver, allocations that the settings do not define as GPUs. `monitoring`
    counts the devices of each claim that has them for monitoring only: these are no Allocations.
    `is_pending` is whether a claim is not known yet. `problems` name pods with an annotation that is ignored,
    and the `unknown_claims`: those of which it is not known whether they are for monitoring.
    """

    allocations: tuple[Allocation, ...] = ()
    unmatched: tuple[tuple[KubeletAllocation, NoMatch], ...] = ()
    repeated: int = 0
    skipped: Counter[str] = field(default_factory=Counter, hash=False)
    ended: Counter[KubeletAllocation] = field(default_factory=Counter, hash=False)
    monitoring: Counter[ClaimName] = field(default_factory=Counter, hash=False)
    is_pending: bool = False
    problems: tuple[str, ...] = ()
    unknown_claims: frozenset[ClaimName] = frozenset()

    @property
    def is_complete(self) -> bool:
        """Whether no claim was left out that may hold its devices."""
        return not self.is_pending and not self.unknown_claims


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
    candidates = _find_candidates(pod_resources, pods, settings, has_cgroup, ended_before)
    return _match(candidates, pod_resources, devices, slices, claims)


class _Candidates(NamedTuple):
    """What the pods alone decide: the allocations of pods that have not ended, and the other fields of
    MatchResult. `workers` are those of `find_workers`.
    """

    live: Sequence[LiveAllocation]
    workers: Mapping[str, Sequence[Pod]]
    skipped: Counter[str]
    ended: Counter[KubeletAllocation]

    @property
    def objects(self) -> tuple[object, ...]:
        """All objects that the result depends on."""
        return (*chain.from_iterable(self.live), *chain.from_iterable(self.workers.values()))


def _find_candidates(
    pod_resources: PodResources,
    pods: Pods,
    settings: PodResourcesSettings,
    has_cgroup: HasCgroup,
    ended_before: Collection[KubeletAllocation],
) -> _Candidates:
    gpus, skipped = _of_gpus(pod_resources, settings)
    live, ended = _split_ended(gpus, pods, has_cgroup, ended_before)
    return _Candidates(live, find_workers(pods), skipped, ended)


def _match(
    candidates: _Candidates,
    pod_resources: PodResources,
    devices: tuple[Device, ...],
    slices: ResourceSlices,
    claims: ResourceClaims,
) -> MatchResult:
    names = DeviceNames(devices)
    held = without_monitoring(candidates.live, devices, claims, names, slices)
    holdings = tuple(find_holdings(held.kept, candidates.workers))
    placed = [(one, *_find_device(one, names, slices, pod_resources.found_by)) for one in holdings]
    matched = [_Matched(one, device, by) for one, device, by in placed if not isinstance(device, NoMatch)]
    allocations = _with_parts(matched, pod_resources.replicas, claims, slices)
    problems = {*_problems(one.pod for one in holdings), *map(unknown_claim_problem, held.unknown)}
    return MatchResult(
        tuple(sorted(allocations, key=_position(devices))),
        tuple((one.item, device) for one, device, _ in placed if isinstance(device, NoMatch)),
        len(matched) - len(allocations),
        candidates.skipped,
        candidates.ended,
        held.monitoring,
        held.is_pending,
        tuple(sorted(problems)),
        held.unknown,
    )


def _split_ended(
    items: Iterable[KubeletAllocation],
    pods: Pods,
    has_cgroup: HasCgroup,
    ended_before: Collection[KubeletAllocation],
) -> tuple[list[LiveAllocation], Counter[KubeletAllocation]]:
    """The allocations of pods that have not ended, and the number of the others."""
    live: list[LiveAllocation] = []
    ended: Counter[KubeletAllocation] = Counter()
    for item in items:
        pod = pods.by_uid(item.pod_uid) if item.pod_uid else pods.by_name(item.namespace, item.pod)
        if (pod is None and item in ended_before) or _has_ended(item, pod, pods, has_cgroup):
            ended[item] += 1
        else:
            live.append((item, pod))
    return live, ended


class _Matched(NamedTuple):
    """A holding and its Device."""

    holding: Holding
    device: Device
    found_by: str


def _with_parts(
    matched: Iterable[_Matched], replicas: ReplicaCounts, claims: ResourceClaims, slices: ResourceSlices
) -> list[Allocation]:
    """The Allocations of each container, each once, with the part of the device that its pod has."""
    found: dict[tuple[str, str, str, str], tuple[Device, Workload]] = {}
    # By device, pod and resource: all containers of a pod share what it has of a device.
    shared: dict[tuple[str, str, str], list[Holding]] = {}
    for holding, device, found_by in matched:
        item = holding.item
        owner = _owner(item, holding.pod, found_by)
        resource = item.claimed_device.claim if item.claimed_device else item.resource
        pod = owner.pod_uid or f"{owner.namespace}/{owner.pod}"
        found.setdefault((device.uuid, pod, owner.container, resource), (device, owner))
        shared.setdefault((device.uuid, pod, resource), []).append(holding)
    parts = {key: held_part(holdings, replicas, claims, slices) for key, holdings in shared.items()}
    return [
        Allocation(device, owner, owner.found_by, resource, part.fraction, part.memory)
        for (uuid, pod, _, resource), (device, owner) in found.items()
        for part in (parts[uuid, pod, resource],)
    ]


def _position(devices: Iterable[Device]) -> Callable[[Allocation], tuple[object, ...]]:
    order = {device.uuid: at for at, device in enumerate(devices)}

    def position(item: Allocation) -> tuple[object, ...]:
        owner = item.workload
        names = (owner.namespace, owner.pod, owner.container, owner.pod_uid, item.resource)
        return (order[item.device.uuid], *names)

    return position


def _of_gpus(
    pod_resources: PodResources, settings: PodResourcesSettings
) -> tuple[list[KubeletAllocation], Counter[str]]:
    """The allocations of GPUs, and the number of others by resource or driver."""
    gpus: list[KubeletAllocation] = []
    others: Counter[str] = Counter()
    for item in pod_resources:
        claimed = item.claimed_device
        kind = item.resource if claimed is None else claimed.driver
        if matches_any(kind, settings.resources if claimed is None else settings.drivers):
            gpus.append(item)
        else:
            others[kind] += 1
    return gpus, others


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


def _problems(pods: Iterable[Pod | None]) -> Iterator[str]:
    for pod in pods:
        if pod is not None and pod.shares.problem:
            yield f"pod {pod.namespace}/{pod.name}: {pod.shares.problem}"


def claim_uses(
    pod_resources: PodResources, settings: PodResourcesSettings, pods: Pods = NO_PODS
) -> tuple[ClaimUse, ...]:
    """The claims by which pods have GPUs."""

    def pod_of(item: KubeletAllocation) -> str:
        known = pods.by_name(item.namespace, item.pod)
        return known.uid if known else item.pod

    return tuple(
        dict.fromkeys(
            ClaimUse(item.claim_name, pod_of(item))
            for item in pod_resources
            if item.claimed_device is not None and matches_any(item.claimed_device.driver, settings.drivers)
        )
    )


class AllocationMatcher:
    """`match_allocations` with a cache.

    Nothing is computed while all inputs are the same objects, and little if only pods without a GPU changed.
    An equal result is the same tuple.
    """

    def __init__(self, settings: PodResourcesSettings, has_cgroup: HasCgroup = lambda _: None) -> None:
        self._settings = settings
        self._has_cgroup = has_cgroup
        self._last = MatchResult()
        self._inputs: tuple[object, ...] = ()
        self._pods: Pods | None = None
        self._candidates: tuple[object, ...] = ()
        self._logged: frozenset[str] = frozenset()

    @property
    def is_pending(self) -> bool:
        """Whether a claim of the last match is not read yet."""
        return self._last.is_pending

    @property
    def is_complete(self) -> bool:
        """Whether the last match has all Allocations: see MatchResult."""
        return self._last.is_complete

    def match(
        self,
        pod_resources: PodResources,
        devices: tuple[Device, ...],
        pods: Pods = NO_PODS,
        slices: ResourceSlices = NO_SLICES,
        claims: ResourceClaims = NO_CLAIMS,
    ) -> tuple[Allocation, ...]:
        """The Allocations of this tick. `has_cgroup` is called only if an input has changed."""
        inputs = (pod_resources, devices, slices, claims)
        is_same = same_objects(inputs, self._inputs)
        if is_same and pods is self._pods:
            return self._last.allocations
        candidates = _find_candidates(
            pod_resources, pods, self._settings, self._has_cgroup, ended_before=self._last.ended
        )
        objects, before = candidates.objects, self._candidates
        self._inputs, self._pods, self._candidates = inputs, pods, objects
        if is_same and same_objects(objects, before):
            return self._last.allocations
        self._replace(_match(candidates, *inputs), has_devices=bool(devices))
        return self._last.allocations

    def _replace(self, new: MatchResult, *, has_devices: bool) -> None:
        previous = self._last.allocations
        # Devices compare equal by UUID alone; another object can have another index.
        before, now = ([item.device for item in items] for items in (previous, new.allocations))
        if new.allocations == previous and same_objects(before, now):
            new = replace(new, allocations=previous)
        self._last = new
        problems = {problem: problem for problem in new.problems} | _unmatched_texts(new.unmatched)
        self._log_problems(problems if has_devices else {})

    def _log_problems(self, problems: Mapping[str, str]) -> None:
        """Log each problem once, and again only after it was gone."""
        for text in sorted(problems[problem] for problem in problems.keys() - self._logged):
            log.warning("%s", text)
        self._logged = frozenset(problems)


def _unmatched_texts(unmatched: Iterable[tuple[KubeletAllocation, NoMatch]]) -> dict[str, str]:
    """One line for each reason, not for each pod: if a GPU is lost, all its pods have the same."""
    by_reason: dict[str, list[KubeletAllocation]] = {}
    for item, reason in unmatched:
        by_reason.setdefault(reason.why, []).append(item)
    return {why: _unmatched_text(why, items) for why, items in by_reason.items()}


def _unmatched_text(why: str, items: Sequence[KubeletAllocation]) -> str:
    item = items[0]
    pod = f"{item.namespace}/{item.pod}" if item.pod else item.pod_uid
    claimed = item.claimed_device
    device = claimed.device if claimed else item.device_id
    more = f" (and {len(items) - 1} more allocations)" if len(items) > 1 else ""
    return f"pod {pod}: its device {device or '(no name)'} is not known here: {why}{more}"


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


def _owner(item: KubeletAllocation, pod: Pod | None, found_by: str) -> Workload:
    known = pod or Pod("", "", "")
    names = {*known.containers.values()}
    container = item.container or (names.pop() if len(names) == 1 else "")
    # The current id of the container, and the one from before its last restart.
    ids = [container_id for container_id, name in known.containers.items() if name == container]
    return Workload(
        kind="pod",
        namespace=item.namespace or known.namespace,
        pod=item.pod or known.name,
        container=container,
        # The checkpoint has the hash of a static pod, as its cgroup does.
        pod_uid=known.uid or item.pod_uid,
        container_id=ids[0] if len(ids) == 1 else "",
        labels=known.labels,
        **known.facts,
        found_by=found_by,
        missing="" if item.pod or pod else "pod_name",
    )

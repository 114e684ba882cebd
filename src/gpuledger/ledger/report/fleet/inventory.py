"""The Gpus, nodes and pods of a fleet, from info series; detects Gpus that are scraped twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from gpuledger.ledger.report.fleet.rises import Rise, SharedBound
from gpuledger.ledger.report.fleet.scraped import (
    TIMES,
    AccountAnswers,
    Dropped,
    LabelResolver,
    Name,
    ScrapedRange,
    SeriesWindows,
    Target,
    node_of,
    target_of,
)
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.devices import Gpu
from gpuledger.model.workload import JOB_FACTS, POD_FACTS

# Factor of samples above one target's number at which a Gpu's targets are duplicates.
_DOUBLE = 1.2
# The multiprocessors of a GPU are fewer: the fraction of an Instance is exact, although a ratio is exported.
_MOST_SLICES = 1000


class ScrapedPod(NamedTuple):
    """A pod's facts by name, and its labels."""

    facts: Mapping[str, str] = MappingProxyType({})
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Inventory:
    """The objects of a fleet, as last scraped.

    `intervals` are seconds between scrapes by target, `interval` is the default. `gpus` and `nodes` are by
    uuid, `pods` by namespace and name, facts of `jobs` by number. `profiles` and `shares` (of the Gpu's
    multiprocessors) are of MIG Instances, by uuid and Instance. `doubled` are Gpus that several targets
    exported at the same time, as with two scrape jobs for one exporter. `moves` are Gpus that had several
    nodes: the quarters from which each was theirs, in order. `renamed` are pods that had other facts or
    labels before, such as a later pod of the same name.
    """

    interval: float
    intervals: Mapping[Target, float] = field(default_factory=dict)
    gpus: dict[str, Gpu] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    pods: defaultdict[Name, ScrapedPod] = field(default_factory=lambda: defaultdict(ScrapedPod))
    jobs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    profiles: dict[tuple[str, str], str] = field(default_factory=dict)
    shares: dict[tuple[str, str], Fraction] = field(default_factory=dict)
    doubled: set[str] = field(default_factory=set)
    moves: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    renamed: set[Name] = field(default_factory=set)
    scrapes: LabelResolver = field(default_factory=LabelResolver)

    def interval_of(self, target: Target) -> float:
        """Seconds between scrapes of a target."""
        return self.intervals.get(target, self.interval)

    def update(self, part: ScrapedRange) -> Dropped:
        """Learn from a range; return the duplicates in it."""
        for accounts in (part.energy, part.gpu_time):
            self.scrapes.learn(labels for labels, _ in accounts.get("last", ()))
        own = self.scrapes.own_values
        for labels, _ in part.infos:
            uuid, cut, index, name = own(labels, ("uuid", "mig_instance", "gpu", "name"))
            if not cut:
                self.gpus[uuid] = Gpu(uuid, int(index) if index.isdigit() else -1, name)
        self.profiles.update(self.instance_profiles(part))
        self.shares.update(self.instance_shares(part))
        self._update_nodes(part)
        for labels, _ in part.jobs:
            job, *facts = own(labels, ("slurm_job", *JOB_FACTS))
            self.jobs[job] = dict(zip(JOB_FACTS, facts, strict=True))
        self._update_pods(part)
        return self._doubles(part)

    def instance_shares(self, part: ScrapedRange) -> dict[tuple[str, str], Fraction]:
        """The MIG Instances of a range, by uuid and Instance, and their shares of their Gpus."""
        devices = {self.scrapes.own_values(labels, TIMES[:2]): ratio for labels, ratio in part.ratios}
        return {
            (uuid, cut): Fraction(ratio).limit_denominator(_MOST_SLICES)
            for (uuid, cut), ratio in devices.items()
            if cut
        }

    def instance_profiles(self, part: ScrapedRange) -> dict[tuple[str, str], str]:
        """The MIG Instances of a range, by uuid and Instance, and their profiles."""
        found = (self.scrapes.own_values(labels, (*TIMES[:2], "profile")) for labels, _ in part.infos)
        return {(uuid, cut): profile for uuid, cut, profile in found if cut}

    def node_at(self, uuid: str, quarter: int) -> str:
        """The node of a Gpu in a quarter."""
        for begins, node in reversed(self.moves.get(uuid, ())):
            if begins <= quarter:
                return node
        return self.nodes.get(uuid, "")

    def _update_nodes(self, part: ScrapedRange) -> None:
        found: dict[str, str] = {}
        # Of a Gpu that moved within the range, that of its last scrape.
        for word in ("last", "still"):
            for totals in (part.devices, part.watched):
                for labels, _ in totals.get(word, ()):
                    found[labels.get("uuid", "")] = node_of(labels)
        quarter = int(part.begins // QUARTER)
        for uuid, node in found.items():
            moves = self.moves.get(uuid) or [(0, self.nodes.get(uuid, node))]
            # The range before a part of the period was read already.
            if quarter < moves[-1][0]:
                continue
            if node != moves[-1][1]:
                self.moves[uuid] = [*moves, (quarter, node)]
            self.nodes[uuid] = node

    def _update_pods(self, part: ScrapedRange) -> None:
        for labels, _ in part.pods:
            namespace, pod, *facts = self.scrapes.own_values(labels, ("namespace", "pod", *POD_FACTS))
            known = dict(zip(POD_FACTS, facts, strict=True))
            if self.pods[namespace, pod].facts not in ({}, known):
                self.renamed.add((namespace, pod))
            self.pods[namespace, pod] = self.pods[namespace, pod]._replace(facts=known)
        names = ("namespace", "pod", "label", "value")
        for labels, _ in part.pod_labels:
            *key, label, value = self.scrapes.own_values(labels, names)
            before = dict(self.pods[*key].labels)
            labels_by_name = {**before, label: value}
            if before.get(label, value) != value:
                self.renamed.add(tuple(key))
            self.pods[*key] = self.pods[*key]._replace(labels=tuple(sorted(labels_by_name.items())))

    def _doubles(self, part: ScrapedRange) -> Dropped:
        doubles: set[tuple[str, Target]] = set()
        for uuid, targets in part.scrapes().items():
            most = (part.ends - part.begins) / min(map(self.interval_of, targets)) + 1
            if len(targets) > 1 and sum(targets.values()) > _DOUBLE * most:
                kept = max(targets, key=lambda target: (targets[target], target))
                doubles |= {(uuid, target) for target in targets if target != kept}
                self.doubled.add(uuid)
        return frozenset(doubles)


class DuplicateTargets:
    """Bounds for counters of one range that several targets exported.

    `most` is the most that each Gpu can use in a second, `waits` the seconds until a used amount has been
    scraped: after a reset, the first exported value is at most their product. A Gpu's own counter decides: if
    its second target continued where the first one was, the two were consecutive, and so were their exports
    for the Gpu's owners.
    """

    def __init__(
        self, part: AccountAnswers, inventory: Inventory, most: Mapping[str, float], waits: float
    ) -> None:
        self.dropped = part.dropped
        self._length = part.length
        self._interval = inventory.interval
        self._most, self._waits = most, waits
        self._gained: Mapping[Name, Rise] = {}
        self._duplicated = _scraped_twice(part)
        # For which a second target exported the Gpu, too, as far as known.
        self.seconds: dict[str, float] = defaultdict(float)
        self._times = {
            uuid: {target: count * inventory.interval_of(target) for target, count in targets.items()}
            for uuid, targets in part.scrapes.items()
        }

    def devices(self, name: Name) -> SharedBound:
        """The bounds for a Gpu's own counter."""
        if name[0] in self._duplicated:
            return SharedBound()
        return SharedBound(max_after_reset=self._waits * self._most.get(name[0], 0.0))

    def update(self, windows: SeriesWindows, gained: Mapping[Name, Rise]) -> None:
        """Take the rises of the Gpus' own counters, which decide about the others."""
        self._gained = gained
        for (uuid,), rise in gained.items():
            if rise.duplicated is None:
                continue
            known = self._times.get(uuid, {})
            times = {target: known.get(target, 0.0) for target in windows[uuid,]}
            seconds = sum(times.values()) - self._length
            if uuid in self._duplicated:
                # The same fraction of a target's time as of the amount that it exported.
                parts = [
                    min(rise.duplicated / (piece.last - piece.least), 1.0) * times[target]
                    for target, piece in windows[uuid,].items()
                    if piece.last > piece.least
                ]
                seconds = max(seconds, min(parts, default=0.0))
            self.seconds[uuid] = max(seconds, 0.0)

    def accounts(self, name: Name) -> SharedBound | None:
        """The bounds for an account on a Gpu; None if no two targets exported it at the same time."""
        rise = self._gained.get(name[:1], Rise())
        if rise.duplicated is None:
            return None
        if rise.ambiguous:
            return SharedBound(max_after_reset=inf)
        # Twice its mean rate if the highest is unknown.
        most = self._most.get(name[0]) or 2 * rise.amount / self._length
        return SharedBound(rise.duplicated + self._waits * most, self._waits * most)

    def times(self, name: Name) -> SharedBound | None:
        """The bounds for counters of seconds, which are reset when a node's program restarts."""
        rise = self._gained.get(name[:1], Rise())
        if rise.duplicated is None:
            return None
        sure = name[0] in self._duplicated and not rise.ambiguous
        # A new owner's time is exported late, and then all at once.
        common = self.seconds[name[0]] + self._waits + self._interval
        return SharedBound(common, -1.0 if sure else inf)


def _scraped_twice(part: AccountAnswers) -> frozenset[str]:
    """Gpus that certainly had several targets at the same time, when the range began or when it ended."""
    found = set()
    for word in ("alive", "still"):
        there = {(labels.get("uuid", ""), target_of(labels)) for labels, _ in part.totals.get(word, ())}
        seen = Counter(uuid for uuid, _ in there)
        found |= {uuid for uuid, targets in seen.items() if targets > 1}
    return frozenset(found)

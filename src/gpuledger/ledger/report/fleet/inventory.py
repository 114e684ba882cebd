"""The Gpus, nodes and pods of a fleet, from info series; detects Gpus that are scraped twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gpuledger.ledger.report.fleet.rises import Rise, SharedBound
from gpuledger.ledger.report.fleet.scraped import (
    Dropped,
    LabelResolver,
    Name,
    ScrapedRange,
    SeriesWindows,
    Target,
    node_of,
    target_of,
)
from gpuledger.model.devices import Gpu

# Factor of samples above one target's number at which a Gpu's targets are duplicates.
_DOUBLE = 1.2


class ScrapedPod(NamedTuple):
    """Kubernetes facts of a pod: its controller and its labels."""

    controller_kind: str = ""
    controller: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Inventory:
    """The objects of a fleet, as last scraped.

    `intervals` are seconds between scrapes by target, `interval` is the default. `gpus` and `nodes` are by
    uuid, `pods` by namespace and name. `doubled` are Gpus that several targets exported at the same time, as
    with two scrape jobs for one exporter.
    """

    interval: float
    intervals: Mapping[Target, float] = field(default_factory=dict)
    gpus: dict[str, Gpu] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    pods: defaultdict[Name, ScrapedPod] = field(default_factory=lambda: defaultdict(ScrapedPod))
    doubled: set[str] = field(default_factory=set)
    scrapes: LabelResolver = field(default_factory=LabelResolver)

    def interval_of(self, target: Target) -> float:
        """Seconds between scrapes of a target."""
        return self.intervals.get(target, self.interval)

    def update(self, part: ScrapedRange) -> Dropped:
        """Learn from a range; return the duplicates in it."""
        self.scrapes.learn(labels for labels, _ in part.energy.get("last", ()))
        for labels, _ in part.infos:
            uuid, cut, index, name = self.scrapes.own_values(labels, ("uuid", "mig_instance", "gpu", "name"))
            if not cut:
                self.gpus[uuid] = Gpu(uuid, int(index) if index.isdigit() else -1, name)
        for labels, _ in part.devices.get("last", ()):
            self.nodes[labels.get("uuid", "")] = node_of(labels)
        self._update_pods(part)
        return self._doubles(part)

    def _update_pods(self, part: ScrapedRange) -> None:
        names = ("namespace", "pod", "controller_kind", "controller")
        for labels, _ in part.pods:
            *key, kind, controller = self.scrapes.own_values(labels, names)
            self.pods[*key] = self.pods[*key]._replace(controller_kind=kind, controller=controller)
        names = ("namespace", "pod", "label", "value")
        for labels, _ in part.pod_labels:
            *key, label, value = self.scrapes.own_values(labels, names)
            labels_by_name = {**dict(self.pods[*key].labels), label: value}
            self.pods[*key] = self.pods[*key]._replace(labels=tuple(sorted(labels_by_name.items())))

    def _doubles(self, part: ScrapedRange) -> Dropped:
        counts: dict[str, dict[Target, float]] = defaultdict(dict)
        for labels, count in part.counts:
            counts[labels.get("uuid", "")][target_of(labels)] = count
        doubles: set[tuple[str, Target]] = set()
        for uuid, targets in counts.items():
            most = (part.ends - part.begins) / min(map(self.interval_of, targets)) + 1
            if len(targets) > 1 and sum(targets.values()) > _DOUBLE * most:
                kept = max(targets, key=lambda target: (targets[target], target))
                doubles |= {(uuid, target) for target in targets if target != kept}
                self.doubled.add(uuid)
        return frozenset(doubles)


class DuplicateTargets:
    """Bounds for counters of one range that several targets exported.

    `watts` is the highest power of each Gpu, `waits` the seconds until used energy has been scraped: after a
    reset, the first exported value is at most their product. A Gpu's own counter decides: if its second
    target continued where the first one was, the two were consecutive, and so were their exports for the
    Gpu's owners.
    """

    def __init__(
        self,
        part: ScrapedRange,
        dropped: Dropped,
        inventory: Inventory,
        watts: Mapping[str, float],
        waits: float,
    ) -> None:
        self.dropped = dropped
        self._length = part.ends - part.begins
        self._interval = inventory.interval
        self._watts, self._waits = watts, waits
        self._gained: Mapping[Name, Rise] = {}
        self._duplicated = _scraped_twice(part)
        # For which a second target exported the Gpu, too, as far as known.
        self.seconds: dict[str, float] = defaultdict(float)
        self._times: dict[str, dict[Target, float]] = defaultdict(dict)
        for labels, count in part.counts:
            target = target_of(labels)
            self._times[labels.get("uuid", "")][target] = count * inventory.interval_of(target)

    def devices(self, name: Name) -> SharedBound:
        """The bounds for a Gpu's own counter."""
        if name[0] in self._duplicated:
            return SharedBound()
        return SharedBound(max_after_reset=self._waits * self._watts.get(name[0], 0.0))

    def update(self, windows: SeriesWindows, gained: Mapping[Name, Rise]) -> None:
        """Take the rises of the Gpus' own counters, which decide about the others."""
        self._gained = gained
        for (uuid,), rise in gained.items():
            if rise.duplicated is None:
                continue
            times = {target: self._times[uuid].get(target, 0.0) for target in windows[uuid,]}
            seconds = sum(times.values()) - self._length
            if uuid in self._duplicated:
                # The same fraction of a target's time as of the energy that it exported.
                parts = [
                    min(rise.duplicated / (piece.last - piece.least), 1.0) * times[target]
                    for target, piece in windows[uuid,].items()
                    if piece.last > piece.least
                ]
                seconds = max(seconds, min(parts, default=0.0))
            self.seconds[uuid] = max(seconds, 0.0)

    def energy(self, name: Name) -> SharedBound | None:
        """The bounds for an account on a Gpu; None if no two targets exported it at the same time."""
        rise = self._gained.get(name[:1], Rise())
        if rise.duplicated is None:
            return None
        if rise.ambiguous:
            return SharedBound(max_after_reset=inf)
        # Twice its mean power if the highest is unknown.
        watts = self._watts.get(name[0]) or 2 * rise.amount / self._length
        return SharedBound(rise.duplicated + self._waits * watts, self._waits * watts)

    def times(self, name: Name) -> SharedBound | None:
        """The bounds for counters of seconds, which are reset when a node's program restarts."""
        rise = self._gained.get(name[:1], Rise())
        if rise.duplicated is None:
            return None
        sure = name[0] in self._duplicated and not rise.ambiguous
        # A new owner's time is exported late, and then all at once.
        common = self.seconds[name[0]] + self._waits + self._interval
        return SharedBound(common, -1.0 if sure else inf)


def _scraped_twice(part: ScrapedRange) -> frozenset[str]:
    """Gpus that certainly had several targets at the same time, when the range began or when it ended."""
    found = set()
    for word in ("alive", "still"):
        seen = Counter(labels.get("uuid", "") for labels, _ in part.devices.get(word, ()))
        found |= {uuid for uuid, targets in seen.items() if targets > 1}
    return frozenset(found)

"""Who is who in a fleet, by the info series in its Prometheus; and who is scraped twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from gpuledger.ledger.report.fleet.rises import Rise, Shared
from gpuledger.ledger.report.fleet.scraped import Name, Range, Scrapes, Target, Windows, node_of, target_of
from gpuledger.model.devices import Gpu

# Of a Gpu with series from several targets: more samples than one target can have made.
_DOUBLE = 1.2


class Pod(NamedTuple):
    """What Kubernetes says of a pod: what made it, and its labels."""

    controller_kind: str = ""
    controller: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Inventory:
    """`intervals` are seconds between scrapes by target, `interval` those of any other one.

    `gpus` and `nodes` are by uuid, `pods` by namespace and name: as last told. `doubled` are Gpus that
    several targets told at the same time, as two scrape jobs of one exporter do.
    """

    interval: float
    intervals: Mapping[Target, float] = field(default_factory=dict)
    gpus: dict[str, Gpu] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)
    doubled: set[str] = field(default_factory=set)
    scrapes: Scrapes = field(default_factory=Scrapes)

    def interval_of(self, target: Target) -> float:
        """Seconds between scrapes."""
        return self.intervals.get(target, self.interval)

    def look(self, part: Range) -> frozenset[tuple[str, Target]]:
        """Learn from a Range; answers Gpus and targets not to be counted, as another one tells the same."""
        self.scrapes.learn(labels for labels, _ in part.energy.get("last", ()))
        for labels, _ in part.infos:
            uuid, cut, index, name = self.scrapes.own(labels, ("uuid", "mig_instance", "gpu", "name"))
            if not cut:
                self.gpus[uuid] = Gpu(uuid, int(index) if index.isdigit() else -1, name)
        for labels, _ in part.devices.get("last", ()):
            self.nodes[labels.get("uuid", "")] = node_of(labels)
        self._look_at_pods(part)
        return frozenset(self._doubles(part))

    def _look_at_pods(self, part: Range) -> None:
        for labels, _ in part.pods:
            names = ("namespace", "pod", "controller_kind", "controller")
            namespace, name, kind, controller = self.scrapes.own(labels, names)
            pod = self.pods.get((namespace, name), Pod())
            self.pods[namespace, name] = pod._replace(controller_kind=kind, controller=controller)
        for labels, _ in part.pod_labels:
            namespace, name, label, value = self.scrapes.own(labels, ("namespace", "pod", "label", "value"))
            pod = self.pods.get((namespace, name), Pod())
            told = {**dict(pod.labels), label: value}
            self.pods[namespace, name] = pod._replace(labels=tuple(sorted(told.items())))

    def _doubles(self, part: Range) -> set[tuple[str, Target]]:
        counts: dict[str, dict[Target, float]] = defaultdict(dict)
        for labels, count in part.counts:
            counts[labels.get("uuid", "")][target_of(labels)] = count
        doubles = set()
        for uuid, targets in counts.items():
            most = (part.ends - part.begins) / min(map(self.interval_of, targets)) + 1
            if len(targets) > 1 and sum(targets.values()) > _DOUBLE * most:
                kept = max(targets, key=lambda target: (targets[target], target))
                doubles |= {(uuid, target) for target in targets if target != kept}
                self.doubled.add(uuid)
        return doubles


class Twice:
    """Of one Range. `watts` is the highest power of each Gpu, `waits` the seconds after which what it used
    has been scraped: a counter that began anew has no more than their product when it is first told.

    A Gpu's own counter decides: if its second target went on where the first one was, the two came one after
    the other, and so did what they tell of the Gpu's owners.
    """

    def __init__(self, part: Range, inventory: Inventory, watts: Mapping[str, float], waits: float) -> None:
        self._length = part.ends - part.begins
        self._interval = inventory.interval
        self._watts, self._waits = watts, waits
        self._gained: Mapping[Name, Rise] = {}
        self._at_once = _at_once(part)
        self._seconds: dict[str, float] = {}
        self._times: dict[str, dict[Target, float]] = defaultdict(dict)
        for labels, count in part.counts:
            target = target_of(labels)
            self._times[labels.get("uuid", "")][target] = count * inventory.interval_of(target)

    def devices(self, name: Name) -> Shared:
        """Of a Gpu's own counter."""
        return (
            Shared()
            if name[0] in self._at_once
            else Shared(newborn=self._waits * self._watts.get(name[0], 0.0))
        )

    def look(self, windows: Windows, gained: Mapping[Name, Rise]) -> None:
        """Take in how the Gpus' own counters rose: the rest goes by them."""
        self._gained = gained
        for (uuid,), rise in gained.items():
            if rise.again is None:
                continue
            times = {target: self._times[uuid].get(target, 0.0) for target in windows[uuid,]}
            seconds = sum(times.values()) - self._length
            if uuid in self._at_once:
                # As much of a target's time as of the energy that it told.
                parts = [
                    min(rise.again / (piece.last - piece.least), 1.0) * times[target]
                    for target, piece in windows[uuid,].items()
                    if piece.last > piece.least
                ]
                seconds = max(seconds, min(parts, default=0.0))
            self._seconds[uuid] = max(seconds, 0.0)

    def energy(self, name: Name) -> Shared | None:
        """Of an account on a Gpu; None if no two targets told it at the same time."""
        rise = self._gained.get(name[:1], Rise())
        if rise.again is None:
            return None
        if rise.unclear:
            return Shared(newborn=inf)
        # Twice its mean power where nobody tells the highest.
        watts = self._watts.get(name[0]) or 2 * rise.amount / self._length
        return Shared(rise.again + self._waits * watts, self._waits * watts)

    def times(self, name: Name) -> Shared | None:
        """Of seconds, which begin anew with each start of a node's program."""
        rise = self._gained.get(name[:1], Rise())
        if rise.again is None:
            return None
        sure = name[0] in self._at_once and not rise.unclear
        return Shared(self.seconds(name[0]) + 2 * self._interval, -1.0 if sure else inf)

    def seconds(self, uuid: str) -> float:
        """For how long a Gpu was told by a second target, too, as far as one can tell."""
        return self._seconds.get(uuid, 0.0)


def _at_once(part: Range) -> frozenset[str]:
    """Gpus that certainly had several targets at the same time: when the Range began, or when it ended."""
    found = set()
    for word in ("alive", "still"):
        seen = Counter(labels.get("uuid", "") for labels, _ in part.devices.get(word, ()))
        found |= {uuid for uuid, targets in seen.items() if targets > 1}
    return frozenset(found)

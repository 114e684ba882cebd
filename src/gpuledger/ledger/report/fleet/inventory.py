"""Who is who in a fleet, by the info series in its Prometheus; and who is scraped twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.ledger.report.fleet.ranges import Range
from gpuledger.ledger.report.fleet.scraped import Scrapes, Target, node_of, target_of
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

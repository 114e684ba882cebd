"""Targets of the scenarios of alerts: the series of healthy ones, and what a scenario changes in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from alert_page import STEP, Series, declared, exported_series

# A busy GPU of a pod.
NODE = """
gpus:
  - model: NVIDIA H100 80GB HBM3
    processes:
      - {name: python3, load: 0.8, memory: 60GiB, pod: {namespace: ml, name: train-0, container: main}}
"""
# Steps of 30 s: 100 minutes.
LENGTH = 200
SELECTOR = re.compile(r'(\w+)(?:\{(\w+)="(.*)"\})?')


@dataclass(frozen=True, eq=False)
class Scenario:
    """What differs from a healthy target, and the alerts that fire, by minute and separated by blanks.

    `changes` are the values of series by selector, None if they are missing; `also` are further series, and
    `relabel` labels of all series. From step `stops` on, the target does not answer. `labels` are those of
    the alert.
    """

    name: str
    firing: Mapping[int, str]
    changes: Mapping[str, str | None] = field(default_factory=dict)
    also: tuple[Series, ...] = ()
    relabel: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["exporter", "agent", "operator"] = "exporter"
    simulated: bool = False
    stops: int | None = None

    @property
    def target(self) -> dict[str, str]:
        """The labels of the target."""
        return {
            "cluster": self.name,
            "job": self.kind,
            "instance": "10.0.0.1:9400",
            "node": f"node-{self.name}",
            "service": "monitor-1",
        }

    def series(self) -> Iterator[Series]:
        """All series of the target, as Prometheus stores them."""
        unused = set(self.changes)
        for one in (Series("up", {}, f"1x{LENGTH}"), *_healthy(self.kind, self.simulated)):
            values: str | None = one.values
            for selector, changed in self.changes.items():
                if _selects(selector, one):
                    unused.discard(selector)
                    values = changed
            if values is not None:
                yield self._stored(Series(one.name, one.labels, self._stopped(one.name, values)))
        assert not unused, f"{self.name}: no healthy target has {sorted(unused)}"
        yield from map(self._stored, self.also)

    def _stopped(self, name: str, values: str) -> str:
        if self.stops is None or name == "up":
            return values
        # Only lines stop: a prefix of the line, then a staleness marker.
        return re.sub(r"x\d+$", f"x{self.stops}", values) + " stale"

    def _stored(self, one: Series) -> Series:
        labels = {**self.target, **one.labels, **{k: v for k, v in self.relabel.items() if k in one.labels}}
        for name, value in (("uuid", f"GPU-{self.name}"), ("UUID", f"GPU-{self.name}")):
            if labels.get(name):
                labels[name] = value
        if one.name.startswith("nvidia_smi_"):
            labels["uuid"] = self.name
        return Series(one.name, labels, one.values)


def _selects(selector: str, one: Series) -> bool:
    matched = SELECTOR.fullmatch(selector)
    assert matched is not None, selector
    name, label, value = matched.groups()
    return name == one.name and (label is None or one.labels.get(label) == value)


@cache
def _healthy(kind: str, simulated: bool) -> tuple[Series, ...]:
    if kind == "agent":
        return tuple(healthy_agent(LENGTH))
    if kind == "operator":
        return tuple(healthy_operator(LENGTH))
    return tuple(exported_series(NODE, LENGTH, simulated=simulated))


def healthy_agent(number: int, step: int = STEP) -> Iterator[Series]:
    """The series of an agent that rules read."""
    one, none = f"1x{number}", f"0x{number}"
    yield declared("gpuledger_agent_build_info", one, version="0")
    yield declared("gpuledger_agent_config_last_reload_success", one)
    yield declared("gpuledger_agent_watch_up", one, watch="pods")
    for state, targets in (("up", "9"), ("down", "1"), ("unknown", "0")):
        yield declared("gpuledger_agent_targets", f"{targets}x{number}", group="gpus", state=state)
    for reason in ("age", "rejected"):
        yield declared("gpuledger_agent_dropped_samples_total", none, receiver="store", reason=reason)
    age = f"-5+{step}x{number}"
    yield declared("gpuledger_agent_queue_oldest_timestamp_seconds", age, receiver="store")


def healthy_operator(number: int) -> Iterator[Series]:
    """The series of an operator that rules read."""
    yield declared("gpuledger_operator_build_info", f"1x{number}", version="0")
    yield declared("gpuledger_operator_leading", f"1x{number}")
    for condition, value in (("Available", "1"), ("Degraded", "0")):
        labels = {"kind": "GpuMonitor", "name": "gpus", "condition": condition}
        yield declared("gpuledger_operator_monitor_condition", f"{value}x{number}", **labels)
    yield declared("gpuledger_operator_reconciles_total", f"0+1x{number}", result="success")
    yield declared("gpuledger_operator_reconciles_total", f"3x{number}", result="error")

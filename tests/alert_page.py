"""Pages of a simulated node as series for promtool and VictoriaMetrics, named as exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from builders import FakeClock
from gpuledger.agent import families as agent_families
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DialectSettings
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.family import FamilySpec
from gpuledger.model.node_state import NodeState, ReloadHealth
from gpuledger.node.loop import Node
from gpuledger.operator import families as operator_families
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.scenario_parser import parse_scenario
from gpuledger.sources.simulator.simulator import Simulator
from gpuledger.workloads.owner_lookup import OwnerLookup
from stack import RULES
from yaml_files import load_yaml

# Seconds between the samples of a series.
STEP = 30
# Ticks of the simulated node, and the seconds between two compared pages: longer than energy.zero_hold.
_TICK, _SPAN = 10, 600
Labels = tuple[tuple[str, str], ...]
Page = Mapping[tuple[str, Labels], float]


def rules_of(files: Iterable[Path] = RULES) -> list[dict[str, Any]]:
    """All rules of these files."""
    return [
        rule
        for file in files
        for group in load_yaml(file.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


@cache
def specs() -> Mapping[str, FamilySpec]:
    """The families of the native dialect, of the agent and of the operator, by name."""
    native = create_dialects(DialectSettings(), "0")["native"]
    found = (*native.specs, *agent_families.SPECS, *operator_families.SPECS)
    return {spec.name: spec for spec in found}


@dataclass(frozen=True)
class Series:
    """A series with the values of promtool's notation."""

    name: str
    labels: Mapping[str, str]
    values: str

    def __str__(self) -> str:
        labels = ",".join(f'{key}="{value}"' for key, value in self.labels.items() if value)
        return f"{self.name}{{{labels}}}"


def declared(name: str, values: str, /, **labels: str) -> Series:
    """A series of a family that no page of the simulator has. Fails if the family has other labels."""
    assert set(labels) == set(specs()[name].labels), name
    return Series(name, labels, values)


def node_pages(scenario: str, tick: float, every: int, number: int) -> Iterator[tuple[float, Page]]:
    """This number of pages of a simulated node, each `every` ticks, and their unix times."""
    clock = FakeClock()
    ledger = Ledger(LedgerSettings())
    states: list[NodeState] = []
    dialect = create_dialects(DialectSettings(), "0", price=lambda _device, _unix: 2.0)["native"]
    node = Node(
        Simulator(parse_scenario(scenario, "alerts"), SourceSettings(), clock),
        name=OwnerLookup(str).assign_owners,
        post=ledger.post,
        publish=states.append,
        required_quantities=lambda: dialect.required_quantities | ledger.required_quantities,
        clock=clock,
        interval=tick,
        pausable=True,
    )
    node.set_reload_health(ReloadHealth(True, clock.unix()))
    for index in range((number - 1) * every + 1):
        node.tick()
        clock.advance(tick)
        if index % every:
            continue
        yield (
            clock.unix() - tick,
            {
                (family.spec.name, tuple(zip(family.spec.labels, labels, strict=True))): value
                for family in dialect.families(states[-1])
                if _used().fullmatch(family.spec.name)
                for labels, value in family.samples.items()
            },
        )
        states.clear()


@cache
def _pages(scenario: str) -> tuple[float, Page, Page]:
    """The unix time of the second page of this node, and two pages."""
    _, (_, before), (unix, after) = node_pages(scenario, _TICK, _SPAN // _TICK, 3)
    return unix, before, after


@cache
def _used() -> re.Pattern[str]:
    """Matches the families that a rule reads."""
    names = {name for rule in rules_of() for name in re.findall(r"\bgpuledger_\w+", str(rule["expr"]))}
    return re.compile("|".join(sorted(names)))


def steps(value: float, rate: float, number: int) -> str:
    """A line of values in promtool's notation."""
    return f"{value:.6f}{rate * STEP:+.6f}x{number}"


def measured(name: str, labels: Labels) -> dict[str, str]:
    """The labels, with those of a driver for the simulator's."""
    driver = {"source": "nvml", "simulated": "false", "detail": ""}
    return dict(labels) | (driver if name == "gpuledger_source_info" else {})


def recorded_series(scenario: str, step: int, number: int) -> Iterator[Series]:
    """The series of a simulated node as it exports them, each `step` seconds. Time begins at 0.

    It reads once a minute: the ledger takes a longer time for unobserved.
    """
    rows: dict[tuple[str, Labels], dict[int, float]] = {}
    begins = 0.0
    for index, (unix, page) in enumerate(node_pages(scenario, 60, step // 60, number)):
        begins = begins or unix
        for key, value in page.items():
            is_time = key[0].endswith(("timestamp_seconds", "start_time_seconds"))
            rows.setdefault(key, {})[index] = value - begins if is_time else value
    for (name, labels), values in rows.items():
        words = [f"{values[index]:.6f}" if index in values else "stale" for index in range(number)]
        yield Series(name, measured(name, labels), " ".join(words))


def exported_series(scenario: str, number: int, *, simulated: bool = False) -> Iterator[Series]:
    """The series of a simulated node that rules read: counters and times go on, all else is constant.

    Time begins at 0.
    """
    unix, before, after = _pages(scenario)
    for (name, labels), value in after.items():
        named = dict(labels) if simulated else measured(name, labels)
        rate = 0.0
        if specs()[name].type == "counter" or name == "gpuledger_snapshot_timestamp_seconds":
            rate = (value - before.get((name, labels), value)) / _SPAN
        if name.endswith(("timestamp_seconds", "start_time_seconds")):
            value -= unix
        yield Series(name, named, steps(value, rate, number))


def expanded(values: str) -> list[float | None]:
    """The values of promtool's notation; None where there is no sample."""
    found: list[float | None] = []
    for word in values.split():
        first, _, number = word.partition("x")
        times = int(number or 0)
        if first in ("_", "stale"):
            found += [None] * max(times, 1)
            continue
        parts = re.fullmatch(r"(-?[\d.]+)([+-][\d.]+)?", first)
        assert parts is not None, word
        begin, rate = float(parts[1]), float(parts[2] or 0)
        found += [begin + rate * step for step in range(times + 1)]
    return found


def import_lines(series: Iterable[Series], begins: int) -> Iterator[str]:
    """A line for VictoriaMetrics to import of each series. Values that are times begin at `begins`."""
    for one in series:
        offset = begins if one.name.endswith(("timestamp_seconds", "start_time_seconds")) else 0
        found = [(step, value) for step, value in enumerate(expanded(one.values)) if value is not None]
        yield json.dumps(
            {
                "metric": {
                    "__name__": one.name,
                    **{key: value for key, value in one.labels.items() if value},
                },
                "values": [value + offset for _, value in found],
                "timestamps": [(begins + step * STEP) * 1000 for step, _ in found],
            }
        )

"""Each counter of the native page begins at 0: `increase()` counts only from the first scraped value."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builders import FakeClock, gpu, instance, node_state, reading
from gpuledger.dialects.native.dialect import NativeDialect
from gpuledger.dialects.native.quantity_metrics import QUANTITY_METRICS
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.family import Family
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Snapshot, SourceInfo, XidEvent
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.scenario_parser import load_scenario
from gpuledger.sources.simulator.simulator import Simulator

HOLD = 30.0
# Counters of the hardware and of the driver: they began before this program.
HARDWARE = {metric.spec.name for metric in QUANTITY_METRICS}
# Counters of a whole Gpu or of the program, which begin with it and are 0 in its first page.
NOT_HELD = (
    "gpuledger_session",
    "gpuledger_device_energy",
    "gpuledger_gpu_watched",
    "gpuledger_gpu_seconds_closed",
    "gpuledger_ticks",
    "gpuledger_invalid",
)
CARD, OTHER = gpu(0), gpu(1)
PART = instance(CARD, 1)


def counters(state: NodeState) -> Iterator[tuple[tuple[str, ...], float]]:
    for family in NativeDialect("9.9").families(state):
        if family.spec.name not in HARDWARE:
            yield from _samples(family)


def _samples(family: Family) -> Iterator[tuple[tuple[str, ...], float]]:
    if family.spec.type == "counter":
        for labels, value in family.samples.items():
            yield (family.spec.name, *labels), value
    for labels, one in family.distributions.items():
        yield (family.spec.name, *labels), one.count


def simulated(name: str, seconds: int) -> Iterator[Snapshot]:
    clock = FakeClock()
    source = Simulator(load_scenario(name), SourceSettings(), clock)
    for _ in range(seconds):
        yield source.read(Ledger.required_quantities)
        clock.advance(1.0)


def changing(seconds: int) -> Iterator[Snapshot]:
    """A machine on which Xids, a GPU and a MIG instance come and go."""
    for at in range(seconds):
        cards = [CARD] if at < 100 else [CARD, OTHER]
        readings = [reading(card, values={q.ENERGY: 1000.0 * at + 7}) for card in cards]
        if at >= 150:
            readings.append(reading(PART))
        xids = [XidEvent(CARD, 79 if at < 200 else 31, float(at))] * 3 if at in (0, 80, 81, 250) else []
        unix = 1_700_000_000.0 + at
        yield Snapshot(unix, 500.0 + at, SourceInfo("test"), tuple(readings), xids=tuple(xids), invalid=2)


@pytest.mark.parametrize(
    "snapshots",
    [simulated("k8s-node", 400), simulated("workstation", 400), changing(400)],
    ids=["k8s-node", "workstation", "changing"],
)
def test_the_first_value_of_each_counter_is_0_and_held(snapshots: Iterator[Snapshot]) -> None:
    ledger = Ledger(LedgerSettings(zero_hold=HOLD))
    born: dict[tuple[str, ...], float] = {series: 0.0 for series, _ in counters(node_state(None))}
    last: dict[tuple[str, ...], float] = {}
    for seen in snapshots:
        for series, value in counters(node_state(seen, ledger.post(seen))):
            since = seen.elapsed - born.setdefault(series, seen.elapsed)
            is_held = since < HOLD if not series[0].startswith(NOT_HELD) else since == 0.0
            assert not (is_held and value), series
            assert value >= last.get(series, 0.0), series
            last[series] = value
    assert any(last[series] for series in last if series[0].startswith("gpuledger_gpu_seconds_total"))
    grown = {series[0] for series, value in last.items() if value}
    assert {"gpuledger_gpu_seconds_total", "gpuledger_device_state_seconds_total"} <= grown


def test_each_xid_is_counted_once_its_hold_is_over() -> None:
    ledger, found = Ledger(LedgerSettings(zero_hold=HOLD)), {}
    for seen in changing(300):
        found[seen.elapsed - 500.0] = {
            series[2]: value
            for series, value in counters(node_state(seen, ledger.post(seen)))
            if series[0] == "gpuledger_device_xid_errors_total"
        }
    assert [found[at] for at in (0, 29, 30, 80, 249, 250, 279, 280)] == [
        {"79": 0},
        {"79": 0},
        {"79": 3},
        {"79": 6},
        {"79": 9},
        {"79": 9, "31": 0},
        {"79": 9, "31": 0},
        {"79": 9, "31": 3},
    ]


def test_a_longer_scrape_interval_holds_new_series_longer() -> None:
    known = [0.0]
    ledger = Ledger(LedgerSettings(zero_hold=HOLD), scrape_hold=lambda: known[0])
    first: dict[tuple[str, ...], float] = {}
    for seen in changing(400):
        if seen.elapsed == 590.0:
            known[0] = 70.0
        state = node_state(seen, ledger.post(seen))
        for series, value in counters(state):
            if value and series[0] == "gpuledger_device_state_seconds_total":
                first.setdefault(series[1:3], seen.elapsed - 500.0)
        (hold,) = (
            family.samples[()]
            for family in NativeDialect("9.9").families(state)
            if family.spec.name == "gpuledger_zero_hold_seconds"
        )
        assert hold == max(HOLD, known[0])
    assert first == {("GPU-0", ""): 30.0, ("GPU-1", ""): 170.0, ("GPU-0", "1_0"): 220.0}

"""A pause releases the driver, is reported in the state, and its energy is unobserved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, process, reading, snapshot
from gpuledger.dialects.native.dialect import NativeDialect
from gpuledger.ledger.allocation_times import AllocationTimes
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.node_state import NodeState, PauseHealth
from gpuledger.model.process import UtilizationSample
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from gpuledger.node.loop import Node, TickHangs
from gpuledger.outputs.responses import describe_health
from nvml.library import NvmlGpu, NvmlProcess
from nvml.machine import Machine
from running import PATIENCE
from unit.node.support import ScriptedSource, node_of

INIT, SHUTDOWN = "nvmlInitWithFlags", "nvmlShutdown"


@dataclass
class Paused:
    """A node on the test library with a manual clock."""

    machine: Machine
    states: list[NodeState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(LedgerSettings(zero_hold=0.0))
        self.node = Node(
            self.machine.source,
            name=lambda seen: seen,
            post=self.ledger.post,
            publish=self.states.append,
            required_quantities=lambda: NativeDialect.required_quantities | self.ledger.required_quantities,
            clock=self.machine.clock,
            interval=1.0,
            on_pause=self.ledger.interrupt,
            pausable=True,
        )

    def tick(self, seconds: float = 1.0) -> NodeState:
        self.machine.clock.advance(seconds)
        assert self.machine.state.time is not None
        self.machine.state.time += seconds
        self.machine.state.write()
        return self.node.tick()

    def handles(self) -> int:
        """How often the library was started and not shut down again."""
        return self.machine.count(INIT) - self.machine.count(SHUTDOWN)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paused:
    machine = Machine(tmp_path, monkeypatch)
    machine.state.gpus = [NvmlGpu(NvmlProcess(7, sm=50), activity=50.0), NvmlGpu()]
    return Paused(machine)


def families(state: NodeState) -> dict[str, float]:
    values = {}
    for family in NativeDialect("0").families(state):
        for labels, value in family.samples.items():
            values[family.spec.name + ("" if not labels else f"{labels}")] = value
    return values


def test_a_pause_shuts_the_library_down_and_frees_its_resources(node: Paused) -> None:
    node.tick()
    node.tick()
    sets, samples = node.machine.count("nvmlEventSetCreate"), node.machine.count("nvmlGpmSampleAlloc")
    assert (node.handles(), sets, samples > 0) == (1, 1, True)
    node.node.pause(60)
    assert node.handles() == 0
    assert node.machine.count("nvmlEventSetFree") == sets
    assert node.machine.count("nvmlGpmSampleFree") == samples


def test_ticks_continue_during_a_pause_without_calling_the_driver(node: Paused) -> None:
    node.tick()
    node.node.pause(60)
    calls, states = node.machine.calls, len(node.states)
    ticks = [node.tick().health.ticks for _ in range(5)]
    assert node.machine.calls == calls
    assert len(node.states) == states + 5
    assert ticks == sorted(set(ticks))


def test_pause_returns_after_the_paused_state_is_published(node: Paused) -> None:
    before = node.tick()
    node.node.pause(90, "driver upgrade")
    state = node.states[-1]
    assert state.snapshot is None
    assert state.ledger is before.ledger
    assert state.health.pause == PauseHealth(True, node.machine.clock.unix() + 90, "driver upgrade")
    assert not state.health.stalled
    assert not state.health.healthy


def test_a_pause_is_reported_as_text_and_as_series(node: Paused) -> None:
    assert families(node.tick())["gpuledger_paused"] == 0
    node.node.pause(90, "driver upgrade")
    state = node.states[-1]
    values = families(state)
    assert values["gpuledger_paused"] == 1
    assert values["gpuledger_paused_until_timestamp_seconds"] == node.machine.clock.unix() + 90
    assert describe_health(state).startswith("PAUSED until 2023-11-14T22:14:51Z (driver upgrade): ")
    assert "gpuledger resume" in describe_health(state)


def test_device_data_is_omitted_during_a_pause_and_booked_counters_are_kept(node: Paused) -> None:
    for _ in range(5):
        values = families(node.tick())
    node.node.pause(60)
    paused = families(node.tick())
    assert not [name for name in paused if name.startswith("gpuledger_device_up")]
    counters = {
        name: value for name, value in values.items() if name.startswith("gpuledger_energy_joules_total")
    }
    assert counters
    assert {name: paused[name] for name in counters} == counters


def test_collectors_that_read_the_driver_are_omitted_during_a_pause(node: Paused) -> None:
    state = node.tick()
    assert state.snapshot is not None
    reading_parts = {"source", *(part.name for part in state.snapshot.collected)}
    assert len(reading_parts) > 5
    assert reading_parts <= {part.name for part in state.health.collectors}
    node.node.pause(60)
    assert not reading_parts & {part.name for part in node.states[-1].health.collectors}
    node.machine.clock.advance(61)
    assert reading_parts <= {part.name for part in node.tick().health.collectors}


def test_a_forgotten_pause_ends_automatically(node: Paused) -> None:
    node.tick()
    node.node.pause(10)
    assert node.tick(9.5).health.paused
    after = node.tick(0.5)
    assert not after.health.paused
    assert after.snapshot is not None
    assert node.handles() == 1


def test_a_second_pause_sets_a_new_end_and_closes_the_driver_only_once(node: Paused) -> None:
    node.tick()
    node.node.pause(10, "first")
    node.node.pause(100, "second")
    assert node.machine.count(SHUTDOWN) == 1
    assert node.tick(50).health.paused
    assert node.states[-1].health.pause is not None
    assert node.states[-1].health.pause.reason == "second"
    assert not node.tick(50).health.paused


def test_closing_clears_the_retry_back_off_of_a_driver_that_failed_before_a_pause(node: Paused) -> None:
    not_loaded = 9
    node.tick()
    node.machine.state.errors[INIT] = not_loaded
    node.machine.state.reload += 1
    # The first tick finds the driver gone; the wait grows after each failed retry.
    for _ in range(40):
        node.tick()
    node.node.pause(5)
    node.machine.state.errors.clear()
    assert node.tick(4.9).health.paused
    assert node.tick(0.2).snapshot is not None


def test_resume_without_a_pause_returns_none(node: Paused) -> None:
    node.tick()
    assert node.node.resume() is None


def test_a_node_that_cannot_be_paused_exports_no_pause_series() -> None:
    never = node_of(ScriptedSource(snapshot))
    assert "gpuledger_paused" not in families(never.tick())


CARD = gpu(0)
WATTS = 100.0


class ConstantPowerGpu:
    """A Gpu at constant power with one busy process, posted once a second to a Ledger in memory.

    Without a `counter` the driver reports only power.
    """

    def __init__(self, *, counter: bool = True) -> None:
        self.counter = counter
        self.ledger = Ledger(LedgerSettings(zero_hold=0.0))
        self.at = 1_700_000_000.0
        self.joules = 5_000_000
        self.resident = process(CARD, 7)

    def post(self, seconds: float = 1.0, pids: bool = True) -> None:
        self.at += seconds
        self.joules += round(seconds * WATTS * 1000)
        sample = UtilizationSample(7, round((self.at - 0.5) * 1e6), 0.5, 0, 0, 0)
        values: dict[Quantity, float] = {q.POWER: WATTS, q.UTILIZATION: 0.5, q.POWER_LIMIT_MAX: 700.0}
        if self.counter:
            values[q.ENERGY] = self.joules
        who = (self.resident,) if pids else ()
        self.ledger.post(snapshot(reading(CARD, *who, values=values, samples=(sample,)), unix=self.at))

    def accounts(self) -> dict[str, int]:
        """Millijoules by account."""
        energy = self.ledger.state.energy
        assert set(energy.imbalance.values()) <= {0}
        values: dict[str, int] = {}
        for row in energy.owners:
            values[row.labels[1]] = values.get(row.labels[1], 0) + row.millijoules
        assert sum(values.values()) + sum(energy.pending.values()) + sum(energy.closed.values()) == sum(
            energy.totals.values()
        )
        return values


@given(st.floats(0.1, 4000.0), st.integers(3, 10), st.integers(3, 10))
def test_the_energy_of_a_pause_is_unobserved_however_long_it_is(
    pause: float, before: int, after: int
) -> None:
    card = ConstantPowerGpu()
    for _ in range(before):
        card.post()
    here, opened = card.accounts(), card.joules
    card.ledger.interrupt()
    card.post(pause)
    for _ in range(after):
        card.post()
    now = card.accounts()
    # Up to the first counter change seen afterwards, one tick after the first reading.
    lost = round(pause * WATTS * 1000) + round(WATTS * 1000)
    assert now["unobserved"] - here.get("unobserved", 0) == lost
    gained = {name: now[name] - here.get(name, 0) for name in now}
    assert sum(gained.values()) == card.joules - opened


def test_without_an_energy_counter_no_energy_is_booked_for_a_pause() -> None:
    card = ConstantPowerGpu(counter=False)
    for _ in range(5):
        card.post()
    booked = sum(card.accounts().values())
    card.ledger.interrupt()
    card.post(30)
    assert sum(card.accounts().values()) == booked
    card.post()
    assert sum(card.accounts().values()) == booked + round(WATTS * 1000)


def test_a_pause_does_not_begin_an_epoch() -> None:
    card = ConstantPowerGpu()
    for _ in range(5):
        card.post()
    (book,) = card.ledger.energy.gpu_ledgers.values()
    life = book.counter.epoch_number
    card.ledger.interrupt()
    for _ in range(3):
        card.post(100)
    assert (book.counter.epoch_number, book.frozen) == (life, False)


def test_a_pause_of_the_node_interrupts_the_ledger(node: Paused) -> None:
    for _ in range(5):
        node.tick()
    assert not unobserved(node.states[-1])
    node.node.pause(20)
    for _ in range(25):
        state = node.tick()
    # 100 W for the twenty unobserved seconds and those until the counter was seen to change.
    assert 2_000_000 <= unobserved(state) <= 2_500_000
    assert set(state.ledger.energy.imbalance.values()) <= {0}


def unobserved(state: NodeState) -> int:
    """Millijoules in the unobserved account of the first Gpu."""
    return sum(
        row.millijoules
        for row in state.ledger.energy.owners
        if row.labels[1] == "unobserved" and row.labels[0] == "GPU-00000000-0000-0000-0000-000000000000"
    )


def test_a_pause_adds_no_state_seconds() -> None:
    card = ConstantPowerGpu()
    for _ in range(5):
        card.post()
    seconds = sum(card.ledger.state.state_seconds.values())
    card.ledger.interrupt()
    card.post(30)
    assert sum(card.ledger.state.state_seconds.values()) == seconds
    card.post(1)
    assert sum(card.ledger.state.state_seconds.values()) == seconds + 1


def test_an_allocated_device_is_not_counted_as_unused_during_a_pause() -> None:
    times, at = AllocationTimes(), 1_700_000_000.0

    def post(seconds: float) -> int:
        nonlocal at
        at += seconds
        seen = snapshot(reading(CARD, values={q.UTILIZATION: 0.0}), unix=at)
        times.post(replace(seen, allocations=(Allocation(CARD, Workload(kind="pod", pod="train")),)))
        (one,) = times.open()
        return sum(bits.bit_count() for bits in one.unused.unsaved.values())

    post(1)
    assert post(10) == 10
    times.interrupt()
    # The allocation ended when the pause began, and another one begins after it.
    assert post(30) == 0
    assert [one.ends for one in times.ended] == [at - 30]
    assert post(10) == 10


def test_the_utilization_of_a_session_is_unknown_during_a_pause() -> None:
    card = ConstantPowerGpu()
    for _ in range(5):
        card.post()
    (session,) = card.ledger.sessions.open()
    known = session.sm_known
    card.ledger.interrupt()
    card.post(30)
    assert session.sm_known == known > 0


def test_a_process_that_exits_during_a_pause_ends_at_its_last_sighting() -> None:
    card = ConstantPowerGpu()
    for _ in range(3):
        card.post()
    last = card.at
    card.ledger.interrupt()
    card.post(30, pids=False)
    (session,) = card.ledger.sessions.ended
    assert (session.ended, session.watched) == (last, False)


def running(source: ScriptedSource, publish: Callable[[NodeState], None] = lambda state: None) -> Node:
    made = node_of(source, publish, interval=3600.0, pausable=True)
    made.start()
    return made


def test_resume_reads_immediately_and_returns_that_state() -> None:
    states: list[NodeState] = []
    ticking = running(ScriptedSource(lambda: snapshot(reading(CARD))), states.append)
    ticking.pause(600)
    # resume does not wait for the rest of the one-hour interval.
    state = ticking.resume()
    assert state is not None
    assert state.snapshot is not None
    assert not state.health.paused
    ticking.stop()


def test_a_hanging_read_refuses_the_pause_and_changes_nothing() -> None:
    hangs, release, came = Event(), Event(), Event()

    def hang() -> Snapshot:
        hangs.set()
        release.wait(PATIENCE)
        return snapshot(reading(CARD))

    source = ScriptedSource(hang)
    ticking = running(source, lambda state: came.set())
    assert hangs.wait(PATIENCE)
    with pytest.raises(TickHangs, match="has not returned"):
        ticking.pause(600, timeout=0.01)
    release.set()
    assert came.wait(PATIENCE)
    assert (source.closed, ticking.tick().health.paused) == (0, False)
    ticking.stop()


def test_stopping_during_a_pause_ends_the_threads() -> None:
    source = ScriptedSource(lambda: snapshot(reading(CARD)))
    ticking = running(source)
    ticking.pause(600)
    ticking.stop()
    assert not any(thread.is_alive() for thread in ticking._threads)


def test_a_simulated_source_is_not_closed_by_a_pause() -> None:
    source = ScriptedSource(lambda: snapshot(reading(CARD)), info=SourceInfo("simulator", simulated=True))
    ticking = running(source)
    ticking.pause(600)
    assert source.closed == 0
    state = ticking.resume()
    assert state is not None
    assert state.snapshot is not None
    ticking.stop()

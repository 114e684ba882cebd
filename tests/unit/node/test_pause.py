"""A pause: the driver is let go, the page says so, and what happens meanwhile is nobody's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import gpu, process, reading, snapshot
from gpuledger.dialects.native.dialect import NativeDialect
from gpuledger.ledger.allocation_times import Handed
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.node_state import NodeState, PauseHealth
from gpuledger.model.process import UtilizationSample
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from gpuledger.node.loop import Node, TickHangs
from gpuledger.outputs.responses import describe
from nvml.library import NvmlGpu, NvmlProcess
from nvml.machine import Machine
from unit.node.support import ScriptedSource, node_of

INIT, SHUTDOWN = "nvmlInitWithFlags", "nvmlShutdown"


@dataclass
class Paused:
    """A node on the test library, whose time moves by hand."""

    machine: Machine
    pages: list[NodeState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(LedgerSettings(zero_hold=0.0))
        self.node = Node(
            self.machine.source,
            name=lambda seen: seen,
            post=self.ledger.post,
            publish=self.pages.append,
            wanted=lambda: NativeDialect.wants | self.ledger.wants,
            clock=self.machine.clock,
            interval=1.0,
            interrupted=self.ledger.interrupt,
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


def families(page: NodeState) -> dict[str, float]:
    told = {}
    for family in NativeDialect("0").families(page):
        for labels, value in family.samples.items():
            told[family.spec.name + ("" if not labels else f"{labels}")] = value
    return told


def test_a_pause_shuts_the_library_down_and_frees_what_it_gave(node: Paused) -> None:
    node.tick()
    node.tick()
    sets, samples = node.machine.count("nvmlEventSetCreate"), node.machine.count("nvmlGpmSampleAlloc")
    assert (node.handles(), sets, samples > 0) == (1, 1, True)
    node.node.pause(60)
    assert node.handles() == 0
    assert node.machine.count("nvmlEventSetFree") == sets
    assert node.machine.count("nvmlGpmSampleFree") == samples


def test_the_tick_goes_on_without_touching_the_driver(node: Paused) -> None:
    node.tick()
    node.node.pause(60)
    calls, pages = node.machine.source.calls, len(node.pages)
    ticks = [node.tick().health.ticks for _ in range(5)]
    assert node.machine.source.calls == calls
    assert len(node.pages) == pages + 5
    assert ticks == sorted(set(ticks))


def test_the_page_of_a_pause_is_there_when_pause_returns(node: Paused) -> None:
    before = node.tick()
    node.node.pause(90, "driver upgrade")
    page = node.pages[-1]
    assert page.snapshot is None
    assert page.ledger is before.ledger
    assert page.health.pause == PauseHealth(True, node.machine.clock.unix() + 90, "driver upgrade")
    assert not page.health.stalled
    assert not page.health.healthy


def test_a_pause_is_told_in_words_and_in_series(node: Paused) -> None:
    assert families(node.tick())["gpuledger_paused"] == 0
    node.node.pause(90, "driver upgrade")
    page = node.pages[-1]
    told = families(page)
    assert told["gpuledger_paused"] == 1
    assert told["gpuledger_paused_until_timestamp_seconds"] == node.machine.clock.unix() + 90
    assert describe(page).startswith("PAUSED until 2023-11-14T22:14:51Z (driver upgrade): ")
    assert "gpuledger resume" in describe(page)


def test_device_data_is_gone_and_booked_counters_stay(node: Paused) -> None:
    for _ in range(5):
        told = families(node.tick())
    node.node.pause(60)
    paused = families(node.tick())
    assert not [name for name in paused if name.startswith("gpuledger_device_up")]
    counters = {
        name: value for name, value in told.items() if name.startswith("gpuledger_energy_joules_total")
    }
    assert counters
    assert {name: paused[name] for name in counters} == counters


def test_what_reads_the_driver_is_neither_well_nor_failed_in_a_pause(node: Paused) -> None:
    page = node.tick()
    assert page.snapshot is not None
    reading_parts = {"source", *(part.name for part in page.snapshot.collected)}
    assert len(reading_parts) > 5
    assert reading_parts <= {part.name for part in page.health.collectors}
    node.node.pause(60)
    assert not reading_parts & {part.name for part in node.pages[-1].health.collectors}
    node.machine.clock.advance(61)
    assert reading_parts <= {part.name for part in node.tick().health.collectors}


def test_a_forgotten_pause_ends_by_itself(node: Paused) -> None:
    node.tick()
    node.node.pause(10)
    assert node.tick(9.5).health.paused
    after = node.tick(0.5)
    assert not after.health.paused
    assert after.snapshot is not None
    assert node.handles() == 1


def test_a_second_pause_sets_another_end_and_closes_nothing_twice(node: Paused) -> None:
    node.tick()
    node.node.pause(10, "first")
    node.node.pause(100, "second")
    assert node.machine.count(SHUTDOWN) == 1
    assert node.tick(50).health.paused
    assert node.pages[-1].health.pause is not None
    assert node.pages[-1].health.pause.reason == "second"
    assert not node.tick(50).health.paused


def test_a_driver_that_was_refused_before_a_pause_is_tried_at_once_after_it(node: Paused) -> None:
    not_loaded = 9
    node.tick()
    node.machine.state.errors[INIT] = not_loaded
    node.machine.state.reload += 1
    # The first of these finds it gone; each later try that fails is followed by a longer wait.
    for _ in range(40):
        node.tick()
    node.node.pause(5)
    node.machine.state.errors.clear()
    assert node.tick(4.9).health.paused
    assert node.tick(0.2).snapshot is not None


def test_resume_without_a_pause_answers_none(node: Paused) -> None:
    node.tick()
    assert node.node.resume() is None


def test_where_nobody_can_ask_for_a_pause_nothing_is_told_of_it() -> None:
    never = node_of(ScriptedSource(snapshot))
    assert "gpuledger_paused" not in families(never.tick())


CARD = gpu(0)
WATTS = 100.0


class Books:
    """A Gpu at constant power with one busy resident, posted once a second, to a Ledger in memory.

    Without a `counter` the driver tells its power alone.
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
        told: dict[str, int] = {}
        for row in energy.owners:
            told[row.labels[1]] = told.get(row.labels[1], 0) + row.millijoules
        assert sum(told.values()) + sum(energy.pending.values()) + sum(energy.closed.values()) == sum(
            energy.totals.values()
        )
        return told


@given(st.floats(0.1, 4000.0), st.integers(3, 10), st.integers(3, 10))
@settings(max_examples=40, deadline=None)
def test_the_energy_of_a_pause_is_unobserved_however_long_it_is(
    pause: float, before: int, after: int
) -> None:
    books = Books()
    for _ in range(before):
        books.post()
    here, opened = books.accounts(), books.joules
    books.ledger.interrupt()
    books.post(pause)
    for _ in range(after):
        books.post()
    now = books.accounts()
    # Until the first move that was seen afterwards, and that is one tick after the first reading.
    lost = round(pause * WATTS * 1000) + round(WATTS * 1000)
    assert now["unobserved"] - here.get("unobserved", 0) == lost
    gained = {name: now[name] - here.get(name, 0) for name in now}
    assert sum(gained.values()) == books.joules - opened


def test_without_a_counter_the_power_of_a_pause_is_not_made_up() -> None:
    books = Books(counter=False)
    for _ in range(5):
        books.post()
    booked = sum(books.accounts().values())
    books.ledger.interrupt()
    books.post(30)
    assert sum(books.accounts().values()) == booked
    books.post()
    assert sum(books.accounts().values()) == booked + round(WATTS * 1000)


def test_the_counter_of_a_gpu_goes_on_in_the_same_epoch_after_a_pause() -> None:
    books = Books()
    for _ in range(5):
        books.post()
    (book,) = books.ledger.energy.books.values()
    life = book.counter.life
    books.ledger.interrupt()
    for _ in range(3):
        books.post(100)
    assert (book.counter.life, book.frozen) == (life, False)


def test_a_node_that_pauses_tells_its_ledger(node: Paused) -> None:
    for _ in range(5):
        node.tick()
    assert not unobserved(node.pages[-1])
    node.node.pause(20)
    for _ in range(25):
        page = node.tick()
    # 100 W, for twenty seconds that nobody saw and those until the counter was seen to move.
    assert 2_000_000 <= unobserved(page) <= 2_500_000
    assert set(page.ledger.energy.imbalance.values()) <= {0}


def unobserved(page: NodeState) -> int:
    """Millijoules of the first Gpu that nobody saw."""
    return sum(
        row.millijoules
        for row in page.ledger.energy.owners
        if row.labels[1] == "unobserved" and row.labels[0] == "GPU-00000000-0000-0000-0000-000000000000"
    )


def test_nobody_is_said_to_have_held_a_device_in_a_pause() -> None:
    books = Books()
    for _ in range(5):
        books.post()
    seconds = sum(books.ledger.state.state_seconds.values())
    books.ledger.interrupt()
    books.post(30)
    assert sum(books.ledger.state.state_seconds.values()) == seconds
    books.post(1)
    assert sum(books.ledger.state.state_seconds.values()) == seconds + 1


def test_a_device_in_somebodys_hands_is_not_said_to_be_unused_in_a_pause() -> None:
    handed, at = Handed(), 1_700_000_000.0

    def post(seconds: float) -> int:
        nonlocal at
        at += seconds
        seen = snapshot(reading(CARD, values={q.UTILIZATION: 0.0}), unix=at)
        handed.post(replace(seen, allocations=(Allocation(CARD, Workload(kind="pod", pod="train")),)))
        (one,) = handed.open()
        return sum(bits.bit_count() for bits in one.unused.unsaved.values())

    post(1)
    assert post(10) == 10
    handed.interrupt()
    # It ended when the pause began, and another one begins after it.
    assert post(30) == 0
    assert [one.ends for one in handed.ended] == [at - 30]
    assert post(10) == 10


def test_a_session_is_not_said_to_have_gone_on_as_it_was_in_a_pause() -> None:
    books = Books()
    for _ in range(5):
        books.post()
    (session,) = books.ledger.sessions.open()
    known = session.sm_known
    books.ledger.interrupt()
    books.post(30)
    assert session.sm_known == known > 0


def test_who_went_in_a_pause_ended_unseen() -> None:
    books = Books()
    for _ in range(3):
        books.post()
    last = books.at
    books.ledger.interrupt()
    books.post(30, pids=False)
    (session,) = books.ledger.sessions.ended
    assert (session.ended, session.watched) == (last, False)


def running(source: ScriptedSource, publish: Callable[[NodeState], None] = lambda page: None) -> Node:
    made = node_of(source, publish, interval=3600.0, pausable=True)
    made.start()
    return made


def test_resume_reads_at_once_and_answers_the_page_of_that() -> None:
    pages: list[NodeState] = []
    ticking = running(ScriptedSource(lambda: snapshot(reading(CARD))), pages.append)
    ticking.pause(600)
    # Of an interval of an hour nobody waits for the rest.
    page = ticking.resume()
    assert page is not None
    assert page.snapshot is not None
    assert not page.health.paused
    ticking.stop()


def test_a_reading_that_hangs_refuses_the_pause_and_changes_nothing() -> None:
    hangs, release, came = Event(), Event(), Event()

    def hang() -> Snapshot:
        hangs.set()
        release.wait(30)
        return snapshot(reading(CARD))

    source = ScriptedSource(hang)
    ticking = running(source, lambda page: came.set())
    assert hangs.wait(20)
    with pytest.raises(TickHangs, match="has not come back"):
        ticking.pause(600, patience=0.01)
    release.set()
    assert came.wait(20)
    assert (source.closed, ticking.tick().health.paused) == (0, False)
    ticking.stop()


def test_ending_in_a_pause_ends_the_threads() -> None:
    source = ScriptedSource(lambda: snapshot(reading(CARD)))
    ticking = running(source)
    ticking.pause(600)
    ticking.stop()
    assert not any(thread.is_alive() for thread in ticking._threads)


def test_what_is_made_up_is_not_closed_because_it_could_not_be_opened_again() -> None:
    source = ScriptedSource(lambda: snapshot(reading(CARD)), info=SourceInfo("simulator", simulated=True))
    ticking = running(source)
    ticking.pause(600)
    assert source.closed == 0
    page = ticking.resume()
    assert page is not None
    assert page.snapshot is not None
    ticking.stop()

"""The tick loop: what is published when the source answers, fails or hangs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event, current_thread
from typing import Any

import pytest

from builders import SOURCE, FakeClock, gpu, process, reading, snapshot
from gpuledger.host import steady_thread
from gpuledger.host.clock import SystemClock
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import POWER
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import CollectorRun, Snapshot
from gpuledger.model.source import Clock
from gpuledger.node.health import status_of
from gpuledger.node.loop import Node, NodeChange
from running import PATIENCE
from unit.node.support import ScriptedSource, node_of

CARD = gpu(0)
GOOD = snapshot(reading(CARD, process(CARD)))


class PublishedStates(list[NodeState]):
    """The published states; `wait_for` waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self.came = Event()

    def publish(self, state: NodeState) -> None:
        self.append(state)
        self.came.set()

    def wait_for(self, wanted: Callable[[NodeState], bool]) -> NodeState:
        while True:
            self.came.clear()
            for state in tuple(self):
                if wanted(state):
                    return state
            assert self.came.wait(PATIENCE), "no matching state was published"


def good() -> Snapshot:
    return GOOD


def unavailable() -> Snapshot:
    raise SourceUnavailable("no driver: install it", "LIBRARY_NOT_FOUND")


def node(source: ScriptedSource, states: PublishedStates, clock: Clock, interval: float = 1.0) -> Node:
    return node_of(
        source, states.publish, required_quantities=lambda: frozenset({POWER}), clock=clock, interval=interval
    )


def test_a_tick_publishes_the_snapshot_with_the_ledger_after_it() -> None:
    states = PublishedStates()
    source = ScriptedSource(good)
    shown = node(source, states, FakeClock()).tick()
    assert states == [shown]
    assert shown.snapshot is GOOD
    assert shown.ledger.compute_sessions == {"GPU-0": 1}
    assert shown.health.healthy
    assert source.wanted == [frozenset({POWER})]
    assert shown.requested == frozenset({POWER})


def test_a_failed_source_publishes_no_device_data_and_says_why() -> None:
    states = PublishedStates()
    ticking = node(ScriptedSource(good, unavailable), states, FakeClock())
    ticking.tick()
    shown = ticking.tick()
    assert shown.snapshot is None
    assert shown.ledger.compute_sessions == {"GPU-0": 1}
    assert (shown.health.healthy, shown.health.status) == (False, "no driver: install it")
    source = next(part for part in shown.health.collectors if part.name == "source")
    assert (source.success, source.last_success) == (False, 1_700_000_000.0)


def test_failures_of_a_collector_are_counted_and_kept() -> None:
    bad = Snapshot(1.0, 1.0, SOURCE, (reading(CARD),), collected=(CollectorRun("columns", 0.1, "exit 6"),))
    ticking = node(
        ScriptedSource(lambda: bad, unavailable, unavailable, good), PublishedStates(), FakeClock()
    )
    shown = [ticking.tick() for _ in range(4)]
    counts = [{part.name: part.failures for part in state.health.collectors} for state in shown]
    assert [(count["source"], count["columns"]) for count in counts] == [(0, 1), (1, 1), (2, 1), (2, 1)]


def test_a_failed_first_tick_counts_as_attempted() -> None:
    shown = node(ScriptedSource(unavailable), PublishedStates(), FakeClock()).tick()
    assert shown.health.attempted


def test_a_lasting_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ticking = node(ScriptedSource(unavailable), PublishedStates(), FakeClock())
    with caplog.at_level(logging.INFO, "gpuledger.node"):
        for _ in range(5):
            ticking.tick()
    assert [record.message for record in caplog.records] == ["no driver: install it"]


@pytest.fixture
def hanging() -> Iterator[tuple[PublishedStates, Event]]:
    """A node, ticking; its second tick hangs until the event is set."""
    release, states = Event(), PublishedStates()

    def hang() -> Snapshot:
        release.wait(PATIENCE)
        return GOOD

    ticking = node(ScriptedSource(good, hang, good), states, SystemClock(), interval=0.05)
    ticking.start()
    yield states, release
    release.set()
    ticking.stop()


def test_a_hanging_driver_call_makes_the_state_stale_until_it_returns(
    hanging: tuple[PublishedStates, Event],
) -> None:
    states, release = hanging
    stale = states.wait_for(lambda state: state.health.stalled)
    assert stale.snapshot is None
    assert stale.ledger.compute_sessions == {"GPU-0": 1}
    assert not stale.health.healthy
    assert "does not answer" in stale.health.status
    parts = {part.name: (part.success, part.seconds) for part in stale.health.collectors}
    assert parts["source"] == (False, None)
    assert parts["ledger"][0]
    release.set()
    after = len(states)
    states.wait_for(lambda state: states.index(state) >= after and state.health.healthy)


def test_the_state_turns_stale_once_within_three_intervals(
    hanging: tuple[PublishedStates, Event],
) -> None:
    states, release = hanging
    stale = states.wait_for(lambda state: state.health.stalled)
    first = next(state for state in states if state.snapshot is not None)
    assert states.index(stale) == states.index(first) + 1
    assert stale.unix - first.health.started < 10
    release.set()
    states.wait_for(lambda state: state.health.healthy and state.health.ticks >= 2)
    assert sum(state.health.stalled for state in states) == 1


class SleepingClock(SystemClock):
    """A boot clock, which jumps when the machine resumes. `looked` is set when the watchdog has read it."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.looked = Event()

    def elapsed(self) -> float:
        if self.slept and current_thread().name == "watchdog":
            self.looked.set()
        return super().elapsed() + self.slept


def test_a_tick_during_a_suspend_is_not_reported_as_a_hung_driver() -> None:
    release, reached, states, clock = Event(), Event(), PublishedStates(), SleepingClock()

    def slow() -> Snapshot:
        reached.set()
        assert release.wait(PATIENCE)
        return GOOD

    ticking = node(ScriptedSource(good, slow, good), states, clock, interval=1.0)
    ticking.start()
    assert reached.wait(PATIENCE)
    clock.slept = 8 * 3600.0
    with ticking._published:
        ticking._published.notify_all()
    assert clock.looked.wait(PATIENCE)
    release.set()
    states.wait_for(lambda state: state.health.ticks >= 3)
    ticking.stop()
    assert not any(state.health.stalled for state in states)


def test_a_suspend_within_a_tick_is_no_hang() -> None:
    """The clock of that reading is from before the suspend, and so is its time in suspend."""
    clock, slept, gpu_times = FakeClock(), [0.0], []

    def read(sleeps: float = 0.0) -> Snapshot:
        seen = replace(GOOD, unix=clock.unix(), elapsed=clock.elapsed())
        clock.advance(sleeps)
        slept[0] += sleeps
        return seen

    source = ScriptedSource(read, lambda: read(7200.0), read)
    ticking = node_of(source, clock=clock, suspended=lambda: slept[0])
    for _ in range(4):
        gpu_times.append(ticking.tick().ledger.time)
        clock.advance(1.0)
    assert gpu_times[-1].watched == {CARD.uuid: 2_000_000}
    assert "unobserved" not in {row.labels[2] for row in gpu_times[-1].rows}


def test_a_snapshot_has_the_interval_that_was_planned_before_it() -> None:
    clock, states = FakeClock(), PublishedStates()

    def read(seconds: float = 0.0) -> Snapshot:
        clock.advance(seconds)
        return GOOD

    source = ScriptedSource(*[lambda: read(20.0)] * 10, read)
    ticking = node_of(source, states.publish, clock=clock, interval=10.0, suspended=lambda: 3.0)
    for _ in range(12):
        ticking.tick()
    with ticking.between_ticks():
        ticking.apply_change(NodeChange(interval=300.0))
    ticking.tick()
    ticking.tick()
    seen = [state.snapshot for state in states if state.snapshot is not None]
    assert [one.interval for one in seen] == [10.0] * 10 + [20.0] * 3 + [300.0]
    assert {one.suspended for one in seen} == {3.0}


def test_a_source_with_another_clock_has_neither() -> None:
    shown = node_of(ScriptedSource(good)).tick()
    assert shown.snapshot is GOOD


@pytest.mark.parametrize(
    ("interval", "warnings"), [(1.0, 0), (30.0, 0), (59.0, 0), (60.0, 1), (90.0, 1), (3600.0, 1)]
)
def test_an_interval_that_watches_nothing_is_said_once(
    interval: float, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    ticking = node_of(ScriptedSource(good), interval=interval)
    ticking.start()
    with ticking.between_ticks():
        ticking.apply_change(NodeChange(interval=interval))
    ticking.stop()
    assert caplog.text.count("no GPU time is watched") == warnings


@pytest.mark.parametrize(
    ("interval", "speed", "warnings"), [(0.5, 200.0, 1), (0.5, 100.0, 0), (0.5, 120.0, 1), (90.0, 0.5, 0)]
)
def test_an_interval_is_measured_on_the_clock_of_the_source(
    interval: float, speed: float, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    ticking = node_of(ScriptedSource(good), interval=interval, speed=speed)
    ticking.start()
    ticking.stop()
    assert caplog.text.count("no GPU time is watched") == warnings
    said = f"the interval is {interval * speed:g} s of the source's time (--speed {speed:g})"
    assert caplog.text.count(said) == warnings


def test_a_stretched_interval_of_a_fast_source_is_said(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()

    def slow() -> Snapshot:
        clock.advance(0.3)
        return GOOD

    ticking = node_of(ScriptedSource(*[slow] * 12), clock=clock, interval=1.0, speed=40.0)
    ticking.tick()
    assert "no GPU time is watched" not in caplog.text
    for _ in range(11):
        ticking.tick()
    assert caplog.text.count("the interval is 80 s of the source's time (--speed 40)") == 1


def test_stopping_the_node_closes_the_source() -> None:
    source, states = ScriptedSource(good), PublishedStates()
    ticking = node(source, states, SystemClock(), interval=0.05)
    ticking.start()
    states.wait_for(lambda state: state.health.ticks >= 2)
    ticking.stop()
    assert source.closed == 1


def test_an_internal_error_is_reported_and_logged_once_and_the_loop_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> Snapshot:
        raise ZeroDivisionError("by zero")

    ticking = node(ScriptedSource(broken, broken, broken, good), PublishedStates(), FakeClock())
    with caplog.at_level(logging.ERROR, "gpuledger.node"):
        states = [ticking.tick() for _ in range(4)]
    assert [state.snapshot is None for state in states] == [True, True, True, False]
    assert "internal error" in states[0].health.status
    assert not states[0].health.stalled
    assert sum(record.exc_info is not None for record in caplog.records) == 1


class StarvedClock(SystemClock):
    """A clock without memory in some calls of one thread, by number."""

    def __init__(self, thread: str, calls: range) -> None:
        self._thread, self._calls, self._count = thread, calls, 0

    def elapsed(self) -> float:
        if current_thread().name == self._thread:
            self._count += 1
            if self._count in self._calls:
                raise MemoryError
        return super().elapsed()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady_thread, "PAUSE", 0.01)


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("first", range(1, 12))
def test_a_tick_thread_without_memory_reads_again(first: int) -> None:
    states = PublishedStates()
    ticking = node(ScriptedSource(good), states, StarvedClock("tick", range(first, first + 4)), interval=0.01)
    ticking.start()
    states.wait_for(lambda state: state.health.ticks >= 10 and state.snapshot is not None)
    ticking.stop()


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("first", range(1, 4))
def test_a_watchdog_without_memory_still_sees_a_hanging_driver(first: int) -> None:
    states, hanging = PublishedStates(), Event()

    def hang() -> Snapshot:
        hanging.wait(PATIENCE)
        return GOOD

    ticking = node(
        ScriptedSource(hang), states, StarvedClock("watchdog", range(first, first + 3)), interval=0.01
    )
    ticking.start()
    states.wait_for(lambda state: state.health.stalled)
    hanging.set()
    ticking.stop()


@pytest.mark.parametrize("part", ["source", "workloads", "ledger"])
def test_the_failing_part_of_a_tick_is_reported_and_counted(part: str) -> None:
    broken = ""

    def works(name: str, answer: Any) -> Any:
        if broken == name:
            raise MemoryError
        return answer

    ticking = node_of(
        ScriptedSource(lambda: works("source", GOOD)),
        name=lambda seen: works("workloads", seen),
        post=lambda _: works("ledger", LedgerState()),
        clock=FakeClock(),
    )
    ticking.tick()
    broken = part
    parts = {one.name: one for one in ticking.tick().health.collectors}
    assert [one.name for one in parts.values() if not one.success] == [part]
    assert (parts[part].error, parts[part].failures) == ("MemoryError", 1)
    assert parts[part].last_success is not None


def test_a_slow_first_reading_is_not_reported_as_a_hung_driver() -> None:
    release, states = Event(), PublishedStates()

    def slow() -> Snapshot:
        release.wait(PATIENCE)
        return GOOD

    ticking = node(ScriptedSource(slow), states, SystemClock(), interval=0.05)
    ticking.start()
    stale = states.wait_for(lambda state: state.health.stalled)
    release.set()
    ticking.stop()
    assert stale.health.status.startswith("no first reading of test for more than")
    assert [(part.name, part.success) for part in stale.health.collectors] == [("source", False)]


def test_a_failed_source_marks_its_collectors_failed_without_a_duration() -> None:
    timed = Snapshot(1.0, 1.0, SOURCE, (reading(CARD),), collected=(CollectorRun("processes", 0.25),))
    ticking = node(ScriptedSource(lambda: timed, unavailable), PublishedStates(), FakeClock())
    ticking.tick()
    parts = {part.name: part for part in ticking.tick().health.collectors}
    assert (parts["processes"].success, parts["processes"].seconds) == (False, None)
    assert parts["ledger"].success


def test_the_status_names_failed_parts_and_lost_gpus() -> None:
    lost = snapshot(reading(CARD, up=False, failed=True))
    assert status_of(lost) == "GPU 0 (GPU-0) does not answer"
    failed = Snapshot(
        0, 0, SOURCE, (), collected=(CollectorRun("events", 0.1, "UNKNOWN"), CollectorRun("ok", 0))
    )
    assert status_of(failed) == "events: UNKNOWN"
    assert status_of(GOOD) == "ok"

"""The tick: what is published when the source answers, fails or hangs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from threading import Event, current_thread
from typing import Any

import pytest

from builders import SOURCE, FakeClock, gpu, process, reading, snapshot
from gpuledger.host.clock import SystemClock
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import POWER
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Collected, Snapshot
from gpuledger.model.source import Clock
from gpuledger.node.health import status_of
from gpuledger.node.loop import Node, Pace
from unit.node.support import ScriptedSource, node_of

CARD = gpu(0)
GOOD = snapshot(reading(CARD, process(CARD)))


class Pages(list[NodeState]):
    """Published pages, and a way to wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.came = Event()

    def publish(self, page: NodeState) -> None:
        self.append(page)
        self.came.set()

    def wait_for(self, wanted: Callable[[NodeState], bool]) -> NodeState:
        while True:
            self.came.clear()
            for page in tuple(self):
                if wanted(page):
                    return page
            assert self.came.wait(20), "no such page was published"


def good() -> Snapshot:
    return GOOD


def unavailable() -> Snapshot:
    raise SourceUnavailable("no driver: install it", "LIBRARY_NOT_FOUND")


def node(source: ScriptedSource, pages: Pages, clock: Clock, interval: float = 1.0) -> Node:
    return node_of(source, pages.publish, wanted=lambda: frozenset({POWER}), clock=clock, interval=interval)


def test_a_tick_publishes_the_snapshot_with_the_ledger_after_it() -> None:
    pages = Pages()
    source = ScriptedSource(good)
    shown = node(source, pages, FakeClock()).tick()
    assert pages == [shown]
    assert shown.snapshot is GOOD
    assert shown.ledger.compute_sessions == {"GPU-0": 1}
    assert shown.health.healthy
    assert source.wanted == [frozenset({POWER})]


def test_a_failed_source_publishes_no_device_data_and_says_why() -> None:
    pages = Pages()
    ticking = node(ScriptedSource(good, unavailable), pages, FakeClock())
    ticking.tick()
    shown = ticking.tick()
    assert shown.snapshot is None
    assert shown.ledger.compute_sessions == {"GPU-0": 1}
    assert (shown.health.healthy, shown.health.status) == (False, "no driver: install it")
    source = next(part for part in shown.health.collectors if part.name == "source")
    assert (source.success, source.last_success) == (False, 1_700_000_000.0)


def test_failures_of_a_part_are_counted_and_stay_counted() -> None:
    bad = Snapshot(1.0, 1.0, SOURCE, (reading(CARD),), collected=(Collected("columns", 0.1, "exit 6"),))
    ticking = node(ScriptedSource(lambda: bad, unavailable, unavailable, good), Pages(), FakeClock())
    shown = [ticking.tick() for _ in range(4)]
    counts = [{part.name: part.failures for part in page.health.collectors} for page in shown]
    assert [(count["source"], count["columns"]) for count in counts] == [(0, 1), (1, 1), (2, 1), (2, 1)]


def test_ready_means_that_a_first_tick_was_tried() -> None:
    shown = node(ScriptedSource(unavailable), Pages(), FakeClock()).tick()
    assert shown.health.tried


def test_a_lasting_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ticking = node(ScriptedSource(unavailable), Pages(), FakeClock())
    with caplog.at_level(logging.INFO, "gpuledger.node"):
        for _ in range(5):
            ticking.tick()
    assert [record.message for record in caplog.records] == ["no driver: install it"]


@pytest.fixture
def hanging() -> Iterator[tuple[Pages, Event]]:
    """A node whose second tick hangs until the event is set."""
    release, pages = Event(), Pages()

    def hang() -> Snapshot:
        release.wait(30)
        return GOOD

    ticking = node(ScriptedSource(good, hang, good), pages, SystemClock(), interval=0.05)
    ticking.start()
    yield pages, release
    release.set()
    ticking.stop()


def test_a_hanging_driver_call_makes_the_page_stale_and_its_return_makes_it_fresh(
    hanging: tuple[Pages, Event],
) -> None:
    pages, release = hanging
    stale = pages.wait_for(lambda page: page.health.stalled)
    assert stale.snapshot is None
    assert stale.ledger.compute_sessions == {"GPU-0": 1}
    assert not stale.health.healthy
    assert "does not answer" in stale.health.status
    told = {part.name: (part.success, part.seconds) for part in stale.health.collectors}
    assert told["source"] == (False, None)
    assert told["ledger"][0]
    release.set()
    after = len(pages)
    pages.wait_for(lambda page: pages.index(page) >= after and page.health.healthy)


def test_the_page_is_stale_within_three_intervals_and_only_once(hanging: tuple[Pages, Event]) -> None:
    pages, release = hanging
    stale = pages.wait_for(lambda page: page.health.stalled)
    first = next(page for page in pages if page.snapshot is not None)
    assert pages.index(stale) == pages.index(first) + 1
    assert stale.unix - first.health.started < 10
    release.set()
    pages.wait_for(lambda page: page.health.healthy and page.health.ticks >= 2)
    assert sum(page.health.stalled for page in pages) == 1


class SleepingClock(SystemClock):
    """A boot clock: it jumps when the machine wakes. `looked` is set when the watchdog has seen that."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.looked = Event()

    def elapsed(self) -> float:
        if self.slept and current_thread().name == "watchdog":
            self.looked.set()
        return super().elapsed() + self.slept


def test_a_tick_that_slept_with_the_machine_is_not_called_a_hung_driver() -> None:
    release, reached, pages, clock = Event(), Event(), Pages(), SleepingClock()

    def slow() -> Snapshot:
        reached.set()
        assert release.wait(30)
        return GOOD

    ticking = node(ScriptedSource(good, slow, good), pages, clock, interval=1.0)
    ticking.start()
    assert reached.wait(20)
    clock.slept = 8 * 3600.0
    with ticking._published:
        ticking._published.notify_all()
    assert clock.looked.wait(20)
    release.set()
    pages.wait_for(lambda page: page.health.ticks >= 3)
    ticking.stop()
    assert not any(page.health.stalled for page in pages)


def test_stopping_lets_go_of_the_source() -> None:
    source, pages = ScriptedSource(good), Pages()
    ticking = node(source, pages, SystemClock(), interval=0.05)
    ticking.start()
    pages.wait_for(lambda page: page.health.ticks >= 2)
    ticking.stop()
    assert source.closed == 1


def test_an_error_of_our_own_is_told_as_such_logged_once_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> Snapshot:
        raise ZeroDivisionError("by zero")

    ticking = node(ScriptedSource(broken, broken, broken, good), Pages(), FakeClock())
    with caplog.at_level(logging.ERROR, "gpuledger.node"):
        pages = [ticking.tick() for _ in range(4)]
    assert [page.snapshot is None for page in pages] == [True, True, True, False]
    assert "internal error" in pages[0].health.status
    assert not pages[0].health.stalled
    assert sum(record.exc_info is not None for record in caplog.records) == 1


@pytest.mark.parametrize("part", ["source", "workloads", "ledger"])
def test_the_part_of_a_tick_that_breaks_is_told_as_failed_and_counted(part: str) -> None:
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


def test_a_slow_first_reading_is_not_called_a_hung_driver() -> None:
    release, pages = Event(), Pages()

    def slow() -> Snapshot:
        release.wait(30)
        return GOOD

    ticking = node(ScriptedSource(slow), pages, SystemClock(), interval=0.05)
    ticking.start()
    stale = pages.wait_for(lambda page: page.health.stalled)
    release.set()
    ticking.stop()
    assert stale.health.status.startswith("no first reading of test after")
    assert [(part.name, part.success) for part in stale.health.collectors] == [("source", False)]


def test_a_failed_source_fails_its_own_parts_and_gives_none_a_duration_that_it_did_not_have() -> None:
    told = Snapshot(1.0, 1.0, SOURCE, (reading(CARD),), collected=(Collected("processes", 0.25),))
    ticking = node(ScriptedSource(lambda: told, unavailable), Pages(), FakeClock())
    ticking.tick()
    parts = {part.name: part for part in ticking.tick().health.collectors}
    assert (parts["processes"].success, parts["processes"].seconds) == (False, None)
    assert parts["ledger"].success


def test_the_status_names_failed_parts_and_lost_gpus() -> None:
    lost = snapshot(reading(CARD, up=False, failed=True))
    assert status_of(lost) == "GPU 0 (GPU-0) does not answer"
    failed = Snapshot(0, 0, SOURCE, (), collected=(Collected("events", 0.1, "UNKNOWN"), Collected("ok", 0)))
    assert status_of(failed) == "events: UNKNOWN"
    assert status_of(GOOD) == "ok"


def test_the_interval_doubles_while_ticks_are_slow_and_eight_times_at_most() -> None:
    pace = Pace(1.0)
    changes = [pace.note(5.0) for _ in range(60)]
    assert [index for index, changed in enumerate(changes, 1) if changed] == [10, 20, 30]
    assert pace.interval == 8.0


def test_a_few_slow_ticks_change_nothing() -> None:
    pace = Pace(1.0)
    for seconds in (5.0, 5.0, 5.0, 5.0, *[0.01] * 20):
        pace.note(seconds)
    assert pace.interval == 1.0


def test_the_interval_halves_back_after_a_hundred_calm_ticks() -> None:
    pace = Pace(1.0)
    for _ in range(10):
        pace.note(0.5)
    assert pace.interval == 2.0
    changes = [pace.note(0.15) for _ in range(100)]
    assert changes.index(True) == 99
    assert pace.interval == 1.0
    assert not any(pace.note(0.0) for _ in range(300))


def test_ticks_between_a_tenth_and_a_fifth_keep_the_interval() -> None:
    pace = Pace(1.0)
    for _ in range(10):
        pace.note(0.5)
    assert not any(pace.note(0.3) for _ in range(300))

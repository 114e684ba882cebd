"""A polled owner index keeps its last good value, logs failures once, and reads early after a nudge."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event

import pytest

from builders import FakeClock
from gpuledger.host import steady_thread
from gpuledger.host.owner_index import PolledIndex
from gpuledger.model.errors import GpuledgerError
from running import PATIENCE


class Wall:
    """A clock that does not advance."""

    def unix(self) -> float:
        return 1000.0

    def elapsed(self) -> float:
        return 1000.0


def polled(*outcomes: list[str] | Exception) -> PolledIndex[list[str]]:
    rest = iter(outcomes)

    def read() -> list[str]:
        outcome = next(rest)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return made(read)


def made(read: Callable[[], list[str]]) -> PolledIndex[list[str]]:
    return PolledIndex("pods", read, [], period=3600.0, clock=Wall())


def test_an_index_is_empty_and_unsuccessful_before_its_first_reading() -> None:
    index = polled()
    assert (index.value, index.health.success, index.health.last_success) == ([], False, None)


def test_a_reading_replaces_the_value_and_records_its_time() -> None:
    index = polled(["a", "b"])
    assert index.refresh()
    assert index.value == ["a", "b"]
    assert (index.health.success, index.health.entries, index.health.last_success) == (True, 2, 1000.0)


def test_an_equal_reading_keeps_the_same_object() -> None:
    index = polled(["a"], ["a"], ["b"])
    index.refresh()
    first = index.value
    assert index.refresh()
    assert index.value is first
    assert index.refresh()
    assert index.value == ["b"]


@pytest.mark.parametrize(
    "error", [GpuledgerError("no socket; mount it"), OSError(2, "No such file", "/sock")]
)
def test_a_failed_reading_keeps_the_last_value_and_its_time(error: Exception) -> None:
    index = polled(["a"], error)
    index.refresh()
    assert not index.refresh()
    assert index.value == ["a"]
    assert (index.health.success, index.health.entries, index.health.last_success) == (False, 1, 1000.0)
    assert index.health.error == str(error)


def test_a_reading_that_hangs_is_a_failure() -> None:
    clock, seen = FakeClock(), []

    def read() -> list[str]:
        for seconds in (0.0, 60.0, 1.0):
            clock.advance(seconds)
            seen.append((index.health.success, index.health.last_success))
        assert "has not returned" in index.health.error
        return ["b"]

    index = PolledIndex("jobs", read, [], period=5.0, clock=clock)
    index._succeeded(1)
    assert index.refresh()
    before = 1_700_000_000.0
    assert seen == [(True, before), (True, before), (False, before)]
    assert (index.health.success, index.health.last_success) == (True, before + 61)


def test_a_failure_and_its_end_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    index = polled(GpuledgerError("no socket"), GpuledgerError("no socket"), [])
    for _ in range(3):
        index.refresh()
    assert [record.message for record in caplog.records] == ["pods: no socket", "pods is readable again"]


def test_an_internal_error_is_reported_and_reading_continues() -> None:
    index = polled(ZeroDivisionError("x"), ["a"])
    index.refresh()
    assert "report it: ZeroDivisionError" in index.health.error
    assert index.refresh()


def test_a_nudge_triggers_the_next_reading() -> None:
    readings = [Event(), Event()]
    seen = iter(readings)

    def read() -> list[str]:
        next(seen, readings[0]).set()
        return []

    # Without the nudge the second reading would follow after an hour.
    index = made(read)
    index.start()
    try:
        assert readings[0].wait(PATIENCE)
        index.nudge()
        assert readings[1].wait(PATIENCE)
    finally:
        index.stop()


def test_a_thread_without_memory_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two readings, where `refresh` handles nothing."""
    monkeypatch.setattr(steady_thread, "PAUSE", 0.01)
    readings = [Event(), Event()]
    seen = iter(readings)

    class Starved:
        def uniform(self, _: float, __: float) -> float:
            raise MemoryError

    def read() -> list[str]:
        next(seen, readings[0]).set()
        return []

    index = PolledIndex("pods", read, [], period=0.01, clock=Wall(), random=Starved())
    index.start()
    try:
        assert readings[1].wait(PATIENCE)
    finally:
        index.stop()


def test_stop_ends_the_thread() -> None:
    index = made(list)
    index.start()
    index.stop()
    assert not index._thread.is_alive()

"""A polled map of owners: its last good value stays, failures are told once, nudges hurry it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event

import pytest

from gpuledger.host.background import PolledIndex
from gpuledger.model.errors import GpuledgerError


class Wall:
    """A clock that stands."""

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


def test_before_the_first_reading_it_is_no_success_and_empty() -> None:
    one = polled()
    assert (one.value, one.health.success, one.health.last_success) == ([], False, None)


def test_a_reading_swaps_the_value_and_says_when() -> None:
    one = polled(["a", "b"])
    assert one.refresh()
    assert one.value == ["a", "b"]
    assert (one.health.success, one.health.entries, one.health.last_success) == (True, 2, 1000.0)


@pytest.mark.parametrize(
    "error", [GpuledgerError("no socket; mount it"), OSError(2, "No such file", "/sock")]
)
def test_a_failure_keeps_the_last_value_and_its_age(error: Exception) -> None:
    one = polled(["a"], error)
    one.refresh()
    assert not one.refresh()
    assert one.value == ["a"]
    assert (one.health.success, one.health.entries, one.health.last_success) == (False, 1, 1000.0)
    assert one.health.error == str(error)


def test_a_cause_is_logged_once_and_the_end_of_it_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = polled(GpuledgerError("no socket"), GpuledgerError("no socket"), [])
    for _ in range(3):
        one.refresh()
    assert [record.message for record in caplog.records] == ["pods: no socket", "pods can be read again"]


def test_a_defect_of_ours_is_told_as_one_and_ends_nothing() -> None:
    one = polled(ZeroDivisionError("x"), ["a"])
    one.refresh()
    assert "report it: ZeroDivisionError" in one.health.error
    assert one.refresh()


def test_a_nudge_brings_the_next_reading_forward() -> None:
    readings = [Event(), Event()]
    seen = iter(readings)

    def read() -> list[str]:
        next(seen, readings[0]).set()
        return []

    # Were it not for the nudge, the second reading would be an hour away.
    one = made(read)
    one.start()
    try:
        assert readings[0].wait(10)
        one.nudge()
        assert readings[1].wait(10)
    finally:
        one.stop()


def test_stop_ends_the_thread() -> None:
    one = made(list)
    one.start()
    one.stop()
    assert not one._thread.is_alive()

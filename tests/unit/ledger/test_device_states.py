"""State of a Device in each interval: active, held, idle or unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, instance, process, reading, snapshot
from gpuledger.ledger.device_states import ACTIVE, HELD, IDLE, UNKNOWN, DeviceStates
from gpuledger.model import quantities as q
from gpuledger.model.snapshot import Reading
from gpuledger.model.workload import Allocation, Workload

CARD = gpu(0)
CUT = instance(CARD, 2)
UNIX = 1_700_000_000.0
RUNS, RESTS, SILENT = process(CARD, sm=0.5), process(CARD, sm=0.0), process(CARD, sm=None)
ALLOCATION = Allocation(CARD, Workload("pod", "ml", "train-0"), "pod_resources")


@pytest.mark.parametrize(
    ("what", "device_reading", "allocated", "expected"),
    [
        ("the Gpu is active", reading(CARD, values={q.UTILIZATION: 0.3}), False, ACTIVE),
        ("a process is active, whatever the Gpu reports", reading(CARD, RUNS, values={}), False, ACTIVE),
        ("no process", reading(CARD, values={q.UTILIZATION: 0.0}), False, IDLE),
        ("no process, and no utilization reported", reading(CARD, values={}), False, IDLE),
        ("no process, but allocated", reading(CARD, values={q.UTILIZATION: 0.0}), True, HELD),
        ("an inactive process", reading(CARD, RESTS, values={q.UTILIZATION: 0.0}), False, HELD),
        ("all processes reported as inactive", reading(CARD, RESTS, values={}), False, HELD),
        ("one process with unknown activity", reading(CARD, RESTS, SILENT, values={}), False, UNKNOWN),
        ("allocated, without any reported activity", reading(CARD, values={}), True, UNKNOWN),
        ("its list failed", reading(CARD, failed=True, values={q.UTILIZATION: 0.3}), False, UNKNOWN),
        (
            "an Instance uses its own engine activity",
            reading(CUT, values={q.ENGINE_ACTIVITY: 0.1}),
            False,
            ACTIVE,
        ),
        (
            "an Instance ignores its Gpu's utilization",
            reading(CUT, process(CUT, sm=None), values={q.UTILIZATION: 0.5}),
            False,
            UNKNOWN,
        ),
    ],
)
def test_the_state_of_a_device(what: str, device_reading: Reading, allocated: bool, expected: str) -> None:
    states = DeviceStates()
    states.post(replace(snapshot(device_reading), allocations=(ALLOCATION,) if allocated else ()))
    assert list(states.now.values()) == [expected], what


@pytest.mark.parametrize(
    ("share", "sm", "expected"),
    [(0.0, None, IDLE), (0.02, 0.02, ACTIVE), (None, 0.0, IDLE), (None, None, UNKNOWN)],
)
def test_what_only_draws_leaves_a_device_idle_unless_nothing_is_known_of_its_work(
    share: float | None, sm: float | None, expected: str
) -> None:
    """As on AMD's and Intel's older drivers, where all processes look as if they only draw."""
    draws = process(CARD, types="G", sm=sm)
    values = {} if share is None else {q.UTILIZATION: share}
    states = DeviceStates()
    states.post(snapshot(reading(CARD, draws, values=values)), frozenset({draws.key}))
    assert list(states.now.values()) == [expected]


def test_a_device_that_is_down_has_no_current_state_and_its_time_is_unknown() -> None:
    states = DeviceStates()
    for elapsed in (0.0, 1.0):
        states.post(replace(snapshot(reading(CARD, up=False, values={q.UTILIZATION: 0.3})), elapsed=elapsed))
    assert states.now == {}
    assert {key[2]: seconds for key, seconds in states.seconds.items() if seconds} == {UNKNOWN: 1.0}


def after(*seconds: float, interrupted: bool = False) -> dict[str, float]:
    """Seconds above 0 by state of a Gpu that is idle at first and active from the second tick on, posted at
    these times.
    """
    states = DeviceStates()
    for number, second in enumerate(seconds):
        share = 0.3 if number else 0.0
        states.post(snapshot(reading(CARD, RESTS, values={q.UTILIZATION: share}), unix=UNIX + second))
        if interrupted:
            states.interrupt()
    return {state: value for (_, _, state), value in states.seconds.items() if value}


@pytest.mark.parametrize(
    ("what", "seconds", "expected"),
    [
        ("a single tick is no time", (0.0,), {}),
        ("the state at an interval's end counts for the interval", (0.0, 1.0, 3.5), {ACTIVE: 3.5}),
        ("an interval of one minute counts", (0.0, 60.0), {ACTIVE: 60.0}),
        ("a longer interval is unobserved", (0.0, 60.5, 61.5), {ACTIVE: 1.0}),
        ("no time while the clock stood still", (0.0, 0.0), {}),
    ],
)
def test_seconds_are_counted_between_two_ticks(
    what: str, seconds: tuple[float, ...], expected: dict[str, float]
) -> None:
    assert after(*seconds) == expected, what


def test_a_pause_counts_for_no_state() -> None:
    assert after(0.0, 1.0, 2.0, interrupted=True) == {}


def test_every_state_begins_at_0() -> None:
    states = DeviceStates()
    states.post(snapshot(reading(CARD)))
    assert set(states.seconds.values()) == {0.0}
    assert {state for *_, state in states.seconds} == {ACTIVE, HELD, IDLE, UNKNOWN}


def test_a_device_that_appears_later_begins_at_0() -> None:
    states = DeviceStates()
    later = gpu(7)
    for at in (100.0, 101.0, 102.0):
        cards = [CARD] if at == 100.0 else [CARD, later]
        states.post(snapshot(*(reading(card, values={q.UTILIZATION: 0.0}) for card in cards), unix=at))
    assert sum(states.seconds[later.uuid, "", name] for name in (ACTIVE, HELD, IDLE, UNKNOWN)) == 1.0
    assert (states.born[CARD.uuid, ""], states.born[later.uuid, ""]) == (100.0, 101.0)

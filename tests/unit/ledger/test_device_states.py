"""What a Device did in each interval: active, held, idle, or unknown where nobody can tell."""

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
HANDED = Allocation(CARD, Workload("pod", "ml", "train-0"), "pod_resources")


@pytest.mark.parametrize(
    ("what", "told", "handed", "expected"),
    [
        ("the Gpu works", reading(CARD, values={q.UTILIZATION: 0.3}), False, ACTIVE),
        ("a process works, whatever the Gpu says", reading(CARD, RUNS, values={}), False, ACTIVE),
        ("nobody is there", reading(CARD, values={q.UTILIZATION: 0.0}), False, IDLE),
        ("nobody is there, and who says it knows no utilization", reading(CARD, values={}), False, IDLE),
        ("nobody is there, but it is handed out", reading(CARD, values={q.UTILIZATION: 0.0}), True, HELD),
        ("a process rests on it", reading(CARD, RESTS, values={q.UTILIZATION: 0.0}), False, HELD),
        ("every process is known to rest", reading(CARD, RESTS, values={}), False, HELD),
        ("of one process nobody knows", reading(CARD, RESTS, SILENT, values={}), False, UNKNOWN),
        ("handed out, and nothing tells activity", reading(CARD, values={}), True, UNKNOWN),
        ("its list failed", reading(CARD, failed=True, values={q.UTILIZATION: 0.3}), False, UNKNOWN),
        ("it is lost", reading(CARD, up=False, values={}), False, UNKNOWN),
        ("an Instance goes by its engines", reading(CUT, values={q.ENGINE_ACTIVITY: 0.1}), False, ACTIVE),
        (
            "and not by its Gpu's utilization",
            reading(CUT, process(CUT, sm=None), values={q.UTILIZATION: 0.5}),
            False,
            UNKNOWN,
        ),
    ],
)
def test_the_state_of_a_device(what: str, told: Reading, handed: bool, expected: str) -> None:
    states = DeviceStates()
    states.post(replace(snapshot(told), allocations=(HANDED,) if handed else ()))
    assert list(states.now.values()) == [expected], what


def after(*seconds: float, interrupted: bool = False) -> dict[str, float]:
    """Seconds by state of a Gpu that rests at first, works from the second tick on, posted at these times."""
    states = DeviceStates()
    for number, second in enumerate(seconds):
        share = 0.3 if number else 0.0
        states.post(snapshot(reading(CARD, RESTS, values={q.UTILIZATION: share}), unix=UNIX + second))
        if interrupted:
            states.interrupt()
    _, spent = states.told()
    return {state: value for (_, _, state), value in spent.items()}


@pytest.mark.parametrize(
    ("what", "seconds", "expected"),
    [
        ("one look is no time, of no state", (0.0,), {}),
        ("the state at an interval's end is the interval's", (0.0, 1.0, 3.5), {ACTIVE: 3.5}),
        ("a minute is looked at", (0.0, 60.0), {ACTIVE: 60.0}),
        ("of what is longer nobody knows", (0.0, 60.5, 61.5), {ACTIVE: 1.0}),
        ("nor where the clock stood", (0.0, 0.0), {}),
    ],
)
def test_seconds_are_those_between_two_looks(
    what: str, seconds: tuple[float, ...], expected: dict[str, float]
) -> None:
    assert after(*seconds) == expected, what


def test_a_pause_is_no_states_time() -> None:
    assert after(0.0, 1.0, 2.0, interrupted=True) == {}

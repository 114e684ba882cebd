"""Throttling in the last hour: from counters or reasons, since when, and of which observed time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, reading, snapshot
from gpuledger.ledger.throttling import ThrottleTimes
from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import ThrottleRow

CARD = gpu(0)
NS = 1_000_000_000
Values = dict[Quantity, float]


def rows(ticks: Iterable[tuple[float, Values]]) -> tuple[ThrottleRow, ...]:
    times, found = ThrottleTimes(period=0.0), {}
    for at, values in ticks:
        found = times.post(snapshot(reading(CARD, values=values), unix=at))
    return found.get(CARD.uuid, ())


def heat(seconds: float) -> Values:
    return {q.THERMAL_VIOLATION: seconds * NS}


def test_a_counter_that_rests_is_no_throttling() -> None:
    assert rows((at, heat(100)) for at in range(10)) == ()


def test_the_first_value_of_a_counter_counts_nothing() -> None:
    assert rows([(0, heat(5000))]) == ()


def test_throttled_time_is_the_rise_of_the_counter_over_the_observed_time() -> None:
    (row,) = rows((at, heat(at / 4)) for at in range(101))
    assert (row.reason, row.seconds, row.observed, row.is_estimate) == ("thermal", 25.0, 100.0, False)
    assert row.ratio == 0.25


def test_since_is_the_beginning_of_the_throttling() -> None:
    (row,) = rows((at, heat(max(0, at - 50))) for at in range(101))
    assert row.since == 50


def test_a_pause_of_seconds_does_not_end_it_and_a_longer_one_does() -> None:
    def at_times(*hot: int) -> Iterable[tuple[float, Values]]:
        return ((at, heat(sum(1 for each in hot if each <= at))) for at in range(31))

    assert rows(at_times(1, 9, 17, 25, 30))[0].since == 0
    assert rows(at_times(1, 30))[0].since == 29
    assert rows(at_times(1))[0].since is None


def test_only_the_last_hour_counts() -> None:
    ticks = [(float(at), heat(min(at, 600))) for at in range(0, 4201, 30)]
    (row,) = rows(ticks[:130])
    assert row.observed <= 3600 and 0 < row.seconds <= 600
    assert rows(ticks) == ()


def test_a_throttling_of_a_gpu_that_is_down_expires_too() -> None:
    hot = [(float(at), heat(at)) for at in range(0, 61, 30)]
    assert rows([*hot, *((float(at), {}) for at in range(90, 3900, 30))]) == ()


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [(500.0, 3.0, 1.0), (500.0, 501.0, 61.0), (500.0, 9000.0, 1.0)],
    ids=["the driver was loaded again", "nothing was read for a minute", "outruns the clock"],
)
def test_an_interval_of_unknown_throttling_is_not_observed(
    before: float, after: float, seconds: float
) -> None:
    assert rows([(0.0, heat(before)), (seconds, heat(after))]) == ()


def test_a_missing_reading_interrupts_the_observed_time() -> None:
    (row,) = rows([(0, heat(0)), (1, heat(1)), (2, {}), (3, heat(3)), (4, heat(4))])
    assert (row.seconds, row.observed) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x1, []),
        (0x2, []),
        (0x4, ["power"]),
        (0x20, ["thermal"]),
        (0x40 | 0x8, ["thermal"]),
        (0x80 | 0x8, ["power_brake"]),
        # Older drivers name no cause.
        (0x8, ["hardware_slowdown"]),
        (0x10, ["sync_boost"]),
        (0x4 | 0x20, ["power", "thermal"]),
    ],
)
def test_without_counters_the_reasons_at_each_tick_are_an_estimate(bits: int, reasons: list[str]) -> None:
    found = rows((at, {q.CLOCK_EVENT_REASONS: bits}) for at in range(11))
    assert sorted(row.reason for row in found) == reasons
    assert all((row.seconds, row.observed, row.is_estimate) == (10.0, 10.0, True) for row in found)


def test_the_counters_of_nvidia_smi_count_as_heat() -> None:
    (row,) = rows(
        (at, {q.SOFTWARE_THERMAL_TIME: at * NS / 2, q.HARDWARE_THERMAL_TIME: 0.0}) for at in range(11)
    )
    assert (row.reason, row.seconds, row.is_estimate) == ("thermal", 5.0, True)


def test_little_work_is_no_throttling() -> None:
    assert rows((at, {q.LOW_UTILIZATION_VIOLATION: at * NS}) for at in range(11)) == ()


def test_a_counter_is_read_every_ten_seconds_and_loses_nothing() -> None:
    times = ThrottleTimes()
    found = [times.post(snapshot(reading(CARD, values=heat(at / 4)), unix=at)) for at in range(101)]
    assert len({id(rows) for rows in found}) == 11
    (row,) = found[-1][CARD.uuid]
    assert (row.seconds, row.observed, row.since) == (25.0, 100.0, 0)


def test_recent_is_the_ratio_of_the_last_minutes() -> None:
    (row,) = rows((float(at), heat(max(0, at - 1740))) for at in range(0, 1801, 5))
    assert row.recent > 0.9 and row.ratio < 0.04


def test_memory_does_not_grow() -> None:
    times = ThrottleTimes(period=0.0)
    for at in range(0, 20_000, 20):
        times.post(snapshot(reading(CARD, values=heat(at / 2)), unix=at))
    (one,) = times._gpus[CARD.uuid].values()
    assert len(one.buckets) <= 61


@given(st.lists(st.tuples(st.floats(0.5, 60), st.floats(0, 1)), max_size=120))
def test_never_more_is_throttled_than_observed_and_never_more_than_an_hour(
    steps: list[tuple[float, float]],
) -> None:
    at, counter, ticks = 0.0, 0.0, [(0.0, heat(0))]
    for seconds, share in steps:
        at, counter = at + seconds, counter + share * seconds
        ticks.append((at, heat(counter)))
    for row in rows(ticks):
        assert 0 < row.seconds <= row.observed <= 3660
        assert 0 <= row.ratio <= 1 and 0 <= row.recent <= 1

"""Sets of whole seconds: the seconds that a stretch covers in an hour and in minutes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.watched_time import HOUR, MarkedSeconds, pack_seconds, seconds_within, unpack_seconds

WHOLE_HOUR = (1 << HOUR) - 1
times = st.floats(0, 3 * HOUR, allow_nan=False)


@pytest.mark.parametrize(
    ("begins", "ends", "seconds"),
    [
        (0.0, 2.0, {0, 1}),
        (0.4, 2.0, {1}),
        (0.0, 2.1, {0, 1, 2}),
        (5.0, 5.0, set()),
        (5.0, 4.0, set()),
        (3598.0, 4000.0, {3598, 3599}),
        (-10.0, 1.0, {0}),
        (4000.0, 5000.0, set()),
    ],
)
def test_a_second_is_covered_if_it_begins_within(begins: float, ends: float, seconds: set[int]) -> None:
    assert seconds_within(begins, ends, 0, HOUR) == sum(1 << second for second in seconds)


@given(st.tuples(times, times, times).map(sorted))
def test_consecutive_stretches_cover_the_same_as_the_whole(cuts: list[float]) -> None:
    first, middle, last = cuts
    for hour in range(4):
        one, other, whole = (
            seconds_within(*stretch, hour * HOUR, HOUR)
            for stretch in ((first, middle), (middle, last), (first, last))
        )
        assert one | other == whole
        assert one & other == 0


@given(times, times)
def test_minutes_match_the_hour(one: float, other: float) -> None:
    begins, ends = sorted((one, other))
    marked = MarkedSeconds()
    marked.mark(begins, ends)
    hour = sum(bits << minute * 60 for minute, bits in marked.unsaved.items())
    assert hour == seconds_within(begins, ends, 0, 4 * HOUR)


def test_a_minute_keeps_its_seconds_across_a_save() -> None:
    marked = MarkedSeconds()
    marked.mark(0.0, 2.0)
    marked.unsaved.clear()
    marked.mark(4.0, 5.0)
    assert marked.unsaved == {0: 0b10011}


def test_one_day_is_kept_while_the_store_is_unavailable() -> None:
    marked = MarkedSeconds()
    for minute in range(5000):
        marked.mark(minute * 60.0, minute * 60.0 + 1)
    assert set(marked.unsaved) == set(range(5000 - 1440, 5000))


stretches = st.lists(st.tuples(st.integers(0, HOUR), st.integers(0, HOUR)), max_size=150).map(
    lambda pairs: sum({1 << second for first, last in pairs for second in range(first, min(last, first + 9))})
)


@given(st.integers(0, WHOLE_HOUR) | stretches)
def test_packed_seconds_round_trip(seconds: int) -> None:
    seconds &= WHOLE_HOUR
    assert unpack_seconds(pack_seconds(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        (WHOLE_HOUR, 4),
        (0b1110, 4),
        (0b101, 8),
        (sum(1 << second for second in range(0, HOUR, 2)), HOUR // 8),
    ],
)
def test_packed_seconds_need_at_most_one_bit_each(seconds: int, size: int) -> None:
    packed = pack_seconds(seconds)
    assert packed is not None
    assert len(packed) == size
    assert unpack_seconds(packed) == seconds
    assert pack_seconds(0) is None

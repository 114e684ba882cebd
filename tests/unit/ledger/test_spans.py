"""Spans: merging and cutting without loss."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, process
from gpuledger.ledger.energy.booking import BookedInterval
from gpuledger.ledger.energy.gpu_energy_ledger import Posting
from gpuledger.ledger.energy.residence import Residence
from gpuledger.ledger.spans import Span, SpanRecorder
from gpuledger.ledger.watched_time import HOUR, QUARTER
from gpuledger.model.process import ProcessKey
from gpuledger.model.session import UNOBSERVED

A = gpu(0)
PEOPLE = [process(A, pid) for pid in (1, 2, 3)]
START = 1_700_000_000.0
# The next quarter of an hour after START.
FULL = (START // QUARTER + 1) * QUARTER


def number_of(key: ProcessKey) -> int:
    return key[1]


def posted(
    begins: float,
    ends: float,
    joules: dict[int, int],
    *,
    idle: int = 0,
    unattributed: int = 0,
    unobserved: int = 0,
    method: str = "measured",
    integrated: bool = False,
) -> Posting:
    length = max(round((ends - begins) * 1e6), 0)
    there = [one for one in PEOPLE if one.pid in joules]
    residents = tuple(
        Residence(one, 0, length, 5, True, False, rank, one.key) for rank, one in enumerate(there)
    )
    shares = {one.key: joules[one.pid] for one in there if joules[one.pid]}
    delta = sum(joules.values()) + idle + unattributed
    return Posting(
        A,
        begins,
        ends,
        BookedInterval(delta, method, idle, unattributed, shares),
        unobserved=unobserved,
        residents=residents,
        integrated=integrated,
    )


class Bench:
    """Every Span that a SpanRecorder changed, by number."""

    def __init__(self) -> None:
        self.recorder = SpanRecorder()
        self.spans: dict[int, Span] = {}

    def post(self, *intervals: Posting, epoch_number: int = 0) -> list[Span]:
        for one in intervals:
            self.spans |= {span.number: span for span in self.recorder.post(one, epoch_number, number_of)}
        return list(self.spans.values())


def test_consecutive_intervals_with_the_same_residents_and_method_are_one_span() -> None:
    (span,) = Bench().post(posted(START, START + 1, {1: 5}), posted(START + 1, START + 2, {1: 6}, idle=2))
    assert (span.begins, span.ends, span.shares[1].millijoules, span.idle) == (START, START + 2, 11, 2)
    assert span.shares[1].resident == 2_000_000
    assert span.shares[1].work == 10


@dataclass
class Change:
    name: str
    second: Posting
    epoch_number: int = 0


@pytest.mark.parametrize(
    "change",
    [
        Change("another resident", posted(START + 1, START + 2, {1: 5, 2: 0})),
        Change("another method", posted(START + 1, START + 2, {1: 5}, method="activity")),
        Change("a gap", posted(START + 1.5, START + 2, {1: 5})),
        Change("another epoch", posted(START + 1, START + 2, {1: 5}), epoch_number=1),
        Change("integrated power", posted(START + 1, START + 2, {1: 5}, integrated=True)),
        Change("unobserved", posted(START + 1, START + 2, {}, unobserved=5)),
    ],
    ids=lambda change: change.name,
)
def test_a_new_span_begins_with(change: Change) -> None:
    bench = Bench()
    bench.post(posted(START, START + 1, {1: 5}))
    assert len(bench.post(change.second, epoch_number=change.epoch_number)) == 2


def test_a_resident_without_energy_is_in_the_span() -> None:
    (span,) = Bench().post(posted(START, START + 1, {1: 5, 2: 0}))
    assert {number: share.millijoules for number, share in span.shares.items()} == {1: 5, 2: 0}


def test_an_interval_across_a_quarter_is_cut_in_proportion() -> None:
    first, second = Bench().post(posted(FULL - 1, FULL + 3, {1: 101}, idle=8))
    assert (first.begins, first.ends, second.begins, second.ends) == (FULL - 1, FULL, FULL, FULL + 3)
    assert [span.shares[1].millijoules for span in (first, second)] == [25, 76]
    assert [span.idle for span in (first, second)] == [2, 6]
    assert [span.shares[1].resident for span in (first, second)] == [1_000_000, 3_000_000]


def test_an_interval_across_several_quarters_is_cut_at_each_without_loss() -> None:
    spans = Bench().post(posted(FULL - 100, FULL + 2 * QUARTER + 100, {1: 101}, idle=7, unobserved=0))
    assert [(span.begins - FULL, span.ends - FULL) for span in spans] == [
        (-100, 0),
        (0, 900),
        (900, 1800),
        (1800, 1900),
    ]
    assert [span.quarter - spans[1].quarter for span in spans] == [-1, 0, 1, 2]
    assert [span.shares[1].millijoules for span in spans] == [5, 46, 45, 5]
    assert [span.idle for span in spans] == [0, 4, 3, 0]


def test_an_interval_that_ends_at_a_quarter_is_not_cut_and_the_next_begins_a_span() -> None:
    first, second = Bench().post(posted(FULL - 1, FULL, {1: 7}), posted(FULL, FULL + 1, {1: 7}))
    assert (first.ends, second.begins) == (FULL, FULL)


def test_hours_of_unobserved_energy_are_one_span() -> None:
    (span,) = Bench().post(posted(START, START + 9 * HOUR, {}, unobserved=77))
    assert (span.method, span.unobserved, span.epoch_number) == (UNOBSERVED, 77, 0)


def test_a_wall_clock_set_back_loses_nothing() -> None:
    spans = Bench().post(posted(FULL + 5, FULL - 100, {1: 9}), posted(FULL - 100, FULL - 99, {1: 1}))
    assert sum(span.millijoules for span in spans) == 10


def test_an_empty_interval_creates_no_span() -> None:
    assert Bench().post(posted(START, START + 1, {})) == []


intervals = st.lists(
    st.tuples(
        st.sampled_from([0.001, 0.25, 1.0, 17.3, 59.9]),
        st.sampled_from([0.0, 0.0, 0.0, 3.0]),
        st.dictionaries(st.sampled_from([1, 2, 3]), st.integers(0, 10**7), max_size=3),
        st.integers(0, 10**7),
        st.integers(0, 10**6),
        st.sampled_from(["measured", "activity", "equal"]),
        st.booleans(),
    ),
    max_size=30,
)


@given(intervals, st.floats(0, HOUR))
def test_merging_and_cutting_preserve_the_sum_of_every_account(
    drawn: list[tuple[float, float, dict[int, int], int, int, str, bool]], before: float
) -> None:
    bench = Bench()
    expected: Counter[object] = Counter()
    at = FULL - before / 4
    for seconds, gap, joules, idle, unattributed, method, looked in drawn:
        at += gap
        if looked:
            one = posted(at, at + seconds, joules, idle=idle, unattributed=unattributed, method=method)
            expected.update(joules)
            expected.update(idle=idle, unattributed=unattributed)
            expected.update({("us", pid): round((one.ends - one.begins) * 1e6) for pid in joules})
        else:
            one = posted(at, at + seconds, {}, unobserved=idle)
            expected.update(unobserved=idle)
        at = one.ends
        bench.post(one)
    found: Counter[object] = Counter()
    for span in bench.spans.values():
        assert span.begins // HOUR == span.ends // HOUR or span.ends % HOUR == 0
        found.update(idle=span.idle, unattributed=span.unattributed, unobserved=span.unobserved)
        for number, share in span.shares.items():
            assert share.millijoules >= 0
            found.update({number: share.millijoules, ("us", number): share.resident})
    assert +found == +expected

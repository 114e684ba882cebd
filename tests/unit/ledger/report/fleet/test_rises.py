"""Rises of scraped counters: joined over ranges, exact if possible, and always within the error."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.fleet.rises import Rise, Rises, SharedBound, compute_rise
from gpuledger.ledger.report.fleet.scraped import LabelResolver, SeriesWindow

HERE, THERE = ("job", "a:9400", "", ""), ("job", "b:9400", "", "")
NAME = ("GPU-0", "process", "measured")
Samples = Sequence[tuple[float, float]]


@pytest.mark.parametrize(
    ("what", "window", "base", "expected"),
    [
        ("went on", SeriesWindow(130, 110), 100, Rise(30)),
        ("stood still", SeriesWindow(100, 100), 100, Rise(0)),
        ("unknown value before", SeriesWindow(130, 110), None, Rise(20)),
        ("reset between scrapes", SeriesWindow(30, 0), 100, Rise(30, resets=1)),
        (
            "one reset, from its old value",
            SeriesWindow(30, 0, 1, 150, 999, 9, 999, 10),
            100,
            Rise(80, resets=1),
        ),
        ("one reset, before the range", SeriesWindow(30, 0, 1, 30, 999, 9, 999, 10), 100, Rise(30, resets=1)),
        ("one sample, after a reset", SeriesWindow(30, 30, 1, 30, 0, 1, 999, 2), 100, Rise(30, resets=1)),
    ],
)
def test_a_rise_is_exact(what: str, window: SeriesWindow, base: float | None, expected: Rise) -> None:
    assert compute_rise(window, base) == expected, what


def test_a_rise_with_resets_is_between_two_increases() -> None:
    window = SeriesWindow(200, 0, 1, 200, increase=244, samples=12, wider=250, wider_samples=13)
    found = compute_rise(window, 100)
    assert found.amount - found.error == pytest.approx(244 / 1.2)
    assert found.amount + found.error == 250
    assert found.resets == 1


def rises(*ranges: dict[tuple[str, ...], SeriesWindow]) -> Rise:
    adder = Rises()
    adder.begin({NAME: {HERE: SeriesWindow(100, 100)}})
    for pieces in ranges:
        adder.add({NAME: pieces}, lambda _: False)
    return adder.total[NAME]


def test_ranges_join_without_a_gap() -> None:
    assert rises({HERE: SeriesWindow(150, 101)}, {HERE: SeriesWindow(230, 151)}) == Rise(130)


def test_a_range_without_samples_is_bridged() -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: SeriesWindow(100, 100)}})
    adder.add({}, lambda _: False)
    adder.add({NAME: {HERE: SeriesWindow(500, 480)}}, lambda _: False)
    assert adder.total[NAME] == Rise(400)


def test_a_counter_continues_under_another_address() -> None:
    moved = {HERE: SeriesWindow(150, 101), THERE: SeriesWindow(180, 155)}
    assert rises(moved, {THERE: SeriesWindow(200, 181)}) == Rise(100)


def test_a_counter_reset_under_another_address_keeps_its_earlier_rise() -> None:
    moved = {HERE: SeriesWindow(150, 101), THERE: SeriesWindow(30, 0)}
    assert rises(moved, {THERE: SeriesWindow(40, 31)}) == Rise(90, resets=1)


def test_a_returning_address_is_not_counted_again() -> None:
    there = {HERE: SeriesWindow(150, 101), THERE: SeriesWindow(180, 155)}
    assert rises(there, {HERE: SeriesWindow(210, 185)}) == Rise(110)


def test_a_counter_that_changes_address_and_back_within_a_range_is_counted_once() -> None:
    there = {HERE: SeriesWindow(210, 101), THERE: SeriesWindow(180, 155)}
    assert rises(there, {HERE: SeriesWindow(230, 211)}) == Rise(130, duplicated=25)


@pytest.mark.parametrize(
    ("what", "second", "shared", "expected"),
    [
        ("one scrape of it", SeriesWindow(150, 150), SharedBound(), Rise(100, duplicated=0)),
        ("its end", SeriesWindow(200, 190), SharedBound(), Rise(100, duplicated=10)),
        ("all of it", SeriesWindow(200, 101), SharedBound(), Rise(100, duplicated=99)),
        ("its end and more", SeriesWindow(230, 190), SharedBound(), Rise(130, duplicated=10)),
        ("what follows", SeriesWindow(230, 200), SharedBound(), Rise(130)),
        ("another beginning, below all values", SeriesWindow(230, 99), SharedBound(), Rise(330, resets=1)),
        (
            "more than a reset counter can have",
            SeriesWindow(200, 150),
            SharedBound(max_after_reset=149),
            Rise(100, duplicated=50),
        ),
        (
            "possibly a reset counter",
            SeriesWindow(200, 150),
            SharedBound(max_after_reset=150),
            Rise(200, 100, resets=1, duplicated=50, ambiguous=True),
        ),
        (
            "more than both can have exported",
            SeriesWindow(190, 120),
            SharedBound(60, 150),
            Rise(200, 90, 1, 70, ambiguous=True),
        ),
        (
            "as much as both can have exported",
            SeriesWindow(190, 120),
            SharedBound(80, 150),
            Rise(100, duplicated=70),
        ),
        ("never exported at the same time", SeriesWindow(190, 120), None, Rise(290, resets=1)),
    ],
)
def test_a_counter_from_two_targets_is_counted_once(
    what: str, second: SeriesWindow, shared: SharedBound | None, expected: Rise
) -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: SeriesWindow(100, 100)}})
    adder.add({NAME: {HERE: SeriesWindow(200, 101), THERE: second}}, lambda _: False, lambda _: shared)
    assert adder.total[NAME] == expected, what


def test_a_counter_from_three_targets_is_counted_once() -> None:
    elsewhere = ("job", "c:9400", "", "")
    pieces = {HERE: SeriesWindow(200, 101), THERE: SeriesWindow(150, 120), elsewhere: SeriesWindow(260, 180)}
    assert rises(pieces) == Rise(160, duplicated=50)


@pytest.mark.parametrize(("born", "expected"), [(True, Rise(70)), (False, Rise(20))])
def test_a_new_counter_has_its_full_value_only_if_born_in_the_range(born: bool, expected: Rise) -> None:
    adder = Rises()
    adder.add({NAME: {HERE: SeriesWindow(70, 50)}}, lambda _: born)
    assert adder.total[NAME] == expected


def test_an_ended_counter_begins_at_zero_when_it_returns() -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: SeriesWindow(100, 100)}})
    adder.add({NAME: {HERE: SeriesWindow(400, 20)}}, lambda _: True)
    assert adder.total[NAME] == Rise(400)
    falling = SeriesWindow(400, 0, 1, 400, increase=484, samples=12, wider=484, wider_samples=12)
    found = compute_rise(falling, 0, born=True)
    assert found.amount + found.error == 484


def test_a_counter_at_its_old_value_had_not_ended() -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: SeriesWindow(100, 100)}})
    adder.add({NAME: {HERE: SeriesWindow(130, 105)}}, lambda _: True)
    assert adder.total[NAME] == Rise(30)


def test_a_rise_beyond_the_ranges_is_returned_but_not_added() -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: SeriesWindow(100, 100)}})
    assert adder.copy().add({NAME: {HERE: SeriesWindow(107, 100)}}, lambda _: False) == {NAME: Rise(7)}
    assert adder.total == {}


class Series:
    """A series with the functions of Prometheus 2.42: promql/functions.go, extrapolatedRate."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def within(self, begins: float, ends: float) -> Samples:
        return [sample for sample in self.samples if begins <= sample[0] <= ends]

    def increase(self, begins: float, ends: float) -> float:
        seen = self.within(begins, ends)
        if len(seen) < 2:
            return 0.0
        gained = seen[-1][1] - seen[0][1] + sum(one[1] for one, two in pairwise(seen) if two[1] < one[1])
        span = seen[-1][0] - seen[0][0]
        before, after, mean = seen[0][0] - begins, ends - seen[-1][0], span / (len(seen) - 1)
        if gained > 0 and seen[0][1] >= 0:
            before = min(before, span * seen[0][1] / gained)
        stretched = span + sum(part if part < mean * 1.1 else mean / 2 for part in (before, after))
        return gained * stretched / span

    def window(self, begins: float, ends: float, interval: float) -> SeriesWindow | None:
        seen, early = self.within(begins, ends), begins - 1.5 * interval
        if not seen:
            return None
        values, wider = [value for _, value in seen], self.within(early, ends)
        falls = sum(two[1] < one[1] for one, two in pairwise(wider))
        plain = SeriesWindow(values[-1], min(values))
        if not falls:
            return plain
        increases = (self.increase(begins, ends), len(seen), self.increase(early, ends), len(wider))
        return SeriesWindow(plain.last, plain.least, falls, max(values), *increases)


STEP = st.one_of(st.integers(0, 50), st.just(-1))


@given(
    steps=st.lists(STEP, min_size=30, max_size=120),
    phase=st.floats(0, 0.999),
    jitter=st.lists(st.floats(-0.05, 0.05), min_size=120, max_size=120),
    length=st.integers(4, 40),
    missed=st.sets(st.integers(4, 120), max_size=60),
)
def test_the_true_rise_is_within_the_error(
    steps: list[int], phase: float, jitter: list[float], length: int, missed: set[int]
) -> None:
    """A step of -1 resets the counter; ranges end anywhere between two samples; some samples are missing."""
    values = list(accumulate(steps, lambda value, step: 0 if step < 0 else value + step, initial=1000))
    times = [number + phase + moved for number, moved in zip(range(len(values)), jitter, strict=False)]
    every = enumerate(zip(times, map(float, values), strict=False))
    series = Series([sample for number, sample in every if number not in missed])
    begins = 3.0
    base, ends = series.within(0, begins)[-1], begins
    adder = Rises()
    adder.begin({NAME: {HERE: SeriesWindow(base[1], base[1])}})
    while ends < len(times):
        begins, ends = ends, ends + length
        window = series.window(begins, ends, 1.0)
        adder.add({NAME: {HERE: window}} if window else {}, lambda _: False)
    seen = series.within(base[0], ends)
    truth = sum(two[1] - one[1] if two[1] >= one[1] else two[1] for one, two in pairwise(seen))
    found = adder.total[NAME]
    assert abs(found.amount - truth) <= found.error + 1e-6
    if not any(step < 0 for step in steps):
        assert found == Rise(truth)


@given(
    steps=st.lists(STEP, min_size=30, max_size=80),
    phases=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    until=st.integers(4, 80),
    since=st.integers(4, 80),
    length=st.integers(4, 40),
)
def test_the_true_rise_of_two_targets_is_within_the_error(
    steps: list[int], phases: tuple[float, float], until: int, since: int, length: int
) -> None:
    """One exports it `until`, the other `since`: simultaneously for a while, or with a gap between."""
    values = list(accumulate(steps, lambda value, step: 0 if step < 0 else value + step, initial=1000))
    first, second = (
        Series([(number + phase, float(value)) for number, value in enumerate(values)]) for phase in phases
    )
    begins, last, fell = 3.0, float(len(values)), any(step < 0 for step in steps)
    first.samples, second.samples = first.within(0, until), second.within(max(since, begins + 1), last)
    base, ends = first.within(0, begins)[-1], begins
    shared = SharedBound(max_after_reset=inf if fell else -1.0)
    adder = Rises()
    adder.begin({NAME: {HERE: SeriesWindow(base[1], base[1])}})
    while ends < last:
        begins, ends = ends, ends + length
        windows = {HERE: first.window(begins, ends, 1.0), THERE: second.window(begins, ends, 1.0)}
        pieces = {target: window for target, window in windows.items() if window}
        adder.add({NAME: pieces} if pieces else {}, lambda _: False, lambda _: shared)
    seen = sorted({*first.within(base[0], last), *second.samples})
    truth = sum(two[1] - one[1] if two[1] >= one[1] else two[1] for one, two in pairwise(seen))
    found = adder.total.get(NAME, Rise())
    assert abs(found.amount - truth) <= found.error + 1e-6
    if not fell:
        assert (found.amount, found.error) == (truth, 0)


def test_a_missing_label_is_empty() -> None:
    assert LabelResolver().own_values({"uuid": "GPU-0"}, ("uuid", "pod", "job")) == ("GPU-0", "", "")


@pytest.mark.parametrize(("resets", "highest"), [(1, 150.0), (0, 0.0)])
def test_samples_between_two_queries_do_not_make_an_impossible_window(resets: int, highest: float) -> None:
    """The last value is queried after the highest one; without a reset only the former is needed."""
    labels = {"uuid": "GPU-0", "job": "a", "instance": "a:9400"}
    windows = {"last": 150.0, "least": 160.0, "resets": resets, "highest": 140.0 if resets else 0.0}
    answers = {word: [(labels, value)] for word, value in windows.items()}
    ((window,),) = ([*one.values()] for one in LabelResolver().windows(answers, ("uuid",)).values())
    assert (window.last, window.least, window.highest) == (150.0, 150.0, highest)


def test_a_counter_is_kept_in_few_bytes_because_a_month_has_millions() -> None:
    count = 2000
    windows = {(f"GPU-{n}",): {HERE: SeriesWindow(n + 0.5, 0.25)} for n in range(count)}
    rises = Rises()
    tracemalloc.start()
    try:
        rises.add(windows, lambda _: True)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / count < 450

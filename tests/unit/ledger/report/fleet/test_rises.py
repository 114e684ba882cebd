"""Rises of scraped counters: joined over ranges, exact where they can be, and never off by more than told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.ledger.report.fleet.rises import Rise, Rises, Shared, rise
from gpuledger.ledger.report.fleet.scraped import Scrapes, Window

HERE, THERE = ("job", "a:9400", "", ""), ("job", "b:9400", "", "")
NAME = ("GPU-0", "process", "measured")
Samples = Sequence[tuple[float, float]]


@pytest.mark.parametrize(
    ("what", "window", "base", "expected"),
    [
        ("went on", Window(130, 110), 100, Rise(30)),
        ("stood still", Window(100, 100), 100, Rise(0)),
        ("nobody knows what it was before", Window(130, 110), None, Rise(20)),
        ("began anew while nobody looked", Window(30, 0), 100, Rise(30, falls=1)),
        ("fell once, from what it had", Window(30, 0, 1, 150, 999, 9, 999, 10), 100, Rise(80, falls=1)),
        ("fell once, before the range", Window(30, 0, 1, 30, 999, 9, 999, 10), 100, Rise(30, falls=1)),
        ("one sample, after a fall", Window(30, 30, 1, 30, 0, 1, 999, 2), 100, Rise(30, falls=1)),
    ],
)
def test_a_rise_is_exact(what: str, window: Window, base: float | None, expected: Rise) -> None:
    assert rise(window, base) == expected, what


def test_what_fell_and_rose_again_is_between_what_two_increases_allow() -> None:
    window = Window(200, 0, 1, 200, increase=244, samples=12, wider=250, wider_samples=13)
    found = rise(window, 100)
    assert found.amount - found.error == pytest.approx(244 / 1.2)
    assert found.amount + found.error == 250
    assert found.falls == 1


def rises(*ranges: dict[tuple[str, ...], Window]) -> Rise:
    adder = Rises()
    adder.begin({NAME: {HERE: Window(100, 100)}})
    for pieces in ranges:
        adder.add({NAME: pieces}, lambda _: False)
    return adder.total[NAME]


def test_ranges_join_without_a_gap() -> None:
    assert rises({HERE: Window(150, 101)}, {HERE: Window(230, 151)}) == Rise(130)


def test_a_range_in_which_nobody_looked_is_bridged() -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: Window(100, 100)}})
    adder.add({}, lambda _: False)
    adder.add({NAME: {HERE: Window(500, 480)}}, lambda _: False)
    assert adder.total[NAME] == Rise(400)


def test_a_counter_goes_on_under_another_address() -> None:
    moved = {HERE: Window(150, 101), THERE: Window(180, 155)}
    assert rises(moved, {THERE: Window(200, 181)}) == Rise(100)


def test_a_counter_that_begins_anew_under_another_address_keeps_what_it_had() -> None:
    moved = {HERE: Window(150, 101), THERE: Window(30, 0)}
    assert rises(moved, {THERE: Window(40, 31)}) == Rise(90, falls=1)


def test_an_address_that_comes_back_does_not_bring_back_what_was_counted() -> None:
    there = {HERE: Window(150, 101), THERE: Window(180, 155)}
    assert rises(there, {HERE: Window(210, 185)}) == Rise(110)


def test_a_counter_that_moves_away_and_back_within_a_range_is_counted_once() -> None:
    there = {HERE: Window(210, 101), THERE: Window(180, 155)}
    assert rises(there, {HERE: Window(230, 211)}) == Rise(130, again=25)


@pytest.mark.parametrize(
    ("what", "second", "shared", "expected"),
    [
        ("one scrape of it", Window(150, 150), Shared(), Rise(100, again=0)),
        ("its end", Window(200, 190), Shared(), Rise(100, again=10)),
        ("all of it", Window(200, 101), Shared(), Rise(100, again=99)),
        ("its end, and more", Window(230, 190), Shared(), Rise(130, again=10)),
        ("what follows", Window(230, 200), Shared(), Rise(130)),
        ("another beginning, below all", Window(230, 99), Shared(), Rise(330, falls=1)),
        ("more than can have been new", Window(200, 150), Shared(newborn=149), Rise(100, again=50)),
        (
            "what may be new",
            Window(200, 150),
            Shared(newborn=150),
            Rise(200, 100, falls=1, again=50, unclear=True),
        ),
        (
            "more than both can have told",
            Window(190, 120),
            Shared(60, 150),
            Rise(200, 90, 1, 70, unclear=True),
        ),
        ("as much as both can have told", Window(190, 120), Shared(80, 150), Rise(100, again=70)),
        ("what nobody told at the same time", Window(190, 120), None, Rise(290, falls=1)),
    ],
)
def test_what_two_targets_tell_of_a_counter_is_counted_once(
    what: str, second: Window, shared: Shared | None, expected: Rise
) -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: Window(100, 100)}})
    adder.add({NAME: {HERE: Window(200, 101), THERE: second}}, lambda _: False, lambda _: shared)
    assert adder.total[NAME] == expected, what


def test_three_targets_tell_a_counter_once() -> None:
    elsewhere = ("job", "c:9400", "", "")
    pieces = {HERE: Window(200, 101), THERE: Window(150, 120), elsewhere: Window(260, 180)}
    assert rises(pieces) == Rise(160, again=50)


@pytest.mark.parametrize(("born", "expected"), [(True, Rise(70)), (False, Rise(20))])
def test_a_counter_nobody_saw_before_has_all_it_has_if_it_was_born_then(born: bool, expected: Rise) -> None:
    adder = Rises()
    adder.add({NAME: {HERE: Window(70, 50)}}, lambda _: born)
    assert adder.total[NAME] == expected


def test_a_counter_that_had_ended_begins_at_nothing_when_it_comes_again() -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: Window(100, 100)}})
    adder.add({NAME: {HERE: Window(400, 20)}}, lambda _: True)
    assert adder.total[NAME] == Rise(400)
    falling = Window(400, 0, 1, 400, increase=484, samples=12, wider=484, wider_samples=12)
    found = rise(falling, 0, born=True)
    assert found.amount + found.error == 484


def test_a_counter_that_is_where_it_was_had_not_ended_whatever_is_said_of_it() -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: Window(100, 100)}})
    adder.add({NAME: {HERE: Window(130, 105)}}, lambda _: True)
    assert adder.total[NAME] == Rise(30)


def test_what_lies_beyond_is_told_and_not_added() -> None:
    adder = Rises()
    adder.begin({NAME: {HERE: Window(100, 100)}})
    assert adder.beyond({NAME: {HERE: Window(107, 100)}}, lambda _: False) == {NAME: Rise(7)}
    assert adder.total == {}


class Series:
    """A series as Prometheus 2.42 answers for it: promql/functions.go, extrapolatedRate."""

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

    def window(self, begins: float, ends: float, interval: float) -> Window | None:
        seen, early = self.within(begins, ends), begins - 1.5 * interval
        if not seen:
            return None
        values, wider = [value for _, value in seen], self.within(early, ends)
        falls = sum(two[1] < one[1] for one, two in pairwise(wider))
        plain = Window(values[-1], min(values))
        if not falls:
            return plain
        increases = (self.increase(begins, ends), len(seen), self.increase(early, ends), len(wider))
        return Window(plain.last, plain.least, falls, max(values), *increases)


STEP = st.one_of(st.integers(0, 50), st.just(-1))


@settings(deadline=None, max_examples=300)
@given(
    steps=st.lists(STEP, min_size=30, max_size=120),
    phase=st.floats(0, 0.999),
    jitter=st.lists(st.floats(-0.05, 0.05), min_size=120, max_size=120),
    length=st.integers(4, 40),
    missed=st.sets(st.integers(4, 120), max_size=60),
)
def test_the_truth_lies_within_the_stated_error(
    steps: list[int], phase: float, jitter: list[float], length: int, missed: set[int]
) -> None:
    """A step of -1 begins the counter anew; ranges end anywhere between two samples; some are missing."""
    values = list(accumulate(steps, lambda value, step: 0 if step < 0 else value + step, initial=1000))
    times = [number + phase + moved for number, moved in zip(range(len(values)), jitter, strict=False)]
    every = enumerate(zip(times, map(float, values), strict=False))
    series = Series([sample for number, sample in every if number not in missed])
    begins = 3.0
    base, ends = series.within(0, begins)[-1], begins
    adder = Rises()
    adder.begin({NAME: {HERE: Window(base[1], base[1])}})
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


@settings(deadline=None, max_examples=200)
@given(
    steps=st.lists(STEP, min_size=30, max_size=80),
    phases=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    until=st.integers(4, 80),
    since=st.integers(4, 80),
    length=st.integers(4, 40),
)
def test_of_two_targets_the_truth_lies_within_the_stated_error(
    steps: list[int], phases: tuple[float, float], until: int, since: int, length: int
) -> None:
    """One tells it `until`, the other `since`: at the same time for a while, or with a gap between."""
    values = list(accumulate(steps, lambda value, step: 0 if step < 0 else value + step, initial=1000))
    first, second = (
        Series([(number + phase, float(value)) for number, value in enumerate(values)]) for phase in phases
    )
    begins, last, fell = 3.0, float(len(values)), any(step < 0 for step in steps)
    first.samples, second.samples = first.within(0, until), second.within(max(since, begins + 1), last)
    base, ends = first.within(0, begins)[-1], begins
    shared = Shared(newborn=inf if fell else -1.0)
    adder = Rises()
    adder.begin({NAME: {HERE: Window(base[1], base[1])}})
    while ends < last:
        begins, ends = ends, ends + length
        told = {HERE: first.window(begins, ends, 1.0), THERE: second.window(begins, ends, 1.0)}
        pieces = {target: window for target, window in told.items() if window}
        adder.add({NAME: pieces} if pieces else {}, lambda _: False, lambda _: shared)
    seen = sorted({*first.within(base[0], last), *second.samples})
    truth = sum(two[1] - one[1] if two[1] >= one[1] else two[1] for one, two in pairwise(seen))
    found = adder.total.get(NAME, Rise())
    assert abs(found.amount - truth) <= found.error + 1e-6
    if not fell:
        assert (found.amount, found.error) == (truth, 0)


def test_a_label_that_is_not_there_is_an_empty_name() -> None:
    assert Scrapes().own({"uuid": "GPU-0"}, ("uuid", "pod", "job")) == ("GPU-0", "", "")


@pytest.mark.parametrize(("resets", "highest"), [(1, 150.0), (0, 0.0)])
def test_samples_that_arrive_between_two_queries_make_no_window_that_cannot_be(
    resets: int, highest: float
) -> None:
    """The last value is asked for after the highest one; where nothing fell, nobody needs that."""
    labels = {"uuid": "GPU-0", "job": "a", "instance": "a:9400"}
    told = {"last": 150.0, "least": 160.0, "resets": resets, "highest": 140.0 if resets else 0.0}
    answers = {word: [(labels, value)] for word, value in told.items()}
    ((window,),) = ([*one.values()] for one in Scrapes().windows(answers, ("uuid",)).values())
    assert (window.last, window.least, window.highest) == (150.0, 150.0, highest)

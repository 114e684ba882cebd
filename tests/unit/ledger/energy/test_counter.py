"""The hardware counter read by read: which readings are believed, and where an epoch begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, process
from energy_helpers import Bench
from gpuledger.ledger.energy.counter import Counter, Epoch, Tick, Verdict

J = 1000
HERE = Epoch("boot", "load-1")
LIMIT = 700.0
# Running, 1,000 J at second 10 and in the books, moves every second.
KNOWN = Counter(
    HERE,
    opening=0,
    booked=1000 * J,
    last=1000 * J,
    last_at=10.0,
    running=True,
    moved_at=10.0,
    started_at=10.0,
    refresh=1.0,
)


def tick(at: float, joules: float, *, good: bool = True, limit: float | None = LIMIT) -> Tick:
    return Tick(at, round(joules * J), good, limit)


@pytest.mark.parametrize(
    ("what", "counter", "seconds", "most"),
    [
        ("the highest power and half of it more, over the time and one refresh", KNOWN, 1.0, 2100),
        ("twice as long", KNOWN, 3.0, 4200),
        ("the slowest refresh while none is known", replace(KNOWN, refresh=None), 1.0, 11_550),
        ("one refresh where the clock went back", KNOWN, -5.0, 1050),
    ],
)
def test_what_no_power_can_have_used_is_set_aside(
    what: str, counter: Counter, seconds: float, most: float
) -> None:
    believed, verdict = counter.read(tick(10.0 + seconds, 1000 + most))
    assert (believed.aside, verdict.delta) == (None, most * J), what
    doubted, verdict = counter.read(Tick(10.0 + seconds, (1000 + round(most)) * J + 1, True, LIMIT))
    assert (doubted.aside, verdict) == (((1000 + round(most)) * J + 1, 10.0 + seconds), Verdict()), what
    assert (doubted.last, doubted.booked) == (1000 * J, 1000 * J), "nothing is believed yet"


def test_without_a_limit_everything_that_rises_is_believed() -> None:
    after, verdict = KNOWN.read(tick(11.0, 1e9, limit=None))
    assert after.aside is None
    assert verdict.closes


@pytest.mark.parametrize(
    ("what", "gaps", "expected"),
    [("the least gap that was seen", (3.0, 2.0, 5.0), 2.0), ("one gap", (4.0,), 4.0)],
)
def test_the_refresh_is_learnt_from_moves(what: str, gaps: tuple[float, ...], expected: float) -> None:
    counter = replace(KNOWN, refresh=None)
    at, joules = 10.0, 1000
    for gap in gaps:
        # Readings between two moves say nothing.
        counter, _ = counter.read(tick(at + gap / 2, joules))
        at, joules = at + gap, joules + 100
        counter, _ = counter.read(tick(at, joules))
    assert counter.refresh == expected, what


@pytest.mark.parametrize(("good", "booked"), [(True, 1100), (False, 1000)])
def test_a_move_is_booked_when_the_lists_are_good_and_kept_until_then(good: bool, booked: int) -> None:
    after, verdict = KNOWN.read(tick(11.0, 1100, good=good))
    assert verdict == (Verdict(closes=True, delta=100 * J) if good else Verdict())
    assert (after.last, after.booked, after.tail) == (1100 * J, booked * J, (1100 - booked) * J)
    assert (after.moved_at, after.started_at) == (11.0, 11.0 if good else 10.0)


@pytest.mark.parametrize(("seconds", "closes"), [(60.0, True), (60.5, False)])
def test_an_interval_is_kept_open_for_a_minute(seconds: float, closes: bool) -> None:
    _, verdict = KNOWN.read(tick(10.0 + seconds, 2000))
    assert verdict == (Verdict(closes=True, delta=1000 * J) if closes else Verdict(unobserved=1000 * J))


def test_where_no_interval_is_open_a_move_is_nobodys_and_opens_one() -> None:
    after, verdict = replace(KNOWN, started_at=None).read(tick(11.0, 1100))
    assert verdict == Verdict(unobserved=100 * J)
    assert after.started_at == 11.0


def test_the_first_reading_of_a_run_is_no_move() -> None:
    resumed, _ = KNOWN.resumed(HERE)
    first, verdict = resumed.read(tick(20.0, 1500))
    assert (verdict, first.moved_at, first.last) == (Verdict(), None, 1500 * J)
    moved, verdict = first.read(tick(21.0, 1800))
    assert verdict == Verdict(unobserved=800 * J)
    assert (moved.moved_at, moved.refresh) == (21.0, 1.0), "no gap was seen between two moves"


def test_of_a_new_gpu_only_what_is_used_after_the_first_move_is_booked() -> None:
    counter = Counter(HERE)
    for at, joules in ((0.0, 777_000), (1.0, 777_000), (2.0, 777_500)):
        counter, verdict = counter.read(tick(at, joules))
        assert not verdict.delta
        assert not verdict.unobserved
    assert (counter.opening, counter.booked) == (777_500 * J, 777_500 * J)
    _, verdict = counter.read(tick(3.0, 777_800))
    assert verdict == Verdict(closes=True, delta=300 * J)


def test_a_glitch_costs_nothing_and_is_counted() -> None:
    aside, _ = KNOWN.read(tick(11.0, 9_000_000))
    after, verdict = aside.read(tick(12.0, 1600))
    assert verdict == Verdict(closes=True, delta=600 * J, invalid=1)
    assert (after.aside, after.life) == (None, 0)


def test_of_two_readings_that_fit_nothing_the_later_one_is_under_suspicion() -> None:
    aside, _ = KNOWN.read(tick(11.0, 9_000_000))
    after, verdict = aside.read(tick(12.0, 5_000_000))
    assert verdict == Verdict(invalid=1)
    assert (after.aside, after.last) == ((5_000_000 * J, 12.0), 1000 * J)


def test_a_lower_counter_that_goes_on_was_loaded_anew_and_opens_at_zero() -> None:
    """What it shows when first seen has been used since its load: nobody looked."""
    counter = replace(KNOWN, last=1030 * J)
    aside, _ = counter.read(tick(11.0, 200))
    after, verdict = aside.read(tick(12.0, 500))
    assert verdict == Verdict(unobserved=500 * J, epoch_closed=True, tail=30 * J)
    assert (after.opening, after.life, after.last) == (0, 1, 500 * J)
    assert after.epoch == Epoch("boot"), "which load it is will be told"


@pytest.mark.parametrize(("good", "booked", "started"), [(True, 300, 12.0), (False, 0, None)])
def test_a_leap_that_goes_on_is_another_counter_from_its_first_reading_on(
    good: bool, booked: int, started: float | None
) -> None:
    aside, _ = replace(KNOWN, last=1030 * J).read(tick(11.0, 9_000_000))
    after, verdict = aside.read(tick(12.0, 9_000_300, good=good))
    assert verdict == Verdict(epoch_closed=True, invalid=1, unobserved=booked * J, tail=30 * J)
    assert (after.opening, after.booked) == (9_000_000 * J, (9_000_000 + booked) * J)
    assert (after.started_at, after.moved_at, after.life) == (started, 12.0, 1)
    assert after.running


@pytest.mark.parametrize(
    ("what", "then", "closed"),
    [
        ("the same", HERE, False),
        ("a load that nobody knows", Epoch("boot"), False),
        ("another load", Epoch("boot", "load-2"), True),
        ("another boot", Epoch("boot-2"), True),
    ],
)
def test_a_run_goes_on_in_the_epoch_unless_it_is_certainly_another(
    what: str, then: Epoch, closed: bool
) -> None:
    after, verdict = replace(KNOWN, last=1030 * J).resumed(then)
    assert (after.running, after.moved_at, after.started_at, after.aside) == (False, None, None, None)
    if closed:
        assert verdict == Verdict(epoch_closed=True, tail=30 * J), what
        assert (after.epoch, after.opening, after.booked, after.last, after.life) == (then, 0, 0, None, 1)
    else:
        assert verdict == Verdict(), what
        assert (after.epoch, after.booked, after.last, after.life) == (HERE, 1000 * J, 1030 * J, 0)


def test_a_load_that_becomes_known_is_the_epochs() -> None:
    after, _ = replace(KNOWN, epoch=Epoch("boot")).resumed(HERE)
    assert after.epoch == HERE


# Stands still


def test_a_gpu_of_no_power_has_a_counter_that_rightly_stands_still() -> None:
    """A board that is switched off in its sleep: what it uses when it wakes is the counter's to tell."""
    bench = Bench(gpu(0), limit=LIMIT)
    bench.tick(0, 1000 * J, [], fresh=True, power=0.0)
    for second in range(1, 91):
        bench.tick(float(second), 1000 * J, [], power=0.0)
    bench.tick(91, 1050 * J, [], power=50.0)
    assert not bench.book.frozen
    assert sum(one.millijoules for one in bench.posted) == 50 * J


def test_what_was_learnt_of_a_frozen_counters_refresh_holds_when_it_moves_again() -> None:
    bench = Bench(gpu(0), limit=LIMIT)
    mine = process(gpu(0), 1)
    for second in range(5):
        bench.tick(float(second), second * 50 * J, [mine], power=50.0)
    for second in range(5, 70):
        bench.tick(float(second), 200 * J, [mine], power=50.0)
    assert bench.book.frozen
    bench.tick(70, 300 * J, [mine], power=50.0)
    counter = bench.book.counter
    assert (bench.book.frozen, counter.refresh, counter.moved_at) == (False, 1.0, 70)

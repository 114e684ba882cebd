"""The hardware counter, reading by reading: accepted readings and the beginnings of epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, process
from energy_helpers import Bench
from gpuledger.ledger.energy.counter import CounterReading, EnergyCounter, Epoch, ReadingVerdict

J = 1000
HERE = Epoch("boot", "load-1")
LIMIT = 700.0
# Running, 1,000 J at second 10 and booked, moves every second.
KNOWN = EnergyCounter(
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


def tick(at: float, joules: float, *, good: bool = True, limit: float | None = LIMIT) -> CounterReading:
    return CounterReading(at, round(joules * J), good, limit)


@pytest.mark.parametrize(
    ("what", "counter", "seconds", "most"),
    [
        ("1.5 times the power limit over the time and one refresh", KNOWN, 1.0, 2100),
        ("twice as long", KNOWN, 3.0, 4200),
        ("the slowest refresh while it is unknown", replace(KNOWN, refresh=None), 1.0, 11_550),
        ("one refresh if the clock went back", KNOWN, -5.0, 1050),
    ],
)
def test_an_impossible_increase_is_suspect(
    what: str, counter: EnergyCounter, seconds: float, most: float
) -> None:
    accepted, verdict = counter.take_reading(tick(10.0 + seconds, 1000 + most))
    assert (accepted.suspect, verdict.delta) == (None, most * J), what
    rejected, verdict = counter.take_reading(
        CounterReading(10.0 + seconds, (1000 + round(most)) * J + 1, True, LIMIT)
    )
    assert (rejected.suspect, verdict) == (
        ((1000 + round(most)) * J + 1, 10.0 + seconds),
        ReadingVerdict(),
    ), what
    assert (rejected.last, rejected.booked) == (1000 * J, 1000 * J), "nothing is accepted yet"


def test_without_a_power_limit_any_increase_is_accepted() -> None:
    after, verdict = KNOWN.take_reading(tick(11.0, 1e9, limit=None))
    assert after.suspect is None
    assert verdict.closes


@pytest.mark.parametrize(
    ("what", "gaps", "expected"),
    [("the smallest observed gap", (3.0, 2.0, 5.0), 2.0), ("one gap", (4.0,), 4.0)],
)
def test_the_refresh_period_is_learned_from_moves(
    what: str, gaps: tuple[float, ...], expected: float
) -> None:
    counter = replace(KNOWN, refresh=None)
    at, joules = 10.0, 1000
    for gap in gaps:
        # Readings between two moves say nothing.
        counter, _ = counter.take_reading(tick(at + gap / 2, joules))
        at, joules = at + gap, joules + 100
        counter, _ = counter.take_reading(tick(at, joules))
    assert counter.refresh == expected, what


@pytest.mark.parametrize(("good", "booked"), [(True, 1100), (False, 1000)])
def test_a_move_is_booked_only_with_good_lists(good: bool, booked: int) -> None:
    after, verdict = KNOWN.take_reading(tick(11.0, 1100, good=good))
    assert verdict == (ReadingVerdict(closes=True, delta=100 * J) if good else ReadingVerdict())
    assert (after.last, after.booked, after.tail) == (1100 * J, booked * J, (1100 - booked) * J)
    assert (after.moved_at, after.started_at) == (11.0, 11.0 if good else 10.0)


@pytest.mark.parametrize(("seconds", "closes"), [(60.0, True), (60.5, False)])
def test_an_interval_remains_open_for_a_minute(seconds: float, closes: bool) -> None:
    _, verdict = KNOWN.take_reading(tick(10.0 + seconds, 2000))
    assert verdict == (
        ReadingVerdict(closes=True, delta=1000 * J) if closes else ReadingVerdict(unobserved=1000 * J)
    )


def test_a_move_without_open_interval_is_unobserved_and_opens_one() -> None:
    after, verdict = replace(KNOWN, started_at=None).take_reading(tick(11.0, 1100))
    assert verdict == ReadingVerdict(unobserved=100 * J)
    assert after.started_at == 11.0


def test_the_first_reading_of_a_run_is_not_a_move() -> None:
    resumed, _ = KNOWN.resumed(HERE)
    first, verdict = resumed.take_reading(tick(20.0, 1500))
    assert (verdict, first.moved_at, first.last) == (ReadingVerdict(), None, 1500 * J)
    moved, verdict = first.take_reading(tick(21.0, 1800))
    assert verdict == ReadingVerdict(unobserved=800 * J)
    assert (moved.moved_at, moved.refresh) == (21.0, 1.0), "no gap between two moves was observed"


def test_only_energy_after_a_new_gpus_first_move_is_booked() -> None:
    counter = EnergyCounter(HERE)
    for at, joules in ((0.0, 777_000), (1.0, 777_000), (2.0, 777_500)):
        counter, verdict = counter.take_reading(tick(at, joules))
        assert not verdict.delta
        assert not verdict.unobserved
    assert (counter.opening, counter.booked) == (777_500 * J, 777_500 * J)
    _, verdict = counter.take_reading(tick(3.0, 777_800))
    assert verdict == ReadingVerdict(closes=True, delta=300 * J)


def test_a_glitch_loses_no_energy_and_is_counted() -> None:
    aside, _ = KNOWN.take_reading(tick(11.0, 9_000_000))
    after, verdict = aside.take_reading(tick(12.0, 1600))
    assert verdict == ReadingVerdict(closes=True, delta=600 * J, invalid=1)
    assert (after.suspect, after.epoch_number) == (None, 0)


def test_of_two_implausible_readings_the_later_one_is_suspect() -> None:
    aside, _ = KNOWN.take_reading(tick(11.0, 9_000_000))
    after, verdict = aside.take_reading(tick(12.0, 5_000_000))
    assert verdict == ReadingVerdict(invalid=1)
    assert (after.suspect, after.last) == ((5_000_000 * J, 12.0), 1000 * J)


def test_a_lower_counter_that_continues_opens_an_epoch_at_zero() -> None:
    """Its first value was used since the driver load, unobserved."""
    counter = replace(KNOWN, last=1030 * J)
    aside, _ = counter.take_reading(tick(11.0, 200))
    after, verdict = aside.take_reading(tick(12.0, 500))
    assert verdict == ReadingVerdict(unobserved=500 * J, epoch_closed=True, tail=30 * J)
    assert (after.opening, after.epoch_number, after.last) == (0, 1, 500 * J)
    assert after.epoch == Epoch("boot"), "the new driver load is not known yet"


@pytest.mark.parametrize(("good", "booked", "started"), [(True, 300, 12.0), (False, 0, None)])
def test_a_jump_that_continues_is_another_counter_from_its_first_reading(
    good: bool, booked: int, started: float | None
) -> None:
    aside, _ = replace(KNOWN, last=1030 * J).take_reading(tick(11.0, 9_000_000))
    after, verdict = aside.take_reading(tick(12.0, 9_000_300, good=good))
    assert verdict == ReadingVerdict(epoch_closed=True, invalid=1, unobserved=booked * J, tail=30 * J)
    assert (after.opening, after.booked) == (9_000_000 * J, (9_000_000 + booked) * J)
    assert (after.started_at, after.moved_at, after.epoch_number) == (started, 12.0, 1)
    assert after.running


@pytest.mark.parametrize(
    ("what", "then", "closed"),
    [
        ("the same", HERE, False),
        ("an unknown driver load", Epoch("boot"), False),
        ("another load", Epoch("boot", "load-2"), True),
        ("another boot", Epoch("boot-2"), True),
    ],
)
def test_a_run_continues_the_epoch_unless_it_certainly_differs(what: str, then: Epoch, closed: bool) -> None:
    after, verdict = replace(KNOWN, last=1030 * J).resumed(then)
    assert (after.running, after.moved_at, after.started_at, after.suspect) == (False, None, None, None)
    if closed:
        assert verdict == ReadingVerdict(epoch_closed=True, tail=30 * J), what
        assert (after.epoch, after.opening, after.booked, after.last, after.epoch_number) == (
            then,
            0,
            0,
            None,
            1,
        )
    else:
        assert verdict == ReadingVerdict(), what
        assert (after.epoch, after.booked, after.last, after.epoch_number) == (HERE, 1000 * J, 1030 * J, 0)


def test_a_driver_load_that_becomes_known_belongs_to_the_epoch() -> None:
    after, _ = replace(KNOWN, epoch=Epoch("boot")).resumed(HERE)
    assert after.epoch == HERE


# Frozen counters


def test_the_counter_of_a_gpu_without_power_draw_is_not_frozen() -> None:
    """A board that is powered off while asleep: the counter covers the energy of its wake-up."""
    bench = Bench(gpu(0), limit=LIMIT)
    bench.tick(0, 1000 * J, [], fresh=True, power=0.0)
    for second in range(1, 91):
        bench.tick(float(second), 1000 * J, [], power=0.0)
    bench.tick(91, 1050 * J, [], power=50.0)
    assert not bench.book.frozen
    assert sum(one.millijoules for one in bench.posted) == 50 * J


def test_a_frozen_counter_keeps_its_refresh_period_when_it_moves_again() -> None:
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

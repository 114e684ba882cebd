"""A counter that can no longer be read: after a minute, power replaces it, and no second counts twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from builders import gpu, process
from energy_helpers import UNIX, Bench, flat
from gpuledger.ledger.energy.counter import Epoch
from gpuledger.ledger.energy.floor import FloorEstimator
from gpuledger.ledger.energy.gpu_energy_ledger import GpuEnergyLedger
from gpuledger.model.process import GpuProcess

CARD = gpu(0, name="NVIDIA H100")
J = 1000
WATTS = 300
RESIDENT = process(CARD, 1)


def run(
    bench: Bench,
    seconds: range,
    counter: Callable[[int], int | None],
    lists: Sequence[GpuProcess] | None = (RESIDENT,),
    power: float | None = WATTS,
) -> None:
    for second in seconds:
        joules = counter(second)
        bench.tick(float(second), None if joules is None else joules * J, lists, power=power)


def true_counter(second: int) -> int:
    return 5000 + WATTS * second


def no_counter(_: int) -> None:
    return None


def running(power: float | None = WATTS) -> Bench:
    """Ten seconds with a counter."""
    bench = Bench(CARD, limit=700)
    bench.tick(0, true_counter(0) * J, [RESIDENT], fresh=True, power=power)
    run(bench, range(1, 11), true_counter, power=power)
    return bench


def joules(bench: Bench) -> float:
    return sum(one.millijoules for one in bench.posted) / J


def test_a_source_without_a_counter_goes_on_with_power_after_one_that_had_it() -> None:
    """The books of NVML, continued with nvidia-smi."""
    bench = Bench(CARD, stored=true_counter(0) * J, limit=700)
    run(bench, range(1, 201), no_counter)
    assert joules(bench) == WATTS * 199
    split = [flat(one) for one in bench.posted if one.residents]
    assert split == [{1: WATTS * J}] * 139, "from the first minute on, in which the counter was awaited"
    assert all(one.integrated for one in bench.posted if one.millijoules)
    assert bench.book.is_metered(200)


@pytest.mark.parametrize(
    ("what", "fails", "integrated"),
    [
        ("a short failure is covered by the counter", 59, 0),
        ("a failure of a minute", 62, 62),
        ("a long failure", 500, 500),
    ],
)
def test_no_second_counts_twice_when_the_counter_is_back(what: str, fails: int, integrated: int) -> None:
    bench = running()
    back = 11 + fails
    run(bench, range(11, back), no_counter)
    run(bench, range(back, back + 20), true_counter)
    by_power = sum(one.millijoules for one in bench.posted if one.integrated) / J
    # The second in which it is back belongs to power, the one of its first move to nobody.
    missing = WATTS if integrated else 0
    assert by_power == (WATTS * (integrated + 1) if integrated else 0), what
    assert joules(bench) == WATTS * (back + 19) - missing, what
    assert bench.book.counter.epoch_number == (1 if integrated else 0)


def test_a_frozen_counter_that_fails_is_still_replaced_by_power() -> None:
    bench = running()
    run(bench, range(11, 91), lambda _: true_counter(10))
    before = bench.book.frozen
    run(bench, range(91, 201), no_counter)
    run(bench, range(201, 221), lambda second: second * WATTS)
    assert (before, bench.book.frozen) == (True, False)
    assert joules(bench) == WATTS * (220 - 1)


def test_the_replaced_counter_opens_at_its_first_move_after_a_restart_too() -> None:
    bench = running()
    run(bench, range(11, 101), no_counter)
    before = joules(bench)
    again = Bench(CARD, limit=700)
    stored, _ = bench.book.counter.resumed(bench.book.counter.epoch)
    again.book = GpuEnergyLedger(CARD, stored, FloorEstimator())
    run(again, range(200, 211), true_counter)
    assert before == WATTS * 100
    assert joules(again) == WATTS * 9


@pytest.mark.parametrize(
    ("what", "lists", "power"),
    [("without process lists", None, WATTS), ("without power", (RESIDENT,), None)],
)
def test_what_says_nothing_of_the_source_replaces_no_counter(
    what: str, lists: Sequence[GpuProcess] | None, power: float | None
) -> None:
    bench = running()
    run(bench, range(11, 201), no_counter, lists, power)
    run(bench, range(201, 211), true_counter)
    assert joules(bench) == WATTS * 210, what
    assert not [one for one in bench.posted if one.integrated], what


def test_a_process_list_that_fails_now_and_then_delays_nothing() -> None:
    bench = running()
    for second in range(11, 201):
        run(bench, range(second, second + 1), no_counter, None if second % 30 == 0 else (RESIDENT,))
    assert joules(bench) == WATTS * 200
    assert not bench.book.has_counter


def test_a_pause_begins_the_minute_again() -> None:
    bench = running()
    run(bench, range(11, 61), no_counter)
    bench.book.interrupt()
    run(bench, range(100, 150), no_counter)
    assert joules(bench) == WATTS * 10
    assert bench.book.has_counter


def test_the_energy_before_the_failure_is_booked_to_the_old_epoch() -> None:
    bench = running()
    run(bench, range(11, 16), true_counter, lists=None)
    run(bench, range(16, 101), no_counter)
    tail = next(one for one in bench.posted if one.unobserved and not one.integrated)
    assert (tail.unobserved, tail.epoch_number) == (WATTS * 5 * J, 0)
    assert (bench.book.counter.opening, bench.book.counter.epoch_number) == (None, 1)
    assert joules(bench) == WATTS * 100


@pytest.mark.parametrize("wrong", [None, 65_535.0], ids=["absent", "beyond the limit"])
def test_power_that_was_not_read_while_the_counter_worked_counts_only_after_it(wrong: float | None) -> None:
    bench = running()
    run(bench, range(11, 41), true_counter, power=wrong)
    run(bench, range(41, 45), no_counter, power=wrong)
    run(bench, range(45, 201), no_counter)
    assert joules(bench) == WATTS * 40 + WATTS * (200 - 45)


def test_a_counter_that_moves_again_is_not_frozen_at_the_next_tick_of_a_minute() -> None:
    bench = running()
    run(bench, range(40, 101, 30), lambda _: true_counter(10))
    assert bench.book.frozen
    run(bench, range(160, 401, 60), true_counter)
    assert not bench.book.frozen
    # The counter goes on from its first move, at 160 s.
    assert joules(bench) == WATTS * 400
    assert sum(one.millijoules for one in bench.posted if one.integrated) / J == WATTS * 150


def test_a_single_reading_after_a_pause_is_not_counted_by_power_too() -> None:
    bench = running()
    bench.book.interrupt()
    run(bench, range(20, 50), no_counter)
    run(bench, range(50, 51), true_counter, lists=None)
    run(bench, range(51, 201), no_counter)
    assert joules(bench) == WATTS * 200


@pytest.mark.parametrize("seed", range(100))
def test_no_second_is_counted_twice_whatever_fails(seed: int) -> None:
    chosen = Random(seed)
    bench = Bench(CARD, limit=700)
    step, at, counter = chosen.choice((1, 5, 30)), 0, true_counter(0)
    until = dict.fromkeys(("unmoved", "no counter", "no power", "no list", "wrong power"), 0)
    has_counter = chosen.random() < 0.8
    while at < 300 * step:
        for what, end in until.items():
            if chosen.random() < 0.02 and at > end + 61:
                until[what] = at + chosen.choice(
                    (1, 30, 50) if what == "wrong power" else (1, 30, 61, 90, 200)
                )
        if chosen.random() < 0.01:
            bench.book.interrupt()
        fails = {what for what, end in until.items() if at < end}
        counter = counter if "unmoved" in fails else true_counter(at)
        power = None if "no power" in fails else 65_535.0 if "wrong power" in fails else float(WATTS)
        value = counter * J if has_counter and "no counter" not in fails else None
        bench.tick(float(at), value, None if "no list" in fails else [RESIDENT], power=power, utilization=0.5)
        assert joules(bench) <= WATTS * at, (at, fails)
        at += step * chosen.choice((1, 1, 1, 2))


def test_a_frozen_counter_that_moved_during_a_pause_is_not_counted_beside_power() -> None:
    bench = running()
    run(bench, range(11, 91), lambda _: true_counter(10))
    assert bench.book.frozen
    bench.book.interrupt()
    run(bench, range(91, 92), lambda _: true_counter(11), power=None)
    bench.posted += bench.book.begin_epoch(Epoch("another boot"), UNIX + 92)
    assert joules(bench) == WATTS * 90

"""Counters that start again: nothing that was known of the old epoch counts in the new one."""

from __future__ import annotations

import json

import pytest

from builders import gpu, process
from energy_helpers import Bench
from gpuledger.ledger.energy.counter import Epoch
from unit.ledger.energy.test_truth import Epochs, Totals
from unit.sources.simulator.support import Node

J = 1000
CARD = gpu(0)


def scenario(resets: list[int], refresh: float = 1, **gpu: object) -> str:
    card = {"empty_watts": 60, "resident_watts": 90, "load_watts": 500, "limit_watts": 700, "processes": []}
    faults = [{"kind": "counter_reset", "gpu": 0, "at": at} for at in resets]
    return json.dumps({"gpus": [{**card, "counter_refresh": refresh, **gpu}], "faults": faults})


@pytest.mark.parametrize(
    ("what", "text", "ticks", "restarts"),
    [
        ("a reset alone", scenario([71]), [0, 0.25, 0.5, 0.75, 1, 71, 71.25], []),
        ("a restart, then a reset", scenario([71]), [0, 0.25, 0.5, 0.75, 1, 71, 71.25], [1]),
        ("two resets", scenario([71, 150]), [0, 1, 2, 71, 71.25, 72, 149, 150, 150.25, 151], []),
        ("a reset within a long gap", scenario([100]), [0, 1, 2, 160, 160.25, 161, 162], []),
        ("a restart before the reset is confirmed", scenario([71]), [0, 1, 2, 71, 71.25, 72, 73], [71.25]),
        ("a slow counter", scenario([71], refresh=5), [0, 5, 10, 71, 71.25, 75, 76, 80, 81], []),
        ("a reset at every tick", scenario([2, 4, 6]), [0, 1, 2, 3, 4, 5, 6, 7, 8], []),
        ("long ticks only", scenario([70]), [0, 59, 118, 177, 177.25], []),
    ],
)
def test_a_new_counter_is_not_frozen(what: str, text: str, ticks: list[float], restarts: list[float]) -> None:
    node, totals, epochs = Node(text), Totals(), Epochs()
    for at in ticks:
        if at in restarts:
            totals.restart()
        totals.post(node.at(at))
        epochs.watch(totals.book.gpu_ledgers)
    (uuid,) = totals.book.gpu_ledgers
    assert not totals.book.gpu_ledgers[uuid].frozen, what
    assert [one for one in totals.postings if one.integrated] == [], what
    assert totals.total(uuid) == epochs.total(uuid), what


def test_a_reset_of_a_frozen_counter_ends_the_freeze() -> None:
    bench = Bench(CARD, limit=700)
    bench.tick(0, 9000 * J, [], fresh=True, power=50.0)
    for second in range(1, 71):
        bench.tick(float(second), 9000 * J, [], power=50.0)
    assert bench.book.frozen
    for second, joules in ((71, 100), (72, 150), (73, 200), (74, 250)):
        bench.tick(float(second), joules * J, [], power=50.0)
    assert not bench.book.frozen
    # Power until the new counter was confirmed, then the counter: every second once.
    assert sum(one.millijoules for one in bench.posted if one.integrated) == 72 * 50 * J
    assert sum(one.millijoules for one in bench.posted) == 74 * 50 * J


def test_a_driver_reload_ends_the_freeze_and_forgets_the_integral() -> None:
    bench = Bench(CARD, limit=700, epoch=Epoch("boot", "load-1"))
    bench.tick(0, 9000 * J, [], fresh=True, power=50.0)
    for second in range(1, 71):
        bench.tick(float(second), 9000 * J, [], power=50.0)
    before = sum(one.millijoules for one in bench.posted)
    bench.posted += bench.book.begin_epoch(Epoch("boot", "load-2"), 75.0)
    for second, joules in ((75, 100), (76, 150), (77, 200)):
        bench.tick(float(second), joules * J, [], power=50.0)
    assert not bench.book.frozen
    assert bench.book.counter.epoch_number == 1
    assert sum(one.millijoules for one in bench.posted) - before == 200 * J


def test_a_driver_reload_books_the_power_since_the_last_good_lists() -> None:
    bench = Bench(CARD, limit=700, epoch=Epoch("boot", "load-1"))
    bench.tick(0, 9000 * J, [], fresh=True, power=50.0)
    for second in range(1, 71):
        bench.tick(float(second), 9000 * J, [], power=50.0)
    assert bench.book.frozen
    for second in range(71, 91):
        bench.tick(float(second), 9000 * J, None, power=50.0)
    bench.posted += bench.book.begin_epoch(Epoch("boot", "load-2"), 90.0)
    assert sum(one.millijoules for one in bench.posted) == 90 * 50 * J
    assert bench.posted[-1].integrated
    assert (bench.posted[-1].epoch_number, bench.book.counter.epoch_number) == (0, 1)


@pytest.mark.parametrize("reload", [False, True])
def test_without_a_counter_no_power_is_lost_at_an_interruption_or_a_driver_reload(reload: bool) -> None:
    bench = Bench(CARD, epoch=Epoch("boot", "load-1"))
    for second in range(11):
        bench.tick(float(second), None, [], power=50.0)
    for second in range(11, 31):
        bench.tick(float(second), None, None, power=50.0)
    if reload:
        bench.posted += bench.book.begin_epoch(Epoch("boot", "load-2"), 30.0)
    else:
        bench.book.interrupt()
    bench.tick(30.0, None, [], power=50.0)
    assert sum(one.millijoules for one in bench.posted) == 30 * 50 * J


def test_the_refresh_period_of_the_old_driver_does_not_count_for_the_new_one() -> None:
    bench = Bench(CARD, limit=700, epoch=Epoch("boot", "load-1"))
    bench.tick(0, 0, [], fresh=True)
    for second in range(1, 11):
        bench.tick(float(second), second * 300 * J, [])
    assert bench.book.counter.refresh == 1.0
    bench.posted += bench.book.begin_epoch(Epoch("boot", "load-2"), 20.0)
    # The new driver moves the counter every five seconds.
    for second in range(20, 41):
        bench.tick(float(second), (second - 20) // 5 * 3000 * J, [])
    assert bench.book.invalid == 0
    assert bench.book.counter.epoch_number == 1


def test_a_pause_forgets_power_that_the_counter_covers() -> None:
    bench = Bench(CARD, limit=700)
    bench.tick(0, 0, [], fresh=True, power=300.0)
    for second in range(1, 11):
        bench.tick(float(second), second * 300 * J, None, power=300.0)
    bench.book.interrupt()
    for second in range(100, 181):
        bench.tick(float(second), 3000 * J, [], power=50.0)
    assert bench.book.frozen
    assert sum(one.millijoules for one in bench.posted) == (3000 + 80 * 50) * J


@pytest.mark.parametrize("limit", [None, 80.0])
@pytest.mark.parametrize(
    ("what", "stands", "booked", "invalid"),
    [
        ("it stands still a little lower", (499_999.9, 499_999.9), 0, 1),
        ("it goes on from a little lower", (499_900.0, 499_950.0), 50, 1),
        ("it goes on from half", (250_000.0, 250_050.0), 50, 1),
        ("the driver was loaded again", (20.0, 70.0), 70, 0),
    ],
)
def test_a_counter_that_steps_back_did_not_begin_again_at_zero(
    what: str, stands: tuple[float, float], booked: float, invalid: int, limit: float | None
) -> None:
    """Laptops report no power limit: the whole value of the counter was booked as unobserved."""
    bench, one = Bench(CARD, limit=limit), process(CARD, 1)
    bench.tick(0, 500_000 * J, [one], fresh=True)
    for second, joules in enumerate(stands, 1):
        bench.tick(float(second), round(joules * J), [one])
    assert (sum(posted.millijoules for posted in bench.posted), bench.book.invalid) == (
        booked * J,
        invalid,
    ), what

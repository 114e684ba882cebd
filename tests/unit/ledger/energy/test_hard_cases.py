"""Cases in which a review found wrong results of the energy ledger."""

from __future__ import annotations

import pytest

from builders import gpu, instance, process
from energy_helpers import UNIX, Bench, flat, samples
from gpuledger.ledger.energy.counter import Epoch
from gpuledger.ledger.energy.shares import round_shares
from gpuledger.model.process import AccountingRecord
from gpuledger.model.quantities import POWER
from gpuledger.model.snapshot import Reading

A = gpu(0, sm_count=132)
J = 1000


def totals(bench: Bench) -> dict[int, int]:
    """Millijoules by epoch of the counter, without integrated power."""
    found: dict[int, int] = {}
    for one in bench.posted:
        if not one.integrated:
            found[one.epoch_number] = found.get(one.epoch_number, 0) + one.millijoules
    return found


# Epochs


def test_an_epoch_that_ends_with_an_open_interval_keeps_its_accepted_energy() -> None:
    bench = Bench(A, limit=700)
    p = process(A, 1)
    bench.tick(0, 0, [p], fresh=True)
    bench.tick(10, 3000 * J, [p])
    bench.tick(11, 3300 * J, None)
    bench.tick(12, 3600 * J, None)
    bench.tick(13, 100 * J, [p])
    bench.tick(14, 400 * J, [p])
    assert totals(bench) == {0: 3600 * J, 1: 400 * J}
    (tail,) = [one for one in bench.posted if one.unobserved == 600 * J]
    assert tail.epoch_number == 0


def test_a_driver_reload_during_an_interval_books_its_tail_to_the_old_epoch() -> None:
    bench = Bench(A, limit=700, epoch=Epoch("boot", "load-1"))
    p = process(A, 1)
    bench.tick(0, 0, [p], fresh=True)
    bench.tick(1, 300 * J, None)
    bench.posted += bench.book.begin_epoch(Epoch("boot", "load-2"), 1_700_000_002.0)
    bench.tick(3, 100 * J, [p])
    bench.tick(4, 200 * J, [p])
    assert totals(bench) == {0: 300 * J, 1: 200 * J}


def test_a_jump_opens_its_epoch_at_its_first_reading() -> None:
    bench = Bench(A, limit=700)
    bench.tick(0, 0, [], fresh=True)
    bench.tick(1, 100 * J, [])
    bench.tick(2, 10_000_000 * J, [])
    posted = bench.tick(3, 10_000_300 * J, [])
    assert (posted.unobserved, posted.epoch_number) == (300 * J, 1)
    assert bench.book.counter.opening == 10_000_000 * J


def test_a_driver_load_that_becomes_known_distinguishes_the_next_one() -> None:
    bench = Bench(A, limit=700, epoch=Epoch("boot"))
    bench.tick(0, 0, [], fresh=True)
    for load, life in (("load-1", 0), ("", 0), ("load-1", 0), ("load-2", 1)):
        bench.book.begin_epoch(Epoch("boot", load), 0.0)
        assert bench.book.counter.epoch_number == life


def test_a_driver_load_ended_by_a_lower_reading_is_not_taken_for_the_new_one() -> None:
    """The source reports the old driver load until it reopens the driver; this must not end the new epoch."""
    bench = Bench(A, limit=700, epoch=Epoch("boot", "load-1"))
    bench.tick(0, 9000 * J, [], fresh=True)
    bench.tick(1, 100 * J, [])
    bench.tick(2, 200 * J, [])
    for load in ("load-1", "load-1", "load-2", "load-2"):
        bench.posted += bench.book.begin_epoch(Epoch("boot", load), 0.0)
    bench.tick(3, 300 * J, [])
    assert (bench.book.counter.epoch_number, bench.book.counter.epoch.driver_load) == (1, "load-2")
    assert totals(bench) == {1: 300 * J}


def test_a_gpu_without_a_counter_is_apportioned_after_a_reboot() -> None:
    """Without a known driver load, the new boot's epoch must not end at every tick."""
    bench = Bench(A, epoch=Epoch("boot-1"))
    p = process(A, 1)
    for second in range(4):
        bench.posted += bench.book.begin_epoch(Epoch("boot-2"), 0.0)
        bench.tick(float(second), None, [p], power=300.0)
    assert [flat(one) for one in bench.posted if one.residents] == [{1: 300 * J}] * 3
    assert bench.book.counter.epoch == Epoch("boot-2")


def test_a_counter_first_read_after_a_reboot_opens_at_its_first_move() -> None:
    bench = Bench(A, limit=700, epoch=Epoch("boot-1"))
    for second in range(4):
        bench.posted += bench.book.begin_epoch(Epoch("boot-2"), 0.0)
        bench.tick(float(second), (9000 + 300 * second) * J, [])
    assert bench.book.counter.opening == 9300 * J
    assert totals(bench) == {0: 600 * J}


# A frozen counter


def test_a_counter_that_never_moved_since_the_start_is_frozen_after_a_minute() -> None:
    bench = Bench(A, limit=700)
    for second in range(121):
        bench.tick(float(second), 5000 * J, [], power=300.0)
    booked = sum(one.millijoules for one in bench.posted if one.integrated)
    assert booked == 300 * J * 120


def test_counter_energy_before_a_freeze_is_not_integrated_again() -> None:
    bench = Bench(A, limit=700)
    p = process(A, 1)
    bench.tick(0, 0, [p], fresh=True, power=300.0)
    for second in range(1, 11):
        bench.tick(float(second), second * 300 * J, None, power=300.0)
    for second in range(11, 91):
        bench.tick(float(second), 3000 * J, [p], power=300.0)
    assert sum(one.millijoules for one in bench.posted) == 300 * J * 90
    assert totals(bench) == {0: 3000 * J}


def test_a_counter_that_fails_after_a_restart_is_not_replaced_by_power() -> None:
    bench = Bench(A, stored=1000 * J, stored_at=0.0, limit=700)
    for second in (1, 2, 3):
        assert bench.tick(float(second), None, [], power=300.0) is None
    bench.tick(4, 2200 * J, [], power=300.0)
    bench.tick(5, 2500 * J, [], power=300.0)
    assert sum(one.millijoules for one in bench.posted) == 1500 * J


@pytest.mark.parametrize("listed", [True, False])
def test_power_replaces_a_counter_only_until_its_first_reading(listed: bool) -> None:
    bench = Bench(A)
    p = process(A, 1)
    for second in range(4):
        bench.tick(float(second), None, [p], power=50.0)
    bench.tick(4, 1450 * J, [p] if listed else None, power=50.0)
    bench.tick(5, 1500 * J, [p], power=50.0)
    bench.tick(6, 1550 * J, [p], power=50.0)
    assert sum(one.millijoules for one in bench.posted if one.integrated) == 4 * 50 * J
    assert totals(bench) == {0: 50 * J}


@pytest.mark.parametrize("listed", [True, False])
def test_integrated_power_is_booked_when_a_frozen_counter_moves_again(listed: bool) -> None:
    bench = Bench(A)
    p = process(A, 1)
    bench.tick(0, 1, [p], fresh=True, power=50.0)
    for second in range(1, 71):
        bench.tick(float(second), 1, [p], power=50.0)
    bench.tick(71, 800 * J, [p] if listed else None, power=50.0)
    bench.tick(72, 850 * J, [p], power=50.0)
    bench.tick(73, 900 * J, [p], power=50.0)
    assert sum(one.millijoules for one in bench.posted if one.integrated) == 71 * 50 * J
    assert totals(bench) == {1: 100 * J}


def test_a_jump_at_the_start_of_a_run_opens_an_epoch_that_continues_at_once() -> None:
    bench = Bench(A, limit=700, stored=1000 * J, stored_at=-1.0)
    for at, value in enumerate((9_000_000, 9_000_300, 9_000_400)):
        bench.tick(float(at), value * J, [process(A, 1)])
    assert totals(bench) == {1: 400 * J}


def test_evidence_of_an_interval_that_cannot_close_is_discarded() -> None:
    bench = Bench(A)
    p = process(A, 1)
    bench.tick(0, 0, [p], fresh=True)
    for second in range(1, 3601):
        mine = samples(1, second - 0.5, sm=0.5)
        bench.tick(float(second), 0 if second % 2 else second * J, None if second % 2 else [], samples=mine)
        evidence = bench.book.evidence
        assert evidence is None or len(evidence.samples) + len(evidence.lists) <= 2 * 121 + 1


def test_integrated_power_without_lists_is_unobserved() -> None:
    bench = Bench(A)
    bench.tick(0, None, [], power=100.0)
    for second in range(1, 300):
        bench.tick(float(second), None, None, power=100.0)
    posted = bench.tick(300, None, [], power=100.0)
    assert (posted.unobserved, posted.integrated) == (30_000 * J, True)


def test_power_of_a_gpu_that_is_down_is_unobserved_energy() -> None:
    bench = Bench(A)
    bench.tick(0, None, [], power=100.0)
    for second in range(1, 300):
        down = Reading(A, up=False, processes=None, values={POWER: 100.0}, down_reason="RESET_REQUIRED")
        assert bench.book.post(float(second), UNIX + second, down, (), whole=True) == []
    posted = bench.tick(300, None, [], power=100.0)
    assert (posted.unobserved, posted.integrated) == (30_000 * J, True)


def test_power_is_not_integrated_over_a_gap() -> None:
    bench = Bench(A)
    bench.tick(0, None, [], power=100.0)
    bench.tick(1, None, [], power=100.0)
    bench.tick(100, None, [], power=100.0)
    bench.tick(101, None, [], power=100.0)
    assert sum(one.millijoules for one in bench.posted) == 2 * 100 * J


def test_an_interval_of_more_than_a_minute_is_unobserved() -> None:
    for seconds, unobserved in ((60, 0), (61, 6100 * J)):
        bench = Bench(A)
        p = process(A, 1)
        bench.tick(0, 0, [p], fresh=True)
        posted = bench.tick(float(seconds), seconds * 100 * J, [p])
        assert posted.unobserved == unobserved


# Process identity


def test_the_record_of_a_reused_pid_ends_the_old_process_and_begins_no_new_one() -> None:
    bench = Bench(A, empty=60, resident=60)
    old, new = process(A, 1, ticks=1), process(A, 1, ticks=2, started=8.0)
    bench.tick(0, 0, [old], fresh=True)
    posted = bench.tick(10, 600 * J, [new], accounting=[AccountingRecord(1, began=-100.0, ended=4.0)])
    booked = {key[3]: joules for key, joules in posted.booked.processes.items()}
    assert (booked, posted.booked.idle) == ({1: 240 * J, 2: 120 * J}, 240 * J)


def test_a_record_that_matches_no_listed_process_is_of_another_process() -> None:
    bench = Bench(A, empty=60, resident=60)
    new = process(A, 1, ticks=2, started=8.0)
    bench.tick(0, 0, [], fresh=True)
    posted = bench.tick(10, 600 * J, [new], accounting=[AccountingRecord(1, began=2.0, ended=6.0)])
    booked = {key[3]: joules for key, joules in posted.booked.processes.items()}
    assert booked == {None: 240 * J, 2: 120 * J}


@pytest.mark.parametrize(("at", "ticks"), [(3.0, 1), (9.0, 2)])
def test_a_sample_of_a_reused_pid_belongs_to_the_latest_started_process(at: float, ticks: int) -> None:
    bench = Bench(A, empty=0, resident=0)
    old, new = process(A, 1, ticks=1, started=-50.0), process(A, 1, ticks=2, started=8.0)
    bench.tick(0, 0, [old], fresh=True)
    posted = bench.tick(10, 600 * J, [new], samples=samples(1, at, sm=1.0))
    assert {key[3]: joules for key, joules in posted.booked.processes.items()} == {ticks: 600 * J}


def test_a_process_in_no_list_keeps_its_identity_over_intervals() -> None:
    bench = Bench(A)
    bench.tick(0, 0, [], fresh=True)
    for second in range(1, 10):
        bench.tick(float(second), second * 100 * J, [], samples=samples(77, second - 0.5, sm=0.5))
    assert len({key for one in bench.posted for key in one.booked.processes}) == 1


def test_a_pid_missing_for_an_interval_is_another_process() -> None:
    bench = Bench(A)
    bench.tick(0, 0, [], fresh=True)
    bench.tick(1, 100 * J, [], samples=samples(77, 0.5, sm=0.5))
    bench.tick(2, 200 * J, [])
    bench.tick(3, 300 * J, [], samples=samples(77, 2.5, sm=0.5))
    assert len({key for one in bench.posted for key in one.booked.processes}) == 2


# MIG


def test_activity_of_instances_is_weighted_by_time() -> None:
    a, b = instance(A, 1, sm_count=64), instance(A, 2, index=1, sm_count=64)
    bench = Bench(A, empty=0, resident=0, parts=[a, b])
    p, q = process(a, 1), process(b, 2)
    bench.tick(0, 0, [p, q], fresh=True)
    bench.tick(8, 300 * J, None, activity={a: 1.0, b: 0.0})
    posted = bench.tick(10, 600 * J, [p, q], activity={a: 0.0, b: 1.0})
    assert flat(posted) == {1: 480 * J, 2: 120 * J}


def test_activity_of_instances_counts_once_over_a_failed_list() -> None:
    a, b = instance(A, 1, sm_count=64), instance(A, 2, index=1, sm_count=64)
    bench = Bench(A, empty=0, resident=0, parts=[a, b])
    p, q = process(a, 1), process(b, 2)
    bench.tick(0, 0, [p, q], fresh=True)
    bench.tick(5, 300 * J, None, activity={a: 1.0, b: 0.0})
    posted = bench.tick(10, 600 * J, [p, q], activity={a: 0.0, b: 1.0})
    assert flat(posted) == {1: 300 * J, 2: 300 * J}


def test_energy_of_a_process_on_an_unknown_instance_is_unattributed() -> None:
    part = instance(A, 1, sm_count=16)
    bench = Bench(A, empty=66, resident=66, parts=[part])
    bench.tick(0, 0, [], fresh=True)
    record = AccountingRecord(77, began=2.0, ended=6.0)
    posted = bench.tick(10, 1160 * J, [], activity={part: 0.0}, accounting=[record])
    assert flat(posted) == {"idle": 660 * J, "unattributed": 500 * J}


@pytest.mark.parametrize(("name", "slices"), [("NVIDIA H100 80GB HBM3", 7), ("NVIDIA A30", 4)])
def test_without_sm_counts_an_instance_counts_by_its_slices(name: str, slices: int) -> None:
    card = gpu(0, name=name)
    part = instance(card, 1, profile="1g.10gb")
    bench = Bench(card, empty=70, resident=70, parts=[part])
    bench.tick(0, 0, [process(part, 1)], fresh=True)
    posted = bench.tick(10, 700 * J, [process(part, 1)], activity={part: 0.0})
    assert flat(posted) == {1: 700 * J // slices, "idle": 700 * J - 700 * J // slices}


# Activity


def test_a_desktop_next_to_an_idle_process_gets_its_engine_time_but_no_floor() -> None:
    """Below 5 % it is not activity of the Gpu (rule 5), but it is engine time, by which the rest is split
    (rule 4).
    """
    bench = Bench(A, empty=20, resident=20)
    desktop, holder = process(A, 1, types="G", sm=0.01), process(A, 2, sm=0.0)
    bench.tick(0, 0, [desktop, holder], fresh=True)
    flicker = [*samples(1, 5.0, sm=0.01), *samples(2, 5.0, sm=0.0)]
    posted = bench.tick(10, 300 * J, [desktop, holder], samples=flicker, utilization=0.01)
    assert flat(posted) == {1: 100 * J, 2: 200 * J}, "the holder gets the floor, the desktop the work"


@pytest.mark.parametrize(("utilization", "account"), [(0.04, "idle"), (0.05, "unattributed")])
def test_a_single_desktop_is_activity_from_five_percent(utilization: float, account: str) -> None:
    bench = Bench(A)
    desktop = process(A, 1, types="G", sm=None)
    bench.tick(0, 0, [desktop], fresh=True)
    posted = bench.tick(10, 300 * J, [desktop], utilization=utilization)
    assert flat(posted) == {account: 300 * J}


@pytest.mark.parametrize(("quiet", "is_learned"), [(9, False), (80, True)])
def test_the_floor_is_learned_only_ten_seconds_after_the_last_activity(quiet: int, is_learned: bool) -> None:
    bench = Bench(A)
    bench.tick(0, 0, [], fresh=True)
    value = 0
    for second in range(1, 200):
        busy = second % (quiet + 1) == 0
        value += (300 if busy else 70) * J
        bench.tick(float(second), value, [], utilization=0.5 if busy else 0.0)
    assert (bench.book.floors.floors.empty is not None) is is_learned


# Rounding


@pytest.mark.parametrize("share", [9, 11])
def test_shares_that_do_not_sum_to_the_total_raise_an_error(share: int) -> None:
    with pytest.raises(ValueError, match="do not sum"):
        round_shares(10, {"a": share})


def test_a_counter_reset_after_a_minute_without_moves_is_not_frozen() -> None:
    bench = Bench(A, limit=700)
    bench.tick(0, 9000 * J, [], fresh=True, power=60.0)
    bench.tick(70, 100 * J, [], power=60.0)
    bench.tick(71, 160 * J, [], power=60.0)
    assert not bench.book.frozen
    assert totals(bench) == {1: 160 * J}


def test_an_implausibly_fast_lower_counter_is_another_counter() -> None:
    """No board counts from 0 to 777 MJ in two seconds: this is not a driver reload."""
    bench = Bench(gpu(0), limit=700.0)
    high, watts = 777_600_000_000, 300_000
    for second in range(6):
        bench.tick(float(second), high + second * watts, [])
    for second in range(6, 12):
        bench.tick(float(second), high - 1_000_000 + second * watts, [])
    booked = sum(one.millijoules for one in bench.posted)
    assert booked <= 12 * watts

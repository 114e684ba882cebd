"""The worked examples of the energy rules, each with the result of a wrong rule."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import gpu, instance, process
from energy_helpers import Bench, flat, samples
from gpuledger.ledger.energy.counter import Epoch
from gpuledger.model.process import AccountingRecord

A = gpu(0, sm_count=132)
J = 1000


def test_e1_a_process_that_ended_early_gets_the_floor_of_its_three_seconds_only() -> None:
    """A split by time would give 396 and 924."""
    bench = Bench(A, empty=60, resident=60)
    p = process(A, 1)
    bench.tick(0, 0, [p], fresh=True)
    posted = bench.tick(10, 1320 * J, [], samples=samples(1, 0.5, 2.5, 3.0, sm=1.0))
    assert flat(posted) == {1: 900 * J, "idle": 420 * J}
    assert posted.booked.method == "activity"


def test_e2a_a_single_mig_resident_does_not_pay_for_the_whole_gpu() -> None:
    """Not all 1,300 are measured for it."""
    small = instance(A, 9, sm_count=16)
    bench = Bench(A, empty=70, resident=70, parts=[small])
    p = process(small, 1)
    bench.tick(0, 0, [p], fresh=True)
    posted = bench.tick(10, 1300 * J, [p])
    assert flat(posted) == {1: 684_848, "idle": 615_152}
    assert posted.booked.method == "slices"


def test_e2b_activity_under_mig_weighs_by_multiprocessors() -> None:
    """Unweighted, the result would be 200 and 400."""
    big, small = instance(A, 1, sm_count=64), instance(A, 9, sm_count=16)
    bench = Bench(A, empty=0, resident=0, parts=[big, small])
    p, q = process(big, 1), process(small, 2)
    bench.tick(0, 0, [p, q], fresh=True)
    posted = bench.tick(10, 600 * J, [p, q], activity={big: 0.5, small: 1.0})
    assert flat(posted) == {1: 400 * J, 2: 200 * J}
    assert posted.booked.method == "activity"


def test_e3_an_mps_server_is_not_billed_and_an_idle_client_gets_only_floor() -> None:
    bench = Bench(A, empty=70, resident=70)
    server = process(A, 9, name="/usr/bin/nvidia-cuda-mps-server")
    clients = [process(A, pid, types="M+C") for pid in (1, 2, 3)]
    bench.tick(0, 0, [server, *clients], fresh=True)
    work = [*samples(1, 1.0, 5.0, sm=0.4), *samples(2, 1.0, 5.0, sm=0.4)]
    posted = bench.tick(10, 3000 * J, [server, *clients], samples=work)
    assert flat(posted) == {1: 1_383_334, 2: 1_383_333, 3: 233_333}


def test_e3_samples_of_the_mps_server_are_split_over_its_clients() -> None:
    bench = Bench(A, empty=0, resident=0)
    server = process(A, 9, name="nvidia-cuda-mps-server")
    clients = [process(A, pid, types="M+C") for pid in (1, 2)]
    bench.tick(0, 0, [server, *clients], fresh=True)
    posted = bench.tick(10, 100 * J, [server, *clients], samples=samples(9, 1.0, sm=0.8))
    assert flat(posted) == {1: 50 * J, 2: 50 * J}


def test_e4_a_process_between_two_ticks_is_found_in_the_samples() -> None:
    """Without accounting, all 2,100 would be measured for A."""
    bench = Bench(A, empty=60, resident=90)
    a = process(A, 1)
    bench.tick(0, 0, [a], fresh=True)
    posted = bench.tick(10, 2100 * J, [a], samples=samples(77, 3.0, 5.0, 7.0, sm=1.0))
    assert flat(posted) == {1: 720 * J, 77: 1380 * J}
    assert posted.booked.method == "activity"


def test_e4_activity_without_evidence_is_unattributed() -> None:
    bench = Bench(A, empty=60, resident=90)
    a = process(A, 1)
    bench.tick(0, 0, [a], fresh=True)
    posted = bench.tick(10, 2100 * J, [a], utilization=0.9)
    assert flat(posted) == {1: 900 * J, "unattributed": 1200 * J}
    assert posted.booked.method != "measured"


def test_e5_a_reboot_between_runs_opens_a_new_epoch_at_zero() -> None:
    """1,200 unobserved would seem to balance, too."""
    bench = Bench(A, stored=5000, stored_at=900.0, stored_epoch=Epoch("boot-1"), epoch=Epoch("boot-2"))
    assert (bench.book.counter.epoch_number, bench.book.counter.opening) == (1, 0)
    assert bench.tick(20, 6200, []) is None
    posted = bench.tick(21, 6200 + 60, [])
    assert (posted.unobserved, posted.booked.delta) == (6260, 0)


def test_e6_energy_between_runs_is_unobserved() -> None:
    p = process(A, 1)
    bench = Bench(A, stored=1000 * J, stored_at=0.0, limit=700)
    assert bench.tick(40, 12_999 * J, [p]) is None
    posted = bench.tick(40.1, 13_000 * J, [p])
    assert posted.unobserved == 12_000 * J
    assert bench.tick(50.1, 16_000 * J, [p], samples=samples(1, 45.0, sm=1.0)).booked.processes == {
        p.key: 3000 * J
    }


@pytest.mark.parametrize(
    ("first_sample", "expected"),
    [(58.0, {1: 120 * J, "idle": 480 * J}), (None, {1: 600 * J})],
)
def test_e7_a_late_context_is_resident_from_its_first_sample(
    first_sample: float | None, expected: Mapping[object, int]
) -> None:
    bench = Bench(A, empty=60, resident=60)
    p = process(A, 1, started=-10.0)
    bench.tick(50, 0, [], fresh=True)
    seen = samples(1, first_sample, sm=0.01) if first_sample is not None else []
    posted = bench.tick(60, 600 * J, [p], samples=seen)
    assert flat(posted) == expected
    assert posted.booked.method != "measured"


def test_e7_the_accounting_record_has_the_start_time() -> None:
    bench = Bench(A, empty=60, resident=60)
    p = process(A, 1, started=-10.0)
    bench.tick(50, 0, [], fresh=True)
    posted = bench.tick(60, 600 * J, [p], accounting=[AccountingRecord(1, began=58.0)])
    assert flat(posted) == {1: 120 * J, "idle": 480 * J}


def test_a_process_between_two_ticks_is_found_in_its_accounting_record() -> None:
    bench = Bench(A, empty=60, resident=90)
    bench.tick(0, 0, [], fresh=True)
    posted = bench.tick(10, 1020 * J, [], accounting=[AccountingRecord(77, began=2.0, ended=6.0)])
    assert flat(posted) == {77: 660 * J, "idle": 360 * J}
    assert posted.booked.method == "equal"


def test_e8_two_pods_share_by_engine_time() -> None:
    """The predecessor programs bill 200 to each."""
    bench = Bench(A)
    p, q = process(A, 1), process(A, 2)
    bench.tick(0, 0, [p, q], fresh=True)
    work = [*samples(1, 1.0, sm=0.6), *samples(2, 1.0, sm=0.4)]
    posted = bench.tick(10, 200 * J, [p, q], samples=work)
    assert flat(posted) == {1: 120 * J, 2: 80 * J}
    assert posted.booked.method == "activity"


def test_e9_energy_of_invisible_processes_is_unattributed_not_idle() -> None:
    bench = Bench(A, empty=66)
    bench.tick(0, 0, [], fresh=True)
    posted = bench.tick(10, 2420 * J, [], utilization=1.0)
    assert flat(posted) == {"idle": 660 * J, "unattributed": 1760 * J}


def test_e10_a_slow_counter_in_phase_with_the_tick_loses_nothing() -> None:
    """A plausibility bound without the refresh period would lose a quarter."""
    bench = Bench(A, limit=700)
    p = process(A, 1)
    jitter = [0.0, 0.015, -0.015, 0.015, 0.0, -0.015]
    booked = unobserved = value = 0
    for second in range(60):
        at = second + jitter[second % len(jitter)]
        # The counter was refreshed twice, once or not at all since the last tick.
        value = int(at) * 700 * J if at >= 0 else 0
        posted = bench.tick(at, value, [p], samples=samples(1, at, sm=1.0))
        if posted is not None:
            booked += posted.booked.delta
            unobserved += posted.unobserved
    assert unobserved == 0
    assert booked == value - bench.book.counter.opening
    assert bench.book.invalid == 0


def test_e11_a_glitch_is_rejected_and_counted() -> None:
    bench = Bench(A, limit=700)
    bench.tick(0, 0, [], fresh=True)
    bench.tick(10, 5000, [])
    assert bench.tick(11, 9_005_000, []) is None
    posted = bench.tick(12, 5600, [])
    assert (posted.booked.delta, posted.unobserved) == (600, 0)
    assert bench.book.invalid == 1


def test_e12_an_unreadable_list_keeps_the_interval_open() -> None:
    """Ending the interval would lose two intervals, 600 J."""
    bench = Bench(A)
    p = process(A, 1)
    bench.tick(0, 0, [p], fresh=True)
    assert bench.tick(1, 300 * J, None) is None
    posted = bench.tick(2, 600 * J, [p], samples=samples(1, 1.5, sm=1.0))
    assert posted.booked.processes == {p.key: 600 * J}
    assert posted.booked.method == "measured"


def test_e13_nothing_before_the_first_move_of_a_first_start_is_booked() -> None:
    bench = Bench(A, limit=700)
    start = 777_600_000 * J
    assert bench.tick(0, start, []) is None
    assert bench.tick(0.1, start + 750 * J, []) is None
    assert bench.book.counter.opening == start + 750 * J
    posted = bench.tick(5.1, start + 1500 * J, [])
    assert (posted.booked.delta, posted.unobserved) == (750 * J, 0)


def test_e14_a_late_sample_of_a_process_in_both_lists_does_not_shorten_its_residence() -> None:
    bench = Bench(A, empty=90, resident=90)
    a, b = process(A, 1), process(A, 2)
    bench.tick(0, 0, [a, b], fresh=True)
    work = [*samples(1, 8.0, sm=0.5), *samples(2, 8.0, sm=0.5)]
    posted = bench.tick(10, 900 * J, [a, b], samples=work)
    assert flat(posted) == {1: 450 * J, 2: 450 * J}


def test_e15_a_burst_counts_for_one_sample_period() -> None:
    """By the gap to the next sample, B would get 879."""
    bench = Bench(A)
    a, b = process(A, 1), process(A, 2)
    bench.tick(0, 0, [a, b], fresh=True)
    steady = samples(1, *[(n + 1) / 6 for n in range(60)], sm=0.5)
    posted = bench.tick(10, 2000 * J, [a, b], samples=[*steady, *samples(2, 5.0, sm=0.4)])
    assert flat(posted)[2] == round(2000 * J * 40 / (60 * 50 + 40))


def test_e16_a_held_instance_gets_the_floor_rise_that_it_causes() -> None:
    """By its share of all SMs it would get 139 of the 535 J."""
    small = instance(A, 9, sm_count=16)
    bench = Bench(A, empty=70, resident=115, parts=[small])
    p = process(small, 1)
    bench.tick(0, 0, [p], fresh=True)
    posted = bench.tick(10, 1150 * J, [p], activity={small: 0.0})
    assert flat(posted) == {1: 534_848, "idle": 615_152}


def test_e17_a_process_on_two_gpus_has_an_account_on_each() -> None:
    other = gpu(1)
    for card, joules in ((A, 300), (other, 200)):
        bench = Bench(card)
        p = process(card, 1)
        bench.tick(0, 0, [p], fresh=True)
        posted = bench.tick(1, joules * J, [p], samples=samples(1, 0.5, sm=1.0))
        assert posted.booked.processes == {p.key: joules * J}
        assert p.key[0] == card.uuid

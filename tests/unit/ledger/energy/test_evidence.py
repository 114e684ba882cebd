"""Evidence about a Gpu in an interval: processes, their engine time, and the clock of samples."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from builders import gpu, instance, process, reading, snapshot
from energy_helpers import UNIX, Bench, flat, samples
from gpuledger.ledger.energy.booking import EnergyPolicy, EnergySplit
from gpuledger.ledger.energy.counter import EnergyCounter, Epoch
from gpuledger.ledger.energy.energy_ledger import EnergyLedger, StoredGpuEnergy
from gpuledger.ledger.energy.evidence import (
    Evidence,
    ProcessLists,
    SampleClock,
    engine_time,
    is_activity,
)
from gpuledger.ledger.energy.floor import Floors, QuietPower
from gpuledger.ledger.energy.gpu_energy_ledger import Posting
from gpuledger.ledger.energy.residence import identity_order
from gpuledger.ledger.energy.shares import device_share
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device, Gpu
from gpuledger.model.process import UtilizationSample

A = gpu(0, sm_count=132)
J = 1000


@pytest.mark.parametrize(
    ("sm", "encoder", "decoder", "jpeg", "ofa", "expected"),
    [
        (0.5, 0.2, 0.1, 0.0, 0.0, 0.5),
        (0.1, 0.5, 0.2, 0.0, 0.0, 0.5),
        (0.1, 0.2, 0.5, 0.0, 0.0, 0.5),
        (0.1, 0.2, 0.3, 0.5, 0.4, 0.5),
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.5),
        (0.1, 0.2, 0.3, None, None, 0.3),
        (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_the_busiest_engine_counts(
    sm: float, encoder: float, decoder: float, jpeg: float | None, ofa: float | None, expected: float
) -> None:
    assert engine_time(UtilizationSample(1, 0, sm, 0.0, encoder, decoder, jpeg, ofa)) == expected


@pytest.mark.parametrize(
    ("sm", "draws", "active"),
    [(0.01, False, True), (0.0, False, False), (0.04, True, False), (0.05, True, True)],
)
def test_graphics_below_five_percent_is_not_activity(sm: float, draws: bool, active: bool) -> None:
    (sample,) = samples(1, 0.5, sm=sm)
    assert is_activity(sample, frozenset({1} if draws else ())) is active


def test_a_process_in_any_list_of_the_interval_is_listed() -> None:
    first, between, last = (process(A, pid) for pid in range(1, 4))
    evidence = Evidence(
        A, [ProcessLists(float(at), {one.key: one}) for at, one in enumerate((first, between, last))]
    )
    assert set(evidence.all_processes()) == {first.key, between.key, last.key}


@pytest.mark.parametrize(
    ("what", "clock"),
    [("since the boot", 0.0), ("unix time", UNIX), ("the driver's own clock", 5_000_000.0)],
)
def test_samples_are_placed_in_time_for_any_driver_clock(what: str, clock: float) -> None:
    """A process in no list is resident from its first sample to its last."""
    bench = Bench(A, empty=60, resident=60)
    client = process(A, 7)
    bench.tick(0, 0, [], fresh=True, samples=samples(9, clock, sm=0.0))
    recorded = [*samples(7, clock + 2, clock + 5, sm=0.5), *samples(9, clock + 10, sm=0.0)]
    posted = bench.tick(10, 1200 * J, [], samples=recorded)
    (resident,) = (one for one in posted.residents if one.process.pid == client.pid)
    assert (resident.begins, resident.ends) == (2_000_000, 5_000_000), what
    assert resident.process.host.missing == "exited"


def test_samples_of_ticks_without_a_counter_move_belong_to_the_interval() -> None:
    bench = Bench(A)
    a, b = process(A, 1), process(A, 2)
    bench.tick(0, 0, [a, b], fresh=True)
    bench.tick(1, 0, [a, b], samples=samples(1, 0.5, sm=0.5))
    posted = bench.tick(2, 400 * J, [a, b], samples=samples(2, 1.5, sm=0.5))
    assert flat(posted) == {1: 200 * J, 2: 200 * J}


def test_an_interval_with_unreadable_samples_is_split_by_time() -> None:
    bench = Bench(A)
    a, b = process(A, 1), process(A, 2)
    bench.tick(0, 0, [a, b], fresh=True)
    bench.tick(1, 0, [a, b], samples=None)
    posted = bench.tick(2, 400 * J, [a, b], samples=samples(3, 1.5, sm=0.0), utilization=0.5)
    assert flat(posted) == {1: 200 * J, 2: 200 * J}
    assert posted.booked.method == "equal"


def test_nothing_is_measured_without_samples_even_for_a_single_process() -> None:
    """Another process may have been active at the same time."""
    bench = Bench(A)
    a = process(A, 1)
    bench.tick(0, 0, [a], fresh=True)
    posted = bench.tick(1, 300 * J, [a], samples=None, utilization=0.5)
    assert (flat(posted), posted.booked.method) == ({1: 300 * J}, "equal")


def test_after_a_pause_a_process_in_no_list_is_found_by_its_samples() -> None:
    bench = Bench(A)
    bench.tick(0, 0, [], fresh=True, samples=samples(7, -0.5, sm=0.5))
    bench.book.interrupt()
    bench.tick(10, 100 * J, [])
    bench.tick(11, 200 * J, [])
    posted = bench.tick(12, 500 * J, [], samples=samples(7, 11.5, sm=0.5))
    assert flat(posted) == {7: 300 * J}


def test_energy_before_a_counter_froze_is_booked_once_to_the_old_epoch() -> None:
    """The driver is reloaded while power replaces the counter."""
    bench = Bench(A, limit=700, epoch=Epoch("boot", "load-1"))
    p = process(A, 1)
    bench.tick(0, 0, [p], fresh=True, power=50.0)
    bench.tick(1, 300 * J, None, power=50.0)
    for second in range(2, 70):
        bench.tick(float(second), 300 * J, [p], power=50.0)
    assert bench.book.frozen
    bench.posted += bench.book.begin_epoch(Epoch("boot", "load-2"), UNIX + 70)
    assert sum(one.millijoules for one in bench.posted if not one.integrated) == 300 * J


def test_a_voided_posting_is_unobserved_and_keeps_its_energy() -> None:
    bench = Bench(A)
    bench.tick(0, 0, [process(A, 1)], fresh=True)
    posted = bench.tick(1, 300 * J, [process(A, 1)])
    void = posted.voided()
    assert (void.millijoules, void.unobserved, void.residents) == (300 * J, 300 * J, ())
    assert void.booked.delta == 0
    assert (void.epoch_number, void.begins, void.ends) == (posted.epoch_number, posted.begins, posted.ends)


# Parts of a Gpu


@pytest.mark.parametrize(
    ("what", "device", "expected"),
    [
        ("a whole Gpu", A, Fraction(1)),
        ("by multiprocessors", instance(A, 1, profile="1g.10gb", sm_count=16), Fraction(16, 132)),
        ("by slices without SM counts", instance(A, 1, profile="3g.40gb"), Fraction(3, 7)),
        ("compute slices within an instance", instance(A, 1, profile="1c.3g.40gb"), Fraction(1, 7)),
        ("an unknown profile name is one slice", instance(A, 1, profile="?"), Fraction(1, 7)),
        ("an A30 has four", instance(gpu(1, name="NVIDIA A30"), 1, profile="2g.12gb"), Fraction(1, 2)),
        ("at most the whole Gpu", instance(gpu(1, sm_count=100), 1, sm_count=132), Fraction(1)),
        ("at most all slices", instance(gpu(1, name="NVIDIA A30"), 1, profile="7g.80gb"), Fraction(1)),
    ],
)
def test_the_part_of_a_gpu_that_an_instance_has(what: str, device: Device, expected: Fraction) -> None:
    assert device_share(device) == expected, what


def test_activity_of_an_instance_without_listed_processes_is_unattributed() -> None:
    """4g at 50 %, 1g at 100 %: 2 to 1 by multiprocessors; only the smaller one has a resident."""
    large, small = instance(A, 1, sm_count=64), instance(A, 2, sm_count=16)
    bench = Bench(A, parts=(large, small))
    tenant = process(small, 1)
    bench.tick(0, 0, [tenant], fresh=True, activity={large: 0.5, small: 1.0})
    posted = bench.tick(10, 600 * J, [tenant], activity={large: 0.5, small: 1.0})
    assert flat(posted) == {1: 200 * J, "unattributed": 400 * J}
    assert posted.booked.method == "activity"


def test_work_of_an_mps_server_goes_to_its_clients_only() -> None:
    bench = Bench(A)
    server = process(A, 1, name="nvidia-cuda-mps-server")
    clients = [process(A, pid, types="M+C") for pid in (2, 3)]
    beside = process(A, 4)
    everybody = [server, *clients, beside]
    bench.tick(0, 0, everybody, fresh=True)
    posted = bench.tick(1, 400 * J, everybody, samples=samples(1, 0.25, 0.5, sm=0.5))
    assert flat(posted) == {2: 200 * J, 3: 200 * J}
    assert [one.work for one in posted.residents] == [5000, 5000, 0]


@pytest.mark.parametrize(
    ("lists", "begins", "ends"),
    [
        ((True, True, False, False), 0, 3),
        ((True, False, False, False), 0, 1),
        ((True, True, True, False), 0, 7),
        ((False, True, False, False), 0, 3),
        ((False, False, True, True), 2, 10),
    ],
)
def test_without_samples_a_process_ends_half_way_between_two_lists(
    lists: tuple[bool, ...], begins: int, ends: int
) -> None:
    """At seconds 0, 2, 4 and 10; it started before all of them and was first listed later."""
    bench = Bench(A)
    p = process(A, 1)
    for at, there in zip((0, 2, 4, 10), lists, strict=True):
        posted = bench.tick(at, 600 * J if at == 10 else 0, [p] if there else [], fresh=not at)
    (one,) = posted.residents
    assert (one.begins, one.ends) == (begins * 1_000_000, ends * 1_000_000)


def test_energy_of_unknown_activity_has_the_activity_method() -> None:
    bench = Bench(A)
    bench.tick(0, 0, [], fresh=True)
    posted = bench.tick(1, 300 * J, [], utilization=0.5)
    assert (flat(posted), posted.booked.method) == ({"unattributed": 300 * J}, "activity")


def test_equal_remainders_are_ordered_by_device_pid_and_start() -> None:
    keys = [
        ("GPU-0", 1, "boot", None, None),
        ("GPU-0", 1, "boot", None, 2.0),
        ("GPU-0", 1, "boot", None, 3.0),
        ("GPU-0", 1, "boot", 7, None),
        ("GPU-0", 2, "boot", 1, None),
        ("GPU-1", 1, "boot", 1, None),
    ]
    for turn in range(len(keys)):
        assert sorted(keys[turn:] + keys[:turn], key=identity_order) == keys


def test_clients_of_two_mps_servers_share_the_work_of_both() -> None:
    """The lists do not show which server each client uses."""
    bench = Bench(A)
    servers = [process(A, pid, name="nvidia-cuda-mps-server") for pid in (1, 2)]
    clients = [process(A, pid, types="M+C") for pid in (3, 4)]
    bench.tick(0, 0, [*servers, *clients], fresh=True)
    recorded = [*samples(1, 0.5, sm=0.5), *samples(2, 0.5, sm=0.3)]
    posted = bench.tick(1, 400 * J, [*servers, *clients], samples=recorded)
    assert [one.work for one in posted.residents] == [4000, 4000]


def test_shares_are_exact_to_the_last_part_of_a_nanojoule() -> None:
    split = EnergySplit()
    for target, nanojoules, divided_by in ((1, 5, 3), (1, 7, 3), (2, 1, 4), (1, 1, 1)):
        split.add(target, nanojoules, divided_by)
    assert split.shares() == ({1: 12 * 4 + 12, 2: 3}, 12)


@pytest.mark.parametrize("seconds", [0.25, 1.0, 4.0])
def test_power_is_integrated_over_the_time_between_two_readings(seconds: float) -> None:
    bench = Bench(A)
    for number, watts in enumerate((100.0, 300.0, 300.0)):
        bench.tick(number * seconds, None, [], power=watts)
    assert [one.millijoules for one in bench.posted] == [200 * J * seconds, 300 * J * seconds]


def test_an_interval_with_a_mig_layout_change_is_unattributed() -> None:
    """The multiprocessors of each process are unknown."""
    before, after = instance(A, 1, sm_count=64), instance(A, 2, sm_count=16)
    bench = Bench(A, parts=(before,))
    bench.tick(0, 0, [process(before, 1)], fresh=True)
    bench.parts = (after,)
    posted = bench.tick(10, 600 * J, [process(after, 2)])
    assert (flat(posted), posted.booked.method) == ({"unattributed": 600 * J}, "slices")
    assert (posted.begins, posted.ends, posted.length) == (UNIX, UNIX + 10, 10_000_000)


# Over restarts


@pytest.mark.parametrize(("driver", "known"), [("580", Floors(60_050, 90_050)), ("590", Floors())])
def test_a_run_continues_with_the_counter_and_the_floors_of_its_driver(driver: str, known: Floors) -> None:
    empty, resident = QuietPower(), QuietPower()
    empty.add(UNIX, 60_000, 100.0)
    resident.add(UNIX, 90_000, 100.0)
    counter = EnergyCounter(
        Epoch("boot"), opening=0, booked=1000 * J, last=1000 * J, refresh=1.0, epoch_number=3
    )
    stored = StoredGpuEnergy(counter, {"580": (empty, resident)}, UNIX - 50)
    book = EnergyLedger(Floors())
    book.resume({A.uuid: stored})
    posted = []
    for second, joules in enumerate((1500, 1800, 2100)):
        recorded = snapshot(reading(A, values={q.ENERGY: joules * J}), unix=UNIX + second)
        source = replace(recorded.source, driver_version=driver)
        posted += book.post(replace(recorded, boot_id="boot", source=source))
    away, seen = posted
    assert (away.unobserved, away.begins, away.ends) == (800 * J, UNIX - 50, UNIX + 1)
    assert (seen.booked.delta, seen.epoch_number, seen.floors) == (300 * J, 3, known)


def test_rejected_readings_add_up() -> None:
    bench = Bench(A, limit=700)
    bench.tick(0, 0, [], fresh=True)
    for second, joules in enumerate((300, 9_000_000, 900, 9_000_000, 1500), start=1):
        bench.tick(float(second), joules * J, [])
    assert bench.book.invalid == 2
    assert sum(one.millijoules for one in bench.posted) == 1500 * J


def test_the_first_rejected_reading_of_each_gpu_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    book, cards = EnergyLedger(Floors()), (A, gpu(1))
    for second, joules in enumerate((0, 300, 9_000_000, 900, 9_000_000, 1500)):
        values = {q.ENERGY: joules * J, q.POWER_LIMIT: 700.0}
        readings = [reading(card, values=values) for card in cards]
        book.post(replace(snapshot(*readings), unix=UNIX + second, elapsed=float(second)))
    assert book.invalid == 4
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        f"the energy counter of GPU {card.uuid} read 9000000000 mJ after 300000 mJ" for card in cards
    ]


@pytest.mark.parametrize(("simulated", "remedies"), [(True, 0), (False, 1)])
def test_only_the_counter_of_a_real_card_that_steps_back_at_a_start_is_a_reason_to_replace_it(
    simulated: bool, remedies: int, caplog: pytest.LogCaptureFixture
) -> None:
    book = EnergyLedger(Floors())
    stored = EnergyCounter(Epoch("boot"), opening=0, booked=1000 * J, last=1000 * J, refresh=1.0)
    book.resume({A.uuid: StoredGpuEnergy(stored, {}, UNIX - 50)})
    for second, joules in enumerate((500, 800, 1100)):
        values = {q.ENERGY: joules * J, q.POWER_LIMIT: 100.0}
        taken = snapshot(reading(A, values=values), unix=UNIX + second)
        taken = replace(taken, boot_id="boot", source=replace(taken.source, simulated=simulated))
        book.post(replace(taken, elapsed=float(second)))
    assert book.invalid == 1
    assert sum("replace the card" in record.getMessage() for record in caplog.records) == remedies


@pytest.mark.parametrize(("name", "invalid"), [("NVIDIA GB200", 0), ("NVIDIA B200", 3)])
def test_the_counter_of_a_module_may_exceed_the_limit_of_its_gpu(name: str, invalid: int) -> None:
    book, card = EnergyLedger(Floors()), gpu(0, name=name)
    for second in range(5):
        # 60 s at once: the module draws 2700 W, its GPU at most 1200 W.
        values = {q.ENERGY: second * 60 * 2700 * J, q.POWER_LIMIT: 1200.0}
        book.post(replace(snapshot(reading(card, values=values)), unix=UNIX + second, elapsed=second * 60.0))
    assert bool(book.invalid) is bool(invalid)


# Settings that change


def test_a_changed_policy_and_floor_apply_to_open_intervals_and_new_gpus() -> None:
    book, others = EnergyLedger(Floors()), gpu(1)
    two = [process(A, 1), process(A, 2)]

    def post(second: int, *cards: Gpu) -> list[Posting]:
        recorded = [
            reading(card, *(two if card is A else ()), values={q.ENERGY: second * 300 * J}) for card in cards
        ]
        return book.post(snapshot(*recorded, unix=UNIX + second))

    for second in range(3):
        split = post(second, A)
    assert [one.booked.unattributed for one in split] == [0]
    book.apply_settings(Floors(empty=60_000), EnergyPolicy.MEASURED)
    (kept,) = post(3, A, others)
    assert (kept.booked.unattributed, kept.booked.processes, kept.floors) == (300 * J, {}, Floors(60_000))
    assert kept.booked.method == "equal", "the method of the unused split"
    for second in (4, 5):
        posted = post(second, A, others)
    assert {one.gpu: one.floors for one in posted} == {A: Floors(60_000), others: Floors(60_000)}


# The driver's clock


@pytest.mark.parametrize(
    ("what", "suspended", "slow", "least"),
    [
        ("it agrees", 0.0, 0.0, 1.0),
        ("it does not run during a suspend", 5.0, 0.0, 0.98),
        ("of an hour", 3600.0, 0.0, 0.98),
        ("it falls behind slowly", 0.0, 0.01, 0.97),
    ],
)
@pytest.mark.parametrize("epoch", [0.0, UNIX, 12_345_678.9], ids=["since boot", "since 1970", "since then"])
def test_samples_of_a_clock_that_falls_behind_are_used(
    what: str, suspended: float, slow: float, least: float, epoch: float
) -> None:
    """Without the time of a suspend in it, all its later samples seemed to be older than their interval."""
    bench = Bench(A, limit=700)
    two = [process(A, 1), process(A, 2)]
    bench.tick(0, 0, two, fresh=True)
    for second in range(1, 300):
        slept = suspended if second >= 100 else 0.0
        time = epoch + second - 0.3 - second * slow
        worked = samples(1, time, sm=0.6) + samples(2, time, sm=0.3)
        bench.tick(second + slept, second * 300 * J, two, utilization=0.9, samples=worked)
    split = sum(sum(one.booked.processes.values()) for one in bench.posted)
    assert split / sum(one.booked.delta for one in bench.posted) >= least, what


@pytest.mark.parametrize("length", [2.0, 15.0, 60.0])
def test_work_that_ends_in_the_middle_of_each_interval_is_no_clock_that_is_behind(length: float) -> None:
    clock = SampleClock()
    for number in range(1, 20):
        worked = samples(1, length * (number - 0.5), sm=0.5)
        assert clock.update(reading(A, samples=tuple(worked)), length * number, UNIX + length * number) == 0


def test_a_sample_that_the_driver_repeats_does_not_count_again() -> None:
    bench = Bench(A)
    one = process(A, 1)
    bench.tick(0, 0, [one], fresh=True)
    for second in range(1, 40):
        worked = samples(1, min(second, 10) - 0.5, sm=0.5)
        bench.tick(float(second), second * 300 * J, [one], utilization=0.0, samples=worked)
    assert [sum(r.work for r in posted.residents) > 0 for posted in bench.posted] == [True] * 10 + [
        False
    ] * 29

"""Energy of GPUs with other rules than NVIDIA's: counters that start anywhere, evidence that is no sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, process, reading, snapshot
from energy_helpers import UNIX, flat, samples
from gpuledger.ledger.energy.counter import CounterReading, EnergyCounter, Epoch
from gpuledger.ledger.energy.energy_ledger import EnergyLedger, StoredGpuEnergy
from gpuledger.ledger.energy.floor import Floors
from gpuledger.ledger.energy.gpu_energy_ledger import Posting
from gpuledger.model import quantities as q
from gpuledger.model.process import GpuProcess, UtilizationSample
from gpuledger.model.snapshot import MeterRules, Reading, Snapshot

CARD = gpu(0)
ONE, TWO = process(CARD, 1), process(CARD, 2)
ENGINE_TIME = MeterRules("", starts_at_zero=False, basis="engine_time")


def tick(
    at: float,
    value: int | None,
    *processes: GpuProcess,
    used: list[UtilizationSample] | None = None,
    rules: MeterRules = ENGINE_TIME,
    boot: str = "boot",
    load: str = "",
    power: float | None = None,
    failed: bool = False,
) -> Snapshot:
    given_ = {q.ENERGY: value, q.POWER: power}
    values = {quantity: number for quantity, number in given_.items() if number is not None}
    found: Reading = reading(CARD, *processes, values=values, samples=tuple(used or ()), rules=rules)
    whole = snapshot(found, unix=UNIX + at, devices_failed=failed)
    return replace(whole, elapsed=at, boot_id=boot, driver_load=load)


class Books:
    """An energy ledger and its postings."""

    def __init__(self, stored: StoredGpuEnergy | None = None) -> None:
        self.ledger = EnergyLedger(Floors())
        if stored is not None:
            self.ledger.resume({CARD.uuid: stored})
        self.posted: list[Posting] = []

    def post(self, *ticks: Snapshot) -> list[Posting]:
        found = [posting for one in ticks for posting in self.ledger.post(one)]
        self.posted += found
        return found

    @property
    def counter(self) -> EnergyCounter:
        return self.ledger.gpu_ledgers[CARD.uuid].counter

    def restarted(self) -> Books:
        return Books(StoredGpuEnergy(self.counter))

    @property
    def total(self) -> int:
        return sum(posting.millijoules for posting in self.posted)


def test_the_split_is_by_engine_time_and_the_method_says_so() -> None:
    books = Books()
    books.post(tick(0, 500, ONE, TWO), tick(1, 600, ONE, TWO))
    used = [*samples(1, 2.0, sm=3.0), *samples(2, 2.0, sm=1.0)]
    (posting,) = books.post(tick(2, 1000, ONE, TWO, used=used))
    # Queueing counts: shares can pass 1, and are weights all the same.
    assert flat(posting) == {1: 300, 2: 100}
    assert posting.booked.method == "engine_time"


@pytest.mark.parametrize("basis", ["engine_time", "occupancy", "equal"])
def test_a_process_alone_is_never_measured(basis: str) -> None:
    books, rules = Books(), replace(ENGINE_TIME, basis=basis)
    books.post(tick(0, 500, ONE, rules=rules), tick(1, 600, ONE, rules=rules))
    (posting,) = books.post(tick(2, 1000, ONE, used=samples(1, 2.0, sm=0.5), rules=rules))
    assert (flat(posting), posting.booked.method) == ({1: 400}, basis)


def test_the_driver_s_own_samples_are_measured_as_before() -> None:
    books = Books()
    books.post(tick(0, 500, ONE, rules=MeterRules()), tick(1, 600, ONE, rules=MeterRules()))
    (posting,) = books.post(tick(2, 1000, ONE, used=samples(1, 2.0, sm=0.5), rules=MeterRules()))
    assert posting.booked.method == "measured"


def test_without_a_process_nothing_is_split() -> None:
    books = Books()
    books.post(tick(0, 500), tick(1, 600))
    (posting,) = books.post(tick(2, 1000))
    assert (flat(posting), posting.booked.method) == ({"idle": 400}, "measured")


def test_integrated_power_is_split_by_the_same_evidence() -> None:
    books = Books()
    books.post(tick(0, None, ONE, power=100.0), tick(1, None, ONE, power=100.0))
    (posting,) = books.post(tick(2, None, ONE, used=samples(1, 2.0, sm=0.5), power=100.0))
    assert (flat(posting), posting.booked.method, posting.integrated) == ({1: 100_000}, "engine_time", True)


@pytest.mark.parametrize(
    ("bases", "method"),
    [
        (("engine_time", "engine_time"), "engine_time"),
        (("engine_time", "occupancy"), "occupancy"),
        (("occupancy", "engine_time"), "occupancy"),
        (("equal", "occupancy"), "equal"),
    ],
)
def test_the_weakest_evidence_of_an_interval_names_the_method(bases: tuple[str, str], method: str) -> None:
    books = Books()
    rules = [replace(ENGINE_TIME, basis=basis) for basis in bases]
    books.post(tick(0, 500, ONE, TWO), tick(1, 600, ONE, TWO))
    # The counter does not move at 2: the interval remains open.
    books.post(tick(2, 600, ONE, TWO, used=samples(1, 2.0, sm=0.5), rules=rules[0]))
    (posting,) = books.post(tick(3, 1000, ONE, TWO, used=samples(2, 3.0, sm=0.5), rules=rules[1]))
    assert (flat(posting), posting.booked.method) == ({1: 200, 2: 200}, method)


def test_work_of_processes_that_may_not_be_seen_is_unattributed() -> None:
    books = Books()
    books.post(tick(0, 500, ONE), tick(1, 600, ONE))
    hidden = tick(2, 1000, ONE, used=samples(1, 2.0, sm=0.3))
    (reading_,) = hidden.readings
    (posting,) = books.post(replace(hidden, readings=(replace(reading_, unseen=0.1),)))
    assert flat(posting) == {1: 300, "unattributed": 100}
    # The next interval has none again.
    (posting,) = books.post(tick(3, 1400, ONE, used=samples(1, 3.0, sm=0.3)))
    assert flat(posting) == {1: 400}


def test_a_new_boot_books_nothing_from_before_the_first_move() -> None:
    books = Books()
    books.post(tick(0, 500, ONE), tick(1, 600, ONE), tick(2, 700, ONE))
    again = books.restarted()
    # The register holds 59,541 J of its past.
    again.post(tick(10, 59_541_000, ONE, boot="next"), tick(11, 59_541_100, ONE, boot="next"))
    (posting,) = again.post(tick(12, 59_541_300, ONE, boot="next"))
    assert (again.total, flat(posting)) == (200, {1: 200})


def test_a_counter_that_starts_at_zero_books_the_new_boot_as_before() -> None:
    books, rules = Books(), MeterRules()
    books.post(*(tick(at, 500 + at * 100, ONE, rules=rules) for at in range(3)))
    again = books.restarted()
    again.post(*(tick(10 + at, 5000 + at * 100, ONE, boot="next", rules=rules) for at in range(3)))
    assert again.total == 5200


def test_a_restart_in_the_same_boot_goes_on_from_the_stored_reading() -> None:
    books = Books()
    books.post(tick(0, 500, ONE), tick(1, 600, ONE), tick(2, 700, ONE))
    again = books.restarted()
    again.post(tick(30, 5000, ONE), tick(31, 5100, ONE))
    (posting,) = again.post(tick(32, 5400, ONE))
    # What the counter gained meanwhile is unobserved, not lost.
    assert (books.total + again.total, flat(posting)) == (5400 - 600, {1: 300})


def test_a_fall_is_a_new_start_that_books_nothing_and_is_counted() -> None:
    books = Books()
    books.post(tick(0, 90_000, ONE), tick(1, 91_000, ONE), tick(2, 92_000, ONE))
    books.post(tick(3, 70_000, ONE), tick(4, 70_100, ONE))
    (posting,) = books.post(tick(5, 70_300, ONE))
    assert (flat(posting), books.ledger.invalid) == ({1: 200}, 1)
    # 1000 before the fall, then the moves seen after it.
    assert books.total == 1000 + 100 + 200


def test_another_file_of_the_same_card_is_another_counter() -> None:
    card, package = (replace(ENGINE_TIME, epoch=epoch) for epoch in ("card", "pkg"))
    books = Books()
    books.post(*(tick(at, 10_000 + at * 100, ONE, rules=card) for at in range(3)))
    again = books.restarted()
    # It is higher: without its name the difference would be booked.
    again.post(*(tick(10 + at, 19_000 + at * 100, ONE, rules=package) for at in range(3)))
    assert again.total == 100


def test_the_load_of_another_maker_s_driver_changes_nothing() -> None:
    books = Books()
    books.post(tick(0, 500, ONE, load="1"), tick(1, 600, ONE, load="1"), tick(2, 700, ONE, load="2"))
    (posting,) = books.post(tick(3, 900, ONE, load="2"))
    assert (flat(posting), books.total) == ({1: 200}, 300)


def test_gpus_of_another_source_that_cannot_be_listed_change_nothing() -> None:
    rules = replace(ENGINE_TIME, listed=True)
    books = Books()
    books.post(*(tick(at, 500 + at * 100, ONE, rules=rules, failed=True) for at in range(3)))
    assert [flat(posting) for posting in books.posted] == [{1: 100}]
    incomplete = Books()
    incomplete.post(*(tick(at, 500 + at * 100, ONE, failed=True) for at in range(3)))
    assert incomplete.posted == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("rise"), st.integers(0, 5000)),
            st.tuples(st.just("jump"), st.integers(0, 90_000)),
            st.tuples(st.just("boot"), st.integers(0, 90_000)),
            st.tuples(st.just("restart"), st.integers(0, 5000)),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_what_is_booked_is_what_was_seen_to_rise(events: list[tuple[str, int]]) -> None:
    """Whatever the counter does, its value when a life of it begins is never booked."""
    books, value, boot, total = Books(), 50_000, 0, 0
    risen = 0
    for at, (kind, amount) in enumerate(events):
        if kind == "rise":
            value, risen = value + amount, risen + amount
        elif kind == "restart":
            value, risen = value + amount, risen + amount
            total += books.total
            books = books.restarted() if books.ledger.gpu_ledgers else Books()
        else:
            # Within a boot, a jump upwards looks like energy.
            risen += max(0, amount - value) if kind == "jump" else 0
            boot += kind == "boot"
            value = amount
        books.post(tick(at, value, ONE, used=samples(1, float(at), sm=0.5), boot=f"boot {boot}"))
    assert total + books.total <= risen


def test_a_counter_reading_keeps_its_rule_until_the_fall_is_confirmed() -> None:
    counter = EnergyCounter(Epoch("boot"))
    readings = [
        CounterReading(0, 9000, True, 100.0, False),
        CounterReading(1, 9100, True, 100.0, False),
        CounterReading(2, 8000, True, 100.0, False),
        CounterReading(3, 8050, True, 100.0, False),
    ]
    for one in readings:
        counter, verdict = counter.take_reading(one)
    assert (counter.opening, counter.booked, verdict.unobserved, verdict.epoch_closed) == (
        8000,
        8050,
        50,
        True,
    )

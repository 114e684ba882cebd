"""Power that is summed to energy: readings that cannot be true are left out, counted and logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from builders import gpu, process, reading, snapshot
from energy_helpers import UNIX, Bench
from gpuledger.ledger.energy.energy_ledger import EnergyLedger
from gpuledger.ledger.energy.floor import Floors
from gpuledger.model import quantities as q
from gpuledger.model.snapshot import Reading

CARD = gpu(0, name="NVIDIA T4")
RESIDENT = process(CARD, 1)
J, WATTS, LIMIT = 1000, 60.0, 70.0


def energy(
    wrong: Mapping[int, float], seconds: int = 100, limit: float | None = LIMIT, usual: float = WATTS
) -> tuple[float, int]:
    """Joules of a GPU without a counter, and the number of rejected readings."""
    bench = Bench(CARD, limit=limit)
    for second in range(seconds + 1):
        bench.tick(float(second), None, [RESIDENT], power=wrong.get(second, usual))
    return sum(one.millijoules for one in bench.posted) / J, bench.book.invalid


@pytest.mark.parametrize(
    ("what", "wrong", "joules", "invalid"),
    [
        ("nothing wrong", {}, 6000, 0),
        ("a spike", {50: 65_535.0}, 6000, 1),
        ("two spikes in a row", {50: 65_535.0, 51: 9_999.0}, 6000, 2),
        ("three spikes", {20: 65_535.0, 40: 65_535.0, 60: 65_535.0}, 6000, 3),
        ("the first reading", {0: 65_535.0}, 5940, 1),
        ("the last reading", {100: 65_535.0}, 5940, 1),
        ("a peak that the board can draw", {50: 140.0}, 6080, 0),
        ("just above", {50: 140.1}, 6000, 1),
        ("a minute of nonsense", dict.fromkeys(range(20, 79), 65_535.0), 6000, 59),
        ("nonsense for longer is a gap", dict.fromkeys(range(20, 80), 65_535.0), 6000 - 61 * 60, 60),
    ],
)
def test_a_reading_beyond_twice_the_limit_is_left_out(
    what: str, wrong: Mapping[int, float], joules: float, invalid: int
) -> None:
    assert energy(wrong) == (joules, invalid), what


def test_without_a_known_limit_every_reading_counts() -> None:
    assert energy({50: 1000.0}, limit=None) == (6000 + 940, 0)


def test_after_a_minute_the_limit_is_what_is_wrong() -> None:
    """Some drivers report a limit that is not that of the board."""
    joules, invalid = energy({}, seconds=161, limit=5.0)
    assert (joules, invalid) == (WATTS * 100, 61)


def test_the_power_of_a_gpu_with_a_counter_is_no_energy_and_not_counted() -> None:
    bench = Bench(CARD, limit=LIMIT)
    bench.tick(0, 0, [RESIDENT], fresh=True, power=WATTS)
    for second in range(1, 21):
        bench.tick(float(second), second * 60 * J, [RESIDENT], power=65_535.0)
    assert sum(one.millijoules for one in bench.posted) == 20 * 60 * J
    assert bench.book.invalid == 0


def test_wrong_power_beside_the_first_reading_of_a_counter_is_not_counted() -> None:
    bench = Bench(CARD, limit=LIMIT)
    for second in range(11):
        bench.tick(float(second), second * 60 * J, [RESIDENT], power=65_535.0)
    assert bench.book.invalid == 0


def test_the_power_that_replaces_a_frozen_counter_is_checked_too() -> None:
    bench = Bench(CARD, limit=LIMIT)
    bench.tick(0, 0, [RESIDENT], fresh=True, power=WATTS)
    for second in range(1, 101):
        bench.tick(float(second), 0, [RESIDENT], power=65_535.0 if second in (30, 80) else WATTS)
    assert bench.book.frozen
    assert sum(one.millijoules for one in bench.posted) == 100 * 60 * J
    assert bench.book.invalid == 1, "at 30 s the counter was not yet known to be frozen"


@pytest.mark.parametrize("wrong", [None, 65_535.0], ids=["absent", "beyond the limit"])
@pytest.mark.parametrize("missing", [{60}, {60, 61}, set(range(55, 64))])
def test_a_counter_that_is_frozen_while_power_is_missing_costs_no_energy(
    missing: set[int], wrong: float | None
) -> None:
    bench = Bench(CARD, limit=LIMIT)
    bench.tick(0, 0, [RESIDENT], fresh=True, power=WATTS)
    for second in range(1, 101):
        power = wrong if second in missing else WATTS
        bench.tick(float(second), 0, [RESIDENT], power=power, utilization=0.5)
    assert bench.book.frozen
    assert sum(one.millijoules for one in bench.posted) == 100 * 60 * J


def test_a_limit_of_0_is_no_limit() -> None:
    book = EnergyLedger(Floors())
    for second in range(11):
        values = {q.ENERGY: second * 60 * J, q.POWER: WATTS, q.POWER_LIMIT: 0.0}
        tick = snapshot(reading(CARD, RESIDENT, values=values), unix=second)
        posted = book.post(replace(tick, elapsed=float(second)))
        assert [one.booked.delta for one in posted] == ([60 * J] if second > 1 else []), second
    assert book.invalid == 0


def test_the_first_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    book = EnergyLedger(Floors())

    def read(watts: float) -> Reading:
        return reading(CARD, RESIDENT, values={q.POWER: watts, q.POWER_LIMIT: LIMIT})

    for second, watts in enumerate((60.0, 65_535.0, 60.0, 65_535.0, 60.0)):
        book.post(replace(snapshot(read(watts), unix=second), elapsed=float(second)))
    assert book.invalid == 2
    (logged,) = (record.getMessage() for record in caplog.records)
    assert logged.startswith(f"the power of GPU {CARD.uuid} read 65535.0 W, more than twice its limit")


def test_a_rejected_counter_is_logged_as_such_while_power_is_wrong_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    book = EnergyLedger(Floors())
    for second, counter in enumerate((0, 60, 120, 10_000_000, 240, 300)):
        values = {q.ENERGY: counter * J, q.POWER: 65_535.0 if second > 2 else WATTS, q.POWER_LIMIT: LIMIT}
        tick = snapshot(reading(CARD, RESIDENT, values=values), unix=second)
        book.post(replace(tick, elapsed=float(second)))
    assert book.invalid == 1
    (logged,) = (record.getMessage() for record in caplog.records)
    assert logged.startswith(f"the energy counter of GPU {CARD.uuid} read 10000000000 mJ")


@pytest.mark.parametrize("what", ["a pause", "readings without power", "a suspend"])
def test_nonsense_before_a_gap_does_not_make_that_after_it_true(what: str) -> None:
    bench = Bench(CARD, limit=LIMIT)
    for second, power in enumerate((WATTS, WATTS, 65_535.0)):
        bench.tick(float(second), None, [RESIDENT], power=power)
    if what == "a pause":
        bench.book.interrupt()
    elif what == "readings without power":
        for second in range(3, 100):
            bench.tick(float(second), None, [RESIDENT])
    for second in range(100, 111):
        bench.tick(float(second), None, [RESIDENT], power=65_535.0 if second == 100 else WATTS)
    assert sum(one.millijoules for one in bench.posted) == (1 + 9) * 60 * J


@pytest.mark.parametrize(
    ("what", "utilization", "absent", "joules"),
    [
        ("one reading", 0.5, {50}, 6000),
        ("every other one", 0.5, set(range(1, 100, 2)), 6000),
        ("no utilization is reported", None, {50}, 6000),
        ("a minute", 0.5, set(range(20, 79)), 6000),
        ("longer is a gap", 0.5, set(range(20, 80)), 6000 - 61 * 60),
        ("an idle GPU may be asleep", 0.0, {50}, 6000 - 2 * 60),
    ],
)
def test_a_busy_gpu_draws_power_while_it_is_not_read(
    what: str, utilization: float | None, absent: set[int], joules: float
) -> None:
    bench = Bench(CARD, limit=LIMIT)
    for second in range(101):
        power = None if second in absent else WATTS
        bench.tick(float(second), None, [RESIDENT], power=power, utilization=utilization, samples=None)
    assert sum(one.millijoules for one in bench.posted) == joules * J, what
    assert sum(sum(one.booked.processes.values()) for one in bench.posted) == joules * J, what


def test_no_energy_is_summed_over_a_time_in_which_the_gpu_was_down() -> None:
    bench = Bench(CARD)
    for second in range(21):
        if second == 10:
            bench.book.post(10.0, UNIX + 10, Reading(CARD, up=False, processes=None), (), whole=True)
        else:
            bench.tick(float(second), None, [RESIDENT], power=WATTS)
    assert sum(one.millijoules for one in bench.posted) == 18 * WATTS * J


@pytest.mark.parametrize(("what", "wrong"), [("absent", None), ("beyond the limit", 65_535.0)])
def test_readings_that_are_left_out_teach_no_lower_floor(what: str, wrong: float | None) -> None:
    for utilization in (None, 0.0):
        bench = Bench(CARD, limit=LIMIT)
        for second in range(1000):
            power = wrong if second % 15 == 14 else WATTS
            bench.tick(float(second), None, [RESIDENT], power=power, utilization=utilization)
        assert bench.book.floors.resident.floor() in (None, 60_050), (what, utilization)


@pytest.mark.parametrize(("seconds", "unobserved"), [(59, 0), (60, 61), (100, 101)])
def test_power_is_unobserved_if_no_list_was_read_for_more_than_a_minute(
    seconds: int, unobserved: int
) -> None:
    """As the energy of a counter is."""
    bench = Bench(CARD)
    for second in range(300):
        lists = None if 100 < second <= 100 + seconds else [RESIDENT]
        bench.tick(float(second), None, lists, power=WATTS)
    assert sum(one.unobserved for one in bench.posted) == unobserved * WATTS * J
    assert sum(one.millijoules for one in bench.posted) == 299 * WATTS * J


@pytest.mark.parametrize(
    ("devices_failed", "joules"),
    [
        # Taken out for five of ten seconds: the time until it is back is without power.
        (False, 4 * WATTS),
        # Perhaps it was here, and only the list of GPUs could not be read.
        (True, 10 * WATTS),
    ],
)
def test_a_gpu_that_was_taken_out_drew_no_power(devices_failed: bool, joules: float) -> None:
    book, posted = EnergyLedger(Floors()), 0
    for second in range(11):
        here = [] if 3 <= second < 8 else [reading(CARD, values={q.POWER: WATTS})]
        at = replace(
            snapshot(*here),
            elapsed=float(second),
            unix=UNIX + second,
            devices_failed=devices_failed and not here,
        )
        posted += sum(one.millijoules for one in book.post(at))
    assert posted / J == joules

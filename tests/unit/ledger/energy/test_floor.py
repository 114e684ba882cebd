"""Idle power (floors): learned from quiet minutes, or configured."""

from __future__ import annotations

import pytest

from builders import gpu, instance, process
from energy_helpers import UNIX, Bench
from gpuledger.ledger.energy.floor import FloorEstimator, Floors, QuietPower

A = gpu(0, sm_count=132)
J = 1000


def test_power_is_learned_in_steps_of_a_hundred_milliwatts() -> None:
    """Fractions of a watt are grouped, so that the data of a week is small."""
    quiet = QuietPower()
    for milliwatts in (70_000, 70_099, 70_100):
        quiet.add(UNIX, milliwatts, 30.0)
    assert quiet.days == {int(UNIX // 86_400): {700: 60.0, 701: 30.0}}
    assert quiet.floor() == 70_050


def test_the_resident_floor_is_learned_from_inactive_residents_of_instances() -> None:
    cut = instance(A, 1, sm_count=16)
    bench = Bench(A, parts=(cut,))
    tenant = process(cut, 1)
    bench.tick(0, 0, [tenant], fresh=True, activity={cut: 0.0})
    for second in range(1, 100):
        bench.tick(float(second), second * 90 * J, [tenant], activity={cut: 0.0})
    assert bench.book.floors.floors == Floors(None, 90_050)


@pytest.mark.parametrize(("seconds", "known"), [(59.0, None), (60.0, 70_050)])
def test_a_floor_is_known_after_a_minute_of_quiet(seconds: float, known: int | None) -> None:
    quiet = QuietPower()
    quiet.add(UNIX, 70_000, seconds)
    assert quiet.floor() == known


def test_the_floor_is_the_fifth_percentile() -> None:
    quiet = QuietPower()
    for milliwatts, seconds in ((60_000, 49.0), (65_000, 2.0), (80_000, 949.0)):
        quiet.add(UNIX, milliwatts, seconds)
    assert quiet.floor() == 65_050


def test_data_older_than_a_week_is_discarded() -> None:
    quiet = QuietPower()
    quiet.add(UNIX, 60_000, 100.0)
    for day in range(1, 8):
        quiet.add(UNIX + day * 86_400, 80_000, 100.0)
    assert (
        set(quiet.days)
        == {day for day, _ in quiet.changed}
        == {int(UNIX // 86_400) + day for day in range(1, 8)}
    )
    assert quiet.floor() == 80_050


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Floors(), (0, 0)),
        (Floors(empty=60), (60, 60)),
        (Floors(resident=90), (0, 90)),
        (Floors(60, 90), (60, 90)),
        (Floors(60, 0), (60, 60)),
    ],
)
def test_an_unknown_empty_floor_counts_as_zero_and_a_resident_one_is_never_lower(
    given: Floors, expected: tuple[int, int]
) -> None:
    assert given.pair == expected


def test_learned_floors_apply_after_another_minute_and_configured_floors_at_once() -> None:
    book = FloorEstimator()
    assert book.floors == Floors()
    book.learn(UNIX, 60_000, 59.0, has_residents=False)
    assert book.floors == Floors()
    book.learn(UNIX, 60_000, 1.0, has_residents=False)
    assert book.floors == Floors(empty=60_050)
    book.learn(UNIX, 90_000, 60.0, has_residents=True)
    assert book.floors == Floors(60_050, 90_050)
    book.set_configured(Floors(empty=10_000))
    assert book.floors == Floors(10_000, 90_050)
    book.set_configured(Floors(resident=0))
    assert book.floors == Floors(60_050, 0)

"""The refresh of a counter, and its agreement with power."""

from __future__ import annotations

import pytest

from gpuledger.selftest.meters import format_time, measure_agreement, measure_refresh

# Readings every 10 ms, and a counter that moves every 100 ms by 30 J: 300 W.
POINTS = [(n / 100, 1_000_000 + n // 10 * 30_000) for n in range(1000)]


def test_the_refresh_is_the_time_between_moves() -> None:
    found = measure_refresh(POINTS)
    assert found is not None
    assert found.moves == 99
    assert (found.usual, found.longest) == (pytest.approx(0.1), pytest.approx(0.1))
    assert found.resolution == pytest.approx(0.01)


@pytest.mark.parametrize("points", [[], POINTS[:1], POINTS[:10], POINTS[:15]])
def test_fewer_than_two_moves_show_no_refresh(points: list[tuple[float, int]]) -> None:
    assert measure_refresh(points) is None


@pytest.mark.parametrize(
    ("watts", "agrees"),
    [
        (300.0, True),
        (310.0, True),  # 3 %: within the accuracy of power.
        (360.0, False),
        (200.0, False),
    ],
)
def test_the_counter_is_compared_with_power_from_its_first_to_its_last_move(
    watts: float, agrees: bool
) -> None:
    found = measure_agreement(POINTS, [(n / 20, watts) for n in range(200)])
    assert found is not None
    assert found.counter == pytest.approx(300 * found.seconds)
    assert found.integral == pytest.approx(watts * found.seconds)
    assert found.agrees is agrees


def test_a_change_of_power_widens_the_margin_by_the_last_second() -> None:
    steady = measure_agreement(POINTS, [(n / 20, 300.0) for n in range(200)])
    rising = measure_agreement(POINTS, [(n / 20, 200.0 + n) for n in range(200)])
    assert steady is not None and rising is not None
    assert rising.margin > steady.margin + 190


@pytest.mark.parametrize("power", [[], [(0.5, 300.0)], [(n, 300.0) for n in range(20, 40)]])
def test_without_two_readings_of_power_between_moves_nothing_is_compared(
    power: list[tuple[float, float]],
) -> None:
    assert measure_agreement(POINTS, power) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0104, "10 ms"), (0.1034, "100 ms"), (0.1667, "170 ms"), (1.0, "1 s"), (12.0, "12 s")],
)
def test_times_are_rounded_so_that_equal_gpus_have_equal_lines(seconds: float, text: str) -> None:
    assert format_time(seconds) == text

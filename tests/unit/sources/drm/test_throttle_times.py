"""Throttled time from the residency counters of gpu_metrics 1.6 and later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drm_machine import metrics_table
from gpuledger.model import quantities as q
from gpuledger.sources.drm.gpu_metrics import GpuMetrics, parse_gpu_metrics
from gpuledger.sources.drm.throttle_times import ResidencyTimes

NAMES = (
    *("accumulation_counter", "prochot_residency_acc", "ppt_residency_acc", "socket_thm_residency_acc"),
    *("vr_thm_residency_acc", "hbm_thm_residency_acc"),
)


def table(version: tuple[int, int] = (1, 7), **counters: int) -> GpuMetrics:
    return parse_gpu_metrics(metrics_table(version, **counters))


def counters(periods: int, **grown: int) -> dict[str, int]:
    return {"accumulation_counter": periods} | {name: grown.get(name, 0) for name in NAMES[1:]}


@pytest.mark.parametrize("version", [(1, 6), (1, 7), (1, 8)])
def test_a_residency_is_a_share_of_the_time_between_two_readings(version: tuple[int, int]) -> None:
    times = ResidencyTimes()
    first = times.read(table(version, **counters(5000, ppt_residency_acc=70)), 10.0)
    # What was before the first reading is not counted, but the quantity is there.
    assert first == {q.POWER_VIOLATION: 0, q.THERMAL_VIOLATION: 0, q.HARDWARE_THERMAL_TIME: 0}
    found = times.read(
        table(
            version,
            **counters(6000, ppt_residency_acc=320, hbm_thm_residency_acc=100, vr_thm_residency_acc=40),
        ),
        12.0,
    )
    assert found == {
        q.POWER_VIOLATION: 500_000_000,
        q.THERMAL_VIOLATION: 200_000_000,
        q.HARDWARE_THERMAL_TIME: 0,
    }


def test_a_counter_of_32_bits_turns_over() -> None:
    times = ResidencyTimes()
    end = (1 << 32) - 1 - 50
    times.read(table(**counters(end, ppt_residency_acc=end)), 0.0)
    found = times.read(table(**counters(49)), 1.0)
    assert found[q.POWER_VIOLATION] == round(1e9 * 51 / 100)


def test_counters_that_restarted_add_nothing() -> None:
    times = ResidencyTimes()
    times.read(table(**counters(5000, ppt_residency_acc=4000)), 0.0)
    assert times.read(table(**counters(10, ppt_residency_acc=5)), 1.0)[q.POWER_VIOLATION] <= 10**9
    assert times.read(table(**counters(110, ppt_residency_acc=205)), 2.0)[q.POWER_VIOLATION] <= 10**9


@pytest.mark.parametrize("metrics", [None, table((1, 3)), table((1, 5)), table((1, 7))])
def test_a_table_without_the_counters_has_no_times(metrics: GpuMetrics | None) -> None:
    assert ResidencyTimes().read(metrics, 1.0) == {}


@given(st.lists(st.fixed_dictionaries({name: st.integers(0, (1 << 32) - 2) for name in NAMES}), max_size=8))
def test_times_never_fall_and_never_pass_the_clock(readings: list[dict[str, int]]) -> None:
    times, before = ResidencyTimes(), {}
    for at, given_ in enumerate(readings):
        found = dict(times.read(table(**given_), float(at)))
        assert all(before.get(quantity, 0) <= value <= at * 1e9 for quantity, value in found.items())
        before = found

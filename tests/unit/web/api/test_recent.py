"""/api/v1/recent: means over steps, gaps, and a fixed amount of memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping

import pytest

from builders import GIB, gpu, instance, node_state, reading, snapshot
from gpuledger.model import quantities as q
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading
from gpuledger.web.api.recent import POINTS, RecentHistory

# A step begins here.
START = 1_700_000_000.0


def at(seconds: float, *readings: Reading) -> NodeState:
    return node_state(snapshot(*readings, unix=START + seconds))


def working(values: Mapping[Quantity, float] | None = None, index: int = 0) -> Reading:
    return reading(gpu(index), values={} if values is None else values)


def lines(recent: RecentHistory, device: int = 0) -> tuple[list[float | None], ...]:
    devices = recent.to_json()["devices"][device]
    return (devices["utilization_ratio"], devices["power_watts"], devices["memory_used_bytes"])


def power(recent: RecentHistory, device: int = 0) -> list[float | None]:
    return lines(recent, device)[1]


def test_a_point_is_the_mean_over_its_step() -> None:
    recent = RecentHistory()
    for second, watts in enumerate((100.0, 200.0, 300.0, 400.0)):
        recent.add(at(second * 3, working({q.POWER: watts, q.MEMORY_USED: 80 * GIB - 1})))
    recent.add(at(10, working({q.POWER: 1.0})))
    assert lines(recent) == ([None], [250.0], [80 * GIB - 1])
    assert recent.to_json()["until"] == START + 10


def test_the_open_step_is_omitted() -> None:
    recent = RecentHistory()
    recent.add(at(0, working({q.POWER: 100.0})))
    assert recent.to_json()["devices"][0]["power_watts"] == []


def test_absent_is_null_and_zero_is_zero() -> None:
    recent = RecentHistory()
    for step, values in enumerate(({q.UTILIZATION: 0.0}, {}, {q.UTILIZATION: 0.12345})):
        recent.add(at(10 * step, working(values)))
    recent.add(at(30))
    assert lines(recent)[0] == [0.0, None, 0.1235]


def test_time_without_readings_is_a_gap() -> None:
    recent = RecentHistory()
    recent.add(at(0, working({q.POWER: 5.0})))
    recent.add(node_state(None))
    recent.add(at(40, working({q.POWER: 7.0})))
    recent.add(at(50))
    assert power(recent) == [5.0, None, None, None, 7.0]


def test_a_device_added_later_has_null_before() -> None:
    recent = RecentHistory()
    recent.add(at(0, working({q.POWER: 5.0})))
    recent.add(at(10, working({q.POWER: 5.0}), working({q.POWER: 6.0}, index=1)))
    recent.add(at(20))
    assert [power(recent, 0), power(recent, 1)] == [[5.0, 5.0], [None, 6.0]]


def test_an_instance_is_listed_next_to_its_gpu() -> None:
    part = instance(gpu(), 2)
    recent = RecentHistory()
    recent.add(at(0, working(), reading(part, values={q.ENGINE_ACTIVITY: 0.5})))
    recent.add(at(10))
    devices = recent.to_json()["devices"]
    assert [(one["uuid"], one["instance"]) for one in devices] == [("GPU-0", ""), ("GPU-0", "2_0")]
    assert devices[1]["utilization_ratio"] == [0.5]


def test_exactly_an_hour_is_kept() -> None:
    recent = RecentHistory()
    for step in range(POINTS + 25):
        recent.add(at(10 * step, working({q.POWER: float(step)})))
    assert power(recent) == [float(step) for step in range(24, POINTS + 24)]


def test_a_device_absent_for_an_hour_is_dropped() -> None:
    recent = RecentHistory()
    recent.add(at(0, working(), working(index=1)))
    for step in range(1, POINTS + 2):
        recent.add(at(10 * step, working()))
    assert [one["uuid"] for one in recent.to_json()["devices"]] == ["GPU-0"]


def test_slewing_the_clock_back_keeps_the_history() -> None:
    recent = RecentHistory()
    recent.add(at(0, working({q.POWER: 1.0})))
    recent.add(at(10, working({q.POWER: 2.0})))
    recent.add(at(9.9, working({q.POWER: 4.0})))
    recent.add(at(20))
    assert power(recent) == [1.0, 3.0]


@pytest.mark.parametrize("jump", [-86_400, 3_600, 10**9])
def test_setting_the_clock_restarts_the_history(jump: float) -> None:
    recent = RecentHistory()
    for step in range(3):
        recent.add(at(10 * step, working({q.POWER: 1.0})))
    for step in range(3):
        recent.add(at(jump + 30 + 10 * step, working({q.POWER: 2.0})))
    assert power(recent) == [2.0, 2.0]
    assert recent.to_json()["until"] == START + jump + 50


def test_faster_simulated_time_has_longer_steps() -> None:
    recent = RecentHistory(step=60)
    for minute in range(3):
        recent.add(at(60 * minute - START % 60, working({q.POWER: float(minute)})))
    assert (recent.to_json()["step_seconds"], power(recent)) == (60, [0.0, 1.0])


def test_eight_gpus_never_exceed_200_kb() -> None:
    recent = RecentHistory()
    cards = [gpu(index) for index in range(8)]
    values = {q.UTILIZATION: 0.5, q.POWER: 500.0, q.MEMORY_USED: 1e9}
    tracemalloc.start()
    for step in range(2 * POINTS):
        recent.add(at(10 * step, *(reading(card, values=values) for card in cards)))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 200_000

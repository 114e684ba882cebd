"""Judge the energy counter: how often the driver refreshes it, and whether it agrees with power x time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from gpuledger.ledger.energy.counter import SLOWEST_REFRESH
from gpuledger.model.checks import Finding, Subject, Verdict
from gpuledger.model.quantities import ENERGY, POWER
from gpuledger.model.snapshot import Reading
from gpuledger.selftest.folding import GpuVerdict, fold
from gpuledger.selftest.observation import Observation
from gpuledger.sources.nvml.measurements import MeterPoint

REFRESH: Final = Subject("selftest.energy_counter", "energy counter")
AGREEMENT: Final = Subject("selftest.energy_power", "energy and power x time")
# nvml.h states an accuracy of 5 % or 5 W for power. From Ampere on, power is the mean of the last second.
_ACCURACY: Final = 0.05
_ACCURACY_WATTS: Final = 5.0
_POWER_LAG: Final = 1.0
_REPORT: Final = "attach the report (--report FILE) to an issue; the ledger books the counter"


@dataclass(frozen=True, slots=True)
class CounterRefresh:
    """Times between moves of a counter, in seconds. `resolution` is the time between two readings of it."""

    moves: int
    shortest: float
    usual: float
    longest: float
    resolution: float


@dataclass(frozen=True, slots=True)
class EnergyAgreement:
    """The increase of the counter between two moves and the integral of power over the same time, in joules.

    `margin` is how far they may differ: accuracy of power, and a change of power within the last second.
    """

    seconds: float
    counter: float
    integral: float
    margin: float

    @property
    def ratio(self) -> float:
        """By which part of the integral the counter differs from it; 0 if both are 0."""
        return (self.counter - self.integral) / self.integral if self.integral else 0.0

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the margin."""
        return abs(self.counter - self.integral) <= self.margin


def counter_points(observation: Observation, uuid: str) -> list[tuple[float, int]]:
    """Time and millijoules of each reading of the counter; from the ticks if the fast readings have none."""
    fast = [
        (point.at, point.energy) for point in observation.meters.get(uuid, ()) if point.energy is not None
    ]
    return fast or [
        (snapshot.elapsed, int(value))
        for snapshot in observation.snapshots
        for reading in snapshot.readings
        if reading.device.uuid == uuid and (value := reading.get(ENERGY)) is not None
    ]


def moves(points: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """The readings at which the counter had another value than before."""
    return [after for before, after in pairwise(points) if after[1] != before[1]]


def measure_refresh(points: Sequence[tuple[float, int]]) -> CounterRefresh | None:
    """The refresh of a counter; None with fewer than two moves."""
    gaps = [after - before for (before, _), (after, _) in pairwise(moves(points))]
    if not gaps:
        return None
    spacing = [after - before for (before, _), (after, _) in pairwise(points)]
    return CounterRefresh(len(gaps) + 1, min(gaps), median(gaps), max(gaps), median(spacing))


def measure_agreement(
    points: Sequence[tuple[float, int]], power: Sequence[tuple[float, float]]
) -> EnergyAgreement | None:
    """Compare the counter with power (time, watts) from its first to its last move; None without data."""
    moved = moves(points)
    if len(moved) < 2:
        return None
    (began, first), (ended, last) = moved[0], moved[-1]
    inside = [point for point in power if began <= point[0] <= ended]
    if len(inside) < 2:
        return None
    # Constant before the first and after the last reading of power, which are a few readings away.
    steps = [(began, inside[0][1]), *inside, (ended, inside[-1][1])]
    integral = sum((after - at) * (watts + later) / 2 for (at, watts), (after, later) in pairwise(steps))
    seconds = ended - began
    margin = max(_ACCURACY * integral, _ACCURACY_WATTS * seconds)
    margin += _POWER_LAG * abs(inside[-1][1] - inside[0][1])
    # The moments of the moves are known to one reading.
    spacing = max(after - before for (before, _), (after, _) in pairwise(points))
    margin += 2 * spacing * max(watts for _, watts in inside)
    return EnergyAgreement(seconds, (last - first) / 1000, integral, margin)


def power_points(points: Sequence[MeterPoint]) -> list[tuple[float, float]]:
    """Time and watts of the readings that have power."""
    return [(point.at, point.power / 1000) for point in points if point.power is not None]


def check_refresh(observation: Observation) -> Iterator[Finding]:
    """Judge the refresh of each Gpu's counter."""
    yield from fold(REFRESH, [_judge_refresh(observation, reading) for reading in _gpus(observation)])


def _gpus(observation: Observation) -> list[Reading]:
    return [
        reading for reading in observation.last.values() if reading.device.uuid == reading.device.gpu.uuid
    ]


def _judge_refresh(observation: Observation, reading: Reading) -> GpuVerdict:
    gpu = reading.device.gpu
    points = counter_points(observation, gpu.uuid)
    if not points:
        if reading.get(POWER) is None:
            why = "neither a counter nor a power reading: this GPU's energy cannot be measured"
            remedy = "in a vGPU guest read the host's GPU instead; else update the driver"
            return GpuVerdict(gpu, Verdict.WARNING, why, remedy)
        why = "this GPU has none (before Volta, and in vGPU guests): power is integrated over time instead"
        return GpuVerdict(gpu, Verdict.SKIPPED, why)
    if any(after < before for (_, before), (_, after) in pairwise(points)):
        return GpuVerdict(gpu, Verdict.WARNING, "a reading was lower than the one before", _REPORT)
    refresh = measure_refresh(points)
    watched = points[-1][0] - points[0][0]
    if refresh is None:
        if watched < 2 * SLOWEST_REFRESH:
            why = f"it moved {len(moves(points))} times in {watched:.0f} s: the refresh is not known"
            return GpuVerdict(gpu, Verdict.UNKNOWN, why, f"watch longer: --for {2 * SLOWEST_REFRESH:.0f}s")
        why = f"it did not move in {watched:.0f} s: power is integrated instead"
        return GpuVerdict(gpu, Verdict.WARNING, why, "update the driver; if that does not help, report it")
    if refresh.longest > SLOWEST_REFRESH:
        why = f"refreshed only every {refresh.longest:.1f} s; gpuledger expects at most {SLOWEST_REFRESH:g} s"
        return GpuVerdict(gpu, Verdict.WARNING, why, _REPORT)
    if refresh.usual < 2 * refresh.resolution:
        return GpuVerdict(
            gpu, Verdict.WORKS, "refreshed at nearly every reading, faster than can be measured"
        )
    return GpuVerdict(gpu, Verdict.WORKS, f"refreshed about every {format_time(refresh.usual)}")


def format_time(seconds: float) -> str:
    """Seconds with two digits, in milliseconds below one second."""
    if seconds >= 1:
        return f"{seconds:.2g} s"
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds < 100 else f"{round(milliseconds, -1):.0f} ms"


def check_agreement(observation: Observation) -> Iterator[Finding]:
    """Compare each Gpu's counter with its power."""
    yield from fold(AGREEMENT, [_judge_agreement(observation, reading) for reading in _gpus(observation)])


def _judge_agreement(observation: Observation, reading: Reading) -> GpuVerdict:
    gpu = reading.device.gpu
    points = counter_points(observation, gpu.uuid)
    if not points:
        return GpuVerdict(gpu, Verdict.SKIPPED, "this GPU has no energy counter")
    if reading.counts_module_energy:
        why = "not comparable: the counter covers the module with its CPU, power only the GPU"
        return GpuVerdict(gpu, Verdict.SKIPPED, why)
    found = measure_agreement(points, power_points(observation.meters.get(gpu.uuid, ())))
    if found is None:
        why = "the counter did not move twice, or power is not readable"
        return GpuVerdict(gpu, Verdict.UNKNOWN, why, "watch longer: --for 1m")
    if found.agrees:
        return GpuVerdict(gpu, Verdict.WORKS, "they agree within the accuracy that NVIDIA states")
    joules = f"the counter rose by {found.counter:.0f} J, power x time is {found.integral:.0f} J"
    why = f"{joules} ({found.ratio:+.0%})"
    return GpuVerdict(gpu, Verdict.WARNING, why, _REPORT)

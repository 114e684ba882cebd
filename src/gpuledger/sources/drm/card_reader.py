"""Reads the quantities of one GPU: values of its driver's files, and its energy counter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from errno import ENODEV
from functools import lru_cache
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import MeterRules
from gpuledger.sources.drm.amd_values import AMD_VALUES
from gpuledger.sources.drm.cards import AMDGPU, INTEL_DRIVERS, DrmCard
from gpuledger.sources.drm.device_files import DeviceFiles, percent
from gpuledger.sources.drm.energy_counters import (
    AmdCounter,
    DieReading,
    IntelEnergy,
    ShortCounter,
    amd_counter,
    to_millijoules,
)
from gpuledger.sources.drm.gpu_metrics import GpuMetrics, present_values
from gpuledger.sources.drm.intel_values import INTEL_VALUES, ReadValue
from gpuledger.sources.drm.throttle_times import THROTTLE_TIMES, ResidencyTimes
from gpuledger.sources.findings import SourceFindings

PART: Final = "readings"
LOST: Final = "GPU_IS_LOST"
# A card that has one of these is not lost.
_LIVENESS: Final = frozenset({q.UTILIZATION, q.POWER, q.ENERGY, q.TEMPERATURE})
_NO_VALUES: Final[Mapping[Quantity, ReadValue]] = {}


@dataclass(slots=True)
class CardValues:
    """What one GPU reported in one tick. `asleep`: the kernel has suspended it, so nothing was read.

    `lost`: the kernel says that the device is gone.
    """

    values: dict[Quantity, float] = field(default_factory=dict)
    supported: dict[str, bool] = field(default_factory=dict)
    asleep: bool = False
    lost: bool = False
    activity: dict[int, float] = field(default_factory=dict)


class CardReadings:
    """State of one GPU between ticks: slow values and when they were read, its counter, activity sums.

    `epoch` names the life of the counter beside the boot (see `MeterRules`).
    """

    def __init__(self, card: DrmCard, files: DeviceFiles, slow_interval: float) -> None:
        self.card = card
        self.files = files
        self.epoch = ""
        self._slow_interval = slow_interval
        self._slow: dict[Quantity, tuple[float, float | None]] = {}
        self._supported: dict[str, bool] = {}
        self._short = ShortCounter()
        self._intel = IntelEnergy()
        self._partitions: dict[int, int] = {}
        self._throttled = ResidencyTimes()

    def update_card(self, card: DrmCard) -> None:
        """Continue with the same GPU, with another index or other partitions."""
        self.card = self.files.card = card

    def read(self, wanted: frozenset[Quantity], now: float, findings: SourceFindings) -> CardValues:
        """Read one tick at `now`, seconds of the boot clock. Never raises."""
        self.files.begin_tick()
        if self.files.is_asleep:
            # A suspended GPU does no work; all else is unknown.
            return CardValues({q.UTILIZATION: 0.0}, dict(self._supported), asleep=True)
        self.files.check_sensors()
        found = CardValues()
        table = self._table()
        for quantity in _in_order(wanted):
            value = self._value(quantity, table, now)
            if value is not None and not quantity.is_possible(value):
                findings.reject(quantity.key, value, self.card.gpu)
                value = None
            if value is not None:
                found.values[quantity] = value
            if quantity.key in q.QUANTITIES:
                found.supported[quantity.key] = value is not None
        self._add_energy(found, wanted, now, findings)
        if self.card.driver == AMDGPU and wanted & THROTTLE_TIMES:
            times = self._throttled.read(self.files.metrics, now)
            for quantity, nanoseconds in times.items():
                if quantity in wanted:
                    found.values[quantity], found.supported[quantity.key] = nanoseconds, True
        if self.card.partitions:
            found.activity = self._partition_activity(found.values.get(q.UTILIZATION))
        self._supported = found.supported
        is_gone = any(error.errno == ENODEV for error in self.files.errors.values())
        found.lost = is_gone and _LIVENESS.isdisjoint(found.values)
        self._note_errors(findings)
        return found

    def rules(self, basis: str, *, listed: bool | None) -> MeterRules:
        """How the ledger books this GPU's counter and samples."""
        return MeterRules(self.epoch, starts_at_zero=False, basis=basis, listed=listed)

    def die(self) -> DieReading | None:
        """What this die of an MI250 reports; None if its table cannot be read."""
        metrics = self.files.metrics
        if metrics is None:
            return None
        busy = percent(self.files.device.number("gpu_busy_percent"))
        return DieReading(metrics.scalar("energy_accumulator") or 0, metrics.scalar("gfx_activity_acc"), busy)

    def _table(self) -> Mapping[Quantity, ReadValue]:
        if self.card.driver == AMDGPU:
            return AMD_VALUES
        return INTEL_VALUES if self.card.driver in INTEL_DRIVERS else _NO_VALUES

    def _value(self, quantity: Quantity, table: Mapping[Quantity, ReadValue], now: float) -> float | None:
        read = table.get(quantity)
        if read is None:
            return None
        if not quantity.slow:
            return read(self.files)
        known = self._slow.get(quantity)
        if known is None or now - known[0] >= self._slow_interval:
            known = self._slow[quantity] = (now, read(self.files))
        return known[1]

    def _add_energy(
        self, found: CardValues, wanted: frozenset[Quantity], now: float, findings: SourceFindings
    ) -> None:
        if not wanted & {q.ENERGY, q.POWER, q.POWER_INSTANT}:
            return
        energy = self._energy(now)
        if energy is not None and not q.ENERGY.is_possible(energy):
            findings.reject(q.ENERGY.key, energy, self.card.gpu)
            energy = None
        if energy is not None and q.ENERGY in wanted:
            found.values[q.ENERGY] = energy
            found.supported[q.ENERGY.key] = True
        watts = self._intel.watts
        if self.card.driver in INTEL_DRIVERS and q.POWER in wanted and watts is not None:
            found.supported[q.POWER.key] = True
            if q.POWER.is_possible(watts):
                found.values[q.POWER] = watts
            else:
                # The counter leapt.
                findings.reject(q.POWER.key, watts, self.card.gpu)

    def _energy(self, now: float) -> int | None:
        files = self.files
        if self.card.driver in INTEL_DRIVERS:
            hwmon = files.hwmon
            energy = None if hwmon is None else self._intel.read(hwmon, files.labels("energy"), now)
            self.epoch = self._intel.label
            return energy
        metrics = files.metrics if self.card.driver == AMDGPU else None
        # An MI250's counter covers two dies: the source splits it.
        if metrics is None or self.card.has_two_dies:
            return None
        kind = amd_counter(metrics, self.card.target)
        counts = metrics.scalar("energy_accumulator")
        # 0: the firmware does not count.
        if kind is AmdCounter.NONE or not counts:
            return None
        if kind is AmdCounter.SHORT:
            counts = self._short.extend(counts, now, AMD_VALUES[q.POWER](files))
        return to_millijoules(counts)

    def _partition_activity(self, busy: float | None) -> dict[int, float]:
        """Activity of each partition, 0 to 1: its part in the growth of all partitions' busy counters, such
        that their mean is what the whole GPU was busy. Without that, what its dies report at this moment.
        """
        metrics = self.files.metrics
        if metrics is None or not metrics.partitions:
            return {}
        numbers = [partition.number for partition in self.card.partitions]
        sums = {number: _busy_sum(metrics, number) for number in numbers}
        before, self._partitions = self._partitions, sums
        gained = {number: max(0, sums[number] - before.get(number, sums[number])) for number in numbers}
        total = sum(gained.values())
        if busy is None or (not total and busy):
            return {number: _busy_now(metrics, number) for number in numbers}
        if not total:
            return dict.fromkeys(numbers, 0.0)
        return {number: min(1.0, busy * len(numbers) * gained[number] / total) for number in numbers}

    def _note_errors(self, findings: SourceFindings) -> None:
        gpu = self.card.gpu
        for path, error in self.files.errors.items():
            name = path.rpartition("/")[2]
            findings.note(
                PART, _reason(error), f"GPU {gpu.index} ({gpu.uuid}): {name}: {error.strerror}", gpu
            )
        if self.files.metrics_error:
            findings.note(PART, "UNKNOWN_VERSION", f"{gpu.uuid}: {self.files.metrics_error}", gpu)


@lru_cache(maxsize=8)
def _in_order(wanted: frozenset[Quantity]) -> tuple[Quantity, ...]:
    """The quantities in an order that is the same in each run."""
    return tuple(sorted(wanted, key=lambda quantity: quantity.key))


def _reason(error: OSError) -> str:
    return {1: "NO_PERMISSION", 13: "NO_PERMISSION", 16: "BUSY", ENODEV: LOST}.get(
        error.errno or 0, "IO_ERROR"
    )


def _busy_sum(metrics: GpuMetrics, number: int) -> int:
    return sum(present_values(metrics.partitions[number], "gfx_busy_acc")) if number < 8 else 0


def _busy_now(metrics: GpuMetrics, number: int) -> float:
    found = present_values(metrics.partitions[number], "gfx_busy_inst") if number < 8 else []
    return min(1.0, sum(found) / len(found) / 100) if found else 0.0

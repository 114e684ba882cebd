"""Emulates the row that nvidia-smi would print for a Reading of another source: header to cell.

It covers the quantities of NVML that public dashboards use. It returns text cells rather than values, so that
they are parsed by the same rules and have nvidia-smi's precision: whole percents, watts with two decimals,
memory in MiB rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu
from gpuledger.model.enumeration_words import ABSENT
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading, SourceInfo

_MIB: Final = 1024 * 1024
# nvidia-smi prints clocks_event_reasons since driver 535, clocks_throttle_reasons before.
_RENAMED: Final = 535
_RECOVERY_ACTIONS: Final = (
    "None",
    "GPU Reset",
    "Node Reboot",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "Bus Reset",
    "System Reboot",
)
_COMPUTE_MODES: Final = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")

_FABRIC_STATES: Final = ("N/A", "Not Started", "In Progress", "Completed")

Formatter = Callable[[float], str]


def _count(value: float) -> str:
    return str(int(value))


def _percent(value: float) -> str:
    return f"{round(value * 100)} %"


def _watts(value: float) -> str:
    return f"{value:.2f} W"


def _megahertz(value: float) -> str:
    return f"{round(value / 1e6)} MHz"


def _microseconds(value: float) -> str:
    return f"{int(value) // 1000} us"


def _mebibytes(value: float) -> str:
    return f"{-(-int(value) // _MIB)} MiB"


def _enabled(value: float) -> str:
    return "Enabled" if value else "Disabled"


def _yes(value: float) -> str:
    return "Yes" if value else "No"


def _recovery_action(value: float) -> str:
    number = int(value)
    return _RECOVERY_ACTIONS[number] if number < len(_RECOVERY_ACTIONS) else f"[Unknown {number}]"


_FIELDS: Final[tuple[tuple[str, Quantity, Formatter], ...]] = (
    ("persistence_mode", q.PERSISTENCE_MODE, _enabled),
    ("gpu_recovery_action", q.RECOVERY_ACTION, _recovery_action),
    ("pcie.link.gen.current", q.PCIE_GENERATION, _count),
    ("pcie.link.gen.gpucurrent", q.PCIE_GENERATION, _count),
    ("pcie.link.gen.max", q.PCIE_GENERATION_MAX, _count),
    ("pcie.link.gen.gpumax", q.PCIE_GENERATION_GPU_MAX, _count),
    ("pcie.link.width.current", q.PCIE_WIDTH, _count),
    ("pcie.link.width.max", q.PCIE_WIDTH_MAX, _count),
    ("fan.speed [%]", q.FAN_SPEED, _percent),
    ("pstate", q.PERFORMANCE_STATE, lambda value: f"P{int(value)}"),
    ("clocks_event_reasons_counters.sw_power_cap [us]", q.POWER_VIOLATION, _microseconds),
    ("clocks_event_reasons_counters.sync_boost [us]", q.SYNC_BOOST_VIOLATION, _microseconds),
    ("clocks_event_reasons_counters.sw_thermal_slowdown [us]", q.SOFTWARE_THERMAL_TIME, _microseconds),
    ("clocks_event_reasons_counters.hw_thermal_slowdown [us]", q.HARDWARE_THERMAL_TIME, _microseconds),
    ("clocks_event_reasons_counters.hw_power_brake_slowdown [us]", q.POWER_BRAKE_TIME, _microseconds),
    ("memory.total [MiB]", q.MEMORY_TOTAL, _mebibytes),
    ("memory.reserved [MiB]", q.MEMORY_RESERVED, _mebibytes),
    ("memory.used [MiB]", q.MEMORY_USED, _mebibytes),
    ("memory.free [MiB]", q.MEMORY_FREE, _mebibytes),
    ("compute_mode", q.COMPUTE_MODE, lambda value: _COMPUTE_MODES[int(value)]),
    ("utilization.gpu [%]", q.UTILIZATION, _percent),
    ("utilization.memory [%]", q.MEMORY_UTILIZATION, _percent),
    ("utilization.encoder [%]", q.ENCODER_UTILIZATION, _percent),
    ("utilization.decoder [%]", q.DECODER_UTILIZATION, _percent),
    ("ecc.errors.corrected.volatile.total", q.ECC_CORRECTED_VOLATILE, _count),
    ("ecc.errors.corrected.aggregate.total", q.ECC_CORRECTED, _count),
    ("ecc.errors.uncorrected.volatile.total", q.ECC_UNCORRECTED_VOLATILE, _count),
    ("ecc.errors.uncorrected.aggregate.total", q.ECC_UNCORRECTED, _count),
    ("retired_pages.single_bit_ecc.count", q.RETIRED_PAGES_CORRECTABLE, _count),
    ("retired_pages.double_bit.count", q.RETIRED_PAGES_UNCORRECTABLE, _count),
    ("retired_pages.pending", q.RETIRED_PAGES_PENDING, _yes),
    ("remapped_rows.correctable", q.REMAPPED_ROWS_CORRECTABLE, _count),
    ("remapped_rows.uncorrectable", q.REMAPPED_ROWS_UNCORRECTABLE, _count),
    ("remapped_rows.pending", q.ROW_REMAP_PENDING, _yes),
    ("remapped_rows.failure", q.ROW_REMAP_FAILURE, _yes),
    ("temperature.gpu", q.TEMPERATURE, _count),
    ("temperature.memory", q.MEMORY_TEMPERATURE, _count),
    ("power.draw [W]", q.POWER, _watts),
    ("power.draw.instant [W]", q.POWER_INSTANT, _watts),
    ("power.limit [W]", q.POWER_LIMIT_MANAGEMENT, _watts),
    ("enforced.power.limit [W]", q.POWER_LIMIT, _watts),
    ("power.default_limit [W]", q.POWER_LIMIT_DEFAULT, _watts),
    ("power.min_limit [W]", q.POWER_LIMIT_MIN, _watts),
    ("power.max_limit [W]", q.POWER_LIMIT_MAX, _watts),
    ("clocks.current.graphics [MHz]", q.GRAPHICS_CLOCK, _megahertz),
    ("clocks.current.sm [MHz]", q.SM_CLOCK, _megahertz),
    ("clocks.current.memory [MHz]", q.MEMORY_CLOCK, _megahertz),
    ("clocks.current.video [MHz]", q.VIDEO_CLOCK, _megahertz),
    ("clocks.max.graphics [MHz]", q.MAX_GRAPHICS_CLOCK, _megahertz),
    ("clocks.max.sm [MHz]", q.MAX_SM_CLOCK, _megahertz),
    ("clocks.max.memory [MHz]", q.MAX_MEMORY_CLOCK, _megahertz),
    ("fabric.state", q.FABRIC_STATE, lambda value: _FABRIC_STATES[int(value)]),
    ("mig.mode.current", q.MIG_MODE, _enabled),
)

# Bits of nvmlClocksEventReasons.
_REASONS: Final = (
    ("gpu_idle", 0x01),
    ("applications_clocks_setting", 0x02),
    ("sw_power_cap", 0x04),
    ("hw_slowdown", 0x08),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("sw_thermal_slowdown", 0x20),
    ("sync_boost", 0x10),
)

REQUIRED_QUANTITIES: Final = frozenset({quantity for _, quantity, _ in _FIELDS} | {q.CLOCK_EVENT_REASONS})


def emulate_row(reading: Reading, source: SourceInfo, count: int) -> Mapping[str, str]:
    """Returns the row of one of `count` Gpus, without fields that the driver did not report."""
    gpu = reading.device.gpu
    cells = _identity(gpu, source, count)
    values = reading.values
    reasons = values.get(q.CLOCK_EVENT_REASONS)
    if reasons is not None:
        cells |= _clock_reasons(int(reasons), source.driver_version)
    for header, quantity, formatter in _FIELDS:
        value = values.get(quantity)
        if value is not None:
            cells[header] = formatter(value)
    return cells


def _identity(gpu: Gpu, source: SourceInfo, count: int) -> dict[str, str]:
    return {
        "driver_version": source.driver_version or ABSENT,
        "count": str(count),
        "name": gpu.name or ABSENT,
        "serial": gpu.serial or ABSENT,
        "uuid": gpu.uuid,
        "pci.bus_id": gpu.pci_bus_id,
        "index": str(gpu.index),
        # Always N/A on Linux according to `--help-query-gpu`.
        "driver_model.current": ABSENT,
        "driver_model.pending": ABSENT,
        "vbios_version": gpu.vbios or ABSENT,
        "compute_cap": gpu.compute_capability or ABSENT,
    }


def _clock_reasons(bits: int, driver: str) -> dict[str, str]:
    major = driver.partition(".")[0]
    old = major.isdigit() and int(major) < _RENAMED
    prefix = "clocks_throttle_reasons" if old else "clocks_event_reasons"
    cells = {f"{prefix}.active": f"0x{bits:016X}"}
    for name, bit in _REASONS:
        cells[f"{prefix}.{name}"] = "Active" if bits & bit else "Not Active"
    return cells

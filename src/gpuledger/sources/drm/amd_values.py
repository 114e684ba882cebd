"""Quantities of amdgpu's GPUs: sysfs and hwmon, else the firmware's table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from gpuledger.sources.drm.device_files import (
    MICRO,
    MILLI,
    DeviceFiles,
    fan_ratio,
    link_generation,
    link_width,
    percent,
)
from gpuledger.sources.drm.sysfs import first_label

ReadValue = Callable[[DeviceFiles], float | None]

_MEGA: Final = 1e6
_CLOCK: Final = re.compile(r"(?<!\d)(\d{1,6})\s*mhz", re.IGNORECASE | re.ASCII)
_RAS_ERRORS: Final = re.compile(r"(ue|ce):\s*(\d{1,18})", re.ASCII)
# Sensors in order of preference: MI300 has no edge sensor, APUs have no other.
_CORE_SENSORS: Final = ("edge", "junction")
# Bits of nvmlClocksEventReasons.
_GPU_IDLE, _POWER_CAP, _SOFTWARE_THERMAL, _HARDWARE_THERMAL = 0x1, 0x4, 0x20, 0x40 | 0x8
# Bits of `indep_throttle_status` (SMU_THROTTLER_* in drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h of Linux):
# limits of power (0-7) and current (16-23), temperatures (32-43), VRHOT and PROCHOT signals (44-47).
_THROTTLERS: Final = (
    (0x0000_0000_00FF_00FF, _POWER_CAP),
    (0x0000_0FFF_0000_0000, _SOFTWARE_THERMAL),
    (0x0000_F000_0000_0000, _HARDWARE_THERMAL),
)


def _sensor(names: tuple[str, ...], per_unit: int) -> ReadValue:
    def read(files: DeviceFiles) -> float | None:
        return next((found for name in names if (found := files.sensor(name, per_unit)) is not None), None)

    return read


def _temperature(labels: tuple[str, ...], suffix: str = "input") -> ReadValue:
    def read(files: DeviceFiles) -> float | None:
        prefix = first_label(files.labels("temp"), labels)
        return None if prefix is None else files.sensor(f"{prefix}_{suffix}", MILLI)

    return read


def _power(files: DeviceFiles) -> float | None:
    found = _sensor(("power1_average", "power1_input"), MICRO)(files)
    # The second die of an MI250 reports 0 W: the first one's power covers both.
    if not found and files.card.has_two_dies and not _has_own_power(files):
        return None
    return found


def _has_own_power(files: DeviceFiles) -> bool:
    return files.sensor("power1_cap", MICRO) not in (None, 0)


def _limit(name: str) -> ReadValue:
    # 0 is the limit of a die that has none.
    return lambda files: files.sensor(name, MICRO) or None


def _number(name: str) -> ReadValue:
    return lambda files: files.device.number(name)


def _busy(files: DeviceFiles) -> float | None:
    found = files.device.number("gpu_busy_percent")
    if found is None and (metrics := files.metrics) is not None and metrics.version[0] == 1:
        found = metrics.scalar("average_gfx_activity")
    return percent(found)


def _memory_free(files: DeviceFiles) -> float | None:
    total = files.device.number("mem_info_vram_total")
    used = files.device.number("mem_info_vram_used")
    return None if total is None or used is None or not 0 <= used <= total else total - used


def _graphics_clock(files: DeviceFiles) -> float | None:
    found = files.sensor("freq1_input", 1)
    if found is None and (metrics := files.metrics) is not None and metrics.version[0] == 1:
        clocks = metrics.array("current_gfxclk")
        single = metrics.scalar("current_gfxclk")
        found = _to_hertz(max(clocks, default=None) if clocks else single)
    return found


def _memory_clock(files: DeviceFiles) -> float | None:
    found = files.sensor("freq2_input", 1)
    return _active_clock(files, "pp_dpm_mclk") if found is None else found


def _active_clock(files: DeviceFiles, name: str) -> float | None:
    """The clock in the line that ends in `*`; None in deep sleep, where the table can be empty."""
    lines = [line for line in files.device.text(name).splitlines() if line.rstrip().endswith("*")]
    found = _CLOCK.search(lines[0]) if lines else None
    return int(found[1]) * _MEGA if found else None


def _highest_clock(name: str) -> ReadValue:
    def read(files: DeviceFiles) -> float | None:
        clocks = [int(clock) for clock in _CLOCK.findall(files.device.text(name))]
        return _to_hertz(max(clocks, default=None))

    return read


def _to_hertz(megahertz: int | None) -> float | None:
    return None if megahertz is None else megahertz * _MEGA


def _ras_errors(kind: str) -> ReadValue:
    """Errors of all blocks since the driver was loaded; None without RAS, or if a block cannot be read."""

    def read(files: DeviceFiles) -> float | None:
        ras = files.device.folder("ras")
        counts = [
            int(count)
            for name in ras.names()
            if name.endswith("_err_count")
            for found, count in _RAS_ERRORS.findall(ras.text(name))
            if found == kind
        ]
        is_complete = not any(path.startswith(f"{ras.path}/") for path in ras.errors)
        return sum(counts) if counts and is_complete else None

    return read


def _clock_reasons(files: DeviceFiles) -> float | None:
    metrics = files.metrics
    status = None if metrics is None else metrics.scalar("indep_throttle_status")
    busy = _busy(files)
    # Some report a limit all the time while they are idle, where it means nothing.
    if status is None or busy is None:
        return None
    if not busy:
        return _GPU_IDLE
    return sum(reason for bits, reason in _THROTTLERS if status & bits)


AMD_VALUES: Final[Mapping[Quantity, ReadValue]] = {
    q.UTILIZATION: _busy,
    q.MEMORY_UTILIZATION: lambda files: percent(files.device.number("mem_busy_percent")),
    q.MEMORY_TOTAL: _number("mem_info_vram_total"),
    q.MEMORY_USED: _number("mem_info_vram_used"),
    q.MEMORY_FREE: _memory_free,
    q.BAR1_TOTAL: _number("mem_info_vis_vram_total"),
    q.BAR1_USED: _number("mem_info_vis_vram_used"),
    q.POWER: _power,
    q.POWER_INSTANT: _sensor(("power1_input",), MICRO),
    q.POWER_LIMIT: _limit("power1_cap"),
    q.POWER_LIMIT_MAX: _limit("power1_cap_max"),
    q.POWER_LIMIT_MIN: _sensor(("power1_cap_min",), MICRO),
    q.POWER_LIMIT_DEFAULT: _limit("power1_cap_default"),
    q.TEMPERATURE: _temperature(_CORE_SENSORS),
    q.MEMORY_TEMPERATURE: _temperature(("mem",)),
    q.TEMPERATURE_SLOWDOWN: _temperature(_CORE_SENSORS, "crit"),
    q.TEMPERATURE_SHUTDOWN: _temperature(_CORE_SENSORS, "emergency"),
    q.FAN_SPEED: fan_ratio,
    q.GRAPHICS_CLOCK: _graphics_clock,
    q.SM_CLOCK: _graphics_clock,
    q.MEMORY_CLOCK: _memory_clock,
    q.MAX_GRAPHICS_CLOCK: _highest_clock("pp_dpm_sclk"),
    q.MAX_SM_CLOCK: _highest_clock("pp_dpm_sclk"),
    q.MAX_MEMORY_CLOCK: _highest_clock("pp_dpm_mclk"),
    q.CLOCK_EVENT_REASONS: _clock_reasons,
    q.PCIE_GENERATION: lambda files: link_generation(files.device, "current_link_speed"),
    q.PCIE_GENERATION_MAX: lambda files: link_generation(files.device, "max_link_speed"),
    q.PCIE_WIDTH: lambda files: link_width(files.device, "current_link_width"),
    q.PCIE_WIDTH_MAX: lambda files: link_width(files.device, "max_link_width"),
    q.PCIE_REPLAYS: _number("pcie_replay_count"),
    q.ECC_CORRECTED_VOLATILE: _ras_errors("ce"),
    q.ECC_UNCORRECTED_VOLATILE: _ras_errors("ue"),
}

"""Quantities of Intel's GPUs under i915 and xe.

No file has the utilization or the memory in use of the whole device: they are sums over clients (`usage.py`).
Power is the growth of the energy counter (`energy_counters.py`). The PCIe link in sysfs is that of a bridge
inside the card (2.5 GT/s), and therefore omitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from gpuledger.sources.drm.cards import XE
from gpuledger.sources.drm.device_files import MICRO, MILLI, DeviceFiles, fan_ratio
from gpuledger.sources.drm.sysfs import SysfsFolder, first_label

ReadValue = Callable[[DeviceFiles], float | None]

_MEGA: Final = 1e6
_TILE: Final = re.compile(r"tile\d+")
# Bits of nvmlClocksEventReasons.
_POWER_CAP, _SOFTWARE_THERMAL, _HARDWARE_THERMAL = 0x4, 0x20, 0x40 | 0x8
# Files of i915 (`throttle_reason_pl1`) and xe (`reason_pl1`), without their prefix.
_REASONS: Final = {
    **dict.fromkeys(("pl1", "pl2", "pl4", "ratl", "vr_tdc"), _POWER_CAP),
    **dict.fromkeys(("thermal", "vr_thermalert"), _SOFTWARE_THERMAL),
    "prochot": _HARDWARE_THERMAL,
}


def _tile(files: DeviceFiles) -> SysfsFolder:
    """The folder of the first tile's graphics engine."""
    if files.card.driver == XE:
        return files.device.folder("tile0/gt0")
    return files.folder.folder("gt/gt0")


def _memory_total(files: DeviceFiles) -> float | None:
    """The memory of all tiles (Ponte Vecchio has two); None under i915, which has no such file."""
    tiles = [name for name in files.device.names() if _TILE.fullmatch(name)]
    sizes = [files.device.number(f"{name}/physical_vram_size_bytes", 0) for name in tiles]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(tiles) else None


def _clock(xe: str, i915: str, whole: str) -> ReadValue:
    def read(files: DeviceFiles) -> float | None:
        tile = _tile(files)
        if files.card.driver == XE:
            found = tile.number(f"freq0/{xe}")
        else:
            found = tile.number(i915)
            found = files.folder.number(whole) if found is None else found
        return None if found is None else found * _MEGA

    return read


def _temperature(label: str, unlabelled: str, suffix: str = "input") -> ReadValue:
    def read(files: DeviceFiles) -> float | None:
        labels = files.labels("temp")
        prefix = first_label(labels, (label, unlabelled) if unlabelled else (label,))
        return None if prefix is None else files.sensor(f"{prefix}_{suffix}", MILLI)

    return read


def _limit(*suffixes: str) -> ReadValue:
    def read(files: DeviceFiles) -> float | None:
        for label in ("card", "pkg", "power1"):
            prefix = files.labels("power").get(label)
            for suffix in suffixes:
                # 0: the firmware has no such limit.
                if prefix is not None and (found := files.sensor(f"{prefix}_{suffix}", MICRO)):
                    return found
        return None

    return read


def _clock_reasons(files: DeviceFiles) -> float | None:
    tile = _tile(files)
    folder, prefix = (
        (tile.folder("freq0/throttle"), "reason_") if files.card.driver == XE else (tile, "throttle_reason_")
    )
    names = [name for name in folder.names() if name.startswith(prefix)]
    if not names:
        return None
    found = 0
    for name in names:
        reason = _REASONS.get(name.removeprefix(prefix))
        if reason and folder.number(name):
            found |= reason
    return found


INTEL_VALUES: Final[Mapping[Quantity, ReadValue]] = {
    q.MEMORY_TOTAL: _memory_total,
    q.POWER_LIMIT: _limit("max", "cap"),
    q.POWER_LIMIT_MAX: _limit("rated_max"),
    q.TEMPERATURE: _temperature("pkg", "temp1"),
    q.MEMORY_TEMPERATURE: _temperature("vram", ""),
    q.TEMPERATURE_SLOWDOWN: _temperature("pkg", "temp1", "crit"),
    q.FAN_SPEED: fan_ratio,
    q.GRAPHICS_CLOCK: _clock("act_freq", "rps_act_freq_mhz", "gt_act_freq_mhz"),
    q.SM_CLOCK: _clock("act_freq", "rps_act_freq_mhz", "gt_act_freq_mhz"),
    q.MAX_GRAPHICS_CLOCK: _clock("rp0_freq", "rps_RP0_freq_mhz", "gt_RP0_freq_mhz"),
    q.MAX_SM_CLOCK: _clock("rp0_freq", "rps_RP0_freq_mhz", "gt_RP0_freq_mhz"),
    q.CLOCK_EVENT_REASONS: _clock_reasons,
}

"""Known headers of `nvidia-smi --query-gpu` and like them, and the family name and unit of any header.

The known headers are for documentation: a page has every column that the local nvidia-smi prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from re import compile as pattern
from typing import Final

from gpuledger.model.family import FamilySpec, MetricType


def _group(prefix: str, names: str, unit: str = "") -> Iterator[str]:
    return (f"{prefix}{name}{f' [{unit}]' if unit else ''}" for name in names.split())


_MEMORIES = "device_memory dram register_file l1_cache l2_cache texture_memory cbu sram total"
_REASONS = (
    "supported active gpu_idle applications_clocks_setting sw_power_cap hw_slowdown hw_thermal_slowdown "
    "hw_power_brake_slowdown sw_thermal_slowdown sync_boost"
)

# Without text fields that are never a single number (timestamp, uuid, pci.bus_id, vbios_version, ...).
HEADERS: Final = (
    *_group("", "driver_version kmd_version count name serial"),
    *_group("pci.", "domain bus device baseClass subClass device_id sub_device_id"),
    *_group("pcie.link.gen.", "current gpucurrent max gpumax hostmax"),
    *_group("pcie.link.width.", "current max"),
    *_group("", "index display_mode display_attached display_active persistence_mode"),
    *_group("accounting.", "mode buffer_size"),
    *_group("inforom.", "oem ecc pwr"),
    "gpu_recovery_action",
    "fan.speed [%]",
    "pstate",
    *_group("clocks_event_reasons.", _REASONS),
    *_group("clocks_throttle_reasons.", _REASONS),
    *_group(
        "clocks_event_reasons_counters.",
        "sw_power_cap sync_boost sw_thermal_slowdown hw_thermal_slowdown hw_power_brake_slowdown",
        "us",
    ),
    *_group("memory.", "total reserved used free", "MiB"),
    "compute_mode",
    "compute_cap",
    *_group("utilization.", "gpu memory encoder decoder jpeg ofa", "%"),
    *_group("encoder.stats.", "sessionCount averageFps averageLatency"),
    *_group("fbc.stats.", "sessionCount averageFps averageLatency"),
    *_group("dramEncryption.mode.", "current pending"),
    *_group("ecc.mode.", "current pending"),
    *(
        f"ecc.errors.{kind}.{span}.{memory}"
        for kind, span, memory in product(
            ("corrected", "uncorrected"), ("volatile", "aggregate"), _MEMORIES.split()
        )
    ),
    *_group("ecc.errors.uncorrected.volatile.sram.", "parity secded"),
    *_group(
        "ecc.errors.uncorrected.aggregate.sram.",
        "parity secded thresholdExceeded l2 sm mcu pcie other",
    ),
    *_group("retired_pages.", "single_bit_ecc.count double_bit.count pending"),
    *_group(
        "remapped_rows.",
        "correctable correctable_inactive uncorrectable uncorrectable_inactive pending failure",
    ),
    *_group("remapped_rows.histogram.", "max high partial low none"),
    *_group("temperature.", "gpu gpu.tlimit memory"),
    *_group("power.", "draw draw.average draw.instant", "W"),
    *_group("", "power.limit enforced.power.limit", "W"),
    *_group("power.", "default_limit min_limit max_limit", "W"),
    *_group("module.power.", "draw.average draw.instant limit default_limit min_limit max_limit", "W"),
    "module.enforced.power.limit [W]",
    "power_smoothing.window_multiplier [ms]",
    "edpp_multiplier [%]",
    *_group("clocks.current.", "graphics sm memory video", "MHz"),
    *_group("clocks.applications.", "graphics memory", "MHz"),
    *_group("clocks.default_applications.", "graphics memory", "MHz"),
    *_group("clocks.max.", "graphics sm memory", "MHz"),
    *_group("mig.mode.", "current pending"),
    *_group("gsp.mode.", "current default"),
    "c2c.mode",
    *_group("protected_memory.", "total used free", "MiB"),
    *_group("conf_compute.", "environment feature devtools_mode"),
    *_group("fabric.", "state cliqueId"),
    *_group("platform.", "chassis_serial_number slot_number tray_index host_id module_id gpu_fabric_guid"),
    "vgpu.active_instances",
)

# Beginnings of fields that are named like nvidia-smi's, but which `--query-gpu` does not have.
ONLY_NVML: Final = ("fbc.", "conf_compute.", "vgpu.")

PREFIX: Final = "nvidia_smi_"


def declare_smi_family(
    name: str, help_text: str, labels: tuple[str, ...] = (), source: str = ""
) -> FamilySpec:
    """Declares a family of nvidia_gpu_exporter: a counter if its name ends in `_total`, else a gauge."""
    kind: MetricType = "counter" if name.endswith("_total") else "gauge"
    return FamilySpec(PREFIX + name, kind, help_text, labels, source=source)


# nvidia-smi's unit to the suffix of the name and the factor to the base unit.
_UNITS: Final = {
    "W": ("_watts", 1.0),
    "W/s": ("_watts_per_second", 1.0),
    "MHz": ("_clock_hz", 1e6),
    "MiB": ("_bytes", 1024.0 * 1024.0),
    "%": ("_ratio", 0.01),
    "us": ("_seconds", 1e-6),
    "ms": ("_seconds", 1e-3),
    "seconds": ("_seconds", 1.0),
}
_HEADER = pattern(r"([^\s\[]+)\s*(?:\[([^\[\]]*)\])?.*")
_WORD = pattern(r"(.)([A-Z][a-z]+)")
_CAPITAL = pattern(r"([a-z0-9])([A-Z])")
_FORBIDDEN = pattern(r"[^a-z0-9_]")


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """The family that a column is exported as.

    `field` is the column's name in `--query-gpu`. A cell times `factor` is the value in the family's unit.
    `unknown_unit` is a unit without a rule, else empty: such numbers are exported unscaled.
    """

    field: str
    name: str
    factor: float = 1.0
    unknown_unit: str = ""


@lru_cache(maxsize=2048)
def column_family(header: str) -> ColumnFamily:
    """Returns the family of a header as printed (`memory.total [MiB]`). Any text results in a valid name."""
    found = _HEADER.fullmatch(header.strip())
    field, unit = (found[1], found[2] or "") if found else (header.strip(), "")
    suffix, factor = _UNITS.get(unit, ("", 1.0))
    unknown_unit = unit if unit and not suffix else ""
    if unknown_unit:
        words = _FORBIDDEN.sub("_", unknown_unit.lower()).strip("_")
        suffix = f"_{words}" if words else ""
    return ColumnFamily(field, PREFIX + _snake_case(field) + suffix, factor, unknown_unit)


def _snake_case(field: str) -> str:
    """Converts `fabric.cliqueId` to `fabric_clique_id`."""
    flat = field.replace(".", "_")
    return _FORBIDDEN.sub("_", _CAPITAL.sub(r"\1_\2", _WORD.sub(r"\1_\2", flat)).lower())

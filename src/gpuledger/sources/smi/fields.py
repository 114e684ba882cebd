"""The fields to query with `--query-gpu`: all that this nvidia-smi offers, or those that the user names."""

from __future__ import annotations

from collections.abc import Iterable
from re import compile as pattern
from re import escape
from typing import Final

from gpuledger.model.settings import text

AUTO: Final = "AUTO"

# Always queried: they identify the GPU of a row, and `gpu_info` consists of them.
IDENTITY_FIELDS: Final = (
    "uuid",
    "name",
    "driver_model.current",
    "driver_model.pending",
    "vbios_version",
    "driver_version",
    "pci.bus_id",
    "serial",
    "compute_cap",
    "pci.sub_device_id",
    "index",
)

# Used when the help text cannot be read: fields that drivers have supported for ten years.
FALLBACK_FIELDS: Final = (
    *IDENTITY_FIELDS,
    "count",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "display_active",
    "persistence_mode",
    "fan.speed",
    "pstate",
    "clocks_throttle_reasons.supported",
    "clocks_throttle_reasons.active",
    "clocks_throttle_reasons.gpu_idle",
    "clocks_throttle_reasons.applications_clocks_setting",
    "clocks_throttle_reasons.sw_power_cap",
    "clocks_throttle_reasons.hw_slowdown",
    "clocks_throttle_reasons.sync_boost",
    "memory.total",
    "memory.used",
    "memory.free",
    "compute_mode",
    "utilization.gpu",
    "utilization.memory",
    "ecc.mode.current",
    "ecc.mode.pending",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.single_bit_ecc.count",
    "retired_pages.double_bit.count",
    "retired_pages.pending",
    "temperature.gpu",
    "temperature.memory",
    "power.draw",
    "power.limit",
    "enforced.power.limit",
    "power.default_limit",
    "power.min_limit",
    "power.max_limit",
    "clocks.current.graphics",
    "clocks.current.sm",
    "clocks.current.memory",
    "clocks.current.video",
    "clocks.max.graphics",
    "clocks.max.sm",
    "clocks.max.memory",
    "mig.mode.current",
    "mig.mode.pending",
)

_QUOTED = pattern(r'"([A-Za-z0-9_.]+)"')
_NAME = pattern(r"[A-Za-z][A-Za-z0-9_.]*")
_GLOB = pattern(r"[A-Za-z0-9_.*]+")


def field_names(value: object) -> tuple[str, ...]:
    """Parse the setting: names of fields, or AUTO alone. Raises ValueError otherwise."""
    names = _split_list(value)
    if len(names) == 1 and names[0].upper() == AUTO:
        return (AUTO,)
    if not names or not all(_NAME.fullmatch(name) for name in names) or AUTO in names:
        raise ValueError("expected AUTO, or fields such as uuid,power.draw (see nvidia-smi --help-query-gpu)")
    return names


def field_globs(value: object) -> tuple[str, ...]:
    """Parse the setting: names of fields, in which * matches any text. Raises ValueError otherwise."""
    globs = _split_list(value)
    if not all(_GLOB.fullmatch(glob) for glob in globs):
        raise ValueError("expected fields such as remapped_rows.histogram.*,hostname")
    return globs


def _split_list(value: object) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else text(value).split(",")
    return tuple(dict.fromkeys(text(part).strip() for part in parts if part and str(part).strip()))


def parse_offered_fields(help_text: str) -> tuple[str, ...]:
    """Parse the fields that `--help-query-gpu` lists, each by the first of its names.

    The line of a field begins with its quoted name and follows an empty line; other quotes are of values.
    """
    found: dict[str, None] = {}
    after_empty_line = False
    for line in help_text.splitlines():
        name = _QUOTED.match(line) if after_empty_line else None
        if name:
            found[name[1]] = None
        after_empty_line = not line.strip()
    return tuple(found)


def exclude_fields(fields: Iterable[str], globs: Iterable[str]) -> tuple[str, ...]:
    """Return the fields that no glob matches; identity fields are always kept."""
    excluded = [pattern(escape(glob).replace(r"\*", ".*")) for glob in globs]
    return tuple(
        field
        for field in fields
        if field in IDENTITY_FIELDS or not any(glob.fullmatch(field) for glob in excluded)
    )

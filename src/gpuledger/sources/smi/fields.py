"""Which fields `--query-gpu` is asked for: all that this nvidia-smi offers, or those that the user names."""

from __future__ import annotations

from collections.abc import Iterable
from re import compile as pattern
from re import escape
from typing import Final

from gpuledger.model.settings import text

AUTO: Final = "AUTO"

# What says which GPU a row is of, and what `gpu_info` consists of: asked for whatever the user wants.
IDENTITY: Final = (
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

# For an nvidia-smi whose help cannot be read: fields that drivers have had for ten years.
USUAL: Final = (
    *IDENTITY,
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
    """Names of fields, or AUTO alone; raises ValueError with what is wanted."""
    names = _listed(value)
    if len(names) == 1 and names[0].upper() == AUTO:
        return (AUTO,)
    if not names or not all(_NAME.fullmatch(name) for name in names) or AUTO in names:
        raise ValueError(
            "AUTO, or fields such as uuid,power.draw (see nvidia-smi --help-query-gpu), is wanted"
        )
    return names


def field_globs(value: object) -> tuple[str, ...]:
    """Names of fields in which * stands for anything; raises ValueError with what is wanted."""
    globs = _listed(value)
    if not all(_GLOB.fullmatch(glob) for glob in globs):
        raise ValueError("fields such as remapped_rows.histogram.*,hostname are wanted")
    return globs


def _listed(value: object) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else text(value).split(",")
    return tuple(dict.fromkeys(text(part).strip() for part in parts if part and str(part).strip()))


def offered(help_text: str) -> tuple[str, ...]:
    """The fields that the answer to `--help-query-gpu` lists, each by the first of its names.

    A field's line begins with its name in quotes and follows an empty one; a quote elsewhere is of a value.
    """
    found: dict[str, None] = {}
    empty = False
    for line in help_text.splitlines():
        name = _QUOTED.match(line) if empty else None
        if name:
            found[name[1]] = None
        empty = not line.strip()
    return tuple(found)


def without(fields: Iterable[str], globs: Iterable[str]) -> tuple[str, ...]:
    """The fields that no glob names; those of the identity are never left out."""
    wholes = [pattern(escape(glob).replace(r"\*", ".*")) for glob in globs]
    return tuple(
        field for field in fields if field in IDENTITY or not any(whole.fullmatch(field) for whole in wholes)
    )

"""From the header of a column of nvidia-smi to the family that nvidia_gpu_exporter makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from re import compile as pattern
from typing import Final

PREFIX: Final = "nvidia_smi_"

# nvidia-smi's unit: what the name ends in, and the factor to the base unit.
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
class Told:
    """What a column is told as.

    `field` is its name in `--query-gpu`. A number in a cell is worth `factor` times itself in the family's
    unit. `strange` is a unit that there is no rule for, empty where there is: the number is told as it is.
    """

    field: str
    name: str
    factor: float = 1.0
    strange: str = ""


@lru_cache(maxsize=2048)
def told_as(header: str) -> Told:
    """The family of a header as printed, `memory.total [MiB]`. Every text makes a valid name."""
    found = _HEADER.fullmatch(header.strip())
    field, unit = (found[1], found[2] or "") if found else (header.strip(), "")
    suffix, factor = _UNITS.get(unit, ("", 1.0))
    strange = unit if unit and not suffix else ""
    if strange:
        words = _FORBIDDEN.sub("_", strange.lower()).strip("_")
        suffix = f"_{words}" if words else ""
    return Told(field, PREFIX + _snake(field) + suffix, factor, strange)


def _snake(field: str) -> str:
    """`fabric.cliqueId` as `fabric_clique_id`."""
    flat = field.replace(".", "_")
    return _FORBIDDEN.sub("_", _CAPITAL.sub(r"\1_\2", _WORD.sub(r"\1_\2", flat)).lower())

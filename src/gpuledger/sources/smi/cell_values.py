"""Parsing of nvidia-smi's cells: all spellings of a missing value, and numbers converted to base units."""

from __future__ import annotations

from re import compile as pattern

from gpuledger.model import quantities as q
from gpuledger.model.enumeration_words import FABRIC_STATES, RECOVERY_ACTIONS
from gpuledger.model.quantities import PERFORMANCE_STATE, Quantity
from gpuledger.sources.findings import SourceFindings

# Texts printed instead of a value, in lower case without brackets, and NVML's name for the same error.
_SPELLINGS = {
    "": "NOT_SUPPORTED",
    "-": "NOT_SUPPORTED",
    "--": "NOT_SUPPORTED",
    "n/a": "NOT_SUPPORTED",
    "na": "NOT_SUPPORTED",
    "none": "NOT_SUPPORTED",
    "null": "NOT_SUPPORTED",
    "nan": "NOT_SUPPORTED",
    "not supported": "NOT_SUPPORTED",
    "not available": "NOT_SUPPORTED",
    "not available in wddm driver model": "NOT_SUPPORTED",
    "not applicable": "NOT_SUPPORTED",
    "requested functionality has been deprecated": "NOT_SUPPORTED",
    "function not found": "NOT_SUPPORTED",
    "not found": "NOT_FOUND",
    "err!": "UNKNOWN",
    "error": "UNKNOWN",
    "unknown": "UNKNOWN",
    "unknown error": "UNKNOWN",
    "gpu is lost": "GPU_IS_LOST",
    "gpu has fallen off the bus": "GPU_IS_LOST",
    "gpu requires reset": "RESET_REQUIRED",
    "reset required": "RESET_REQUIRED",
    "insufficient permissions": "NO_PERMISSION",
    "no permission": "NO_PERMISSION",
    "timeout": "TIMEOUT",
}
_PHRASES = (
    ("gpu is lost", "GPU_IS_LOST"),
    ("fallen off the bus", "GPU_IS_LOST"),
    ("requires reset", "RESET_REQUIRED"),
    ("requires a reset", "RESET_REQUIRED"),
    ("insufficient permission", "NO_PERMISSION"),
    ("no permission", "NO_PERMISSION"),
    ("unknown error", "UNKNOWN"),
)
_NUMBER = pattern(r"([+-]?[0-9]{1,40}(?:\.[0-9]{1,20})?)\s*([A-Za-z%/]*)")
_HEX = pattern(r"0x[0-9A-Fa-f]{1,16}")
_STATE = pattern(r"P([0-9]{1,3})")
_DIGIT = frozenset("0123456789")
_DIGITS = pattern(r"[0-9]{1,20}")

# By base unit: nvidia-smi's unit -> (factor, divisor). Only division converts 41 % to exactly 0.41.
_UNITS: dict[str, dict[str, tuple[int, int]]] = {
    "ratio": {"%": (1, 100)},
    "bytes": {
        "B": (1, 1),
        "bytes": (1, 1),
        "KiB": (1024, 1),
        "MiB": (1024**2, 1),
        "GiB": (1024**3, 1),
        # Drivers before 331 wrote MB and meant MiB.
        "MB": (1024**2, 1),
    },
    "watts": {"W": (1, 1), "mW": (1, 1000), "kW": (1000, 1)},
    "hertz": {"Hz": (1, 1), "kHz": (1000, 1), "MHz": (1_000_000, 1), "GHz": (1_000_000_000, 1)},
    "celsius": {"C": (1, 1), "": (1, 1)},
    "nanoseconds": {"ns": (1, 1), "us": (1000, 1), "ms": (1_000_000, 1)},
    # `16x`, in CSV `16`.
    "lanes": {"x": (1, 1), "": (1, 1)},
    "": {"": (1, 1)},
}
_FLAG = {"yes": 1, "no": 0}
_MODE = {"enabled": 1, "disabled": 0}
# Words with a value, in lower case, by the NVML enumeration of the quantity. They win over absent texts:
# `None` is a recovery action.
_WORDS: dict[Quantity, dict[str, int]] = {
    q.PERSISTENCE_MODE: _MODE,
    q.MIG_MODE: _MODE,
    q.RETIRED_PAGES_PENDING: _FLAG,
    q.ROW_REMAP_PENDING: _FLAG,
    q.ROW_REMAP_FAILURE: _FLAG,
    q.COMPUTE_MODE: {"default": 0, "exclusive_thread": 1, "prohibited": 2, "exclusive_process": 3},
    q.VIRTUALIZATION_MODE: {
        "none": 0,
        "pass-through": 1,
        "vgpu": 2,
        "host vgpu": 3,
        "host vsga": 4,
    },
    q.RECOVERY_ACTION: RECOVERY_ACTIONS,
    q.FABRIC_STATE: FABRIC_STATES,
}
# Sentinels for counts, which have no other upper bound: 32 one-bits, and the lowest 64-bit blank value.
_ALL_ONES = 2**32 - 1
_BLANKS = 2**63 - 32


def absent_reason(cell: str) -> str:
    """Return why `cell` has no value, as NVML's error name (`NOT_SUPPORTED`); empty if it may have one.

    An unknown phrase without digits counts as absent too (`OTHER`), because new drivers add phrases.
    """
    # Shortcut: no such phrase begins with a digit, but most cells do.
    if cell[:1] in _DIGIT:
        return ""
    bare = " ".join(cell.strip().strip("[]()").strip().rstrip(".").lower().split())
    known = _SPELLINGS.get(bare)
    if known is not None:
        return known
    if _DIGIT.intersection(bare):
        return ""
    # Longer forms: `GPU is lost. Reboot the system to recover this GPU`.
    return next((reason for phrase, reason in _PHRASES if phrase in bare), "OTHER")


def cell_text(cell: str | None) -> str | None:
    """Return the text of a cell (name, serial, version; never a number), or None if it is absent."""
    if cell is None or absent_reason(cell) not in ("", "OTHER"):
        return None
    return cell.strip() or None


def parse_index(cell: str) -> int | None:
    """Parse a GPU index or a number of GPUs; None for any other text."""
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) < 6 else None


def parse_whole(cell: str | None, findings: SourceFindings) -> int | None:
    """Parse a count or id such as a pid; None if absent or invalid. Invalid cells are counted."""
    if cell is None or absent_reason(cell):
        return None
    if _DIGITS.fullmatch(cell.strip()) and int(cell) < 2**32 - 1:
        return int(cell)
    findings.reject("a number of nvidia-smi", cell)
    return None


def parse_quantity(cell: str | None, quantity: Quantity, findings: SourceFindings) -> float | None:
    """Parse a number, in the quantity's unit; None if absent or invalid. Invalid cells are counted.

    A number without its unit is invalid, if the quantity has one: `1024` may be a cut-off `10240 MiB`.
    """
    if cell is None:
        return None
    words = _WORDS.get(quantity)
    if words and (found := words.get(cell.strip().lower())) is not None:
        return float(found)
    if absent_reason(cell):
        return None
    value = _to_base_unit(cell.strip(), quantity)
    if value is not None and quantity.is_possible(value):
        return value
    findings.reject(quantity.key, cell)
    return None


def _to_base_unit(cell: str, quantity: Quantity) -> float | None:
    if quantity is PERFORMANCE_STATE:
        state = _STATE.fullmatch(cell)
        return float(state[1]) if state else None
    if quantity is q.CLOCK_EVENT_REASONS:
        return float(int(cell, 16)) if _HEX.fullmatch(cell) else None
    found = _NUMBER.fullmatch(cell)
    scale = _UNITS.get(quantity.unit, {}).get(found[2]) if found else None
    if found is None or scale is None:
        return None
    if quantity.unit == "" and (float(found[1]) >= _BLANKS or float(found[1]) == _ALL_ONES):
        return None
    number = float(found[1]) if "." in found[1] else int(found[1])
    return number * scale[0] / scale[1] if scale[1] != 1 else float(number * scale[0])

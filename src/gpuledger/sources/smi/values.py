"""nvidia-smi's cells: every spelling of absent, and numbers with units to base units."""

from __future__ import annotations

from re import compile as pattern

from gpuledger.model.quantities import PERFORMANCE_STATE, Quantity
from gpuledger.sources.findings import Findings

# What stands in a cell instead of a value, in lower case without brackets. The word on the right is what
# NVML calls the same answer.
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
    "gpu requires reset": "RESET_REQUIRED",
    "insufficient permissions": "NO_PERMISSION",
    "no permission": "NO_PERMISSION",
    "timeout": "TIMEOUT",
}
_NUMBER = pattern(r"([+-]?[0-9]{1,40}(?:\.[0-9]{1,20})?)\s*([A-Za-z%/]*)")
_STATE = pattern(r"P([0-9]{1,3})")
_DIGIT = frozenset("0123456789")
_DIGITS = pattern(r"[0-9]{1,20}")

# By base unit: what nvidia-smi writes, how to multiply, how to divide (41 % is 0.41 only by division).
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
    "": {"": (1, 1)},
}
# All ones in 32 and 64 bits, and where the drivers' 64-bit blanks begin: counts have no other bound.
_ALL_ONES = 2**32 - 1
_BLANKS = 2**63 - 32


def why_absent(cell: str) -> str:
    """Why there is no value in `cell`, in NVML's words (`NOT_SUPPORTED`); empty when there may be one.

    A phrase that is not known and holds no digit is absent too (`OTHER`): drivers invent new ones.
    """
    # No spelling begins with a digit; most cells do.
    if cell[:1] in _DIGIT:
        return ""
    bare = " ".join(cell.strip().strip("[]()").strip().rstrip(".").lower().split())
    known = _SPELLINGS.get(bare)
    if known is not None:
        return known
    return "" if _DIGIT.intersection(bare) else "OTHER"


def word(cell: str | None) -> str | None:
    """A cell's text (name, serial, version: never a number), or None where it says that there is none."""
    if cell is None or why_absent(cell) not in ("", "OTHER"):
        return None
    return cell.strip() or None


def ordinal(cell: str) -> int | None:
    """An index of a GPU, or how many there are; None for anything else."""
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) < 6 else None


def whole(cell: str | None, findings: Findings, most: int = 2**32 - 2) -> int | None:
    """A plain count or id such as a pid; None when absent, and counted when not believed."""
    if cell is None or why_absent(cell):
        return None
    if _DIGITS.fullmatch(cell.strip()) and int(cell) <= most:
        return int(cell)
    findings.invalid += 1
    return None


def measure(cell: str | None, quantity: Quantity, findings: Findings) -> float | None:
    """The cell's number in the quantity's unit; None when absent, and counted when not believed.

    A number without its unit is not believed where the unit matters: `1024` may be the head of `10240 MiB`.
    """
    if cell is None or why_absent(cell):
        return None
    value = _in_base_units(cell.strip(), quantity)
    if value is not None and quantity.believes(value):
        return value
    findings.invalid += 1
    return None


def _in_base_units(cell: str, quantity: Quantity) -> float | None:
    if quantity is PERFORMANCE_STATE:
        state = _STATE.fullmatch(cell)
        return float(state[1]) if state else None
    found = _NUMBER.fullmatch(cell)
    scale = _UNITS.get(quantity.unit, {}).get(found[2]) if found else None
    if found is None or scale is None:
        return None
    if quantity.unit == "" and (float(found[1]) >= _BLANKS or float(found[1]) == _ALL_ONES):
        return None
    number = float(found[1]) if "." in found[1] else int(found[1])
    return number * scale[0] / scale[1] if scale[1] != 1 else float(number * scale[0])

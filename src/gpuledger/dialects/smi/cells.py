"""The number in a cell of nvidia-smi, by nvidia_gpu_exporter's rules: words with a value, hexadecimal, else
the one number that the text holds. None or several numbers are no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from re import compile as pattern
from typing import Final

_WORDS: Final = {
    "enabled": 1,
    "yes": 1,
    "active": 1,
    "disabled": 0,
    "no": 0,
    "not active": 0,
    "default": 0,
    "exclusive_thread": 1,
    "prohibited": 2,
    "exclusive_process": 3,
}

# Fields whose words are an enumeration of NVML's (nvmlDeviceGpuRecoveryAction_t, nvmlGpuFabricState_t): other
# words are no value, whatever digits they have.
_RECOVERY: Final = {
    "none": 0,
    "reset": 1,
    "gpu reset": 1,
    "reboot": 2,
    "node reboot": 2,
    "drain p2p": 3,
    "drain and reset": 4,
    "recover imex domain": 5,
    "bus reset": 6,
    "system reboot": 7,
}
_FABRIC: Final = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}
_ENUMERATIONS: Final[Mapping[str, Mapping[str, int]]] = {
    "gpu_recovery_action": _RECOVERY,
    "fabric.state": _FABRIC,
}

# `--help-query-gpu` says that these are hexadecimal, and so they are where 0x is not written.
_HEXADECIMAL: Final = frozenset(
    {
        "pci.domain",
        "pci.bus",
        "pci.device",
        "pci.baseClass",
        "pci.subClass",
        "pci.device_id",
        "pci.sub_device_id",
    }
)
_NUMBER = pattern(r"[+-]?(?:[0-9]*\.)?[0-9]+")
_HEX = pattern(r"[0-9A-Fa-f]{1,16}")


@lru_cache(maxsize=2048)
def number(cell: str, field: str, factor: float) -> float | None:
    """The value of a cell in the family's unit; None for what is absent or no single finite number."""
    text = cell.strip()
    if text[:2] == "0x" or field in _HEXADECIMAL:
        digits = text.removeprefix("0x")
        return int(digits, 16) if _HEX.fullmatch(digits) else None
    lowered = text.lower()
    names = _ENUMERATIONS.get(field)
    if names is not None:
        return names.get(lowered)
    if lowered in _WORDS:
        return _WORDS[lowered]
    found = _NUMBER.findall(lowered)
    if len(found) != 1:
        return None
    value = float(found[0]) * factor
    return value if isfinite(value) else None


def is_unknown_word(cell: str, field: str) -> bool:
    """Whether an enumeration has no value for this word, which is not one that says that there is none."""
    text = cell.strip()
    absent = text[:1] + text[-1:] == "[]" or text.upper() in ("", "N/A")
    names = _ENUMERATIONS.get(field)
    return names is not None and not absent and text.lower() not in names

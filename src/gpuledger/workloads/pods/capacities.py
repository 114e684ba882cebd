"""Capacities of DRA devices, and the part of a device that a claim consumes of them. Pure.

Since Kubernetes 1.34 several claims can share a device (KEP-5075): the ResourceSlice has its capacities, and
the status of each claim what it consumes of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

# Amounts by name, without the domain of the name, in lower case.
Capacities = Mapping[str, Fraction]

_QUANTITY: Final = re.compile(
    r"(\d{1,18}(?:\.\d{1,9})?|\.\d{1,9})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,2}))?",
    re.ASCII,
)
_DECIMAL: Final = {
    unit: Fraction(1000) ** power for power, unit in enumerate(("n", "u", "m", "", "k", *"MGTPE"), -3)
}
_BINARY: Final = {f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", 1)}
_UNITS: Final = _DECIMAL | _BINARY
# What a claim has of the compute units counts before what it has of the memory.
_COMPUTE: Final = frozenset({"cores", "core", "multiprocessors", "compute", "computeunits", "sms"})


def parse_quantity(value: object) -> Fraction | None:
    """The value of a Kubernetes quantity (`40Gi`, `500m`, `1e3`, 7); None for anything else."""
    match = _QUANTITY.fullmatch(str(value)) if type(value) in (str, int) else None
    if match is None:
        return None
    return Fraction(match[1]) * (Fraction(10) ** int(match[3]) if match[3] else _UNITS[match[2] or ""])


def parse_capacities(data: Mapping[str, Any]) -> Capacities:
    """The amounts of a device's `capacity` or of a claim's `consumedCapacity`; others are left out."""
    found = {}
    for name, value in data.items():
        # A slice has {"value": QUANTITY}, a claim has the quantity itself.
        amount = parse_quantity(value.get("value") if isinstance(value, Mapping) else value)
        if amount is not None:
            found[name.rpartition("/")[2].lower()] = amount
    return found


def consumed_fraction(consumed: Capacities, capacities: Capacities) -> Fraction | None:
    """The part of a device that a claim consumes: of its compute units, else of its memory, else unknown."""
    parts = {
        name: amount / capacities[name] for name, amount in consumed.items() if capacities.get(name, 0) > 0
    }
    compute = [part for name, part in parts.items() if name in _COMPUTE]
    found = max(compute, default=parts.get("memory"))
    return found if found is not None and 0 < found <= 1 else None

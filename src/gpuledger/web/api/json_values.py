"""Converts values to JSON: base units, null for absent values, never NaN."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from gpuledger.ledger.owners import labels_of
from gpuledger.model.workload import Workload

VERSION = "v1"
JsonObject = dict[str, Any]

# The JSON keys of an owner, in the order of the labels of `ledger.owners`.
OWNER = ("owner_kind", "namespace", "pod", "container", "user", "job")


def joules(millijoules: int | None) -> float | int | None:
    """Millijoules as joules, exact to the millijoule."""
    if millijoules is None:
        return None
    whole, rest = divmod(millijoules, 1000)
    return millijoules / 1000 if rest else whole


def finite(value: float | None) -> float | None:
    """The number; None for infinity and NaN, which JSON lacks."""
    return value if value is not None and isfinite(value) else None


def whole(value: float | None) -> int | None:
    """A count or a number of bytes as an integer."""
    return int(value) if value is not None and isfinite(value) else None


def watts(value: float | None) -> float | None:
    """Power, rounded to milliwatts."""
    return round(value, 3) if value is not None and isfinite(value) else None


def owner_fields(owner: Workload) -> dict[str, str]:
    """The owner's names by JSON key; empty for missing names."""
    return label_fields(labels_of(owner))


def label_fields(labels: tuple[str, ...]) -> dict[str, str]:
    """The labels of an owner by JSON key."""
    return dict(zip(OWNER, labels, strict=True))


def encode_json(values: Mapping[str, Any]) -> bytes:
    """ASCII JSON: it can represent any process name, even with a lone surrogate."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode("ascii")

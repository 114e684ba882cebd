"""Values as JSON has them: base units, null for what is absent, never NaN."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from gpuledger.ledger.owners import labels_of
from gpuledger.model.workload import Workload

VERSION = "v1"
Words = dict[str, Any]

# The words of an owner, in the order of the labels of `ledger.owners`.
OWNER = ("owner_kind", "namespace", "pod", "container", "user", "job")


def joules(millijoules: int | None) -> float | int | None:
    """Joules with the digits of a millijoule."""
    if millijoules is None:
        return None
    whole, rest = divmod(millijoules, 1000)
    return millijoules / 1000 if rest else whole


def finite(value: float | None) -> float | None:
    """The number; None for one that JSON does not have."""
    return value if value is not None and isfinite(value) else None


def whole(value: float | None) -> int | None:
    """A count or bytes without a fraction."""
    return int(value) if value is not None and isfinite(value) else None


def watts(value: float | None) -> float | None:
    """Power with the digits of a milliwatt."""
    return round(value, 3) if value is not None and isfinite(value) else None


def owner_words(owner: Workload) -> dict[str, str]:
    """Whose it is, in the words of the native labels; empty where there is none."""
    return labelled(labels_of(owner))


def labelled(labels: tuple[str, ...]) -> dict[str, str]:
    """The labels of an owner as words."""
    return dict(zip(OWNER, labels, strict=True))


def encoded(words: Mapping[str, Any]) -> bytes:
    """JSON in ASCII: whatever a process calls itself can be written so, half a surrogate pair too."""
    return json.dumps(words, separators=(",", ":"), allow_nan=False).encode("ascii")

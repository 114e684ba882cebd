"""Conditions of a resource, as Kubernetes' own have them: type, status, reason, message, time of the turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from gpuledger.model.text import clean_name
from gpuledger.operator.api import Json

Status = Literal["True", "False", "Unknown"]
# A message may have 32 KiB; nobody reads so many.
_LONGEST: Final = 1000
_MOST: Final = 10


@dataclass(frozen=True, slots=True)
class Condition:
    """One statement about a resource; `reason` is one word for programs, `message` is for people."""

    type: str
    status: Status
    reason: str
    message: str = ""


def joined(lines: Iterable[str]) -> str:
    """Several messages as one, the first of very many."""
    every = list(lines)
    more = f"; and {len(every) - _MOST} more" if len(every) > _MOST else ""
    return clean_name("; ".join(every[:_MOST]) + more, _LONGEST)


def condition_list(
    conditions: Sequence[Condition], generation: int, before: object, unix: float
) -> list[Json]:
    """The conditions as they are written, of a spec's `generation`.

    One whose status was the same `before` (the resource's own list) keeps its time of transition.
    """
    turned = _turned(before)
    now = datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        {
            "type": one.type,
            "status": one.status,
            "reason": one.reason,
            # Kubernetes 1.20 compiled with Go 1.18 or newer takes empty texts of custom resources for null.
            **({"message": one.message} if one.message else {}),
            "observedGeneration": generation,
            "lastTransitionTime": turned.get((one.type, one.status), now),
        }
        for one in conditions
    ]


def _turned(before: object) -> dict[tuple[object, object], str]:
    found = {}
    for one in before if isinstance(before, list) else ():
        if isinstance(one, dict) and isinstance(one.get("lastTransitionTime"), str):
            found[one.get("type"), one.get("status")] = one["lastTransitionTime"]
    return found

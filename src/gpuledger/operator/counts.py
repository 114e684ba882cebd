"""What the operator has done so far, for its metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Totals since this process began."""

    # By method and status.
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    # By result: success, refused (by a resource's own fault), error.
    reconciles: Counter[str] = field(default_factory=Counter)
    reconcile_seconds: float = 0.0
    applied: int = 0
    repaired: int = 0
    pruned: int = 0
    status_writes: int = 0
    events: int = 0
    watched: int = 0

    def requested(self, method: str, status: int) -> None:
        """The API server has answered."""
        self.requests[method, str(status)] += 1

"""Counters of the operator, for its metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class OperatorCounts:
    """Totals since the start of this process."""

    # By HTTP method and status code.
    requests: Counter[tuple[str, ...]] = field(default_factory=Counter)
    # By result: success, refused (the resource is at fault), error.
    reconciles: Counter[str] = field(default_factory=Counter)
    reconcile_seconds: float = 0.0
    applied: int = 0
    repaired: int = 0
    pruned: int = 0
    status_writes: int = 0
    events: int = 0
    watched: int = 0

    def count_request(self, method: str, status: int) -> None:
        """Count one response of the API server."""
        self.requests[method, str(status)] += 1

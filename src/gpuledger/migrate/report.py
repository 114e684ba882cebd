"""What a check found: kinds of findings, one finding, and all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# Kinds of findings, and what each means for a person.
KINDS: Final[Mapping[str, str]] = {
    "empty": "would return nothing",
    "part": "would return less, or something else: a part of it is empty",
    "fires": "would begin to return a result: its series is absent",
    "labels": "would lose labels that it uses or shows",
    "unit": "would return another unit",
    "type": "would treat a gauge as a counter, or the reverse",
    "unread": "could not be read",
}


@dataclass(slots=True)
class MigrationFinding:
    """One query, metric or label that changes, with what keeps it."""

    kind: str
    where: str
    subject: str
    reason: str
    settings: list[str] = field(default_factory=list)
    instead: str = ""


@dataclass(slots=True)
class MigrationReport:
    """All findings; `checked` queries, of which `empty_before` returned nothing on the old page either."""

    metrics: list[MigrationFinding] = field(default_factory=list)
    queries: list[MigrationFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: int = 0
    empty_before: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether something changes: of the queries if there are any, else of the pages."""
        return bool(self.queries if self.checked else self.metrics)

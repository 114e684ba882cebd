"""What is wrong with a resource, or not heeded in it, and where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One line for the resource's status. `path` is the field's, as
    `spec.features.openAgent.targets[0].endpoints[0].interval`.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

"""What one tick finds wrong, gathered on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.model.devices import Device
from gpuledger.model.snapshot import Failure
from gpuledger.model.text import clean_name

_LONGEST = 300


@dataclass(slots=True)
class Findings:
    """Failures in the order met, and how many values were not believed."""

    failures: list[Failure] = field(default_factory=list)
    invalid: int = 0

    def note(self, part: str, reason: str, detail: str, device: Device | None = None) -> None:
        """Note that `part` went wrong, of `device` or of the machine."""
        self.failures.append(Failure(part, reason, device, clean_name(detail, _LONGEST)))

    def error_of(self, part: str) -> str:
        """One line for the part's health: its first failure and how many more there were; empty if none."""
        mine = [failure.detail for failure in self.failures if failure.part == part]
        more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
        return f"{mine[0]}{more}" if mine else ""

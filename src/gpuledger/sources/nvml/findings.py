"""What one tick finds wrong, gathered on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.model.devices import Device
from gpuledger.model.snapshot import Failure
from gpuledger.sources.nvml.codes import name_of


@dataclass(slots=True)
class Findings:
    """Failures in the order met, and how many values were not believed."""

    failures: list[Failure] = field(default_factory=list)
    invalid: int = 0

    def fail(self, part: str, code: int, call: str, device: Device | None = None) -> None:
        """Note that `call` answered `code`; `call` may carry the quantity or index it was about."""
        reason = name_of(code)
        where = f"{device.uuid}: " if device else ""
        self.failures.append(Failure(part, reason, device, f"{where}{call}: {reason}"))

    def note(self, part: str, reason: str, detail: str) -> None:
        """A Failure of the machine that no call answered."""
        self.failures.append(Failure(part, reason, None, detail))

    def error_of(self, part: str) -> str:
        """One line for the part's health: its first failure and how many more there were; empty if none."""
        mine = [failure.detail for failure in self.failures if failure.part == part]
        more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
        return f"{mine[0]}{more}" if mine else ""

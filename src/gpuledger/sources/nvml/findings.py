"""What one tick finds wrong, as the driver's calls report it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.devices import Device
from gpuledger.sources import findings
from gpuledger.sources.nvml.codes import name_of


@dataclass(slots=True)
class Findings(findings.Findings):
    """As of every source, with NVML's return codes."""

    def fail(self, part: str, code: int, call: str, device: Device | None = None) -> None:
        """Note that `call` answered `code`; `call` may carry the quantity or index it was about."""
        reason = name_of(code)
        where = f"{device.uuid}: " if device else ""
        self.note(part, reason, f"{where}{call}: {reason}", device)

"""Failures of one tick, with NVML's return codes as reasons."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.devices import Device
from gpuledger.sources import findings
from gpuledger.sources.nvml.codes import name_of


@dataclass(slots=True)
class NvmlFindings(findings.SourceFindings):
    """SourceFindings that name NVML return codes."""

    def add_error(self, part: str, code: int, call: str, device: Device | None = None) -> None:
        """Add the failure that `call` returned `code`; `call` may also name a quantity or an index."""
        reason = name_of(code)
        where = f"{device.uuid}: " if device else ""
        self.note(part, reason, f"{where}{call}: {reason}", device)

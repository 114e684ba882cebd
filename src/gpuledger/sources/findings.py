"""Failures and invalid values of one tick, collected while reading."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.model.devices import Device
from gpuledger.model.snapshot import Failure
from gpuledger.model.text import clean_name

_MAX_DETAIL_LENGTH = 300


@dataclass(slots=True)
class SourceFindings:
    """The failures in order of occurrence, and the number of invalid values."""

    failures: list[Failure] = field(default_factory=list)
    invalid: int = 0

    def note(self, part: str, reason: str, detail: str, device: Device | None = None) -> None:
        """Add a failure of `part`, for `device` or for the machine."""
        self.failures.append(Failure(part, reason, device, clean_name(detail, _MAX_DETAIL_LENGTH)))

    def error_of(self, part: str) -> str:
        """Return the part's first failure and the number of others in one line; empty if there is none."""
        details = [failure.detail for failure in self.failures if failure.part == part]
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        return f"{details[0]}{more}" if details else ""

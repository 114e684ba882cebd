"""Failures and invalid values of one tick, collected while reading."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from gpuledger.model.devices import Device
from gpuledger.model.snapshot import Failure
from gpuledger.model.text import clean_name

log = logging.getLogger("gpuledger.source")

_MAX_DETAIL_LENGTH = 300
_MAX_VALUE_LENGTH = 40


@dataclass(slots=True)
class SourceFindings:
    """The failures in order of occurrence, and the number of invalid values.

    A source passes the same `logged` in each tick: the kinds of invalid values that were logged already.
    """

    failures: list[Failure] = field(default_factory=list)
    invalid: int = 0
    logged: set[str] = field(default_factory=set)

    def reject(self, what: str, value: object, device: Device | None = None, count: int = 1) -> None:
        """Count a value of `what` that is left out because it cannot be true; log the first one."""
        self.invalid += count
        name = f"{what} of {device.uuid}" if device else what
        if count and name not in self.logged:
            self.logged.add(name)
            log.warning(
                "%s is %s, which cannot be true: it is left out and, as later ones, only counted "
                "(gpuledger_invalid_values_total); if it goes on, update the driver or replace the card",
                name,
                clean_name(str(value), _MAX_VALUE_LENGTH),
            )

    def note(self, part: str, reason: str, detail: str, device: Device | None = None) -> None:
        """Add a failure of `part`, for `device` or for the machine."""
        self.failures.append(Failure(part, reason, device, clean_name(detail, _MAX_DETAIL_LENGTH)))

    def error_of(self, part: str) -> str:
        """Return the part's first failure and the number of others in one line; empty if there is none."""
        details = [failure.detail for failure in self.failures if failure.part == part]
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        return f"{details[0]}{more}" if details else ""

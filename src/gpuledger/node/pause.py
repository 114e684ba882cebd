"""A pause that a user asked for: since when nobody looks, and when that ends by itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gpuledger.model.page import PauseHealth

# Longer than any driver upgrade or profiling run, short enough for one that is forgotten.
LONGEST: Final = 86_400.0
USUAL: Final = 600.0


@dataclass(frozen=True, slots=True)
class Pause:
    """`ends` on the clock that never steps, `until` the same moment as unix time, as it is told."""

    ends: float
    until: float
    reason: str = ""

    @property
    def health(self) -> PauseHealth:
        """As the Page tells it."""
        return PauseHealth(paused=True, until=self.until, reason=self.reason)

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        reason = f" ({self.reason})" if self.reason else ""
        return f"paused until {moment}{reason}: the driver is let go; `gpuledger resume` ends it sooner"

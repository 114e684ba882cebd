"""When a target is scraped: spread over the interval by hash, and on the same beat ever after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# A scrape that begins so little after its beat is told with the beat's own time, so that timestamps are
# evenly apart; of the interval, one part in a hundred at most. As Prometheus has it since 2.29.
_TOLERANCE: Final = 0.002
_TOLERANCE_SHARE: Final = 0.01


@dataclass(slots=True)
class Beat:
    """The beats of one target, in unix milliseconds: `offset` after each multiple of the interval.

    Targets scraped by several agents of one cluster, or after a restart, keep their moment in the interval.
    """

    interval: float
    digest: int
    _offset: int = field(init=False)
    _milliseconds: int = field(init=False)

    def __post_init__(self) -> None:
        self._milliseconds = max(1, round(self.interval * 1000))
        self._offset = self.digest % self._milliseconds

    def next(self, unix: float, last: int | None = None) -> int:
        """The first beat after a moment that is not `last`, nor before it unless the clock was set back."""
        now = int(unix * 1000)
        beat = now - (now - self._offset) % self._milliseconds + self._milliseconds
        if last is not None and beat <= last <= beat + self._milliseconds:
            # Woken a little early.
            return last + self._milliseconds
        return beat

    def between(self, beat: int, later: int) -> int:
        """How many beats it is from one to another."""
        return (later - beat) // self._milliseconds

    def timestamp(self, beat: int, unix: float) -> int:
        """The milliseconds to tell of a scrape that was due at `beat` and began now."""
        late = unix * 1000 - beat
        tolerance = 1000 * min(_TOLERANCE, self.interval * _TOLERANCE_SHARE)
        return beat if abs(late) <= tolerance else int(unix * 1000)

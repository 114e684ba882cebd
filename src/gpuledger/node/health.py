"""The node's Health, kept from tick to tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gpuledger.model.node_state import CollectorHealth, Health, IndexHealth, PauseHealth, ReloadHealth
from gpuledger.model.snapshot import Collected, Snapshot

SOURCE = "source"
OK = "ok"


class Vitals:
    """Remembers when each part of the tick last did its work; answers an immutable Health.

    `maps` is asked for the maps of owners, which are kept beside the tick. `asked` is the interval that the
    user wants; `pause` and `reload` are told as they stand.
    """

    def __init__(
        self, started: float, interval: float, maps: Callable[[], tuple[IndexHealth, ...]] = tuple
    ) -> None:
        self._started = started
        self.maps = maps
        self.asked = interval
        self.pause: PauseHealth | None = None
        self.reload: ReloadHealth | None = None
        self._collectors = {SOURCE: CollectorHealth(SOURCE, success=False)}
        self._of_source = {SOURCE}
        self._ticks = 0

    def ticked(
        self,
        unix: float,
        snapshot: Snapshot | None,
        parts: Sequence[Collected],
        status: str,
        interval: float,
    ) -> Health:
        """Health after a tick that came back: `parts` are those that ran, `status` says what is wrong."""
        self._ticks += 1
        if snapshot is None:
            self._lose_source(status)
        else:
            self._of_source |= {part.name for part in snapshot.collected}
        for part in parts:
            before = self._collectors.get(part.name)
            last = unix if part.success else before.last_success if before else None
            failures = (before.failures if before else 0) + (not part.success)
            self._collectors[part.name] = CollectorHealth(
                part.name, part.success, part.seconds, last, part.error, failures
            )
        return self._health(status, interval, self._collectors.values(), stalled=False)

    def paused(self, status: str, interval: float) -> Health:
        """Health of a tick in a pause: of what reads the driver nothing is told, it neither did its work nor
        failed.
        """
        self._ticks += 1
        shown = [part for name, part in self._collectors.items() if name not in self._of_source]
        return self._health(status, interval, shown, stalled=False)

    def stalled(self, status: str, interval: float) -> Health:
        """Health while a tick does not come back: what reads the driver does not do its work."""
        shown = [
            CollectorHealth(name, False, None, part.last_success, status, part.failures)
            if name in self._of_source
            else part
            for name, part in self._collectors.items()
        ]
        return self._health(status, interval, shown, stalled=True)

    def _lose_source(self, error: str) -> None:
        for name in self._of_source:
            before = self._collectors[name]
            self._collectors[name] = CollectorHealth(
                name, False, None, before.last_success, error, before.failures
            )

    def _health(
        self, status: str, interval: float, parts: Iterable[CollectorHealth], *, stalled: bool
    ) -> Health:
        return Health(
            status=status,
            healthy=status == OK,
            tried=True,
            stalled=stalled,
            ticks=self._ticks,
            interval=interval,
            asked_interval=self.asked,
            started=self._started,
            collectors=tuple(parts),
            maps=self.maps(),
            pause=self.pause,
            reload=self.reload,
        )


def status_of(snapshot: Snapshot, more: Sequence[Collected] = ()) -> str:
    """`ok`, or the failed parts (and `more` of them) and Devices of a Snapshot in one line."""
    troubles = [f"{part.name}: {part.error}" for part in (*snapshot.collected, *more) if part.error]
    troubles += [
        f"GPU {reading.device.gpu.index} ({reading.device.uuid}) does not answer"
        for reading in snapshot.readings
        if not reading.up and reading.device is reading.device.gpu
    ]
    return "; ".join(troubles) or OK


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

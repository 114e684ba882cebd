"""The node's Health across ticks, and the pause of the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from gpuledger.model.down_reasons import describe_down
from gpuledger.model.node_state import CollectorHealth, Health, IndexHealth, PauseHealth, ReloadHealth
from gpuledger.model.snapshot import CollectorRun, Snapshot

SOURCE = "source"
OK = "ok"


class HealthTracker:
    """Remembers when each part of the tick last succeeded; returns an immutable Health after each tick.

    `owner_indexes` returns the health of the owner indexes, which are updated outside the tick.
    `requested_interval` is the configured interval in seconds. `pause` and `reload` are copied as they are.
    """

    def __init__(
        self, started: float, interval: float, owner_indexes: Callable[[], tuple[IndexHealth, ...]] = tuple
    ) -> None:
        self._started = started
        self.owner_indexes = owner_indexes
        self.requested_interval = interval
        self.pause: PauseHealth | None = None
        self.reload: ReloadHealth | None = None
        self._collectors = {SOURCE: CollectorHealth(SOURCE, success=False)}
        self._source_parts = {SOURCE}
        self._ticks = 0

    def after_tick(
        self,
        unix: float,
        snapshot: Snapshot | None,
        parts: Sequence[CollectorRun],
        status: str,
        interval: float,
    ) -> Health:
        """Health after a finished tick: `parts` are those that ran, `status` says what is wrong."""
        self._ticks += 1
        if snapshot is None:
            self._collectors = self._with_failed_source(status)
        else:
            self._source_parts |= {part.name for part in snapshot.collected}
        for part in parts:
            before = self._collectors.get(part.name)
            last = unix if part.success else before.last_success if before else None
            failures = (before.failures if before else 0) + (not part.success)
            self._collectors[part.name] = CollectorHealth(
                part.name, part.success, part.seconds, last, part.error, failures
            )
        return self._build(status, interval, self._collectors.values(), stalled=False)

    def while_paused(self, status: str, interval: float) -> Health:
        """Health of a tick during a pause: omits the parts that read the driver, as they did not run."""
        self._ticks += 1
        shown = [part for name, part in self._collectors.items() if name not in self._source_parts]
        return self._build(status, interval, shown, stalled=False)

    def while_stalled(self, status: str, interval: float) -> Health:
        """Health while a tick hangs: the parts that read the driver count as failed."""
        return self._build(status, interval, self._with_failed_source(status).values(), stalled=True)

    def _with_failed_source(self, error: str) -> dict[str, CollectorHealth]:
        """The collectors, with those of the source failed."""
        return {
            name: replace(part, success=False, seconds=None, error=error)
            if name in self._source_parts
            else part
            for name, part in self._collectors.items()
        }

    def _build(
        self, status: str, interval: float, parts: Iterable[CollectorHealth], *, stalled: bool
    ) -> Health:
        return Health(
            status=status,
            healthy=status == OK,
            attempted=True,
            stalled=stalled,
            ticks=self._ticks,
            interval=interval,
            configured_interval=self.requested_interval,
            started=self._started,
            collectors=tuple(parts),
            owner_indexes=self.owner_indexes(),
            pause=self.pause,
            reload=self.reload,
        )


def status_of(snapshot: Snapshot, more: Sequence[CollectorRun] = ()) -> str:
    """`ok`, or one line with the failed parts (those of the Snapshot and `more`) and the lost Gpus."""
    troubles = [f"{part.name}: {part.error}" for part in (*snapshot.collected, *more) if part.error]
    lost = [
        f"GPU {reading.device.gpu.index} ({reading.device.uuid}) {describe_down(reading.down_reason)}"
        for reading in snapshot.readings
        if not reading.up and reading.device is reading.device.gpu
    ]
    # A part that failed because of a Gpu names it already.
    troubles += [line for line in lost if not any(line in trouble for trouble in troubles)]
    return "; ".join(troubles) or OK


# Seconds. Longer than any driver upgrade or profiling run, short enough for a forgotten pause.
LONGEST_PAUSE: Final = 86_400.0
DEFAULT_PAUSE: Final = 600.0


@dataclass(frozen=True)
class Pause:
    """A pause of the driver: it ends at `ends` (monotonic seconds), reported as `until` (unix seconds)."""

    ends: float
    until: float
    reason: str = ""

    @property
    def health(self) -> PauseHealth:
        """The pause as part of Health."""
        return PauseHealth(paused=True, until=self.until, reason=self.reason)

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        reason = f" ({self.reason})" if self.reason else ""
        return f"paused until {moment}{reason}: the driver is released; `gpuledger resume` ends the pause"

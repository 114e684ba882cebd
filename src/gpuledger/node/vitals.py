"""The node's Health, kept from tick to tick."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.model.page import CollectorHealth, Health
from gpuledger.model.snapshot import Collected, Snapshot


class Vitals:
    """Remembers when each part of the tick last did its work; answers an immutable Health."""

    def __init__(self, started: float, interval: float) -> None:
        self._started = started
        self._asked = interval
        self._collectors: dict[str, CollectorHealth] = {}
        self._ticks = 0

    def ticked(
        self, unix: float, parts: Iterable[Collected], status: str, interval: float, seconds: float
    ) -> Health:
        """Health after a tick that came back; `status` is `ok` or what is wrong."""
        self._ticks += 1
        for part in parts:
            before = self._collectors.get(part.name)
            last = unix if part.success else before.last_success if before else None
            self._collectors[part.name] = CollectorHealth(
                part.name, part.success, part.seconds, last, part.error
            )
        return self._health(status, interval, seconds, stalled=False)

    def stalled(self, status: str, interval: float, seconds: float) -> Health:
        """Health while a tick does not come back: what reads the driver has not succeeded."""
        lost = {name: _failed(part, status) for name, part in self._collectors.items()}
        return self._health(status, interval, seconds, stalled=True, collectors=tuple(lost.values()))

    def source_lost(self, error: str, seconds: float) -> list[Collected]:
        """Parts of a tick whose source could not be read at all: every part known so far failed."""
        names = [name for name in self._collectors if name != "source"]
        return [Collected("source", seconds, error), *(Collected(name, 0.0, error) for name in names)]

    def _health(
        self,
        status: str,
        interval: float,
        seconds: float,
        *,
        stalled: bool,
        collectors: tuple[CollectorHealth, ...] | None = None,
    ) -> Health:
        return Health(
            status=status,
            healthy=status == "ok",
            tried=True,
            stalled=stalled,
            ticks=self._ticks,
            interval=interval,
            asked_interval=self._asked,
            tick_seconds=seconds,
            started=self._started,
            collectors=tuple(self._collectors.values()) if collectors is None else collectors,
        )


def _failed(part: CollectorHealth, error: str) -> CollectorHealth:
    return CollectorHealth(part.name, False, part.seconds, part.last_success, error)


def status_of(snapshot: Snapshot) -> str:
    """`ok`, or the failed parts and Devices of a Snapshot in one line."""
    troubles = [f"{part.name}: {part.error}" for part in snapshot.collected if part.error]
    troubles += [
        f"GPU {reading.device.gpu.index} ({reading.device.uuid}) does not answer"
        for reading in snapshot.readings
        if not reading.up and reading.device is reading.device.gpu
    ]
    return "; ".join(troubles) or "ok"

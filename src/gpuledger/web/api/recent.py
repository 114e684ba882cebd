"""The last hour of every Device, for sparklines: means over steps of some seconds, in fixed memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isnan, nan
from threading import Lock

from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import MEMORY_USED, POWER
from gpuledger.model.snapshot import Reading
from gpuledger.web.api.snapshot import utilization_of
from gpuledger.web.api.values import VERSION, Words

STEP = 10
POINTS = 360

# Names in the answer, and how many digits are worth their bytes.
_TOLD = (("utilization_ratio", 4), ("power_watts", 1), ("memory_used_bytes", 0))
_Place = tuple[str, str]


@dataclass(slots=True)
class _Line:
    """One quantity of a Device: closed steps in a ring, and the sum of the open one. NaN is absent."""

    points: array[float]
    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    def close(self, place: int) -> None:
        self.points[place] = self.total / self.count if self.count else nan
        self.total, self.count = 0.0, 0


@dataclass(slots=True)
class _Track:
    """The lines of one Device, in the order of `_TOLD`; `seen` is the last step in which it was there."""

    seen: int
    # Bytes need more digits than 24 bits have.
    lines: tuple[_Line, ...] = field(
        default_factory=lambda: tuple(_Line(array(kind, [nan]) * POINTS) for kind in "ffd")
    )


class Recent:
    """Fed with each Page by whoever publishes it, asked from the event loop.

    Steps are those of unix time, `step` seconds each. The open one is not told: its mean would be of a part.
    When the clock is set back by more than a step, or an hour ahead, all begins anew.
    """

    def __init__(self, step: int = STEP) -> None:
        self.step = step
        self._tracks: dict[_Place, _Track] = {}
        self._now: int | None = None
        self._first = 0
        self._lock = Lock()

    def add(self, page: NodeState) -> None:
        """Take in a Page; one without a Snapshot only lets time go on."""
        now = int(page.unix // self.step)
        with self._lock:
            now = self._go_to(now)
            for reading in page.snapshot.readings if page.snapshot is not None else ():
                self._take(reading, now)

    @property
    def now(self) -> int:
        """The number of the step that is open: until it is another one, the same is told."""
        return self._now or 0

    def told(self) -> Words:
        """The closed steps as words."""
        with self._lock:
            now = self._now if self._now is not None else 0
            # Older ones were never looked at, or are forgotten.
            first = max(self._first, now - POINTS)
            places = [step % POINTS for step in range(first, now)]
            devices = [
                {
                    "uuid": uuid,
                    "instance": instance,
                    **{
                        name: list(_rounded(line.points, places, digits))
                        for (name, digits), line in zip(_TOLD, track.lines, strict=True)
                    },
                }
                for (uuid, instance), track in self._tracks.items()
            ]
        return {
            "version": VERSION,
            "step_seconds": self.step,
            "until": now * self.step,
            "devices": devices,
        }

    def _go_to(self, now: int) -> int:
        """Close the steps before this one; answers the step that is open then."""
        before = self._now
        if before is not None and before - 1 <= now <= before:
            return before
        if before is None or now < before or now - before >= POINTS:
            self._tracks.clear()
            self._first = self._now = now
            return now
        for track in self._tracks.values():
            for line in track.lines:
                for step in range(before, now):
                    line.close(step % POINTS)
        self._now = now
        for place in [place for place, track in self._tracks.items() if track.seen < now - POINTS]:
            del self._tracks[place]
        return now

    def _take(self, reading: Reading, now: int) -> None:
        place = (reading.device.gpu.uuid, reading.device.instance)
        track = self._tracks.get(place)
        if track is None:
            track = self._tracks[place] = _Track(now)
        track.seen = now
        utilization, power, memory = track.lines
        utilization.add(utilization_of(reading))
        power.add(reading.get(POWER))
        memory.add(reading.get(MEMORY_USED))


def _rounded(points: array[float], places: list[int], digits: int) -> Iterator[float | int | None]:
    for place in places:
        value = points[place]
        if isnan(value):
            yield None
        else:
            yield round(value, digits) if digits else round(value)

"""`/api/v1/recent`: the last hour of every Device as means over steps, in a fixed amount of memory."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import isnan, nan
from threading import Lock

from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import MEMORY_USED, POWER
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.web.api.json_values import VERSION, JsonObject
from gpuledger.web.api.shown_quantities import utilization_of

STEP_SECONDS = 10
POINTS = 360

# JSON keys, and the digits to which values are rounded.
_FIELDS = (("utilization_ratio", 4), ("power_watts", 1), ("memory_used_bytes", 0))
_DeviceKey = tuple[str, str]


@dataclass(slots=True)
class _Series:
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
class _DeviceHistory:
    """The series of one Device, in the order of `_FIELDS`; `seen` is the last step with a reading."""

    seen: int
    # Bytes need more digits than a 32-bit float has.
    series: tuple[_Series, ...] = field(
        default_factory=lambda: tuple(_Series(array(kind, [nan]) * POINTS) for kind in "ffd")
    )


class RecentHistory:
    """Takes each NodeState in the publishing thread; read from the event loop.

    Steps are `step` seconds of unix time. The open step is omitted, as its mean would be partial. The history
    restarts when the clock is set back by more than a step or forward by an hour.
    """

    def __init__(self, step: int = STEP_SECONDS) -> None:
        self.step = step
        self._devices: dict[_DeviceKey, _DeviceHistory] = {}
        self._now: int | None = None
        self._first = 0
        self._lock = Lock()

    def add(self, state: NodeState) -> None:
        """Add a NodeState; one without a Snapshot only advances the time."""
        with self._lock:
            now = self._advance_to(int(state.unix // self.step))
            if state.snapshot is not None:
                for reading in state.snapshot.readings:
                    self._add_reading(state.snapshot, reading, now)

    @property
    def now(self) -> int:
        """The number of the open step; `to_json` changes only with it."""
        return self._now or 0

    def to_json(self) -> JsonObject:
        """The closed steps as JSON."""
        with self._lock:
            now = self._now if self._now is not None else 0
            # Older steps were never recorded or are overwritten.
            first = max(self._first, now - POINTS)
            places = [step % POINTS for step in range(first, now)]
            devices = [
                {
                    "uuid": uuid,
                    "instance": instance,
                    **{
                        name: _rounded(one.points, places, digits)
                        for (name, digits), one in zip(_FIELDS, history.series, strict=True)
                    },
                }
                for (uuid, instance), history in self._devices.items()
            ]
        return {
            "version": VERSION,
            "step_seconds": self.step,
            "until": now * self.step,
            "devices": devices,
        }

    def _advance_to(self, now: int) -> int:
        """Close the steps before `now`; returns the open step."""
        before = self._now
        if before is not None and before - 1 <= now <= before:
            return before
        if before is None or now < before or now - before >= POINTS:
            self._devices.clear()
            self._first = self._now = now
            return now
        for history in self._devices.values():
            for one in history.series:
                for step in range(before, now):
                    one.close(step % POINTS)
        self._now = now
        for place in [place for place, history in self._devices.items() if history.seen < now - POINTS]:
            del self._devices[place]
        return now

    def _add_reading(self, snapshot: Snapshot, reading: Reading, now: int) -> None:
        place = (reading.device.gpu.uuid, reading.device.instance)
        history = self._devices.get(place)
        if history is None:
            history = self._devices[place] = _DeviceHistory(now)
        history.seen = now
        utilization, power, memory = history.series
        utilization.add(utilization_of(reading))
        power.add(reading.get(POWER))
        memory.add(snapshot.get(reading, MEMORY_USED))


def _rounded(points: array[float], places: list[int], digits: int) -> list[float | None]:
    values = (points[place] for place in places)
    return [None if isnan(value) else round(value, digits or None) for value in values]

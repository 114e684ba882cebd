"""The power meter of one GPU: exact energy, the energy counter, busy time, heat and recent history."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gpuledger.sources.simulator.faults import FaultSchedule
from gpuledger.sources.simulator.gpu_timeline import Phase, Timeline
from gpuledger.sources.simulator.hardware import Hardware
from gpuledger.sources.simulator.power import PowerDraw, compute_draw
from gpuledger.sources.simulator.scenario import SECOND, WHOLE

# The time span of the driver's sample buffer.
HISTORY = 20 * SECOND

_PICO_IN_MILLI = 10**9
_INERTIA = 25

# Begin, end, phase and PowerDraw of a span with constant power.
PowerSegment = tuple[int, int, Phase, PowerDraw]


class PowerSegments:
    """The PowerSegments of one GPU. Caches the last PowerDraw, which is constant in a phase and second."""

    def __init__(self, hardware: Hardware, timeline: Timeline, seed: int) -> None:
        self.hardware = hardware
        self._timeline = timeline
        self._seed = seed
        self._last: tuple[Phase, int, PowerDraw] | None = None

    def between(self, start: int, stop: int) -> Iterator[PowerSegment]:
        """Yield the segments of `[start, stop)` in order, without gaps."""
        for begin, end, phase in self._timeline.segments(start, stop):
            yield begin, end, phase, self._draw(phase, begin // SECOND if phase.is_noisy else 0)

    def _draw(self, phase: Phase, second: int) -> PowerDraw:
        last = self._last
        if last is None or last[0] is not phase or last[1] != second:
            last = self._last = (phase, second, compute_draw(self.hardware, phase, second, self._seed))
        return last[2]


class PowerMeter:
    """Integrates power forward in time. Values at a time do not depend on earlier calls of `advance`."""

    def __init__(self, segments: PowerSegments, faults: FaultSchedule) -> None:
        self._hardware = segments.hardware
        self._segments = segments
        self._faults = faults
        self._at = 0
        # Picojoules since time 0; not reset by driver reloads.
        self._energy = 0
        self._work = 0
        self._second_energy = 0
        self._heat = self._hardware.spec.empty_power
        self._counter_energy = 0
        self._at_driver_load: tuple[int, int] = (0, 0)
        # Time of the last driver reload; None if the driver was loaded before time 0.
        self.loaded_at: int | None = None
        self.history: deque[PowerSegment] = deque()

    @property
    def counter(self) -> int:
        """The energy counter in mJ, since driver load and as of its last refresh."""
        start = self._hardware.spec.counter_start if self.loaded_at is None else 0
        return start + (self._counter_energy - self._at_driver_load[0]) // _PICO_IN_MILLI

    @property
    def busy_time(self) -> int:
        """Busy time since driver load in microseconds of the whole GPU; traffic is proportional to it."""
        return (self._work - self._at_driver_load[1]) // WHOLE

    @property
    def heat(self) -> int:
        """Smoothed power in microwatts, from which temperature and fan speed are computed."""
        return self._heat

    def advance(self, at: int) -> None:
        """Advance to `at` microseconds; does nothing for a time before the current one."""
        if at <= self._at:
            return
        refresh = self._hardware.spec.counter_refresh
        refreshed = at - at % refresh if refresh else at
        keep_from = at - HISTORY - SECOND
        resets = self._faults.counter_resets(self._hardware.gpu.index, self._at, at)
        refreshes = {refreshed} if refreshed > self._at else set()
        for stop in sorted({*resets, *refreshes, at}):
            self._integrate(stop, keep_from)
            if stop in resets:
                self._at_driver_load = (self._energy, self._work)
                self.loaded_at = stop
            if stop in resets or stop in refreshes:
                self._counter_energy = self._energy
        while self.history and self.history[0][1] < keep_from:
            self.history.popleft()

    def _integrate(self, stop: int, keep_from: int) -> None:
        if stop <= self._at:
            return
        for segment in self._segments.between(self._at, stop):
            begin, end, _, draw = segment
            self._energy += draw.power * (end - begin)
            self._work += draw.work * (end - begin)
            self._second_energy += draw.power * (end - begin)
            if end % SECOND == 0:
                self._heat += (self._second_energy // SECOND - self._heat) // _INERTIA
                self._second_energy = 0
            if end >= keep_from:
                self.history.append(segment)
        self._at = stop

    def now(self) -> tuple[Phase, PowerDraw]:
        """Return the phase and PowerDraw at the current time."""
        _, _, phase, draw = next(self._segments.between(self._at, self._at + 1))
        return phase, draw

"""The meter of one Gpu: exact energy, the quantised counter, work, heat, and recent history."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gpuledger.sources.simulator.faults import Faults
from gpuledger.sources.simulator.hardware import Hardware
from gpuledger.sources.simulator.power import Draw, draw
from gpuledger.sources.simulator.scenario import SECOND, WHOLE
from gpuledger.sources.simulator.timeline import Phase, Timeline

# How far back the driver's sample buffer reaches.
HISTORY = 20 * SECOND

_PICO_IN_MILLI = 10**9
_INERTIA = 25

# Begin, end, phase and Draw of a span of constant power.
Stretch = tuple[int, int, Phase, Draw]


class Stretches:
    """The stretches of one Gpu. Each Draw is made once while time goes on inside its phase and second."""

    def __init__(self, hardware: Hardware, timeline: Timeline, seed: int) -> None:
        self.hardware = hardware
        self._timeline = timeline
        self._seed = seed
        self._last: tuple[Phase, int, Draw] | None = None

    def between(self, start: int, stop: int) -> Iterator[Stretch]:
        """`[start, stop)` in order, without a gap."""
        for begin, end, phase in self._timeline.segments(start, stop):
            yield begin, end, phase, self._draw(phase, begin // SECOND if phase.is_noisy else 0)

    def _draw(self, phase: Phase, second: int) -> Draw:
        last = self._last
        if last is None or last[0] is not phase or last[1] != second:
            last = self._last = (phase, second, draw(self.hardware, phase, second, self._seed))
        return last[2]


class Meter:
    """Integrates forward only. What it tells at a time does not depend on where it was asked before."""

    def __init__(self, stretches: Stretches, faults: Faults) -> None:
        self._hardware = stretches.hardware
        self._stretches = stretches
        self._faults = faults
        self._at = 0
        # Picojoules since time 0, through driver reloads.
        self._energy = 0
        self._work = 0
        self._second_energy = 0
        self._heat = self._hardware.spec.empty_power
        self._told = 0
        self._base: tuple[int, int] = (0, 0)
        # When the driver was loaded anew, None when that was before time 0.
        self.loaded_at: int | None = None
        self.history: deque[Stretch] = deque()

    @property
    def counter(self) -> int:
        """The energy counter in mJ: since driver load, as of the last refresh."""
        start = self._hardware.spec.counter_start if self.loaded_at is None else 0
        return start + (self._told - self._base[0]) // _PICO_IN_MILLI

    @property
    def busy_time(self) -> int:
        """Microseconds of whole-Gpu work since driver load: what traffic follows."""
        return (self._work - self._base[1]) // WHOLE

    @property
    def heat(self) -> int:
        """Power in microwatts as the cooler feels it: an average that follows with some inertia."""
        return self._heat

    def advance(self, at: int) -> None:
        """Go on to `at` microseconds; a time before the last one changes nothing."""
        if at <= self._at:
            return
        refresh = self._hardware.spec.counter_refresh
        refreshed = at - at % refresh if refresh else at
        keep_from = at - HISTORY - SECOND
        resets = self._faults.resets(self._hardware.gpu.index, self._at, at)
        refreshes = {refreshed} if refreshed > self._at else set()
        for stop in sorted({*resets, *refreshes, at}):
            self._run(stop, keep_from)
            if stop in resets:
                self._base = (self._energy, self._work)
                self.loaded_at = stop
            if stop in resets or stop in refreshes:
                self._told = self._energy
        while self.history and self.history[0][1] < keep_from:
            self.history.popleft()

    def _run(self, stop: int, keep_from: int) -> None:
        if stop <= self._at:
            return
        for stretch in self._stretches.between(self._at, stop):
            begin, end, _, drawn = stretch
            self._energy += drawn.power * (end - begin)
            self._work += drawn.work * (end - begin)
            self._second_energy += drawn.power * (end - begin)
            if end % SECOND == 0:
                self._heat += (self._second_energy // SECOND - self._heat) // _INERTIA
                self._second_energy = 0
            if end >= keep_from:
                self.history.append(stretch)
        self._at = stop

    def now(self) -> tuple[Phase, Draw]:
        """The phase and Draw that begin at the present moment."""
        _, _, phase, drawn = next(self._stretches.between(self._at, self._at + 1))
        return phase, drawn

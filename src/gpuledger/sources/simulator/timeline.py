"""One Gpu's time cut into phases in which nothing starts, stops or changes its duty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger.model.devices import Device
from gpuledger.sources.simulator.hardware import Era, Hardware, mix
from gpuledger.sources.simulator.scenario import FOREVER, SECOND, Place, ProcessSpec

_JITTER, _PIDS = 11, 12
_PID_SPACE = 4_000_000
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One process from start to stop (microseconds); the `number`-th of its spec. Compared by identity."""

    spec: ProcessSpec
    number: int
    pid: int
    start: int
    stop: int

    def is_busy(self, at: int) -> bool:
        """Whether it is in the busy part of its duty cycle."""
        cycle = self.spec.busy + self.spec.quiet
        return not cycle or (at - self.start) % cycle < self.spec.busy

    def next_edge(self, at: int) -> int:
        """The first change of its duty cycle after `at`."""
        spec = self.spec
        cycle = spec.busy + spec.quiet
        if not cycle:
            return FOREVER
        into = (at - self.start) % cycle
        return at + (spec.busy - into if into < spec.busy else cycle - into)


class Roster:
    """The runs of all specs. A run is made once, so that its identity is the same on all its GPUs."""

    def __init__(self, specs: tuple[ProcessSpec, ...], seed: int) -> None:
        self._specs = specs
        self._seed = seed
        fixed = [spec.pid for spec in specs if spec.pid is not None]
        # Drawn pids lie above all fixed ones; number and position in the file keep them apart.
        self._first_pid = max([2_000 + mix(seed, _PIDS) % 30_000, *(pid + 1 for pid in fixed)])
        self._made: dict[tuple[int, int], Run | None] = {}

    def around(self, index: int, at: int) -> list[Run]:
        """Runs of one spec alive at `at`, the next one to start after it, and perhaps neighbours."""
        spec = self._specs[index]
        if not spec.every:
            return [run for run in (self.run(index, 0),) if run is not None]
        since = at - spec.start
        first = max(0, (since - spec.jitter - spec.lasting) // spec.every)
        last = max(0, since // spec.every + 1)
        runs = (self.run(index, number) for number in range(first, last + 1))
        return [run for run in runs if run is not None]

    def run(self, index: int, number: int) -> Run | None:
        """The `number`-th run of a spec; None when it would start after the spec's stop."""
        key = (index, number)
        if key not in self._made:
            if len(self._made) >= _REMEMBERED:
                self._forget()
            self._made[key] = self._make(index, number)
        return self._made[key]

    def _forget(self) -> None:
        # The older half: dicts keep the order of insertion, and time goes on.
        old = list(self._made)[: _REMEMBERED // 2]
        for key in old:
            if self._specs[key[0]].every:
                del self._made[key]

    def _make(self, index: int, number: int) -> Run | None:
        spec = self._specs[index]
        start = spec.start + number * spec.every
        if spec.jitter:
            start += mix(self._seed, _JITTER, index, number) % spec.jitter
        if start >= spec.stop:
            return None
        stop = min(spec.stop, start + spec.lasting)
        pid = spec.pid
        if pid is None:
            drawn = number * len(self._specs) + index
            pid = self._first_pid + drawn % (_PID_SPACE - self._first_pid)
        return Run(spec, number, pid, start, stop)


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """A run on one Device, from the later of both beginnings to the earlier of both ends."""

    run: Run
    device: Device
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A span in which the same seats are taken.

    `busy` says of each seat whether it works; `is_noisy` whether some load changes from second to second;
    `is_inhabited` whether a compute process holds a context, which is what raises the floor.
    """

    start: int
    stop: int
    era: Era
    seats: tuple[Seat, ...]
    busy: tuple[bool, ...]
    is_noisy: bool
    is_inhabited: bool


class Timeline:
    """Phases of one Gpu. Going forward is cheap, any other time is possible."""

    def __init__(self, hardware: Hardware, roster: Roster, places: tuple[tuple[int, Place], ...]) -> None:
        """`places`: position in the roster, and the place on this Gpu, of each spec that comes here."""
        self._hardware = hardware
        self._roster = roster
        self._places = places
        self._seats: dict[Run, Seat | None] = {}
        self._phase: Phase | None = None

    def phase(self, at: int) -> Phase:
        """The phase that holds at `at` (a phase begins where it is first asked for)."""
        last = self._phase
        if last is not None and last.start <= at < last.stop:
            return last
        era = self._hardware.era(at)
        until = era.stop
        taken: list[Seat] = []
        seen: dict[Run, Seat | None] = {}
        for index, place in self._places:
            for run in self._roster.around(index, at):
                seat = seen[run] = self._seats[run] if run in self._seats else self._seat(run, place)
                if seat is None:
                    continue
                if seat.start > at:
                    until = min(until, seat.start)
                elif seat.stop > at:
                    until = min(until, seat.stop, run.next_edge(at))
                    taken.append(seat)
        self._seats = seen
        busy = tuple(seat.run.is_busy(at) for seat in taken)
        noisy = any(works and seat.run.spec.noise for seat, works in zip(taken, busy, strict=True))
        inhabited = any(seat.run.spec.computes for seat in taken)
        self._phase = Phase(at, until, era, tuple(taken), busy, noisy, inhabited)
        return self._phase

    def segments(self, start: int, stop: int) -> Iterator[tuple[int, int, Phase]]:
        """`[start, stop)` cut at every phase and every whole second: begin, end, phase."""
        at = start
        while at < stop:
            phase = self.phase(at)
            end = min(stop, phase.stop, at - at % SECOND + SECOND)
            yield at, end, phase
            at = end

    def _seat(self, run: Run, place: Place) -> Seat | None:
        found = self._hardware.device(place, run.start)
        if found is None:
            return None
        device, until = found
        return Seat(run, device, run.start, min(run.stop, until, FOREVER))

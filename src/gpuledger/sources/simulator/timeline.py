"""One Gpu's time cut into phases in which nothing starts, stops or changes its duty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger.model.devices import Device
from gpuledger.sources.simulator.hardware import Era, Hardware
from gpuledger.sources.simulator.runs import Roster, Run
from gpuledger.sources.simulator.scenario import FOREVER, SECOND, Place


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

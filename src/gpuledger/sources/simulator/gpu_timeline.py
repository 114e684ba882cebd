"""The timeline of one GPU: phases in which no process starts, stops or changes between busy and quiet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakValueDictionary

from gpuledger.model.devices import Device
from gpuledger.sources.simulator.hardware import Hardware, PartitionPeriod, mix_bits
from gpuledger.sources.simulator.scenario import FOREVER, SECOND, PlacementSpec, ProcessSpec

_JITTER, _PIDS = 11, 12
_PID_SPACE = 4_000_000


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ProcessRun:
    """One process from `start` to `stop` (microseconds), `number` of its spec. Compared by identity."""

    spec: ProcessSpec
    number: int
    pid: int
    start: int
    stop: int

    def is_busy(self, at: int) -> bool:
        """Whether the process is in the busy part of its duty cycle."""
        cycle = self.spec.busy + self.spec.quiet
        return not cycle or (at - self.start) % cycle < self.spec.busy

    def next_edge(self, at: int) -> int:
        """Return the time of the first change between busy and quiet after `at`."""
        spec = self.spec
        cycle = spec.busy + spec.quiet
        if not cycle:
            return FOREVER
        into = (at - self.start) % cycle
        return at + (spec.busy - into if into < spec.busy else cycle - into)


class RunSchedule:
    """The ProcessRuns of all specs. A run is one object for all its GPUs, while one of them refers to it."""

    def __init__(self, specs: tuple[ProcessSpec, ...], seed: int) -> None:
        self._specs = specs
        self._seed = seed
        fixed = [spec.pid for spec in specs if spec.pid is not None]
        # Generated pids are above all fixed ones, and unique by run number and position in the file.
        self._first_pid = max([2_000 + mix_bits(seed, _PIDS) % 30_000, *(pid + 1 for pid in fixed)])
        # Weak, so that a run is forgotten when it is out of the history of all GPUs.
        self._runs: WeakValueDictionary[tuple[int, int], ProcessRun] = WeakValueDictionary()

    def runs_around(self, index: int, at: int) -> list[ProcessRun]:
        """Return the runs of one spec alive at `at`, the next one to start, and possibly adjacent ones."""
        spec = self._specs[index]
        if not spec.every:
            return [run for run in (self.find_run(index, 0),) if run is not None]
        since = at - spec.start
        first = max(0, (since - spec.jitter - spec.duration) // spec.every)
        last = max(0, since // spec.every + 1)
        runs = (self.find_run(index, number) for number in range(first, last + 1))
        return [run for run in runs if run is not None]

    def find_run(self, index: int, number: int) -> ProcessRun | None:
        """Return the `number`-th run of a spec; None if it would start at or after the spec's stop."""
        key = (index, number)
        run = self._runs.get(key)
        if run is None:
            run = self._build_run(index, number)
            if run is not None:
                self._runs[key] = run
        return run

    def _build_run(self, index: int, number: int) -> ProcessRun | None:
        spec = self._specs[index]
        start = spec.start + number * spec.every
        if spec.jitter:
            start += mix_bits(self._seed, _JITTER, index, number) % spec.jitter
        if start >= spec.stop:
            return None
        stop = min(spec.stop, start + spec.duration)
        pid = spec.pid
        if pid is None:
            offset = number * len(self._specs) + index
            pid = self._first_pid + offset % (_PID_SPACE - self._first_pid)
        return ProcessRun(spec, number, pid, start, stop)


@dataclass(frozen=True, slots=True, eq=False)
class GpuContext:
    """The GPU context of a run on one Device, while both the process and the Device exist."""

    run: ProcessRun
    device: Device
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A span of time with the same contexts.

    `busy` states for each context whether it is busy. `is_noisy` is true if a load changes every second,
    `has_residents` if there is a compute context, which raises the floor.
    """

    start: int
    stop: int
    partition: PartitionPeriod
    contexts: tuple[GpuContext, ...]
    busy: tuple[bool, ...]
    is_noisy: bool
    has_residents: bool


class Timeline:
    """The phases of one GPU. Fast for increasing times; any other time works too."""

    def __init__(
        self, hardware: Hardware, schedule: RunSchedule, placements: tuple[tuple[int, PlacementSpec], ...]
    ) -> None:
        """`placements`: for each spec on this GPU, its position in the schedule and its placement."""
        self._hardware = hardware
        self._schedule = schedule
        self._placements = placements
        self._contexts: dict[ProcessRun, GpuContext | None] = {}
        self._phase: Phase | None = None

    def phase_at(self, at: int) -> Phase:
        """Return the phase at `at`. Its `start` is the first time for which it was requested."""
        last = self._phase
        if last is not None and last.start <= at < last.stop:
            return last
        partition = self._hardware.partition_at(at)
        until = partition.stop
        active: list[GpuContext] = []
        contexts: dict[ProcessRun, GpuContext | None] = {}
        for index, placement in self._placements:
            for run in self._schedule.runs_around(index, at):
                context = contexts[run] = (
                    self._contexts[run] if run in self._contexts else self._open_context(run, placement)
                )
                if context is None:
                    continue
                if context.start > at:
                    until = min(until, context.start)
                elif context.stop > at:
                    until = min(until, context.stop, run.next_edge(at))
                    active.append(context)
        self._contexts = contexts
        busy = tuple(context.run.is_busy(at) for context in active)
        is_noisy = any(
            is_busy and context.run.spec.noise for context, is_busy in zip(active, busy, strict=True)
        )
        has_residents = any(context.run.spec.computes for context in active)
        self._phase = Phase(at, until, partition, tuple(active), busy, is_noisy, has_residents)
        return self._phase

    def segments(self, start: int, stop: int) -> Iterator[tuple[int, int, Phase]]:
        """Yield `[start, stop)` cut at each phase and each whole second: begin, end, phase."""
        at = start
        while at < stop:
            phase = self.phase_at(at)
            end = min(stop, phase.stop, at - at % SECOND + SECOND)
            yield at, end, phase
            at = end

    def _open_context(self, run: ProcessRun, placement: PlacementSpec) -> GpuContext | None:
        found = self._hardware.device_at(placement, run.start)
        if found is None:
            return None
        device, until = found
        return GpuContext(run, device, run.start, min(run.stop, until, FOREVER))

"""Which processes there are when: the runs of every ProcessSpec, as pure functions of time."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.sources.simulator.chance import mix
from gpuledger.sources.simulator.scenario import FOREVER, ProcessSpec

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

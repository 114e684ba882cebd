"""The faults of a scenario as pure functions of time."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.sources.simulator.scenario import FaultKind, FaultSpec


class FaultSchedule:
    """Finds the faults that are active at a time, and the momentary ones within a span of time."""

    def __init__(self, specs: tuple[FaultSpec, ...]) -> None:
        self._specs: dict[FaultKind, list[FaultSpec]] = {}
        for spec in specs:
            self._specs.setdefault(spec.kind, []).append(spec)

    def active_faults(self, kind: FaultKind, at: int, gpu: int | None = None) -> list[FaultSpec]:
        """Return the faults of a kind that are active at `at`; with `gpu`, only those that affect it."""
        specs = self._specs.get(kind)
        if not specs:
            return []
        return [spec for spec in specs if _affects_gpu(spec, gpu) and _active_until(spec, at) is not None]

    def hang_until(self, at: int) -> int | None:
        """Return the end of the hang that is active at `at`; None if there is none."""
        ends = [_active_until(spec, at) for spec in self._specs.get("hang", [])]
        return max((end for end in ends if end is not None), default=None)

    def xids(self, after: int, until: int) -> list[tuple[int, FaultSpec]]:
        """Return times and faults of the Xids in `(after, until]`, in order."""
        found = [
            (time, spec) for spec in self._specs.get("xid", []) for time in _occurrences(spec, after, until)
        ]
        return sorted(found, key=lambda event: event[0])

    def counter_resets(self, gpu: int, after: int, until: int) -> list[int]:
        """Return the times in `(after, until]` at which the driver of a GPU was reloaded."""
        specs = self._specs.get("counter_reset", [])
        return [
            time for spec in specs if _affects_gpu(spec, gpu) for time in _occurrences(spec, after, until)
        ]


def _affects_gpu(spec: FaultSpec, gpu: int | None) -> bool:
    return gpu is None or spec.gpu is None or spec.gpu == gpu


def _active_until(spec: FaultSpec, at: int) -> int | None:
    if at < spec.at:
        return None
    begin = at - (at - spec.at) % spec.every if spec.every else spec.at
    return begin + spec.duration if at < begin + spec.duration else None


def _occurrences(spec: FaultSpec, after: int, until: int) -> Iterator[int]:
    if not spec.every:
        if after < spec.at <= until:
            yield spec.at
        return
    number = max(0, (after - spec.at) // spec.every + 1)
    while (time := spec.at + number * spec.every) <= until:
        yield time
        number += 1

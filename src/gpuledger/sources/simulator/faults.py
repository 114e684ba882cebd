"""What is wrong when: the faults of a scenario as pure functions of time."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.sources.simulator.scenario import FaultKind, FaultSpec


class Faults:
    """Answers which faults hold at a moment, and which momentary ones fell into a span."""

    def __init__(self, specs: tuple[FaultSpec, ...]) -> None:
        self._specs: dict[FaultKind, list[FaultSpec]] = {}
        for spec in specs:
            self._specs.setdefault(spec.kind, []).append(spec)

    def active(self, kind: FaultKind, at: int, gpu: int | None = None) -> list[FaultSpec]:
        """Faults of a kind that hold at `at`; with `gpu`, those of that GPU."""
        specs = self._specs.get(kind)
        if not specs:
            return []
        return [spec for spec in specs if _concerns(spec, gpu) and _end(spec, at) is not None]

    def hang_until(self, at: int) -> int | None:
        """When the hang that holds at `at` is over, None when nothing hangs."""
        ends = [_end(spec, at) for spec in self._specs.get("hang", [])]
        return max((end for end in ends if end is not None), default=None)

    def xids(self, after: int, until: int) -> list[tuple[int, FaultSpec]]:
        """Times and Xid faults in `(after, until]`, in order."""
        found = [(time, spec) for spec in self._specs.get("xid", []) for time in _times(spec, after, until)]
        return sorted(found, key=lambda event: event[0])

    def resets(self, gpu: int, after: int, until: int) -> list[int]:
        """Times in `(after, until]` at which the driver of a GPU was loaded anew."""
        specs = self._specs.get("counter_reset", [])
        return [time for spec in specs if _concerns(spec, gpu) for time in _times(spec, after, until)]


def _concerns(spec: FaultSpec, gpu: int | None) -> bool:
    return gpu is None or spec.gpu is None or spec.gpu == gpu


def _end(spec: FaultSpec, at: int) -> int | None:
    if at < spec.at:
        return None
    begin = at - (at - spec.at) % spec.every if spec.every else spec.at
    return begin + spec.lasting if at < begin + spec.lasting else None


def _times(spec: FaultSpec, after: int, until: int) -> Iterator[int]:
    if not spec.every:
        if after < spec.at <= until:
            yield spec.at
        return
    number = max(0, (after - spec.at) // spec.every + 1)
    while (time := spec.at + number * spec.every) <= until:
        yield time
        number += 1

"""The faults of a scenario as pure functions of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuledger.sources.simulator.scenario import PENDING, THROTTLES, FaultKind, FaultSpec

# Bits of nvmlClocksEventReasons.
SW_POWER_CAP, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x20, 0x40, 0x80


@dataclass(frozen=True, slots=True)
class CardFaults:
    """What is wrong with one card at one time.

    `clock_reasons` are bits of nvmlClocksEventReasons; `clock_share` of the SM clock is left.
    `throttled` has the microseconds since the driver was loaded, by bit. `pcie_width` and `pcie_generation`
    are those of a degraded link, else None.
    """

    clock_reasons: int = 0
    clock_share: float = 1.0
    throttled: Mapping[int, int] = field(default_factory=dict)
    remap_pending: bool = False
    remap_failed: bool = False
    pcie_width: int | None = None
    pcie_generation: int | None = None
    links_down: int = 0

    @property
    def is_hot(self) -> bool:
        """Whether the temperature reduces the clocks."""
        return bool(self.clock_reasons & (SW_THERMAL | HW_THERMAL))


class FaultSchedule:
    """Finds the faults that are active at a time, and the momentary ones within a span of time."""

    def __init__(self, specs: tuple[FaultSpec, ...]) -> None:
        self._specs: dict[FaultKind, list[FaultSpec]] = {}
        for spec in specs:
            self._specs.setdefault(spec.kind, []).append(spec)
        self._with_xid = [spec for spec in specs if spec.xid]

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
        found = [(time, spec) for spec in self._with_xid for time in _occurrences(spec, after, until)]
        return sorted(found, key=lambda event: event[0])

    def card_faults(self, gpu: int, loaded_at: int, at: int) -> CardFaults:
        """Return what is wrong with a card at `at`; its driver was loaded at `loaded_at`."""
        throttles = self.active_faults("throttle", at, gpu)
        reasons, share = 0, 1.0
        for spec in throttles:
            bits, left = THROTTLES[spec.by]
            reasons, share = reasons | bits, min(share, left)
        remaps = {spec.remap for spec in self.active_faults("row_remap", at, gpu)}
        links = self.active_faults("pcie_link", at, gpu)
        return CardFaults(
            clock_reasons=reasons,
            clock_share=share,
            throttled={
                bit: self._throttled_time(gpu, bit, loaded_at, at)
                for bit in (SW_POWER_CAP, SW_THERMAL, HW_THERMAL, POWER_BRAKE)
            },
            remap_pending=PENDING in remaps,
            remap_failed=bool(remaps - {PENDING}),
            pcie_width=min((spec.width for spec in links if spec.width), default=None),
            pcie_generation=min((spec.generation for spec in links if spec.generation), default=None),
            links_down=sum(spec.links for spec in self.active_faults("nvlink_down", at, gpu)),
        )

    def _throttled_time(self, gpu: int, bit: int, after: int, until: int) -> int:
        return sum(
            _active_time(spec, until) - _active_time(spec, after)
            for spec in self._specs.get("throttle", [])
            if _affects_gpu(spec, gpu) and THROTTLES[spec.by][0] & bit
        )

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


def _active_time(spec: FaultSpec, until: int) -> int:
    """For how long the fault was active before `until`."""
    since = max(0, until - spec.at)
    if not spec.every:
        return min(since, spec.duration)
    return since // spec.every * spec.duration + min(since % spec.every, spec.duration)


def _occurrences(spec: FaultSpec, after: int, until: int) -> Iterator[int]:
    if not spec.every:
        if after < spec.at <= until:
            yield spec.at
        return
    number = max(0, (after - spec.at) // spec.every + 1)
    while (time := spec.at + number * spec.every) <= until:
        yield time
        number += 1

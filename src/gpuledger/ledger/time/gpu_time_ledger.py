"""The time ledger of one Gpu: what is decided at a tick, and what is pending until a later one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.ledger.energy.counter import Epoch
from gpuledger.ledger.time.decision import Stretch, TimeDecisions, TimeTick, decide_blindly
from gpuledger.ledger.time.split import ALL_DOWN, ALL_UNOBSERVED
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.devices import Gpu
from gpuledger.model.snapshot import LONGEST_INTERVAL

LONGEST = round(LONGEST_INTERVAL * MICRO)
# A tick that is late by more than this did not only wait for the scheduler.
_LATE = 5 * MICRO


class Gap(NamedTuple):
    """What is known of the time since the last tick.

    `runs` says that neither the program nor the machine stopped meanwhile, as far as that is known.
    `planned` are the microseconds after which this tick was due, 0 if that is unknown.
    """

    runs: bool = False
    planned: int = 0

    def is_hang(self, microseconds: int) -> bool:
        """Return whether more than a minute without a posting is a hang, not a planned interval."""
        allowed = LONGEST if self.planned >= LONGEST else _LATE
        return self.runs and microseconds > self.planned + allowed


UNKNOWN_GAP = Gap()


@dataclass(slots=True)
class GpuTimeLedger:
    """Time state of one Gpu between ticks.

    `ticks` are those since the last decision: the first one ends it, and the last one is the newest; empty
    while nothing is watched. `epoch` is the boot and driver load under which the Gpu was last seen.
    """

    gpu: Gpu
    epoch: Epoch = field(default_factory=Epoch)
    is_down: bool = False
    ticks: list[TimeTick] = field(default_factory=list)
    _decisions: TimeDecisions = field(init=False)

    def __post_init__(self) -> None:
        self._decisions = TimeDecisions(self.gpu)

    @property
    def pending(self) -> int:
        """Watched microseconds of which the owner is not decided yet."""
        return self.ticks[-1].at - self.ticks[0].at if self.ticks else 0

    def post(self, now: TimeTick, gap: Gap = UNKNOWN_GAP) -> Iterable[Stretch]:
        """Apply one tick; return the time that is decided now."""
        decided: Iterable[Stretch] | None
        if not self.ticks or not 0 <= now.at - self.ticks[-1].at <= LONGEST:
            decided = list(self._end_watching(now, gap))
        elif self.is_down:
            decided = self._since_last_tick(now)
        else:
            decided = self._decide(now)
        if decided is None:
            self.ticks.append(now)
            return ()
        self.ticks = [now]
        self.is_down = now.is_down or (self.is_down and now.reading is None)
        return decided

    def interrupt(self) -> list[Stretch]:
        """Stop watching until the next tick; return the pending time, of which no more will be known."""
        decided = self.pending_stretches()
        self.ticks, self._decisions = [], TimeDecisions(self.gpu)
        return decided

    def give_up(self, now: TimeTick) -> list[Stretch]:
        """Leave all watched time since the last decision unobserved, after a failure to decide it."""
        length = self.pending
        if self.ticks and 0 <= now.at - self.ticks[-1].at <= LONGEST:
            length += now.at - self.ticks[-1].at
        self.ticks, self.is_down, self._decisions = [now], now.is_down, TimeDecisions(self.gpu)
        return [Stretch(ALL_UNOBSERVED, now.unix - length, length)]

    def pending_stretches(self) -> list[Stretch]:
        """The pending time as it would be decided if the program ended now."""
        return list(decide_blindly(self.ticks)) if self.pending else []

    def _end_watching(self, now: TimeTick, gap: Gap) -> Iterator[Stretch]:
        """A gap of more than a minute: hangs and losses are watched; pauses, suspends and stops are not.

        A planned interval of that length is not watched either, unless the Gpu is lost.
        """
        length = now.at - self.ticks[-1].at if self.ticks else 0
        yield from self.interrupt()
        if length > 0 and (gap.is_hang(length) or (self.is_down and gap.runs)):
            yield Stretch(ALL_DOWN if self.is_down else ALL_UNOBSERVED, now.unix - length, length)

    def _since_last_tick(self, now: TimeTick) -> list[Stretch]:
        length = now.at - self.ticks[-1].at
        return [Stretch(ALL_DOWN, now.unix - length, length)]

    def _decide(self, now: TimeTick) -> Iterable[Stretch] | None:
        """Decide the time since the last decision; None if that awaits a later tick."""
        ticks = [*self.ticks, now]
        if self.ticks[0].processes is None or now.at - self.ticks[0].at > LONGEST:
            return list(decide_blindly(ticks))
        if now.processes is None and not now.is_down:
            return None
        return list(self._decisions.by_residence(ticks))

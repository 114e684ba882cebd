"""The time ledger of one Gpu: who had it since the last posting, and what is still pending.

Residents come from the process lists by the energy book's rules, at each tick, meter or not. Allocations
count from the reading that found them to the first that does not have them. Times are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from gpuledger.ledger.energy.booking import is_active
from gpuledger.ledger.energy.counter import LONGEST_INTERVAL, Epoch
from gpuledger.ledger.energy.evidence import Evidence, ProcessLists, sample_offset
from gpuledger.ledger.energy.residence import Residence, residences
from gpuledger.ledger.time.span import MICRO
from gpuledger.ledger.time.split import (
    ALL_DOWN,
    ALL_UNOBSERVED,
    GpuFacts,
    Occupancy,
    Splits,
    split_seconds,
)
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Reading

_LONGEST = round(LONGEST_INTERVAL * MICRO)


class Stretch(NamedTuple):
    """Watched time with one split: its beginning in unix microseconds, and its length."""

    splits: Splits
    begins: int
    microseconds: int


class TimeTick(NamedTuple):
    """One tick's data of the Gpu.

    `at` (the source's clock) and `unix` are microseconds. `parts` are the Readings of its Instances, empty
    without MIG. `reading` is None if the Devices could not be listed and the Gpu is missing. `whole` is False
    if the Devices could not be listed completely.
    """

    at: int
    unix: int
    reading: Reading | None
    parts: Sequence[Reading]
    facts: GpuFacts
    whole: bool = True

    @property
    def holders(self) -> Sequence[Reading]:
        """The Readings that list processes."""
        return self.parts or ((self.reading,) if self.reading is not None else ())

    @property
    def is_down(self) -> bool:
        """Whether the Gpu is lost or needs a reset."""
        return self.reading is not None and not self.reading.up

    @property
    def is_readable(self) -> bool:
        """Whether every process list was read."""
        lists = [holder.processes for holder in self.holders]
        return self.whole and bool(lists) and not self.is_down and None not in lists


@dataclass(slots=True)
class GpuTimeLedger:
    """Time state of one Gpu between ticks.

    `at` is the last tick on the source's clock, None while nothing is watched. `unix` is its wall time.
    `evidence` are the process lists since the last readable ones, None if there were none for too long.
    `facts` are what was known at the beginning of each part of the pending time, with that beginning; the
    last ones are in force. `epoch` is the boot and driver load under which the Gpu was last seen. `active`
    are the Devices (`GI_CI`) with an active engine in the pending time.
    """

    gpu: Gpu
    epoch: Epoch = field(default_factory=Epoch)
    is_down: bool = False
    at: int | None = None
    unix: int = 0
    evidence: Evidence | None = None
    facts: list[tuple[int, GpuFacts]] = field(default_factory=list)
    offset: float | None = None
    ghosts: dict[int, GpuProcess] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    _last: tuple[tuple[object, ...], Splits] | None = None

    @property
    def pending(self) -> int:
        """Watched microseconds of which the owner is not decided yet."""
        return 0 if self.at is None or not self.facts else self.at - self.facts[0][0]

    def post(self, now: TimeTick, *, is_hang: bool = False) -> Iterator[Stretch]:
        """Apply one tick; return the time that is decided now.

        `is_hang` means that the program ran all the time since the last tick, but could not read.
        """
        before = self.at
        if before is None or not 0 <= now.at - before <= _LONGEST:
            yield from self.interrupt()
            if before is not None and is_hang and now.at > before:
                splits = ALL_DOWN if self.is_down else ALL_UNOBSERVED
                yield Stretch(splits, now.unix - (now.at - before), now.at - before)
        elif self.is_down:
            yield Stretch(ALL_DOWN, now.unix - (now.at - before), now.at - before)
        else:
            yield from self._post_watched(now)
        self.at, self.unix = now.at, now.unix
        self.is_down = now.is_down or (self.is_down and now.reading is None)
        if self.is_down:
            self.evidence, self.facts = None, []
        else:
            self._begin(now)

    def interrupt(self) -> list[Stretch]:
        """Stop watching until the next tick; return the pending time, of which no more will be known."""
        posted = list(self._decide_blindly(self.at, self.unix)) if self.at is not None else []
        self.at, self.evidence, self.facts, self.ghosts, self._last = None, None, [], {}, None
        self.active = set()
        return posted

    def forget_pending(self, now: TimeTick) -> None:
        """Go on after a failure that left the pending time to the caller."""
        self.at, self.unix, self.evidence, self._last = now.at, now.unix, None, None
        self.is_down = now.is_down
        self.facts = [] if self.is_down else [(now.at, now.facts)]

    def pending_stretches(self) -> list[Stretch]:
        """The pending time as it would be decided if the program ended now."""
        return list(self._decide_blindly(self.at, self.unix)) if self.at is not None else []

    def _post_watched(self, now: TimeTick) -> Iterator[Stretch]:
        """Time since the last tick in which the Gpu was up."""
        evidence = self.evidence
        if evidence is None:
            yield from self._decide_blindly(now.at, now.unix)
            self.facts = []
            return
        self._gather(now, evidence)
        if now.at - self.facts[0][0] > _LONGEST:
            yield from self._decide_blindly(now.at, now.unix)
        elif now.is_readable or now.is_down:
            # Until a Gpu is lost, the processes of its last list are there.
            last = replace(evidence.lists[-1], at=now.at / MICRO) if now.is_down else _lists(now)
            evidence.lists.append(last)
            evidence.ended_unix = now.unix / MICRO
            yield from self._decide(now, evidence)
        else:
            return
        self.evidence, self.facts = None, []

    def _begin(self, now: TimeTick) -> None:
        """Begin or continue the pending time after a tick."""
        if now.is_readable:
            instances, offset = now.facts.instances, self.offset or 0.0
            self.evidence = Evidence(
                self.gpu, [_lists(now)], instances=instances, offset=offset, ghosts=self.ghosts
            )
            self.active = set()
        if not self.facts or (self.facts[-1][1] is not now.facts and self.facts[-1][1] != now.facts):
            self.facts.append((now.at, now.facts))

    def _gather(self, now: TimeTick, evidence: Evidence) -> None:
        if now.reading is not None:
            at, unix = now.at / MICRO, now.unix / MICRO
            self.offset = sample_offset(now.reading, at, unix, self.offset)
            evidence.gather(now.reading, self.offset, is_cut=bool(now.parts))
        self.active |= {part.device.instance for part in now.parts if part.get(q.ENGINE_ACTIVITY)}

    def _decide_blindly(self, until: int, unix: int) -> Iterator[Stretch]:
        """Decide the pending time without process lists: what Allocations leave is unobserved."""
        for begins, ends, facts in self._facts_until(until):
            yield Stretch(split_seconds(facts, Occupancy()), unix - (until - begins), ends - begins)

    def _facts_until(self, until: int) -> Iterator[tuple[int, int, GpuFacts]]:
        """The parts of the pending time in which the facts are the same, until the source's time `until`."""
        for place, (begins, facts) in enumerate(self.facts, start=1):
            ends = self.facts[place][0] if place < len(self.facts) else until
            if ends > begins:
                yield begins, ends, facts

    def _decide(self, now: TimeTick, evidence: Evidence) -> Iterator[Stretch]:
        """Decide the pending time by who was resident."""
        unchanged = self._unchanged(evidence)
        if unchanged is not None and self._last is not None and self._last[0] == unchanged:
            begins = self.facts[0][0]
            yield Stretch(self._last[1], now.unix - (now.at - begins), now.at - begins)
            return
        residents = residences(evidence)
        listed = evidence.all_processes()
        self.ghosts = {one.process.pid: one.process for one in residents if one.key not in listed}
        if not evidence.instances and is_active(evidence, residents):
            self.active.add("")
        active, splits = frozenset(self.active), None
        for begins, ends, facts in self._facts_until(now.at):
            for start, stop, present in _pieces(residents, begins, ends, self.facts[0][0], evidence.length):
                splits = split_seconds(facts, Occupancy(present, active))
                yield Stretch(splits, now.unix - (now.at - start), stop - start)
        self._last = None if unchanged is None or splits is None else (unchanged, splits)

    def _unchanged(self, evidence: Evidence) -> tuple[object, ...] | None:
        """Everything that decides the split of a usual interval; None if there is more evidence to weigh.

        The usual interval has the same processes at both ends, and no trace of others.
        """
        first, last = evidence.lists[0].processes, evidence.lists[-1].processes
        if len(evidence.lists) > 2 or len(self.facts) > 1 or evidence.records or first.keys() != last.keys():
            return None
        if evidence.samples and not {sample.pid for sample in evidence.samples} <= {key[1] for key in last}:
            return None
        facts, owners = self.facts[0][1], [(key, process.workload) for key, process in last.items()]
        activity: tuple[object, ...] = ()
        if not owners or facts.instances:
            # Activity decides whether time without an owner is idle.
            activity = (evidence.busy, frozenset(self.active))
            if evidence.samples:
                return None
        if not all(process.computes for process in last.values()):
            return None
        return (facts, owners, activity)


def _lists(now: TimeTick) -> ProcessLists:
    listed = [process for holder in now.holders for process in holder.processes or ()]
    return ProcessLists(now.at / MICRO, {process.key: process for process in listed})


def _pieces(
    residents: Sequence[Residence], begins: int, ends: int, origin: int, length: int
) -> Iterator[tuple[int, int, tuple[GpuProcess, ...]]]:
    """Cut a stretch wherever a process begins or ends; times of residents count from `origin`.

    A resident until the end of the interval (`length`) is one until the end of the stretch, whatever rounding
    made of both.
    """
    periods = [
        (one.process, origin + one.begins, ends if one.ends == length else origin + one.ends)
        for one in residents
    ]
    cuts = {begins, ends}
    for _, first, last in periods:
        cuts |= {at for at in (first, last) if begins < at < ends}
    for start, stop in pairwise(sorted(cuts)):
        present = tuple([process for process, first, last in periods if first <= start and last >= stop])
        yield start, stop, present

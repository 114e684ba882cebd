"""Decides who had a Gpu between two ticks, from the readings of these and of all ticks between them.

Residents come from the process lists by the energy book's rules, at each tick, meter or not. Allocations
count from the reading that found them to the first that does not have them. Times are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from gpuledger.ledger.energy.booking import is_active
from gpuledger.ledger.energy.evidence import Evidence, ProcessLists, SampleClock
from gpuledger.ledger.energy.residence import Residence, residences
from gpuledger.ledger.time.split import GpuFacts, Occupancy, Splits, split_seconds
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.snapshot import Reading
from gpuledger.model.workload import Workload


class Stretch(NamedTuple):
    """Watched time with one split: its beginning in unix microseconds, and its length."""

    splits: Splits
    begins: int
    microseconds: int


class TimeTick(NamedTuple):
    """One tick's data of a Gpu.

    `at` (the source's clock) and `unix` are microseconds. `parts` are the Readings of its Instances, empty
    without MIG. `reading` is None if the Devices could not be listed and the Gpu is missing. `processes` is
    None if a list could not be read; `owners` are the identities and owners of the processes.
    `serving` are processes of the machine that serve others.
    """

    at: int
    unix: int
    reading: Reading | None
    parts: Sequence[Reading]
    facts: GpuFacts
    processes: list[GpuProcess] | None
    owners: list[tuple[ProcessKey, Workload]]
    serving: frozenset[ProcessKey]

    @property
    def is_down(self) -> bool:
        """Whether the Gpu is lost or needs a reset."""
        return self.reading is not None and not self.reading.up

    @property
    def lists(self) -> ProcessLists:
        """The process lists by identity."""
        listed = {process.key: process for process in self.processes or ()}
        return ProcessLists(self.at / MICRO, listed, self.serving)


def read_tick(
    at: int,
    unix: int,
    reading: Reading | None,
    parts: Sequence[Reading],
    facts: GpuFacts,
    serving: frozenset[ProcessKey],
    *,
    whole: bool,
) -> TimeTick:
    """Create a tick. `whole` is False if the Devices could not be listed completely."""
    processes: list[GpuProcess] | None = None
    if whole and reading is not None and reading.up:
        lists = [part.processes for part in parts] if parts else [reading.processes]
        if None not in lists:
            processes = [process for listed in lists for process in listed or ()]
    owners = [(process.key, process.workload) for process in processes or ()]
    return TimeTick(at, unix, reading, parts, facts, processes, owners, serving)


class _Usual(NamedTuple):
    """The split of a usual interval, and everything that decides it."""

    facts: GpuFacts
    owners: list[tuple[ProcessKey, Workload]]
    serving: frozenset[ProcessKey]
    activity: tuple[object, ...]


@dataclass(slots=True)
class TimeDecisions:
    """Decides the time of one Gpu. `ghosts` are, by pid, processes of the last interval in no list."""

    gpu: Gpu
    sample_clock: SampleClock = field(default_factory=SampleClock)
    ghosts: dict[int, GpuProcess] = field(default_factory=dict)
    _last: tuple[_Usual, Splits] | None = None

    def by_residence(self, ticks: Sequence[TimeTick]) -> Iterator[Stretch]:
        """Decide by who was resident. The first and the last tick have lists, those between them have not.

        If the Gpu is down in the last tick, the processes of its first list were there until then.
        """
        usual = _usual_interval(ticks)
        if usual is not None and self._last is not None and self._last[0] == usual:
            yield from _one_stretch(self._last[1], ticks)
            return
        evidence, active = self._collect_evidence(ticks)
        residents = residences(evidence)
        listed = evidence.all_processes()
        self.ghosts = {one.process.pid: one.process for one in residents if one.key not in listed}
        if not evidence.instances and is_active(evidence, residents):
            active.add("")
        splits, origin, now = None, ticks[0].at, ticks[-1]
        for begins, ends, facts in _facts(ticks):
            for start, stop, present in _pieces(residents, begins, ends, origin, evidence.length):
                splits = split_seconds(facts, Occupancy(present, frozenset(active)))
                yield Stretch(splits, now.unix - (now.at - start), stop - start)
        self._last = None if usual is None or splits is None else (usual, splits)

    def _collect_evidence(self, ticks: Sequence[TimeTick]) -> tuple[Evidence, set[str]]:
        """The evidence of the energy book's rules, and the Instances that were active."""
        first, last, active = ticks[0], ticks[-1], set[str]()
        evidence = Evidence(
            self.gpu,
            [first.lists],
            instances=first.facts.instances,
            offset=self.sample_clock.offset or 0.0,
            ghosts=self.ghosts,
        )
        for tick in ticks[1:]:
            if tick.reading is not None:
                offset = self.sample_clock.update(tick.reading, tick.at / MICRO, tick.unix / MICRO)
                evidence.gather(tick.reading, offset, is_cut=bool(tick.parts))
            active |= {part.device.instance for part in tick.parts if part.get(q.ENGINE_ACTIVITY)}
        end = replace(evidence.lists[0], at=last.at / MICRO) if last.is_down else last.lists
        evidence.lists.append(end)
        evidence.ended_unix = last.unix / MICRO
        return evidence, active


def decide_blindly(ticks: Sequence[TimeTick]) -> Iterator[Stretch]:
    """Decide without process lists: what Allocations leave is unobserved."""
    now = ticks[-1]
    for begins, ends, facts in _facts(ticks):
        yield Stretch(split_seconds(facts, Occupancy()), now.unix - (now.at - begins), ends - begins)


def _one_stretch(splits: Splits, ticks: Sequence[TimeTick]) -> Iterator[Stretch]:
    length = ticks[-1].at - ticks[0].at
    if length:
        yield Stretch(splits, ticks[-1].unix - length, length)


def _facts(ticks: Sequence[TimeTick]) -> Iterator[tuple[int, int, GpuFacts]]:
    """The parts of the time in which the facts are the same: those of the tick at its beginning."""
    begins, facts = ticks[0].at, ticks[0].facts
    for tick in ticks[1:-1]:
        if tick.facts is not facts and tick.facts != facts:
            if tick.at > begins:
                yield begins, tick.at, facts
            begins, facts = tick.at, tick.facts
    if ticks[-1].at > begins:
        yield begins, ticks[-1].at, facts


def _usual_interval(ticks: Sequence[TimeTick]) -> _Usual | None:
    """Everything that decides the split of a usual interval; None if there is more evidence to weigh.

    A usual interval has the same processes at both ends, and no trace of others.
    """
    first, last = ticks[0], ticks[-1]
    if len(ticks) > 2 or first.serving != last.serving:
        return None
    if last.processes is None or last.reading is None or first.owners != last.owners:
        return None
    if last.reading.accounting or not all(process.computes for process in last.processes):
        return None
    samples, facts = last.reading.samples, first.facts
    has_owners = any(key not in last.serving for key, _ in last.owners)
    if has_owners and not facts.instances:
        if samples and not {sample.pid for sample in samples}.issubset(key[1] for key, _ in last.owners):
            return None
        return _Usual(facts, last.owners, last.serving, ())
    # Activity decides whether time without an owner is idle.
    if samples:
        return None
    active = tuple(bool(part.get(q.ENGINE_ACTIVITY)) for part in last.parts)
    return _Usual(facts, last.owners, last.serving, (bool(last.reading.get(q.UTILIZATION)), *active))


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

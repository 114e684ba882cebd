"""Persistence of the time books: restores what earlier runs stored and records the changes of each tick."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuledger.ledger.journal import (
    GpuTimeEntry,
    Journal,
    JournalTimeSpan,
    StoredTimes,
    TimeOwner,
)
from gpuledger.ledger.report.gpu_time import NONE_RUNNING
from gpuledger.ledger.time.account import is_named
from gpuledger.ledger.time.gpu_time_ledger import GpuTimeLedger
from gpuledger.ledger.time.span import QUARTER_MICROSECONDS, TimePosting, TimeSpan
from gpuledger.ledger.time.split import ALL_UNOBSERVED, Split, Splits
from gpuledger.ledger.time.stored import StoredGpuTime
from gpuledger.ledger.time.time_ledger import TimeLedger
from gpuledger.ledger.time_accounts import TimeAccounts
from gpuledger.model.devices import Gpu
from gpuledger.model.process import ProcessKey
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import POD_FACTS, Workload

# Limits of what is remembered, for a node on which owners come and go for months: of owners that have their
# GPU no longer, and of those without a name.
_MAX_OWNERS = 256
_MAX_UNNAMED = 4096
# Limit while the store is unavailable: beyond it, spans are summed.
_MAX_SPANS = 20_000


@dataclass(slots=True)
class SplitTexts:
    """Numbers the splits of spans, and what they refer to: parts of Gpus, and owners without a Session."""

    next_split: int = 1
    next_owner: int = 1
    parts: dict[str, int] = field(default_factory=dict)
    owners: dict[tuple[str, Workload, str], TimeOwner] = field(default_factory=dict)
    # Owners of which the name can still arrive.
    unnamed: list[TimeOwner] = field(default_factory=list)

    def encode(
        self, gpu: Gpu, splits: Splits, number_of: Callable[[ProcessKey], int], journal: Journal
    ) -> tuple[int, str]:
        """A new number, and the text as described in `store/schema.py`."""
        number, self.next_split = self.next_split, self.next_split + 1
        devices = {part.instance: part.device for part in splits.parts}
        parts = {part.instance: (part.profile, part.share) for part in splits.parts}

        def part(instance: str) -> int:
            profile, share = parts.get(instance, ("", 1))
            values = [gpu.uuid, gpu.name, instance, profile, *share.as_integer_ratio()]
            return self._part_number(json.dumps(values, separators=(",", ":"), ensure_ascii=False), journal)

        def entries(split: Split) -> list[list[object]]:
            found: list[list[object]] = []
            for account, owner, numerator in zip(split.accounts, split.owners, split.numerators, strict=True):
                session = _session_number(account.process, number_of)
                unlisted = None
                if owner is not None and session is None:
                    command = NONE_RUNNING if account.process is None else ""
                    device = devices.get(account.instance, gpu.uuid)
                    unlisted = self._owner_number((device, owner, command), number, journal)
                row = (part(account.instance), session, unlisted, int(account.is_estimate))
                found.append([numerator, account.account, *row])
            return found

        same = splits.residence is splits.allocation
        both = [entries(splits.allocation), None if same else entries(splits.residence)]
        text = journal.splits[number] = json.dumps(both, separators=(",", ":"))
        return number, text

    def _part_number(self, text: str, journal: Journal) -> int:
        number = self.parts.get(text)
        if number is None:
            number = self.parts[text] = journal.gpu_parts[text] = len(self.parts) + 1
        return number

    def _owner_number(self, key: tuple[str, Workload, str], split: int, journal: Journal) -> int:
        one = self.owners.get(key)
        if one is None:
            one = TimeOwner(self.next_owner, *key, split)
            self.next_owner += 1
            self.owners[key] = one
            if one.owner.pod_uid and not is_named(one.owner):
                self.unnamed = [*self.unnamed[1 - _MAX_UNNAMED :], one]
        one.split = split
        # Written again: its row may have been deleted with the last split that had it.
        journal.time_owners[one.number] = one
        return one.number

    def forget_owners(self, in_use: Container[int]) -> None:
        """Forget the oldest owners above the limit that are not in these splits.

        One that returns gets another number.
        """
        unused = [key for key, one in self.owners.items() if one.split not in in_use]
        for key in unused[: max(0, len(self.owners) - _MAX_OWNERS)]:
            del self.owners[key]

    def name_owners(self, workloads: Iterable[Workload], journal: Journal) -> None:
        """Add the names that have arrived for owners known only by the UID of their pod."""
        if not self.unnamed:
            return
        known = {one.pod_uid: one for one in workloads if one.kind == "pod" and one.pod and one.pod_uid}
        for one in [one for one in self.unnamed if one.owner.pod_uid in known]:
            self.unnamed.remove(one)
            named = known[one.owner.pod_uid]
            one.owner = replace(
                one.owner,
                namespace=named.namespace,
                pod=named.pod,
                labels=named.labels,
                missing="",
                **{fact: getattr(named, fact) for fact in POD_FACTS},
            )
            journal.time_owners[one.number] = one


@dataclass(slots=True)
class TimePersistence:
    """Connects the time ledger and its exported counters with the store. Used only by the tick thread."""

    ledger: TimeLedger
    accounts: TimeAccounts
    _texts: SplitTexts = field(default_factory=SplitTexts)
    _gpus: dict[str, Gpu] = field(default_factory=dict)
    # The first sight of each Gpu in the file, as far as this run knows.
    _first: dict[str, int] = field(default_factory=dict)
    # Ticks to which no span extends, because the time before them is not watched: the newest of each Gpu, and
    # the first of each Gpu that has no sight in the file.
    _unwatched: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    # The newest span of each Gpu, by uuid.
    _newest: dict[str, JournalTimeSpan] = field(default_factory=dict)
    _base: dict[str, int] = field(default_factory=dict)
    _closed: dict[str, int] = field(default_factory=dict)
    # Stored Gpus of which no series was continued yet.
    _unseen: dict[str, GpuTimeEntry] = field(default_factory=dict)
    _stored: StoredTimes = field(default_factory=StoredTimes)
    # What decides the row of a Gpu, as of its last change.
    _states: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def begin(self, stored: StoredTimes, elapsed: float, journal: Journal) -> None:
        """Continue from an earlier run, before the first Snapshot is posted."""
        self._stored = stored
        self._texts = SplitTexts(
            stored.next_split, stored.next_owner, dict(stored.parts), unnamed=list(stored.unnamed)
        )
        for uuid, entry in stored.gpus.items():
            self._gpus[uuid] = entry.time.gpu
            self._base[uuid], self._closed[uuid] = entry.base, entry.closed
            if entry.first is not None:
                self._first[uuid] = entry.first
            if entry.basis != self.accounts.basis:
                # Time by another basis has other series.
                self._base[uuid], self._closed[uuid] = entry.time.posted, 0
                journal.dropped.update(one.number for one in stored.series.get(uuid, ()))
        self._unseen = dict(stored.gpus)
        self.ledger.resume([entry.time for entry in stored.gpus.values()], stored.next_span)
        # Their time goes on, or is posted now, whether the Gpu is there or not.
        active = [uuid for uuid, one in stored.gpus.items() if one.time.is_down or one.time.pending]
        self.resume_series(active, elapsed)

    def resume_series(self, uuids: Iterable[str], elapsed: float) -> None:
        """Continue the series of these Gpus."""
        if not self._unseen:
            return
        for uuid in uuids:
            entry = self._unseen.pop(uuid, None)
            if entry is not None:
                has_basis = entry.basis == self.accounts.basis
                series = self._stored.series.get(uuid, ()) if has_basis else ()
                self.accounts.resume(uuid, series, self._closed[uuid], elapsed)

    @property
    def exported(self) -> Mapping[str, int]:
        """Watched microseconds since exported counters began at 0, without Gpus that were never seen."""
        base = self._base
        return {
            uuid: watched - base.get(uuid, 0)
            for uuid, watched in self.ledger.watched.items()
            if uuid not in self._unseen
        }

    def record(
        self,
        posted: list[TimePosting],
        number_of: Callable[[ProcessKey], int],
        snapshot: Snapshot,
        journal: Journal,
    ) -> None:
        """Add the changes of a tick to the journal. Consumes `posted` one by one."""
        watched = {posting.span.gpu.uuid for posting in posted}
        while posted:
            self._record_span(posted[0].span, number_of, journal)
            del posted[0]
        if watched:
            # A new file has no owners but those that are remembered, and gets what is not stored yet, too.
            spans = (*self._newest.values(), *journal.time_spans.values())
            self._texts.forget_owners({one.split for one in spans})
        for uuid in self.ledger.gpu_ledgers.keys() - watched:
            self._record_unwatched_tick(self.ledger.gpu_ledgers[uuid])
        if self._texts.unnamed:
            workloads = [one.workload for one in snapshot.processes]
            workloads += [one.workload for one in snapshot.allocations]
            self._texts.name_owners(workloads, journal)
        for uuid in self.ledger.posted:
            self._record_state(uuid, journal)
        self.accounts.record_changes(journal)

    def _record_span(self, span: TimeSpan, number_of: Callable[[ProcessKey], int], journal: Journal) -> None:
        uuid = span.gpu.uuid
        self._gpus[uuid], before = span.gpu, self._newest.get(uuid)
        self._first.setdefault(uuid, span.begins)
        if before is not None and before.span is span:
            journal.time_spans[span.number] = before
            return
        if before is not None and _is_continued(before.span, span):
            entry = JournalTimeSpan(span, before.split, before.text)
        else:
            entry = JournalTimeSpan(span, *self._texts.encode(span.gpu, span.splits, number_of, journal))
        self._newest[uuid] = journal.time_spans[span.number] = entry
        if len(journal.time_spans) > _MAX_SPANS:
            self._sum_spans(journal)

    def _record_unwatched_tick(self, one: GpuTimeLedger) -> None:
        """Extend the sights of a Gpu to a tick in which it was read, but to which no span extends."""
        if not one.ticks or one.ticks[-1].reading is None or one.pending:
            return
        uuid, unix = one.gpu.uuid, one.ticks[-1].unix
        if uuid not in self._first:
            before = self._seen.setdefault(uuid, unix)
            if before == unix:
                return
            self._first[uuid] = min(before, unix)
            unix = max(before, unix)
        self._unwatched[uuid] = max(self._unwatched.get(uuid, unix), unix)

    def _sum_spans(self, journal: Journal) -> None:
        """Sum spans of a quarter to limit memory while the store is unavailable.

        First those with the same split. If that is not enough, all of a Gpu: who had it is then unobserved.
        """
        newest = {entry.span.number for entry in self._newest.values()}
        closed = [
            entry
            for entry in journal.time_spans.values()
            if not entry.stored and entry.span.number not in newest
        ]
        together: dict[tuple[str, int, str], JournalTimeSpan] = {}
        by_split = len({_kind(entry) for entry in closed}) <= _MAX_SPANS // 2
        for entry in closed:
            if not by_split and entry.span.splits is not ALL_UNOBSERVED:
                entry.span.splits = ALL_UNOBSERVED
                entry.split, entry.text = self._texts.encode(
                    entry.span.gpu, ALL_UNOBSERVED, _no_number, journal
                )
            first = together.setdefault(_kind(entry), entry)
            if first is not entry:
                first.span.microseconds += entry.span.microseconds
                first.span.ends = entry.span.ends
                del journal.time_spans[entry.span.number]
        used = {entry.split for entry in journal.time_spans.values()}
        for number in journal.splits.keys() - used:
            del journal.splits[number]

    def _record_state(self, uuid: str, journal: Journal) -> None:
        one, newest = self.ledger.gpu_ledgers.get(uuid), self._newest.get(uuid)
        number, length = (None, 0) if newest is None else (newest.span.number, newest.span.microseconds)
        posted, closed = self.ledger.posted[uuid], self._closed_of(uuid)
        has_pending = one is not None and bool(one.pending)
        down = one is not None and one.is_down
        epoch = None if one is None else one.epoch
        # A Gpu with pending time changes at each tick.
        unwatched = self._unwatched.get(uuid)
        state = (number, posted - length, closed, down, epoch, unwatched, one if has_pending else None)
        if self._states.get(uuid) == state and not has_pending:
            return
        self._states[uuid] = state
        if one is None:
            # The Gpu is gone.
            time = StoredGpuTime(self._gpus[uuid], posted)
        else:
            self._gpus[uuid] = one.gpu
            time = StoredGpuTime(one.gpu, posted, one.epoch, one.is_down, tuple(one.pending_stretches()))
        base, stored = self._base.get(uuid, 0), self._stored.gpus.get(uuid)
        first = self._first.get(uuid)
        last = newest.span.ends if newest is not None else None if stored is None else stored.last
        if unwatched is not None:
            last = unwatched if last is None else max(last, unwatched)
        journal.gpu_times[uuid] = GpuTimeEntry(
            time, self.accounts.basis, number, length, base, closed, first, last
        )

    def _closed_of(self, uuid: str) -> int:
        return self._closed[uuid] if uuid in self._unseen else self.accounts.closed.get(uuid, 0)

    def mark_all_changed(self, journal: Journal) -> None:
        """Mark everything in memory as not stored: the new file is empty."""
        texts = self._texts
        journal.devices = {**self._gpus, **journal.devices}
        for uuid, one in self._unseen.items():
            # Their series were only in the old file.
            self._base[uuid], self._closed[uuid] = one.time.posted, 0
        self._stored = replace(self._stored, series={})
        journal.gpu_parts |= texts.parts
        journal.time_owners |= {one.number: one for one in texts.owners.values()}
        for sights in (self._first, self._unwatched, self._seen):
            sights.clear()
        for entry in journal.time_spans.values():
            entry.stored = False
            journal.splits[entry.split] = entry.text
            self._first.setdefault(entry.span.gpu.uuid, entry.span.begins)
        for uuid, entry in list(self._newest.items()):
            if entry.span.number not in journal.time_spans:
                self.ledger.recorder.close(uuid)
                del self._newest[uuid]
        self._states.clear()
        self.accounts.mark_all_changed()

    def record_lost_time(self, journal: Journal) -> None:
        """Record the microseconds that only the old file held."""
        known: dict[str, int] = {}
        for entry in journal.time_spans.values():
            uuid = entry.span.gpu.uuid
            known[uuid] = known.get(uuid, 0) + entry.span.microseconds
        journal.lost_time = {uuid: posted - known.get(uuid, 0) for uuid, posted in self.ledger.posted.items()}


def _kind(entry: JournalTimeSpan) -> tuple[str, int, str]:
    return (entry.span.gpu.uuid, entry.span.begins // QUARTER_MICROSECONDS, entry.text)


def _no_number(process: ProcessKey) -> int:
    raise KeyError(process)


def _session_number(process: ProcessKey | None, number_of: Callable[[ProcessKey], int]) -> int | None:
    """The Session of a process; None if there is none: a Gpu without a meter has none of unlisted ones."""
    if process is None:
        return None
    try:
        return number_of(process)
    except KeyError:
        return None


def _is_continued(before: TimeSpan, span: TimeSpan) -> bool:
    """Whether the split of the newest stored span can be used again: its row is certainly there."""
    return before.splits is span.splits and 0 <= span.begins - before.ends < QUARTER_MICROSECONDS

"""Sums of the time books over a range, and when each Gpu was seen first and last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from gpuledger.ledger.report.gpu_time import GpuTime
from gpuledger.ledger.store.old_time import observed_time
from gpuledger.ledger.store.schema import BEGUN
from gpuledger.ledger.store.time_history import SplitEntry, TimeReader
from gpuledger.ledger.time.account import OWNER
from gpuledger.ledger.watched_time import HOUR, MICRO, QUARTERS_PER_HOUR
from gpuledger.model.session import UNOBSERVED

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

_FOLDED = """
SELECT part, account, party, is_estimate, sum(allocation), sum(residence) FROM hour_gpu_time
    WHERE quarter >= ? AND quarter < ? GROUP BY part, account, party, is_estimate
"""
# The unix hours of what is known of Gpus from before the time books: folded, or spans.
_HOUR = f"quarter / {QUARTERS_PER_HOUR}"
_OLD = f"SELECT {_HOUR}, uuid FROM {{}} WHERE quarter < ? AND method != ? ORDER BY quarter {{}}"
_FIRST = (_OLD.format("hours", "ASC"), _OLD.format("spans", "ASC"))
_LAST = (_OLD.format("hours", "DESC"), _OLD.format("spans", "DESC"))
# After all quarters.
_END = 2**40
# Accounts that are summed at a time: a range can have many more processes than its report has rows.
_MOST_SUMMED = 1024


def gpu_time_sums(history: History, since: int, until: int) -> Iterator[GpuTime]:
    """The time of all accounts in these quarters that is not 0 by both bases.

    An account can have several entries. The party of an owner without a process has the command NONE_RUNNING.
    """
    reader = history.time_reader
    for part, account, party, is_estimate, *both in history.connection.execute(_FOLDED, (since, until)):
        owner = history.party(party) if account == OWNER else None
        if any(both):
            yield GpuTime(reader.part(part), account, owner, bool(is_estimate), *both)
    summed: dict[SplitEntry, list[int]] = {}
    for span in reader.spans(since, until):
        for entry, (allocation, residence) in span.amounts.items():
            both = summed.setdefault(entry, [0, 0])
            both[0] += allocation
            both[1] += residence
        if len(summed) >= _MOST_SUMMED:
            yield from _times(reader, summed)
            summed.clear()
    yield from _times(reader, summed)


def _times(reader: TimeReader, summed: Mapping[SplitEntry, Sequence[int]]) -> Iterator[GpuTime]:
    for entry, (allocation, residence) in summed.items():
        if allocation or residence:
            owner = reader.entry_party(entry.session, entry.owner)
            part = reader.part(entry.part)
            yield GpuTime(part, entry.account, owner, entry.is_estimate, allocation, residence)


def gpu_sights(history: History) -> dict[str, tuple[int, int]]:
    """Unix microseconds of the first and the last time at which each Gpu was certainly there."""
    found = _old_sights(history)
    for uuid, (begins, ends) in history.gpu_sights.items():
        known = found.get(uuid, (begins, ends))
        found[uuid] = (min(known[0], begins), max(known[1], ends))
    return found


def _old_sights(history: History) -> dict[str, tuple[int, int]]:
    """The sights from before the time books.

    A folded hour has only how long a Gpu was watched. So that folding changes nothing, none of the time
    between that of its first hour and that of its last counts as unwatched in these two.
    """
    end = _END if history.time_from is None else history.time_from
    first, last = (_old_ends(history, queries, end) for queries in (_FIRST, _LAST))
    begun = round((history.meta_time(BEGUN) or 0.0) * MICRO)
    newest = round(history.last * MICRO)

    @cache
    def watched(hour: int) -> Counter[str]:
        quarter = hour * QUARTERS_PER_HOUR
        return observed_time(history, quarter, min(quarter + QUARTERS_PER_HOUR, end))[hour]

    def seen(uuid: str, hour: int) -> int:
        return min(watched(hour)[uuid], HOUR * MICRO)

    return {
        uuid: (
            max((min(hours) + 1) * HOUR * MICRO - seen(uuid, min(hours)), begun),
            min(max(last[uuid]) * HOUR * MICRO + seen(uuid, max(last[uuid])), newest),
        )
        for uuid, hours in first.items()
    }


def _old_ends(history: History, queries: tuple[str, ...], end: int) -> dict[str, list[int]]:
    """The first hour of each Gpu in each of the queries."""
    known = {device.gpu.uuid for device in history.devices.values()}
    found: dict[str, list[int]] = {}
    for query in queries:
        missing = set(known)
        for hour, uuid in history.connection.execute(query, (end, UNOBSERVED)):
            if uuid in missing:
                found.setdefault(uuid, []).append(hour)
                missing.remove(uuid)
            if not missing:
                break
    return found

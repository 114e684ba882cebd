"""Sums of the time books over a range, and when each Gpu was seen first and last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuledger.ledger.report.gpu_time import GpuTime
from gpuledger.ledger.store.schema import BEGUN
from gpuledger.ledger.store.time_history import SplitEntry, TimeReader
from gpuledger.ledger.time.account import OWNER
from gpuledger.ledger.watched_time import MICRO, QUARTER, QUARTERS_PER_HOUR
from gpuledger.model.session import UNOBSERVED

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

_FOLDED = """
SELECT part, account, party, is_estimate, sum(allocation), sum(residence) FROM hour_gpu_time
    WHERE quarter >= ? AND quarter < ? GROUP BY part, account, party, is_estimate
"""
# Begin and end, in unix microseconds, of what is known of Gpus from before the time books: hours, or spans.
_OLD = "SELECT {}, uuid FROM {} WHERE quarter < ? AND method != ? ORDER BY quarter {}"
_HOUR_BEGINS, _HOUR_ENDS = (f"(quarter + {ahead}) * {QUARTER * MICRO}" for ahead in (0, QUARTERS_PER_HOUR))
_SPAN_BEGINS, _SPAN_ENDS = (f"CAST({end} * {MICRO} AS INTEGER)" for end in ("begins", "ends"))
_FIRST = (_OLD.format(_HOUR_BEGINS, "hours", "ASC"), _OLD.format(_SPAN_BEGINS, "spans", "ASC"))
_LAST = (_OLD.format(_HOUR_ENDS, "hours", "DESC"), _OLD.format(_SPAN_ENDS, "spans", "DESC"))
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
    """Unix microseconds of the first and the last time at which each Gpu was seen."""
    first, last = (_old_ends(history, queries) for queries in (_FIRST, _LAST))
    begun = round((history.meta_time(BEGUN) or 0.0) * MICRO)
    newest = round(history.last * MICRO)
    found = {
        uuid: (max(min(times), begun), min(max(last[uuid]), newest))
        for uuid, times in first.items()
        if uuid in last
    }
    for uuid, (begins, ends) in history.gpu_sights.items():
        known = found.get(uuid, (begins, ends))
        found[uuid] = (min(known[0], begins), max(known[1], ends))
    return found


def _old_ends(history: History, queries: tuple[str, ...]) -> dict[str, list[int]]:
    """The first time of each Gpu in each of the queries."""
    known = {device.gpu.uuid for device in history.devices.values()}
    end = _END if history.time_from is None else history.time_from
    found: dict[str, list[int]] = {}
    for query in queries:
        missing = set(known)
        for unix, uuid in history.connection.execute(query, (end, UNOBSERVED)):
            if uuid in missing:
                found.setdefault(uuid, []).append(unix)
                missing.remove(uuid)
            if not missing:
                break
    return found

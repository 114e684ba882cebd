"""Reads the intervals of GPU time of one row of a report, for `gpuledger explain`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.explain_intervals import OtherTime, TimeInterval
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.store.explain_energy import device_place, party_name
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.old_time import old_gpu_time
from gpuledger.ledger.time.account import DOWN, OWNER, UNCUT
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.model.session import ALLOCATION, IDLE, UNOBSERVED

_FOLDED = """
SELECT quarter, part, account, party, is_estimate, {basis} FROM hour_gpu_time
    WHERE quarter >= ? AND quarter < ? AND quarter IN (
        SELECT quarter FROM hour_gpu_time WHERE quarter >= ? AND quarter < ? AND {own}
    ) ORDER BY quarter
"""
_OF_PARTIES = "party IN own_parties"
_CACHED = 4096


class _Holder(NamedTuple):
    """An account of a part of a Gpu: its name is that of the owner, or of the account."""

    part: GpuPart
    is_own: bool
    name: str


class _Cell(NamedTuple):
    """Microseconds of one account of a stretch of time."""

    holder: _Holder
    is_estimate: bool
    amount: int


def _holder(
    target: str, is_own: Callable[[Party], bool], part: GpuPart, account: str, party: Party | None
) -> _Holder:
    if party is not None:
        return _Holder(part, target == OWNER and is_own(party), party_name(party))
    # Multiprocessors that no Instance covers are idle.
    shown = IDLE if account == UNCUT else account
    return _Holder(part, shown == target, shown)


class TimeIntervalReader:
    """Reads the intervals in which the target had time by one basis.

    The target is an account of the Gpus, or (`account` is owner) the parties that are its own.
    """

    def __init__(self, history: History, account: str, is_own: Callable[[Party], bool], basis: str) -> None:
        self._history, self._account, self._basis = history, account, basis
        self._reader = reader = history.time_reader
        self._holder = partial(_holder, account, is_own)
        holder = self._holder

        # The caches do not refer to the reader, so that it is freed when its user is done.
        @lru_cache(_CACHED)
        def span_holder(part: int, name: str, session: int | None, owner: int | None) -> _Holder:
            return holder(reader.part(part), name, reader.entry_party(session, owner))

        @lru_cache(_CACHED)
        def hour_holder(part: int, name: str, party: int) -> _Holder:
            return holder(reader.part(part), name, history.party(party) if name == OWNER else None)

        self._span_holder, self._hour_holder = span_holder, hour_holder
        self._place = lru_cache(None)(lambda uuid: device_place(history, uuid)[0])

    def read(self, segment: PriceSegment, prices: SegmentPrices | None) -> Iterator[TimeInterval]:
        """The intervals of a segment. `prices` is None if time has no price."""
        yield from self._folded(segment, prices)
        place = 0 if self._basis == ALLOCATION else 1
        holder = self._span_holder
        for span in self._reader.spans(segment.since, segment.until):
            cells = [
                _Cell(
                    holder(entry.part, entry.account, entry.session, entry.owner),
                    entry.is_estimate,
                    both[place],
                )
                for entry, both in span.amounts.items()
            ]
            yield from self._intervals((span.begins / MICRO, span.ends / MICRO), cells, prices)

    def read_old(self, segment: PriceSegment, prices: SegmentPrices | None) -> Iterator[TimeInterval]:
        """The time from before the time books, one interval for a segment of the report and a Gpu."""
        by_gpu: dict[str, list[_Cell]] = defaultdict(list)
        for time in old_gpu_time(self._history, segment.since, segment.until):
            holder = self._holder(time.part, time.account, time.party)
            by_gpu[time.part.gpu].append(_Cell(holder, time.is_estimate, time.microseconds(self._basis)))
        time_from = self._history.time_from
        ends = segment.until if time_from is None else min(segment.until, time_from)
        times = (float(segment.since * QUARTER), min(float(ends * QUARTER), self._history.last))
        for _, cells in sorted(by_gpu.items()):
            yield from self._intervals(times, cells, prices, exact=False)

    def _folded(self, segment: PriceSegment, prices: SegmentPrices | None) -> Iterator[TimeInterval]:
        within = (segment.since, segment.until)
        own = _OF_PARTIES if self._account == OWNER else "party = 0"
        query = _FOLDED.format(basis=self._basis, own=own)
        found = self._history.connection.execute(query, (*within, *within))
        for quarter, rows in groupby(found, key=itemgetter(0)):
            by_gpu: dict[str, list[_Cell]] = defaultdict(list)
            for _, part, account, party, is_estimate, amount in rows:
                holder = self._hour_holder(part, account, party)
                by_gpu[holder.part.gpu].append(_Cell(holder, bool(is_estimate), amount))
            times = (float(quarter * QUARTER), float(self._history.cell_end(quarter) * QUARTER))
            for _, cells in sorted(by_gpu.items()):
                yield from self._intervals(times, cells, prices, exact=False)

    def _intervals(
        self,
        times: tuple[float, float],
        cells: Iterable[_Cell],
        prices: SegmentPrices | None,
        *,
        exact: bool = True,
    ) -> Iterator[TimeInterval]:
        """One interval for each part of the Gpu on which the target had time."""
        own: dict[GpuPart, list[int]] = defaultdict(lambda: [0, 0])
        others: dict[str, int] = defaultdict(int)
        watched = 0
        for (part, is_own, name), is_estimate, amount in cells:
            watched += amount
            if is_own:
                own[part][0] += amount
                own[part][1] += amount if is_estimate else 0
            elif amount:
                others[name] += amount
        for part, (amount, estimated) in own.items():
            if amount:
                yield TimeInterval(
                    *times,
                    self._place(part.gpu),
                    part.instance,
                    amount,
                    watched,
                    estimated,
                    tuple(OtherTime(*other) for other in sorted(others.items())),
                    exact,
                    self._rate(part, prices),
                )

    def _rate(self, part: GpuPart, prices: SegmentPrices | None) -> Rate | None:
        if prices is None or self._account in (DOWN, UNOBSERVED):
            return None
        return prices.time_rate(part)

"""Reads the intervals of GPU time of one row of a report, for `gpuledger explain`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.explain import OtherTime, TimeInterval
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.grouping import Party
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.store.explain_energy import device_place, party_name, rows_of
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
_OF_PARTIES = "party IN wanted"


class _Cell(NamedTuple):
    """Microseconds of one account of a stretch of time."""

    part: GpuPart
    account: str
    party: Party | None
    is_estimate: bool
    amount: int


class TimeTarget(NamedTuple):
    """The target: an account of the Gpus, or (`account` is owner) the parties that are its own.

    `parties` are its numbers in folded hours.
    """

    account: str
    is_own: Callable[[Party], bool]
    parties: frozenset[int] = frozenset()


class TimeIntervalReader:
    """Reads the intervals in which the target had time by one basis."""

    def __init__(self, history: History, target: TimeTarget, basis: str) -> None:
        self._history = history
        self._target = target
        self._basis = basis
        self._reader = history.time_reader
        self._is_own = lru_cache(50_000)(target.is_own)
        self._name = lru_cache(50_000)(party_name)

    def read(self, segment: PriceSegment, prices: SegmentPrices | None) -> Iterator[TimeInterval]:
        """The intervals of a segment. `prices` is None if time has no price."""
        yield from self._folded(segment, prices)
        place = 0 if self._basis == ALLOCATION else 1
        entry_party = self._reader.entry_party
        for span in self._reader.spans(segment.since, segment.until):
            cells = [
                _Cell(
                    self._reader.part(entry.part),
                    entry.account,
                    entry_party(entry.session, entry.owner),
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
            by_gpu[time.part.gpu].append(_Cell(*time[1:5], time.microseconds(self._basis)))
        time_from = self._history.time_from
        ends = segment.until if time_from is None else min(segment.until, time_from)
        times = (float(segment.since * QUARTER), min(float(ends * QUARTER), self._history.last))
        for _, cells in sorted(by_gpu.items()):
            yield from self._intervals(times, cells, prices, exact=False)

    def _folded(self, segment: PriceSegment, prices: SegmentPrices | None) -> Iterator[TimeInterval]:
        within = (segment.since, segment.until)
        own = _OF_PARTIES if self._target.account == OWNER else "party = 0"
        query = _FOLDED.format(basis=self._basis, own=own)
        found = rows_of(self._history, self._target.parties, query, *within, *within).fetchall()
        for quarter, rows in groupby(found, key=lambda row: row[0]):
            by_gpu: dict[str, list[_Cell]] = defaultdict(list)
            for _, number, account, party, is_estimate, amount in rows:
                part = self._reader.part(number)
                owner = self._history.party(party) if account == OWNER else None
                by_gpu[part.gpu].append(_Cell(part, account, owner, bool(is_estimate), amount))
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
        for part, account, party, is_estimate, amount in cells:
            watched += amount
            if self._is_of_target(account, party):
                own[part][0] += amount
                own[part][1] += amount if is_estimate else 0
            elif amount:
                others[self._name(party) if party else _shown(account)] += amount
        for part, (amount, estimated) in own.items():
            if amount:
                yield TimeInterval(
                    *times,
                    device_place(self._history, part.gpu)[0],
                    part.instance,
                    amount,
                    watched,
                    estimated,
                    tuple(OtherTime(*other) for other in sorted(others.items())),
                    exact,
                    self._rate(part, prices),
                )

    def _is_of_target(self, account: str, party: Party | None) -> bool:
        if party is not None:
            return self._target.account == OWNER and self._is_own(party)
        return _shown(account) == self._target.account

    def _rate(self, part: GpuPart, prices: SegmentPrices | None) -> Rate | None:
        if prices is None or self._target.account in (DOWN, UNOBSERVED):
            return None
        return prices.time_rate(part)


def _shown(account: str) -> str:
    """Multiprocessors that no Instance covers are idle."""
    return IDLE if account == UNCUT else account

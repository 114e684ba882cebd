"""Cuts the range of a report into segments: parts of a period in which no price changes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import tzinfo
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, Protocol

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.ranges import CutsAround, ReportPart, ReportRange, nearest_quarter
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.ledger.zone_hours import hour_begins, hour_ends
from gpuledger.model.errors import UsageError


class PriceSegment(NamedTuple):
    """Quarters from `since` to before `until`; `period` is the number of the part of the range."""

    period: int
    since: int
    until: int


def cut_segments(parts: Sequence[ReportPart], cuts: Iterable[int]) -> list[PriceSegment]:
    """The segments of the parts of a range, in order."""
    found, inside = [], sorted(set(cuts))
    for number, part in enumerate(parts):
        first, last = bisect_right(inside, part.begins), bisect_left(inside, part.ends)
        edges = [part.begins, *inside[first:last], part.ends]
        found += [PriceSegment(number, *edge) for edge in pairwise(edges)]
    return found


def full_hours(since: int, until: int, zone: tzinfo) -> Iterator[int]:
    """The quarters, after `since` and before `until`, at which a full hour of the zone begins."""
    quarter = hour_ends(since, zone)
    while quarter < until:
        yield quarter
        quarter = hour_ends(quarter, zone)


def full_hour_range(
    within: ReportRange,
    last: float,
    zone: tzinfo,
    cuts_around: CutsAround = lambda quarter: (quarter, quarter),
) -> ReportRange:
    """The range with both ends moved to the nearest full hour of the zone; of two, to the later.

    In hours that were folded in another time zone, a full hour begins at the nearest cut. An end at the last
    posting does not move. Raises UsageError if nothing is left.
    """
    begins = _full_hour_cut(within.begins, zone, cuts_around)
    # A statement has its end in whole microseconds.
    is_open = round(within.until * MICRO) >= round(last * MICRO)
    ends = within.ends if is_open else _full_hour_cut(within.ends, zone, cuts_around)
    if begins >= ends:
        hours = (hour_begins(within.begins, zone), hour_ends(within.ends - 1, zone))
        nearest = " and ".join(format_local_time(quarter * QUARTER, zone) for quarter in hours)
        raise UsageError(
            f"price.idle: spread needs full hours, and this range has none: the nearest are {nearest}"
        )
    if (begins, ends) == (within.begins, within.ends):
        return within
    at_last = ends * QUARTER > last
    times = (begins * QUARTER, min(ends * QUARTER, last))
    between = " to ".join(format_local_time(unix, zone) for unix in times)
    or_last, is_last = (", or at the last posting", ", the last posting") if at_last else ("", "")
    note = f"price.idle: spread begins and ends at full hours{or_last}: the range is from {between}{is_last}."
    until = within.until if is_open else float(ends * QUARTER)
    return replace(within, begins=begins, ends=ends, until=until, notes=(*within.notes, note))


def _full_hour_cut(quarter: int, zone: tzinfo, cuts_around: CutsAround) -> int:
    """The nearest of the cuts at which full hours begin; of two, the later."""
    hours = (hour_begins(quarter, zone), hour_ends(quarter, zone))
    return min(
        (nearest_quarter(hour, cuts_around) for hour in hours), key=lambda cut: (abs(cut - quarter), -cut)
    )


class PriceTable(Protocol):
    """The prices of a range; None where no entry matches."""

    def gpu_hour(self, part: GpuPart, node: str, quarter: int) -> Fraction | None:
        """The price of an hour of the whole Gpu, for this part of it."""

    def entry(self, part: GpuPart, node: str, quarter: int) -> str:
        """Identifies the entry that gives this price."""

    def kwh(self, node: str, quarter: int) -> Fraction | None:
        """The price of a kilowatt-hour."""

    def kwh_entry(self, node: str, quarter: int) -> str:
        """Identifies the entry that gives this price."""

    def pue(self, node: str, quarter: int) -> Fraction:
        """Energy of the building per energy of its machines; 1 where no entry matches."""

    def co2(self, node: str, quarter: int) -> Fraction | None:
        """Grams of CO2 per kilowatt-hour."""


class SegmentPrices:
    """The rates of a node from a quarter on. Without a table, everything is unpriced."""

    def __init__(self, table: PriceTable | None = None, node: str = "", quarter: int = 0) -> None:
        self._table, self._node, self._quarter = table, node, quarter
        self._time_rates: dict[GpuPart, Rate] = {}
        self._energy_rates: dict[str, Rate] = {}
        self.grams_per_kwh = self._with_overhead(table.co2(node, quarter)) if table is not None else None

    def time_rate(self, part: GpuPart) -> Rate:
        """The rate of a part of a Gpu."""
        if (known := self._time_rates.get(part)) is None:
            known = self._time_rates[part] = self._find_time_rate(part)
        return known

    def energy_rate(self, gpu: str) -> Rate:
        """The rate of a kilowatt-hour of a Gpu, with the building's overhead."""
        if (known := self._energy_rates.get(gpu)) is None:
            known = self._energy_rates[gpu] = self._find_energy_rate(gpu)
        return known

    def _find_time_rate(self, part: GpuPart) -> Rate:
        table, node, quarter = self._table, self._node, self._quarter
        if table is None:
            return Rate(part.gpu)
        return Rate(part.gpu, table.entry(part, node, quarter), table.gpu_hour(part, node, quarter))

    def _find_energy_rate(self, gpu: str) -> Rate:
        table, node, quarter = self._table, self._node, self._quarter
        if table is None:
            return Rate(gpu)
        price = self._with_overhead(table.kwh(node, quarter))
        return Rate(gpu, table.kwh_entry(node, quarter), price, table.pue(node, quarter))

    def _with_overhead(self, amount: Fraction | None) -> Fraction | None:
        if amount is None or self._table is None:
            return None
        return amount * self._table.pue(self._node, self._quarter)

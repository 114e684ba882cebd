"""Builds the report of a ledger file: reads the sums of each segment of the range, and prices them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import tzinfo
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from gpuledger.host.time_zone import machine_time_zone, named_time_zone
from gpuledger.ledger.energy.shares import device_share
from gpuledger.ledger.report.grouping import Grouping, find_grouping
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.own_report import own_grouping, own_report
from gpuledger.ledger.report.prices import PriceList, PriceUse
from gpuledger.ledger.report.ranges import CutsAround, ReportPart, ReportRange, nearest_quarter, split_range
from gpuledger.ledger.report.report_builder import ListUses, ReportScope, build_usage_report
from gpuledger.ledger.report.segments import (
    PriceSegment,
    SegmentPrices,
    cut_segments,
    full_hour_range,
    full_hours,
)
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.tally import Tally
from gpuledger.ledger.report.usage_report import Period, UsageReport
from gpuledger.ledger.store.old_time import old_gpu_time
from gpuledger.ledger.store.time_sums import gpu_sights, gpu_time_sums
from gpuledger.ledger.watched_time import QUARTER

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

Progress = Callable[[str, float], None]


def build_report(
    history: History,
    by: str | Grouping,
    prices: Prices,
    within: ReportRange,
    progress: Progress | None = None,
    *,
    every: str = "",
    node: str = "",
    uses: ListUses | None = None,
) -> UsageReport:
    """Build the report of a range. `every` splits it into hours, days, weeks or months; `node` has prices.

    `uses`, of several reports, collects to what prices and teams can apply; without it, entries that apply
    to nothing in this report are noted.

    A restricted history (`History.restrict`) has the rows of its reader only.

    Raises UsageError for an unknown grouping, and for a price list with an invalid date. See
    `require_watched_range` for ranges without data.
    """
    grouping = find_grouping(by, history.devices) if isinstance(by, str) else by
    (report,) = build_reports(
        history, (grouping,), prices, within, progress, every=every, node=node, uses=uses
    )
    return report


def build_reports(
    history: History,
    groupings: Sequence[Grouping],
    prices: Prices,
    within: ReportRange,
    progress: Progress | None = None,
    *,
    every: str = "",
    node: str = "",
    uses: ListUses | None = None,
) -> list[UsageReport]:
    """Build a report by each grouping, all in one reading of the ledger. See `build_report`."""
    is_restricted = not history.reader.reads_all
    if is_restricted and uses is None:
        # Notes on what applies to nothing name others.
        uses = ListUses()
    zone = machine_time_zone() if within.zone is None else within.zone
    query = _ReportQuery(history, prices, zone, node, progress, uses)
    if is_restricted:
        own = [own_grouping(grouping, history.is_own) for grouping in groupings]
        return list(map(own_report, query.reports(own, within, every)))
    return query.reports(groupings, within, every)


def report_segments(
    parts: Sequence[ReportPart], listed: PriceList, cuts_around: CutsAround, *, spread: bool
) -> list[PriceSegment]:
    """The segments by which a report is summed: no price changes in one; with `spread`, full hours.

    They end at cuts of the ledger: an hour that was folded in another time zone has the price of its begin,
    and a full hour begins at the nearest cut, as the parts do.
    """
    begins, ends = parts[0].begins, parts[-1].ends
    cuts = [cuts_around(cut)[1] for cut in listed.boundaries(begins, ends)]
    if spread:
        cuts += (nearest_quarter(hour, cuts_around) for hour in full_hours(begins, ends, listed.zone))
    return cut_segments(parts, cuts)


class _ReportQuery:
    """One ledger and the prices of its report."""

    def __init__(
        self,
        history: History,
        prices: Prices,
        zone: tzinfo,
        node: str,
        progress: Progress | None,
        uses: ListUses | None = None,
    ) -> None:
        self._uses = uses
        self._history = history
        self._prices = prices
        self._list = PriceList(prices, zone)
        self._zone = zone
        self._node = node
        self._progress = progress
        self._is_spread = prices.idle == SPREAD
        self._has_old_hours = False
        listed = self._list
        # It does not refer to the query, and so not to the history.
        self._prices_of: Callable[[PriceSegment], SegmentPrices]
        self._prices_of = lru_cache(None)(lambda segment: SegmentPrices(listed, node, segment.since))

    def reports(self, groupings: Sequence[Grouping], within: ReportRange, every: str) -> list[UsageReport]:
        """Read the range once, and build its report by each grouping."""
        if self._is_spread and not within.is_fixed:
            within = full_hour_range(within, self._history.last, self._zone, self._history.cuts_around)
        parts, notes = self._parts(within, every)
        tallies = [self._tally(grouping) for grouping in groupings]
        self._read(tallies, parts)
        found = []
        for grouping, tally in zip(groupings, tallies, strict=True):
            tally.finish()
            scope = self._scope(grouping, within, parts)
            report = build_usage_report(tally, scope, self._prices_of)
            added = (*self._balance(tally, scope.period), *notes, *self._notes(tally))
            found.append(replace(report, notes=(*added, *report.notes)))
        return found

    def _read(self, tallies: Sequence[Tally], parts: Sequence[ReportPart]) -> None:
        """Add all entries of these parts to each of the tallies."""
        begins, ends = parts[0].begins, parts[-1].ends
        cuts_around = self._history.cuts_around
        for segment in report_segments(parts, self._list, cuts_around, spread=self._is_spread):
            self._add(tallies, segment)
            if self._progress is not None:
                self._progress("time and energy", (segment.until - begins) / max(ends - begins, 1))

        def settle() -> None:
            for tally in tallies:
                tally.settle()

        for number, part in enumerate(parts):
            for tally in tallies:
                tally.begin_period(number)
            for times in self._history.times(part.begins, part.ends, settle, self._progress):
                for tally in tallies:
                    tally.add_times(times)

    def _parts(self, within: ReportRange, every: str) -> tuple[list[ReportPart], tuple[str, ...]]:
        """The parts of the range that can have data, and notes on ends that moved."""
        end, first = self._history.end_quarter, self._first_quarter
        begins = max(within.begins, end if first is None else first)
        ends = max(min(within.ends, end), begins)
        if not every or begins == ends:
            return [ReportPart(begins, ends, "")], within.notes
        parts, moved = split_range(
            begins, ends, every, self._history.cuts_around, self._zone, _zone_of(self._history)
        )
        return parts, (*within.notes, *moved)

    @property
    def _first_quarter(self) -> int | None:
        """The first quarter with data that the reader may read.

        The time of an earlier version follows from the presence of everybody.
        """
        history = self._history
        if history.reader.reads_all or history.first_quarter is None:
            return history.first_quarter
        time_from = history.end_quarter if history.time_from is None else history.time_from
        return max(history.first_quarter, time_from)

    def _tally(self, grouping: Grouping) -> Tally:
        devices = self._history.devices
        shares = {uuid: device_share(device) for uuid, device in devices.items()}
        gpus = {uuid: device.gpu.uuid for uuid, device in devices.items()}
        return Tally(
            grouping,
            lambda uuid: shares.get(uuid, Fraction(1)),
            gpus.get,
            self._prices.basis,
            spread=self._is_spread,
        )

    def _add(self, tallies: Sequence[Tally], segment: PriceSegment) -> None:
        for tally in tallies:
            tally.begin_segment(segment, self._prices_of(segment))
        within = (segment.since, segment.until)
        for energy in self._history.energy(*within):
            for tally in tallies:
                tally.add_energy(energy)
        for time in gpu_time_sums(self._history, *within):
            for tally in tallies:
                tally.add_gpu_time(time)
        for time in old_gpu_time(self._history, *within):
            self._has_old_hours = True
            for tally in tallies:
                tally.add_gpu_time(time)

    def _scope(self, grouping: Grouping, within: ReportRange, parts: list[ReportPart]) -> ReportScope:
        history, first = self._history, self._history.first_quarter
        begin = history.end_quarter if first is None else first
        return ReportScope(
            grouping,
            self._prices,
            history.devices,
            Period(within.begins * QUARTER, within.ends * QUARTER, begin * QUARTER, history.latest),
            parts,
            history.unmetered_gpus,
            gpu_sights(history),
            self._list.fingerprint,
            self._zone,
            self._uses,
        )

    def _notes(self, tally: Tally) -> Iterator[str]:
        """Sentences on hours of an earlier version, and on the price list."""
        time_from = self._history.time_from
        if self._has_old_hours:
            until = self._history.last if time_from is None else time_from * QUARTER
            yield (
                f"GPU time until {format_local_time(until, self._zone)} was recorded by an earlier version: "
                "it is computed from the seconds in which owners were present, without the fractions of "
                "allocations."
            )
        if any(amount.old for amount in tally.amounts.values()):
            yield (
                f"Until {format_local_time(self._history.activity_from, self._zone)} an earlier version "
                "recorded only the seconds that were held idle: the others count as unknown, not as active."
            )
        uses = [PriceUse(part, self._node, *segment[1:]) for part, segment in tally.uses]
        if self._uses is not None:
            self._uses.parts += uses
            return
        for problem in self._list.problems(uses):
            yield problem + "."

    def _balance(self, tally: Tally, period: Period) -> Iterator[str]:
        """Sentences on energy in the Gpus' totals that no row has."""
        if period.whole and self._history.reader.reads_all:
            booked = {uuid: gpu.millijoules for uuid, gpu in tally.gpus.items()}
            for uuid, millijoules in self._history.unaccounted_millijoules(booked).items():
                yield (
                    f"THE BOOKS DO NOT BALANCE: the total of {uuid} has {millijoules / 1000:+.3f} J that no "
                    "row has."
                )


def _zone_of(history: History) -> tzinfo | None:
    """The time zone of the full hours to which the ledger sums older history; None if it is not known."""
    try:
        return named_time_zone(history.zone) if history.zone else None
    except ValueError:
        return None

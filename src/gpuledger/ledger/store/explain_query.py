"""Reads all that the ledger holds about one row of a report or one process, for `gpuledger explain`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gpuledger.host.time_zone import machine_time_zone
from gpuledger.ledger.report.charges import sum_charges
from gpuledger.ledger.report.explain import (
    AllocationLine,
    Explanation,
    LostDetail,
    ReportRow,
    SessionLine,
    spread_lines,
)
from gpuledger.ledger.report.explain_amounts import (
    energy_amounts,
    energy_costs,
    spread_amounts,
    spread_costs,
    time_amounts,
    time_costs,
)
from gpuledger.ledger.report.explain_intervals import (
    Interval,
    TimeInterval,
    merge_intervals,
    merge_time_intervals,
)
from gpuledger.ledger.report.explain_lists import EnergySums, SpreadSums, StoredList, StreamedList, TimeSums
from gpuledger.ledger.report.formats import rounded_row
from gpuledger.ledger.report.grouping import Grouping, find_grouping
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.own_report import own_grouping
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.report_columns import report_columns
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.report.usage_report import ReportLine, UnbilledTime, UsageReport
from gpuledger.ledger.store.explain_energy import EnergyIntervalReader, device_place
from gpuledger.ledger.store.explain_target import ACCOUNT, PID, ExplainTarget, ExplainTargetFinder, Found
from gpuledger.ledger.store.explain_time import TimeIntervalReader
from gpuledger.ledger.store.history import PROCESS_COMMAND, History
from gpuledger.ledger.store.report_query import build_report, report_segments
from gpuledger.ledger.store.rows import SESSION_COLUMNS, session_from_row
from gpuledger.ledger.time.account import OWNER
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.errors import GpuledgerError

T = TypeVar("T")
# Maximum length of an interval in seconds: energy can be booked this long after a Session has ended.
_LATE = 60.0


@dataclass(frozen=True, slots=True)
class ExplainScope:
    """What the report of the explained row is about: range, prices, teams, and the name of the node."""

    within: ReportRange
    prices: Prices
    teams: Sequence[Team] = ()
    node: str = ""


@dataclass(frozen=True, slots=True)
class ExplainLists:
    """Which lines are shown: of each list those with the largest amounts, at most `limit`; 0 is all.

    `merged`: similar consecutive intervals are one line. `all_columns`: intervals have the amounts of each
    column of the report that sums to the row, not only costs.
    """

    limit: int = 0
    merged: bool = False
    all_columns: bool = False


ALL_LINES = ExplainLists()


def explain_usage(
    history: History, text: str, scope: ExplainScope, lists: ExplainLists = ALL_LINES
) -> Explanation:
    """Everything known about the named row or process in the range.

    Without a limit, its lists are read from `history` again whenever they are iterated. Raises GpuledgerError
    if the ledger has nothing of that name in that time, or several rows match.
    """

    def grouping_of(kind: str) -> Grouping:
        found = find_grouping(kind, history.devices, teams=scope.teams, node_of=lambda _: scope.node)
        return own_grouping(found, history.is_own)

    target, found = ExplainTargetFinder(history, text, grouping_of, has_teams=bool(scope.teams)).find()
    if target.kind == PID:
        view, grouping = history.with_process(found.sessions), process_grouping(target)
    else:
        view, grouping = history, grouping_of("owner" if target.kind == ACCOUNT else target.kind)
    report = build_report(view, grouping, scope.prices, scope.within, node=scope.node)
    store_found_numbers(history, found)
    explanation = _Explainer(view, target, report, grouping, scope.node).explanation(lists)
    # Sessions are there even if nothing of them is in the range.
    counts = (explanation.intervals.count, explanation.sessions.count)
    if not (explanation.row or explanation.unbilled or any(counts)):
        times = (scope.within.since, min(scope.within.until, history.last))
        between = " to ".join(format_local_time(unix, scope.within.zone) for unix in times)
        raise GpuledgerError(
            f"{target} is in {history.file}, but not from {between}: omit --since and --until, or set others"
        )
    return explanation


def process_grouping(target: ExplainTarget) -> Grouping:
    """One row for the process (`History.with_process`), and one for everything else."""
    return Grouping(
        PID,
        (PID,),
        lambda party: target.key if party.command == PROCESS_COMMAND else ("",),
        lambda _: ("",),
    )


def store_found_numbers(history: History, found: Found) -> None:
    """Write the numbers of the target to temporary tables, in a file if they are many."""
    for kind, numbers in (
        ("sessions", found.sessions),
        ("parties", found.parties),
        ("allocations", found.allocations),
    ):
        history.connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS own_{kind} (number INTEGER PRIMARY KEY)")
        history.connection.execute(f"DELETE FROM own_{kind}")
        rows = ((number,) for number in numbers)
        history.connection.executemany(f"INSERT OR IGNORE INTO own_{kind} VALUES (?)", rows)


class _Explainer:
    """Reads the intervals of one row of a report."""

    def __init__(
        self, history: History, target: ExplainTarget, report: UsageReport, grouping: Grouping, node: str
    ) -> None:
        self._history = history
        self._target = target
        self._report = report
        self._node = node
        zone = machine_time_zone() if report.zone is None else report.zone
        self._list = PriceList(report.prices, zone)
        is_account = target.kind == ACCOUNT

        def is_own(party: Party) -> bool:
            return not is_account and grouping.key(party) == target.key

        account = target.key[0] if is_account else ""
        self._energy = EnergyIntervalReader(history, account, is_own)
        self._time = TimeIntervalReader(history, account or OWNER, is_own, report.basis)

    def explanation(self, lists: ExplainLists) -> Explanation:
        """The row, and everything below it."""
        report, history = self._report, self._history
        parts = report.periods
        begins, ends = parts[0].begins * QUARTER, parts[-1].ends * QUARTER
        row, unbilled = _report_row(report, self._target), _unbilled(report, self._target)
        columns = {one.name: one.digits for one in report_columns(report.prices)}
        # Time that is not billed is no part of the row.
        of_time = time_amounts if lists.all_columns and unbilled is None else time_costs
        of_energy = energy_amounts if lists.all_columns else energy_costs
        of_spread = spread_amounts if lists.all_columns else spread_costs
        time, energy = TimeSums(), EnergySums()
        time_list = StreamedList(partial(self._time_lines, lists), time, of_time, columns, lists.limit)
        energy_list = StreamedList(
            partial(self._energy_lines, lists), energy, of_energy, columns, lists.limit
        )
        spread = spread_lines(row, time, energy)
        spread_list = StreamedList(lambda: spread, SpreadSums(), of_spread, columns)
        numbers = {} if row is None else rounded_row(report, row)
        StreamedList.settle([time_list, energy_list, spread_list], numbers)
        return Explanation(
            str(self._target),
            energy_list,
            energy,
            time_list,
            time,
            spread_list,
            _sessions(history, begins, ends, lists.limit),
            _allocations(history, begins, ends, lists.limit),
            self._lost(),
            None if row is None else ReportRow(report, row),
            "" if self._target.kind == PID else report.grouping.name,
            unbilled,
            report,
        )

    def _energy_lines(self, lists: ExplainLists) -> Iterator[Interval]:
        found = self._energy_intervals()
        return merge_intervals(found) if lists.merged else found

    def _time_lines(self, lists: ExplainLists) -> Iterator[TimeInterval]:
        found = self._time_intervals()
        return merge_time_intervals(found) if lists.merged else found

    def _energy_intervals(self) -> Iterator[Interval]:
        has_price = self._report.prices.kwh is not None
        for segment in self._segments():
            prices = SegmentPrices(self._list, self._node, segment.since)
            yield from self._energy.read(segment, prices if has_price else None)

    def _time_intervals(self) -> Iterator[TimeInterval]:
        """Those from before the time books first."""
        has_price = self._report.prices.gpu_hour is not None
        for segments, read in (
            (self._old_segments(), self._time.read_old),
            (self._segments(), self._time.read),
        ):
            for segment in segments:
                prices = SegmentPrices(self._list, self._node, segment.since)
                yield from read(segment, prices if has_price else None)

    def _segments(self, *, spread: bool = False) -> list[PriceSegment]:
        return report_segments(self._report.periods, self._list, self._history.cuts_around, spread=spread)

    def _old_segments(self) -> list[PriceSegment]:
        """The report's segments, by which time from before the time books is rounded."""
        time_from = self._history.time_from
        segments = self._segments(spread=self._report.prices.idle == SPREAD)
        return [one for one in segments if time_from is None or one.since < time_from]

    def _lost(self) -> LostDetail:
        """Energy of a process that only the hours of its party hold."""
        begins, detail = self._report.periods[0].begins, self._history.first_detail
        if self._target.kind != PID or (detail is not None and begins >= detail):
            return LostDetail()
        kept = EnergySums()
        # Up to the last quarter: everything without detail is older than everything with detail.
        for one in self._energy.detailed(0, self._history.end_quarter):
            kept.add(one)
        sums = "SELECT sum(measured + apportioned), sum(measured), sum(high) FROM usage"
        found = self._history.connection.execute(f"{sums} WHERE number IN own_sessions").fetchone()
        millijoules, measured, high = (amount or 0 for amount in found)
        return LostDetail(millijoules - kept.millijoules, measured - kept.measured, high - kept.high)


def _report_row(report: UsageReport, target: ExplainTarget) -> ReportLine | None:
    """The target's row in the report; None if it has none, as the account `down`, which is not billed."""
    if target.kind == ACCOUNT:
        return next((one for one in report.gpu_accounts if one.account == target.key[0]), None)
    return next((one for one in report.lines if one.key == target.key), None)


def _unbilled(report: UsageReport, target: ExplainTarget) -> UnbilledTime | None:
    """The time of an account that is not billed; None for other targets."""
    if target.kind != ACCOUNT:
        return None
    found = [one for one in report.unbilled if one.account == target.key[0]]
    if not found:
        return None
    charges = sum_charges(one.charges for one in found)
    return found[0]._replace(microseconds=sum(one.microseconds for one in found), charges=charges)


_SESSIONS = """
FROM sessions JOIN usage USING (number)
    WHERE number IN own_sessions AND first_seen < :until AND last_seen >= :since
"""
_ALLOCATIONS = "FROM handovers WHERE number IN own_allocations AND begins < :until AND ends >= :since"


def _sessions(history: History, since: float, until: float, limit: int) -> StoredList[SessionLine]:
    """The Sessions of the target that were there between two times, in unix seconds."""
    within = {"since": since - _LATE, "until": until}
    columns = ("first_seen", "measured + apportioned")
    return _stored_list(history, _session_line, _SESSIONS, within, columns, limit)


def _allocations(history: History, since: float, until: float, limit: int) -> StoredList[AllocationLine]:
    within = {"since": since, "until": until}
    return _stored_list(history, _allocation_line, _ALLOCATIONS, within, ("begins", "ends - begins"), limit)


def _stored_list(
    history: History,
    line: Callable[[History, Sequence[Any]], T],
    source: str,
    within: dict[str, float],
    columns: tuple[str, str],
    limit: int,
) -> StoredList[T]:
    """Rows in the order of the first column; with a limit, those with the most of the second."""
    connection, (order, amount) = history.connection, columns
    ((count,),) = connection.execute(f"SELECT count(*) {source}", within)
    query = f"SELECT * {source}"
    if limit:
        query = f"SELECT * FROM ({query} ORDER BY {amount} DESC, {order}, number LIMIT {limit})"

    def read() -> Iterator[T]:
        return (line(history, row) for row in connection.execute(f"{query} ORDER BY {order}, number", within))

    lines = list(read()) if limit else []
    return StoredList(count, lambda: lines, count - len(lines)) if limit else StoredList(count, read)


def _allocation_line(history: History, row: Sequence[Any]) -> AllocationLine:
    number, device, _, begins, ends, *_ = row
    bits = history.connection.execute("SELECT bits FROM unused WHERE handover = ?", (number,))
    unused = sum(minute.bit_count() for (minute,) in bits)
    return AllocationLine(*device_place(history, device), begins, ends, unused)


def _session_line(history: History, row: Sequence[Any]) -> SessionLine:
    one = session_from_row(tuple(row), history.devices)
    ended, exit_seen = row[SESSION_COLUMNS + 1 : SESSION_COLUMNS + 3]
    return SessionLine(
        one.process.pid,
        one.process.command,
        *device_place(history, one.process.device.uuid),
        one.first_seen,
        one.last_seen,
        ended is not None,
        bool(exit_seen),
        one.known_held_seconds,
        one.measured,
        one.apportioned,
        one.high,
    )

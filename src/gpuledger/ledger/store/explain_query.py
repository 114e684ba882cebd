"""Reads all that the ledger holds about one row of a report or one process, for `gpuledger explain`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any

from gpuledger.host.time_zone import machine_time_zone
from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.charges import sum_charges
from gpuledger.ledger.report.explain import (
    AllocationLine,
    Explanation,
    Interval,
    LostDetail,
    ReportRow,
    SessionLine,
    SpreadLine,
    TimeInterval,
    spread_lines,
)
from gpuledger.ledger.report.grouping import Grouping, find_grouping
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.report.usage_report import ReportLine, UnbilledTime, UsageReport
from gpuledger.ledger.store.explain_energy import EnergyIntervalReader, device_place, rows_of
from gpuledger.ledger.store.explain_target import ACCOUNT, PID, ExplainTarget, ExplainTargetFinder, Found
from gpuledger.ledger.store.explain_time import TimeIntervalReader, TimeTarget
from gpuledger.ledger.store.history import PROCESS_COMMAND, History
from gpuledger.ledger.store.report_query import build_report, report_segments
from gpuledger.ledger.store.rows import SESSION_COLUMNS, session_from_row
from gpuledger.ledger.time.account import OWNER
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.errors import GpuledgerError

# Maximum length of an interval in seconds: energy can be booked this long after a Session has ended.
_LATE = 60.0


@dataclass(frozen=True, slots=True)
class ExplainScope:
    """What the report of the explained row is about: range, prices, teams, and the name of the node."""

    within: ReportRange
    prices: Prices
    teams: Sequence[Team] = ()
    node: str = ""


def explain_usage(history: History, text: str, scope: ExplainScope) -> Explanation:
    """Everything known about the named row or process in the range.

    Raises GpuledgerError if the ledger has nothing of that name in that time, or several rows match.
    """

    def grouping_of(kind: str) -> Grouping:
        return find_grouping(kind, history.devices, teams=scope.teams, node_of=lambda _: scope.node)

    target, found = ExplainTargetFinder(history, text, grouping_of, has_teams=bool(scope.teams)).find()
    if target.kind == PID:
        view, grouping = history.with_process(found.sessions), _process_grouping(target)
    else:
        view, grouping = history, grouping_of("owner" if target.kind == ACCOUNT else target.kind)
    report = build_report(view, grouping, scope.prices, scope.within, node=scope.node)
    explanation = _Explainer(view, target, found, report, grouping, scope.node).explanation()
    # Sessions are there even if nothing of them is in the range.
    if not (explanation.row or explanation.unbilled or explanation.intervals or explanation.sessions):
        times = (scope.within.since, min(scope.within.until, history.last))
        between = " to ".join(format_local_time(unix, scope.within.zone) for unix in times)
        raise GpuledgerError(
            f"{target} is in {history.file}, but not from {between}: omit --since and --until, or set others"
        )
    return explanation


def _process_grouping(target: ExplainTarget) -> Grouping:
    """One row for the process (`History.with_process`), and one for everything else."""
    return Grouping(
        PID,
        (PID,),
        lambda party: target.key if party.command == PROCESS_COMMAND else ("",),
        lambda _: ("",),
    )


class _Explainer:
    """Reads the intervals of one row of a report."""

    def __init__(
        self,
        history: History,
        target: ExplainTarget,
        found: Found,
        report: UsageReport,
        grouping: Grouping,
        node: str,
    ) -> None:
        self._history = history
        self._target = target
        self._found = found
        self._report = report
        self._node = node
        zone = machine_time_zone() if report.zone is None else report.zone
        self._list = PriceList(report.prices, zone)
        self._energy = EnergyIntervalReader(history, target, found)
        self._time = TimeIntervalReader(history, _time_target(target, found, grouping), report.basis)

    def explanation(self) -> Explanation:
        """The row, and everything below it."""
        report, history, found = self._report, self._history, self._found
        energy, time = self._intervals()
        parts = report.periods
        begins, ends = parts[0].begins * QUARTER, parts[-1].ends * QUARTER
        shown = _sessions(history, found.sessions, begins, ends)
        held = [one for one in _allocations(history, found) if one.begins < ends and one.ends >= begins]
        is_process = self._target.kind == PID
        lost, detail = LostDetail(), history.first_detail
        if is_process and (detail is None or parts[0].begins < detail):
            # Up to the last quarter: everything without detail is older than everything with detail.
            sessions = _sessions(history, found.sessions, -inf, inf)
            lost = _lost(sessions, list(self._energy.detailed(0, history.end_quarter)))
        row = _report_row(report, self._target)
        by = "" if is_process else report.grouping.name
        return Explanation(
            str(self._target),
            energy,
            shown,
            lost,
            held,
            None if row is None else ReportRow(report, row),
            by,
            time,
            _spread(row, energy, time),
            _unbilled(report, self._target),
            report,
        )

    def _intervals(self) -> tuple[list[Interval], list[TimeInterval]]:
        """Those of energy and of time, with the prices of the report."""
        prices, parts = self._report.prices, self._report.periods
        energy: list[Interval] = []
        old, time = list[TimeInterval](), list[TimeInterval]()
        for segment in report_segments(parts, self._list, self._history.cuts_around, spread=False):
            found = SegmentPrices(self._list, self._node, segment.since)
            energy += self._energy.read(segment, None if prices.kwh is None else found)
            time += self._time.read(segment, None if prices.gpu_hour is None else found)
        for segment in self._old_segments():
            found = SegmentPrices(self._list, self._node, segment.since)
            old += self._time.read_old(segment, None if prices.gpu_hour is None else found)
        return energy, [*old, *time]

    def _old_segments(self) -> list[PriceSegment]:
        """The report's segments, by which time from before the time books is rounded."""
        time_from, parts = self._history.time_from, self._report.periods
        spread = self._report.prices.idle == SPREAD
        segments = report_segments(parts, self._list, self._history.cuts_around, spread=spread)
        return [one for one in segments if time_from is None or one.since < time_from]


def _time_target(target: ExplainTarget, found: Found, grouping: Grouping) -> TimeTarget:
    if target.kind == ACCOUNT:
        return TimeTarget(target.key[0], lambda _: False)
    return TimeTarget(OWNER, lambda party: grouping.key(party) == target.key, frozenset(found.parties))


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


def _spread(
    row: ReportLine | None, energy: Collection[Interval], time: Collection[TimeInterval]
) -> list[SpreadLine]:
    """What the row is charged for beside its own time and energy."""
    if row is None:
        return []
    used, watched = (
        [(one.rate, one.millijoules) for one in energy],
        [(one.rate, one.microseconds) for one in time],
    )
    return list(
        chain(
            spread_lines(row.time_charges, watched, is_time=True),
            spread_lines(row.energy_charges, used, is_time=False),
        )
    )


def _lost(sessions: Sequence[SessionLine], intervals: Sequence[Interval]) -> LostDetail:
    measured = sum(one.millijoules for one in intervals if one.method == MEASURED)
    return LostDetail(
        sum(one.measured + one.apportioned for one in sessions) - sum(one.millijoules for one in intervals),
        sum(one.measured for one in sessions) - measured,
        sum(one.high for one in sessions) - sum(one.high or 0 for one in intervals),
    )


def _sessions(history: History, numbers: set[int], begins: float, ends: float) -> list[SessionLine]:
    """The Sessions with these numbers that were there between two times, in unix seconds."""
    query = (
        "SELECT * FROM sessions JOIN usage USING (number) WHERE number IN wanted AND first_seen < ? AND "
        "last_seen >= ? ORDER BY first_seen, number"
    )
    return [_line(row, history) for row in rows_of(history, numbers, query, ends, begins - _LATE)]


def _allocations(history: History, found: Found) -> list[AllocationLine]:
    query = "SELECT number, device, begins, ends FROM handovers WHERE number IN wanted"
    lines = []
    for number, device, begins, ends in rows_of(history, found.allocations, query).fetchall():
        bits = history.connection.execute("SELECT bits FROM unused WHERE handover = ?", (number,))
        unused = sum(minute.bit_count() for (minute,) in bits)
        lines.append(AllocationLine(*device_place(history, device), begins, ends, unused))
    return lines


def _line(row: Sequence[Any], history: History) -> SessionLine:
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
        one.held_seconds,
        one.measured,
        one.apportioned,
        one.high,
    )

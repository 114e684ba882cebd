"""Reads all that the ledger holds about one row of a report or one process, for `gpuledger explain`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.explain import (
    AllocationLine,
    Explanation,
    Interval,
    LostDetail,
    OtherShare,
    ReportRow,
    SessionLine,
)
from gpuledger.ledger.report.grouping import Party
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.explain_target import ACCOUNT, PID, ExplainTarget, ExplainTargetFinder, Found
from gpuledger.ledger.store.history import History, build_report
from gpuledger.ledger.store.rows import SESSION_COLUMNS, session_from_row
from gpuledger.ledger.store.watched_range import require_watched_range
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.session import IDLE, UNATTRIBUTED, UNOBSERVED

if TYPE_CHECKING:
    from sqlite3 import Cursor

# Maximum length of an interval in seconds: energy can be booked this long after a Session has ended.
_LATE = 60.0
_HOURS = """
SELECT hours.number, uuid, method, hour, idle, unattributed, unobserved, party, millijoules
    FROM hours LEFT JOIN hour_shares USING (number) WHERE hour >= ? AND hour < ? AND {}
    ORDER BY hour, uuid, life, method, residents
"""
_OF_PARTIES = "hours.number IN (SELECT number FROM hour_shares WHERE party IN wanted)"


def explain_energy(
    history: History, text: str, since: int, until: int, prices: Prices | None = None
) -> Explanation:
    """Everything known about the named row or process between two unix hours.

    Raises GpuledgerError if the ledger has nothing of that name in that time, or several rows match.
    """
    target, found = ExplainTargetFinder(history, text).find()
    require_watched_range(history, since, until)
    reader = _IntervalReader(history, target, found)
    hours = (max(since, history.first_hour or since), min(until, history.end_hour))
    intervals = [*reader.folded(*hours), *reader.detailed(*hours)]
    sessions = _sessions(history, found.sessions)
    begins, ends = since * HOUR, until * HOUR
    shown = [one for one in sessions if one.first_seen < ends and one.last_seen + _LATE >= begins]
    held = [one for one in _allocations(history, found) if one.begins < ends and one.ends >= begins]
    by, lost = "owner" if target.kind == ACCOUNT else target.kind, LostDetail()
    if target.kind == PID:
        by, row, detail = "", None, history.first_detail
        if detail is None or since < detail:
            # Up to the last hour: everything without detail is older than everything with detail.
            lost = _lost(sessions, list(reader.detailed(0, history.end_hour)))
    else:
        report = build_report(history, by, prices or Prices(), (begins, ends))
        row = _report_row(report, target)
    if not (row or intervals or any(one.last_seen >= begins for one in shown)):
        between = " to ".join(format_local_time(hour * HOUR) for hour in hours)
        raise GpuledgerError(
            f"{target} is in {history.file}, but not from {between}: omit --since and --until, or set others"
        )
    return Explanation(str(target), intervals, shown, lost, held, row, by)


def _report_row(report: UsageReport, target: ExplainTarget) -> ReportRow | None:
    """The target's row in the report; None if it has none. Every report has the Gpus' own accounts."""
    lines = report.gpu_accounts if target.kind == ACCOUNT else report.lines
    return next((ReportRow(report, line) for line in lines if line.key == target.key), None)


def _lost(sessions: Sequence[SessionLine], intervals: Sequence[Interval]) -> LostDetail:
    measured = sum(one.millijoules for one in intervals if one.method == MEASURED)
    return LostDetail(
        sum(one.measured + one.apportioned for one in sessions) - sum(one.millijoules for one in intervals),
        sum(one.measured for one in sessions) - measured,
        sum(one.high for one in sessions) - sum(one.high or 0 for one in intervals),
    )


def _rows_of(history: History, numbers: Iterable[int], query: str, *values: object) -> Cursor:
    """The rows of a query that refers to the numbers as the table `wanted`."""
    connection = history.connection
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (number INTEGER PRIMARY KEY)")
    connection.execute("DELETE FROM wanted")
    connection.executemany("INSERT INTO wanted VALUES (?)", [(number,) for number in numbers])
    return connection.execute(query, values)


def _sessions(history: History, numbers: set[int]) -> list[SessionLine]:
    query = (
        "SELECT * FROM sessions JOIN usage USING (number) WHERE number IN wanted ORDER BY first_seen, number"
    )
    return [_line(row, history) for row in _rows_of(history, numbers, query)]


def _allocations(history: History, found: Found) -> list[AllocationLine]:
    query = "SELECT number, device, begins, ends FROM handovers WHERE number IN wanted"
    lines = []
    for number, device, begins, ends in _rows_of(history, found.allocations, query).fetchall():
        bits = history.connection.execute("SELECT bits FROM unused WHERE handover = ?", (number,))
        unused = sum(minute.bit_count() for (minute,) in bits)
        lines.append(AllocationLine(*_place(history, device), begins, ends, unused))
    return lines


def _place(history: History, uuid: str) -> tuple[str, str]:
    """Index and uuid of a Device's Gpu as one text, and `GI_CI` of an Instance."""
    device = history.devices.get(uuid)
    if device is None:
        return uuid, ""
    return f"{device.gpu.index} {device.gpu.uuid}", device.instance


class _IntervalReader:
    """Reads the intervals in which the target had a share."""

    def __init__(self, history: History, target: ExplainTarget, found: Found) -> None:
        self._history = history
        self._found = found
        self._account = target.key[0] if target.kind == ACCOUNT else ""

    def detailed(self, since: int, until: int) -> Iterator[Interval]:
        own_sessions = self._found.sessions
        for uuid, method, begins, ends, *own, numbers in self._history.spans(since, until):
            accounts = dict(zip((IDLE, UNATTRIBUTED, UNOBSERVED), own, strict=True))
            if accounts[self._account] if self._account else not own_sessions.isdisjoint(numbers):
                shares = [
                    (self._history.session(number), number in own_sessions, millijoules)
                    for number, millijoules in numbers.items()
                ]
                yield self._interval(uuid, method, (begins, ends), accounts, shares)

    def folded(self, since: int, until: int) -> Iterator[Interval]:
        condition = f"{self._account} > 0" if self._account else _OF_PARTIES
        parties = self._found.parties
        found = _rows_of(self._history, parties, _HOURS.format(condition), since, until)
        for (_, uuid, method, hour, *own), rows in groupby(found, key=lambda row: row[:7]):
            accounts = dict(zip((IDLE, UNATTRIBUTED, UNOBSERVED), own, strict=True))
            shares = [
                (self._history.party(party), party in parties, millijoules)
                for *_, party, millijoules in rows
                if party is not None
            ]
            times = (float(hour * HOUR), float((hour + 1) * HOUR))
            yield self._interval(uuid, method, times, accounts, shares, exact=False)

    def _interval(
        self,
        uuid: str,
        method: str,
        times: tuple[float, float],
        accounts: dict[str, int],
        shares: Iterable[tuple[Party, bool, int]],
        *,
        exact: bool = True,
    ) -> Interval:
        # Unobserved energy is part of no bound of a row.
        own, everything = accounts.get(self._account, 0), accounts[IDLE] + accounts[UNATTRIBUTED]
        if self._account == UNOBSERVED:
            everything += own
        others: dict[str, int] = defaultdict(int)
        instances = set()
        for party, is_own, millijoules in shares:
            everything += millijoules
            if is_own:
                own += millijoules
                instances.add(_place(self._history, party.device)[1])
            else:
                others[party_name(party)] += millijoules
        return Interval(
            *times,
            _place(self._history, uuid)[0],
            ", ".join(sorted(instances - {""})),
            self._account or method,
            own,
            everything,
            accounts[IDLE],
            accounts[UNATTRIBUTED],
            tuple(OtherShare(*other) for other in sorted(others.items())),
            exact,
        )


def party_name(party: Party) -> str:
    """A short display name: the owner, else the command."""
    owner = party.owner
    if owner.pod:
        return f"{owner.namespace}/{owner.pod}"
    name = owner.job or owner.container or owner.unit or owner.user
    return f"{owner.kind} {name}" if name else party.command or "unknown"


def _line(row: Sequence[Any], history: History) -> SessionLine:
    one = session_from_row(tuple(row), history.devices)
    ended, exit_seen = row[SESSION_COLUMNS + 1 : SESSION_COLUMNS + 3]
    return SessionLine(
        one.process.pid,
        one.process.command,
        *_place(history, one.process.device.uuid),
        one.first_seen,
        one.last_seen,
        ended is not None,
        bool(exit_seen),
        one.held_seconds,
        one.measured,
        one.apportioned,
        one.high,
    )

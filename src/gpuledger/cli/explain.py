"""`gpuledger explain`: itemize a row of a report, or a process, interval by interval."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from heapq import nlargest
from typing import Any, TypeVar

from gpuledger.app.flags import parse_command
from gpuledger.app.ledger_file import current_time_of, open_history
from gpuledger.config.node import EXPLAIN_GROUPS
from gpuledger.config.report import ExplainSettings
from gpuledger.ledger.report.explain import (
    AllocationLine,
    Explanation,
    Interval,
    SessionLine,
    merge_intervals,
)
from gpuledger.ledger.report.formats import format_time, report_columns, row_as_json
from gpuledger.ledger.report.moments import parse_period
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, Prices
from gpuledger.ledger.store.explain_query import explain_energy
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.settings import build_settings
from gpuledger.model.text import escape_to_one_line

_ABOUT = """\
Itemize a row of `gpuledger report`: the row, and its intervals in order of time, with whom the GPU was
shared, by which method the energy was split, and why it was not measured.

WHO is KIND:NAME, with any KIND of `gpuledger report --by KIND`: user:dan, namespace:ml, pod:ml/train-0,
gpu:0, label:team=blue. NAME may omit the first parts of the row's name; - is the row without a name.
pid:NUMBER is a process; idle, unattributed and unobserved are the GPUs' own accounts. Without KIND,
all kinds are searched.
"""
_EXAMPLES = """\
  gpuledger explain ml/train-0                            everything in the ledger
  gpuledger explain ml/train-0 --since 2026-11-01 --until 2026-12-01
  gpuledger explain user:dan --since month --price.kwh 0.32
  gpuledger explain idle --since yesterday --limit 0      all intervals, not only those with the most energy
  gpuledger explain pid:4711 --format json | jq '.intervals[] | select(.method != "measured")'

The sum equals the row of `gpuledger report --by KIND` over the same period, to the millijoule.
"""
_NO_DATA = "no data: the GPU has no energy counter and no power reading, or was not measured at that time"
# Smaller bills are shown in joules, larger ones in kWh.
_SMALL = MILLIJOULES_PER_KWH // 10
T = TypeVar("T")


def run(arguments: Sequence[str]) -> int:
    """Print the explanation."""
    who = "WHO: KIND:NAME of a report's row, a name, or a process id"
    given, read = parse_command("explain", _ABOUT, _EXAMPLES, EXPLAIN_GROUPS, arguments, argument=who)
    values = read()
    settings = build_settings(ExplainSettings, values)
    with open_history(values) as history:
        since, until = parse_period(settings.since or "1970-01-02", settings.until, current_time_of(history))
        if settings.until == "now":
            # After the clock was set back, include the hours booked before, as report does.
            until = max(until, history.end_hour * HOUR)
        prices = build_settings(Prices, values)
        found = explain_energy(history, given.arguments[0], since // HOUR, until // HOUR, prices)
    is_json = settings.format == "json"
    sys.stdout.write(explanation_json(found) if is_json else explanation_text(found, settings.limit))
    return 0


def explanation_json(found: Explanation) -> str:
    """All intervals, not merged, as JSON; times in ISO 8601."""
    document = {
        "version": 1,
        "who": found.who,
        "by": found.by or None,
        "row": found.row and row_as_json(*found.row),
        "millijoules": found.millijoules if found.metered else None,
        "low_millijoules": found.measured if found.metered else None,
        "high_millijoules": found.high if found.metered else None,
        "millijoules_without_detail": found.lost.millijoules,
        "sessions": [_session(one) for one in found.sessions],
        "handovers": [_with_times(one._asdict(), "begins", "ends") for one in found.allocations],
        "intervals": [_interval(interval) for interval in found.intervals],
    }
    return json.dumps(document, indent=2) + "\n"


def _with_times(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return fields | {name: format_time(fields[name]) for name in names}


def _session(session: SessionLine) -> dict[str, Any]:
    fields = _with_times(session._asdict(), "first_seen", "last_seen")
    unknown = () if session.metered else ("measured", "apportioned", "high")
    return fields | dict.fromkeys(unknown)


def _interval(interval: Interval) -> dict[str, Any]:
    others = [other._asdict() for other in interval.others]
    fields = _with_times(asdict(interval), "begins", "ends") | {"why": interval.why, "others": others}
    return fields | {"high_millijoules": interval.high}


def explanation_text(found: Explanation, limit: int = 0) -> str:
    """A text for people: the total, the report's row, the Sessions, then the intervals.

    `limit` is the number of Sessions, of allocations and of intervals; 0 shows all.
    """
    unit = _Unit(found.millijoules)
    lines = [
        f"{escape_to_one_line(found.who)}: {_bill(found, unit) if found.metered else _NO_DATA}",
        *_row_text(found),
        "",
    ]
    if found.sessions or found.allocations:
        sessions = _largest(found.sessions, limit, lambda one: one.measured + one.apportioned)
        allocations = _largest(found.allocations, limit, lambda one: one.ends - one.begins)
        lines += [
            "sessions, each over its whole lifetime:",
            *(_session_text(session, unit) for session in sessions),
            *_omitted(len(found.sessions) - len(sessions), "sessions"),
            *(_allocation_text(allocation) for allocation in allocations),
            *_omitted(len(found.allocations) - len(allocations), "allocations"),
            "",
        ]
    return "\n".join(lines + (_intervals_text(found, unit, limit) if found.metered else []))


def _bill(found: Explanation, unit: _Unit) -> str:
    bill = unit.text(found.millijoules)
    if found.measured is not None and found.high is not None:
        bill += f", of which {unit.text(found.measured)} measured; at most {unit.text(found.high)}"
    return bill


def _row_text(found: Explanation) -> list[str]:
    """The columns of the report's row, with the digits of the CSV, and its exact amounts."""
    if not found.by:
        return []
    command = f"`gpuledger report --by {found.by}`"
    if found.row is None:
        return [f"  no row in {command}: processes that only serve others own no time and no energy"]
    values = row_as_json(*found.row)
    columns = (one for one in report_columns(found.row.report.prices) if one.people)
    cells = [f"{one.heading} {values[one.name]}" for one in columns if values[one.name] is not None]
    exact = [
        f"{values[name]} {unit}"
        for name, unit in (("millijoules", "mJ"), ("gpu_microseconds", "microseconds of GPU time"))
        if values[name] is not None
    ]
    return [
        f"  its row in {command}: {', '.join(cells)}",
        f"  exactly: {', '.join(exact) or 'nothing'}",
    ]


def _largest(lines: Sequence[T], limit: int, amount: Callable[[T], float]) -> Sequence[T]:
    """The lines with the largest amounts, at most `limit` (0: all), in their order."""
    if not limit or len(lines) <= limit:
        return lines
    shown = nlargest(limit, range(len(lines)), key=lambda place: (amount(lines[place]), -place))
    return [lines[place] for place in sorted(shown)]


def _omitted(count: int, what: str) -> list[str]:
    return [f"  and {count} more {what}: --limit 0 shows all"] if count else []


def _intervals_text(found: Explanation, unit: _Unit, limit: int) -> list[str]:
    merged = merge_intervals(found.intervals)
    if not merged and not found.lost.millijoules:
        return ["no interval in this range has energy", ""]
    lines = [f"intervals, and the share of the GPU's {unit.name}:"]
    shown = _largest(merged, limit, lambda one: one.millijoules)
    clues = list(dict.fromkeys(interval.why for interval in shown))
    lines += [_interval_text(interval, unit, clues.index(interval.why) + 1) for interval in shown]
    rest = sum(one.millijoules for one in merged) - sum(one.millijoules for one in shown)
    lines += _omitted(len(merged) - len(shown), f"intervals with {unit.text(rest)}")
    if found.lost.millijoules:
        without = unit.text(found.lost.millijoules)
        lines.append(f"  {without} are older than store.detail: known by hour only")
    lines += ["", *(f"({number}) {clue}" for number, clue in enumerate(clues, 1))]
    sums = " + ".join(_by_method(found, unit)) or unit.text(0)
    return [*lines, "", f"{sums} = {unit.text(found.millijoules)}", ""]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Joules for a small bill, kilowatt-hours for a large one."""

    bill: int

    @property
    def name(self) -> str:
        return "J" if self.bill < _SMALL else "kWh"

    def number(self, millijoules: int) -> str:
        if self.bill < _SMALL:
            return f"{millijoules // 1000:,}.{millijoules % 1000:03d}"
        return f"{millijoules / MILLIJOULES_PER_KWH:,.6f}"

    def text(self, millijoules: int) -> str:
        return f"{self.number(millijoules)} {self.name}"


def _by_method(found: Explanation, unit: _Unit) -> list[str]:
    methods: dict[str, int] = {}
    for interval in found.intervals:
        methods[interval.method] = methods.get(interval.method, 0) + interval.millijoules
    if found.lost.millijoules:
        methods["without detail"] = found.lost.millijoules
    return [f"{unit.text(energy)} {method}" for method, energy in sorted(methods.items())]


def _where(line: SessionLine | AllocationLine) -> str:
    return f"GPU {line.gpu}" + (f" instance {line.instance}" if line.instance else "")


def _session_text(session: SessionLine, unit: _Unit) -> str:
    end = "open" if not session.ended else "" if session.exit_seen else "exit not observed"
    held = f", {session.held_seconds / 3600:.2f} h of it idle" if session.held_seconds else ""
    booked = session.measured + session.apportioned
    when = f"{_time(session.first_seen)} to {_time(session.last_seen)}"
    return (
        f"  pid {session.pid} {escape_to_one_line(session.command) or '?'} on {_where(session)}, {when}"
        f"{held}: {unit.text(booked) if session.metered else 'no data'}{'; ' + end if end else ''}"
    )


def _allocation_text(allocation: AllocationLine) -> str:
    unused = f"; without a process there for {allocation.unused / 3600:.2f} h" if allocation.unused else ""
    return (
        f"  allocated: {_where(allocation)}, {_time(allocation.begins)} to {_time(allocation.ends)}{unused}"
    )


def _interval_text(interval: Interval, unit: _Unit, clue: int) -> str:
    gpu = interval.gpu.split(" ")[0] + (f" {interval.instance}" if interval.instance else "")
    when = (
        f"{_time(interval.begins)} to {_time(interval.ends)}"
        if interval.exact
        else f"within {_time(interval.begins)} + 1 h"
    )
    share = f"{unit.number(interval.millijoules):>14} of {unit.number(interval.gpu_millijoules):>14}"
    names = ", ".join(f"{escape_to_one_line(name)} {unit.number(energy)}" for name, energy in interval.others)
    own = [("idle", interval.idle), ("unattributed", interval.unattributed)]
    rest = ", ".join(
        f"{account} {unit.number(energy)}" for account, energy in own if energy and account != interval.method
    )
    shared = "; ".join(part for part in (names and f"with {names}", rest) if part)
    return f"  {when}  GPU {gpu:<6} {interval.method:<9} {share}  ({clue}) {shared}".rstrip()


def _time(unix: float) -> str:
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M:%S")

"""`gpuledger explain`: itemize the energy of a pod, a process or a job, interval by interval."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

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
from gpuledger.ledger.report.formats import format_time
from gpuledger.ledger.report.moments import parse_period
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.ledger.store.explain_query import explain_energy
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.settings import build_settings
from gpuledger.model.text import escape_to_one_line

_ABOUT = """\
Itemize the energy bill of a pod, a process or a job: its intervals in order of time, with whom the GPU was
shared, by which method the energy was split, and why it was not measured.

WHO is a pod (NAMESPACE/POD or POD), a process id, or a job (the id of Slurm or another batch system, or a
Kubernetes Job). For a number that may be both, use pid:NUMBER or job:NUMBER.
"""
_EXAMPLES = """\
  gpuledger explain ml/train-0                            everything in the ledger
  gpuledger explain ml/train-0 --since 2026-11-01 --until 2026-12-01
  gpuledger explain pid:4711 --format json | jq '.intervals[] | select(.method != "measured")'

The sum equals the row of `gpuledger report --by pod` over the same period, to the millijoule.
"""
# Smaller bills are shown in joules, larger ones in kWh.
_SMALL = MILLIJOULES_PER_KWH // 10


def run(arguments: Sequence[str]) -> int:
    """Print the explanation."""
    who = "WHO: a pod, a process id or a job"
    given, read = parse_command("explain", _ABOUT, _EXAMPLES, EXPLAIN_GROUPS, arguments, argument=who)
    values = read()
    settings = build_settings(ExplainSettings, values)
    with open_history(values) as history:
        since, until = parse_period(settings.since or "1970-01-02", settings.until, current_time_of(history))
        found = explain_energy(history, given.arguments[0], since // HOUR, until // HOUR)
    sys.stdout.write(explanation_json(found) if settings.format == "json" else explanation_text(found))
    return 0


def explanation_json(found: Explanation) -> str:
    """All intervals, not merged, as JSON; times in ISO 8601."""
    document = {
        "version": 1,
        "who": found.who,
        "millijoules": found.millijoules,
        "low_millijoules": found.measured,
        "high_millijoules": found.high,
        "millijoules_without_detail": found.lost.millijoules,
        "sessions": [_with_times(one._asdict(), "first_seen", "last_seen") for one in found.sessions],
        "handovers": [_with_times(one._asdict(), "begins", "ends") for one in found.allocations],
        "intervals": [_interval(interval) for interval in found.intervals],
    }
    return json.dumps(document, indent=2) + "\n"


def _with_times(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return fields | {name: format_time(fields[name]) for name in names}


def _interval(interval: Interval) -> dict[str, Any]:
    others = [other._asdict() for other in interval.others]
    fields = _with_times(asdict(interval), "begins", "ends") | {"why": interval.why, "others": others}
    return fields | {"high_millijoules": interval.high}


def explanation_text(found: Explanation) -> str:
    """A text for people: the total, the Sessions, then the intervals."""
    unit = _Unit(found.millijoules)
    lines = [
        f"{escape_to_one_line(found.who)}: {unit.text(found.millijoules)}, of which "
        f"{unit.text(found.measured)} measured; at most {unit.text(found.high)}",
        "",
        "sessions, each over its whole lifetime:",
        *(_session_text(session, unit) for session in found.sessions),
        *(_allocation_text(allocation) for allocation in found.allocations),
        "",
        f"intervals, and the share of the GPU's {unit.name}:",
    ]
    shown = merge_intervals(found.intervals)
    clues = list(dict.fromkeys(interval.why for interval in shown))
    lines += [_interval_text(interval, unit, clues.index(interval.why) + 1) for interval in shown]
    if found.lost.millijoules:
        without = unit.text(found.lost.millijoules)
        lines.append(f"  {without} are older than store.detail: known by hour only")
    lines += ["", *(f"({number}) {clue}" for number, clue in enumerate(clues, 1))]
    sums = " + ".join(_by_method(found, unit)) or unit.text(0)
    lines += ["", f"{sums} = {unit.text(found.millijoules)}", ""]
    return "\n".join(lines)


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
        f"{held}: {unit.text(booked)}{'; ' + end if end else ''}"
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
    rest = ", ".join(f"{account} {unit.number(energy)}" for account, energy in own if energy)
    shared = "; ".join(part for part in (names and f"with {names}", rest) if part)
    return f"  {when}  GPU {gpu:<6} {interval.method:<9} {share}  ({clue}) {shared}".rstrip()


def _time(unix: float) -> str:
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M:%S")

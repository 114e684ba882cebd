"""`gpuledger explain`: every joule of a pod, a process or a job; the answer to a disputed bill."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from os import environ

from gpuledger.app.books import now_in, open_history
from gpuledger.app.flags import parse, parser
from gpuledger.config.assemble import assemble
from gpuledger.config.node import EVERYTHING
from gpuledger.config.report import ExplainSettings
from gpuledger.ledger.report.explain import Explanation, HandoverLine, Interval, SessionLine, merged
from gpuledger.ledger.report.formats import iso
from gpuledger.ledger.report.moments import period
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.ledger.settings import StoreSettings
from gpuledger.ledger.store.evidence import explain
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build
from gpuledger.model.text import in_one_line

_ABOUT = """\
Why a bill is what it is: the intervals that make it, in order of time; with whom the GPU was shared, by which
method its energy was split, and why it was not measured.

WHO is a pod (NAMESPACE/POD or POD), a process id, or a job (Slurm's or another batch system's id, or a
Kubernetes Job). Where a number may be both, say pid:NUMBER or job:NUMBER.
"""
_EXAMPLES = """\
  gpuledger explain ml/train-0                            all that the books have
  gpuledger explain ml/train-0 --since 2026-11-01 --until 2026-12-01
  gpuledger explain pid:4711 --format json | jq '.intervals[] | select(.method != "measured")'

Its sum is the row of `gpuledger report --by pod` over the same time, to the millijoule.
"""
# Less than this is told in joules.
_SMALL = MILLIJOULES_PER_KWH // 10


GROUPS: dict[str, type] = {"the explanation": ExplainSettings, "the books": StoreSettings}


def run(arguments: Sequence[str]) -> int:
    """Print the explanation."""
    made = parser("explain", _ABOUT, _EXAMPLES, GROUPS)
    made.usage = "gpuledger explain WHO [FLAGS]"
    given = parse(made, GROUPS.values(), arguments, environ)
    if len(given.words) != 1:
        raise UsageError("explain wants one WHO: a pod, a process id or a job; see gpuledger explain --help")
    values = assemble(GROUPS.values(), given.flags, environ, given.config, EVERYTHING)
    settings = build(ExplainSettings, values)
    with open_history(values) as history:
        since, until = period(settings.since or "1970-01-02", settings.until, now_in(history))
        found = explain(history, given.words[0], since // HOUR, until // HOUR)
    sys.stdout.write(as_json(found) if settings.format == "json" else as_text(found))
    return 0


def as_json(found: Explanation) -> str:
    """Every interval, not merged; times in ISO 8601."""
    told = {
        "version": 1,
        "who": found.who,
        "millijoules": found.millijoules,
        "low_millijoules": found.measured,
        "high_millijoules": found.high,
        "millijoules_without_detail": found.lost.millijoules,
        "sessions": [_session(one) for one in found.sessions],
        "handovers": [
            {**one._asdict(), "begins": iso(one.begins), "ends": iso(one.ends)} for one in found.handovers
        ],
        "intervals": [_interval(one) for one in found.intervals],
    }
    return json.dumps(told, indent=2) + "\n"


def _session(one: SessionLine) -> dict[str, object]:
    return {**one._asdict(), "first_seen": iso(one.first_seen), "last_seen": iso(one.last_seen)}


def _interval(one: Interval) -> dict[str, object]:
    told = asdict(one) | {"begins": iso(one.begins), "ends": iso(one.ends), "why": one.why}
    told["others"] = [other._asdict() for other in one.others]
    return told | {"high_millijoules": one.high}


def as_text(found: Explanation) -> str:
    """For a person: the bill, the Sessions, then the intervals that make it."""
    unit = _Unit(found.millijoules)
    lines = [
        f"{in_one_line(found.who)}: {unit.text(found.millijoules)}, of which "
        f"{unit.text(found.measured)} measured; at most {unit.text(found.high)}",
        "",
        "sessions, each over its whole life:",
        *(_session_text(one, unit) for one in found.sessions),
        *(_handover_text(one) for one in found.handovers),
        "",
        f"intervals, and what of the GPU's {unit.name} is its own:",
    ]
    shown = merged(found.intervals)
    clues: list[str] = []
    for one in shown:
        if one.why not in clues:
            clues.append(one.why)
        lines += [_interval_text(one, unit, clues.index(one.why) + 1)]
    if found.lost.millijoules:
        without = unit.text(found.lost.millijoules)
        lines.append(f"  {without} are older than store.detail: the hours of its owner have them")
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
    for one in found.intervals:
        methods[one.method] = methods.get(one.method, 0) + one.millijoules
    if found.lost.millijoules:
        methods["without detail"] = found.lost.millijoules
    return [f"{unit.text(told)} {method}" for method, told in sorted(methods.items())]


def _where(one: SessionLine | HandoverLine) -> str:
    return f"GPU {one.gpu}" + (f" instance {one.instance}" if one.instance else "")


def _session_text(one: SessionLine, unit: _Unit) -> str:
    end = "open" if not one.ended else "" if one.exit_seen else "gone when next looked"
    held = f", {one.held_seconds / 3600:.2f} h of it idle" if one.held_seconds else ""
    booked = one.measured + one.apportioned
    when = f"{_time(one.first_seen)} to {_time(one.last_seen)}"
    return (
        f"  pid {one.pid} {in_one_line(one.command) or '?'} on {_where(one)}, {when}"
        f"{held}: {unit.text(booked)}{'; ' + end if end else ''}"
    )


def _handover_text(one: HandoverLine) -> str:
    unused = f"; nothing of it ran there for {one.unused / 3600:.2f} h" if one.unused else ""
    return f"  in its hands: {_where(one)}, {_time(one.begins)} to {_time(one.ends)}{unused}"


def _interval_text(one: Interval, unit: _Unit, clue: int) -> str:
    gpu = one.gpu.split(" ")[0] + (f" {one.instance}" if one.instance else "")
    when = f"{_time(one.begins)} to {_time(one.ends)}" if one.exact else f"within {_time(one.begins)} + 1 h"
    share = f"{unit.number(one.millijoules):>14} of {unit.number(one.gpu_millijoules):>14}"
    names = ", ".join(f"{in_one_line(name)} {unit.number(told)}" for name, told in one.others)
    own = [("idle", one.idle), ("unattributed", one.unattributed)]
    rest = ", ".join(f"{account} {unit.number(told)}" for account, told in own if told)
    shared = "; ".join(part for part in (names and f"with {names}", rest) if part)
    return f"  {when}  GPU {gpu:<6} {one.method:<9} {share}  ({clue}) {shared}".rstrip()


def _time(unix: float) -> str:
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M:%S")

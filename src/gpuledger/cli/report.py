"""`gpuledger report`: who used the GPUs, for how long, and what it cost."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpuledger.app.books import now_in, open_history
from gpuledger.app.flags import begin
from gpuledger.app.fleet import from_prometheus
from gpuledger.app.prometheus_api import Prometheus
from gpuledger.config.report import ReportSettings
from gpuledger.ledger.report.focus import as_focus
from gpuledger.ledger.report.formats import Column, as_csv, as_json, shown_columns
from gpuledger.ledger.report.grouping import NODE
from gpuledger.ledger.report.moments import period
from gpuledger.ledger.report.report import Line, Report, together
from gpuledger.ledger.report.settings import FleetSettings, Prices
from gpuledger.ledger.settings import StoreSettings
from gpuledger.ledger.store.history import report_of
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build
from gpuledger.model.text import in_one_line, is_utf8

_BAR = 16
_WIDEST = 48
_OWN = {
    "idle": "idle: nobody was resident",
    "unattributed": "unattributed: whose is not known",
    "unobserved": "unobserved: nobody looked",
    "unseen": "unseen: Prometheus did not look",
}


def table(report: Report, top: int, *, plain: bool = False) -> str:
    """The whole text. `top` rows are shown one by one (0: all), the rest as one; `plain` is ASCII alone."""
    lines = list(report.lines)
    if top and len(lines) > top + 1:
        rest = lines[top:]
        lines = [*lines[:top], together(rest, (f"{len(rest)} others",))]
    every = [*lines, *(line for line in report.own if line.millijoules)]
    told = shown_columns(report)
    names = [_name(line, report) for line in every]
    bars = _bars(every, plain=plain)
    head = [_title(report), *(column.heading for column in told), ""]
    body = _cells(names, every, told, bars)
    foot = _cells(["total"], [report.total], told, [""])
    widths = [max(len(row[place]) for row in (head, *body, *foot)) for place in range(len(head))]
    rule = ("-" if plain else "─") * (sum(widths) + 2 * (len(widths) - 1))
    rows = [_row(head, widths), rule, *(_row(row, widths) for row in body), rule, _row(foot[0], widths)]
    whole = "\n".join([_heading(report), "", *rows, "", *_notes(report, told, plain=plain), ""])
    return whole.replace("±", "+/-") if plain else whole


def _title(report: Report) -> str:
    return "/".join(report.grouping.columns) if report.grouping.name != "gpu" else "GPU"


def _name(line: Line, report: Report) -> str:
    if line.account != "process":
        return _OWN[line.account]
    words = [in_one_line(word) for word in line.key if word]
    if not words or words == ["unknown"]:
        return f"(no {report.grouping.columns[-1]} known)"
    if report.grouping.name == "owner" and len(words) == 1:
        return f"({words[0]} without a name)"
    if report.grouping.name == "gpu":
        uuid, index, model = map(in_one_line, line.key)
        return f"{index} {model} {uuid[:12]}"
    text = "/".join(words)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _cells(
    names: Sequence[str], lines: Sequence[Line], told: Sequence[Column], bars: Sequence[str]
) -> list[list[str]]:
    return [
        [name, *(_text(column, line) for column in told), bar]
        for name, line, bar in zip(names, lines, bars, strict=True)
    ]


def _text(column: Column, line: Line) -> str:
    """Each number as near as its digits go: whoever must add them up takes the CSV."""
    value, digits = column.value(line), column.shown
    return "-" if value is None else f"{round(value * 10**digits) / Decimal(10**digits):,.{digits}f}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *middle, last = cells
    parts = [first.ljust(widths[0])]
    parts += [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=False)]
    return "  ".join([*parts, last]).rstrip()


def _bars(lines: Sequence[Line], *, plain: bool) -> list[str]:
    """Energy, the most as the longest: what was measured solid, the rest shaded."""
    most = max((line.millijoules for line in lines), default=0)
    solid, shaded = _signs(plain=plain)
    bars = []
    for line in lines:
        length = round(_BAR * line.millijoules / most) if most else 0
        measured = round(length * line.measured / line.millijoules) if line.millijoules else 0
        bars.append(solid * measured + shaded * (length - measured))
    return bars


def _signs(*, plain: bool) -> tuple[str, str]:
    """What bars are made of: for what was measured, and for what was apportioned."""
    return ("#", "=") if plain else ("█", "▒")


def _heading(report: Report) -> str:
    period = report.period
    begins, ends = (_local(unix) for unix in (period.since, min(period.until, period.last)))
    count = len(report.gpus)
    gpus = f"{count} GPU{'' if count == 1 else 's'}"
    return f"{begins} to {ends}, {gpus}, by {report.grouping.name}"


def _local(unix: float) -> str:
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M %z")


def _notes(report: Report, told: Sequence[Column], *, plain: bool) -> list[str]:
    notes = [*([] if report.scraped else _hours(report)), *report.notes]
    solid, shaded = _signs(plain=plain)
    if report.scraped:
        notes.append(f"{solid} measured; {shaded} apportioned by activity, slices or equally.")
    if any(column.name == "high_kwh" for column in told):
        notes.append(
            f"{solid} measured: alone on the GPU, and the least that it can be; {shaded} apportioned by "
            "activity, slices or equally; at most: the bound that holds whatever the split."
        )
    prices = report.prices
    if prices.pue is not None:
        notes.append(f"Cost and CO2 are of the building's energy: times {prices.pue} (pue).")
    period = report.period
    if period.first > period.since and not report.scraped:
        notes.append(f"The books begin at {_local(period.first)}.")
    if period.until > period.last:
        notes.append("The last hour is not over.")
    return notes


def _hours(report: Report) -> list[str]:
    if report.occupied is None:
        return []
    observed, occupied = (f"{float(seconds / 3600):,.2f}" for seconds in (report.observed, report.occupied))
    notes = [f"GPU-hours: {observed} observed, {occupied} with somebody on the GPU."]
    sums = sum((line.resident or 0 for line in report.lines), 0)
    if sums > report.occupied:
        shared = float((sums - report.occupied) / 3600)
        notes.append(f"A shared GPU counts for each who was on it: {shared:,.2f} hours more than once.")
    return notes


_ABOUT = """\
Who used the GPUs, for how long, and what it cost: from the books that `gpuledger serve` keeps on this
machine, or for a whole fleet from the Prometheus that scrapes it.

Rows sum to the GPUs' own energy counters: idle, unattributed and unobserved energy have rows of their own.
Times are exact at full hours: --since is rounded down to one, --until up.
"""
_EXAMPLES = """\
the last week:
  gpuledger report                                   by owner: pods, jobs, containers, users
  gpuledger report --by namespace --since month      this month's bill of each team
  gpuledger report --by label:team --since 30d       by a pod label (see kubernetes.labels)

for a spreadsheet, a program, a FinOps tool:
  gpuledger report --since 2026-11-01 --until 2026-12-01 --format csv > november.csv
  gpuledger report --format json | jq .total
  gpuledger report --price.kwh 0.32 --price.currency EUR --format focus

for a fleet, with the bound of what scraped counters cannot tell:
  gpuledger report --prometheus http://prometheus:9090 --by namespace --since 30d
  gpuledger report --prometheus https://metrics.example.com/prometheus --by node \\
      --prometheus.header "Authorization: Bearer $TOKEN" --prometheus.match 'cluster="a"'

without a GPU:
  gpuledger serve --source simulator --state-dir /tmp/books &
  gpuledger report --state-dir /tmp/books

who disputes a row asks `gpuledger explain`.
"""


GROUPS: dict[str, type] = {
    "the report": ReportSettings,
    "a fleet": FleetSettings,
    "prices": Prices,
    "the books": StoreSettings,
}


def run(arguments: Sequence[str]) -> int:
    """Print the report."""
    given, read = begin("report", _ABOUT, _EXAMPLES, GROUPS, arguments)
    values = read()
    settings = build(ReportSettings, values)
    fleet = build(FleetSettings, values)
    if fleet.url and "state_dir" in given.flags and "prometheus.url" in given.flags:
        raise UsageError("--prometheus and --state-dir: which of them is to be asked?")
    if fleet.url and "state_dir" not in given.flags:
        found, account = from_fleet(settings, fleet, values), Prometheus(fleet.url).host
    else:
        found, account = from_books(settings, values), socket.gethostname()
    sys.stdout.write(written(found, settings, account))
    return 0


def from_fleet(settings: ReportSettings, fleet: FleetSettings, values: Mapping[str, Any]) -> Report:
    """The report out of a Prometheus. Raises GpuledgerError."""
    now = time.time()
    between = period(settings.since, settings.until, now)
    with Progress() as progress:
        return from_prometheus(
            fleet,
            settings.by,
            build(Prices, values),
            between,
            now,
            progress.show,
            lambda text: print(text, file=sys.stderr),  # noqa: T201  (as the books' own warning)
        )


def from_books(settings: ReportSettings, values: Mapping[str, Any]) -> Report:
    """The report out of this machine's books. Raises GpuledgerError."""
    if settings.by == NODE:
        raise UsageError("--by node wants --prometheus: books are of one node")
    with open_history(values) as history, Progress() as progress:
        since, until = period(settings.since, settings.until, now_in(history))
        if settings.until == "now":
            # The clock may have been set back: what was booked before is not of tomorrow.
            until = max(until, history.end_hour * HOUR)
        found = report_of(history, settings.by, build(Prices, values), (since, until), progress.show)
    if settings.format != "table":
        for note in found.notes:
            sys.stderr.write(f"{note}\n")
    return found


def written(found: Report, settings: ReportSettings, account: str) -> str:
    """The report in the shape that was asked for; `account` is whose bill it is, as FOCUS wants to know."""
    if settings.format == "csv":
        return as_csv(found)
    if settings.format == "json":
        return json.dumps(as_json(found), indent=2) + "\n"
    if settings.format == "focus":
        return as_focus(found, account)
    return table(found, settings.top, plain=not is_utf8(sys.stdout.encoding))


class Progress:
    """How far long work has come, on a terminal's stderr; nothing where it is soon done or nobody looks."""

    def __init__(self, after: float = 1.0) -> None:
        self._due = time.monotonic() + after
        self._shown = False
        self._looking = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def show(self, what: str, done: float) -> None:
        """`done` of it, from 0 to 1."""
        if self._looking and time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.2
            self._shown = True
            sys.stderr.write(f"\rreading {what}: {done:4.0%} ")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\033[K")

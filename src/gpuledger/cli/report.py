"""`gpuledger report`: report GPU usage, energy and cost by owner, namespace, user, label, ..."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from gpuledger.app.flags import parse_command
from gpuledger.app.fleet_queries import report_from_prometheus
from gpuledger.app.ledger_file import current_time_of, open_history
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.config.node import REPORT_GROUPS
from gpuledger.config.report import ReportSettings
from gpuledger.ledger.report.focus import as_focus
from gpuledger.ledger.report.formats import ReportColumn, as_csv, as_json, shown_columns
from gpuledger.ledger.report.grouping import NODE, find_grouping
from gpuledger.ledger.report.moments import format_local_time, parse_period
from gpuledger.ledger.report.settings import FleetSettings, Prices
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport, sum_lines
from gpuledger.ledger.store.history import Progress, build_report
from gpuledger.ledger.store.watched_range import require_watched_range
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.model.text import escape_to_one_line, is_utf8

_BAR = 16
_WIDEST = 48
_OWN = {
    "idle": "idle: no process on the GPU",
    "unattributed": "unattributed: owner not known",
    "unobserved": "unobserved: gpuledger not reading",
    "unseen": "unseen: Prometheus not scraping",
}


def report_table(report: UsageReport, top: int, *, plain: bool = False) -> str:
    """The report as text: `top` rows (0: all), and one row for the rest; `plain` is ASCII only."""
    lines = list(report.lines)
    if top and len(lines) > top + 1:
        rest = lines[top:]
        lines = [*lines[:top], sum_lines(rest, (f"{len(rest)} others",))]
    every = [*lines, *(line for line in report.gpu_accounts if line.millijoules)]
    columns = shown_columns(report)
    names = [_name(line, report) for line in every]
    bars = _bars(every, plain=plain)
    head = [_title(report), *(column.heading for column in columns), ""]
    body = _cells(names, every, columns, bars)
    foot = _cells(["total"], [report.total], columns, [""])
    widths = [max(len(row[place]) for row in (head, *body, *foot)) for place in range(len(head))]
    rule = ("-" if plain else "─") * (sum(widths) + 2 * (len(widths) - 1))
    rows = [_row(head, widths), rule, *(_row(row, widths) for row in body), rule, _row(foot[0], widths)]
    whole = "\n".join([_heading(report), "", *rows, "", *_notes(report, columns, plain=plain), ""])
    return whole.replace("±", "+/-") if plain else whole


def _title(report: UsageReport) -> str:
    return "/".join(report.grouping.columns) if report.grouping.name != "gpu" else "GPU"


def _name(line: ReportLine, report: UsageReport) -> str:
    if line.account != "process":
        return _OWN[line.account]
    words = [escape_to_one_line(word) for word in line.key if word]
    if not words or words == ["unknown"]:
        return f"(no {report.grouping.columns[-1]} known)"
    if report.grouping.name == "owner" and len(words) == 1:
        return f"({words[0]} without a name)"
    if report.grouping.name == "gpu":
        uuid, index, model = map(escape_to_one_line, line.key)
        return f"{index} {model} {uuid[:12]}"
    text = "/".join(words)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _cells(
    names: Sequence[str], lines: Sequence[ReportLine], columns: Sequence[ReportColumn], bars: Sequence[str]
) -> list[list[str]]:
    return [
        [name, *(_text(column, line) for column in columns), bar]
        for name, line, bar in zip(names, lines, bars, strict=True)
    ]


def _text(column: ReportColumn, line: ReportLine) -> str:
    """A number, rounded to the digits of its column; the CSV has exact values."""
    value, digits = column.value(line), column.shown
    if value is None:
        return "no data" if column.metered and not line.metered else "-"
    # A sum that leaves out energy that was not measured.
    more = "+" if column.metered and line.unmetered else ""
    return f"{round(value * 10**digits) / Decimal(10**digits):,.{digits}f}{more}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *middle, last = cells
    parts = [first.ljust(widths[0])]
    parts += [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=False)]
    return "  ".join([*parts, last]).rstrip()


def _bars(lines: Sequence[ReportLine], *, plain: bool) -> list[str]:
    """Bars proportional to energy: the measured part solid, the apportioned part shaded."""
    most = max((line.millijoules for line in lines), default=0)
    solid, shaded = _signs(plain=plain)
    bars = []
    for line in lines:
        length = round(_BAR * line.millijoules / most) if most else 0
        measured = round(length * line.measured / line.millijoules) if line.millijoules else 0
        bars.append(solid * measured + shaded * (length - measured))
    return bars


def _signs(*, plain: bool) -> tuple[str, str]:
    """The characters of bars: for measured and for apportioned energy."""
    return ("#", "=") if plain else ("█", "▒")


def _heading(report: UsageReport) -> str:
    period = report.period
    begins, ends = (format_local_time(unix) for unix in (period.since, min(period.until, period.last)))
    count = len(report.gpus)
    gpus = f"{count} GPU{'' if count == 1 else 's'}"
    return f"{begins} to {ends}, {gpus}, by {report.grouping.name}"


def _notes(report: UsageReport, columns: Sequence[ReportColumn], *, plain: bool) -> list[str]:
    notes = [*([] if report.scraped else _hours(report)), *report.notes]
    solid, shaded = _signs(plain=plain)
    if report.scraped:
        notes.append(f"{solid} measured; {shaded} apportioned by activity, slices or equally.")
    if any(column.name == "high_kwh" for column in columns):
        notes.append(
            f"{solid} measured: alone on the GPU, the lower bound; {shaded} apportioned by activity, slices "
            "or equally; at most: the upper bound, whatever the split."
        )
    if report.total.unmetered and report.total.metered:
        notes.append("+: without the energy that was not measured.")
    prices = report.prices
    if prices.pue is not None:
        notes.append(f"Cost and CO2 include the building's overhead: energy times {prices.pue} (pue).")
    period = report.period
    if period.first > period.since and not report.scraped:
        notes.append(f"The ledger begins at {format_local_time(period.first)}.")
    if period.until > period.last:
        notes.append("The last hour is not complete.")
    return notes


def _hours(report: UsageReport) -> list[str]:
    if report.occupied is None:
        return []
    observed, occupied = (f"{float(seconds / 3600):,.2f}" for seconds in (report.observed, report.occupied))
    where = " on measured GPUs" if report.total.unmetered else ""
    notes = [f"GPU-hours: {observed} observed{where}, {occupied} with a process on the GPU."]
    sums = sum((line.resident or 0 for line in report.lines), 0)
    if sums > report.occupied:
        shared = float((sums - report.occupied) / 3600)
        notes.append(
            f"A shared GPU counts for each owner on it: {shared:,.2f} hours are counted more than once."
        )
    return notes


_ABOUT = """\
Report GPU usage, energy and cost: from the ledger that `gpuledger serve` keeps on this machine, or for a
whole fleet from the Prometheus that scrapes it.

Rows sum to the energy counters of the GPUs: idle, unattributed and unobserved energy have separate rows.
Periods consist of full hours: --since is rounded down, --until is rounded up.
"""
_EXAMPLES = """\
the last week:
  gpuledger report                                   by owner: pods, jobs, containers, users
  gpuledger report --by namespace --since month      this month's cost of each namespace
  gpuledger report --by label:team --since 30d       by a pod label (see kubernetes.labels)

for a spreadsheet, a program, a FinOps tool:
  gpuledger report --since 2026-11-01 --until 2026-12-01 --format csv > november.csv
  gpuledger report --format json | jq .total
  gpuledger report --price.kwh 0.32 --price.currency EUR --format focus

for a fleet, with an error bound for energy between scrapes:
  gpuledger report --prometheus http://prometheus:9090 --by namespace --since 30d
  gpuledger report --prometheus https://metrics.example.com/prometheus --by node \\
      --prometheus.header "Authorization: Bearer $TOKEN" --prometheus.match 'cluster="a"'

without a GPU:
  gpuledger serve --source simulator --state-dir /tmp/ledger &
  gpuledger report --state-dir /tmp/ledger

`gpuledger explain` itemizes the energy of a row.
"""


def run(arguments: Sequence[str]) -> int:
    """Print the report."""
    given, read = parse_command("report", _ABOUT, _EXAMPLES, REPORT_GROUPS, arguments)
    values = read()
    settings = build_settings(ReportSettings, values)
    fleet = build_settings(FleetSettings, values)
    if fleet.url and "state_dir" in given.flags and "prometheus.url" in given.flags:
        raise UsageError("--prometheus and --state-dir exclude each other: choose one source of the report")
    if fleet.url and "state_dir" not in given.flags:
        found, account = report_from_fleet(settings, fleet, values), PrometheusClient(fleet.url).host
    else:
        found, account = report_from_ledger(settings, values), socket.gethostname()
    sys.stdout.write(format_report(found, settings, account))
    return 0


def report_from_fleet(
    settings: ReportSettings, fleet: FleetSettings, values: Mapping[str, Any]
) -> UsageReport:
    """The report from a Prometheus server. Raises GpuledgerError."""
    now = time.time()
    between = parse_period(settings.since, settings.until, now)
    with _progress() as progress:
        return report_from_prometheus(
            fleet,
            settings.by,
            build_settings(Prices, values),
            between,
            now,
            progress,
            lambda text: print(text, file=sys.stderr),  # noqa: T201  (like the warning of open_history)
        )


def report_from_ledger(settings: ReportSettings, values: Mapping[str, Any]) -> UsageReport:
    """The report from this machine's ledger. Raises GpuledgerError."""
    if settings.by == NODE:
        raise UsageError("--by node needs --prometheus: a ledger is of one node")
    with open_history(values) as history, _progress() as progress:
        since, until = parse_period(settings.since, settings.until, current_time_of(history))
        if settings.until == "now":
            # After the clock was set back, include the hours booked before.
            until = max(until, history.end_hour * HOUR)
        # An unknown grouping is reported before an empty range.
        find_grouping(settings.by, history.devices)
        require_watched_range(history, since // HOUR, until // HOUR)
        found = build_report(history, settings.by, build_settings(Prices, values), (since, until), progress)
    if settings.format != "table":
        for note in found.notes:
            sys.stderr.write(f"{note}\n")
    return found


def format_report(found: UsageReport, settings: ReportSettings, account: str) -> str:
    """The report in the requested format; `account` is the billing account id of FOCUS."""
    if settings.format == "csv":
        return as_csv(found)
    if settings.format == "json":
        return json.dumps(as_json(found), indent=2) + "\n"
    if settings.format == "focus":
        return as_focus(found, account)
    return report_table(found, settings.top, plain=not is_utf8(sys.stdout.encoding))


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show progress, from 0 to 1, on stderr if that is a terminal and the work takes longer than a second."""
    interactive, due, shown = sys.stderr.isatty(), time.monotonic() + 1.0, False

    def show(what: str, done: float) -> None:
        nonlocal due, shown
        if interactive and time.monotonic() >= due:
            due, shown = time.monotonic() + 0.2, True
            sys.stderr.write(f"\rreading {what}: {done:4.0%} ")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\r\033[K")

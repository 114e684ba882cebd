"""`gpuledger report`: report GPU usage, energy and cost by owner, namespace, user, label, ..."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuledger.app.exported_reports import current_time_of_exports, load_exports
from gpuledger.app.flags import parse_command
from gpuledger.app.ledger_file import current_time_of, is_simulated, node_of_ledger, open_history
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.statement_books import exports_report_by_terms, fleet_report_by_terms
from gpuledger.app.statement_commands import (
    HTML,
    check_statement_flags,
    verify_statement,
    write_statement,
)
from gpuledger.app.statements import SIMULATED, MadeReport
from gpuledger.config.node import REPORT_GROUPS
from gpuledger.config.report import ReportSettings, StatementSettings
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.settings import configured_time_zone
from gpuledger.ledger.report.focus import as_focus, focus_keys
from gpuledger.ledger.report.formats import as_csv, as_json
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.ranges import UTC_DAY, choose_period, parse_range
from gpuledger.ledger.report.report_table import report_table
from gpuledger.ledger.report.settings import FOCUS_FORMATS, ROW, FleetSettings, Prices, TeamSettings
from gpuledger.ledger.report.statement.content import EXPORTS, LEDGER, PROMETHEUS
from gpuledger.ledger.report.statement.terms import StatementTerms
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.settings import ExportedBooksSettings
from gpuledger.ledger.store.history import Progress
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.model.text import is_utf8

_ABOUT = """\
Report GPU usage, energy and cost: from the ledger that `gpuledger serve` keeps on this machine, or for a
whole fleet from the Prometheus that scrapes it.

Rows add up to the watched time and the energy counters of the GPUs, whatever the grouping and however the
range is cut: idle and unattributed time has separate rows, with a price. Ends of the range are moved to the
nearest quarter of an hour; history older than store.detail has full hours only.
"""
_EXAMPLES = """\
the last week:
  gpuledger report                                   by owner: pods, jobs, containers, users
  gpuledger report --by namespace --in 2026-11       November's cost of each namespace
  gpuledger report --by team,gpu --every day         each team on each GPU, day by day
  gpuledger report --basis residence                 who was on the GPUs pays, allocated or not
  gpuledger report --by label:team --since 30d       by a pod label (see kubernetes.labels)

for a spreadsheet, a program, a FinOps tool:
  gpuledger report --in 'last month' --format csv > november.csv
  gpuledger report --format json | jq .total
  gpuledger report --price.kwh 0.32 --price.currency EUR --format focus

for nodes that may no longer exist, from what `gpuledger books export` wrote on each:
  gpuledger report --books /srv/ledgers --in 2026-10 --by node,team

a bill that is kept, printed, and verified later:
  gpuledger report --by team --in 2026-10 --statement october.json --after september.json
  gpuledger report --verify october.json
  gpuledger report --verify october.json --format html > october.html

for a fleet, with an error bound for energy between scrapes:
  gpuledger report --prometheus http://prometheus:9090 --by namespace --since 30d
  gpuledger report --prometheus https://metrics.example.com/prometheus --by node \\
      --prometheus.header "Authorization: Bearer $TOKEN" --prometheus.match 'cluster="a"'

without a GPU, the books and prices of a demo:
  gpuledger demo --state-dir demo-books &
  gpuledger report --config demo-books/demo.yaml

`gpuledger explain` itemizes the GPU time, energy and cost of a row.
"""

# Flags that are never ignored.
_NEVER_EMPTY = {
    "report.statement": "a file",
    "report.verify": "a file",
    "report.after": "a file",
    "report.books": "a directory",
    "report.in": "a period",
    "report.since": "a time",
    "report.until": "a time",
    "prometheus.url": "a URL",
}


def run(arguments: Sequence[str]) -> int:
    """Print the report."""
    given, read = parse_command("report", _ABOUT, _EXAMPLES, REPORT_GROUPS, arguments, (DialectSettings,))
    _require_values(given.flags)
    values = read()
    settings = build_settings(ReportSettings, values)
    settings = replace(settings, period=choose_period(values, given.flags))
    if settings.format in FOCUS_FORMATS:
        settings = _with_focus_rows(settings, values, given.flags)
    fleet = build_settings(FleetSettings, values)
    if fleet.url and "state_dir" in given.flags and "prometheus.url" in given.flags:
        raise UsageError("--prometheus and --state-dir exclude each other: choose one source of the report")
    exported = build_settings(ExportedBooksSettings, values).folder
    if exported:
        _require_one_source(given.flags)
    statements = build_settings(StatementSettings, values)
    check_statement_flags(statements, settings, given.flags)
    if statements.verify:
        return verify_statement(statements, settings, values, given.flags, _progress())
    if exported:
        made = report_from_books(settings, exported, values)
    elif fleet.url and "state_dir" not in given.flags:
        made = report_from_fleet(settings, fleet, values)
    else:
        made = report_from_ledger(settings, values)
    if statements.file or settings.format == HTML:
        sys.stdout.write(write_statement(made, settings, statements, values))
    if settings.format != HTML:
        account = made.origin if made.source == PROMETHEUS else socket.gethostname()
        sys.stdout.write(format_report(made.report, settings, account))
    return 0


def _require_values(flags: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError for an empty value, such as that of a shell variable that is not set."""
    for key, what in _NEVER_EMPTY.items():
        if key in flags and not flags[key][-1].strip():
            name = "prometheus" if key == "prometheus.url" else key.partition(".")[2]
            raise UsageError(
                f"--{name}: expected {what}, not '{flags[key][-1]}'; is a shell variable not set?"
            )


def _require_one_source(flags: Collection[str]) -> None:
    for key, flag in (("prometheus.url", "--prometheus"), ("state_dir", "--state-dir")):
        if key in flags:
            raise UsageError(f"--books and {flag} exclude each other: choose one source of the report")


def _with_focus_rows(
    settings: ReportSettings, values: Mapping[str, Any], flags: Collection[str]
) -> ReportSettings:
    """The settings with the keys and the days of FOCUS. Raises UsageError for `--every`."""
    if "report.every" in flags:
        raise UsageError(f"--format {settings.format} has rows for each UTC day: omit --every")
    has_teams = bool(build_settings(TeamSettings, values).teams)
    return replace(settings, by=focus_keys(settings.by, has_teams=has_teams), every=UTC_DAY)


def report_from_fleet(
    settings: ReportSettings, fleet: FleetSettings, values: Mapping[str, Any]
) -> MadeReport:
    """The report from a Prometheus server. Raises GpuledgerError."""
    now, terms = time.time(), report_terms(settings, values)
    requested = parse_range(settings.since, settings.until, settings.period, now, terms.zone)
    with _progress() as progress:
        found = fleet_report_by_terms(fleet, terms, requested, now, progress)
    return MadeReport(found, requested, PROMETHEUS, PrometheusClient(fleet.url).host)


def report_from_ledger(settings: ReportSettings, values: Mapping[str, Any]) -> MadeReport:
    """The report from this machine's ledger. Raises GpuledgerError."""
    terms = report_terms(settings, values)
    with open_history(values) as history, _progress() as progress:
        node = node_of_ledger(history, values)
        now = current_time_of(history)
        requested = parse_range(settings.since, settings.until, settings.period, now, terms.zone)
        # An unknown grouping is reported before an empty range.
        grouping = find_grouping(terms.by, history.devices, teams=terms.teams, node_of=lambda _: node)
        within = resolve_watched_range(history, requested)
        found = build_report(history, grouping, terms.prices, within, progress, every=terms.every, node=node)
        origin = history.file.name
        notes = (SIMULATED,) if is_simulated(history) else ()
    _write_notes(found, settings)
    return MadeReport(found, requested, LEDGER, origin, notes)


def report_from_books(settings: ReportSettings, folder: str, values: Mapping[str, Any]) -> MadeReport:
    """The report from exported ledgers. Raises GpuledgerError."""
    exports, terms = load_exports(folder), report_terms(settings, values)
    now = current_time_of_exports(exports)
    requested = parse_range(settings.since, settings.until, settings.period, now, terms.zone)
    with _progress() as progress:
        found = exports_report_by_terms(exports, terms, requested, progress)
    _write_notes(found, settings)
    return MadeReport(found, requested, EXPORTS, Path(folder).name)


def _write_notes(found: UsageReport, settings: ReportSettings) -> None:
    """Write the notes to stderr where the output has none."""
    if settings.format not in ("table", HTML):
        for note in found.notes:
            sys.stderr.write(f"{note}\n")


def report_terms(settings: ReportSettings, values: Mapping[str, Any]) -> StatementTerms:
    """What the report follows from. In FOCUS, idle GPUs always have separate rows."""
    prices = build_settings(Prices, values)
    if settings.format in FOCUS_FORMATS:
        prices = replace(prices, idle=ROW)
    teams = build_settings(TeamSettings, values).teams
    return StatementTerms(settings.by, settings.every, prices, teams, configured_time_zone(values))


def format_report(found: UsageReport, settings: ReportSettings, account: str) -> str:
    """The report in the requested format; `account` is the billing account id of FOCUS."""
    if settings.format == "csv":
        return as_csv(found)
    if settings.format == "json":
        return json.dumps(as_json(found), indent=2) + "\n"
    if settings.format in FOCUS_FORMATS:
        return as_focus(found, settings.account or account, FOCUS_FORMATS[settings.format])
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

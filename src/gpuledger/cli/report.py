"""`gpuledger report`: report GPU usage, energy and cost by owner, namespace, user, label, ..."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuledger.app.exported_reports import current_time_of_exports, load_exports
from gpuledger.app.flag_checks import ONE_NODE, choose_period, require_once, require_words
from gpuledger.app.flags import parse_command
from gpuledger.app.ledger_commands import format_report, make_report, report_terms, with_focus_rows
from gpuledger.app.ledger_requests import REPORT_PARAMETERS
from gpuledger.app.node_requests import (
    fetch_node_answer,
    print_answer,
    request_parameters,
    with_ledger_or_node,
)
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.statement_books import exports_report_by_terms, fleet_report_by_terms
from gpuledger.app.statement_commands import (
    HTML,
    check_statement_flags,
    verify_statement,
    write_statement,
)
from gpuledger.app.statements import MadeReport
from gpuledger.config.commands import REPORT_GROUPS
from gpuledger.config.report import ReportSettings, StatementSettings
from gpuledger.dialects.settings import DialectSettings
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.ledger.report.ranges import parse_range
from gpuledger.ledger.report.report_keys import GATEWAY, SERVED_MODEL
from gpuledger.ledger.report.settings import FOCUS_FORMATS, ROW, FleetSettings
from gpuledger.ledger.report.statement.content import EXPORTS, PROMETHEUS
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.settings import ExportedBooksSettings
from gpuledger.ledger.store.history import History, Progress
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.model.text import is_utf8
from gpuledger.terminal.settings import FleetUrlSettings, NodeUrlSettings

_ABOUT = """\
Report GPU usage, energy and cost: from the ledger that `gpuledger serve` keeps on this machine, or for a
whole fleet: from the ledgers of its nodes, or from the Prometheus that scrapes it.

Rows add up to the watched time and the energy of the GPUs, whatever the grouping and however the range is
cut: idle and unattributed time has separate rows, with a price. Ends of the range are moved to the
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

for all nodes of a `gpuledger fleet`, exactly, from their own ledgers:
  gpuledger report --fleet http://lab:9410 --by team --in 'last month'

for a fleet, with an error bound for energy between scrapes:
  gpuledger report --prometheus http://prometheus:9090 --by namespace --since 30d
  gpuledger report --prometheus https://metrics.example.com/prometheus --by node \\
      --prometheus.header "Authorization: Bearer $TOKEN" --prometheus.match 'cluster="a"'

what a million tokens cost, by the model that inference servers serve:
  gpuledger report --prometheus http://prometheus:9090 --by served_model --in 2026-11
  gpuledger report --prometheus http://prometheus:9090 --by served_model,gateway:team

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
    "prometheus.url": "a URL",
    "prometheus.match": "labels",
    "tokens.match": "labels",
    "top.fleet": "a URL",
    "node.url": "a URL",
}
# Flags of which no value is left out.
_ONCE = {
    **ONE_NODE,
    "report.by": "write the keys as in --by team,user",
    "report.books": "collect the exports in one directory with `gpuledger books merge`",
    "prometheus.url": "name one Prometheus that has the series of all",
    "prometheus.match": "write all labels in one, separated by commas",
    "tokens.match": "write all labels in one, separated by commas",
    "top.fleet": "name one fleet that lists all nodes",
}


def run(arguments: Sequence[str]) -> int:
    """Print the report."""
    given, read = parse_command("report", _ABOUT, _EXAMPLES, REPORT_GROUPS, arguments, (DialectSettings,))
    require_words(given.flags, _NEVER_EMPTY)
    require_once(given.flags, _ONCE)
    values = read()
    settings = build_settings(ReportSettings, values)
    settings = replace(settings, period=choose_period(values, given.flags))
    settings = with_focus_rows(settings, values, given.flags)
    fleet = build_settings(FleetSettings, values)
    exported = build_settings(ExportedBooksSettings, values).folder
    _require_one_source(given.flags, exported)
    statements = build_settings(StatementSettings, values)
    check_statement_flags(statements, settings, given.flags)
    if statements.verify:
        return verify_statement(statements, settings, values, given.flags, _progress())
    lab = build_settings(FleetUrlSettings, values).fleet if _is_fleet_wanted(given.flags) else ""
    tokens = _wanted_tokens(
        settings, statements, values, from_prometheus=bool(fleet.url) and not (exported or lab)
    )
    if exported:
        made = report_from_books(settings, exported, values)
    elif lab:
        made = report_from_lab(settings, lab, values)
    elif fleet.url and not given.flags.keys() & {"state_dir", "node.url"}:
        made = report_from_fleet(settings, fleet, values, tokens)
    else:
        found = report_from_ledger(settings, values, given.flags)
        if found is None:
            return 0
        made = found
    if statements.file or settings.format == HTML:
        sys.stdout.write(write_statement(made, settings, statements, values))
    if settings.format != HTML:
        is_fleet = made.source == PROMETHEUS or (lab and not exported)
        account = made.origin if is_fleet else socket.gethostname()
        plain = not is_utf8(sys.stdout.encoding)
        sys.stdout.write(format_report(made.report, settings, account, plain=plain))
    return 0


# By key, the flags of the sources of a report.
_SOURCES = {
    "top.fleet": "--fleet",
    "report.books": "--books",
    "prometheus.url": "--prometheus",
    "node.url": "--url",
    "state_dir": "--state-dir",
}


def _require_one_source(flags: Collection[str], exported: str) -> None:
    """Raise UsageError for two sources. Exported ledgers count wherever they are set."""
    given = [flag for key, flag in _SOURCES.items() if key in flags or (exported and flag == "--books")]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other: choose one source of the report")


def _is_fleet_wanted(flags: Collection[str]) -> bool:
    """Whether a fleet that is set counts: a flag of another source wins over the configuration file."""
    return "top.fleet" in flags or not any(key in flags for key in _SOURCES)


def _wanted_tokens(
    settings: ReportSettings,
    statements: StatementSettings,
    values: Mapping[str, Any],
    *,
    from_prometheus: bool,
) -> TokenSettings | None:
    """The settings of tokens if the report has them; raises UsageError where it cannot have them."""
    keys = [word.strip() for word in settings.by.split(",")]
    by_model = [word for word in keys if word == SERVED_MODEL or word.startswith(GATEWAY)]
    by_gateway = [word for word in by_model if word.startswith(GATEWAY)]
    if not settings.tokens and not by_model:
        return None
    given = "--tokens" if settings.tokens and not by_gateway else f"--by {(by_gateway or by_model)[0]}"
    if not from_prometheus:
        raise UsageError(
            f"{given} needs --prometheus: the token counters of inference servers are there, not in a ledger"
        )
    if settings.format == HTML or (settings.format in FOCUS_FORMATS and by_gateway):
        others = "csv or json" if by_gateway else "csv, json or focus"
        raise UsageError(f"{given} has no --format {settings.format}: choose table, {others}")
    if statements.file:
        raise UsageError(f"{given} excludes --statement: a statement keeps amounts of ledgers, not tokens")
    return build_settings(TokenSettings, values)


def report_from_fleet(
    settings: ReportSettings,
    fleet: FleetSettings,
    values: Mapping[str, Any],
    tokens: TokenSettings | None = None,
) -> MadeReport:
    """The report from a Prometheus server. Raises GpuledgerError."""
    now, terms = time.time(), report_terms(settings, values)
    requested = parse_range(settings.since, settings.until, settings.period, now, terms.zone)
    with _progress() as progress:
        found = fleet_report_by_terms(fleet, terms, requested, now, progress, tokens)
    _write_notes(found, settings)
    return MadeReport(found, requested, PROMETHEUS, PrometheusClient(fleet.url).host)


def report_from_lab(settings: ReportSettings, url: str, values: Mapping[str, Any]) -> MadeReport:
    """The report from the ledgers of all nodes of a `gpuledger fleet`. Raises GpuledgerError."""
    # Imported lazily: it needs threads, archives and TLS.
    from gpuledger.app.fleet_api import FleetApiClient
    from gpuledger.app.node_ledgers import report_from_nodes, terms_of_fleet

    access = build_settings(ClientAccessSettings, values)
    with closing(FleetApiClient(url, access)) as client:
        terms = terms_of_fleet(client, report_terms(settings, values), values)
        if settings.format in FOCUS_FORMATS:
            terms = replace(terms, prices=replace(terms.prices, idle=ROW))
        requested = parse_range(settings.since, settings.until, settings.period, time.time(), terms.zone)
        with _progress() as progress:
            found = report_from_nodes(lambda: FleetApiClient(url, access), terms, requested, progress)
        origin = client.host
    _write_notes(found, settings)
    return MadeReport(found, requested, EXPORTS, origin)


def report_from_ledger(
    settings: ReportSettings, values: Mapping[str, Any], flags: Collection[str] = ()
) -> MadeReport | None:
    """The report from this machine's ledger; None if a running node has printed it. Raises GpuledgerError."""
    access = build_settings(NodeUrlSettings, values)

    def read(history: History) -> MadeReport:
        with _progress() as progress:
            return make_report(history, settings, values, progress)

    def ask() -> None:
        parameters = request_parameters(values, flags, REPORT_PARAMETERS, access)
        if not is_utf8(sys.stdout.encoding):
            parameters["plain"] = "true"
        print_answer(fetch_node_answer(values, access, "report", parameters), access)

    found: MadeReport | None = with_ledger_or_node(values, access, read, ask)
    if found is not None:
        _write_notes(found.report, settings)
    return found


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

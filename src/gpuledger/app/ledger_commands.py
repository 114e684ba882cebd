"""What `report` and `explain` print of an open ledger: for the command itself, and for `serve` on request."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TextIO

from gpuledger.app.ledger_file import current_time_of, is_simulated, node_of_ledger
from gpuledger.app.statements import SIMULATED, MadeReport
from gpuledger.config.report import ExplainSettings, ReportSettings
from gpuledger.host.settings import configured_time_zone
from gpuledger.ledger.report.explain import Explanation
from gpuledger.ledger.report.explain_formats import write_explanation_csv, write_explanation_json
from gpuledger.ledger.report.explain_text import explanation_text
from gpuledger.ledger.report.focus import as_focus, focus_keys
from gpuledger.ledger.report.formats import as_csv, as_json
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.ranges import UTC_DAY, parse_range
from gpuledger.ledger.report.report_table import report_table
from gpuledger.ledger.report.segments import full_hour_range
from gpuledger.ledger.report.settings import FOCUS_FORMATS, ROW, Prices, TeamSettings
from gpuledger.ledger.report.statement.content import LEDGER
from gpuledger.ledger.report.statement.terms import StatementTerms
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.explain_query import ExplainLists, ExplainScope, explain_usage
from gpuledger.ledger.store.history import History, Progress
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings

# Lines of each list in the text, unless --limit is set.
_LIMIT = 100


def with_focus_rows(
    settings: ReportSettings, values: Mapping[str, Any], flags: Collection[str]
) -> ReportSettings:
    """The settings with the keys and the days of FOCUS, if that is the format.

    Raises UsageError for `--every`.
    """
    if settings.format not in FOCUS_FORMATS:
        return settings
    if "report.every" in flags:
        raise UsageError(f"--format {settings.format} has rows for each UTC day: omit --every")
    has_teams = bool(build_settings(TeamSettings, values).teams)
    by = focus_keys(settings.by, has_teams=has_teams, has_tokens=settings.tokens)
    return replace(settings, by=by, every=UTC_DAY)


def report_terms(settings: ReportSettings, values: Mapping[str, Any]) -> StatementTerms:
    """What the report follows from. In FOCUS, idle GPUs always have separate rows."""
    prices = build_settings(Prices, values)
    if settings.format in FOCUS_FORMATS:
        prices = replace(prices, idle=ROW)
    teams = build_settings(TeamSettings, values).teams
    return StatementTerms(settings.by, settings.every, prices, teams, configured_time_zone(values))


def make_report(
    history: History, settings: ReportSettings, values: Mapping[str, Any], progress: Progress | None = None
) -> MadeReport:
    """The report of an open ledger. Raises GpuledgerError."""
    terms = report_terms(settings, values)
    node = node_of_ledger(history, values)
    now = current_time_of(history)
    requested = parse_range(settings.since, settings.until, settings.period, now, terms.zone)
    # An unknown grouping is reported before an empty range.
    grouping = find_grouping(terms.by, history.devices, teams=terms.teams, node_of=lambda _: node)
    within = resolve_watched_range(history, requested)
    if terms.prices.idle != build_settings(Prices, values).idle:
        # The range is that of the other formats.
        within = full_hour_range(within, history.last, terms.zone, history.cuts_around)
    found = build_report(history, grouping, terms.prices, within, progress, every=terms.every, node=node)
    notes = (SIMULATED,) if is_simulated(history) else ()
    return MadeReport(found, requested, LEDGER, history.file.name, notes)


def format_report(found: UsageReport, settings: ReportSettings, account: str, *, plain: bool) -> str:
    """The report in the requested format; `account` is the billing account id of FOCUS.

    `plain`: the table has only ASCII.
    """
    if settings.format == "csv":
        return as_csv(found)
    if settings.format == "json":
        return json.dumps(as_json(found), indent=2) + "\n"
    if settings.format in FOCUS_FORMATS:
        return as_focus(found, settings.account or account, FOCUS_FORMATS[settings.format])
    return report_table(found, settings.top, plain=plain)


def make_explanation(
    history: History, who: str, settings: ExplainSettings, values: Mapping[str, Any], period: str = ""
) -> Explanation:
    """The explanation of a row or a process in an open ledger; `period` replaces the ends of the range.

    Raises GpuledgerError.
    """
    since, zone = settings.since or "1970-01-01T00:00:00Z", configured_time_zone(values)
    requested = parse_range(since, settings.until, period, current_time_of(history), zone)
    scope = ExplainScope(
        resolve_watched_range(history, requested),
        build_settings(Prices, values),
        build_settings(TeamSettings, values).teams,
        node_of_ledger(history, values),
    )
    return explain_usage(history, who, scope, _lists(settings))


def _lists(settings: ExplainSettings) -> ExplainLists:
    """Which lines are shown."""
    is_text = settings.format == "text"
    limit = settings.limit
    if limit is None:
        limit = _LIMIT if is_text else 0
    return ExplainLists(0 if settings.show_all else limit, is_text, settings.format == "csv")


def write_explanation(found: Explanation, form: str, out: TextIO) -> None:
    """Write the explanation in a format, line by line: a list can be too long to keep."""
    if form == "csv":
        write_explanation_csv(found, out)
    elif form == "json":
        write_explanation_json(found, out)
    else:
        out.writelines(f"{line}\n" for line in explanation_text(found))

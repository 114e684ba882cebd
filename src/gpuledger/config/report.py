"""The settings of `gpuledger report` and `gpuledger explain`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.ledger.report.grouping import GROUPINGS, NODE
from gpuledger.model.settings import choice, integer, option, text


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Grouping, period and format of a report."""

    by: str = option(
        "report.by",
        text,
        "owner",
        f"group by {', '.join(GROUPINGS)} or label:NAME; with --prometheus also {NODE}, but not unit and "
        "command",
        metavar="WORD",
    )
    since: str = option(
        "report.since",
        text,
        "7d",
        "start: a time ago (36h, 7d), a date, a date and time, today, yesterday, month",
        metavar="WHEN",
    )
    until: str = option("report.until", text, "now", "end, in the same forms", metavar="WHEN")
    top: int = option(
        "report.top",
        integer(0, 1_000_000),
        20,
        "number of rows in the table, plus one row for the rest; 0 shows all",
    )
    format: str = option(
        "report.format",
        choice("table", "csv", "json", "focus"),
        "table",
        "table, csv, json, or focus (CSV of the FinOps Open Cost and Usage Specification)",
        metavar="FORM",
    )


@dataclass(frozen=True, slots=True)
class ExplainSettings:
    """Period and format of an explanation."""

    since: str = option(
        "explain.since", text, "", "start, as in report (default: the start of the ledger)", metavar="WHEN"
    )
    until: str = option("explain.until", text, "now", "end", metavar="WHEN")
    limit: int = option(
        "explain.limit",
        integer(0, 1_000_000),
        100,
        "number of sessions, of allocations and of intervals in the text, those with the most energy; 0: all",
    )
    format: str = option("explain.format", choice("text", "json"), "text", "text or json", metavar="FORM")

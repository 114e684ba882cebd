"""What a user sets about one report or explanation."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.ledger.report.grouping import GROUPINGS, NODE
from gpuledger.model.settings import choice, integer, setting, text


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Which report, and in which shape."""

    by: str = setting(
        "report.by",
        text,
        "owner",
        f"a row for each: {', '.join(GROUPINGS)} or label:NAME; with --prometheus {NODE} too, and no command",
        flags=("--by",),
        metavar="WORD",
    )
    since: str = setting(
        "report.since",
        text,
        "7d",
        "from when: a time ago (36h, 7d), a date, a date and time, today, yesterday, month",
        flags=("--since",),
        metavar="WHEN",
    )
    until: str = setting("report.until", text, "now", "to when", flags=("--until",), metavar="WHEN")
    top: int = setting(
        "report.top",
        integer(0, 1_000_000),
        20,
        "the table shows so many rows, the rest as one; 0 shows all",
        flags=("--top",),
        metavar="N",
    )
    format: str = setting(
        "report.format",
        choice("table", "csv", "json", "focus"),
        "table",
        "table, csv, json, or focus (CSV of the FinOps Open Cost and Usage Specification)",
        flags=("--format",),
        metavar="FORM",
    )


@dataclass(frozen=True, slots=True)
class ExplainSettings:
    """Over which time, and in which shape."""

    since: str = setting(
        "explain.since",
        text,
        "",
        "from when, as in report (default: as far as the books go back)",
        flags=("--since",),
        metavar="WHEN",
    )
    until: str = setting("explain.until", text, "now", "to when", flags=("--until",), metavar="WHEN")
    format: str = setting(
        "explain.format", choice("text", "json"), "text", "text or json", flags=("--format",), metavar="FORM"
    )

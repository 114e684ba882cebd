"""The settings of `gpuledger report`, `gpuledger explain` and `gpuledger receipt`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.ledger.report.report_keys import EVERY, GATEWAY, GROUPINGS, NODE, SERVED_MODEL, TEAM
from gpuledger.ledger.report.settings import FOCUS_FORMATS
from gpuledger.model.settings import boolean, choice, integer, option, text


def _every(value: object) -> str:
    return "" if value in ("", None) else choice(*EVERY)(value)


@dataclass(frozen=True)
class ReportSettings:
    """Grouping, period and format of a report."""

    by: str = option(
        "report.by",
        text,
        "owner",
        f"group by one or more of {', '.join(GROUPINGS)}, {TEAM}, {NODE} or label:NAME, separated by commas; "
        f"with --prometheus also by {SERVED_MODEL} and {GATEWAY}LABEL, not by unit and command",
        metavar="KEYS",
    )
    period: str = option(
        "report.in",
        text,
        "",
        "a whole period in place of both ends: a month (2026-11), day (2026-11-30), week (2026-W48), today, "
        "yesterday, 'this month', 'last month', 'last week'",
        metavar="PERIOD",
    )
    since: str = option(
        "report.since",
        text,
        "7d",
        "start: a time ago (36h, 7d), a date, a date and time, or the first instant of a period as in --in",
        metavar="WHEN",
    )
    until: str = option("report.until", text, "now", "end, in the same forms", metavar="WHEN")
    every: str = option(
        "report.every",
        _every,
        "",
        f"separate rows for each {', '.join(EVERY[:-1])} or {EVERY[-1]}",
        metavar="PERIOD",
    )
    top: int = option(
        "report.top",
        integer(0, 1_000_000),
        20,
        "number of rows in the table, plus one row for the rest; 0 shows all",
    )
    format: str = option(
        "report.format",
        choice("table", "csv", "json", "html", *FOCUS_FORMATS),
        "table",
        "table, csv, json, html (a page to print), or focus (CSV of version 1.3 of the FinOps Open Cost and "
        "Usage Specification; focus-1.2 for tools that need 1.2)",
        metavar="FORM",
    )
    account: str = option(
        "report.account",
        text,
        "",
        "billing account of FOCUS files, such as the name of the cluster (default: this machine's name, or "
        "the host of --prometheus)",
        metavar="NAME",
        as_written=True,
    )
    tokens: bool = option(
        "report.tokens",
        boolean,
        False,
        "with --prometheus: add tokens of inference servers, and energy and cost by token (always with --by "
        "served_model)",
    )


@dataclass(frozen=True)
class StatementSettings:
    """Files of statements: reports that are kept, and verified later."""

    file: str = option(
        "report.statement",
        text,
        "",
        "write a statement to this new file: the rows, prices, teams and bounds of the report as JSON, with "
        "a hash",
        metavar="FILE",
    )
    after: str = option(
        "report.after",
        text,
        "",
        "the statement before the one of --statement or --verify: its hash is part of that",
        metavar="FILE",
    )
    verify: str = option(
        "report.verify",
        text,
        "",
        "verify a statement, compare it with the ledger, and print what changed and why; exit status 0: "
        "equal, 1: different, 2: unreadable",
        metavar="FILE",
    )


@dataclass(frozen=True)
class ExplainSettings:
    """Period and format of an explanation."""

    since: str = option(
        "explain.since", text, "", "start, as in report (default: the start of the ledger)", metavar="WHEN"
    )
    until: str = option("explain.until", text, "now", "end", metavar="WHEN")
    period: str = option(
        "explain.in", text, "", "a whole period in place of both ends, as in report", metavar="PERIOD"
    )
    limit: int | None = option(
        "explain.limit",
        integer(0, 1_000_000),
        None,
        "number of sessions, of allocations and of intervals of time and of energy, those with the most; 0: "
        "all (default: 100 in the text, all in JSON and CSV)",
    )
    show_all: bool = option("explain.all", boolean, False, "all intervals, whatever --limit says")
    format: str = option(
        "explain.format", choice("text", "json", "csv"), "text", "text, json or csv", metavar="FORM"
    )


@dataclass(frozen=True)
class ReceiptSettings:
    """Period and format of a receipt."""

    mine: bool = option(
        "receipt.mine", boolean, False, "the receipt of all that you used: of user:NAME with your login"
    )
    since: str = option("receipt.since", text, "7d", "start, as in report", metavar="WHEN")
    until: str = option("receipt.until", text, "now", "end", metavar="WHEN")
    period: str = option(
        "receipt.in", text, "", "a whole period in place of both ends, as in report", metavar="PERIOD"
    )
    format: str = option(
        "receipt.format",
        choice("text", "json", "markdown", "html"),
        "text",
        "text, json, markdown, or html (a page to print)",
        metavar="FORM",
    )

"""A report as a table, as Markdown, and as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from textwrap import wrap
from typing import Final

from gpuledger.migrate.report import KINDS, MigrationFinding, MigrationReport
from gpuledger.model.text import clean_name

SCHEMA_VERSION: Final = 1
_LONGEST: Final = 4000


def write_table(report: MigrationReport) -> str:
    """Returns lines for people: queries first, then the pages, notes, settings and the result."""
    width = min(max(shutil.get_terminal_size().columns, 60), 160)
    lines: list[str] = []
    for title, findings in _sections(report):
        lines += [f"{title}:", ""]
        for finding in findings:
            lines += _entry(finding, width)
        lines.append("")
    lines += [f"note: {_clean(note)}" for note in report.notes]
    lines += [f"not judged, empty on the old page: {_clean(where)}" for where in _not_judged(report)]
    if report.settings:
        lines += ["settings that keep them:", *(f"  {setting}" for setting in report.settings)]
    return "\n".join([*lines, _summary(report)]) + "\n"


def _not_judged(report: MigrationReport) -> list[str]:
    """Where the queries stand that returned nothing on the old page, each place once."""
    return list(dict.fromkeys(report.empty_before))


def _sections(report: MigrationReport) -> Iterator[tuple[str, list[MigrationFinding]]]:
    if report.queries:
        yield "queries", report.queries
    if report.metrics:
        yield "pages", report.metrics


def _entry(finding: MigrationFinding, width: int) -> list[str]:
    where = "" if finding.where == "page" else f"{_clean(finding.where)} "
    lines = [f"  {finding.kind:<6}  {where}{'' if where else _clean(finding.subject)}".rstrip()]
    details = [("", finding.subject if where else ""), ("why: ", finding.reason)]
    details += [("set: ", " ".join(finding.settings)), ("use: ", finding.instead)]
    for word, text in details:
        if text:
            lines += wrap(word + _clean(text), width, initial_indent=" " * 10, subsequent_indent=" " * 12)
    return lines


def _clean(text: str) -> str:
    """One line of printable characters: the texts come from pages and files of others."""
    return clean_name(" ".join(text.split()), _LONGEST)


def _summary(report: MigrationReport) -> str:
    if not report.checked:
        return f"{len(report.metrics)} differences of the pages" if report.metrics else "the pages agree"
    before = len(report.empty_before)
    also = f"; {before} return nothing on the old page either" if before else ""
    changed = len(report.queries)
    result = (
        f"{changed} of {report.checked} queries change"
        if changed
        else f"no change in {report.checked} queries"
    )
    return result + also


def write_markdown(report: MigrationReport) -> str:
    """Returns two tables, the settings and the notes."""
    lines = ["# Migration check", "", _summary(report) + "."]
    for title, findings in _sections(report):
        lines += [
            "",
            f"## {title.capitalize()}",
            "",
            "| what | where | query or metric | why | set | use instead |",
        ]
        lines += ["|---|---|---|---|---|---|"]
        lines += [_row(finding) for finding in findings]
    if report.settings:
        lines += ["", "## Settings that keep them", "", *(f"- `{setting}`" for setting in report.settings)]
    if report.notes:
        lines += ["", "## Notes", "", *(f"- {_clean(note)}" for note in report.notes)]
    if report.empty_before:
        lines += ["", "## Not judged, empty on the old page", ""]
        lines += [f"- {_clean(where)}" for where in _not_judged(report)]
    return "\n".join(lines) + "\n"


def _row(finding: MigrationFinding) -> str:
    code = (finding.subject, finding.instead)
    cells = [finding.kind, finding.where, _code(code[0]), finding.reason, _code(" ".join(finding.settings))]
    cells.append(_code(code[1]))
    return "| " + " | ".join(_clean(cell).replace("|", "\\|") for cell in cells) + " |"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def write_json(report: MigrationReport) -> str:
    """Returns one object with stable keys."""
    document = {"schema": SCHEMA_VERSION, "changes": report.failed, "kinds": dict(KINDS), **asdict(report)}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


FORMATS: Final[Mapping[str, Callable[[MigrationReport], str]]] = {
    "table": write_table,
    "json": write_json,
    "markdown": write_markdown,
}

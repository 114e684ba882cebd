"""A statement as one HTML page for people and printers, without scripts and without other files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.html_page import html_document
from gpuledger.ledger.report.html_page import html_name as _name
from gpuledger.ledger.report.html_page import html_text as _text
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.report_column import ReportColumn
from gpuledger.ledger.report.report_columns import round_column, shown_columns
from gpuledger.ledger.report.report_table import (
    NOT_ADDITIVE,
    OWN_ACCOUNTS,
    UNBILLED,
    number_cell,
    report_notes,
    total_cell,
    unbilled_cells,
)
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.ledger.report.statement.content import EXPORTS, PROMETHEUS, Statement
from gpuledger.ledger.report.usage_report import GpuLine, ReportLine
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.session import ALLOCATION, PROCESS

_STYLE = """\
@page { size: A4 landscape; margin: 12mm 12mm 14mm }
:root { color-scheme: light; font-size: 14px }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.5rem; max-width: 72rem; background: #fff; color: #16202c;
  font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  font-variant-numeric: tabular-nums }
header { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: flex-end;
  gap: 1rem 2rem; border-bottom: 2px solid #16202c; padding-bottom: 0.75rem }
h1 { margin: 0; font-size: 1.5rem; line-height: 1.2 }
h2 { margin: 1.5rem 0 0.4rem; font-size: 1rem; break-after: avoid }
p { margin: 0.25rem 0 }
.period { color: #556072 }
.due { text-align: right }
.due strong { display: block; font-size: 1.75rem; line-height: 1.2 }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 0.5rem 1.5rem;
  margin: 1rem 0 0 }
dt { color: #556072; font-size: 0.875rem }
dd { margin: 0; overflow-wrap: anywhere }
bdi { white-space: pre-wrap }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th, td { padding: 0.25rem 0.5rem; text-align: left; vertical-align: baseline }
td:first-child, th:first-child { padding-left: 0 }
td:last-child, th:last-child { padding-right: 0 }
th { font-weight: 600 }
thead th { border-bottom: 1px solid #16202c; font-size: 0.9375rem; vertical-align: bottom }
tbody tr { border-bottom: 1px solid #dde2e9; break-inside: avoid }
tbody th, .unbilled th { font-weight: 400; overflow-wrap: anywhere }
tbody th.short { overflow-wrap: normal }
.n { text-align: right }
td.n { white-space: nowrap }
.own th, .unbilled th, .unbilled td { color: #556072 }
.total th, .total td { border-top: 1px solid #16202c; font-weight: 600 }
ul { margin: 0; padding-left: 1.1rem }
li { margin: 0.15rem 0 }
.notes { font-size: 0.9375rem; margin-top: 0.75rem }
code { font: 0.85em ui-monospace, "SF Mono", Consolas, monospace; overflow-wrap: anywhere }
footer { margin-top: 1.5rem; border-top: 1px solid #dde2e9; padding-top: 0.6rem; font-size: 0.9375rem;
  color: #556072; break-inside: avoid }
@media screen and (max-width: 68rem) { table { min-width: 64rem } }
@media screen and (max-width: 40rem) {
  body { padding: 1rem }
  .due { text-align: left }
  /* Names and the last amount, the cost, are read without scrolling. */
  tr > :last-child { position: sticky; right: 0; padding-left: 1.2rem;
    background: linear-gradient(90deg, transparent, #fff 1.2rem) }
}
@media print {
  :root { font-size: 8.5pt }
  body { padding: 0; max-width: none; line-height: 1.35 }
  th, td { padding: 0.15rem 0.35rem }
  .wide { overflow: visible }
  thead { display: table-header-group }
  tfoot { display: table-row-group }
}
"""

# GPUs of which each has a row, and nodes that are named.
_MOST_GPUS, _MOST_NODES = 24, 6
# Characters of a word that is not broken between two lines.
_LONGEST_WHOLE = 14
# Columns that a page has no room for.
_ONLY_IN_FILE = frozenset(("sessions", "allocated_gpu_hours", "measured_kwh", "apportioned_kwh"))


def statement_page(statement: Statement, sha256: str, file: str) -> str:
    """The page. `sha256` is the hash of the statement, `file` the name of its file; empty if it has none."""
    sections = (_head, _facts, _table, _notes, _gpus, _prices, _teams)
    main = "\n".join(filter(None, (section(statement) for section in sections)))
    return html_document(f"GPU usage, {_between(statement)}", _STYLE, main, _foot(statement, sha256, file))


def _name_cell(name: str) -> str:
    """A cell of names; a browser may break only long words, so that any number of columns fits on paper."""
    short = "" if any(len(word) > _LONGEST_WHOLE for word in name.split()) else ' class="short"'
    return f'<th scope="row"{short}>{_name(name or "-")}</th>'


def _between(statement: Statement) -> str:
    begins, ends = (
        format_local_time(unix / MICRO, statement.terms.zone) for unix in (statement.since, statement.until)
    )
    return f"{begins} to {ends}"


def _head(statement: Statement) -> str:
    total, currency = statement.report.total, statement.terms.prices.currency
    due = ""
    if total.cost is not None:
        cost = next(column for column in _columns(statement) if column.name == _cost_column(statement))
        due = f'<p class="due">Total<strong>{_text(total_cell(cost, total))} {_text(currency)}</strong></p>'
    return (
        f'<header>\n<div><h1>GPU usage statement</h1>\n<p class="period">{_text(_between(statement))}</p>'
        f"</div>\n{due}</header>"
    )


def _cost_column(statement: Statement) -> str:
    """The column of the whole cost: that of time or of energy, if only this has a price."""
    prices = statement.terms.prices
    if prices.gpu_hour is None:
        return "energy_cost"
    return "time_cost" if prices.kwh is None else "cost"


def _columns(statement: Statement) -> list[ReportColumn]:
    return [column for column in shown_columns(statement.report) if column.name not in _ONLY_IN_FILE]


def _facts(statement: Statement) -> str:
    report, terms = statement.report, statement.terms
    nodes = sorted({node for node in statement.nodes.values() if node})
    origin = {PROMETHEUS: f"Prometheus {statement.origin}", EXPORTS: f"exported ledgers {statement.origin}"}
    basis = "allocation: what is kept from others" if report.basis == ALLOCATION else "residence: processes"
    facts = {
        "Nodes": ", ".join(nodes) or "-" if len(nodes) <= _MOST_NODES else str(len(nodes)),
        "GPUs": str(len(report.gpus)),
        "Requested": statement.requested.text,
        "Time zone": terms.zone_name,
        "Grouped by": terms.by + (f", for each {terms.every}" if terms.every else ""),
        "GPU time by": basis,
        "Idle GPUs": "separate rows" if terms.prices.idle == "row" else "spread over the owners of each hour",
        "Source": origin.get(statement.source, f"ledger {statement.origin}"),
    }
    return (
        "<dl>\n"
        + "\n".join(
            f"<div><dt>{_text(name)}</dt><dd>{_name(value)}</dd></div>" for name, value in facts.items()
        )
        + "\n</dl>"
    )


def _table(statement: Statement) -> str:
    report, columns = statement.report, _columns(statement)
    names = _name_headings(statement)
    lines = [
        line
        for line in statement.lines
        if line.account == PROCESS or line.millijoules or line.gpu_microseconds
    ]
    rounded = [round_column(lines, column, column.shown) for column in columns]
    headings = [column.heading + ("" if column.has_total else NOT_ADDITIVE) for column in columns]
    body = [
        _row(
            _name_cells(statement, line),
            [
                number_cell(column, line, numbers[place])
                for column, numbers in zip(columns, rounded, strict=True)
            ],
            "" if line.account == PROCESS else "own",
        )
        for place, line in enumerate(lines)
    ]
    wide = f' colspan="{len(names)}"' if len(names) > 1 else ""
    total = [total_cell(column, report.total) for column in columns]
    foot = [_row(f'<th scope="row"{wide}>total</th>', total, "total")]
    unbilled = {one.account for one in report.unbilled if one.microseconds}
    foot += [
        _row(
            f'<th scope="row"{wide}>{_text(text)}</th>', unbilled_cells(report, account, columns), "unbilled"
        )
        for account, text in UNBILLED.items()
        if account in unbilled
    ]
    return _html_table("Usage", names, headings, body, foot)


def _html_table(
    title: str, names: Sequence[str], numbers: Sequence[str], body: Sequence[str], foot: Sequence[str] = ()
) -> str:
    """A table with columns of names and of numbers; `body` and `foot` are rows in HTML."""
    head = [f'<th scope="col">{_text(name)}</th>' for name in names]
    head += [f'<th scope="col" class="n">{_text(name)}</th>' for name in numbers]
    rows = "\n".join(
        ("<thead>", f"<tr>{''.join(head)}</tr>", "</thead>", "<tbody>", *body, "</tbody>")
        + (("<tfoot>", *foot, "</tfoot>") if foot else ())
    )
    # Focusable, so that it can be scrolled with the keyboard.
    wide = f'<div class="wide" role="region" aria-label="{title}" tabindex="0">'
    return f"<h2>{title}</h2>\n{wide}<table>\n{rows}\n</table></div>"


def _name_headings(statement: Statement) -> list[str]:
    report = statement.report
    columns = report.grouping.columns
    period = ["period"] if report.has_periods else []
    return [*period, *(columns if "," in statement.terms.by else ["/".join(columns)])]


def _name_cells(statement: Statement, line: ReportLine) -> str:
    """The cells of a row's name: one for all its parts, unless several keys are reported."""
    report = statement.report
    words = list(line.key)
    if "," not in statement.terms.by:
        words = ["/".join(filter(None, words))]
    if line.account != PROCESS and any(words):
        words[0] = f"{words[0]} ({line.account})".lstrip()
    elif line.account != PROCESS:
        words[0] = OWN_ACCOUNTS.get(line.account, line.account)
    elif not any(words):
        words[0] = f"(no {report.grouping.columns[-1]} known)"
    period = [report.periods[line.period].name] if report.has_periods else []
    return "".join(map(_name_cell, (*period, *words)))


def _row(names: str, cells: Sequence[str], kind: str) -> str:
    numbers = "".join(f'<td class="n">{_text(cell)}</td>' for cell in cells)
    attribute = f' class="{kind}"' if kind else ""
    return f"<tr{attribute}>{names}{numbers}</tr>"


def _notes(statement: Statement) -> str:
    return _list(report_notes(statement.report, _columns(statement)), "notes")


def _list(lines: Iterator[str] | Sequence[str], kind: str) -> str:
    items = "\n".join(f"<li>{_name(line)}</li>" for line in lines)
    return f'<ul class="{kind}">\n{items}\n</ul>' if items else ""


def _gpus(statement: Statement) -> str:
    """The GPUs; of a large fleet, their sums by node and model."""
    numbers = ("hours watched", "not watched", "kWh of the GPU")
    gpus, nodes = statement.report.gpus, statement.nodes
    if len(gpus) <= _MOST_GPUS:
        rows = [_gpu_row((gpu.index, gpu.model, gpu.uuid, nodes.get(gpu.uuid, "")), [gpu]) for gpu in gpus]
        return _html_table("GPUs", ("GPU", "model", "uuid", "node"), numbers, rows)
    groups: dict[tuple[str, str], list[GpuLine]] = {}
    for gpu in gpus:
        groups.setdefault((nodes.get(gpu.uuid, ""), gpu.model), []).append(gpu)
    rows = [_gpu_row((*name, str(len(group))), group) for name, group in sorted(groups.items())]
    return _html_table("GPUs", ("node", "model", "GPUs"), numbers, rows)


def _gpu_row(names: Sequence[str], gpus: Sequence[GpuLine]) -> str:
    cells = "".join(map(_name_cell, names))
    hours = [
        f"{sum(amounts) / MICROSECONDS_PER_HOUR:,.2f}"
        for amounts in ([gpu.watched for gpu in gpus], [gpu.unwatched for gpu in gpus])
    ]
    known = [gpu.millijoules for gpu in gpus if gpu.millijoules is not None]
    kwh = f"{sum(known) / MILLIJOULES_PER_KWH:,.3f}" if known else "no data"
    return _row(cells, [*hours, f"{kwh}{'+' if known and len(known) < len(gpus) else ''}"], "")


def _prices(statement: Statement) -> str:
    terms = statement.terms
    lines = PriceList(terms.prices, terms.zone).describe()
    shown = _list(lines, "prices") or "<p>None.</p>"
    return f"<h2>Price list {_text(terms.fingerprint)}</h2>\n{shown}"


def _teams(statement: Statement) -> str:
    teams = statement.terms.teams
    return f"<h2>Teams</h2>\n{_list([str(team) for team in teams], 'teams')}" if teams else ""


def _foot(statement: Statement, sha256: str, file: str) -> str:
    made = format_local_time(statement.created / MICRO, statement.terms.zone)
    lines = [f"Made by gpuledger {_text(statement.program)} at {_text(made)}."]
    if file:
        command = f"gpuledger report --verify {file}"
        lines.append(f"SHA-256 of the statement: <code>{_text(sha256)}</code>")
        lines.append(f"To check it: <code>{_text(command)}</code>")
    else:
        lines.append(
            f"SHA-256 of these amounts: <code>{_text(sha256)}</code>, not kept (add --statement FILE)."
        )
    if statement.previous is not None:
        lines.append(f"Follows the statement with SHA-256 <code>{_text(statement.previous.sha256)}</code>.")
    return "<footer>\n" + "\n".join(f"<p>{line}</p>" for line in lines) + "\n</footer>"

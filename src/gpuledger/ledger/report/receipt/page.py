"""A receipt as one HTML page for screens and printers, without scripts and without other files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final

from gpuledger.ledger.report.html_page import html_document
from gpuledger.ledger.report.html_page import html_name as _name
from gpuledger.ledger.report.html_page import html_text as _text
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.presentation import (
    ABSENT,
    BarRow,
    ShownAdvice,
    ShownReceipt,
    ShownTable,
    show_receipt,
)
from gpuledger.ledger.report.receipt.wording import clock_text, ratio_text, receipt_zone

# Colors of text reach a contrast of 4.5 on their background, in both schemes.
_STYLE: Final = """\
@page { size: A4; margin: 12mm }
:root { color-scheme: light dark; --paper: #fff; --ink: #16202c; --soft: #556072; --line: #dde2e9;
  --strong: #16202c; --bar: #1f6feb; --hole: #eef1f5; --box: #f4f7fb; --edge: #9a5b00; font-size: 15px }
@media (prefers-color-scheme: dark) {
  :root { --paper: #11161d; --ink: #e3e8ef; --soft: #9aa7b8; --line: #2b3543; --strong: #8b98aa;
    --bar: #58a6ff; --hole: #1b232e; --box: #18202a; --edge: #d29922 }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1.25rem 2rem; max-width: 70rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
header { border-bottom: 2px solid var(--strong); padding-bottom: 0.6rem }
h1 { margin: 0 0 0.2rem; font-size: 1.4rem; line-height: 1.25 }
h2 { margin: 1.5rem 0 0.5rem; font-size: 1.05rem; break-after: avoid }
p { margin: 0.15rem 0 }
.muted, footer { color: var(--soft); font-size: 0.9rem }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 0.75rem 1.5rem;
  margin: 1rem 0 0 }
dt { color: var(--soft); font-size: 0.9rem }
dd { margin: 0 }
dd strong { font-size: 1.25rem; display: block; line-height: 1.3 }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 0.9375rem }
th, td { padding: 0.25rem 0.6rem 0.25rem 0; text-align: left; vertical-align: baseline }
th:last-child, td:last-child { padding-right: 0 }
thead th { border-bottom: 1px solid var(--strong); font-weight: 600; vertical-align: bottom;
  overflow-wrap: normal }
tbody tr { border-bottom: 1px solid var(--line); break-inside: avoid }
tbody th { font-weight: 400; min-width: 8.5rem }
.gpus th:first-child { min-width: 0; white-space: nowrap; overflow-wrap: normal }
.n { text-align: right; white-space: nowrap; overflow-wrap: normal }
.bars { display: grid; grid-template-columns: max-content 1fr; gap: 0.35rem 0.75rem; align-items: center }
.bars svg { width: 100%; height: 2rem; display: block; background: var(--hole) }
.bars .used { fill: var(--bar) }
.bars .none { fill: var(--soft) }
.bars .gone { fill: var(--paper) }
.bars .unclear { fill: var(--edge); fill-opacity: 0.35 }
ol { margin: 0; padding: 0; list-style: none; display: grid; gap: 0.75rem }
ol > li { background: var(--box); border-left: 4px solid var(--edge); padding: 0.6rem 0.9rem;
  break-inside: avoid }
ul { margin: 0.25rem 0 0; padding-left: 1.1rem }
ul.plain { list-style: none; padding: 0; font-size: 0.9375rem }
.saving { font-weight: 600; margin-top: 0.25rem }
a { color: inherit }
:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px }
footer { margin-top: 1.5rem; border-top: 1px solid var(--line); padding-top: 0.6rem; break-inside: avoid }
@media screen and (max-width: 40rem) {
  body { padding: 1rem 0.9rem 1.5rem }
  .wide table { min-width: 46rem }
  .owners table { min-width: 34rem }
}
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #16202c; --soft: #556072; --line: #dde2e9;
    --strong: #16202c; --bar: #1f6feb; --hole: #eef1f5; --box: #f4f7fb; --edge: #9a5b00; font-size: 9.5pt }
  body { padding: 0; max-width: none }
  .wide { overflow: visible }
  table { font-size: 0.85rem }
  th, td { padding-right: 0.35rem }
  tbody th { min-width: 7rem }
  svg, ol > li { print-color-adjust: exact; -webkit-print-color-adjust: exact }
  nav { display: none }
}
"""

Link = Callable[[str], str]


def receipt_page(receipt: ReceiptJson, *, link: Link | None = None, home: str = "") -> str:
    """The page. `link` returns the URL of another receipt by its KIND:NAME, for the owners of this one;
    `home` is that of the node's page. Without them the page needs no other.
    """
    shown = show_receipt(receipt)
    parts = (
        f'<nav class="muted"><a href="{escape(home)}">GPUs of this node</a></nav>' if home else "",
        _head(shown),
        _facts(shown),
        _advice(shown.advice),
        _gpus(shown),
        _owners(shown, link),
        _list("Processes", shown.processes),
        _list("Notes", shown.notes),
    )
    main = "\n".join(filter(None, parts))
    return html_document(f"GPU receipt: {shown.title}", _STYLE, main, _foot(receipt))


def _head(shown: ShownReceipt) -> str:
    return (
        f"<header>\n<h1>GPU receipt: {_name(shown.title)}</h1>\n<p>{_text(shown.period)}</p>\n"
        f'<p class="muted">{_text(shown.scope)}</p>\n</header>'
    )


def _facts(shown: ShownReceipt) -> str:
    items = "\n".join(
        f"<div><dt>{_text(fact.name)}</dt><dd><strong>{_text(fact.value)}</strong>"
        f'<span class="muted">{_text(fact.detail)}</span></dd></div>'
        for fact in shown.facts
    )
    return f"<dl>\n{items}\n</dl>"


def _advice(advice: Sequence[ShownAdvice]) -> str:
    if not advice:
        return '<h2>Advice</h2>\n<p class="muted">None.</p>'
    items = "\n".join(_advice_item(one) for one in advice)
    return f"<h2>Advice</h2>\n<ol>\n{items}\n</ol>"


def _advice_item(one: ShownAdvice) -> str:
    evidence = "".join(f"<li>{_name(line)}</li>" for line in one.evidence)
    saving = f'<p class="saving">{_text(one.saving[:1].upper() + one.saving[1:])}</p>' if one.saving else ""
    return f'<li><p>{_name(one.text)}</p><ul class="muted">{evidence}</ul>{saving}</li>'


def _gpus(shown: ShownReceipt) -> str:
    found = f'<div class="gpus"><h2>GPUs</h2>\n{_table(shown.gpus, "GPUs")}</div>'
    if not shown.bars:
        return found
    rows = "\n".join(_bar_row(row) for row in shown.bars)
    text = shown.bar_text[:1].upper() + shown.bar_text[1:]
    head = f'<h2>Utilization over time</h2>\n<p class="muted">{_text(text)}</p>'
    return f'{found}\n{head}\n<div class="bars">\n{rows}\n</div>'


def _bar_row(row: BarRow) -> str:
    bars = "".join(_bar(place, ratio) for place, ratio in enumerate(row.ratios))
    label = f"GPU {row.label}: {_summary(row.ratios)}"
    size = f'viewBox="0 0 {len(row.ratios)} 100" preserveAspectRatio="none"'
    return (
        f'<span>GPU {_name(row.label)}</span><svg {size} role="img" aria-label="{_text(label)}">{bars}</svg>'
    )


def _bar(place: int, ratio: float | None) -> str:
    """One bar: a line at the bottom for no use, the color of the page where the device was not there."""
    if ratio is None:
        kind, height = "unclear", 100.0
    elif ratio == ABSENT:
        kind, height = "gone", 100.0
    elif not ratio:
        kind, height = "none", 3.0
    else:
        kind, height = "used", max(100.0 * ratio, 5.0)
    # Without a line between bars in which it was not there.
    left, width = (f"{place}", "1") if kind == "gone" else (f"{place}.05", "0.9")
    return f'<rect class="{kind}" x="{left}" y="{100 - height:.1f}" width="{width}" height="{height:.1f}"/>'


def _summary(ratios: Sequence[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None and ratio != ABSENT]
    if not known:
        return "not known"
    return f"{ratio_text(sum(known) / len(known))} on average, {ratio_text(max(known))} in the highest bar"


def _table(
    table: ShownTable, title: str, cells: Callable[[Sequence[str]], Iterator[str]] | None = None
) -> str:
    head = "".join(
        f'<th scope="col"{_class(place, table)}>{_text(text)}</th>'
        for place, text in enumerate(table.headings)
    )
    body = "\n".join(f"<tr>{''.join(cells(row) if cells else _cells(row, table))}</tr>" for row in table.rows)
    # Focusable, so that it can be scrolled with the keyboard.
    wide = f'<div class="wide" role="region" aria-label="{title}" tabindex="0">'
    return f"{wide}<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"


def _class(place: int, table: ShownTable) -> str:
    return "" if place < table.names else ' class="n"'


def _cells(row: Sequence[str], table: ShownTable) -> Iterator[str]:
    for place, text in enumerate(row):
        tag, scope = ("th", ' scope="row"') if place < table.names else ("td", "")
        yield f"<{tag}{scope}{_class(place, table)}>{_name(text)}</{tag}>"


def _owners(shown: ShownReceipt, link: Link | None) -> str:
    table = shown.owners
    if table is None:
        return ""

    def cells(row: Sequence[str]) -> Iterator[str]:
        *others, own = row
        yield from _cells(others, table)
        text = _name(own) if link is None else f'<a href="{escape(link(own))}">{_name(own)}</a>'
        yield f'<td class="n">{text}</td>'

    return f'<div class="owners"><h2>Owners</h2>\n{_table(table, "Owners", cells)}</div>'


def _list(title: str, lines: Sequence[str]) -> str:
    items = "\n".join(f"<li>{_name(line)}</li>" for line in lines)
    return f'<h2>{title}</h2>\n<ul class="plain">\n{items}\n</ul>' if items else ""


def _foot(receipt: ReceiptJson) -> str:
    made = clock_text(receipt["made"], receipt_zone(receipt["zone"]))
    command = f"gpuledger receipt {receipt['who']['explain']}"
    return (
        f"<footer>\n<p>Made by gpuledger {_text(receipt['program'])} at {_text(made)}, as by "
        f"<code>{_name(command)}</code>. The amounts are those of <code>gpuledger report</code> for the same "
        "range.</p>\n</footer>"
    )

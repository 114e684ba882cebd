"""A receipt as Markdown, for issues, chats and wikis."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.presentation import ShownReceipt, ShownTable, show_receipt
from gpuledger.ledger.report.receipt.text import bar_line
from gpuledger.model.text import escape_to_one_line

# What has a meaning in GitHub's Markdown, or in HTML within it. Names are untrusted: a colon begins the name
# of an emoji, and is a part of each URL.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>#|~&@]|:(?=[A-Za-z_+/-]))")
# The begin of a numbered list.
_NUMBER: Final = re.compile(r"^(\d+)([.)])")


def receipt_markdown(receipt: ReceiptJson) -> str:
    """The receipt in GitHub's Markdown."""
    return "\n".join(_lines(show_receipt(receipt))) + "\n"


def _lines(shown: ShownReceipt) -> Iterator[str]:
    yield f"## GPU receipt: {_text(shown.title)}"
    yield ""
    yield f"{_text(shown.period)}  "
    yield _text(shown.scope)
    yield ""
    for fact in shown.facts:
        detail = f" ({_text(fact.detail)})" if fact.detail else ""
        yield f"- {_text(fact.name)}: **{_text(fact.value)}**{detail}"
    yield ""
    yield from _table(shown.gpus)
    if shown.bars:
        yield ""
        yield f"{_text(shown.bar_text)}:"
        yield ""
        yield "```text"
        width = max(len(row.label) for row in shown.bars)
        yield from (f"{escape_to_one_line(row.label):<{width}}  {bar_line(row.ratios)}" for row in shown.bars)
        yield "```"
    if shown.owners is not None:
        yield ""
        yield from _table(shown.owners)
    yield ""
    yield "### Advice"
    yield ""
    if not shown.advice:
        yield "None."
    for number, one in enumerate(shown.advice, 1):
        yield f"{number}. **{_text(one.text)}**"
        yield from (f"   - {_item(line)}" for line in one.evidence)
        if one.saving:
            yield f"   - {_text(one.saving)}"
    if shown.processes:
        yield from ("", "### Processes", "")
        yield from (f"- {_item(line)}" for line in shown.processes)
    if shown.notes:
        yield from ("", "### Notes", "")
        yield from (f"- {_item(note)}" for note in shown.notes)


def _table(table: ShownTable) -> Iterator[str]:
    yield f"| {' | '.join(map(_text, table.headings))} |"
    yield f"|{'|'.join('---' if place < table.names else '---:' for place in range(len(table.headings)))}|"
    for row in table.rows:
        yield f"| {' | '.join(map(_text, row))} |"


def _text(text: str) -> str:
    """Text without any meaning in Markdown."""
    return _SPECIAL.sub(r"\\\1", escape_to_one_line(text))


def _item(text: str) -> str:
    """As `_text`, for the text of an item of a list."""
    found = _text(text)
    if found[:1] in ("-", "+", "="):
        return f"\\{found}"
    return _NUMBER.sub(r"\1\\\2", found)

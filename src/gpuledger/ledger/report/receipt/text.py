"""A receipt as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from textwrap import wrap
from typing import Final, NamedTuple

from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.presentation import ABSENT, ShownReceipt, ShownTable, show_receipt
from gpuledger.ledger.report.receipt.wording import UNKNOWN
from gpuledger.model.text import escape_to_one_line

# Columns of sentences, and the fewest for which a receipt is laid out.
_WIDTH: Final = 100
_LEAST_WIDTH: Final = 60
# Columns of a table that move to a line below each row if the terminal is narrow, the first ones first.
_MOVABLE: Final = ("memory", "throttled", "its receipt", "SM peak", "energy", "SM mean", "model")
_MOST_INDENT: Final = 12
# Signs of ratios above 0, the lowest first; of 0, of unknown, and of time without the device.
_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = ".:-=+*#@"
_ZERO, _PLAIN_ZERO = "·", "0"
_NOT_KNOWN: Final = "?"


def receipt_text(receipt: ReceiptJson, *, plain: bool = False, width: int | None = None) -> str:
    """The receipt in lines for a terminal with this number of columns; None: as wide as its tables are.

    `plain` is ASCII, but for names. Names are never cut: a long one can be wider than the terminal.
    """
    found = _TextForm(show_receipt(receipt), plain, None if width is None else max(width, _LEAST_WIDTH))
    return "".join(f"{line}\n" for line in found.lines())


class _TextForm(NamedTuple):
    """A receipt, and how it is laid out."""

    shown: ShownReceipt
    plain: bool
    width: int | None

    def lines(self) -> Iterator[str]:
        """All lines."""
        shown = self.shown
        for text in (shown.title, shown.period, shown.scope):
            yield from self._wrapped(text, rest="  ", most=self.width)
        yield ""
        yield from self._facts()
        yield ""
        yield from self._gpus()
        if shown.owners is not None:
            yield ""
            head, rows = self._table(shown.owners, "  ")
            yield from chain((head,), *rows)
        if shown.processes:
            yield from ("", "processes:")
            for line in shown.processes:
                yield from self._wrapped(line, "  ", "    ", self.width)
        yield ""
        yield from self._advice()
        if shown.notes:
            yield ""
        for note in shown.notes:
            yield from self._wrapped(note)

    def _wrapped(
        self, text: str, first: str = "", rest: str = "", most: int | None = _WIDTH
    ) -> Sequence[str]:
        """The lines of a text of at most `most` columns; None: a single one. Names stay whole."""
        line = escape_to_one_line(text)
        if most is None:
            return [first + line]
        columns = most if self.width is None else min(most, self.width)
        found = wrap(
            line,
            columns,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return found or [first]

    def _facts(self) -> Iterator[str]:
        """Names, numbers and details: in columns if there is room for them."""
        facts = self.shown.facts
        names, values = (
            max(map(len, words)) for words in zip(*((one.name, one.value) for one in facts), strict=True)
        )
        details = max(len(escape_to_one_line(fact.detail)) for fact in facts)
        if self.width is not None and names + values + details + 4 > self.width:
            values = 0
        for fact in facts:
            line = f"{fact.name:<{names}}  {fact.value:<{values}}  {escape_to_one_line(fact.detail)}".rstrip()
            yield from self._wrapped(line, rest=" " * (names + 2), most=self.width)

    def _gpus(self) -> Iterator[str]:
        """The table, with the bars of each device below its row."""
        shown = self.shown
        labels = max((len(escape_to_one_line(row[0])) for row in shown.gpus.rows), default=0)
        # Below the second column, but not far to the right.
        indent = " " * min(labels + 2, _MOST_INDENT)
        head, rows = self._table(shown.gpus, indent)
        yield head
        for place, row in enumerate(rows):
            yield from row
            if shown.bars:
                yield (indent + bar_line(shown.bars[place].ratios, plain=self.plain)).rstrip()
        if shown.bars:
            zero = _PLAIN_ZERO if self.plain else _ZERO
            ratios = {ratio for row in shown.bars for ratio in row.ratios}
            signs = ((0.0, f"{zero} none"), (None, f"{_NOT_KNOWN} not known"), (ABSENT, "blank: not there"))
            legend = "; ".join((shown.bar_text, *(text for ratio, text in signs if ratio in ratios)))
            yield from self._wrapped(legend, indent, indent, self.width)

    def _table(self, table: ShownTable, indent: str) -> tuple[str, list[list[str]]]:
        """The head, and the lines of each row: cells in columns, then those for which there is no room."""
        kept, moved = list(range(len(table.headings))), []
        for heading in _MOVABLE:
            if self.width is None or len(_aligned(table, kept)[0]) <= self.width:
                break
            if heading in table.headings:
                moved.append(table.headings.index(heading))
                kept.remove(moved[-1])
        head, *lines = _aligned(table, kept)
        rows = []
        for line, row in zip(lines, table.rows, strict=True):
            more = [f"{table.headings[place]} {row[place]}" for place in moved if row[place] != UNKNOWN]
            below = self._wrapped(", ".join(more), indent, indent, self.width) if more else ()
            rows.append([line.rstrip(), *below])
        return head.rstrip(), rows

    def _advice(self) -> Iterator[str]:
        if not self.shown.advice:
            yield "no advice"
            return
        yield "advice:"
        for number, one in enumerate(self.shown.advice, 1):
            head = f"{number}. "
            indent = " " * len(head)
            yield from self._wrapped(one.text, head, indent)
            for line in one.evidence:
                yield from self._wrapped(line, f"{indent}- ", f"{indent}  ")
            if one.saving:
                yield indent + escape_to_one_line(one.saving)


def bar_line(ratios: Sequence[float | None], *, plain: bool = False) -> str:
    """One sign for each ratio. What is above zero never looks like zero."""
    signs = _PLAIN_BARS if plain else _BARS
    return "".join(_sign(ratio, signs, _PLAIN_ZERO if plain else _ZERO) for ratio in ratios)


def _sign(ratio: float | None, signs: str, zero: str) -> str:
    if ratio is None:
        return _NOT_KNOWN
    if ratio == ABSENT:
        return " "
    return signs[min(int(ratio * len(signs)), len(signs) - 1)] if ratio > 0 else zero


def _aligned(table: ShownTable, places: Sequence[int]) -> list[str]:
    """These columns of a table, all lines equally long: names to the left, numbers to the right."""
    cells = [[escape_to_one_line(row[place]) for place in places] for row in (table.headings, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if place < table.names else f"{cell:>{width}}"
            for place, cell, width in zip(places, row, widths, strict=True)
        )
        for row in cells
    ]

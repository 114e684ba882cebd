"""Layout of terminal lines: text spans with roles, and columns fitted into the available width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from gpuledger.model.text import is_utf8
from gpuledger.terminal.number_format import ABSENT

R = TypeVar("R")

# A text and its role; `palette` maps roles to styles.
Span = tuple[str, str]
Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The symbols drawn next to text. Each is one cell wide."""

    full: str = "\N{FULL BLOCK}"
    rest: str = "\N{LIGHT SHADE}"
    more: str = "\N{HORIZONTAL ELLIPSIS}"
    branch: str = "\N{BOX DRAWINGS LIGHT UP AND RIGHT}"
    active: str = "\N{BLACK CIRCLE}"
    held: str = "\N{CIRCLE WITH LEFT HALF BLACK}"
    idle: str = "\N{WHITE CIRCLE}"
    unknown: str = "?"
    down: str = "\N{MULTIPLICATION SIGN}"
    falling: str = "\N{BLACK DOWN-POINTING SMALL TRIANGLE}"
    rising: str = "\N{BLACK UP-POINTING SMALL TRIANGLE}"
    dot: str = "\N{MIDDLE DOT}"
    degraded: str = "!"
    fork: str = "\N{BOX DRAWINGS LIGHT VERTICAL AND RIGHT}"
    trunk: str = "\N{BOX DRAWINGS LIGHT VERTICAL}"


# The cells of a long text that are shown before further columns are.
_BEGINNING = 28

UNICODE = Glyphs()
ASCII = Glyphs("#", ".", "~", "`", "*", "!", "o", "?", "x", "v", "^", "|", fork="|", trunk="|")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Unicode symbols for UTF-8, ASCII for other encodings."""
    return UNICODE if is_utf8(encoding) else ASCII


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[R]):
    """A column of a table with rows R.

    `least` is its width in cells; a `flexible` column grows to its longest text, up to `most` cells. Columns
    with a high `rank` are dropped first in a narrow terminal; `extra` columns appear only in a wide one.
    `cell` returns the spans of a cell; with `short`, a cell grows to that text or 28 cells like others, and
    to its whole text only with room that no other column needs.
    """

    key: str
    heading: str
    least: int
    rank: int
    cell: Callable[[R], Line]
    right: bool = False
    flexible: bool = False
    most: int = 60
    extra: bool = False
    short: Callable[[R], Line] | None = None


def text_cell(text: str) -> Line:
    """A cell with one text; an absent value (also an empty text) is a dimmed `-`."""
    return ((text, ""),) if text not in ("", ABSENT) else ((ABSENT, "dim"),)


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part` divided by `whole`; None when either is absent or the whole is zero."""
    return None if part is None or not whole else part / whole


@dataclass(frozen=True, slots=True)
class PlacedColumn(Generic[R]):
    """A column with its width in cells."""

    column: TableColumn[R]
    width: int


def width_of(line: Iterable[Span]) -> int:
    """The width of a line in cells: some characters take two, some none."""
    return sum(cell_len(text) for text, _ in line)


def place_columns(
    columns: Sequence[TableColumn[R]], rows: Sequence[R], room: int | None, gap: int = 1
) -> list[PlacedColumn[R]]:
    """Fit columns into `room` cells; None means unlimited: all columns, as wide as their texts.

    An `extra` column appears only when no other column is truncated for it.
    """
    if room is None:
        return [PlacedColumn(column, _preferred_width(column, rows, None)) for column in columns]
    widths: dict[str, int] = {}
    spare = room + gap
    ranked = sorted(columns, key=lambda item: item.rank)
    needed = [item for item in ranked if not item.extra]
    for column in needed:
        if widths and column.least + gap > spare:
            break
        widths[column.key] = column.least
        spare -= column.least + gap
    growing = [column for column in ranked if column.flexible]
    preferred = {column.key: _preferred_width(column, rows, column.most) for column in growing}
    spare = _grow([column for column in growing if column.key in widths], widths, preferred, spare)
    for column in (item for item in ranked if item.extra and len(widths) >= len(needed)):
        least = min(column.least, preferred.get(column.key, column.least))
        if least + gap <= spare:
            widths[column.key] = least
            spare = _grow([column], widths, preferred, spare - least - gap)
    for column in (item for item in growing if item.short and item.key in widths):
        longest = max((width_of(column.cell(row)) for row in rows), default=0)
        spare = _grow([column], widths, {column.key: longest}, spare)
    return [PlacedColumn(column, widths[column.key]) for column in columns if column.key in widths]


def _grow(
    growing: Sequence[TableColumn[R]], widths: dict[str, int], preferred: dict[str, int], spare: int
) -> int:
    """Distribute spare cells in turn, so that one long name does not take them all."""
    while spare > 0:
        growable = [column for column in growing if widths[column.key] < preferred.get(column.key, 0)]
        if not growable:
            break
        for column in growable[:spare]:
            widths[column.key] += 1
            spare -= 1
    return spare


def _preferred_width(column: TableColumn[R], rows: Sequence[R], most: int | None) -> int:
    longest = max((width_of(column.cell(row)) for row in rows), default=0)
    if column.short is not None and most is not None:
        shortened = max((width_of(column.short(row)) for row in rows), default=0)
        longest = max(shortened, min(longest, _BEGINNING))
    longest = max(longest, cell_len(column.heading), column.least if most is not None else 0)
    return longest if most is None else min(longest, max(most, column.least))


def join_cells(
    placed: Sequence[PlacedColumn[R]], cell: Callable[[TableColumn[R]], Line], glyphs: Glyphs, gap: int = 1
) -> Line:
    """One line of the table: the text that `cell` returns for each column, fitted into it."""
    spans: list[Span] = []
    for number, item in enumerate(placed):
        if number:
            spans.append((" " * gap, ""))
        spans += fit_line(cell(item.column), item.width, glyphs, right=item.column.right)
    return tuple(spans)


def row_line(placed: Sequence[PlacedColumn[R]], row: R, glyphs: Glyphs, gap: int = 1) -> Line:
    """The cells of a row, joined to one line."""
    return join_cells(placed, lambda column: column.cell(row), glyphs, gap)


def fit_line(line: Line, width: int, glyphs: Glyphs, *, right: bool = False) -> list[Span]:
    """Pad or truncate a line to `width` cells; an owner's namespace is truncated first."""
    length = width_of(line)
    if length > width:
        line = tuple(_without_namespace(span, glyphs) for span in line)
        length = width_of(line)
    if length <= width:
        pad = (" " * (width - length), "")
        return [span for span in ((pad, *line) if right else (*line, pad)) if span[0]]
    spans: list[Span] = []
    left = width - cell_len(glyphs.more)
    for text, role in line:
        size = cell_len(text)
        if size <= left:
            spans.append((text, role))
            left -= size
            continue
        # A character of two cells that does not fit becomes a space.
        spans.append((set_cell_size(text, max(0, left)) + (glyphs.more if width > 0 else ""), role))
        break
    return [span for span in spans if span[0]]


def _without_namespace(span: Span, glyphs: Glyphs) -> Span:
    text, role = span
    namespace, slash, rest = text.partition("/")
    return (f"{glyphs.more}/{rest}", role) if role == "owner" and slash and len(namespace) > 1 else span


def truncate_line(line: Line, width: int, glyphs: Glyphs) -> Line:
    """Truncate a line to at most `width` cells."""
    return line if width_of(line) <= width else tuple(fit_line(line, width, glyphs))


def plain_text(line: Iterable[Span]) -> str:
    """The text of a line, without trailing spaces."""
    return "".join(text for text, _ in line).rstrip()

"""One line of a terminal as pieces of text with roles, and as many columns as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from gpuledger.model.text import is_utf8
from gpuledger.terminal.figures import ABSENT

R = TypeVar("R")

# A text and its role, which `palette` turns into a style.
Span = tuple[str, str]
Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The signs that are drawn beside texts. All are one cell wide."""

    full: str = "\N{FULL BLOCK}"
    rest: str = "\N{LIGHT SHADE}"
    more: str = "\N{HORIZONTAL ELLIPSIS}"
    branch: str = "\N{BOX DRAWINGS LIGHT UP AND RIGHT}"
    active: str = "\N{BLACK CIRCLE}"
    held: str = "\N{CIRCLE WITH LEFT HALF BLACK}"
    idle: str = "\N{WHITE CIRCLE}"
    unknown: str = "?"
    lost: str = "\N{MULTIPLICATION SIGN}"
    falling: str = "\N{BLACK DOWN-POINTING SMALL TRIANGLE}"
    rising: str = "\N{BLACK UP-POINTING SMALL TRIANGLE}"
    dot: str = "\N{MIDDLE DOT}"


UNICODE = Glyphs()
ASCII = Glyphs("#", ".", "~", "`", "*", "!", "o", "?", "x", "v", "^", "|")


def glyphs_for(encoding: str | None) -> Glyphs:
    """ASCII where an encoding does not have the others."""
    return UNICODE if is_utf8(encoding) else ASCII


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """A column of rows R.

    `least` cells are its width; a `flexible` one grows up to its longest text, `most` at most. The lower the
    `rank`, the longer it stays when room runs out; `extra` ones come with plenty. `tell` gives the pieces of
    a cell.
    """

    key: str
    heading: str
    least: int
    rank: int
    families: Callable[[R], Line]
    right: bool = False
    flexible: bool = False
    most: int = 60
    extra: bool = False


def told(text: str) -> Line:
    """A cell of one text; what is absent stands back."""
    return ((text, "dim" if text == ABSENT else ""),)


def ratio(part: float | None, whole: float | None) -> float | None:
    """Part of the whole; None where either is not told, or the whole is nothing."""
    return None if part is None or not whole else part / whole


@dataclass(frozen=True, slots=True)
class Placed(Generic[R]):
    """A column and how wide it is."""

    column: Column[R]
    width: int


def width_of(line: Iterable[Span]) -> int:
    """In cells: some signs take two, some none."""
    return sum(cell_len(text) for text, _ in line)


def place(columns: Sequence[Column[R]], rows: Sequence[R], room: int | None, gap: int = 1) -> list[Placed[R]]:
    """Columns with widths for `room` cells; all of them, as wide as their texts, where room is None.

    An `extra` column comes only when no other has to be cut for it.
    """
    if room is None:
        return [Placed(column, _wanted(column, rows, None)) for column in columns]
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
    wanted = {column.key: _wanted(column, rows, column.most) for column in growing}
    spare = _grow([column for column in growing if column.key in widths], widths, wanted, spare)
    for column in (item for item in ranked if item.extra and len(widths) >= len(needed)):
        least = min(column.least, wanted.get(column.key, column.least))
        if least + gap <= spare:
            widths[column.key] = least
            spare = _grow([column], widths, wanted, spare - least - gap)
    return [Placed(column, widths[column.key]) for column in columns if column.key in widths]


def _grow(growing: Sequence[Column[R]], widths: dict[str, int], wanted: dict[str, int], spare: int) -> int:
    """Give cells to those that want more, one in turn: a long name must not starve the others."""
    while spare > 0:
        hungry = [column for column in growing if widths[column.key] < wanted.get(column.key, 0)]
        if not hungry:
            break
        for column in hungry[:spare]:
            widths[column.key] += 1
            spare -= 1
    return spare


def _wanted(column: Column[R], rows: Sequence[R], most: int | None) -> int:
    longest = max((width_of(column.families(row)) for row in rows), default=0)
    longest = max(longest, cell_len(column.heading), column.least if most is not None else 0)
    return longest if most is None else min(longest, max(most, column.least))


def row_line(placed: Sequence[Placed[R]], row: R, glyphs: Glyphs, gap: int = 1) -> Line:
    """The cells of a row side by side."""
    spans: list[Span] = []
    for number, item in enumerate(placed):
        if number:
            spans.append((" " * gap, ""))
        spans += fitted(item.column.families(row), item.width, glyphs, right=item.column.right)
    return tuple(spans)


def fitted(line: Line, width: int, glyphs: Glyphs, *, right: bool = False) -> list[Span]:
    """Exactly `width` cells: cut, of an owner the namespace first, or padded."""
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
        # A sign of two cells that does not fit becomes a space.
        spans.append((set_cell_size(text, max(0, left)) + (glyphs.more if width > 0 else ""), role))
        break
    return [span for span in spans if span[0]]


def _without_namespace(span: Span, glyphs: Glyphs) -> Span:
    text, role = span
    namespace, slash, rest = text.partition("/")
    return (f"{glyphs.more}/{rest}", role) if role == "owner" and slash and len(namespace) > 1 else span


def cut(line: Line, width: int, glyphs: Glyphs) -> Line:
    """At most `width` cells."""
    return line if width_of(line) <= width else tuple(fitted(line, width, glyphs))


def plain(line: Iterable[Span]) -> str:
    """The text alone, without spaces at the end."""
    return "".join(text for text, _ in line).rstrip()

"""Maps the roles of spans to styles.

Text keeps the terminal's own colors, which are readable for its user. Color is used on symbols and bars next
to a word, or sets both the foreground and the background.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from rich.color import ColorSystem
from rich.style import Style

from gpuledger.terminal.layout import Span

_COLORED = {
    "": "",
    "owner": "",
    "dim": "dim",
    "bold": "bold",
    "node": "bold",
    "heading": "bold",
    "letter": "bold underline",
    "sorted": "bold reverse",
    "chosen": "bold black on cyan",
    "banner": "bold black on yellow",
    "alarm": "bold",
    "stale": "bold white on red",
    "active": "green",
    "idle": "blue",
    "unknown": "magenta",
    "held": "bold black on yellow",
    "down": "bold white on red",
    "bar": "green",
    "cursor": "reverse",
    "key": "bold",
}
_PLAIN = {
    **_COLORED,
    **dict.fromkeys(("active", "idle", "unknown", "bar"), ""),
    **dict.fromkeys(("chosen", "banner", "stale", "held", "down"), "reverse"),
}


@cache
def style(role: str, *, colored: bool = True) -> Style:
    """The style of a role; without colors only weight and reverse video remain."""
    return Style.parse((_COLORED if colored else _PLAIN)[role])


def ansi_text(line: Iterable[Span], *, colored: bool) -> str:
    """A line with the ANSI escape sequences of its styles, for output that is written once."""
    return "".join(
        style(role, colored=colored).render(text, color_system=ColorSystem.STANDARD) for text, role in line
    ).rstrip()

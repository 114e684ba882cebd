"""Roles as styles.

Texts keep the terminal's own colours, which its user can read; a colour is on a sign or a bar beside a word,
or sets both the foreground and the background.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from rich.color import ColorSystem
from rich.style import Style

from gpuledger.terminal.line import Span

_COLOURED = {
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
    "lost": "bold white on red",
    "bar": "green",
    "cursor": "reverse",
    "key": "bold",
}
_PLAIN = {
    **_COLOURED,
    **dict.fromkeys(("active", "idle", "unknown", "bar"), ""),
    **dict.fromkeys(("chosen", "banner", "stale", "held", "lost"), "reverse"),
}


@cache
def style(role: str, *, coloured: bool = True) -> Style:
    """The style of a role; without colours, weight and reversal are left."""
    return Style.parse((_COLOURED if coloured else _PLAIN)[role])


def painted(line: Iterable[Span], *, coloured: bool) -> str:
    """A line with the escape sequences of its styles, for a terminal that is written to once."""
    return "".join(
        style(role, coloured=coloured).render(text, color_system=ColorSystem.STANDARD) for text, role in line
    ).rstrip()

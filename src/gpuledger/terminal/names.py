"""Names from outside, made safe to draw on a terminal.

A process chooses its own name. Escape sequences in it could move the cursor, set the title or answer for
the user; bidirectional controls could show one owner as another; piles of marks paint over other lines.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import cell_len

# A letter of some scripts bears two marks; one that bears more is meant to disturb.
_MARKS = 2
_LONGEST = 256


# The same few names come back at every picture.
@lru_cache(maxsize=16_384)
def clean(name: str) -> str:
    """One line that takes only its own place; what is not such text is spelled out, as `\\x1b`."""
    if name.isascii() and name.isprintable():
        return name[:_LONGEST]
    return "".join(_safe(name[:_LONGEST]))


def _safe(name: str) -> list[str]:
    parts: list[str] = []
    marks = 0
    for sign in name:
        category = unicodedata.category(sign)
        marks = marks + 1 if category == "Mn" else 0
        # Without a letter before it, a mark would sit on what is drawn to its left. Variation selectors
        # (of category Mn) change how wide the sign before them is, and terminals do not agree by how much.
        misplaced = marks > _MARKS or (marks == 1 and (not parts or parts[-1] == " "))
        selector = 0xFE00 <= ord(sign) <= 0xFE0F or 0xE0100 <= ord(sign) <= 0xE01EF
        # The colour of a skin, say, is no sign of its own.
        modifier = category != "Mn" and cell_len(sign) == 0
        if not sign.isprintable() or category == "Me" or misplaced or selector or modifier:
            parts.append(sign.encode("unicode_escape").decode() if ord(sign) != 0x5C else sign)
        else:
            parts.append(sign)
    return parts

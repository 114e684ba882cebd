"""How much memory the last pages of all targets may take unpacked: quicker to go on from, but large."""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20
# Of a line in memory beyond its text and what it became: two objects' heads, and a place in a dictionary.
_LINE_BYTES: Final = 140


class PageMemory:
    """Shared by all targets; used by one thread. `limit` and `used` are bytes, estimated.

    Who comes first has it; who has none is packed between scrapes, and served all the same.
    """

    def __init__(self, limit: int = 96 * MIB) -> None:
        self.limit = limit
        self.used = 0

    def exchange(self, held: int, wanted: int) -> int:
        """Give back what is held for what is wanted: answers that, or 0 where it does not fit."""
        self.used -= held
        if self.used + wanted > self.limit:
            return 0
        self.used += wanted
        return wanted


def unpacked_bytes(text: int, lines: int, entries: int) -> int:
    """What a page takes: bytes of its text, number of its lines, bytes of what they became."""
    return text + entries + lines * _LINE_BYTES

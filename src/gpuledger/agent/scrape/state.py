"""What is known of the scraping, for the page and for the agent's own metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpuledger.agent.scrape.reader import Counts


@dataclass(slots=True)
class TargetState:
    """One target as it was scraped last; changed in place by its loop. `answered`: its endpoint gave a page,
    which `up` says could be taken; None: not scraped yet. Times are unix seconds.
    """

    answered: bool | None = None
    up: bool | None = None
    error: str = ""
    last_scrape: float | None = None
    last_success: float | None = None
    duration: float | None = None
    counts: Counts = field(default_factory=Counts)
    body_bytes: int | None = None
    kept_bytes: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class GroupTotals:
    """What the targets of one group have come to since the start, those that are gone included.

    `failures` counts scrapes by reason, `missed` beats on which the scrape before was still running,
    `delivered` samples handed over, markers included, `duplicates` samples that a page told twice.
    """

    scrapes: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    delivered: int = 0
    duplicates: int = 0
    seconds: float = 0.0


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

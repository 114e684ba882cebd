"""Scrape state of targets and groups, for the status page and the agent's own metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpuledger.agent.scrape.page_reader import SampleCounts


@dataclass(slots=True)
class TargetState:
    """Result of a target's last scrape; its scrape loop updates it in place.

    `answered`: the endpoint returned a page. `up`: the page was accepted. None: not scraped yet. Times are
    unix seconds.
    """

    answered: bool | None = None
    up: bool | None = None
    error: str = ""
    last_scrape: float | None = None
    last_success: float | None = None
    duration: float | None = None
    counts: SampleCounts = field(default_factory=SampleCounts)
    body_bytes: int | None = None
    kept_bytes: int = 0
    duplicates: int = 0
    ahead: int = 0


@dataclass(slots=True)
class GroupTotals:
    """Counters of one group's targets since the start, including targets that are gone.

    `failures` counts failed scrapes by reason, `missed` the intervals skipped because the previous scrape was
    still running, `queued_samples` samples queued for delivery including staleness markers, `duplicates`
    repeated samples of a series, `ahead` samples with a timestamp too far in the future.
    """

    scrapes: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    queued_samples: int = 0
    duplicates: int = 0
    ahead: int = 0
    seconds: float = 0.0


MIB: Final = 1 << 20


class PageMemoryBudget:
    """Memory budget for unpacked page caches, shared by all targets. Not thread-safe.

    `limit` and `used` are estimated bytes. First come, first served: a target without a reservation packs its
    cache between scrapes.
    """

    def __init__(self, limit: int = 96 * MIB) -> None:
        self.limit = limit
        self.used = 0

    def replace_reservation(self, held: int, requested: int) -> int:
        """Replace a reservation of `held` bytes. Returns `requested`, or 0 if that does not fit."""
        self.used -= held
        if self.used + requested > self.limit:
            return 0
        self.used += requested
        return requested

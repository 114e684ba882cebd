"""Limits for the machine instructions of a tick, a page and a scrape."""

from __future__ import annotations

from instruction_counts import instructions_per_repetition

# Millions, for 8 GPUs and 64 processes: a third more than CPython 3.11 needed on 2026-11-28; for `store` 1.1
# times what it needed on 2026-11-30 (17.00), before the numbers of receipts.
MOST = {"post": 13.5, "store": 18.7, "render": 49.0, "scrape": 0.07}


def test_instruction_counts_are_below_their_limits() -> None:
    counts = {work: count / 1e6 for work, count in instructions_per_repetition(3).items()}
    assert counts.keys() == MOST.keys()
    assert {work: count for work, count in counts.items() if not 0 < count < MOST[work]} == {}

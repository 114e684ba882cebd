"""Limits for the machine instructions of a tick, a page and a scrape."""

from __future__ import annotations

import pytest

from instruction_counts import instructions_per_repetition

# One worker, so that the baseline is counted once.
pytestmark = pytest.mark.xdist_group("instructions")

# Millions, for 8 GPUs and 64 processes: a third more than CPython 3.11 needed on 2026-11-28.
MOST = {"post": 13.5, "render": 49.0, "scrape": 0.07}


@pytest.mark.parametrize("work", MOST)
def test_the_instruction_count_is_below_its_limit(work: str) -> None:
    assert 0 < instructions_per_repetition(work) / 1e6 < MOST[work]

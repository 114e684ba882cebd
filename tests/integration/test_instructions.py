"""A tick, a page and a scrape take no more machine instructions than they did: counted, not timed."""

from __future__ import annotations

import pytest

from instruction_counts import per_piece

# One process counts what all are compared with.
pytestmark = pytest.mark.xdist_group("instructions")

# Millions, of 8 GPUs and 64 processes: what CPython 3.11 took on 2026-11-28, and a third more.
MOST = {"post": 13.5, "render": 49.0, "scrape": 0.07}


@pytest.mark.parametrize("work", MOST)
def test_it_takes_no_more_instructions_than_it_did(work: str) -> None:
    assert 0 < per_piece(work) / 1e6 < MOST[work]

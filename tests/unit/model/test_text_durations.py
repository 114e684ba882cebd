"""Durations as Prometheus writes them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.model.settings import duration
from gpuledger.model.text import as_prometheus

# As Prometheus 2.42 shows them at /api/v1/targets.
WRITTEN = ["100ms", "1s500ms", "10s", "1m", "1m30s", "1h", "1d", "1d1h", "1w", "8d", "1y"]


@pytest.mark.parametrize("written", [*WRITTEN, "0s"])
def test_a_duration_is_written_as_prometheus_writes_it(written: str) -> None:
    assert as_prometheus(duration()(written)) == written


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 366 * 86_400_000))
def test_what_is_written_is_read_again_to_the_millisecond(milliseconds: int) -> None:
    assert round(duration()(as_prometheus(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize(("seconds", "written"), [(0.0004, "0s"), (0.0006, "1ms"), (59.9996, "1m")])
def test_what_is_finer_than_a_millisecond_is_rounded(seconds: float, written: str) -> None:
    assert as_prometheus(seconds) == written

"""Durations formatted like Prometheus."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.settings import duration
from gpuledger.model.text import format_duration

# Durations in /api/v1/targets of Prometheus 2.42.
WRITTEN = ["100ms", "1s500ms", "10s", "1m", "1m30s", "1h", "1d", "1d1h", "1w", "8d", "1y"]


@pytest.mark.parametrize("written", [*WRITTEN, "0s"])
def test_a_duration_is_formatted_like_prometheus(written: str) -> None:
    assert format_duration(duration()(written)) == written


@given(st.integers(0, 366 * 86_400_000))
def test_a_formatted_duration_is_parsed_back_to_the_millisecond(milliseconds: int) -> None:
    assert round(duration()(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize(("seconds", "written"), [(0.0004, "0s"), (0.0006, "1ms"), (59.9996, "1m")])
def test_durations_are_rounded_to_milliseconds(seconds: float, written: str) -> None:
    assert format_duration(seconds) == written

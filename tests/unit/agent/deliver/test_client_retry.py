"""Retry decisions: statuses, Retry-After, backoff and the number of shards."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.deliver.client import backoff_delay, desired_shards, must_retry, parse_retry_after

NOW = 1_795_000_000.0


@pytest.mark.parametrize(
    ("status", "retried"),
    [
        (200, False),
        (204, False),
        (299, False),
        (301, True),
        (307, True),
        (400, False),
        (401, False),
        (413, False),
        (429, True),
        (499, False),
        (500, True),
        (503, True),
        (599, True),
    ],
)
def test_a_status_is_retried_or_final(status: int, retried: bool) -> None:
    assert must_retry(status, retry_429=True) is retried
    assert must_retry(status, retry_429=False) is (retried and status != 429)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", 0),
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("-7", 0),
        ("7.5", 0),
        ("soon", 0),
        ("\u0667", 0),
        ("9" * 400, 3600),
        (formatdate(NOW + 90, usegmt=True), 90),
        (formatdate(NOW - 90, usegmt=True), 0),
        (formatdate(NOW + 90), 90),
        ("Mon, 99 Foo 2026 00:00:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_an_hour_at_most(value: str, seconds: float) -> None:
    assert parse_retry_after(value, NOW) == seconds


@given(st.text(max_size=30))
def test_any_retry_after_text_gives_a_valid_delay(value: str) -> None:
    assert 0 <= parse_retry_after(value, NOW) <= 3600


@given(st.floats(0, 1), st.integers(0, 2000))
def test_a_backoff_is_between_half_of_min_and_max(chance: float, failures: int) -> None:
    waits = [backoff_delay(failure, 0.03, 5.0, chance) for failure in range(failures + 1)]
    assert all(0.015 <= wait <= 5.0 for wait in waits)
    assert waits == sorted(waits)


@pytest.mark.parametrize(
    ("now", "seconds_per_sample", "rate", "queued", "wanted"),
    [
        # Keeps up: no change.
        (1, 1e-5, 30_000, 0, 1),
        # A receiver 0.2 s away, 2,000 samples a request.
        (1, 1e-4, 33_000, 0, 4),
        (4, 1e-4, 33_000, 0, 4),
        # A backlog is drained within a minute.
        (1, 1e-4, 10_000, 3_000_000, 7),
        # Within max_shards and min_shards.
        (1, 1e-2, 33_000, 0, 50),
        (10, 1e-6, 100, 0, 1),
    ],
)
def test_the_number_of_shards_follows_rate_latency_and_backlog(
    now: int, seconds_per_sample: float, rate: float, queued: int, wanted: int
) -> None:
    assert desired_shards(now, 1, 50, seconds_per_sample, rate, queued) == wanted

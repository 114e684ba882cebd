"""What an answer means, and how long to wait."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.agent.deliver.client import Backoff, Verdict, retry_after, verdict, wanted_shards

NOW = 1_795_000_000.0


@pytest.mark.parametrize(
    ("status", "meant"),
    [
        (200, Verdict.DONE),
        (204, Verdict.DONE),
        (299, Verdict.DONE),
        (301, Verdict.AGAIN),
        (307, Verdict.AGAIN),
        (400, Verdict.REFUSED),
        (401, Verdict.REFUSED),
        (413, Verdict.REFUSED),
        (429, Verdict.AGAIN),
        (499, Verdict.REFUSED),
        (500, Verdict.AGAIN),
        (503, Verdict.AGAIN),
        (599, Verdict.AGAIN),
    ],
)
def test_what_a_status_means(status: int, meant: Verdict) -> None:
    assert verdict(status, retry_429=True) is meant
    assert verdict(status, retry_429=False) is (Verdict.REFUSED if status == 429 else meant)


@pytest.mark.parametrize(
    ("said", "seconds"),
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
def test_retry_after_is_seconds_or_a_date_and_an_hour_at_most(said: str, seconds: float) -> None:
    assert retry_after(said, NOW) == seconds


@given(st.text(max_size=30))
@settings(deadline=None, max_examples=200)
def test_no_retry_after_is_an_error(said: str) -> None:
    assert 0 <= retry_after(said, NOW) <= 3600


@given(st.floats(0, 1), st.integers(0, 2000))
@settings(deadline=None, max_examples=50)
def test_a_wait_is_between_half_the_lowest_and_the_highest(chance: float, failures: int) -> None:
    backoff = Backoff(0.03, 5.0, lambda: chance)
    waits = [backoff.next() for _ in range(failures + 1)]
    assert all(0.015 <= wait <= 5.0 for wait in waits)
    assert waits == sorted(waits)
    backoff.reset()
    assert backoff.next() == waits[0]


@pytest.mark.parametrize(
    ("now", "seconds_per_sample", "rate", "queued", "wanted"),
    [
        # Keeps up: stays.
        (1, 1e-5, 30_000, 0, 1),
        # A receiver 0.2 s away, 2,000 samples a request.
        (1, 1e-4, 33_000, 0, 4),
        (4, 1e-4, 33_000, 0, 4),
        # A backlog is worked off in a minute.
        (1, 1e-4, 10_000, 3_000_000, 7),
        # No more than is allowed, no fewer either.
        (1, 1e-2, 33_000, 0, 50),
        (10, 1e-6, 100, 0, 1),
    ],
)
def test_as_many_shards_as_the_way_to_the_receiver_needs(
    now: int, seconds_per_sample: float, rate: float, queued: int, wanted: int
) -> None:
    assert wanted_shards(now, 1, 50, seconds_per_sample, rate, queued) == wanted

"""Parsing of points in time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gpuledger.ledger.report.moments import parse_moment
from gpuledger.model.errors import UsageError

# Saturday, 2026-11-28 08:30 UTC.
NOW = 1_795_854_600.0
DAY = 86_400


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New York: five hours behind UTC, four until the first of November."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("written", "unix"),
    [
        ("now", NOW),
        ("36h", NOW - 36 * 3600),
        ("7d", NOW - 7 * DAY),
        ("90m", NOW - 5400),
        ("today", 1_795_842_000),
        ("yesterday", 1_795_842_000 - DAY),
        ("month", 1_793_505_600),
        ("2026-11-01", 1_793_505_600),
        ("2026-11-28T08:00", 1_795_870_800),
        ("2026-11-28T08:00Z", 1_795_852_800),
        ("2026-11-28 08:00:00+01:00", 1_795_849_200),
        ("1970-01-01T00:00Z", 0),
    ],
)
def test_a_moment_is_parsed(written: str, unix: float) -> None:
    assert parse_moment("--since", written, NOW) == unix


@pytest.mark.parametrize(
    "written",
    ["", "soon", "2026-13-01", "5 parsecs", "7x", "1e99d", "-3h", "99999-01-01", "9999-12-31T23:30"],
)
def test_an_invalid_moment_names_the_expected_forms(written: str) -> None:
    with pytest.raises(UsageError, match=r"^--since: expected an age \(36h, 7d\), a date .* not '"):
        parse_moment("--since", written, NOW)

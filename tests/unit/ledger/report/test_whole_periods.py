"""Whole periods of a time zone, their first instants, and this and the last one."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.moments import parse_moment, parse_whole_period
from gpuledger.ledger.report.report_keys import EVERY
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.ledger.zone_hours import is_full_hour
from gpuledger.model.errors import UsageError
from unit.ledger.report.zones import BERLIN, ZONES, unix

# A Sunday.
NOW = unix("2026-11-29T11:45:20+00:00")
PERIODS = [
    ("2026-11", "2026-11-01T00:00+01:00", "2026-12-01T00:00+01:00"),
    ("2026-12", "2026-12-01T00:00+01:00", "2027-01-01T00:00+01:00"),
    ("2026", "2026-01-01T00:00+01:00", "2027-01-01T00:00+01:00"),
    ("2026-11-30", "2026-11-30T00:00+01:00", "2026-12-01T00:00+01:00"),
    ("20261130", "2026-11-30T00:00+01:00", "2026-12-01T00:00+01:00"),
    ("2026-W48", "2026-11-23T00:00+01:00", "2026-11-30T00:00+01:00"),
    ("2026-w53", "2026-12-28T00:00+01:00", "2027-01-04T00:00+01:00"),
    ("2026-11-28T13", "2026-11-28T13:00+01:00", "2026-11-28T14:00+01:00"),
    ("today", "2026-11-29T00:00+01:00", "2026-11-30T00:00+01:00"),
    ("yesterday", "2026-11-28T00:00+01:00", "2026-11-29T00:00+01:00"),
    ("this hour", "2026-11-29T12:00+01:00", "2026-11-29T13:00+01:00"),
    ("last hour", "2026-11-29T11:00+01:00", "2026-11-29T12:00+01:00"),
    ("last day", "2026-11-28T00:00+01:00", "2026-11-29T00:00+01:00"),
    ("this week", "2026-11-23T00:00+01:00", "2026-11-30T00:00+01:00"),
    ("last week", "2026-11-16T00:00+01:00", "2026-11-23T00:00+01:00"),
    ("month", "2026-11-01T00:00+01:00", "2026-12-01T00:00+01:00"),
    ("this month", "2026-11-01T00:00+01:00", "2026-12-01T00:00+01:00"),
    ("Last  Month", "2026-10-01T00:00+02:00", "2026-11-01T00:00+01:00"),
    ("last-month", "2026-10-01T00:00+02:00", "2026-11-01T00:00+01:00"),
    ("last year", "2025-01-01T00:00+01:00", "2026-01-01T00:00+01:00"),
    # 23 and 25 hours.
    ("2026-03-29", "2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00"),
    ("2026-10-25", "2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"),
    # Both hours that clocks call 2.
    ("2026-10-25T02", "2026-10-25T02:00+02:00", "2026-10-25T03:00+01:00"),
]


@pytest.mark.parametrize(("text", "begins", "ends"), PERIODS)
def test_a_whole_period_of_the_zone(text: str, begins: str, ends: str) -> None:
    assert parse_whole_period("--in", text, NOW, BERLIN) == (unix(begins), unix(ends))


@pytest.mark.parametrize(("text", "begins", "ends"), PERIODS)
def test_a_moment_in_the_same_form_is_the_periods_first_instant(text: str, begins: str, ends: str) -> None:
    assert parse_moment("--since", text, NOW, BERLIN) == unix(begins)


@pytest.mark.parametrize(
    ("zone", "now", "text", "begins", "ends"),
    [
        ("Europe/Berlin", "2026-10-25T00:30", "this hour", "2026-10-25T00:00", "2026-10-25T01:00"),
        ("Europe/Berlin", "2026-10-25T01:30", "this hour", "2026-10-25T01:00", "2026-10-25T02:00"),
        ("Europe/Berlin", "2026-10-25T01:30", "last hour", "2026-10-25T00:00", "2026-10-25T01:00"),
        ("Australia/Lord_Howe", "2026-10-03T15:45", "this hour", "2026-10-03T15:30", "2026-10-03T16:00"),
        ("Australia/Lord_Howe", "2026-10-03T15:45", "last hour", "2026-10-03T14:30", "2026-10-03T15:30"),
    ],
)
def test_this_and_the_last_hour_where_clocks_change(
    zone: str, now: str, text: str, begins: str, ends: str
) -> None:
    found = parse_whole_period("--in", text, unix(f"{now}+00:00"), ZoneInfo(zone))
    assert found == (unix(f"{begins}+00:00"), unix(f"{ends}+00:00"))


@pytest.mark.parametrize(
    "text", ["", "now", "7d", "2026-13", "2026-11-31", "2026-W54", "2026-11-30T08:15", "next month", "2026-1"]
)
def test_what_is_no_whole_period_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--in: expected a month \(2026-11\), a day .* not '"):
        parse_whole_period("--in", text, NOW, BERLIN)


def test_a_day_that_the_clocks_skipped_is_refused() -> None:
    with pytest.raises(UsageError, match="--in 2011-12-30: the clocks of this time zone skipped it"):
        parse_whole_period("--in", "2011-12-30", NOW, ZoneInfo("Pacific/Apia"))


@pytest.mark.parametrize(
    ("zone", "text", "begins"),
    [
        # Clocks go from 0:00 to 1:00: the day begins at 1:00.
        ("Africa/Cairo", "2026-04-24", "2026-04-24T01:00+03:00"),
        # Clocks go from 1:00 to 0:00: the day begins at the first 0:00.
        ("America/Havana", "2026-11-01", "2026-11-01T00:00-04:00"),
        ("Europe/Berlin", "2026-03-29T02:30", "2026-03-29T03:00+02:00"),
        ("Australia/Lord_Howe", "2026-10-04T02:10", "2026-10-04T02:30+11:00"),
        ("Europe/Berlin", "2026-10-25T02:30", "2026-10-25T02:30+02:00"),
        ("Asia/Kathmandu", "2026-11", "2026-11-01T00:00+05:45"),
    ],
)
def test_the_first_instant_where_clocks_change(zone: str, text: str, begins: str) -> None:
    assert parse_moment("--since", text, NOW, ZoneInfo(zone)) == unix(begins)


@given(st.sampled_from(ZONES), st.integers(1_340_000_000, 4_000_000_000), st.sampled_from(("hour", *EVERY)))
def test_this_and_the_last_period_meet_and_hold_now(zone: ZoneInfo, now: int, unit: str) -> None:
    last = parse_whole_period("--in", f"last {unit}", now, zone)
    this = parse_whole_period("--in", f"this {unit}", now, zone)
    assert last[0] < last[1] == this[0] <= now < this[1]
    assert is_full_hour(int(this[0]) // QUARTER, zone)

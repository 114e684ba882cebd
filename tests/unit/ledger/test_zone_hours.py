"""Full hours of time zones, in quarters."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.watched_time import QUARTER
from gpuledger.ledger.zone_hours import hour_begins, hour_ends, is_full_hour, local_time

ZONES = (
    "UTC",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/St_Johns",
    "Europe/Berlin",
    "Pacific/Chatham",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "Pacific/Apia",
)
QUARTERS = st.integers(0, 5_000_000)
zones = st.sampled_from(ZONES).map(ZoneInfo) | st.integers(-1400, 1400).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)


def quarter_of(utc: str) -> int:
    return int(datetime.fromisoformat(utc + "+00:00").timestamp()) // QUARTER


# The zone, a time in UTC, and the local times at which its full hour begins and ends.
TABLE = [
    ("UTC", "2026-11-29T11:59", "11:00+00:00", "12:00+00:00"),
    ("Asia/Kolkata", "2026-11-29T11:29", "16:00+05:30", "17:00+05:30"),
    ("Asia/Kolkata", "2026-11-29T11:30", "17:00+05:30", "18:00+05:30"),
    ("Asia/Kathmandu", "2026-11-29T11:14", "16:00+05:45", "17:00+05:45"),
    ("Asia/Kathmandu", "2026-11-29T11:15", "17:00+05:45", "18:00+05:45"),
    ("America/St_Johns", "2026-11-29T11:29", "07:00-03:30", "08:00-03:30"),
    ("America/St_Johns", "2026-07-01T11:30", "09:00-02:30", "10:00-02:30"),
    # Forward at 2:00 to 3:00, and back at 3:00 to 2:00: no short hour, and two hours called 2.
    ("Europe/Berlin", "2026-03-29T00:59", "01:00+01:00", "03:00+02:00"),
    ("Europe/Berlin", "2026-03-29T01:00", "03:00+02:00", "04:00+02:00"),
    ("Europe/Berlin", "2026-10-25T00:30", "02:00+02:00", "02:00+01:00"),
    ("Europe/Berlin", "2026-10-25T01:30", "02:00+01:00", "03:00+01:00"),
    # Forward at 2:00 to 2:30: half an hour called 2.
    ("Australia/Lord_Howe", "2026-10-03T15:29", "01:00+10:30", "02:30+11:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30", "02:30+11:00", "03:00+11:00"),
    ("Australia/Lord_Howe", "2026-10-03T16:00", "03:00+11:00", "04:00+11:00"),
    # Back at 2:00 to 1:30: an hour and a half called 1, an hour of it at the old offset.
    ("Australia/Lord_Howe", "2026-04-04T14:59", "01:00+11:00", "01:30+10:30"),
    ("Australia/Lord_Howe", "2026-04-04T15:15", "01:30+10:30", "02:00+10:30"),
    ("Australia/Lord_Howe", "2026-04-04T15:30", "02:00+10:30", "03:00+10:30"),
]


@pytest.mark.parametrize(("name", "utc", "begins", "ends"), TABLE)
def test_the_full_hour_around_a_quarter(name: str, utc: str, begins: str, ends: str) -> None:
    zone, quarter = ZoneInfo(name), quarter_of(utc)

    def clock(at: int) -> str:
        return local_time(at, zone).isoformat()[11:16] + local_time(at, zone).isoformat()[-6:]

    assert clock(hour_begins(quarter, zone)) == begins
    assert clock(hour_ends(quarter, zone)) == ends


@given(QUARTERS, zones)
def test_hours_are_a_partition_of_the_quarters(quarter: int, zone: tzinfo) -> None:
    begins, ends = hour_begins(quarter, zone), hour_ends(quarter, zone)
    assert begins <= quarter < ends <= begins + 4
    assert is_full_hour(begins, zone)
    assert is_full_hour(ends, zone)
    for other in range(begins, ends):
        assert (hour_begins(other, zone), hour_ends(other, zone)) == (begins, ends)


@given(QUARTERS, zones)
def test_a_full_hour_has_one_local_hour_and_one_offset(quarter: int, zone: tzinfo) -> None:
    begins, ends = hour_begins(quarter, zone), hour_ends(quarter, zone)
    marks = [(local_time(at, zone).hour, local_time(at, zone).utcoffset()) for at in range(begins, ends)]
    assert len(set(marks)) == 1
    for outside in (begins - 1, ends):
        assert (local_time(outside, zone).hour, local_time(outside, zone).utcoffset()) != marks[0]


@given(st.dates(datetime(2012, 1, 1).date(), datetime(2099, 12, 30).date()), st.sampled_from(ZONES))
def test_a_day_begins_with_a_full_hour(day: object, name: str) -> None:
    zone = ZoneInfo(name)
    midnight = datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=zone)
    assert is_full_hour(int(midnight.timestamp()) // QUARTER, zone)

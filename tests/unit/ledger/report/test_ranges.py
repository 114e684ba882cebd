"""Ranges of reports: their ends, cuts and parts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.ranges import (
    UTC_DAY,
    RequestedRange,
    parse_range,
    resolve_range,
    split_range,
)
from gpuledger.ledger.report.report_keys import EVERY
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.ledger.zone_hours import hour_begins, hour_ends
from gpuledger.model.errors import UsageError
from unit.ledger.report.zones import BERLIN, ZONES, unix

# A Sunday.
NOW = unix("2026-11-29T11:45:20+00:00")


def every_quarter(quarter: int) -> tuple[int, int]:
    return quarter, quarter


def full_hours(zone: ZoneInfo) -> Callable[[int], tuple[int, int]]:
    def cuts_around(quarter: int) -> tuple[int, int]:
        begins = hour_begins(quarter, zone)
        return (quarter, quarter) if begins == quarter else (begins, hour_ends(quarter, zone))

    return cuts_around


def requested_ends(since: str, until: str = "now") -> RequestedRange:
    return parse_range(since, until, "", NOW, UTC)


def test_a_whole_period_counts_instead_of_both_ends() -> None:
    found = parse_range("soon", "soon", "last month", NOW, BERLIN)
    ends = (unix("2026-10-01T00:00+02:00"), unix("2026-11-01T00:00+01:00"))
    assert found == RequestedRange(*ends, "--in last month", "--in last month", BERLIN)


RESOLVED = [
    # Requested since and until, and the ends in a ledger that is cut at quarters until 11:45:15.
    ("2026-11-29T10:00", "2026-11-29T11:00", "10:00:00", "11:00:00"),
    ("2026-11-29T10:07:29", "2026-11-29T11:07:30", "10:00:00", "11:15:00"),
    ("2026-11-29T10:07:30", "now", "10:15:00", "11:45:15"),
    ("2026-11-29T10:00", "2026-12-01", "10:00:00", "11:45:15"),
    ("2026-11-29T10:00", "2026-11-29T11:45:15", "10:00:00", "11:45:15"),
    ("2026-11-29T10:00", "2026-11-29T11:45:04", "10:00:00", "11:45:00"),
    ("2026-11-29T10:00", "2026-11-29T11:45:14", "10:00:00", "11:45:15"),
    ("2026-11-29T11:45:02", "now", "11:45:00", "11:45:15"),
]


@pytest.mark.parametrize(("since", "until", "begins", "ends"), RESOLVED)
def test_an_end_is_the_last_posting_or_the_nearest_cut(
    since: str, until: str, begins: str, ends: str
) -> None:
    last = unix("2026-11-29T11:45:15+00:00")
    found = resolve_range(requested_ends(since, until), every_quarter, last)
    assert found.since == unix(f"2026-11-29T{begins}+00:00")
    assert found.until == unix(f"2026-11-29T{ends}+00:00")
    assert (found.ends - 1) * QUARTER < found.until <= found.ends * QUARTER


def test_an_end_in_summed_history_moves_to_a_full_hour_of_its_zone() -> None:
    cuts = full_hours(ZoneInfo("Asia/Kolkata"))
    requested = parse_range("2026-11-28T11:00", "2026-11-28T13:10", "", NOW, BERLIN)
    found = resolve_range(requested, cuts, NOW)
    assert (found.since, found.until) == (unix("2026-11-28T10:30+00:00"), unix("2026-11-28T12:30+00:00"))
    assert found.zone == BERLIN
    assert found.notes == (
        "The range begins at 2026-11-28 11:30 +0100, the nearest cut of the ledger, in place of "
        "2026-11-28 11:00 +0100.",
        "The range ends at 2026-11-28 13:30 +0100, the nearest cut of the ledger, in place of "
        "2026-11-28 13:10 +0100.",
    )


def test_an_end_after_the_last_posting_moves_to_it() -> None:
    requested = parse_range("2026-11-29T12:00", "2026-11-29T13:00", "", NOW, BERLIN)
    assert resolve_range(requested, every_quarter, NOW).notes == (
        "The range ends at 2026-11-29 12:45 +0100, the last posting of the ledger, in place of "
        "2026-11-29 13:00 +0100.",
    )


@pytest.mark.parametrize(
    ("since", "until", "notes"),
    [("7d", "2h", 0), ("2026-11-28T10:07", "2h", 1), ("36h", "2026-11-29T08:07", 1), ("month", "now", 0)],
)
def test_an_age_moves_to_a_cut_without_a_sentence(since: str, until: str, notes: int) -> None:
    last = unix("2026-11-29T11:37:15+00:00")
    requested = parse_range(since, until, "", last, UTC)
    assert len(resolve_range(requested, every_quarter, last).notes) == notes


@pytest.mark.parametrize(
    ("until", "notes"),
    [
        ("now", 0),
        ("2026-11-29T11:45:15", 0),
        ("2026-11-29T11:46:15", 0),
        ("2026-11-29T11:46:16", 1),
        ("2026-11-29T11:01:00", 0),
        ("2026-11-29T11:01:01", 1),
        ("2026-11-30", 1),
    ],
)
def test_a_move_of_more_than_a_minute_is_reported(until: str, notes: int) -> None:
    last = unix("2026-11-29T11:45:15+00:00")
    assert len(resolve_range(requested_ends("2026-11-29T10:00", until), every_quarter, last).notes) == notes


@pytest.mark.parametrize(("first", "notes"), [("10:00", 1), ("10:15", 0), ("10:30", 0)])
def test_a_begin_before_the_first_data_moves_without_a_sentence(first: str, notes: int) -> None:
    begin = unix(f"2026-11-29T{first}+00:00")
    requested = requested_ends("2026-11-29T10:12")
    assert len(resolve_range(requested, every_quarter, NOW, begin).notes) == notes


def test_now_is_the_last_posting_even_if_the_clock_was_set_back() -> None:
    ahead = NOW + 7200
    assert resolve_range(requested_ends("1h"), every_quarter, ahead).until == ahead


@pytest.mark.parametrize(
    ("since", "until", "period", "error"),
    [
        ("now", "7d", "", "--since now is not before --until 7d"),
        ("2026-11-02", "2026-11-01", "", "--since 2026-11-02 is not before --until 2026-11-01"),
        ("2026-11-02", "2026-11-02", "", "--since 2026-11-02 is not before --until 2026-11-02"),
        (
            "2026-11-29T10:01",
            "2026-11-29T10:05",
            "",
            "--since 2026-11-29T10:01 --until 2026-11-29T10:05 has no cut of the ledger inside: the nearest "
            "are 2026-11-29 10:00 +0000 and 2026-11-29 10:15 +0000; use them as --since and --until",
        ),
        (
            "2027-01-01",
            "now",
            "",
            "--since 2027-01-01 begins at 2027-01-01 00:00 +0000, and the last posting of the ledger is at "
            "2026-11-29 11:45 +0000: there is nothing in this range",
        ),
        (
            "7d",
            "now",
            "2026-12",
            "--in 2026-12 begins at 2026-12-01 00:00 +0000, and the last posting of the ledger is at "
            "2026-11-29 11:45 +0000: there is nothing in this range",
        ),
    ],
)
def test_an_empty_range_is_refused_with_the_reason(since: str, until: str, period: str, error: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve_range(parse_range(since, until, period, NOW, UTC), every_quarter, NOW)
    assert str(refused.value) == error


@pytest.mark.parametrize(("since", "until", "flag"), [("soon", "now", "--since"), ("7d", "soon", "--until")])
def test_a_malformed_end_is_named_with_its_flag(since: str, until: str, flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag}: expected an age .* not 'soon'"):
        parse_range(since, until, "", NOW, UTC)


def test_a_range_after_the_last_posting_is_refused_with_the_times_of_its_zone() -> None:
    with pytest.raises(UsageError, match=r"at 2027-01-01 00:00 \+0100, .* at 2026-11-29 12:45 \+0100: "):
        resolve_range(parse_range("2027-01-01", "now", "", NOW, BERLIN), every_quarter, NOW)


@given(st.integers(0, 40_000), st.integers(0, 40_000), st.integers(0, 40_000), st.sampled_from(ZONES))
def test_ranges_that_meet_anywhere_add_up(first: int, middle: int, end: int, zone: ZoneInfo) -> None:
    cuts, base = full_hours(zone), NOW - 50_000
    first, middle, end = sorted((first, middle, end))

    def found(since: float, until: float) -> tuple[float, float] | None:
        try:
            resolved = resolve_range(RequestedRange(base + since, base + until, "a", "b", UTC), cuts, NOW)
        except UsageError:
            return None
        return resolved.since, resolved.until

    whole, parts = found(first, end), [found(first, middle), found(middle, end)]
    known = [part for part in parts if part is not None]
    if whole is None:
        assert not known
    else:
        assert (known[0][0], known[-1][1]) == whole
        assert all(before[1] == after[0] for before, after in pairwise(known))


def parts(since: str, until: str, every: str, zone: ZoneInfo) -> list[tuple[str, float]]:
    begins, ends = (int(unix(text)) // QUARTER for text in (since, until))
    found, notes = split_range(begins, ends, every, every_quarter, zone)
    assert not notes
    return [(part.name, (part.ends - part.begins) / 4) for part in found]


@pytest.mark.parametrize(
    ("every", "since", "until", "expected"),
    [
        (
            "day",
            "2026-03-28T12:00+01:00",
            "2026-03-30T06:00+02:00",
            [("2026-03-28", 12), ("2026-03-29", 23), ("2026-03-30", 6)],
        ),
        ("day", "2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00", [("2026-10-25", 25)]),
        (
            "hour",
            "2026-10-25T01:30+02:00",
            "2026-10-25T03:15+01:00",
            [
                ("2026-10-25 01:00 +0200", 0.5),
                ("2026-10-25 02:00 +0200", 1),
                ("2026-10-25 02:00 +0100", 1),
                ("2026-10-25 03:00 +0100", 0.25),
            ],
        ),
        (
            "week",
            "2026-12-27T00:00+01:00",
            "2027-01-05T00:00+01:00",
            [("2026-W52", 24), ("2026-W53", 168), ("2027-W01", 24)],
        ),
        (
            "month",
            "2026-09-30T00:00+02:00",
            "2026-11-02T00:00+01:00",
            [("2026-09", 24), ("2026-10", 31 * 24 + 1), ("2026-11", 24)],
        ),
    ],
)
def test_the_parts_of_a_range(every: str, since: str, until: str, expected: list[tuple[str, float]]) -> None:
    assert parts(since, until, every, BERLIN) == expected


@pytest.mark.parametrize(
    ("zone", "moved"), [("Europe/Berlin", ""), ("Asia/Kolkata", "2 of 2 UTC days begin at ")]
)
def test_days_of_utc_that_begin_at_another_time_are_stated(zone: str, moved: str) -> None:
    cuts, begins = full_hours(ZoneInfo(zone)), int(unix("2026-11-27T12:30+00:00")) // QUARTER
    _, notes = split_range(begins, begins + 2 * 96, UTC_DAY, cuts, ZoneInfo(zone))
    assert [note[: len(moved)] for note in notes] == [moved] * bool(moved)


def test_half_hours_of_lord_howe_have_their_own_names() -> None:
    zone = ZoneInfo("Australia/Lord_Howe")
    assert parts("2026-10-03T15:00+00:00", "2026-10-03T17:00+00:00", "hour", zone) == [
        ("2026-10-04 01:00 +1030", 0.5),
        ("2026-10-04 02:30 +1100", 0.5),
        ("2026-10-04 03:00 +1100", 1),
    ]


def test_parts_of_history_summed_in_another_zone_end_at_its_cuts_and_say_so() -> None:
    begins = int(unix("2026-11-27T23:30+00:00")) // QUARTER
    found, notes = split_range(begins, begins + 96, "day", full_hours(ZoneInfo("Asia/Kolkata")), UTC)
    assert [(part.name, part.begins - begins, part.ends - begins) for part in found] == [
        ("2026-11-27", 0, 4),
        ("2026-11-28", 4, 96),
    ]
    assert notes == (
        "1 of 1 ends of days are moved to the nearest cut of the ledger: older history is summed by full "
        "hours, of the time zone that was set then.",
    )


@given(
    st.integers(1_500_000, 4_000_000),
    st.integers(1, 6000),
    st.sampled_from(EVERY),
    st.sampled_from(ZONES),
    st.sampled_from(ZONES),
)
def test_parts_follow_each_other_and_cover_the_range(
    begins: int, length: int, every: str, zone: ZoneInfo, summed: ZoneInfo
) -> None:
    cuts = full_hours(summed)
    begins, ends = hour_begins(begins, summed), hour_begins(begins + length + 4, summed)
    found, _ = split_range(begins, ends, every, cuts, zone)
    assert [part.begins for part in found] == [begins, *(part.ends for part in found[:-1])]
    assert found[-1].ends == ends
    assert len({part.name for part in found}) == len(found)
    assert all(cuts(part.begins) == (part.begins, part.begins) for part in found)

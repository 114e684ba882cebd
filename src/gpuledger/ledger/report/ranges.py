"""The range of a report: from what the user writes to the cuts of the ledger, and its parts for `--every`.

The ledger can be cut at quarters of an hour; older history only at the full hours to which it is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, tzinfo
from itertools import pairwise
from typing import NamedTuple

from gpuledger.ledger.report.moments import (
    first_instant,
    format_local_time,
    is_age,
    next_period,
    parse_moment,
    parse_whole_period,
    period_begin,
)
from gpuledger.ledger.report.report_keys import DAILY, HOURLY, MONTHLY, WEEKLY
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.ledger.zone_hours import hour_begins, hour_ends, local_time, nearest_hour
from gpuledger.model.errors import UsageError

# Days of UTC, for files that require them: each begins at the full hour of the zone nearest to its midnight.
UTC_DAY = "UTC day"
# Quarters in a day of UTC.
_DAY = 96
# Seconds by which an end may move without a word.
_SILENT = 60

# The nearest cuts at or before and at or after a quarter (`History.cuts_around`).
CutsAround = Callable[[int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class RequestedRange:
    """The range as requested, in unix seconds. `until` is None for now: the last posting, whatever the clock.

    `since_text` and `until_text` name its ends in messages; both are the same for `--in`. An end given as an
    age (7d) moves to the nearest cut without a sentence: its minute was not chosen.
    """

    since: float
    until: float | None
    since_text: str
    until_text: str
    zone: tzinfo | None = None
    since_is_age: bool = False
    until_is_age: bool = False


@dataclass(frozen=True, slots=True)
class ReportRange:
    """The range in the ledger: the quarters from `begins` to before `ends`.

    `until` is its end in unix seconds: a cut, or the last posting. `notes` are sentences on ends that moved.
    `is_fixed`: it is that of a statement, and no end moves to a full hour.
    """

    begins: int
    ends: int
    until: float
    zone: tzinfo | None = None
    notes: tuple[str, ...] = ()
    is_fixed: bool = False

    @property
    def since(self) -> int:
        """The begin in unix seconds."""
        return self.begins * QUARTER


class EmptyRange(UsageError):
    """A ledger has no two cuts in the range, or ends before it."""


class ReportPart(NamedTuple):
    """A part of a range for `--every`: the quarters from `begins` to before `ends`, and its name."""

    begins: int
    ends: int
    name: str


def parse_range(
    since: str, until: str, period: str, now: float, zone: tzinfo | None = None
) -> RequestedRange:
    """The range that these settings request; `period` (`--in`), if not empty, counts instead of both ends.

    Raises UsageError if it is malformed, or ends before it begins.
    """
    if period:
        return RequestedRange(
            *parse_whole_period("--in", period, now, zone), f"--in {period}", f"--in {period}", zone
        )
    is_open = until.strip().lower() == "now"
    begins = parse_moment("--since", since, now, zone)
    ends = None if is_open else parse_moment("--until", until, now, zone)
    if ends is not None and begins >= ends:
        raise UsageError(f"--since {since} is not before --until {until}")
    ages = (is_age(since.strip()), is_age(until.strip()))
    return RequestedRange(begins, ends, f"--since {since}", f"--until {until}", zone, *ages)


def resolve_range(
    requested: RequestedRange, cuts_around: CutsAround, last: float, first: float = 0.0
) -> ReportRange:
    """Move the ends to cuts of the ledger.

    `first` and `last` are the unix times of its first data and last posting. A begin before the first data
    needs no sentence.

    Raises EmptyRange if nothing is left, with the nearest cuts.
    """
    zone = requested.zone
    if requested.since >= last:
        begin, end = (format_local_time(unix, zone) for unix in (requested.since, last))
        raise EmptyRange(
            f"{requested.since_text} begins at {begin}, and the last posting of the ledger is at {end}: "
            "there is nothing in this range"
        )
    since = _nearest_cut(requested.since, cuts_around, last)
    until = last if requested.until is None else _nearest_cut(requested.until, cuts_around, last)
    if since >= until:
        raise _empty_range(requested, cuts_around, last)
    notes = []
    if max(requested.since, since) > first and not requested.since_is_age:
        notes.append(_moved("begins", requested.since, since, last, zone))
    if requested.until is not None and not requested.until_is_age:
        notes.append(_moved("ends", requested.until, until, last, zone))
    return ReportRange(
        int(since // QUARTER), -int(-until // QUARTER), until, zone, tuple(note for note in notes if note)
    )


def _nearest_cut(unix: float, cuts_around: CutsAround, last: float) -> float:
    """The nearest cut in unix seconds; of two the later. A time at or after the last posting is the last."""
    if unix >= last:
        return last
    before, after = _cuts_around_time(unix, cuts_around, last)
    return before if unix - before < after - unix else after


def _cuts_around_time(unix: float, cuts_around: CutsAround, last: float) -> tuple[float, float]:
    quarter = int(unix // QUARTER)
    before, after = cuts_around(quarter)
    if unix > quarter * QUARTER:
        after = cuts_around(quarter + 1)[1]
    return before * QUARTER, min(after * QUARTER, last)


def _moved(verb: str, requested: float, used: float, last: float, zone: tzinfo | None) -> str:
    if abs(used - requested) <= _SILENT:
        return ""
    where = "the last posting" if used == last else "the nearest cut"
    times = [format_local_time(unix, zone) for unix in (used, requested)]
    return f"The range {verb} at {times[0]}, {where} of the ledger, in place of {times[1]}."


def _empty_range(requested: RequestedRange, cuts_around: CutsAround, last: float) -> EmptyRange:
    until = last if requested.until is None else min(requested.until, last)
    ends = (
        _cuts_around_time(requested.since, cuts_around, last)[0],
        _cuts_around_time(until, cuts_around, last)[1],
    )
    names = dict.fromkeys((requested.since_text, requested.until_text))
    cuts = " and ".join(format_local_time(unix, requested.zone) for unix in ends)
    return EmptyRange(
        f"{' '.join(names)} has no cut of the ledger inside: the nearest are {cuts}; use them as --since and "
        "--until"
    )


def split_range(
    begins: int,
    ends: int,
    every: str,
    cuts_around: CutsAround,
    zone: tzinfo | None = None,
    ledger_zone: tzinfo | None = None,
) -> tuple[list[ReportPart], tuple[str, ...]]:
    """The hours, days, weeks or months of the zone within these quarters; the first and last may be parts.

    They end at cuts, so that amounts of the parts add up to those of the range. A part without a cut inside
    is left out. Also returns sentences on ends that moved. The ledger sums older history to full hours of
    `ledger_zone`, or of `zone` if that is not known.
    """
    if every == UTC_DAY:
        return _split_utc_days(begins, ends, cuts_around, ledger_zone or zone)
    bounds = [begins, *_bounds(begins, ends, every, zone), ends]
    cuts = [begins, *(min(nearest_quarter(bound, cuts_around), ends) for bound in bounds[1:-1]), ends]
    parts = [
        ReportPart(cut, next_cut, _period_name(bound, every, zone))
        for (bound, _), (cut, next_cut) in zip(pairwise(bounds), pairwise(cuts), strict=True)
        if cut < next_cut
    ]
    moved = sum(bound != cut for bound, cut in zip(bounds, cuts, strict=True))
    if not moved:
        return parts, ()
    return parts, (
        f"{moved} of {len(bounds) - 2} ends of {every}s are moved to the nearest cut of the ledger: older "
        "history is summed by full hours, of the time zone that was set then.",
    )


def _split_utc_days(
    begins: int, ends: int, cuts_around: CutsAround, zone: tzinfo | None
) -> tuple[list[ReportPart], tuple[str, ...]]:
    """The days do not depend on the range, nor on whether its history is already summed by full hours."""
    midnights = range((begins // _DAY - 1) * _DAY, ends + 2 * _DAY, _DAY)
    cuts = [_utc_cut(midnight, cuts_around, zone) for midnight in midnights]
    parts = [
        ReportPart(max(cut, begins), min(next_cut, ends), _period_name(midnight, DAILY, UTC))
        for midnight, (cut, next_cut) in zip(midnights, pairwise(cuts), strict=False)
        if max(cut, begins) < min(next_cut, ends)
    ]
    inside = [cut - midnight for cut, midnight in zip(cuts, midnights, strict=True) if begins < cut < ends]
    moved = sum(map(bool, inside))
    if not moved:
        return parts, ()
    return parts, (
        f"{moved} of {len(inside)} UTC days begin at the full hour of the ledger nearest to midnight: "
        "its time zone has other hours than UTC.",
    )


def _utc_cut(midnight: int, cuts_around: CutsAround, zone: tzinfo | None) -> int:
    """The ledger's cut nearest to a midnight of UTC; of history with quarters, the one that it will keep."""
    before, after = cuts_around(midnight)
    is_hour = cuts_around(midnight - 1)[0] < midnight - 1 or cuts_around(midnight + 1)[1] > midnight + 1
    if before < after or is_hour:
        return nearest_quarter(midnight, cuts_around)
    return nearest_hour(midnight, zone)


def _bounds(begins: int, ends: int, every: str, zone: tzinfo | None) -> Iterator[int]:
    """The quarters after `begins` and before `ends` at which a period begins."""
    if every == HOURLY:
        bound = hour_ends(begins, zone)
        while bound < ends:
            yield bound
            bound = hour_ends(bound, zone)
        return
    local = next_period(period_begin(local_time(begins, zone).replace(tzinfo=None), every), every)
    while (bound := -int(-first_instant(local, zone) // QUARTER)) < ends:
        yield bound
        local = next_period(local, every)


def nearest_quarter(quarter: int, cuts_around: CutsAround) -> int:
    """The ledger's cut nearest to a quarter; of two, the later."""
    before, after = cuts_around(quarter)
    return before if quarter - before < after - quarter else after


def _period_name(quarter: int, every: str, zone: tzinfo | None) -> str:
    """The name of the period that contains a quarter, as `--in` takes it; an hour also has its offset."""
    local = local_time(hour_begins(quarter, zone), zone)
    if every == HOURLY:
        return local.strftime("%Y-%m-%d %H:%M %z")
    if every == WEEKLY:
        year, week, _ = local.isocalendar()
        return f"{year}-W{week:02}"
    return local.strftime("%Y-%m" if every == MONTHLY else "%Y-%m-%d")

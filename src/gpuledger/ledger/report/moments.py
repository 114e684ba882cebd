"""Parses points in time and whole periods from the command line and the API.

A zone is a tzinfo; None is the machine's.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Final

from gpuledger.ledger.report.report_keys import DAILY, HOURLY, MONTHLY, WEEKLY, YEARLY
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.ledger.zone_hours import hour_begins, hour_ends
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import duration

# The year 9987: datetime ends soon after.
_LATEST = 253_000_000_000.0
_AGO = duration("s", highest=100 * 366 * 86_400.0)
_EXPECTED = (
    "expected an age (36h, 7d), a date (2026-11-01), a date and time (2026-11-01T08:00, local unless it ends "
    "in Z or an offset), a month (2026-11), today, yesterday, 'last month', month (the first of this one) or "
    "now"
)
_EXPECTED_PERIOD = (
    "expected a month (2026-11), a day (2026-11-30), a week (2026-W48), a year (2026), today, yesterday, or "
    "this or last hour, day, week, month or year, such as 'last month' (for an age such as 7d use --since)"
)
_UNITS: Final = (HOURLY, DAILY, WEEKLY, MONTHLY, YEARLY)
_WORDS: Final = {"today": (DAILY, 0), "yesterday": (DAILY, -1)}
_WORDS.update({unit: (unit, 0) for unit in _UNITS})
_WORDS.update({f"this {unit}": (unit, 0) for unit in _UNITS})
_WORDS.update({f"last {unit}": (unit, -1) for unit in _UNITS})
# What datetime.fromisoformat reads as the unit's first moment, with these letters added.
_WRITTEN: Final = (
    (YEARLY, re.compile(r"\d{4}", re.ASCII), "-01-01"),
    (MONTHLY, re.compile(r"\d{4}-\d\d", re.ASCII), "-01"),
    (WEEKLY, re.compile(r"\d{4}-?W\d\d", re.ASCII), ""),
    (DAILY, re.compile(r"\d{4}-\d\d-\d\d|\d{8}", re.ASCII), ""),
    (HOURLY, re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d", re.ASCII), ""),
)


def parse_moment(flag: str, text: str, now: float, zone: tzinfo | None = None) -> float:
    """Unix seconds. Raises UsageError with the flag and its valid forms."""
    try:
        found = _moment(text.strip(), now, zone)
    except (ValueError, OverflowError, OSError):
        found = -1.0
    if not 0 <= found < _LATEST:
        raise UsageError(f"{flag}: {_EXPECTED}, not '{text}'")
    return found


def parse_whole_period(flag: str, text: str, now: float, zone: tzinfo | None = None) -> tuple[float, float]:
    """Begin and end of a year, month, week, day or hour, in unix seconds. Raises UsageError."""
    try:
        period = _whole_period(text, now, zone) or (-1.0, -1.0)
    except (ValueError, OverflowError, OSError):
        period = (-1.0, -1.0)
    if not 0 <= period[0] <= period[1] < _LATEST:
        raise UsageError(f"{flag}: {_EXPECTED_PERIOD}; not '{text}'")
    if period[0] == period[1]:
        raise UsageError(f"{flag} {text}: the clocks of this time zone skipped it")
    return period


def _moment(text: str, now: float, zone: tzinfo | None) -> float:
    if text.lower() == "now":
        return now
    if is_age(text):
        return now - _AGO(text)
    period = _whole_period(text, now, zone)
    if period is not None:
        return period[0]
    given = datetime.fromisoformat(text)
    return first_instant(given, zone) if given.tzinfo is None else given.timestamp()


def is_age(text: str) -> bool:
    """Whether a moment is given as a time before now, such as 7d."""
    return text[:1].isdigit() and text[-1:] in "smhd"


def _whole_period(text: str, now: float, zone: tzinfo | None) -> tuple[float, float] | None:
    """Begin and end in unix seconds. None if the text names no whole period."""
    words = " ".join(re.split(r"[\s_-]+", text.strip().lower()))
    if words in _WORDS:
        unit, steps = _WORDS[words]
        if unit == HOURLY:
            return _hour(int(now // QUARTER), steps, zone)
        begin = period_begin(datetime.fromtimestamp(now, zone).replace(tzinfo=None), unit)
        if steps:
            begin = period_begin(begin - timedelta(microseconds=1), unit)
        return first_instant(begin, zone), first_instant(next_period(begin, unit), zone)
    for unit, pattern, rest in _WRITTEN:
        if pattern.fullmatch(text.strip().upper()):
            begin = datetime.fromisoformat(text.strip().upper() + rest)
            return first_instant(begin, zone), first_instant(next_period(begin, unit), zone)
    return None


def _hour(quarter: int, steps: int, zone: tzinfo | None) -> tuple[float, float]:
    """The full hour of a quarter, or the one before: not by its name, which two hours of a year share."""
    begins = hour_begins(quarter, zone)
    if steps:
        begins = hour_begins(begins - 1, zone)
    return float(begins * QUARTER), float(hour_ends(begins, zone) * QUARTER)


def period_begin(local: datetime, unit: str) -> datetime:
    """The begin of the hour, day, week (Monday), month or year that contains a local time."""
    if unit == HOURLY:
        return local.replace(minute=0, second=0, microsecond=0)
    day = local.date()
    first = {
        DAILY: day,
        WEEKLY: day - timedelta(days=day.weekday()),
        MONTHLY: day.replace(day=1),
        YEARLY: day.replace(month=1, day=1),
    }
    return datetime.combine(first[unit], time())


def next_period(begin: datetime, unit: str) -> datetime:
    """The begin of the period after the one that begins at this local time."""
    if unit in (HOURLY, DAILY, WEEKLY):
        return begin + {HOURLY: timedelta(hours=1), DAILY: timedelta(1), WEEKLY: timedelta(7)}[unit]
    month = begin.year * 12 + begin.month - 1 + (1 if unit == MONTHLY else 12)
    return datetime.combine(date(month // 12, month % 12 + 1, 1), time())


def first_instant(local: datetime, zone: tzinfo | None) -> float:
    """The first moment, in unix seconds, at which clocks of the zone show this local time or a later one.

    A time that the clocks skip (summer time begins) is the moment of the change. Of a time that they show
    twice (summer time ends) it is the first.
    """
    early, late = (local.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if late >= early:
        return early
    # Skipped: the change is after `late` (by the later offset) and not after `early`.
    before, after = int(late), int(early) + 1
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).replace(tzinfo=None) < local:
            before = middle
        else:
            after = middle
    return float(after)


def format_local_time(unix: float, zone: tzinfo | None = None) -> str:
    """A time as `2026-11-28 08:00 +0000`, in the zone."""
    return datetime.fromtimestamp(unix).astimezone(zone).strftime("%Y-%m-%d %H:%M %z")

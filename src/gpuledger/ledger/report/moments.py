"""Parses points in time and periods from the command line and the API."""

from __future__ import annotations

from datetime import datetime, time, timedelta

from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import duration

# The year 9987: datetime ends soon after.
_LATEST = 253_000_000_000.0
_AGO = duration("s", highest=100 * 366 * 86_400.0)
_EXPECTED = (
    "expected an age (36h, 7d), a date (2026-11-01), a date and time (2026-11-01T08:00, local unless it ends "
    "in Z or an offset), today, yesterday, month (the first of this one) or now"
)


def parse_moment(flag: str, text: str, now: float) -> float:
    """Unix seconds. Raises UsageError with the flag and its valid forms."""
    try:
        found = _moment(text.strip(), now)
    except (ValueError, OverflowError, OSError):
        found = -1.0
    if not 0 <= found < _LATEST:
        raise UsageError(f"{flag}: {_EXPECTED}, not '{text}'")
    return found


def _moment(text: str, now: float) -> float:
    here = datetime.fromtimestamp(now).astimezone()
    midnight = datetime.combine(here.date(), time())
    days = {
        "now": here,
        "today": midnight,
        "yesterday": midnight - timedelta(days=1),
        "month": midnight.replace(day=1),
    }
    if text.lower() in days:
        return days[text.lower()].timestamp()
    if text[:1].isdigit() and text[-1:] in "smhd":
        return now - _AGO(text)
    # Without an offset it is local time, with the offset of that day.
    return datetime.fromisoformat(text).timestamp()


def format_local_time(unix: float) -> str:
    """A time as `2026-11-28 08:00 +0000`, in the machine's time zone."""
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M %z")


def parse_period(since: str, until: str, now: float) -> tuple[int, int]:
    """Both times as unix seconds at full hours: the first rounded down, the second up.

    Raises UsageError if the period is empty.
    """
    begins = int(parse_moment("--since", since, now) // HOUR) * HOUR
    ends = -int(-parse_moment("--until", until, now) // HOUR) * HOUR
    if begins >= ends:
        raise UsageError(f"--since {since} is not before --until {until}")
    return begins, ends

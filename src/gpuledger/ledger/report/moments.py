"""Moments as people write them: on the command line, and to the API."""

from __future__ import annotations

from datetime import datetime, time, timedelta

from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import duration

# The year 9990: calendars end soon after.
_LATEST = 253_000_000_000.0
_AGO = duration("s", highest=100 * 366 * 86_400.0)
_WANTED = (
    "a time ago (36h, 7d), a date (2026-11-01), a date and time (2026-11-01T08:00, local unless it ends in Z "
    "or an offset), today, yesterday, month (the first of this one) or now is wanted"
)


def moment(flag: str, written: str, now: float) -> float:
    """Unix seconds. Raises UsageError that names the flag and says what it takes."""
    try:
        found = _moment(written.strip(), now)
    except (ValueError, OverflowError, OSError):
        found = -1.0
    if not 0 <= found < _LATEST:
        raise UsageError(f"{flag}: {_WANTED}, not '{written}'")
    return found


def _moment(word: str, now: float) -> float:
    here = datetime.fromtimestamp(now).astimezone()
    midnight = datetime.combine(here.date(), time())
    days = {
        "now": here,
        "today": midnight,
        "yesterday": midnight - timedelta(days=1),
        "month": midnight.replace(day=1),
    }
    if word.lower() in days:
        return days[word.lower()].timestamp()
    if word[:1].isdigit() and word[-1:] in "smhd":
        return now - _AGO(word)
    # Without an offset it is local, by the rules of the day in question.
    return datetime.fromisoformat(word).timestamp()


def period(since: str, until: str, now: float) -> tuple[int, int]:
    """Both as unix seconds at full hours, where books are exact: the first rounded down, the second up.

    Raises UsageError when nothing lies between.
    """
    begins = int(moment("--since", since, now) // HOUR) * HOUR
    ends = -int(-moment("--until", until, now) // HOUR) * HOUR
    if begins >= ends:
        raise UsageError(f"--since {since} is not before --until {until}")
    return begins, ends

"""Refuses reports on a ledger, or a range of it, without a watched second: zero would be an invented value.

A GPU without energy and power readings leaves no rows while it is idle. Then the first and the last posting
of the ledger say when it was watched.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import tzinfo
from typing import TYPE_CHECKING

from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.ranges import ReportRange, RequestedRange, resolve_range
from gpuledger.ledger.store.schema import BEGUN, CREATED
from gpuledger.ledger.watched_time import HOUR, QUARTER
from gpuledger.model.errors import GpuledgerError

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

# A range without a beginning begins at 0, or at the first full hour after it in some time zone.
_BEGINNING = 2 * 86_400 // QUARTER
# Far after all data: the year 9987.
_END = 253_000_000_000 // QUARTER
# A clock that shows a time before 2020 was not set.
_CLOCK_SET = 1_577_836_800 // QUARTER
_BY_QUARTER = ("spans", "hours", "hour_times", "time_spans", "hour_gpu_time")
# Stretches of presence. The current one of a session ends with its last sight.
_STRETCHES = (
    "SELECT stay AS begins, last_seen AS ends FROM usage",
    "SELECT begins, ends FROM stays",
    "SELECT begins, ends FROM handovers",
)
_UNMETERED = """
SELECT 1 FROM gpus WHERE uuid NOT IN (SELECT uuid FROM spans) AND uuid NOT IN (SELECT uuid FROM hours) LIMIT 1
"""


class NothingWatched(GpuledgerError):
    """The ledger has no watched second: in the whole file, or in the requested range (`in_range`)."""

    def __init__(self, text: str, *, in_range: bool) -> None:
        super().__init__(text)
        self.in_range = in_range


def require_watched_time(history: History) -> None:
    """Raise NothingWatched if the ledger has no watched second."""
    if _is_watched(history, 0, _END):
        return
    file = history.file
    created, begun = (history.meta_time(key) for key in (CREATED, BEGUN))
    since = created if begun is None else begun
    kept = "" if since is None else f", kept since {format_local_time(since)},"
    (deleted,) = history.connection.execute("SELECT count(*) FROM forgotten").fetchone()
    if deleted:
        text = f"{file}{kept} has no history: it was deleted (store.hours, store.max_size) or damaged"
    elif not history.connection.execute("SELECT count(*) FROM gpus").fetchone()[0]:
        text = f"{file}{kept} is empty: no GPU has been read yet; `gpuledger doctor` shows why"
    else:
        last = format_local_time(history.last)
        text = (
            f"{file}{kept} has no watched time yet: the only reading was at {last}, and time counts between "
            "two readings; repeat this command in a minute"
        )
    raise NothingWatched(text, in_range=False)


def resolve_watched_range(history: History, requested: RequestedRange) -> ReportRange:
    """The range between cuts of the ledger that is requested.

    Raises NothingWatched if nothing was watched in it, and UsageError if it is empty.
    """
    last = history.last
    if history.end_quarter > last // QUARTER + 1:
        # The clock was set back: later times are in the ledger.
        last = float(history.end_quarter * QUARTER)
    require_watched_time(history)
    if requested.since >= last:
        ends = requested.since + 1 if requested.until is None else requested.until
        require_watched_range(
            history, int(requested.since // QUARTER), -int(-ends // QUARTER), requested.zone
        )
    first = history.first_quarter or 0
    found = resolve_range(requested, history.cuts_around, last, float(first * QUARTER))
    if first < _CLOCK_SET <= found.begins:
        found = replace(found, notes=(*found.notes, _unset_clock_note(history, first, found.zone)))
    # A folded hour counts from its begin, which can be before the requested one.
    require_watched_range(history, found.begins, found.ends, requested.zone)
    return found


def _unset_clock_note(history: History, first: int, zone: tzinfo | None) -> str:
    """A sentence on the data from before the clock of the machine was set. `first` is their first quarter."""
    ends = _end_before(history, _CLOCK_SET) or first * QUARTER
    times = [format_local_time(unix, zone) for unix in (first * QUARTER, ends)]
    return (
        f"The ledger also has GPU time from {times[0]} to {times[1]}, read before the machine's clock was "
        "set: it counts there and not in this range; --since 1970-01-01T00:00Z --until 2020-01-01 reports it."
    )


def require_watched_range(history: History, since: int, until: int, zone: tzinfo | None = None) -> None:
    """Raise NothingWatched if nothing was watched in the quarters from `since` to before `until`."""
    require_watched_time(history)
    if _is_watched(history, since, until):
        return
    before, after = _end_before(history, since), _begin_after(history, until)
    begins, ends = (format_local_time(quarter * QUARTER, zone) for quarter in (since, min(until, _END)))
    when = f"before {ends}" if since < _BEGINNING else f"from {begins} to {ends}"
    known = [] if before is None else [f"ends at {format_local_time(before, zone)}"]
    if after is not None:
        known.append(f"{'continues' if known else 'begins'} at {format_local_time(after, zone)}")
    raise NothingWatched(
        f"nothing was watched {when}: {history.file} {' and '.join(known) or 'has other times only'}",
        in_range=True,
    )


def _is_watched(history: History, since: int, until: int) -> bool:
    connection = history.connection
    for table in _BY_QUARTER:
        query = f"SELECT 1 FROM {table} WHERE quarter >= ? AND quarter < ? LIMIT 1"
        if connection.execute(query, (since, until)).fetchone():
            return True
    begins, ends = since * QUARTER, until * QUARTER
    for stretches in _STRETCHES:
        query = f"SELECT 1 FROM ({stretches}) WHERE begins < ends AND ends > ? AND begins < ? LIMIT 1"
        if connection.execute(query, (begins, ends)).fetchone():
            return True
    begun = history.meta_time(BEGUN)
    if begun is None or not max(begun, begins) < min(history.last, ends):
        return False
    return connection.execute(_UNMETERED).fetchone() is not None


def _end_before(history: History, quarter: int) -> float | None:
    """Unix time at which the last data before this quarter end."""
    at = quarter * QUARTER
    found = [
        _first(history, f"SELECT max(quarter) + 1 FROM {table} WHERE quarter < ?", quarter)
        for table in _BY_QUARTER
    ]
    ends = [min(history.cuts_around(int(one))[1] * QUARTER, history.last) for one in found if one is not None]
    for stretches in _STRETCHES:
        query = f"SELECT max(ends) FROM ({stretches}) WHERE begins < ends AND ends <= ?"
        ends += [one for one in [_first(history, query, at)] if one is not None]
    if not ends and history.last <= at:
        return history.last
    return max(ends, default=None)


def _begin_after(history: History, quarter: int) -> float | None:
    """Unix time at which the next data from this quarter on begin."""
    at = quarter * QUARTER
    found = [
        _first(history, f"SELECT min(quarter) FROM {table} WHERE quarter >= ?", quarter)
        for table in _BY_QUARTER
    ]
    begins = [one * QUARTER for one in found if one is not None]
    for stretches in _STRETCHES:
        query = f"SELECT min(begins) FROM ({stretches}) WHERE begins < ends AND begins >= ?"
        begins += [one for one in [_first(history, query, at)] if one is not None]
    begun, first = history.meta_time(BEGUN), min(begins, default=None)
    if begun is not None and begun >= at and (first is None or first <= begun < first + HOUR):
        return begun
    return first


def _first(history: History, query: str, value: float) -> float | None:
    found: float | None = history.connection.execute(query, (value,)).fetchone()[0]
    return found

"""Who was on which GPU when: open sessions as the ledger has them, ended ones out of the books."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger.ledger.store.listing import FIRST, Asked, Listed, Position, sessions_between
from gpuledger.model.page import Page
from gpuledger.web.api.answers import Refused, bad_request
from gpuledger.web.api.books import BooksAsRead
from gpuledger.web.api.cursor import broken, cursor_of, numbers_in
from gpuledger.web.api.snapshot import place_of
from gpuledger.web.api.values import VERSION, Words, finite, joules, owner_words


def sessions_of(page: Page, books: BooksAsRead, asked: Mapping[str, Any]) -> Words:
    """The sessions that the parameters ask for. Raises Refused.

    The Page is older than what the books say: a session that ended in between is told as they have it.
    """
    limit = asked["limit"]
    found: dict[int, Listed] = {}
    from_books = books.opens is not None
    now = books.now(page)
    if from_books:
        try:
            with books.reading() as history:
                now = books.now(page, history)
                which = _which(asked, now)
                kept = sessions_between(history.connection, history.devices, which, limit + 1)
                found = {one.row.number: one for one in kept}
        except Refused as refusal:
            # What runs now is known without them. A parameter that is wrong stays wrong.
            if refusal.code != "no_books":
                raise
            from_books = False
    which = _which(asked, now)
    for row in page.ledger.sessions:
        known = found.get(row.number)
        if which.has(row) and (known is None or known.ended is None):
            found[row.number] = Listed(row)
    listed = sorted(found.values(), key=lambda one: one.position)
    more = len(listed) > limit
    shown = listed[:limit]
    return {
        "version": VERSION,
        "since": which.since,
        "until": which.until,
        "sessions": [_words(one, page.ledger.energy.totals) for one in shown],
        "next": _next(which, shown[-1]) if more else None,
        "from_books": from_books,
    }


def _which(asked: Mapping[str, Any], now: float) -> Asked:
    since, until, after = _range(asked, now)
    state = asked["state"]
    return Asked(
        since,
        until,
        asked["gpu"],
        asked["namespace"],
        asked["pod"],
        asked["user"],
        None if state is None else state == "open",
        after,
    )


def _range(asked: Mapping[str, Any], now: float) -> tuple[float, float, Position]:
    """From when to when, and after what. A cursor has them: what `24h` is must not move from page to page."""
    if asked["cursor"] is not None:
        since, until, first, number = numbers_in(asked["cursor"], 4)
        if number != int(number) or not 0 <= number < 2**53:
            raise broken()
        return float(since), float(until), (float(first), int(number))
    since, until = asked["since"].unix(now), asked["until"].unix(now)
    if since > until:
        raise bad_request("since", "since is after until; nothing lies between")
    return since, until, FIRST


def _next(which: Asked, last: Listed) -> str:
    return cursor_of([which.since, which.until, *last.position])


def _words(one: Listed, totals: Mapping[str, int]) -> Words:
    row = one.row
    process = row.process
    # A Gpu of which neither energy nor power is told has no books: what was used of it is not zero.
    booked = process.device.gpu.uuid in totals or bool(row.measured or row.apportioned or row.high)
    return {
        "id": str(row.number),
        **place_of(process.device),
        "pid": process.pid,
        "command": process.command,
        **owner_words(process.workload),
        "first_seen": row.first_seen,
        "last_seen": row.last_seen,
        "ended": one.ended,
        "exit_seen": one.exit_seen,
        "peak_memory_bytes": row.peak_memory,
        "sm_mean_ratio": _ratio(row.sm_mean),
        "sm_most_ratio": _ratio(row.sm_most),
        "held_seconds": round(row.held_seconds, 3),
        "joules": joules(row.measured + row.apportioned) if booked else None,
        "measured_joules": joules(row.measured) if booked else None,
        "apportioned_joules": joules(row.apportioned) if booked else None,
        "low_joules": joules(row.measured) if booked else None,
        "high_joules": joules(row.high) if booked else None,
    }


def _ratio(value: float | None) -> float | None:
    told = finite(value)
    return None if told is None else round(told, 6)

"""Who was on which GPU when: open sessions as the ledger has them, ended ones out of the books."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuledger.ledger.store.listing import FIRST, Asked, Listed, Position, sessions_between
from gpuledger.model.node_state import NodeState
from gpuledger.web.api.answers import Refused, another, bad_request, broken, cursor_of, told_in
from gpuledger.web.api.books import BooksAsRead
from gpuledger.web.api.parameters import Moment
from gpuledger.web.api.snapshot import place_of
from gpuledger.web.api.values import VERSION, Words, finite, joules, owner_words

_FILTERS: Final = ("gpu", "namespace", "pod", "user", "state")


def sessions_of(page: NodeState, books: BooksAsRead, asked: Mapping[str, Any]) -> Words:
    """The sessions that the parameters ask for. Raises Refused.

    The Page is older than what the books say: a session that ended in between is told as they have it.
    """
    limit, asked, begun = asked["limit"], *_begun(asked)
    found: dict[int, Listed] = {}
    from_books = books.opens is not None
    now = books.now(page)
    if from_books:
        try:
            with books.reading() as history:
                now = books.now(page, history)
                which = _which(asked, now, begun)
                kept = sessions_between(history.connection, history.devices, which, limit + 1)
                found = {one.row.number: one for one in kept}
        except Refused as refusal:
            # What runs now is known without them. A parameter that is wrong stays wrong.
            if refusal.code != "no_books":
                raise
            from_books = False
    which = _which(asked, now, begun)
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
        "next": _next(asked, which, shown[-1]) if more else None,
        "from_books": from_books,
    }


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a cursor goes on with: what `24h` is must not move from page to page."""

    since: float
    until: float
    after: Position


def _begun(asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], _Begun | None]:
    """What is asked for, with a cursor what was asked for with the first page. Raises Refused."""
    if asked["cursor"] is None:
        return asked, None
    (since, until, first, number), before = told_in(asked["cursor"], 4)
    if (
        number != int(number)
        or not 0 <= number < 2**53
        or before.get("state") not in (None, "open", "closed")
    ):
        raise broken()
    for name, unix in (("since", since), ("until", until)):
        if asked[name] is not None and not asked[name].means(before.get(name), unix):
            raise another(name)
    for name in _FILTERS:
        if asked[name] is not None and asked[name] != before.get(name):
            raise another(name)
    moments = {name: Moment(name, before.get(name, "")) for name in ("since", "until")}
    filters = {name: before.get(name) for name in _FILTERS}
    return {**moments, **filters}, _Begun(float(since), float(until), (float(first), int(number)))


def _which(asked: Mapping[str, Any], now: float, begun: _Begun | None) -> Asked:
    if begun is None:
        since, until = asked["since"].unix(now), asked["until"].unix(now)
        # A time of its own is a question, who was there just then; of now nobody has been seen yet.
        if since > until or (since == until and asked["since"].is_now):
            raise bad_request("since", "since is not before until; nothing lies between")
        begun = _Begun(since, until, FIRST)
    state = asked["state"]
    return Asked(
        begun.since,
        begun.until,
        asked["gpu"],
        asked["namespace"],
        asked["pod"],
        asked["user"],
        None if state is None else state == "open",
        begun.after,
    )


def _next(asked: Mapping[str, Any], which: Asked, last: Listed) -> str:
    words = {name: asked[name].text for name in ("since", "until")}
    words |= {name: asked[name] for name in _FILTERS if asked[name] is not None}
    return cursor_of([which.since, which.until, *last.position], words)


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

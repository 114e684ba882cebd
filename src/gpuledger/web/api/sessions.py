"""`/api/v1/sessions`: open sessions from the NodeState, ended ones from the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final

from gpuledger.ledger.store.listing import (
    FIRST_POSITION,
    ListedSession,
    Position,
    SessionQuery,
    query_sessions,
)
from gpuledger.model.access import EVERYTHING, Reader
from gpuledger.model.node_state import NodeState
from gpuledger.model.session import EnergyState
from gpuledger.web.api.json_values import VERSION, JsonObject, finite, joules, owner_fields
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.parameters import Moment, check_times
from gpuledger.web.api.responses import (
    ApiError,
    bad_request,
    cursor_mismatch,
    decode_cursor,
    encode_cursor,
    invalid_cursor,
)
from gpuledger.web.api.session_numbers import masked_number, unmasked_number
from gpuledger.web.api.snapshot import device_fields

_FILTERS: Final = ("gpu", "namespace", "pod", "user", "state")


def list_sessions(
    state: NodeState,
    ledger_access: LedgerAccess,
    parameters: Mapping[str, Any],
    zone: tzinfo | None = None,
    reader: Reader = EVERYTHING,
) -> JsonObject:
    """The sessions that match the parameters; dates are of the zone (None: the machine's). Raises ApiError.

    `state` has the sessions of the reader only.

    The ledger is newer than the state: a session that ended in between is listed as the ledger has it.
    """
    limit, parameters, continuation = parameters["limit"], *_resume(parameters, reader)
    found: dict[int, ListedSession] = {}
    from_books = ledger_access.open_history is not None
    now = ledger_access.now(state)
    if from_books:
        try:
            with ledger_access.open(reader) as history:
                now = ledger_access.now(state, history)
                query = _session_query(parameters, now, continuation, zone)
                kept = query_sessions(history.connection, history.devices, query, limit + 1)
                found = {one.row.number: one for one in kept}
        except ApiError as refusal:
            # Running sessions are known without the ledger. An invalid parameter remains an error.
            if refusal.code != "no_books":
                raise
            from_books = False
    query = _session_query(parameters, now, continuation, zone)
    for row in state.ledger.sessions:
        known = found.get(row.number)
        if query.matches(row) and (known is None or known.ended is None):
            found[row.number] = ListedSession(row)
    listed = sorted(found.values(), key=lambda one: one.position)
    more = len(listed) > limit
    shown = listed[:limit]
    return {
        "version": VERSION,
        "since": query.since,
        "until": query.until,
        "sessions": [
            {"id": str(_shown_number(one, reader)), **_session_fields(one, state.ledger.energy)}
            for one in shown
        ],
        "next": _next(parameters, query, shown[-1], reader) if more else None,
        "from_books": from_books,
    }


@dataclass(frozen=True, slots=True)
class _Continuation:
    """The range and the position of a cursor; a relative time such as `24h` is resolved only once."""

    since: float
    until: float
    after: Position


def _shown_number(one: ListedSession, reader: Reader) -> int:
    return one.row.number if reader.reads_all else masked_number(one.row.number)


def _resume(parameters: Mapping[str, Any], reader: Reader) -> tuple[Mapping[str, Any], _Continuation | None]:
    """The parameters, with a cursor those of the first request. Raises ApiError."""
    if parameters["cursor"] is None:
        return parameters, None
    (since, until, first, number), before = decode_cursor(parameters["cursor"], 4)
    if (
        number != int(number)
        or not 0 <= number < 2**53
        or before.get("state") not in (None, "open", "closed")
    ):
        raise invalid_cursor()
    check_times(parameters, before, since, until)
    for name in _FILTERS:
        if parameters[name] is not None and parameters[name] != before.get(name):
            raise cursor_mismatch(name)
    moments = {name: Moment(name, before.get(name, "")) for name in ("since", "until")}
    filters = {name: before.get(name) for name in _FILTERS}
    place = int(number) if reader.reads_all else unmasked_number(int(number))
    return {**moments, **filters}, _Continuation(float(since), float(until), (float(first), place))


def _session_query(
    parameters: Mapping[str, Any], now: float, continuation: _Continuation | None, zone: tzinfo | None
) -> SessionQuery:
    if continuation is None:
        since, until = (parameters[name].unix(now, zone) for name in ("since", "until"))
        # An empty range is valid: the sessions at that moment. An empty range at now has no sessions yet.
        if since > until or (since == until and parameters["since"].is_now):
            raise bad_request("since", "since is not before until: the range is empty")
        continuation = _Continuation(since, until, FIRST_POSITION)
    state = parameters["state"]
    return SessionQuery(
        continuation.since,
        continuation.until,
        parameters["gpu"],
        parameters["namespace"],
        parameters["pod"],
        parameters["user"],
        None if state is None else state == "open",
        continuation.after,
    )


def _next(parameters: Mapping[str, Any], query: SessionQuery, last: ListedSession, reader: Reader) -> str:
    words = {name: parameters[name].text for name in ("since", "until")}
    words |= {name: parameters[name] for name in _FILTERS if parameters[name] is not None}
    position = (last.row.first_seen, _shown_number(last, reader))
    return encode_cursor([query.since, query.until, *position], words)


def _session_fields(one: ListedSession, energy: EnergyState) -> JsonObject:
    row = one.row
    process = row.process
    # Without a meter on its Gpu, the energy of a session is absent, not zero.
    booked = row.high > 0 or (one.ended is None and energy.is_known(row))
    return {
        **device_fields(process.device),
        "pid": process.pid,
        "command": process.command,
        **owner_fields(process.workload),
        "first_seen": row.first_seen,
        "last_seen": row.last_seen,
        "ended": one.ended,
        "exit_seen": one.exit_seen,
        "peak_memory_bytes": row.peak_memory,
        "memory_mean_bytes": None if row.memory_mean is None else round(row.memory_mean),
        "sm_mean_ratio": _ratio(row.sm_mean),
        "sm_most_ratio": _ratio(row.sm_most),
        "held_seconds": None if row.held_seconds is None else round(row.held_seconds, 3),
        "active_seconds": None if row.active_seconds is None else round(row.active_seconds, 3),
        "first_active": row.first_active,
        "joules": joules(row.measured + row.apportioned) if booked else None,
        "measured_joules": joules(row.measured) if booked else None,
        "apportioned_joules": joules(row.apportioned) if booked else None,
        "low_joules": joules(row.measured) if booked else None,
        "high_joules": joules(row.high) if booked else None,
    }


def _ratio(value: float | None) -> float | None:
    number = finite(value)
    return None if number is None else round(number, 6)

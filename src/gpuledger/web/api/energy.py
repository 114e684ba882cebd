"""`/api/v1/energy`: energy, time and cost from the ledger; reports are cached for the pages of a client."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

from gpuledger.host.time_zone import find_time_zone
from gpuledger.ledger.report.grouping import Grouping, find_grouping
from gpuledger.ledger.report.moments import is_age, parse_whole_period
from gpuledger.ledger.report.ranges import ReportRange, RequestedRange
from gpuledger.ledger.store.present_keys import best_key, present_keys
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.watched_range import NothingWatched, require_watched_time, resolve_watched_range
from gpuledger.model.access import EVERYTHING, Reader
from gpuledger.model.errors import UsageError
from gpuledger.model.node_state import NodeState
from gpuledger.web.api.api import ApiOptions
from gpuledger.web.api.json_values import JsonObject
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.parameters import AUTO, Moment, check_times
from gpuledger.web.api.report_json import EncodedReport, encode_report, report_fields
from gpuledger.web.api.responses import (
    ApiError,
    bad_request,
    cursor_mismatch,
    decode_cursor,
    encode_cursor,
    invalid_cursor,
)

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

# A report younger than this is reused: twenty open web pages request the same one.
FRESH_SECONDS: Final = 10.0
# So is one younger than this times the seconds that it took: reports take at most 1/20 of one core.
_FRESH_FACTOR: Final = 20.0
# A report older than this is dropped; its cursors expire.
HELD_SECONDS: Final = 300.0
_MAX_REPORTS: Final = 4
# Parameters beside the range, and those of the range.
_WITH_CURSOR: Final = ("by", "every", "basis", "in")


@dataclass(frozen=True, slots=True)
class _CachedReport:
    """A report, when it was made and until when it is reused, in monotonic seconds.

    `number` identifies it in cursors, `requested` has the texts of the parameters of the first request.
    """

    number: int
    at: float
    fresh_until: float
    content: EncodedReport
    requested: Mapping[str, str]
    reader: Reader = EVERYTHING


class EnergyReports:
    """Builds and caches reports. Used only in one worker thread, so equal concurrent requests share a report.

    `options` returns the settings in force. All pages of a response come from the same report: rows are
    sorted by energy, so their order would change between pages.
    """

    def __init__(
        self,
        ledger_access: LedgerAccess,
        options: Callable[[], ApiOptions],
        monotonic: Callable[[], float] = time.monotonic,
        held: float = HELD_SECONDS,
    ) -> None:
        self._ledger_access = ledger_access
        self._options = options
        self._monotonic = monotonic
        self._held_seconds = held
        # By what identifies equal reports: the range, the grouping and the settings.
        self._reports: OrderedDict[Hashable, _CachedReport] = OrderedDict()
        # Cursors from before a reload or a restart must not match a report of this instance.
        self._next = int(monotonic() * 1000) + 1
        self.computed = 0

    def report_page(
        self, state: NodeState, parameters: Mapping[str, Any], reader: Reader = EVERYTHING
    ) -> JsonObject:
        """The page of a report that the parameters request, with the reader's rows. Raises ApiError."""
        self.drop_expired()
        place = 0
        if parameters["cursor"] is None:
            cached = self._fresh_report(state, parameters, reader)
            texts = {name: parameters[name].text for name in ("since", "until")}
        else:
            (number, at), texts = decode_cursor(parameters["cursor"], 2)
            cached, place = self._cached(int(number), reader), int(at)
            if not 0 < place <= len(cached.content.report.lines):
                raise invalid_cursor()
            _check_repeated(parameters, cached, texts)
        last = place + parameters["limit"]
        fields = report_fields(cached.content, slice(place, last))
        more = last < len(cached.content.report.lines)
        fields["next"] = encode_cursor([cached.number, last], texts) if more else None
        return fields

    def _fresh_report(self, state: NodeState, parameters: Mapping[str, Any], reader: Reader) -> _CachedReport:
        options = self._options()
        zone = find_time_zone(options.timezone)
        with self._ledger_access.open(reader) as history, refuse_unwatched(state):
            require_watched_time(history)
            within = resolve_requested(
                history, requested_range(parameters, self._ledger_access.now(state, history), zone)
            )
            is_open = within.until >= history.last
            texts = {name: parameters[name] or "" for name in _WITH_CURSOR}
            ends = None if is_open else within.ends
            key = (reader, *texts.values(), within.begins, ends, options.prices, options.teams)
            known = self._reports.get(key)
            if known is not None and self._monotonic() < known.fresh_until:
                return known
            began = self._monotonic()
            content = _build(history, parameters, within, options)
        self.computed += 1
        now = self._monotonic()
        # What ends before the last reading does not change, but for names that arrive later.
        fresh = max(FRESH_SECONDS, _FRESH_FACTOR * (now - began)) if is_open else self._held_seconds
        cached = _CachedReport(self._next, now, now + min(fresh, self._held_seconds), content, texts, reader)
        self._next += 1
        self._reports[key] = cached
        self._reports.move_to_end(key)
        while len(self._reports) > _MAX_REPORTS:
            self._reports.popitem(last=False)
        return cached

    def _cached(self, number: int, reader: Reader) -> _CachedReport:
        for cached in self._reports.values():
            if cached.number == number and cached.reader == reader:
                return cached
        message = "the report of this cursor is no longer cached; request it again without a cursor"
        raise ApiError(404, "cursor_expired", message, "cursor")

    @property
    def has_reports(self) -> bool:
        """Whether reports are cached. Thread-safe."""
        return bool(self._reports)

    def drop_expired(self) -> None:
        """Drop the expired reports."""
        oldest = self._monotonic() - self._held_seconds
        for key in [key for key, cached in self._reports.items() if cached.at < oldest]:
            del self._reports[key]


def _check_repeated(parameters: Mapping[str, Any], cached: _CachedReport, texts: Mapping[str, str]) -> None:
    """Raise ApiError for a parameter that differs from the one of the first request."""
    report = cached.content.report
    for name in _WITH_CURSOR:
        same = {None, cached.requested[name]} | ({report.grouping.name} if name == "by" else set())
        if parameters[name] not in same:
            raise cursor_mismatch(name)
    check_times(parameters, texts, report.period.since, min(report.period.until, report.period.last))


def requested_range(parameters: Mapping[str, Any], now: float, zone: tzinfo) -> RequestedRange:
    """The range of the parameters. Raises ApiError."""
    begin, end, period = parameters["since"], parameters["until"], parameters["in"]
    if period is not None:
        given = [one.name for one in (begin, end) if one.given]
        if given:
            raise bad_request(
                "in", f"in and {' and '.join(given)} exclude each other: send a period or its ends"
            )
        try:
            since, until = parse_whole_period("in", period, now, zone)
        except UsageError as error:
            raise bad_request("in", str(error)) from None
        return RequestedRange(since, until, f"in={period}", f"in={period}", zone)
    return range_between(begin, end, now, zone)


def range_between(begin: Moment, end: Moment, now: float, zone: tzinfo) -> RequestedRange:
    """The range between two moments. Raises ApiError."""
    since, until = begin.unix(now, zone), end.unix(now, zone)
    if since >= until:
        raise bad_request("since", "since is not before until: the range is empty")
    texts = (f"since={begin.text}", f"until={end.text}")
    ages = (is_age(begin.text), is_age(end.text))
    return RequestedRange(since, None if end.is_now else until, *texts, zone, *ages)


def resolve_requested(history: History, requested: RequestedRange) -> ReportRange:
    """The range between cuts of the ledger. Raises ApiError and NothingWatched."""
    try:
        return resolve_watched_range(history, requested)
    except UsageError as error:
        raise bad_request(requested.since_text.partition("=")[0], _without_flags(error)) from None


def _build(
    history: History, parameters: Mapping[str, Any], within: ReportRange, options: ApiOptions
) -> EncodedReport:
    groupings = present_keys(history, within.begins, within.ends, options.teams, options.node)
    by = best_key(groupings) if parameters["by"] == AUTO else parameters["by"]
    prices = options.prices
    if parameters["basis"] is not None:
        prices = replace(prices, basis=parameters["basis"])
    try:
        grouping: Grouping = find_grouping(
            by, history.devices, teams=options.teams, node_of=lambda _: options.node
        )
    except UsageError as error:
        raise bad_request("by", _without_flags(error)) from None
    try:
        report = build_report(
            history, grouping, prices, within, every=parameters["every"] or "", node=options.node
        )
    except UsageError as error:
        raise ApiError(503, "settings", str(error)) from None
    return encode_report(report, groupings)


def _without_flags(error: UsageError) -> str:
    """The message of an error with parameters in place of flags."""
    return str(error).replace("--", "")


@contextmanager
def refuse_unwatched(state: NodeState) -> Iterator[None]:
    """A context that raises ApiError for NothingWatched, with the reason if nothing is read now."""
    try:
        yield
    except NothingWatched as error:
        if error.in_range:
            raise ApiError(404, "not_watched", str(error), "since") from None
        reason = "" if state.snapshot else f"; {state.health.status}"
        raise ApiError(503, "no_books", f"{error}{reason}", retry=60) from None

"""`/api/v1/energy`: energy by owner from the ledger; reports are cached while clients page through them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.ledger.store.history import build_report
from gpuledger.ledger.store.watched_range import NothingWatched, require_watched_range, require_watched_time
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import UsageError
from gpuledger.model.node_state import NodeState
from gpuledger.web.api.json_values import VERSION, JsonObject, joules
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.parameters import check_times
from gpuledger.web.api.responses import (
    ApiError,
    bad_request,
    cursor_mismatch,
    decode_cursor,
    encode_cursor,
    invalid_cursor,
)

# A report younger than this is reused: twenty open web pages request the same one.
FRESH_SECONDS: Final = 10.0
# A report older than this is dropped; its cursors expire.
HELD_SECONDS: Final = 300.0
_MAX_REPORTS: Final = 4


@dataclass(frozen=True, slots=True)
class _CachedReport:
    """A report and its time in monotonic seconds; `number` identifies it in cursors."""

    number: int
    at: float
    report: UsageReport


class EnergyReports:
    """Builds and caches reports. Used only in one worker thread, so equal concurrent requests share a report.

    `prices` returns those in force. All pages of a response come from the same report: rows are sorted by
    energy, so their order would change between pages.
    """

    def __init__(
        self,
        ledger_access: LedgerAccess,
        prices: Callable[[], Prices],
        monotonic: Callable[[], float] = time.monotonic,
        held: float = HELD_SECONDS,
    ) -> None:
        self._ledger_access = ledger_access
        self._prices = prices
        self._monotonic = monotonic
        self._held_seconds = held
        # By what identifies equal reports: grouping, the full hours of the range, prices.
        self._reports: OrderedDict[tuple[str, int, int, Prices], _CachedReport] = OrderedDict()
        # Cursors from before a reload or a restart must not match a report of this instance.
        self._next = int(monotonic() * 1000) + 1
        self.computed = 0

    def report_page(self, state: NodeState, parameters: Mapping[str, Any]) -> JsonObject:
        """The page of a report that the parameters request. Raises ApiError."""
        self.drop_expired()
        place = 0
        if parameters["cursor"] is None:
            cached = self._fresh_report(state, parameters)
            times = {name: parameters[name].text for name in ("since", "until")}
        else:
            (number, at), times = decode_cursor(parameters["cursor"], 2)
            cached, place = self._cached(int(number)), int(at)
            if not 0 < place <= len(cached.report.lines):
                raise invalid_cursor()
            if parameters["by"] not in (None, cached.report.grouping.name):
                raise cursor_mismatch("by")
            check_times(parameters, times, cached.report.period.since, cached.report.period.until)
        last = place + parameters["limit"]
        fields = _report_fields(cached.report, slice(place, last))
        fields["next"] = (
            encode_cursor([cached.number, last], times) if last < len(cached.report.lines) else None
        )
        return fields

    def _fresh_report(self, state: NodeState, parameters: Mapping[str, Any]) -> _CachedReport:
        with self._ledger_access.open() as history, _refuse_unwatched(state):
            require_watched_time(history)
            now = self._ledger_access.now(state, history)
            since, until = _full_hours(parameters, now)
            if parameters["until"].text == "now":
                # After the clock was set back, the ledger may end after now.
                until = max(until, history.end_hour * HOUR)
            require_watched_range(history, since // HOUR, until // HOUR)
            prices = self._prices()
            key = (parameters["by"], since, until, prices)
            known = self._reports.get(key)
            if known is not None and self._monotonic() - known.at < FRESH_SECONDS:
                return known
            try:
                report = build_report(history, parameters["by"], prices, (since, until))
            except UsageError as error:
                raise bad_request("by", str(error)) from None
        self.computed += 1
        cached = _CachedReport(self._next, self._monotonic(), report)
        self._next += 1
        self._reports[key] = cached
        self._reports.move_to_end(key)
        while len(self._reports) > _MAX_REPORTS:
            self._reports.popitem(last=False)
        return cached

    def _cached(self, number: int) -> _CachedReport:
        for cached in self._reports.values():
            if cached.number == number:
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


def _full_hours(parameters: Mapping[str, Any], now: float) -> tuple[int, int]:
    """The range in full hours, at which the ledger is exact: `since` rounded down, `until` up."""
    since, until = parameters["since"].unix(now), parameters["until"].unix(now)
    if since >= until:
        raise bad_request("since", "since is not before until: the range is empty")
    return int(since // HOUR) * HOUR, -int(-until // HOUR) * HOUR


@contextmanager
def _refuse_unwatched(state: NodeState) -> Iterator[None]:
    """A context that raises ApiError for NothingWatched, with the reason if nothing is read now."""
    try:
        yield
    except NothingWatched as error:
        if error.in_range:
            raise ApiError(404, "not_watched", str(error), "since") from None
        reason = "" if state.snapshot else f"; {state.health.status}"
        raise ApiError(503, "no_books", f"{error}{reason}", retry=60) from None


def _report_fields(report: UsageReport, shown: slice) -> JsonObject:
    period, total = report.period, report.total
    return {
        "version": VERSION,
        "since": period.since,
        "until": period.until,
        "by": report.grouping.name,
        "keys": list(report.grouping.columns),
        "complete": period.since >= period.first,
        "rows": [_row_fields(line) for line in report.lines[shown]],
        "own": [
            {
                "account": line.account,
                "joules": joules(line.energy),
                "cost": _rounded(line.cost),
                "co2_grams": _rounded(line.grams),
            }
            for line in report.gpu_accounts
        ],
        "total": {
            "joules": joules(total.energy),
            "measured_joules": _if_metered(total, sum(line.measured for line in report.lines)),
            "apportioned_joules": _if_metered(total, sum(line.apportioned for line in report.lines)),
            "gpu_seconds": _rounded(total.resident),
            "held_gpu_seconds": _rounded(total.held),
            "allocated_gpu_seconds": _rounded(total.allocated),
            "occupied_gpu_seconds": _rounded(report.occupied),
            "sessions": total.sessions,
            "cost": _rounded(total.cost),
            "co2_grams": _rounded(total.grams),
            "unmetered_gpus": len(total.unmetered),
        },
        "gpus": [
            {
                "uuid": gpu.uuid,
                "gpu": gpu.index,
                "name": gpu.model,
                "joules": joules(gpu.millijoules),
                "observed_gpu_seconds": _rounded(gpu.observed),
            }
            for gpu in report.gpus
        ],
        "currency": report.prices.currency,
        "notes": [*report.notes, *_pue_notes(report.prices)],
        "from_books": True,
    }


def _pue_notes(prices: Prices) -> tuple[str, ...]:
    """A note when cost and CO2 include the PUE, unlike the joules next to them."""
    pue = prices.pue
    names = [name for name, rate in (("cost", prices.kwh), ("CO2", prices.co2)) if rate is not None]
    if pue is None or pue == 1 or not names:
        return ()
    verb = "are" if len(names) > 1 else "is"
    return (f"{' and '.join(names)} {verb} computed from the energy times the PUE of {pue}",)


def _row_fields(line: ReportLine) -> JsonObject:
    return {
        "key": list(line.key),
        "joules": joules(line.energy),
        "measured_joules": _if_metered(line, line.measured),
        "apportioned_joules": _if_metered(line, line.apportioned),
        "low_joules": _if_metered(line, line.measured),
        "high_joules": joules(line.high),
        "gpu_seconds": _rounded(line.resident),
        "held_gpu_seconds": _rounded(line.held),
        "allocated_gpu_seconds": _rounded(line.allocated),
        "sessions": line.sessions,
        "cost": _rounded(line.cost),
        "co2_grams": _rounded(line.grams),
        "unmetered_gpus": len(line.unmetered),
    }


def _if_metered(line: ReportLine, millijoules: int) -> float | None:
    """Joules; None if the energy of the row is unknown."""
    return joules(millijoules) if line.metered else None


def _rounded(value: Fraction | None) -> float | None:
    return None if value is None else round(float(value), 6)

"""Energy by owner out of the books: reports, held for as long as they are paged through."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from gpuledger.ledger.report.report import Line, Report
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.store.history import report_of
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import UsageError
from gpuledger.model.node_state import NodeState
from gpuledger.web.api.answers import Refused, another, bad_request, broken, cursor_of, told_in
from gpuledger.web.api.books import BooksAsRead
from gpuledger.web.api.values import VERSION, Words, joules

# An answer that is so young is given again: twenty open pages ask for the same.
FRESH: Final = 10.0
# An answer that is so old is no longer paged through.
HELD: Final = 300.0
_MOST: Final = 4


@dataclass(frozen=True, slots=True)
class _Made:
    """A report and when it was made, in monotonic seconds; `number` names it in cursors."""

    number: int
    at: float
    report: Report


@dataclass(frozen=True, slots=True)
class _Key:
    """What makes two reports the same. Times are unix seconds at full hours."""

    by: str
    since: int
    until: int
    prices: Prices


class EnergyReports:
    """Reports out of the books. Used by one worker's thread alone, which is what lets those who ask for the
    same at the same time have the same report.

    `prices` are those in force. A report that was begun for the first rows gives the rest of them, too: the
    order is by energy, and would change meanwhile.
    """

    def __init__(
        self,
        books: BooksAsRead,
        prices: Callable[[], Prices],
        monotonic: Callable[[], float] = time.monotonic,
        held: float = HELD,
    ) -> None:
        self._books = books
        self._prices = prices
        self._monotonic = monotonic
        self._longest = held
        self._made: OrderedDict[_Key, _Made] = OrderedDict()
        # A cursor of those who were here before a reload, or before a restart, must not name one of these.
        self._next = int(monotonic() * 1000) + 1
        self.computed = 0

    def told(self, page: NodeState, asked: Mapping[str, Any]) -> Words:
        """What the parameters ask for. Raises Refused."""
        self.forget()
        place = 0
        if asked["cursor"] is None:
            made = self._newest(page, asked)
            times = {name: asked[name].text for name in ("since", "until")}
        else:
            (number, at), times = told_in(asked["cursor"], 2)
            made, place = self._held(int(number)), int(at)
            if not 0 < place <= len(made.report.lines):
                raise broken()
            _check_same(made.report, times, asked)
        last = place + asked["limit"]
        words = _words(made.report, slice(place, last))
        words["next"] = cursor_of([made.number, last], times) if last < len(made.report.lines) else None
        return words

    def _newest(self, page: NodeState, asked: Mapping[str, Any]) -> _Made:
        with self._books.reading() as history:
            now = self._books.now(page, history)
            since, until = _hours(asked, now)
            if asked["until"].text == "now":
                # The clock may have been set back: what was booked before is not of tomorrow.
                until = max(until, history.end_hour * HOUR)
            key = _Key(asked["by"], since, until, self._prices())
            known = self._made.get(key)
            if known is not None and self._monotonic() - known.at < FRESH:
                return known
            try:
                report = report_of(history, key.by, key.prices, (since, until))
            except UsageError as error:
                raise bad_request("by", str(error)) from None
        self.computed += 1
        made = _Made(self._next, self._monotonic(), report)
        self._next += 1
        self._made[key] = made
        self._made.move_to_end(key)
        while len(self._made) > _MOST:
            self._made.popitem(last=False)
        return made

    def _held(self, number: int) -> _Made:
        for made in self._made.values():
            if made.number == number:
                return made
        message = "the report that this cursor goes on with is no longer held; ask anew without cursor"
        raise Refused(404, "cursor_expired", message, "cursor")

    @property
    def holds(self) -> bool:
        """Whether there are reports to be forgotten. From any thread."""
        return bool(self._made)

    def forget(self) -> None:
        """Let go of reports that are no longer paged through."""
        oldest = self._monotonic() - self._longest
        for key in [key for key, made in self._made.items() if made.at < oldest]:
            del self._made[key]


def _check_same(report: Report, times: Mapping[str, str], asked: Mapping[str, Any]) -> None:
    if asked["by"] not in (None, report.grouping.name):
        raise another("by")
    for name, unix in (("since", report.period.since), ("until", report.period.until)):
        if asked[name] is not None and not asked[name].means(times.get(name), unix):
            raise another(name)


def _hours(asked: Mapping[str, Any], now: float) -> tuple[int, int]:
    """At full hours, where books are exact: the first rounded down, the second up."""
    since, until = asked["since"].unix(now), asked["until"].unix(now)
    if since >= until:
        raise bad_request("since", "since is not before until; nothing lies between")
    return int(since // HOUR) * HOUR, -int(-until // HOUR) * HOUR


def _words(report: Report, shown: slice) -> Words:
    period, total = report.period, report.total
    return {
        "version": VERSION,
        "since": period.since,
        "until": period.until,
        "by": report.grouping.name,
        "keys": list(report.grouping.columns),
        "complete": period.since >= period.first,
        "rows": [_row(line) for line in report.lines[shown]],
        "own": [
            {
                "account": line.account,
                "joules": joules(line.millijoules),
                "cost": _rounded(line.cost),
                "co2_grams": _rounded(line.grams),
            }
            for line in report.own
        ],
        "total": {
            "joules": joules(total.millijoules),
            "measured_joules": joules(sum(line.measured for line in report.lines)),
            "apportioned_joules": joules(sum(line.apportioned for line in report.lines)),
            "gpu_seconds": _rounded(total.resident),
            "held_gpu_seconds": _rounded(total.held),
            "allocated_gpu_seconds": _rounded(total.allocated),
            "occupied_gpu_seconds": _rounded(report.occupied),
            "sessions": total.sessions,
            "cost": _rounded(total.cost),
            "co2_grams": _rounded(total.grams),
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
        "notes": [*report.notes, *_of_the_building(report.prices)],
        "from_books": True,
    }


def _of_the_building(prices: Prices) -> tuple[str, ...]:
    """What is to be known where cost and CO2 are of other energy than the joules beside them."""
    pue = prices.pue
    told = [name for name, rate in (("cost", prices.kwh), ("CO2", prices.co2)) if rate is not None]
    if pue is None or pue == 1 or not told:
        return ()
    return (f"{' and '.join(told)} {'are' if len(told) > 1 else 'is'} of the energy times the PUE of {pue}",)


def _row(line: Line) -> Words:
    return {
        "key": list(line.key),
        "joules": joules(line.millijoules),
        "measured_joules": joules(line.measured),
        "apportioned_joules": joules(line.apportioned),
        "low_joules": joules(line.measured),
        "high_joules": joules(line.high),
        "gpu_seconds": _rounded(line.resident),
        "held_gpu_seconds": _rounded(line.held),
        "allocated_gpu_seconds": _rounded(line.allocated),
        "sessions": line.sessions,
        "cost": _rounded(line.cost),
        "co2_grams": _rounded(line.grams),
    }


def _rounded(value: Fraction | None) -> float | None:
    return None if value is None else round(float(value), 6)

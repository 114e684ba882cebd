"""Explanations as text for people: the row, the Sessions, and the intervals of GPU time and energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from gpuledger.ledger.report.explain import (
    AllocationLine,
    Explanation,
    Interval,
    SessionLine,
    SpreadLine,
    TimeInterval,
    merge_intervals,
    merge_time_intervals,
)
from gpuledger.ledger.report.explain_formats import largest_lines
from gpuledger.ledger.report.formats import row_as_json
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.money import FILE_DIGITS, exact_text, round_decimal, split_known
from gpuledger.ledger.report.report_columns import shown_columns
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.model.text import escape_to_one_line

_NO_DATA = "no data: the GPU has no energy counter and no power reading, or was not measured at that time"
# Smaller bills are shown in joules, larger ones in kWh.
_SMALL = MILLIJOULES_PER_KWH // 10


def explanation_text(found: Explanation, limit: int = 0) -> str:
    """The report's row, the Sessions, then the intervals of GPU time and of energy.

    `limit` is the number of Sessions, of allocations and of intervals in each list; 0 shows all.
    """
    return "\n".join(_ExplanationText(found, limit).lines())


@dataclass(frozen=True, slots=True)
class _Unit:
    """Joules for a small bill, kilowatt-hours for a large one."""

    bill: int

    @property
    def name(self) -> str:
        return "J" if self.bill < _SMALL else "kWh"

    def number(self, millijoules: int) -> str:
        if self.bill < _SMALL:
            return f"{millijoules // 1000:,}.{millijoules % 1000:03d}"
        return f"{millijoules / MILLIJOULES_PER_KWH:,.6f}"

    def text(self, millijoules: int) -> str:
        return f"{self.number(millijoules)} {self.name}"


class _ExplanationText:
    """Writes one explanation."""

    def __init__(self, found: Explanation, limit: int) -> None:
        self._found = found
        self._limit = limit
        self._unit = _Unit(found.millijoules)
        self._zone = None if found.report is None else found.report.zone

    def lines(self) -> list[str]:
        """The lines of the text, and an empty one for its end."""
        found = self._found
        lines = [f"{escape_to_one_line(found.who)}: {self._bill()}", *self._row(), *self._scope(), ""]
        for part in (self._sessions(), self._time(), self._energy()):
            lines += [*part, ""] if part else []
        if not found.intervals and not found.time_intervals and found.metered:
            lines += ["no interval in this range has time or energy", ""]
        return lines

    def _bill(self) -> str:
        """GPU time and energy, with the bounds of the energy."""
        found, unit = self._found, self._unit
        time = f"{_seconds(found.microseconds)} s of GPU time"
        if found.unbilled is not None:
            time += ", not billed"
        if not found.metered:
            return f"{time}; {_NO_DATA}"
        if found.row is None and not found.intervals and found.unbilled is not None:
            return time
        bill = f"{time}; {unit.text(found.millijoules)}"
        if found.measured is not None and found.high is not None:
            bill += f", of which {unit.text(found.measured)} measured; at most {unit.text(found.high)}"
        return bill

    def _row(self) -> list[str]:
        """The columns of the report's row, with the digits of files, and its exact amounts."""
        found = self._found
        if found.unbilled is not None:
            return [*self._unbilled(), *(self._row_of_report() if found.row else [])]
        if found.row is not None:
            return self._row_of_report()
        if not found.by:
            return []
        return [
            f"  no row in `gpuledger report --by {found.by}`: processes that only serve others own no time "
            "and no energy"
        ]

    def _row_of_report(self) -> list[str]:
        found = self._found
        assert found.row is not None
        values = row_as_json(*found.row)
        values |= values.get("decimals", {})
        columns = shown_columns(found.row.report)
        cells = [f"{one.heading} {values[one.name]}" for one in columns if values[one.name] is not None]
        exact = [
            f"{values[name]} {unit}"
            for name, unit in (("millijoules", "mJ"), ("gpu_microseconds", "microseconds of GPU time"))
            if values[name] is not None
        ]
        where = f"its row in `gpuledger report --by {found.by}`" if found.by else "as a row of a report"
        return [f"  {where}: {', '.join(cells)}", f"  exactly: {', '.join(exact) or 'nothing'}"]

    def _unbilled(self) -> list[str]:
        one = self._found.unbilled
        assert one is not None
        cost = (
            ""
            if one.cost is None
            else f"; it would have cost {self._money(round_decimal(one.cost, FILE_DIGITS))}"
        )
        return [f"  not billed: {one.microseconds} microseconds of GPU time{cost}"]

    def _scope(self) -> list[str]:
        """The range, who pays, and notes on the numbers."""
        found, report = self._found, self._found.report
        if report is None:
            return []
        begin, end = (format_local_time(unix, self._zone) for unix in (found.since, found.until))
        prices = f", price list {report.fingerprint}" if report.prices.any_price else ""
        lines = [f"  from {begin} to {end}, GPU time by {report.basis}{prices}"]
        return [*lines, *(f"  {note}" for note in found.notes)]

    def _sessions(self) -> list[str]:
        found, limit = self._found, self._limit
        if not found.sessions and not found.allocations:
            return []
        sessions = largest_lines(found.sessions, limit, lambda one: one.measured + one.apportioned)
        allocations = largest_lines(found.allocations, limit, lambda one: one.ends - one.begins)
        return [
            "sessions, each over its whole lifetime:",
            *map(self._session, sessions),
            *_omitted(len(found.sessions) - len(sessions), "sessions"),
            *map(self._allocation, allocations),
            *_omitted(len(found.allocations) - len(allocations), "allocations"),
        ]

    def _session(self, session: SessionLine) -> str:
        end = "open" if not session.ended else "" if session.exit_seen else "exit not observed"
        held = f", {session.held_seconds / 3600:.2f} h of it idle" if session.held_seconds else ""
        booked = self._unit.text(session.measured + session.apportioned) if session.metered else "no data"
        when = f"{self._clock(session.first_seen)} to {self._clock(session.last_seen)}"
        return (
            f"  pid {session.pid} {escape_to_one_line(session.command) or '?'} on {_where(session)}, {when}"
            f"{held}: {booked}{'; ' + end if end else ''}"
        )

    def _allocation(self, one: AllocationLine) -> str:
        unused = f"; without a process there for {one.unused / 3600:.2f} h" if one.unused else ""
        when = f"{self._clock(one.begins)} to {self._clock(one.ends)}"
        return f"  allocated: {_where(one)}, {when}{unused}"

    def _time(self) -> list[str]:
        """Intervals of GPU time."""
        found = self._found
        merged = merge_time_intervals(found.time_intervals)
        if not merged:
            return []
        spread = [one for one in found.spread if one.is_time]
        exact = [*(one.cost for one in merged), *(one.cost for one in spread)]
        costs, total = self._costs(exact, "time_cost")
        shown = largest_lines(
            list(zip(merged, costs, strict=False)), self._limit, lambda one: one[0].microseconds
        )
        rest = sum(one.microseconds for one in merged) - sum(one.microseconds for one, _ in shown)
        lines = ["GPU time: intervals, and the part of the GPU's seconds:"]
        lines += [self._time_interval(*one) for one in shown]
        lines += _omitted(len(merged) - len(shown), f"intervals with {_seconds(rest)} s")
        for line, cost in zip(spread, costs[len(merged) :], strict=True):
            lines.append(f"  idle time of GPU {_name(line)}, spread: {_seconds(line.amount)} s{cost}")
        return [*lines, f"  sum: {_seconds(found.microseconds)} s{total}"]

    def _costs(self, exact: Sequence[Fraction | None], column: str) -> tuple[Sequence[str], str]:
        """The costs as text, which sum to that of the row; and the sum. Empty without a price."""
        known = [cost for cost in exact if cost is not None]
        total = round_decimal(sum(known, Fraction(0)), FILE_DIGITS)
        if self._found.row:
            total = Decimal(row_as_json(*self._found.row).get("decimals", {}).get(column, total))
        costs = split_known(total, exact, FILE_DIGITS)
        texts = ["" if cost is None else f"  {self._money(cost)}" for cost in costs]
        return texts, f", {self._money(total)}" if known else ""

    def _time_interval(self, interval: TimeInterval, cost: str) -> str:
        share = f"{_seconds(interval.microseconds):>16} of {_seconds(interval.watched):>16} s"
        estimated = "  ~ the part of the GPU is unknown" if interval.estimated else ""
        names = [f"{escape_to_one_line(name)} {_seconds(part)}" for name, part in interval.others]
        shared = f"  with {', '.join(names)}" if names else ""
        return f"  {self._when(interval)}  GPU {_gpu(interval):<6} {share}{cost}{estimated}{shared}"

    def _energy(self) -> list[str]:
        """Intervals of energy, with the reason of each method."""
        found, unit = self._found, self._unit
        merged = merge_intervals(found.intervals)
        if not found.metered or not (merged or found.lost.millijoules):
            return []
        spread = [one for one in found.spread if not one.is_time]
        exact = [*(one.cost for one in merged), *(one.cost for one in spread)]
        costs, total = self._costs(exact, "energy_cost")
        shown = largest_lines(
            list(zip(merged, costs, strict=False)), self._limit, lambda one: one[0].millijoules
        )
        clues = list(dict.fromkeys(interval.why for interval, _ in shown))
        lines = [f"energy: intervals, and the share of the GPU's {unit.name}:"]
        lines += [self._interval(interval, cost, clues.index(interval.why) + 1) for interval, cost in shown]
        rest = sum(one.millijoules for one in merged) - sum(one.millijoules for one, _ in shown)
        lines += _omitted(len(merged) - len(shown), f"intervals with {unit.text(rest)}")
        for line, cost in zip(spread, costs[len(merged) :], strict=True):
            lines.append(f"  idle energy of GPU {_name(line)}, spread: {unit.text(line.amount)}{cost}")
        if found.lost.millijoules:
            without = unit.text(found.lost.millijoules)
            lines.append(f"  {without} are older than store.detail: known by hour only")
        lines += ["", *(f"({number}) {clue}" for number, clue in enumerate(clues, 1))]
        sums = " + ".join(_by_method(found, unit)) or unit.text(0)
        return [*lines, "", f"{sums} = {unit.text(found.millijoules)}{total}"]

    def _interval(self, interval: Interval, cost: str, clue: int) -> str:
        unit = self._unit
        share = f"{unit.number(interval.millijoules):>14} of {unit.number(interval.gpu_millijoules):>14}"
        own = [("idle", interval.idle), ("unattributed", interval.unattributed)]
        named = [(one.name, one.millijoules) for one in interval.others]
        names, rest = (
            ", ".join(f"{escape_to_one_line(name)} {unit.number(energy)}" for name, energy in amounts)
            for amounts in (named, [one for one in own if one[1] and one[0] != interval.method])
        )
        shared = "; ".join(part for part in (names and f"with {names}", rest) if part)
        place = f"GPU {_gpu(interval):<6} {interval.method:<9}"
        return f"  {self._when(interval)}  {place} {share}{cost}  ({clue}) {shared}".rstrip()

    def _when(self, interval: Interval | TimeInterval) -> str:
        if interval.exact:
            return f"{self._clock(interval.begins)} to {self._clock(interval.ends)}"
        hours = (interval.ends - interval.begins) / 3600
        return f"within {self._clock(interval.begins)} + {hours:g} h"

    def _clock(self, unix: float) -> str:
        return datetime.fromtimestamp(unix, self._zone).astimezone(self._zone).strftime("%Y-%m-%d %H:%M:%S")

    def _money(self, cost: Decimal) -> str:
        report = self._found.report
        currency = "" if report is None else report.prices.currency
        return f"{exact_text(Fraction(cost), FILE_DIGITS)} {currency}".rstrip()


def _omitted(count: int, what: str) -> list[str]:
    return [f"  and {count} more {what}: --all shows all"] if count else []


def _by_method(found: Explanation, unit: _Unit) -> list[str]:
    methods: dict[str, int] = {}
    for interval in found.intervals:
        methods[interval.method] = methods.get(interval.method, 0) + interval.millijoules
    if found.lost.millijoules:
        methods["without detail"] = found.lost.millijoules
    return [f"{unit.text(energy)} {method}" for method, energy in sorted(methods.items())]


def _where(line: SessionLine | AllocationLine) -> str:
    return f"GPU {line.gpu}" + (f" instance {line.instance}" if line.instance else "")


def _name(line: SpreadLine) -> str:
    return escape_to_one_line(line.rate.gpu)


def _gpu(interval: Interval | TimeInterval) -> str:
    """The index of the GPU, and the MIG Instance."""
    return interval.gpu.split(" ")[0] + (f" {interval.instance}" if interval.instance else "")


def _seconds(microseconds: int) -> str:
    sign, amount = ("-" if microseconds < 0 else ""), abs(microseconds)
    return f"{sign}{amount // 1_000_000:,}.{amount % 1_000_000:06d}"

"""Explanations as text for people: the row, the Sessions, and the intervals of GPU time and energy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from gpuledger.ledger.report.explain import AllocationLine, Explanation, SessionLine
from gpuledger.ledger.report.explain_intervals import Interval, SpreadLine, TimeInterval
from gpuledger.ledger.report.explain_lists import Cells, ShownLines
from gpuledger.ledger.report.formats import row_as_json
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.money import FILE_DIGITS, exact_text, round_decimal
from gpuledger.ledger.report.report_columns import shown_columns
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.model.text import escape_to_one_line

_NO_DATA = "no data: the GPU has no energy counter and no power reading, or was not measured at that time"
# Smaller bills are shown in joules, larger ones in kWh.
_SMALL = MILLIJOULES_PER_KWH // 10


def explanation_text(found: Explanation) -> Iterator[str]:
    """The lines: the report's row, the Sessions, then the intervals of GPU time and of energy."""
    return _ExplanationText(found).lines()


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

    def __init__(self, found: Explanation) -> None:
        self._found = found
        self._unit = _Unit(found.millijoules)
        self._zone = None if found.report is None else found.report.zone
        self._spread = list(found.spread.rounded())
        # If the clocks of the zone change within the range, a time without its UTC offset is ambiguous.
        offsets = {self._local(unix).utcoffset() for unix in (found.since, found.until)}
        self._clock_form = "%Y-%m-%d %H:%M:%S" + (" %z" if len(offsets) > 1 else "")

    def lines(self) -> Iterator[str]:
        """The lines of the text."""
        found = self._found
        yield f"{escape_to_one_line(found.who)}: {self._bill()}"
        yield from self._row()
        yield from self._scope()
        for part in (self._sessions(), self._time(), self._energy()):
            for number, line in enumerate(part):
                yield from [line] if number else ["", line]
        if not found.intervals.count and not found.time_intervals.count and found.metered:
            yield from ("", "no interval in this range has time or energy")

    def _bill(self) -> str:
        """GPU time and energy, with the bounds of the energy."""
        found, unit = self._found, self._unit
        time = f"{_seconds(found.microseconds)} s of GPU time"
        if found.unbilled is not None:
            time += ", not billed"
        if not found.metered:
            return f"{time}; {_NO_DATA}"
        if found.row is None and not found.intervals.count and found.unbilled is not None:
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

    def _sessions(self) -> Iterator[str]:
        found = self._found
        if not found.sessions.count and not found.allocations.count:
            return
        yield "sessions, each over its whole lifetime:"
        yield from map(self._session, found.sessions)
        yield from _omitted(found.sessions.omitted, "sessions")
        yield from map(self._allocation, found.allocations)
        yield from _omitted(found.allocations.omitted, "allocations")

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

    def _time(self) -> Iterator[str]:
        """Intervals of GPU time."""
        found = self._found
        if not found.time_intervals.count:
            return
        yield "GPU time: intervals, and the part of the GPU's seconds:"
        shown = ShownLines(found.time_intervals, lambda one: one.microseconds)
        for interval, costs in shown:
            yield self._time_interval(interval, self._cost(costs, "time_cost"))
        rest = found.microseconds - shown.amount
        yield from _omitted(found.time_intervals.count - shown.count, f"intervals with {_seconds(rest)} s")
        for line, costs in self._spread:
            if line.is_time:
                cost = self._cost(costs, "time_cost")
                yield f"  idle time of GPU {_name(line)}, spread: {_seconds(line.amount)} s{cost}"
        yield f"  sum: {_seconds(found.microseconds)} s{self._total('time_cost')}"

    def _cost(self, costs: Cells, column: str) -> str:
        """The cost of a line, which sum to that of the row; empty without a price."""
        return f"  {self._money(costs[column])}" if column in costs else ""

    def _total(self, column: str) -> str:
        """The sum of the costs; empty without a price."""
        found = self._found
        lists = (found.time_intervals, found.intervals, found.spread)
        totals = [one.totals[column] for one in lists if column in one.totals]
        return f", {self._money(sum(totals, Decimal(0)))}" if totals else ""

    def _time_interval(self, interval: TimeInterval, cost: str) -> str:
        share = f"{_seconds(interval.microseconds):>16} of {_seconds(interval.watched):>16} s"
        estimated = "  ~ the part of the GPU is unknown" if interval.estimated else ""
        names = [f"{escape_to_one_line(name)} {_seconds(part)}" for name, part in interval.others]
        shared = f"  with {', '.join(names)}" if names else ""
        return f"  {self._when(interval)}  GPU {_gpu(interval):<6} {share}{cost}{estimated}{shared}"

    def _energy(self) -> Iterator[str]:
        """Intervals of energy, with the reason of each method."""
        found, unit = self._found, self._unit
        if not found.metered or not (found.intervals.count or found.lost.millijoules):
            return
        clues: dict[str, int] = {}
        yield f"energy: intervals, and the share of the GPU's {unit.name}:"
        shown = ShownLines(found.intervals, lambda one: one.millijoules)
        for interval, costs in shown:
            clue = clues.setdefault(interval.why, len(clues) + 1)
            yield self._interval(interval, self._cost(costs, "energy_cost"), clue)
        rest = unit.text(found.energy.millijoules - shown.amount)
        yield from _omitted(found.intervals.count - shown.count, f"intervals with {rest}")
        for line, costs in self._spread:
            if not line.is_time:
                cost = self._cost(costs, "energy_cost")
                yield f"  idle energy of GPU {_name(line)}, spread: {unit.text(line.amount)}{cost}"
        if found.lost.millijoules:
            yield f"  {unit.text(found.lost.millijoules)} are older than store.detail: known by hour only"
        yield ""
        yield from (f"({number}) {clue}" for clue, number in clues.items())
        yield ""
        sums = " + ".join(_by_method(found, unit)) or unit.text(0)
        yield f"{sums} = {unit.text(found.millijoules)}{self._total('energy_cost')}"

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
        return self._local(unix).strftime(self._clock_form)

    def _local(self, unix: float) -> datetime:
        return datetime.fromtimestamp(unix, self._zone).astimezone(self._zone)

    def _money(self, cost: Decimal) -> str:
        report = self._found.report
        currency = "" if report is None else report.prices.currency
        return f"{exact_text(Fraction(cost), FILE_DIGITS)} {currency}".rstrip()


def _omitted(count: int, what: str) -> list[str]:
    return [f"  and {count} more {what}: --all shows all"] if count else []


def _by_method(found: Explanation, unit: _Unit) -> list[str]:
    methods = dict(found.energy.methods)
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

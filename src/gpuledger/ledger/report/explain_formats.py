"""Explanations as JSON and CSV, in which the amounts of intervals sum to those of the row."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from heapq import nlargest
from typing import Any, TypeVar

from gpuledger.ledger.report.charges import unpriced_amount
from gpuledger.ledger.report.explain import Explanation, Interval, SessionLine, SpreadLine, TimeInterval
from gpuledger.ledger.report.explain_amounts import (
    Cells,
    IntervalCells,
    RoundedCosts,
    interval_cells,
    rounded_costs,
    spread_costs,
)
from gpuledger.ledger.report.formats import (
    SCHEMA_VERSION,
    escape_cell,
    format_time,
    rounded_row,
    row_as_json,
)
from gpuledger.ledger.report.money import FILE_DIGITS, round_decimal
from gpuledger.ledger.report.report_columns import report_columns
from gpuledger.ledger.report.usage_report import UnbilledTime

T = TypeVar("T")
U = TypeVar("U")


def largest_lines(lines: Sequence[T], limit: int, amount: Callable[[T], float]) -> Sequence[T]:
    """The lines with the largest amounts, at most `limit` (0: all), in their order."""
    if not limit or len(lines) <= limit:
        return lines
    shown = nlargest(limit, range(len(lines)), key=lambda place: (amount(lines[place]), -place))
    return [lines[place] for place in sorted(shown)]


def time_amount(interval: TimeInterval) -> int:
    """What intervals of time are compared by."""
    return interval.microseconds


def energy_amount(interval: Interval) -> int:
    """What intervals of energy are compared by."""
    return interval.millijoules


def explanation_json(found: Explanation, limit: int = 0) -> dict[str, Any]:
    """Plain values; times in ISO 8601. Intervals are not merged.

    `limit` is the number of intervals of each ledger, of sessions and of allocations: those with the largest
    amounts; 0 is all. `omitted` has the sums of the others.
    """
    row = found.row and row_as_json(*found.row)
    costs = rounded_costs(found, _decimals(row))
    energy = _limited(found.intervals, costs.energy, limit, energy_amount)
    time = _limited(found.time_intervals, costs.time, limit, time_amount)
    sessions = largest_lines(found.sessions, limit, lambda one: one.measured + one.apportioned)
    allocations = largest_lines(found.allocations, limit, lambda one: one.ends - one.begins)
    return {
        "version": SCHEMA_VERSION,
        "who": found.who,
        "by": found.by or None,
        **_scope(found),
        "row": row,
        "millijoules": found.millijoules if found.metered else None,
        "low_millijoules": found.measured if found.metered else None,
        "high_millijoules": found.high if found.metered else None,
        "millijoules_without_detail": found.lost.millijoules,
        "gpu_microseconds": found.billed_microseconds,
        "not_billed": _unbilled(found),
        "sessions": [_session(one) for one in sessions],
        "handovers": [_with_times(one._asdict(), "begins", "ends") for one in allocations],
        "intervals": [_interval(*one) for one in energy],
        "time_intervals": [_time_interval(*one) for one in time],
        **({"idle_spread": _spread(found, costs)} if found.spread else {}),
        "omitted": {
            "sessions": len(found.sessions) - len(sessions),
            "handovers": len(found.allocations) - len(allocations),
            "intervals": len(found.intervals) - len(energy),
            "millijoules": found.millijoules
            - found.lost.millijoules
            - sum(one.millijoules for one, _ in energy),
            "time_intervals": len(found.time_intervals) - len(time),
            "gpu_microseconds": found.microseconds - sum(one.microseconds for one, _ in time),
        },
        **({"notes": list(found.notes)} if found.notes else {}),
    }


def _decimals(row: Mapping[str, Any] | None) -> dict[str, Decimal | None]:
    """The money of a row in JSON, with all its digits."""
    return {name: Decimal(text) for name, text in (row or {}).get("decimals", {}).items()}


def _limited(
    intervals: Sequence[T], amounts: Sequence[U], limit: int, amount: Callable[[T], float]
) -> Sequence[tuple[T, U]]:
    return largest_lines(list(zip(intervals, amounts, strict=True)), limit, lambda pair: amount(pair[0]))


def _scope(found: Explanation) -> dict[str, Any]:
    """The range and the prices of the row."""
    report = found.report
    if report is None:
        return {}
    return {
        "since": format_time(found.since),
        "until": format_time(found.until),
        "basis": report.basis,
        "price_list": report.fingerprint or None,
    }


def _unbilled(found: Explanation) -> dict[str, Any] | None:
    """Time that is not billed, and what it would have cost."""
    one = found.unbilled
    if one is None:
        return None
    return {
        "account": one.account,
        "gpu_microseconds": one.microseconds,
        "cost": _text(_unbilled_cost(one)),
        "unpriced_microseconds": None if one.charges is None else unpriced_amount(one.charges),
    }


def _unbilled_cost(one: UnbilledTime) -> Decimal | None:
    return None if one.cost is None else round_decimal(one.cost, FILE_DIGITS)


def _with_times(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return fields | {name: format_time(fields[name]) for name in names}


def _session(session: SessionLine) -> dict[str, Any]:
    fields = _with_times(session._asdict(), "first_seen", "last_seen")
    unknown = () if session.metered else ("measured", "apportioned", "high")
    return fields | dict.fromkeys(unknown)


def _interval(interval: Interval, cost: Decimal | None) -> dict[str, Any]:
    return {
        "begins": format_time(interval.begins),
        "ends": format_time(interval.ends),
        "gpu": interval.gpu,
        "instance": interval.instance,
        "method": interval.method,
        "millijoules": interval.millijoules,
        "gpu_millijoules": interval.gpu_millijoules,
        "idle": interval.idle,
        "unattributed": interval.unattributed,
        "others": [other._asdict() for other in interval.others],
        "exact": interval.exact,
        "why": interval.why,
        "high_millijoules": interval.high,
        "energy_cost": _text(cost),
    }


def _time_interval(interval: TimeInterval, cost: Decimal | None) -> dict[str, Any]:
    return {
        "begins": format_time(interval.begins),
        "ends": format_time(interval.ends),
        "gpu": interval.gpu,
        "instance": interval.instance,
        "gpu_microseconds": interval.microseconds,
        "watched_microseconds": interval.watched,
        "estimated_microseconds": interval.estimated,
        "others": [
            {"name": name, "gpu_microseconds": microseconds} for name, microseconds in interval.others
        ],
        "exact": interval.exact,
        "time_cost": _text(cost),
    }


def _spread(found: Explanation, costs: RoundedCosts) -> list[dict[str, Any]]:
    """Idle time and energy that `price.idle: spread` charges to the row."""
    return [
        {
            "gpu": one.rate.gpu,
            _spread_name(one): one.amount,
            **{name: _text(cost) for name, cost in by_name.items()},
        }
        for one, by_name in zip(found.spread, spread_costs(found, costs), strict=True)
    ]


def _spread_name(one: SpreadLine) -> str:
    # Separate names: the row's time and energy do not include them.
    return "spread_microseconds" if one.is_time else "spread_millijoules"


def _text(cost: Decimal | None) -> str | None:
    """Money with all its digits: sums of JSON numbers would be rounded."""
    return None if cost is None else format(cost, "f")


_PLACE = ("record", "who", "begins", "ends", "gpu", "instance", "method")
_EXACT = ("gpu_microseconds", "unpriced_microseconds", "millijoules", "high_millijoules")
_BESIDE = ("spread_microseconds", "spread_millijoules", "unbilled_microseconds", "unbilled_cost")
_CONTEXT = ("watched_microseconds", "estimated_microseconds", "gpu_millijoules", "exact", "others", "why")


def explanation_csv(found: Explanation, limit: int = 0) -> str:
    """The row with the columns of the report, then a line for each interval, by the column `record`.

    Records: row, time, energy, idle_spread (`price.idle: spread`), omitted (the sums of what `limit` leaves
    out) and without_detail. The amounts that an interval has (see `interval_cells`) sum to those of the row.
    """
    report = found.report
    columns = () if report is None else report_columns(report.prices)
    names = [*_PLACE, *_EXACT, *(one.name for one in columns), *_BESIDE, *_CONTEXT, "schema"]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    numbers = rounded_row(*found.row) if found.row else {}
    cells = interval_cells(found, numbers, {one.name: one.digits for one in columns})
    for record in (_summary(found, numbers), *_records(found, cells, limit)):
        texts = {name: value for name, value in record.items() if value is not None}
        writer.writerow({"who": escape_cell(found.who), **texts, "schema": SCHEMA_VERSION})
    return out.getvalue()


def _summary(found: Explanation, numbers: Mapping[str, Decimal | None]) -> dict[str, Any]:
    scope = _scope(found)
    line = found.row.line if found.row else None
    exact = {} if line is None else {name: getattr(line, name) for name in _EXACT[:2]}
    return {
        "record": "row",
        "begins": scope.get("since"),
        "ends": scope.get("until"),
        # Nothing is written as 0, as in the report.
        **{name: _text(number) if number or number is None else "0" for name, number in numbers.items()},
        **exact,
        "unbilled_microseconds": None if found.unbilled is None else found.unbilled.microseconds,
        "unbilled_cost": None if found.unbilled is None else _text(_unbilled_cost(found.unbilled)),
        "millijoules": found.millijoules if found.metered else None,
        "high_millijoules": found.high if found.metered else None,
    }


def _records(found: Explanation, cells: IntervalCells, limit: int) -> Iterator[dict[str, Any]]:
    """The intervals, and what else sums to the row."""
    time = _limited(found.time_intervals, cells.time, limit, time_amount)
    energy = _limited(found.intervals, cells.energy, limit, energy_amount)
    # Time that is not billed is in a separate column: it is not a part of the row.
    watched = "unbilled_microseconds" if found.unbilled else "gpu_microseconds"
    for one, amounts in time:
        yield _time_record(one, amounts, watched)
    for used, amounts in energy:
        yield _energy_record(used, amounts)
    for line, amounts in zip(found.spread, cells.spread, strict=True):
        yield {
            "record": "idle_spread",
            "gpu": line.rate.gpu,
            _spread_name(line): line.amount,
            **_texts(amounts),
        }
    if len(time) < len(found.time_intervals):
        rest = found.microseconds - sum(one.microseconds for one, _ in time)
        yield {"record": "omitted", watched: rest, **_rest(cells.time, time)}
    if len(energy) < len(found.intervals):
        rest = sum(one.millijoules for one in found.intervals) - sum(one.millijoules for one, _ in energy)
        most = _high(found.intervals) - _high([used for used, _ in energy])
        yield {
            "record": "omitted",
            "millijoules": rest,
            # The GPUs' own accounts have no upper bound.
            "high_millijoules": most or None,
            **_rest(cells.energy, energy),
        }
    if found.lost.millijoules:
        lost = found.lost
        yield {
            "record": "without_detail",
            "millijoules": lost.millijoules,
            "high_millijoules": lost.high,
        }


def _high(intervals: Sequence[Interval]) -> int:
    return sum(one.high or 0 for one in intervals)


def _rest(every: Sequence[Cells], shown: Sequence[tuple[object, Cells]]) -> dict[str, str]:
    """The sums of the intervals that are not shown."""
    rest: dict[str, Decimal] = defaultdict(Decimal)
    for amounts in every:
        for name, amount in amounts.items():
            rest[name] += amount
    for _, amounts in shown:
        for name, amount in amounts.items():
            rest[name] -= amount
    return _texts(rest)


def _texts(amounts: Cells) -> dict[str, str]:
    return {name: format(amount, "f") for name, amount in amounts.items()}


def _time_record(interval: TimeInterval, amounts: Cells, watched: str) -> dict[str, Any]:
    fields = _time_interval(interval, None)
    others = "; ".join(f"{escape_cell(name)} {amount}" for name, amount in interval.others)
    return {
        **fields,
        **_texts(amounts),
        "record": "time",
        watched: fields.pop("gpu_microseconds"),
        "exact": _yes_no(interval.exact),
        "others": others,
    }


def _energy_record(interval: Interval, amounts: Cells) -> dict[str, Any]:
    fields = _interval(interval, None)
    own = [("idle", fields.pop("idle")), ("unattributed", fields.pop("unattributed"))]
    named = [*((one.name, one.millijoules) for one in interval.others), *(pair for pair in own if pair[1])]
    others = "; ".join(f"{escape_cell(name)} {amount}" for name, amount in named)
    return {
        **fields,
        **_texts(amounts),
        "record": "energy",
        "exact": _yes_no(interval.exact),
        "others": others,
    }


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"

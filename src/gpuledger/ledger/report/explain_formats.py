"""Explanations as JSON and CSV, in which the amounts of intervals sum to those of the row."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import chain
from typing import Any, TextIO

from gpuledger.ledger.report.charges import unpriced_amount
from gpuledger.ledger.report.explain import Explanation, SessionLine
from gpuledger.ledger.report.explain_intervals import Interval, SpreadLine, TimeInterval
from gpuledger.ledger.report.explain_lists import Cells, ShownLines
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


def write_explanation_json(found: Explanation, out: TextIO) -> None:
    """Write plain values, the lists line by line; times in ISO 8601.

    `omitted` has the sums of the lines that are not shown.
    """
    separator = "{\n"
    for name, value in _values(found):
        out.write(f"{separator}  {json.dumps(name)}: ")
        if isinstance(value, Iterator):
            _write_array(value, out)
        else:
            out.write(_indented(value, 2))
        separator = ",\n"
    out.write("\n}\n")


def _write_array(values: Iterator[Any], out: TextIO) -> None:
    separator = "["
    for value in values:
        out.write(f"{separator}\n    {_indented(value, 4)}")
        separator = ","
    out.write("[]" if separator == "[" else "\n  ]")


def _indented(value: Any, depth: int) -> str:
    # No string in JSON has a line feed.
    return json.dumps(value, indent=2).replace("\n", "\n" + " " * depth)


def _values(found: Explanation) -> Iterator[tuple[str, Any]]:
    """Names and values in order; lists are iterators."""
    yield from {
        "version": SCHEMA_VERSION,
        "who": found.who,
        "by": found.by or None,
        **_scope(found),
        "row": found.row and row_as_json(*found.row),
        "millijoules": found.millijoules if found.metered else None,
        "low_millijoules": found.measured if found.metered else None,
        "high_millijoules": found.high if found.metered else None,
        "millijoules_without_detail": found.lost.millijoules,
        "gpu_microseconds": found.billed_microseconds,
        "not_billed": _unbilled(found),
    }.items()
    energy = ShownLines(found.intervals, lambda one: one.millijoules)
    time = ShownLines(found.time_intervals, lambda one: one.microseconds)
    yield "sessions", map(_session, found.sessions)
    yield "handovers", (_with_times(one._asdict(), "begins", "ends") for one in found.allocations)
    yield "intervals", (_interval(one, cells.get("energy_cost")) for one, cells in energy)
    yield "time_intervals", (_time_interval(one, cells.get("time_cost")) for one, cells in time)
    if found.spread.count:
        yield "idle_spread", (_spread(*one) for one in found.spread.rounded())
    yield (
        "omitted",
        {
            "sessions": found.sessions.omitted,
            "handovers": found.allocations.omitted,
            "intervals": found.intervals.count - energy.count,
            "millijoules": found.energy.millijoules - energy.amount,
            "time_intervals": found.time_intervals.count - time.count,
            "gpu_microseconds": found.microseconds - time.amount,
        },
    )
    if found.notes:
        yield "notes", list(found.notes)


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


def _spread(one: SpreadLine, costs: Cells) -> dict[str, Any]:
    """Idle time or energy that `price.idle: spread` charges to the row."""
    name = "time_cost" if one.is_time else "energy_cost"
    return {"gpu": one.rate.gpu, _spread_name(one): one.amount, name: _text(costs.get(name))}


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


def write_explanation_csv(found: Explanation, out: TextIO) -> None:
    """Write the row with the columns of the report, then a line for each interval, by the column `record`.

    Records: row, time, energy, idle_spread (`price.idle: spread`), omitted (the sums of lines that are not
    shown) and without_detail. The amounts that an interval has sum to those of the row.
    """
    report = found.report
    columns = () if report is None else report_columns(report.prices)
    names = [*_PLACE, *_EXACT, *(one.name for one in columns), *_BESIDE, *_CONTEXT, "schema"]
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    who = escape_cell(found.who)
    summary = _summary(found, rounded_row(*found.row) if found.row else {})
    for record in chain([summary], _records(found)):
        texts = {name: value for name, value in record.items() if value is not None}
        writer.writerow({"who": who, **texts, "schema": SCHEMA_VERSION})


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


def _records(found: Explanation) -> Iterator[dict[str, Any]]:
    """The intervals, and what else sums to the row."""
    time = ShownLines(found.time_intervals, lambda one: one.microseconds)
    energy = ShownLines(found.intervals, lambda one: one.millijoules)
    # Time that is not billed is in a separate column: it is not a part of the row.
    watched = "unbilled_microseconds" if found.unbilled else "gpu_microseconds"
    for one, amounts in time:
        yield _time_record(one, amounts, watched)
    most = found.energy.high
    for used, amounts in energy:
        most -= used.high or 0
        yield _energy_record(used, amounts)
    for line, amounts in found.spread.rounded():
        yield {
            "record": "idle_spread",
            "gpu": line.rate.gpu,
            _spread_name(line): line.amount,
            **_texts(amounts),
        }
    if time.count < found.time_intervals.count:
        yield {"record": "omitted", watched: found.microseconds - time.amount, **_texts(time.omitted)}
    if energy.count < found.intervals.count:
        yield {
            "record": "omitted",
            "millijoules": found.energy.millijoules - energy.amount,
            # The GPUs' own accounts have no upper bound.
            "high_millijoules": most or None,
            **_texts(energy.omitted),
        }
    if found.lost.millijoules:
        lost = found.lost
        yield {
            "record": "without_detail",
            "millijoules": lost.millijoules,
            "high_millijoules": lost.high,
        }


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

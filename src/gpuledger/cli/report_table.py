"""A report for people: a table with bars, and under it what its numbers rest on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from gpuledger.ledger.report.columns import Column, shown_columns
from gpuledger.ledger.report.report import Line, Report, together
from gpuledger.model.text import in_one_line

_BAR = 16
_WIDEST = 48
_OWN = {
    "idle": "idle: nobody was resident",
    "unattributed": "unattributed: whose is not known",
    "unobserved": "unobserved: nobody looked",
    "unseen": "unseen: Prometheus did not look",
}


def table(report: Report, top: int, *, plain: bool = False) -> str:
    """The whole text. `top` rows are shown one by one (0: all), the rest as one; `plain` is ASCII alone."""
    lines = list(report.lines)
    if top and len(lines) > top + 1:
        rest = lines[top:]
        lines = [*lines[:top], together(rest, (f"{len(rest)} others",))]
    every = [*lines, *(line for line in report.own if line.millijoules)]
    told = shown_columns(report)
    names = [_name(line, report) for line in every]
    bars = _bars(every, plain=plain)
    head = [_title(report), *(column.heading for column in told), ""]
    body = _cells(names, every, told, bars)
    foot = _cells(["total"], [report.total], told, [""])
    widths = [max(len(row[place]) for row in (head, *body, *foot)) for place in range(len(head))]
    rule = ("-" if plain else "─") * (sum(widths) + 2 * (len(widths) - 1))
    rows = [_row(head, widths), rule, *(_row(row, widths) for row in body), rule, _row(foot[0], widths)]
    whole = "\n".join([_heading(report), "", *rows, "", *_notes(report, told, plain=plain), ""])
    return whole.replace("±", "+/-") if plain else whole


def _title(report: Report) -> str:
    return "/".join(report.grouping.columns) if report.grouping.name != "gpu" else "GPU"


def _name(line: Line, report: Report) -> str:
    if line.account != "process":
        return _OWN[line.account]
    words = [in_one_line(word) for word in line.key if word]
    if not words or words == ["unknown"]:
        return f"(no {report.grouping.columns[-1]} known)"
    if report.grouping.name == "owner" and len(words) == 1:
        return f"({words[0]} without a name)"
    if report.grouping.name == "gpu":
        uuid, index, model = map(in_one_line, line.key)
        return f"{index} {model} {uuid[:12]}"
    text = "/".join(words)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _cells(
    names: Sequence[str], lines: Sequence[Line], told: Sequence[Column], bars: Sequence[str]
) -> list[list[str]]:
    return [
        [name, *(_text(column, line) for column in told), bar]
        for name, line, bar in zip(names, lines, bars, strict=True)
    ]


def _text(column: Column, line: Line) -> str:
    """Each number as near as its digits go: whoever must add them up takes the CSV."""
    value, digits = column.value(line), column.shown
    return "-" if value is None else f"{round(value * 10**digits) / Decimal(10**digits):,.{digits}f}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *middle, last = cells
    parts = [first.ljust(widths[0])]
    parts += [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=False)]
    return "  ".join([*parts, last]).rstrip()


def _bars(lines: Sequence[Line], *, plain: bool) -> list[str]:
    """Energy, the most as the longest: what was measured solid, the rest shaded."""
    most = max((line.millijoules for line in lines), default=0)
    solid, shaded = _signs(plain=plain)
    bars = []
    for line in lines:
        length = round(_BAR * line.millijoules / most) if most else 0
        measured = round(length * line.measured / line.millijoules) if line.millijoules else 0
        bars.append(solid * measured + shaded * (length - measured))
    return bars


def _signs(*, plain: bool) -> tuple[str, str]:
    """What bars are made of: for what was measured, and for what was apportioned."""
    return ("#", "=") if plain else ("█", "▒")


def _heading(report: Report) -> str:
    period = report.period
    begins, ends = (_local(unix) for unix in (period.since, min(period.until, period.last)))
    count = len(report.gpus)
    gpus = f"{count} GPU{'' if count == 1 else 's'}"
    return f"{begins} to {ends}, {gpus}, by {report.grouping.name}"


def _local(unix: float) -> str:
    return datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M %z")


def _notes(report: Report, told: Sequence[Column], *, plain: bool) -> list[str]:
    notes = [*([] if report.scraped else _hours(report)), *report.notes]
    solid, shaded = _signs(plain=plain)
    if report.scraped:
        notes.append(f"{solid} measured; {shaded} apportioned by activity, slices or equally.")
    if any(column.name == "high_kwh" for column in told):
        notes.append(
            f"{solid} measured: alone on the GPU, and the least that it can be; {shaded} apportioned by "
            "activity, slices or equally; at most: the bound that holds whatever the split."
        )
    prices = report.prices
    if prices.pue is not None:
        notes.append(f"Cost and CO2 are of the building's energy: times {prices.pue} (pue).")
    period = report.period
    if period.first > period.since and not report.scraped:
        notes.append(f"The books begin at {_local(period.first)}.")
    if period.until > period.last:
        notes.append("The last hour is not over.")
    return notes


def _hours(report: Report) -> list[str]:
    if report.occupied is None:
        return []
    observed, occupied = (f"{float(seconds / 3600):,.2f}" for seconds in (report.observed, report.occupied))
    notes = [f"GPU-hours: {observed} observed, {occupied} with somebody on the GPU."]
    sums = sum((line.resident or 0 for line in report.lines), 0)
    if sums > report.occupied:
        shared = float((sums - report.occupied) / 3600)
        notes.append(f"A shared GPU counts for each who was on it: {shared:,.2f} hours more than once.")
    return notes

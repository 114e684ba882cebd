"""Reports as text for people: rounded numbers that add up to the printed total, bars, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from gpuledger.ledger.energy.booking import INTEGRATED
from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.money import round_decimal
from gpuledger.ledger.report.report_column import ReportColumn
from gpuledger.ledger.report.report_columns import round_column, shown_columns
from gpuledger.ledger.report.settings import SPREAD
from gpuledger.ledger.report.token_columns import SEVERAL_ROWS, TOKENS_ONLY
from gpuledger.ledger.report.usage_report import (
    UNWATCHED,
    ReportLine,
    UsageReport,
    sum_lines,
)
from gpuledger.ledger.time.account import DOWN
from gpuledger.model.session import ALLOCATION, PROCESS, UNOBSERVED
from gpuledger.model.text import escape_to_one_line

_BAR = 16
_WIDEST = 48
_UUID = 15
# The Gpus' own accounts, and time that is not billed, for people.
OWN_ACCOUNTS = {
    "idle": "idle: no owner",
    "unattributed": "unattributed: owner not known",
    "unobserved": "unobserved energy: gpuledger not reading",
    "unseen": "unseen: Prometheus not scraping",
    TOKENS_ONLY: "tokens without GPU time",
    SEVERAL_ROWS: "tokens of pods in several rows",
}
UNBILLED = {
    UNOBSERVED: "not billed: unobserved time",
    DOWN: "not billed: down",
    UNWATCHED: "not billed: not watched",
}
NOT_ADDITIVE = "*"
# Columns with a mark in rows of which the amounts were apportioned; other amounts follow from them.
_APPORTIONED = frozenset(("gpu_hours", "kwh", "time_cost", "energy_cost", "cost"))


def report_table(report: UsageReport, top: int, *, plain: bool = False) -> str:
    """The report as text: `top` rows of each period (0: all), and one row for the rest; `plain` is ASCII."""
    table = _Table(report, plain=plain)
    every = _chosen_lines(report, top)
    body = table.rows(every)
    unbilled = {one.account for one in report.unbilled if one.microseconds}
    foot = [table.total(), *(table.unbilled(account) for account in UNBILLED if account in unbilled)]
    head = table.head()
    widths = [max(len(row[place]) for row in (head, *body, *foot)) for place in range(len(head))]
    rule = ("-" if plain else "─") * (sum(widths) + 2 * (len(widths) - 1))
    width = table.name_width
    rows = [_aligned(row, widths, width) for row in (head, *body, *foot)]
    rows = [rows[0], rule, *rows[1 : 1 + len(body)], rule, *rows[1 + len(body) :]]
    whole = "\n".join([_heading(report), "", *rows, "", *_notes(report, table, plain=plain), ""])
    return whole.replace("±", "+/-") if plain else whole


def _chosen_lines(report: UsageReport, top: int) -> list[ReportLine]:
    """The rows of each period, the highest ones and a sum of the others, then the Gpus' own accounts."""
    found: list[ReportLine] = []
    for period in range(max(len(report.periods), 1)):
        lines = [line for line in report.lines if line.period == period]
        if top and len(lines) > top + 1:
            rest = lines[top:]
            others = sum_lines(rest, (f"{len(rest)} others",))
            # A sum would count a second several times.
            others = replace(others, resident=None, held=None, allocated=None, active=None, unknown=None)
            if others.apportioned_by:
                # Apportioned rows have no bounds, so a sum of the others would be too low.
                others = replace(others, bound=None, time_bound=None)
            lines = [*lines[:top], others]
        found += lines
        found += [
            line
            for line in report.gpu_accounts
            if line.period == period and (line.millijoules or line.gpu_microseconds or line.tokens)
        ]
    return found


class _Table:
    """The cells of a report. The first `name_width` of each row are names."""

    def __init__(self, report: UsageReport, *, plain: bool) -> None:
        self.report = report
        self.columns = shown_columns(report)
        self._plain = plain
        self._is_joined = "," not in report.grouping.name
        names = 1 if self._is_joined else len(report.grouping.columns)
        self.name_width = names + report.has_periods

    def head(self) -> list[str]:
        """The headings."""
        names = [_title(self.report)] if self._is_joined else list(self.report.grouping.columns)
        period = ["period"] if self.report.has_periods else []
        headings = [column.heading + ("" if column.has_total else NOT_ADDITIVE) for column in self.columns]
        return [*period, *names, *headings, ""]

    def rows(self, lines: Sequence[ReportLine]) -> list[list[str]]:
        """The rows of these lines."""
        numbers = [round_column(lines, column, column.shown) for column in self.columns]
        bars = _bars(lines, plain=self._plain)
        return [
            [
                *self._names(line),
                *(
                    number_cell(column, line, values[place])
                    for column, values in zip(self.columns, numbers, strict=True)
                ),
                bars[place],
            ]
            for place, line in enumerate(lines)
        ]

    def total(self) -> list[str]:
        """The row of the sums."""
        cells = [total_cell(column, self.report.total) for column in self.columns]
        return [*self._padded("total"), *cells, ""]

    def unbilled(self, account: str) -> list[str]:
        """The row of time that is not in the total."""
        return [*self._padded(UNBILLED[account]), *unbilled_cells(self.report, account, self.columns), ""]

    def _padded(self, name: str) -> list[str]:
        return [name, *("" for _ in range(self.name_width - 1))]

    def _names(self, line: ReportLine) -> list[str]:
        period = [self.report.periods[line.period].name] if self.report.has_periods else []
        if self._is_joined:
            return [*period, _joined_name(line, self.report)]
        width = len(self.report.grouping.columns)
        if len(line.key) != width:
            return [*period, *line.key, *("" for _ in range(width - len(line.key)))]
        cells = [
            _shortened(escape_to_one_line(word), _UUID if column == "uuid" else _WIDEST) or "-"
            for column, word in zip(self.report.grouping.columns, line.key, strict=True)
        ]
        if line.account != PROCESS:
            account = _account_name(line.account)
            cells[0] = f"({account})" if cells[0] == "-" else f"{cells[0]} ({account})"
        return [*period, *cells]


def unbilled_cells(report: UsageReport, account: str, columns: Sequence[ReportColumn]) -> list[str]:
    """The hours of an account that is not billed, and what they would have cost."""
    ones = [one for one in report.unbilled if one.account == account]
    hours = Fraction(sum(one.microseconds for one in ones), MICROSECONDS_PER_HOUR)
    known = [one.cost for one in ones if one.cost is not None]
    cost = sum(known, Fraction(0)) if known else None
    values = {"gpu_hours": hours if ones else None, "time_cost": cost, "cost": cost}
    cells = []
    for column in columns:
        value = values.get(column.name)
        cells.append("" if value is None else f"{round_decimal(value, column.shown):,f}")
    return cells


def _title(report: UsageReport) -> str:
    return "/".join(report.grouping.columns) if report.grouping.name != "gpu" else "GPU"


def _joined_name(line: ReportLine, report: UsageReport) -> str:
    words = [escape_to_one_line(word) for word in line.key if word]
    if line.account != PROCESS and not words:
        return OWN_ACCOUNTS[line.account]
    if len(line.key) != len(report.grouping.columns):
        # The sum of the other rows.
        return words[0]
    is_by_owner = report.grouping.name == "owner"
    if not words or (is_by_owner and words == ["unknown"]):
        return f"(no {report.grouping.columns[-1]} known)"
    if is_by_owner and len(words) == 1:
        return f"({words[0]} without a name)"
    if report.grouping.name == "gpu" and len(words) == len(line.key):
        uuid, index, model = words
        # The address of a GPU that has no id.
        shown = uuid[:16] if uuid.startswith("PCI-") else uuid[:12]
        name = f"{index} {model} {shown}"
    else:
        name = _shortened("/".join(words))
    return name if line.account == PROCESS else f"{name}: {_account_name(line.account)}"


def _account_name(account: str) -> str:
    """The name of a Gpu's own account. The row `unobserved` is energy: such time is not billed."""
    if account in (TOKENS_ONLY, SEVERAL_ROWS):
        return OWN_ACCOUNTS[account]
    return "unobserved energy" if account == UNOBSERVED else account


def _shortened(text: str, longest: int = _WIDEST) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


def total_cell(column: ReportColumn, total: ReportLine) -> str:
    """The rounded sum of a column, and marks; without one where a sum would count a second several times."""
    value = column.value(total) if column.has_total else None
    return number_cell(column, total, None if value is None else column.round(value, column.shown))


def number_cell(column: ReportColumn, line: ReportLine, number: Decimal | None) -> str:
    """A rounded number, and marks; files have exact values. Only an amount of exactly 0 is a bare 0."""
    if number is None:
        return "no data" if column.metered and not line.metered else "-"
    if not column.value(line):
        number = Decimal(0)
    is_estimate = (column.name == "gpu_hours" and line.estimated_microseconds) or (
        column.name in _APPORTIONED and line.apportioned_by
    )
    return f"{number:,f}{'~' if is_estimate else ''}{'+' if column.is_partial(line) else ''}"


def _aligned(cells: Sequence[str], widths: Sequence[int], names: int) -> str:
    parts = [cell.ljust(width) for cell, width in zip(cells[:names], widths, strict=False)]
    parts += [cell.rjust(width) for cell, width in zip(cells[names:-1], widths[names:], strict=False)]
    return "  ".join([*parts, cells[-1]]).rstrip()


def _bars(lines: Sequence[ReportLine], *, plain: bool) -> list[str]:
    """Bars proportional to energy: the measured part solid, the apportioned part shaded."""
    most = max((line.millijoules for line in lines), default=0)
    solid, shaded, light = _signs(plain=plain)
    bars = []
    for line in lines:
        length = round(_BAR * line.millijoules / most) if most else 0
        measured = round(length * line.measured / line.millijoules) if line.millijoules else 0
        rest = shaded if line.account == PROCESS else light
        bars.append(solid * measured + rest * (length - measured))
    return bars


def _signs(*, plain: bool) -> tuple[str, str, str]:
    """The characters of bars: for measured and apportioned energy, and for that of the Gpus' own accounts."""
    return ("#", "=", ".") if plain else ("█", "▒", "░")


def _heading(report: UsageReport) -> str:
    period = report.period
    begins, ends = (
        format_local_time(unix, report.zone) for unix in (period.since, min(period.until, period.last))
    )
    count = len(report.gpus)
    gpus = f"{count} GPU{'' if count == 1 else 's'}"
    basis = "allocation" if report.basis == ALLOCATION else "residence"
    spread = ", idle time spread" if report.prices.idle == SPREAD and report.prices.any_price else ""
    return f"{begins} to {ends}, {gpus}, by {report.grouping.name}, GPU time by {basis}{spread}"


def _notes(report: UsageReport, table: _Table, *, plain: bool) -> Iterator[str]:
    yield from _number_notes(report)
    yield from _bar_notes(report, {column.name for column in table.columns}, plain=plain)
    yield from _mark_notes(report, table.columns)


def report_notes(report: UsageReport, columns: Sequence[ReportColumn]) -> Iterator[str]:
    """The sentences below a report with these columns and without bars."""
    yield from _number_notes(report)
    yield from _mark_notes(report, columns)


def _number_notes(report: UsageReport) -> Iterator[str]:
    if not report.scraped:
        yield from _hours(report)
    yield from report.notes


def _bar_notes(report: UsageReport, names: set[str], *, plain: bool) -> Iterator[str]:
    solid, shaded, _ = _signs(plain=plain)
    how = "apportioned by activity, slices or equally"
    if any(line.integrated or line.methods.get(INTEGRATED) for line in report.lines):
        how += ", or integrated from power readings"
    if report.scraped:
        yield f"{solid} measured; {shaded} {how}."
    if "high_kwh" in names:
        yield (
            f"{solid} measured: alone on the GPU, the lower bound; {shaded} {how}; "
            "at most: the upper bound, whatever the split."
        )


def _mark_notes(report: UsageReport, columns: Sequence[ReportColumn]) -> Iterator[str]:
    """What the marks beside numbers mean, the price list, and the begin of the ledger."""
    if any(not column.has_total for column in columns):
        counts = "is a sum over owners" if report.scraped else "counts each second once per row"
        yield f"{NOT_ADDITIVE} {counts}: these columns do not add up."
    if report.total.estimated_microseconds:
        yield "~ rests on allocations of which the part of the GPU is unknown."
    if report.total.unmetered and report.total.metered:
        yield "+ without the energy that was not measured."
    if any(line.unknown for line in report.lines):
        yield "+ in held idle: without time of unknown activity (- if there is no other)."
    if report.total.unpriced_microseconds or report.total.unpriced_millijoules:
        yield "+ without what no entry of the price list matches."
    yield from _price_notes(report)
    period = report.period
    if period.first > period.since and not report.scraped:
        yield f"The ledger begins at {format_local_time(period.first, report.zone)}."


def _price_notes(report: UsageReport) -> Iterator[str]:
    prices = report.prices
    if prices.pue is not None:
        times = f"times {prices.pue}" if isinstance(prices.pue, Decimal) else "times that in force"
        yield f"Cost and CO2 include the building's overhead: energy {times} (pue)."
    if report.fingerprint and prices.any_price:
        yield f"Price list {report.fingerprint}."


def _hours(report: UsageReport) -> Iterator[str]:
    if report.occupied is None:
        return
    watched = _hours_text(Fraction(report.watched, MICROSECONDS_PER_HOUR))
    occupied = _hours_text(report.occupied / 3600)
    yield f"GPU-hours: {watched} watched, {occupied} with somebody on the GPU, or with the GPU allocated."


def _hours_text(hours: Fraction) -> str:
    """Hours with four significant digits or more."""
    return f"{float(hours):,.{4 if hours < 10 else 2}f}"

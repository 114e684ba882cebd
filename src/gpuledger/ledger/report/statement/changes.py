"""Compares a statement with what its ledger gives today, and says why they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import NamedTuple

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.grouping import Key
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.money import FILE_DIGITS, exact_text, round_decimal
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.ledger.report.statement.content import Statement, additive_total
from gpuledger.ledger.report.statement.terms import StatementTerms
from gpuledger.ledger.report.usage_report import GpuLine, ReportLine, UnbilledTime, UsageReport
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.model.session import PROCESS
from gpuledger.model.text import escape_to_one_line, list_some
from gpuledger.model.workload import UNKNOWN

# Rows and GPUs that a reason names; all changed rows are listed below the reasons.
_NAMED = 6
# Columns in which a number stands for a user without a name.
_UIDS = ("user", "owner")
# What is compared of a row: all its amounts that a statement has.
_AMOUNTS = tuple(
    item.name for item in fields(ReportLine) if item.compare and item.name not in ("key", "account", "period")
)
# What is compared of reports by two price lists: costs, whichever entries they follow from.
_COSTS = ("time_cost", "energy_cost", "unpriced_microseconds", "unpriced_millijoules")
_OUTCOMES = (*(name for name in _AMOUNTS if not name.endswith("_charges")), *_COSTS)

LATE_NAMES, CHANGED_NAMES = "late names", "changed names"
FOLDED, DELETED = "folded detail", "deleted history"
RESTORED, PRICES, OTHER = "older or damaged ledger", "other prices", "other amounts"
APPEARED, MISSING, SEEN_AGAIN = "GPU that appeared", "GPU that is missing", "GPU that was seen again"
UNFINISHED, TEAMS, TERMS = "unfinished period", "other teams", "other settings"


class Reason(NamedTuple):
    """Why a ledger gives other amounts than a statement: a kind, and a sentence."""

    kind: str
    text: str


class RowName(NamedTuple):
    """What identifies a row in both reports. `period` is the name of its period."""

    period: str
    account: str
    key: Key


class RowChange(NamedTuple):
    """A row that differs. `then` is None if it is new, `now` if it is gone."""

    name: RowName
    then: ReportLine | None
    now: ReportLine | None

    @property
    def microseconds(self) -> int:
        """The difference of the billed time."""
        now, then = ((one and one.gpu_microseconds) or 0 for one in (self.now, self.then))
        return now - then

    @property
    def millijoules(self) -> int:
        """The difference of the energy."""
        now, then = (0 if one is None else one.millijoules for one in (self.now, self.then))
        return now - then


@dataclass(frozen=True, slots=True)
class Comparison:
    """The reasons for which a report differs from a statement, and the rows that do. Equal without any."""

    reasons: Sequence[Reason] = ()
    rows: Sequence[RowChange] = ()


def compare_reports(statement: Statement, now: UsageReport) -> Comparison:
    """Compare a statement with a report of the same range by the same terms.

    Scraped amounts are equal if they differ by no more than both error bounds.
    """
    then = statement.report
    rows = [change for change in _changed_rows(_rows(then), _rows(now)) if not _is_within_bounds(change)]
    gpus: list[Reason] = []
    if not then.scraped:
        rows += _changed_rows(_unbilled_rows(then), _unbilled_rows(now))
        rows = rows or _changed_total(then, now)
        gpus = list(_gpu_changes(then.gpus, now.gpus))
        gpus = gpus if rows or gpus else list(_changed_occupation(then, now))
    if not rows and not gpus:
        return Comparison()
    reasons = list(_reasons(statement, now, rows))
    # Without its history, a GPU is missing: that is no other reason.
    reasons += [gpu for gpu in gpus if not (reasons and gpu.kind == MISSING)]
    if not reasons:
        text = (
            "no change of the ledger explains it: the file was written again with other amounts, or another "
            f"version computed them (gpuledger {statement.program})"
        )
        reasons = [Reason(OTHER, text)]
    return Comparison(reasons, rows)


def _changed_rows(
    before: Mapping[RowName, ReportLine],
    after: Mapping[RowName, ReportLine],
    amounts: Sequence[str] = _AMOUNTS,
) -> Iterator[RowChange]:
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            if not _is_empty(one or other):
                yield RowChange(name, one, other)
        elif any(getattr(one, amount) != getattr(other, amount) for amount in amounts):
            yield RowChange(name, one, other)


def _rows(report: UsageReport) -> dict[RowName, ReportLine]:
    return _named(report, (*report.lines, *report.gpu_accounts))


def _named(report: UsageReport, lines: Iterable[ReportLine]) -> dict[RowName, ReportLine]:
    names = [part.name for part in report.periods]
    return {RowName(names[line.period], line.account, tuple(line.key)): line for line in lines}


def _unbilled_rows(report: UsageReport) -> dict[RowName, ReportLine]:
    """The time that is not billed, as rows of accounts that no other row has."""

    def line_of(one: UnbilledTime) -> ReportLine:
        account = f"not billed: {one.account}"
        return ReportLine(one.key, account, one.period, one.microseconds, time_charges=one.charges)

    return _named(report, map(line_of, report.unbilled))


def _changed_total(then: UsageReport, now: UsageReport) -> list[RowChange]:
    """The total, if it differs although no row does."""
    before, after = ({RowName("", "total", ()): additive_total(one.total)} for one in (then, now))
    return list(_changed_rows(before, after))


def _is_empty(line: ReportLine | None) -> bool:
    if line is None:
        return True
    charged = [amount for one in (line.time_charges, line.energy_charges) for amount in (one or {}).values()]
    amounts = (line.gpu_microseconds, line.millijoules, line.resident, line.held, line.allocated)
    return not any((*amounts, *charged))


def _is_within_bounds(change: RowChange) -> bool:
    known = [line for line in (change.then, change.now) if line is not None]
    if any(line.bound is None for line in known):
        return False
    time, energy = (sum(getattr(line, name) or 0 for line in known) for name in ("time_bound", "bound"))
    return abs(change.microseconds) <= time and abs(change.millijoules) <= energy


def _reasons(statement: Statement, now: UsageReport, rows: Sequence[RowChange]) -> Iterator[Reason]:
    then, zone = statement.report, statement.terms.zone
    first, last = now.period.first, now.period.last
    if first > max(then.period.since, then.period.first):
        yield Reason(
            DELETED,
            f"the ledger now begins at {format_local_time(first, zone)}: earlier history was deleted "
            "(settings store.hours, store.max_size), or lost with a damaged file",
        )
    if round(last * MICRO) < statement.until:
        yield Reason(
            RESTORED,
            f"the last posting of the ledger is at {format_local_time(last, zone)}, before the end of the "
            "statement: it was restored from an older backup, or is another ledger",
        )
    before, after = ([part.ends for part in report.periods[:-1]] for report in (then, now))
    # A ledger that begins later or ends earlier lost these cuts with its amounts.
    if lost_cuts := {cut for cut in set(before) - set(after) if first < cut * QUARTER < last}:
        at = format_local_time(min(lost_cuts) * QUARTER, zone)
        yield Reason(FOLDED, f"the ledger can no longer be cut at {at}, the end of a period of --every")
    moved = [change for change in rows if change.microseconds or change.millijoules]
    if moved and _is_conserved(moved):
        lost = [one.name for one in moved if (one.microseconds, one.millijoules) < (0, 0)]
        gained = [one.name for one in moved if (one.microseconds, one.millijoules) > (0, 0)]
        hours = hours_text(sum(one.microseconds for one in moved if one.microseconds > 0))
        kwh = kwh_text(sum(one.millijoules for one in moved if one.millijoules > 0))
        givers, takers = (_listed(list(map(row_text, names))) for names in (lost, gained))
        what = f"{hours} GPU-hours and {kwh} kWh of {givers} now belong to {takers}"
        if _are_first_names(then.grouping.columns, lost, gained):
            why = "these names became known after the statement was made; the amounts are the same"
            yield Reason(LATE_NAMES, f"{what}: {why}")
        else:
            why = "these names were changed since, as by `gpuledger books forget`; the amounts are the same"
            yield Reason(CHANGED_NAMES, f"{what}: {why}")


def _is_conserved(moved: Sequence[RowChange]) -> bool:
    """Whether each account only lost to some rows what it gained in others."""
    sums: Counter[str] = Counter()
    for one in moved:
        sums[f"{one.name.account} time"] += one.microseconds
        sums[f"{one.name.account} energy"] += one.millijoules
    return not any(sums.values())


def _are_first_names(columns: Sequence[str], lost: Sequence[RowName], gained: Sequence[RowName]) -> bool:
    """Whether rows that had no name for something, or only a uid, lost amounts to rows that have one."""
    for place, column in enumerate(columns):
        words = [one.key[place] for one in lost]
        unnamed = [
            word for word in words if word in ("", UNKNOWN.kind) or (column in _UIDS and word.isdigit())
        ]
        if unnamed and all(now.key[place] for now in gained):
            return True
    return False


def _gpu_changes(then: Sequence[GpuLine], now: Sequence[GpuLine]) -> Iterator[Reason]:
    before, after = ({gpu.uuid: gpu for gpu in gpus if _has_data(gpu)} for gpus in (then, now))
    for uuid in sorted(after.keys() - before.keys()):
        gpu = after[uuid]
        yield Reason(
            APPEARED,
            f"{_gpu_name(gpu)} is not in the statement: {hours_text(gpu.watched)} hours watched; it appeared "
            "since",
        )
    for uuid in sorted(before.keys() - after.keys()):
        text = f"the ledger no longer has {_gpu_name(before[uuid])} in this range"
        yield Reason(MISSING, text)
    for uuid in sorted(before.keys() & after.keys()):
        one, other = before[uuid], after[uuid]
        if other.watched != one.watched or other.millijoules != one.millijoules:
            yield Reason(
                OTHER if other.watched > one.watched else RESTORED,
                f"{_gpu_name(one)}: {hours_text(other.watched)} hours watched in place of "
                f"{hours_text(one.watched)}, {kwh_text(other.millijoules)} kWh in place of "
                f"{kwh_text(one.millijoules)}",
            )
        elif other.accounts != one.accounts:
            yield Reason(OTHER, f"{_gpu_name(one)}: the same hours, split otherwise over its accounts")
        elif other.unwatched != one.unwatched:
            yield Reason(
                SEEN_AGAIN if other.unwatched > one.unwatched else OTHER,
                f"{_gpu_name(one)}: {hours_text(other.unwatched)} hours not watched in place of "
                f"{hours_text(one.unwatched)}: its first or last sight is another one now",
            )
        elif other.observed != one.observed:
            yield Reason(OTHER, f"{_gpu_name(one)}: other hours in which its energy was observed")


def _changed_occupation(then: UsageReport, now: UsageReport) -> Iterator[Reason]:
    if then.occupied != now.occupied:
        texts = ["-" if one is None else exact_text(one / 3600, 10) for one in (now.occupied, then.occupied)]
        yield Reason(OTHER, f"GPUs with an owner for {' hours in place of '.join(texts)} (occupied_seconds)")


def _has_data(gpu: GpuLine) -> bool:
    return bool(gpu.watched or gpu.millijoules)


def _gpu_name(gpu: GpuLine) -> str:
    return escape_to_one_line(f"GPU {gpu.index} {gpu.model} ({gpu.uuid})")


def compare_between(
    statement: Statement, inner: UsageReport | None, outer: UsageReport, reason: Reason
) -> Comparison:
    """Compare a statement with the reports of the next shorter and the next longer range.

    For a range that the ledger can no longer be cut at. `inner` is None if nothing is shorter. The rows that
    do not lie between both are changed.
    """
    least = {} if inner is None else _rows(inner)
    most = _rows(outer)
    changed = [
        RowChange(name, line, most.get(name))
        for name, line in sorted(_rows(statement.report).items())
        if not _is_between(least.get(name), line, most.get(name))
    ]
    between = "between those of the next shorter and the next longer range"
    if changed:
        what = f"{len(changed)} of {len(statement.lines)} rows do not lie {between}"
        total = None if inner is None else inner.total
        if _is_between(total, statement.report.total, outer.total):
            what += ", but the total does: names became known since"
    else:
        what = f"all rows of the statement lie {between}"
    return Comparison([reason._replace(text=f"{reason.text}; {what}")], changed)


def _is_between(least: ReportLine | None, line: ReportLine, most: ReportLine | None) -> bool:
    def amounts(one: ReportLine | None) -> tuple[int, int]:
        return (0, 0) if one is None else (one.gpu_microseconds or 0, one.millijoules)

    return all(
        low <= amount <= high
        for low, amount, high in zip(amounts(least), amounts(line), amounts(most), strict=True)
    )


def compare_terms(
    then: StatementTerms, present: StatementTerms, by_then: UsageReport, by_present: UsageReport
) -> Comparison:
    """Compare reports of today by the terms of a statement, and by the present ones."""
    rows = list(_changed_rows(_rows(by_then), _rows(by_present), _OUTCOMES))
    if not rows and present.prices.currency == then.prices.currency:
        return Comparison()
    reasons = []
    if present.fingerprint != then.fingerprint:
        reasons.append(Reason(PRICES, _price_text(then, present, (by_then, by_present))))
    if present.teams != then.teams:
        reasons.append(Reason(TEAMS, "the setting teams is not that of the statement"))
    for name, one, other in (
        ("price.basis", then.prices.basis, present.prices.basis),
        ("price.idle", then.prices.idle, present.prices.idle),
        ("report.timezone", then.zone_name, present.zone_name),
    ):
        if one != other:
            reasons.append(Reason(TERMS, f"{name} is {other}, and {one} in the statement"))
    return Comparison(reasons, rows)


def _price_text(
    then: StatementTerms, present: StatementTerms, reports: tuple[UsageReport, UsageReport]
) -> str:
    before, after = (PriceList(terms.prices, terms.zone).describe() for terms in (then, present))
    gone, new = (
        [line for line in one if line not in other] for one, other in ((before, after), (after, before))
    )
    changes = [f"{label} {_listed(lines)}" for label, lines in (("without", gone), ("with", new)) if lines]
    totals = [
        f"{money_text(report.total.cost)} {terms.prices.currency}".rstrip()
        for report, terms in zip(reports, (then, present), strict=True)
    ]
    return (
        f"the price list {then.fingerprint} of the statement is now {present.fingerprint}"
        f"{': ' if changes else ''}{', '.join(changes)}; by it the total is {totals[1]} in place "
        f"of {totals[0]}"
    )


def _listed(names: Sequence[str]) -> str:
    return list_some(names, _NAMED) or "no row"


def row_text(name: RowName) -> str:
    """The name of a row for messages."""
    words = "/".join(word for word in name.key if word)
    if name.account != PROCESS:
        words = f"{words}: {name.account}" if words else name.account
    return escape_to_one_line(words) or "(no name)"


def change_text(change: RowChange) -> str:
    """One line on a changed row."""
    name = f"{change.name.period} {row_text(change.name)}".strip()
    if change.then is None or change.now is None:
        line, verb = (change.now, "new") if change.then is None else (change.then, "gone")
        assert line is not None
        return (
            f"{name}: {verb}: {hours_text(line.gpu_microseconds)} GPU-hours, {kwh_text(line.energy)} kWh, "
            f"cost {money_text(line.cost)}"
        )
    parts = [
        f"{label} {write(one)} -> {write(other)}"
        for label, attribute, write in (
            ("GPU-hours", "gpu_microseconds", hours_text),
            ("kWh", "energy", kwh_text),
            ("cost", "cost", money_text),
        )
        if (one := getattr(change.then, attribute)) != (other := getattr(change.now, attribute))
    ]
    others = [
        amount
        for amount in _AMOUNTS
        if not parts and getattr(change.then, amount) != getattr(change.now, amount)
    ]
    return f"{name}: {', '.join(parts or others)}"


def hours_text(microseconds: int | None) -> str:
    """Hours of microseconds, for messages: with all digits that differ."""
    return "-" if microseconds is None else exact_text(Fraction(microseconds, MICROSECONDS_PER_HOUR), 10)


def kwh_text(millijoules: int | None) -> str:
    """Kilowatt-hours of millijoules."""
    return "-" if millijoules is None else exact_text(Fraction(millijoules, MILLIJOULES_PER_KWH), 10)


def money_text(amount: Fraction | None) -> str:
    """An amount of money with its ten decimals."""
    return "-" if amount is None else f"{round_decimal(amount, FILE_DIGITS):f}"

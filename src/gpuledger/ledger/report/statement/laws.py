"""Checks that the parts of a statement agree with each other, even if its digests were computed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import Any

from gpuledger.ledger.report.charges import Charges, Rate
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.price_entries import PER_INSTANCE, PriceEntry, PriceValue
from gpuledger.ledger.report.price_rules import PriceRule, QuarterRange, build_rules
from gpuledger.ledger.report.prices import GPU_HOUR_KEY, KWH_KEY
from gpuledger.ledger.report.settings import SPREAD
from gpuledger.ledger.report.statement.content import Statement, statement_as_json
from gpuledger.ledger.report.statement.digests import CHECKS, HASH
from gpuledger.ledger.report.usage_report import UNWATCHED, ReportLine, UnbilledTime, sum_lines
from gpuledger.ledger.time.account import DOWN
from gpuledger.model.errors import UsageError
from gpuledger.model.session import UNOBSERVED

_DOES_NOT_FOLLOW = "does not follow from the other amounts"
_OTHER_PRICE = "has a price that is not in the price list of the statement"
_NEGATIVE = "is negative"

_SECONDS = ("resident", "held", "allocated", "active", "unknown")

# A place such as `rows[0].cost`, and what is wrong there.
Contradiction = tuple[str, str]


def find_contradictions(content: Mapping[str, Any], statement: Statement) -> dict[str, str]:
    """What is wrong at each place that contradicts another, in order of places.

    Costs, sums, decimals and the price list's fingerprint are computed again.
    """
    report = statement.report
    found = dict(_impossible_rows(statement))
    if not found:
        summed = sum_lines(statement.lines, ("total",))
        total = replace(
            summed,
            period=0,
            high=report.total.high,
            unmetered=report.total.unmetered,
            bound=report.total.bound,
            time_bound=report.total.time_bound,
            metered=report.total.metered,
        )
        again = replace(statement, report=replace(report, total=total))
        stored = {key: value for key, value in content.items() if key not in (CHECKS, HASH)}
        places = (*_differences(statement_as_json(again), stored, ""), *_broken_sums(statement))
        found = {**dict.fromkeys(places, _DOES_NOT_FOLLOW), **dict(_other_prices(statement))}
    return dict(sorted(found.items()))


def _impossible_rows(statement: Statement) -> Iterator[Contradiction]:
    """Rows that no report has: without a period, twice, with negative amounts, with other columns."""
    report, terms = statement.report, statement.terms
    try:
        grouping = find_grouping(terms.by, {}, teams=terms.teams, node_of=lambda _: "")
    except UsageError as error:
        yield "by", f"cannot be reported by: {error}"
        return
    if grouping.columns != tuple(report.grouping.columns):
        yield "columns", f"are not those of by: {terms.by}"
    rows: Sequence[tuple[str, ReportLine | UnbilledTime]] = [
        *_named_rows(statement),
        *_named_unbilled(statement),
    ]
    names = Counter((place.partition("[")[0], row.period, row.account, row.key) for place, row in rows)
    for place, row in rows:
        if row.period not in range(len(report.periods)):
            yield f"{place}.period", f"is the number of no period; the statement has {len(report.periods)}"
        if names[place.partition("[")[0], row.period, row.account, row.key] > 1:
            yield f"{place}.name", "is also the name of another row"
        yield from _negative_amounts(place, row)
    for number, gpu in enumerate(report.gpus):
        amounts = (*gpu.accounts.values(), gpu.unwatched, gpu.millijoules or 0, gpu.observed or 0)
        if min(amounts) < 0:
            yield f"gpus[{number}]", _NEGATIVE
    for uuid, number in Counter(gpu.uuid for gpu in report.gpus).items():
        if number > 1:
            yield "gpus", f"has {uuid} {number} times"


def _negative_amounts(place: str, row: ReportLine | UnbilledTime) -> Iterator[Contradiction]:
    if isinstance(row, UnbilledTime):
        charges = {"time_charges": row.charges}
        amounts = {"gpu_microseconds": Fraction(row.microseconds)}
    else:
        charges = {"time_charges": row.time_charges, "energy_charges": row.energy_charges}
        amounts = {
            "gpu_microseconds": Fraction(row.gpu_microseconds or 0),
            "millijoules": Fraction(min(row.methods.values(), default=0)),
            **{f"{name}_seconds": getattr(row, name) or Fraction(0) for name in _SECONDS},
        }
    for name, amount in amounts.items():
        if amount < 0:
            yield f"{place}.{name}", _NEGATIVE
    for name, known in charges.items():
        if any(amount < 0 for amount in (known or {}).values()):
            yield f"{place}.{name}", _NEGATIVE


def _named_rows(statement: Statement) -> list[tuple[str, ReportLine]]:
    return [(f"rows[{number}]", line) for number, line in enumerate(statement.lines)]


def _named_unbilled(statement: Statement) -> list[tuple[str, UnbilledTime]]:
    return [(f"not_billed[{number}]", one) for number, one in enumerate(statement.report.unbilled)]


def _broken_sums(statement: Statement) -> Iterator[str]:
    """The places that break a law: what is billed is charged, and all time is that of the Gpus."""
    report = statement.report
    # Idle time that is spread is charged to other rows.
    rows = _named_rows(statement) if report.prices.idle != SPREAD else []
    for place, line in [*rows, ("total", report.total)]:
        if line.time_charges is not None and sum(line.time_charges.values()) != line.gpu_microseconds:
            yield f"{place}.time_charges"
        if line.energy_charges is not None and sum(line.energy_charges.values()) != line.millijoules:
            yield f"{place}.energy_charges"
    # What is scraped has bounds: its rows are not exactly the time and energy of the Gpus.
    if report.scraped:
        return
    unbilled: Counter[str] = Counter()
    for place, one in _named_unbilled(statement):
        unbilled[one.account] += one.microseconds
        if one.charges is not None and sum(one.charges.values()) != one.microseconds:
            yield f"{place}.time_charges"
    of_gpus = {name: sum(gpu.accounts.get(name, 0) for gpu in report.gpus) for name in (UNOBSERVED, DOWN)}
    of_gpus[UNWATCHED] = sum(gpu.unwatched for gpu in report.gpus)
    for account in unbilled.keys() | of_gpus.keys():
        if unbilled[account] != of_gpus.get(account, 0):
            yield f"reconciliation.{account}_microseconds"
    billed = sum(gpu.watched for gpu in report.gpus) - of_gpus[UNOBSERVED] - of_gpus[DOWN]
    if billed != report.total.gpu_microseconds:
        yield "gpus.microseconds_by_account"
    if sum(gpu.millijoules or 0 for gpu in report.gpus) != report.total.millijoules:
        yield "gpus.millijoules"


class _ListedRates:
    """The rates that the price list of a statement can give."""

    def __init__(self, statement: Statement) -> None:
        self._statement, self._prices = statement, statement.terms.prices

    @cached_property
    def time(self) -> Mapping[str, PriceRule]:
        """The prices of GPU-hours by the identity of their entries."""
        return self._by_identity(GPU_HOUR_KEY, self._prices.gpu_hour)

    @cached_property
    def energy(self) -> Mapping[str, PriceRule]:
        """The prices of kilowatt-hours."""
        return self._by_identity(KWH_KEY, self._prices.kwh)

    @cached_property
    def _overheads(self) -> set[Fraction]:
        pue = self._prices.pue
        # It counts as 1 where no entry applies.
        if pue is None or isinstance(pue, tuple):
            return {Fraction(1), *(Fraction(entry.amount) for entry in pue or ())}
        return {Fraction(pue)}

    def _by_identity(self, key: str, value: PriceValue) -> Mapping[str, PriceRule]:
        entries = value if isinstance(value, tuple) else () if value is None else (PriceEntry(1, value),)
        # Of entries that apply to the same, the first counts.
        rules = reversed(build_rules(key, entries, self._statement.terms.zone))
        return {rule.entry.identity: rule for rule in rules}

    def has(self, rate: Rate, rules: Mapping[str, PriceRule], within: QuarterRange) -> bool:
        """Whether a rate of this table can apply in these quarters."""
        rule = rules.get(rate.entry)
        if rate.price is None:
            # An entry without conditions leaves nothing without a price.
            return not rate.entry and PriceEntry(1, Decimal(0)).identity not in rules
        if rule is None or rule.begins >= within.ends or rule.ends <= within.begins:
            return False
        amount = Fraction(rule.entry.amount)
        if rules is self.energy:
            return rate.pue in self._overheads and rate.price == amount * rate.pue
        if rule.entry.per == PER_INSTANCE:
            # That of a whole GPU: the price of the instance by its part.
            return rate.pue == 1 and (rate.price >= amount if amount else not rate.price)
        return rate.pue == 1 and rate.price == amount


def _other_prices(statement: Statement) -> Iterator[Contradiction]:
    """The charges by prices that are not those of the statement's price list."""
    listed = _ListedRates(statement)
    periods = [QuarterRange(part.begins, part.ends) for part in statement.report.periods]
    charged: list[tuple[str, Charges | None, Mapping[str, PriceRule], int]] = []
    for place, line in _named_rows(statement):
        charged.append((f"{place}.time_charges", line.time_charges, listed.time, line.period))
        charged.append((f"{place}.energy_charges", line.energy_charges, listed.energy, line.period))
    for place, one in _named_unbilled(statement):
        charged.append((f"{place}.time_charges", one.charges, listed.time, one.period))
    for place, charges, rules, period in charged:
        if not all(listed.has(rate, rules, periods[period]) for rate in charges or {}):
            yield place, _OTHER_PRICE


def _differences(one: object, other: object, place: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            missing = object()
            yield from _differences(
                one.get(name, missing), other.get(name, missing), f"{place}.{name}".lstrip(".")
            )
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, left, right in zip(count(), one, other, strict=False):
            yield from _differences(left, right, f"{place}[{number}]")
    elif type(one) is not type(other) or one != other:
        yield place

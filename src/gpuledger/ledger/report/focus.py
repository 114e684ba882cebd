"""Reports in the columns of FOCUS, the FinOps Open Cost and Usage Specification.

A charge is one Gpu's time or energy on one UTC day at one unit price, split over the owners that used it
(split cost allocation). What belongs to no owner, such as idle time, is the unallocated part of the charge.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from gpuledger.ledger.report.focus_columns import CURRENCIES, focus_columns
from gpuledger.ledger.report.focus_rows import FocusOrigin, FocusPrice, FocusRows, FocusUsage, RoundedUsage
from gpuledger.ledger.report.focus_skus import ENERGY, GPU_TIME
from gpuledger.ledger.report.focus_tokens import token_usages
from gpuledger.ledger.report.grouping import OWNER_TAGS
from gpuledger.ledger.report.money import FILE_DIGITS, split_decimals
from gpuledger.ledger.report.report_keys import NODE, SERVED_MODEL, TEAM
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.model.errors import UsageError
from gpuledger.model.session import PROCESS

# Keys of every FOCUS report. The others of `--by` make tags of the owner, and cut its charges further.
_KEYS = (NODE, "gpu", "owner", OWNER_TAGS)
_COVERED = frozenset((*_KEYS, "model", "namespace", TEAM))


def focus_keys(by: str, *, has_teams: bool, has_tokens: bool = False) -> str:
    """The keys of a report for FOCUS: a row for each Gpu and owner, cut further by other keys of `--by`.

    With tokens, the model is a key: a pod has one, so that it cuts no row.
    """
    keys = [word.strip() for word in by.split(",")]
    team = [TEAM] if has_teams or TEAM in keys else []
    model = [SERVED_MODEL] if has_tokens and SERVED_MODEL not in keys else []
    return ",".join((*_KEYS, *team, *(key for key in keys if key not in _COVERED), *model))


def as_focus(report: UsageReport, account: str, version: str = "1.3") -> str:
    """The report as CSV. `account` is the billing account, such as the name of the cluster or machine.

    The report has the keys of `focus_keys`, and a part for each UTC day. Amounts without a price are no
    charges. Rows of tokens follow those of charges, which they leave as they are. Raises UsageError without a
    price or a currency of ISO 4217: FOCUS charges require both.
    """
    _require_prices(report)
    columns = focus_columns(version, has_tokens=report.has_tokens)
    used = _in_order(report)
    rows = FocusRows(report, account)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for one, numbers in zip(used, _round(used), strict=True):
        _write(writer, columns, rows.values(one, numbers))
    for usage in token_usages(report):
        _write(writer, columns, rows.token_values(usage))
    return out.getvalue()


def _write(writer: Any, columns: Mapping[str, str], values: Mapping[str, object]) -> None:
    writer.writerow([template.format_map(values) for template in columns.values()])


def _require_prices(report: UsageReport) -> None:
    currency = report.prices.currency
    if not report.prices.any_price or not currency:
        missing = "price.currency" if report.prices.any_price else "price.kwh or price.gpu_hour"
        raise UsageError(
            f"--format focus requires {missing} to be set: a FOCUS charge has a price in a currency"
        )
    if currency not in CURRENCIES:
        raise UsageError(
            f"--format focus: price.currency {currency} is not a national currency of ISO 4217, which FOCUS "
            "requires; set its code, such as EUR"
        )


def _in_order(report: UsageReport) -> list[FocusUsage]:
    """The priced amounts by day, Gpu, Sku and price; of each the owners, then what belongs to none."""
    places = {gpu.uuid: place for place, gpu in enumerate(report.gpus)}

    def order(one: FocusUsage) -> tuple[object, ...]:
        period, gpu, sku, price = one.origin
        is_own = one.line.account != PROCESS
        place = places.get(gpu, len(places))
        return period, place, gpu, sku.name, price, is_own, one.line.account, one.line.key

    return sorted(_usages(report), key=order)


def _usages(report: UsageReport) -> Iterator[FocusUsage]:
    """The priced amounts of all rows. Energy that was not measured is none: FOCUS has no unknown quantity."""
    for line in (*report.lines, *report.gpu_accounts):
        for sku, charges in ((ENERGY, line.energy_charges), (GPU_TIME, line.time_charges)):
            found: dict[FocusOrigin, int] = defaultdict(int)
            for rate, amount in (charges or {}).items():
                if rate.price is not None:
                    price = FocusPrice(rate.entry, rate.price / rate.pue, rate.pue)
                    found[FocusOrigin(line.period, rate.gpu, sku, price)] += amount
            known = sorted((origin, amount) for origin, amount in found.items() if amount)
            for place, (origin, amount) in enumerate(known):
                yield FocusUsage(line, origin, amount, place == 0)


def _round(used: Sequence[FocusUsage]) -> Iterator[RoundedUsage]:
    """The numbers of each: costs sum to the report's, quantities to those of their Sku."""
    costs = _round_parts((None, one.cost) for one in used)
    consumed = _round_parts((one.origin.sku, one.consumed) for one in used)
    quantities = _round_parts((one.origin.sku, one.quantity) for one in used)
    whole: dict[FocusOrigin, int] = defaultdict(int)
    for one in used:
        whole[one.origin] += one.amount
    ratios = _round_parts((one.origin, Fraction(one.amount, whole[one.origin])) for one in used)
    return map(RoundedUsage, costs, consumed, quantities, ratios)


def _round_parts(amounts: Iterable[tuple[object, Fraction]]) -> Iterator[Decimal]:
    """Amounts rounded so that those of each group sum to its rounded sum."""
    exact = list(amounts)
    groups: dict[object, list[Fraction]] = defaultdict(list)
    for group, amount in exact:
        groups[group].append(amount)
    rounded = {group: iter(split_decimals(parts, FILE_DIGITS)) for group, parts in groups.items()}
    return (next(rounded[group]) for group, _ in exact)

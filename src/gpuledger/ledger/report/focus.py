"""Reports in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification.

Each report row gives a charge for energy and one for GPU time, for each price that applied to it. Values
without a FOCUS column are in custom columns, prefixed with `x_` as the specification requires.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR, Charges
from gpuledger.ledger.report.formats import escape_cell, format_time
from gpuledger.ledger.report.money import FILE_DIGITS, exact_text, split_decimals
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.errors import UsageError
from gpuledger.model.session import PROCESS

# The columns of FOCUS in its order, and what they hold of a charge.
COLUMNS = {
    "BilledCost": "{charge.cost:f}",
    "BillingAccountId": "{account}",
    "BillingAccountName": "{account}",
    "BillingCurrency": "{currency}",
    "BillingPeriodEnd": "{until}",
    "BillingPeriodStart": "{since}",
    "ChargeCategory": "Usage",
    "ChargeClass": "",
    "ChargeDescription": "{description}",
    "ChargeFrequency": "Usage-Based",
    "ChargePeriodEnd": "{until}",
    "ChargePeriodStart": "{since}",
    "ConsumedQuantity": "{charge.consumed:f}",
    "ConsumedUnit": "{charge.sku.unit}",
    "ContractedCost": "{charge.cost:f}",
    "ContractedUnitPrice": "{price}",
    "EffectiveCost": "{charge.cost:f}",
    "InvoiceIssuerName": "gpuledger",
    "ListCost": "{charge.cost:f}",
    "ListUnitPrice": "{price}",
    "PricingCategory": "Standard",
    "PricingQuantity": "{charge.quantity:f}",
    "PricingUnit": "{charge.sku.unit}",
    "ProviderName": "gpuledger",
    "PublisherName": "gpuledger",
    "RegionId": "",
    "RegionName": "",
    "ResourceId": "{resource}",
    "ResourceName": "{resource}",
    "ResourceType": "{type}",
    "ServiceCategory": "Compute",
    "ServiceName": "GPU",
    "ServiceSubcategory": "Other (Compute)",
    "SkuId": "{charge.sku.name}",
    "SkuPriceId": "{charge.sku.name}/{charge.entry}",
    "SubAccountId": "{namespace}",
    "SubAccountName": "{namespace}",
    "Tags": "{tags}",
    "x_Account": "{line.account}",
    "x_GpuMicroseconds": "{microseconds}",
    "x_Millijoules": "{millijoules}",
    "x_LowKwh": "{low}",
    "x_HighKwh": "{high}",
    "x_MeasuredKwh": "{low}",
    "x_Co2Grams": "{grams}",
}


class _Sku(NamedTuple):
    """What is sold. `size` is the number of exact units (microseconds, millijoules) in a priced one."""

    name: str
    unit: str
    size: int
    description: str


_GPU_TIME = _Sku("gpu-time", "GPU-Hours", MICROSECONDS_PER_HOUR, "GPU time")
_ENERGY = _Sku("gpu-energy", "kWh", MILLIJOULES_PER_KWH, "Energy of the GPUs")


class _Price(NamedTuple):
    """An entry of the price list: what a unit costs, and the overhead (pue) of its amount."""

    entry: str
    unit_price: Fraction
    pue: Fraction


class _Usage(NamedTuple):
    """An amount of a row at one price, in exact units. `is_first`: of this row and Sku."""

    line: ReportLine
    sku: _Sku
    price: _Price
    amount: int
    is_first: bool

    @property
    def cost(self) -> Fraction:
        """Its exact cost."""
        return self.quantity * self.price.unit_price

    @property
    def consumed(self) -> Fraction:
        """The amount in the Sku's unit."""
        return Fraction(self.amount, self.sku.size)

    @property
    def quantity(self) -> Fraction:
        """The amount to which the price applies."""
        return self.consumed * self.price.pue


@dataclass(frozen=True, slots=True)
class _Charge:
    """A priced amount, with rounded numbers that sum to those of the report."""

    sku: _Sku
    entry: str
    consumed: Decimal
    quantity: Decimal
    cost: Decimal


def as_focus(report: UsageReport, account: str) -> str:
    """The report as CSV. `account` is the billing account, such as the name of the cluster or machine.

    Amounts without a price are no charges. Raises UsageError without a price or currency: FOCUS charges
    require both.
    """
    prices = report.prices
    if not prices.any_price or not prices.currency:
        missing = "price.currency" if prices.any_price else "price.kwh or price.gpu_hour"
        raise UsageError(
            f"--format focus requires {missing} to be set: a FOCUS charge has a price in a currency"
        )
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    used = [one for line in (*report.lines, *report.gpu_accounts) for one in _usage(line)]
    for one, charge in zip(used, _charges(used), strict=True):
        writer.writerow(_row(one, charge, report, account))
    return out.getvalue()


def _usage(line: ReportLine) -> Iterator[_Usage]:
    """The priced amounts of a row. Energy that was not measured is none: FOCUS has no unknown quantity."""
    for sku, charges in ((_ENERGY, line.energy_charges), (_GPU_TIME, line.time_charges)):
        is_first = True
        for price, amount in sorted(_by_price(charges or {}).items()):
            if amount:
                yield _Usage(line, sku, price, amount, is_first)
                is_first = False


def _by_price(charges: Charges) -> Mapping[_Price, int]:
    """The amounts of all Gpus by price."""
    found: dict[_Price, int] = defaultdict(int)
    for rate, amount in charges.items():
        if rate.price is not None:
            found[_Price(rate.entry, rate.price / rate.pue, rate.pue)] += amount
    return found


def _charges(used: Sequence[_Usage]) -> Iterator[_Charge]:
    """The charges with rounded numbers: costs sum to the report's total, quantities to those of their Sku."""
    costs = _rounded([one.cost for one in used])
    quantities: dict[_Sku, Iterator[tuple[Decimal, Decimal]]] = {}
    for sku in (_GPU_TIME, _ENERGY):
        own = [one for one in used if one.sku == sku]
        consumed, priced = (_rounded([one.consumed for one in own]), _rounded([one.quantity for one in own]))
        quantities[sku] = iter(list(zip(consumed, priced, strict=True)))
    for one, cost in zip(used, costs, strict=True):
        yield _Charge(one.sku, one.price.entry, *next(quantities[one.sku]), cost)


def _rounded(exact: Sequence[Fraction]) -> list[Decimal]:
    return split_decimals(sum(exact, Fraction(0)), exact, FILE_DIGITS)


def _row(used: _Usage, charge: _Charge, report: UsageReport, account: str) -> Mapping[str, object]:
    line = used.line
    names = dict(zip(report.grouping.columns, line.key, strict=True))
    named = {name: escape_cell(value) for name, value in names.items() if value}
    resource = "/".join(named.values())
    of_whom = resource or ("no name known" if line.account == PROCESS else "")
    begins, ends = _charge_period(line, report)
    values = {
        "account": account,
        "charge": charge,
        "line": line,
        "currency": report.prices.currency,
        "since": format_time(begins),
        "until": format_time(ends),
        "price": exact_text(used.price.unit_price, FILE_DIGITS),
        "description": _description(used, of_whom),
        "resource": resource,
        # FOCUS demands null where there is no resource: idle GPUs, for example, have no owner.
        "type": "GPU" if resource else "",
        "namespace": named.get("namespace", ""),
        "tags": json.dumps({**named, "account": line.account}, sort_keys=True),
        "microseconds": used.amount if used.sku == _GPU_TIME else "",
        "millijoules": used.amount if used.sku == _ENERGY else "",
        **_bounds(used),
    }
    return {name: value.format_map(values) for name, value in COLUMNS.items()}


def _description(used: _Usage, of_whom: str) -> str:
    pue = (
        f", multiplied by the PUE of {exact_text(used.price.pue, FILE_DIGITS)}" if used.price.pue != 1 else ""
    )
    account = "" if used.line.account == PROCESS else f" ({used.line.account})"
    return f"{used.sku.description}{pue}{account}{f': {of_whom}' if of_whom else ''}"


def _charge_period(line: ReportLine, report: UsageReport) -> tuple[float, float]:
    """The stretch of the ledger that the row is about, in unix seconds: up to the last posting."""
    period = report.period
    begins, ends = max(float(period.since), period.first), float(period.until)
    if report.periods:
        part = report.periods[line.period]
        begins, ends = part.begins * QUARTER, part.ends * QUARTER
    return begins, min(ends, period.last)


def _bounds(used: _Usage) -> Mapping[str, str]:
    """Bounds and CO2 of the row, once for each row; empty for time."""
    empty = {"low": "", "high": "", "grams": ""}
    if used.sku != _ENERGY or not used.is_first:
        return empty
    line = used.line
    found = {"low": _kwh(line.low), "high": _kwh(line.high)}
    grams = "" if line.grams is None else exact_text(line.grams, FILE_DIGITS)
    return {**empty, **found, "grams": grams}


def _kwh(millijoules: int | None) -> str:
    return "" if millijoules is None else exact_text(Fraction(millijoules, MILLIJOULES_PER_KWH), FILE_DIGITS)

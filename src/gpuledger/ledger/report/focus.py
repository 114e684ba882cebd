"""Reports in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification.

Each report row gives one charge for energy and one for GPU-hours, if they have a price. Values without a
FOCUS column are in custom columns, prefixed with `x_` as the specification requires.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from gpuledger.ledger.report.formats import escape_cell, format_time
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.model.errors import UsageError
from gpuledger.model.session import PROCESS

_DIGITS = Decimal("0.0000000001")
_PROVIDER = "gpuledger"

COLUMNS = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
    "x_Account",
    "x_LowKwh",
    "x_HighKwh",
    "x_MeasuredKwh",
    "x_Co2Grams",
)


class _Charge(NamedTuple):
    sku: str
    unit: str
    quantity: Fraction
    consumed: Fraction
    price: Decimal
    cost: Fraction
    description: str


def as_focus(report: UsageReport, account: str) -> str:
    """The report as CSV. `account` is the billing account, such as the name of the cluster or machine.

    Raises UsageError without a price or currency: FOCUS charges require both.
    """
    prices = report.prices
    if not prices.any_price or not prices.currency:
        missing = "price.currency" if prices.any_price else "price.kwh or price.gpu_hour"
        raise UsageError(
            f"--format focus requires {missing} to be set: a FOCUS charge has a price in a currency"
        )
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for line in (*report.lines, *report.gpu_accounts):
        for charge in _charges(line, report):
            writer.writerow(_row(line, charge, report, account))
    return out.getvalue()


def _charges(line: ReportLine, report: UsageReport) -> Iterator[_Charge]:
    prices = report.prices
    if prices.kwh is not None and line.millijoules:
        used = Fraction(line.millijoules, MILLIJOULES_PER_KWH)
        priced = used * Fraction(prices.pue or 1)
        description = "Energy of the GPUs" + (
            f", multiplied by the PUE of {prices.pue}" if prices.pue else ""
        )
        cost = prices.energy_cost(line.millijoules)
        yield _Charge("gpu-energy", "kWh", priced, used, prices.kwh, cost, description)
    if prices.gpu_hour is not None and line.resident:
        hours = line.resident / SECONDS_PER_HOUR
        cost = prices.time_cost(line.resident)
        yield _Charge("gpu-time", "GPU-Hours", hours, hours, prices.gpu_hour, cost, "GPUs in use")


def _row(line: ReportLine, charge: _Charge, report: UsageReport, account: str) -> Mapping[str, object]:
    names = dict(zip(report.grouping.columns, line.key, strict=False)) if line.account == PROCESS else {}
    named = {name: escape_cell(value) for name, value in names.items() if value}
    resource = "/".join(named.values()) or f"({line.account})"
    cost, price = _decimal(charge.cost), format(charge.price, "f")
    since, until = format_time(report.period.since), format_time(report.period.until)
    energy = charge.sku == "gpu-energy"
    row = {
        "BillingAccountId": account,
        "BillingAccountName": account,
        "BillingCurrency": report.prices.currency,
        "BillingPeriodStart": since,
        "BillingPeriodEnd": until,
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{charge.description}: {resource}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": since,
        "ChargePeriodEnd": until,
        "ConsumedQuantity": _decimal(charge.consumed),
        "ConsumedUnit": charge.unit,
        "ContractedUnitPrice": price,
        "ListUnitPrice": price,
        "PricingCategory": "Standard",
        "PricingQuantity": _decimal(charge.quantity),
        "PricingUnit": charge.unit,
        "ResourceId": resource,
        "ResourceName": resource,
        "ResourceType": "GPU",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU",
        "SkuId": charge.sku,
        "SkuPriceId": f"{charge.sku}/{price}",
        "SubAccountId": named.get("namespace", ""),
        "SubAccountName": named.get("namespace", ""),
        "Tags": json.dumps({**named, "account": line.account}, sort_keys=True),
        "x_Account": line.account,
    }
    row |= dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost)
    row |= dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), _PROVIDER)
    if energy and line.high is not None:
        row["x_LowKwh"] = row["x_MeasuredKwh"] = _decimal(Fraction(line.measured, MILLIJOULES_PER_KWH))
        row["x_HighKwh"] = _decimal(Fraction(line.high, MILLIJOULES_PER_KWH))
    if energy and line.grams is not None:
        row["x_Co2Grams"] = _decimal(line.grams)
    return row


def _decimal(number: Fraction) -> str:
    exact = Decimal(number.numerator) / Decimal(number.denominator)
    return format(exact.quantize(_DIGITS).normalize(), "f")

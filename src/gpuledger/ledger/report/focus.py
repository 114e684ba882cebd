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

# The columns of FOCUS in its order, and what they hold of a charge.
COLUMNS = {
    "BilledCost": "{cost}",
    "BillingAccountId": "{account}",
    "BillingAccountName": "{account}",
    "BillingCurrency": "{currency}",
    "BillingPeriodEnd": "{until}",
    "BillingPeriodStart": "{since}",
    "ChargeCategory": "Usage",
    "ChargeClass": "",
    "ChargeDescription": "{charge.description}: {resource}",
    "ChargeFrequency": "Usage-Based",
    "ChargePeriodEnd": "{until}",
    "ChargePeriodStart": "{since}",
    "ConsumedQuantity": "{consumed}",
    "ConsumedUnit": "{charge.unit}",
    "ContractedCost": "{cost}",
    "ContractedUnitPrice": "{price}",
    "EffectiveCost": "{cost}",
    "InvoiceIssuerName": "gpuledger",
    "ListCost": "{cost}",
    "ListUnitPrice": "{price}",
    "PricingCategory": "Standard",
    "PricingQuantity": "{quantity}",
    "PricingUnit": "{charge.unit}",
    "ProviderName": "gpuledger",
    "PublisherName": "gpuledger",
    "RegionId": "",
    "RegionName": "",
    "ResourceId": "{resource}",
    "ResourceName": "{resource}",
    "ResourceType": "GPU",
    "ServiceCategory": "Compute",
    "ServiceName": "GPU",
    "ServiceSubcategory": "",
    "SkuId": "{charge.sku}",
    "SkuPriceId": "{charge.sku}/{price}",
    "SubAccountId": "{namespace}",
    "SubAccountName": "{namespace}",
    "Tags": "{tags}",
    "x_Account": "{line.account}",
    "x_LowKwh": "{low}",
    "x_HighKwh": "{high}",
    "x_MeasuredKwh": "{low}",
    "x_Co2Grams": "{grams}",
}


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
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in (*report.lines, *report.gpu_accounts):
        for charge in _charges(line, report):
            writer.writerow(_row(line, charge, report, account))
    return out.getvalue()


def _charges(line: ReportLine, report: UsageReport) -> Iterator[_Charge]:
    prices = report.prices
    # Energy that was not measured is no charge: FOCUS has no charge of an unknown quantity.
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
    values = {
        "account": account,
        "charge": charge,
        "line": line,
        "currency": report.prices.currency,
        "since": format_time(report.period.since),
        "until": format_time(report.period.until),
        "consumed": _decimal(charge.consumed),
        "quantity": _decimal(charge.quantity),
        "price": format(charge.price, "f"),
        "cost": _decimal(charge.cost),
        "resource": "/".join(named.values()) or f"({line.account})",
        "namespace": named.get("namespace", ""),
        "tags": json.dumps({**named, "account": line.account}, sort_keys=True),
        "low": "",
        "high": "",
        "grams": "",
    }
    if charge.sku == "gpu-energy":
        values["low"], values["high"] = map(_kwh, (line.low, line.high))
        values["grams"] = "" if line.grams is None else _decimal(line.grams)
    return {name: value.format_map(values) for name, value in COLUMNS.items()}


def _kwh(millijoules: int | None) -> str:
    return "" if millijoules is None else _decimal(Fraction(millijoules, MILLIJOULES_PER_KWH))


def _decimal(number: Fraction) -> str:
    exact = Decimal(number.numerator) / Decimal(number.denominator)
    return format(exact.quantize(_DIGITS).normalize(), "f")

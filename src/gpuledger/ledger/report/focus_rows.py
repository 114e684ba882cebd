"""What a FOCUS charge says: its numbers, names, times and price, by the names of the columns' templates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from gpuledger.ledger.report.focus_skus import GPU_TIME, Sku
from gpuledger.ledger.report.focus_tokens import TokenUsage
from gpuledger.ledger.report.formats import escape_cell, format_time
from gpuledger.ledger.report.grouping import OWNER_TAGS, gpuledger_tag
from gpuledger.ledger.report.moments import next_period, period_begin
from gpuledger.ledger.report.money import FILE_DIGITS, exact_text
from gpuledger.ledger.report.report_keys import MONTHLY, NODE, SERVED_MODEL
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.ledger.report.token_columns import TOKENS_ONLY
from gpuledger.ledger.report.usage_report import GpuLine, ReportLine, UsageReport
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.session import PROCESS

_OF_GPU = frozenset(("uuid", "gpu", "model", NODE))
# What identifies an owner. A report without the key `owner` has all its names as the owner's.
_OF_OWNER = ("kind", "namespace", "owner")
# Conditions of an entry that are no part of the identity of a price: FOCUS has one identity for all times.
_DATES = frozenset(("from", "until"))
# The price of what is paid for by GPU time and energy.
_INCLUDED, _NO_COST = "included", Decimal(0).scaleb(-FILE_DIGITS)
# Values that rows of tokens do not have: those of money, and of the split over owners.
_OF_MONEY = (
    *("price_entry", "microseconds", "millijoules", "fraction_known", "method"),
    *("low", "high", "grams", "bound", "time_bound"),
)
_OF_SPLIT = ("basis", "method_details", "owner_id", "owner_name", "owner_tags")


class FocusPrice(NamedTuple):
    """An entry of the price list: what a unit costs, and the overhead (pue) of its amount."""

    entry: str
    unit_price: Fraction
    pue: Fraction


class FocusOrigin(NamedTuple):
    """The charge that is split over owners. `period` is the number of the report's part: a day."""

    period: int
    gpu: str
    sku: Sku
    price: FocusPrice


class FocusUsage(NamedTuple):
    """The part of an origin charge that a row of the report has, in exact units.

    `is_first`: of this row and Sku.
    """

    line: ReportLine
    origin: FocusOrigin
    amount: int
    is_first: bool

    @property
    def cost(self) -> Fraction:
        """Its exact cost."""
        return self.quantity * self.origin.price.unit_price

    @property
    def consumed(self) -> Fraction:
        """The amount in the Sku's unit."""
        return Fraction(self.amount, self.origin.sku.size)

    @property
    def quantity(self) -> Fraction:
        """The amount to which the price applies."""
        return self.consumed * self.origin.price.pue


class RoundedUsage(NamedTuple):
    """Its numbers in decimals; `ratio` is its part of the origin charge."""

    cost: Decimal
    consumed: Decimal
    quantity: Decimal
    ratio: Decimal


class FocusRows:
    """Converts charges to the values of the columns' templates. An empty text is null."""

    def __init__(self, report: UsageReport, account: str) -> None:
        self._report = report
        self._account = escape_cell(account)
        self._gpus = {gpu.uuid: gpu for gpu in report.gpus}
        self._conditions = dict(_conditions_of_entries(report))

    def values(self, one: FocusUsage, numbers: RoundedUsage) -> Mapping[str, object]:
        """The values of one row."""
        report, line, sku = self._report, one.line, one.origin.sku
        names = _names(line, report)
        gpu = self._gpus.get(one.origin.gpu) or GpuLine(one.origin.gpu, "", "", None, None)
        return {
            **self._shared_values(line, sku),
            **numbers._asdict(),
            "basis": report.basis,
            "method_details": _method_details(sku, numbers),
            "own_account": line.account,
            **self._price_values(one, gpu),
            **_gpu_values(gpu, names.get(NODE, "")),
            **_owner_values(names, line, report),
            **_exact_values(one),
            **_bounds(one),
        }

    def token_values(self, one: TokenUsage) -> Mapping[str, object]:
        """The values of one row of tokens: its resource is the pod, and it has no part in a split."""
        line, sku = one.line, one.sku
        owner = _owner_values(_names(line, self._report), replace(line, account=PROCESS), self._report)
        pod, name, tags = owner["owner_id"], owner["owner_name"], owner["owner_tags"]
        return {
            **dict.fromkeys((*_OF_MONEY, *_OF_SPLIT), ""),
            **self._shared_values(line, sku),
            **dict.fromkeys(("consumed", "quantity"), Decimal(one.amount)),
            "cost": _NO_COST,
            "count_bound": one.bound,
            "description": f"{sku.meter} of an inference server, included in the cost of GPU time and energy",
            "namespace": owner["namespace"],
            "own_account": line.account if line.account == TOKENS_ONLY else "",
            "price_details": _json({**dict(sku.details), "x_PriceEntry": _INCLUDED}),
            "price_id": f"{sku.name}/{_INCLUDED}",
            "resource": pod,
            "resource_name": name if name != pod else "",
            "resource_tags": tags,
            "all_tags": tags,
            "unit_price": "0",
        }

    def _shared_values(self, line: ReportLine, sku: Sku) -> Mapping[str, object]:
        """The values that all rows have."""
        report = self._report
        return {
            "account": self._account,
            "count_bound": "",
            "currency": report.prices.currency,
            "price_list": report.fingerprint,
            "served_model": escape_cell(_names(line, report).get(SERVED_MODEL, "")),
            "sku": sku,
            **_times(line, report),
        }

    def _price_values(self, one: FocusUsage, gpu: GpuLine) -> Mapping[str, object]:
        sku, price = one.origin.sku, one.origin.price
        conditions = self._conditions.get(price.entry, {})
        unit_price = exact_text(price.unit_price, FILE_DIGITS)
        pue = f", multiplied by the PUE of {exact_text(price.pue, FILE_DIGITS)}" if price.pue != 1 else ""
        model = gpu.model or "a GPU"
        entry = ",".join(f"{key}={value}" for key, value in conditions.items()) or "any"
        return {
            "description": escape_cell(
                f"{sku.meter} of {model}{pue}: {unit_price} {self._report.prices.currency} per {sku.singular}"
            ),
            "price_details": _json({**dict(sku.details), "x_PriceEntry": entry}),
            "price_entry": escape_cell(price.entry),
            "price_id": escape_cell(f"{sku.name}/{entry}"),
            "unit_price": unit_price,
        }


def _names(line: ReportLine, report: UsageReport) -> Mapping[str, str]:
    columns = zip(report.grouping.columns, line.key, strict=True)
    return {column: text for column, text in columns if text and column != OWNER_TAGS}


def _conditions_of_entries(report: UsageReport) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Where each entry of the price lists applies, by the entry's identity in charges."""
    for value in (report.prices.gpu_hour, report.prices.kwh):
        for entry in value if isinstance(value, tuple) else ():
            yield entry.identity, {key: text for key, text in entry.conditions if key not in _DATES}


def _times(line: ReportLine, report: UsageReport) -> Mapping[str, str]:
    """The charge period: the day, as far as the ledger has it; the billing period: the day's UTC month."""
    period = report.period
    begins, ends, name = max(period.since, period.first), period.until, ""
    if report.periods:
        part = report.periods[line.period]
        begins, ends, name = max(period.since, part.begins * QUARTER), part.ends * QUARTER, part.name
    # A day that begins at the cut of the ledger nearest to midnight belongs to the month of its date.
    date = datetime.fromisoformat(name) if name[:1].isdigit() else datetime.fromtimestamp(begins, UTC)
    month = period_begin(date.replace(tzinfo=None), MONTHLY)
    bounds = (bound.replace(tzinfo=UTC).timestamp() for bound in (month, next_period(month, MONTHLY)))
    times = (begins, ceil(min(ends, period.last)), *bounds)
    return dict(zip(("begins", "ends", "month_begins", "month_ends"), map(format_time, times), strict=True))


def _gpu_values(gpu: GpuLine, node: str) -> Mapping[str, str]:
    """The resource. A Gpu that is known only by its uuid has no name."""
    index = f"GPU {gpu.index}" if gpu.index else ""
    tags = {"node": node, "model": gpu.model, "gpu": gpu.index}
    return {
        "resource": escape_cell(gpu.uuid),
        "resource_name": escape_cell(f"{node} {index}".strip()) if index else "",
        "resource_tags": _json(_prefixed(tags)),
    }


def _owner_values(names: Mapping[str, str], line: ReportLine, report: UsageReport) -> Mapping[str, str]:
    """The owner to which the charge is allocated; null for the part that belongs to none."""
    own = {name: text for name, text in names.items() if name not in _OF_GPU}
    gpu_tags = _prefixed({name: names.get(name, "") for name in (NODE, "model", "gpu")})
    if line.account != PROCESS:
        return {
            **dict.fromkeys(("owner_id", "owner_name", "owner_tags", "namespace"), ""),
            "all_tags": _json(gpu_tags),
        }
    parts = [own[name] for name in (_OF_OWNER if "kind" in own else own) if name in own]
    tags = {**_owner_tags(line, report), **_prefixed(own)}
    return {
        "owner_id": escape_cell("/".join(parts)) or "unknown",
        "owner_name": escape_cell("/".join(parts[1:] or parts)) or "unknown",
        "owner_tags": _json(tags),
        "namespace": escape_cell(own.get("namespace", "")),
        "all_tags": _json({**tags, **gpu_tags}),
    }


def _owner_tags(line: ReportLine, report: UsageReport) -> Mapping[str, object]:
    """Labels of pods, and what else is known of the owner: the texts of the key `tags`."""
    if OWNER_TAGS not in report.grouping.columns:
        return {}
    text = line.key[report.grouping.columns.index(OWNER_TAGS)]
    found: Mapping[str, object] = json.loads(text or "{}")
    return found


def _prefixed(tags: Mapping[str, str]) -> dict[str, str]:
    return {gpuledger_tag(key): text for key, text in tags.items() if text}


def _method_details(sku: Sku, numbers: RoundedUsage) -> str:
    # Not by json.dumps: its numbers are binary floats.
    return (
        f'{{"Elements": [{{"AllocatedRatio": {numbers.ratio:f}, "UsageUnit": "{sku.unit}", '
        f'"UsageQuantity": {numbers.consumed:f}}}]}}'
    )


def _exact_values(one: FocusUsage) -> Mapping[str, object]:
    """The exact amount, and how it was found: of time whether parts of the Gpu are known, of energy how."""
    line, is_time = one.line, one.origin.sku == GPU_TIME
    # Prometheus does not have whether an allocation's part is known.
    is_known = "" if line.bound is not None else str(not line.estimated_microseconds).lower()
    methods = "+".join(sorted(name for name, amount in line.methods.items() if amount))
    return {
        "microseconds": one.amount if is_time else "",
        "millijoules": "" if is_time else one.amount,
        "fraction_known": is_known if is_time and line.account == PROCESS else "",
        "method": methods if not is_time and line.account == PROCESS else "",
    }


def _bounds(one: FocusUsage) -> Mapping[str, object]:
    """Bounds and CO2 of the row, once for each row; empty for the other charges."""
    values: dict[str, object] = dict.fromkeys(("low", "high", "grams", "bound", "time_bound"), "")
    line = one.line
    if one.is_first and one.origin.sku == GPU_TIME:
        values["time_bound"] = "" if line.time_bound is None else line.time_bound
    elif one.is_first:
        values |= {
            "low": _kwh(line.low),
            "high": _kwh(line.high),
            "grams": "" if line.grams is None else exact_text(line.grams, FILE_DIGITS),
            "bound": "" if line.bound is None else line.bound,
        }
    return values


def _kwh(millijoules: int | None) -> str:
    return "" if millijoules is None else exact_text(Fraction(millijoules, MILLIJOULES_PER_KWH), FILE_DIGITS)


def _json(values: Mapping[str, object]) -> str:
    return escape_cell(json.dumps(values, sort_keys=True)) if values else ""

"""The rules of FOCUS 1.3 for a dataset of cost and usage, as a table: when columns are null, what they hold.

Written from the specification, because no published validator knows this version offline. The rules are
those of charges that gpuledger makes: usage, at a price, without discounts, taxes and corrections; and usage
that other charges pay for, such as tokens. A cell is a text; an empty one is null.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gpuledger.ledger.report.focus_columns import CURRENCIES

Row = Mapping[str, str]

# When a column may have no value.
NEVER, ALWAYS = "never null", "always null"
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_UNIT = re.compile(r"[A-Za-z]+(-(Years|Months|Days|Hours|Minutes|Seconds))?")
# The last digit of a cost, and of a quantity.
_ROUNDING = Decimal("1e-10")


def _is_number(cell: str) -> bool:
    return bool(_NUMBER.fullmatch(cell))


def _is_not_negative(cell: str) -> bool:
    return _is_number(cell) and not cell.startswith("-")


def _is_time(cell: str) -> bool:
    return bool(_TIME.fullmatch(cell)) and bool(datetime.fromisoformat(cell))


def _is_text(cell: str) -> bool:
    return cell.isprintable() and bool(cell.strip())


def _is_flat(content: object) -> bool:
    return isinstance(content, dict) and not any(isinstance(value, dict | list) for value in content.values())


def _has_unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _read_json(cell: str) -> object:
    try:
        return json.loads(cell, object_pairs_hook=_has_unique_keys, parse_float=Decimal)
    except ValueError:
        return None


def _is_tags(cell: str) -> bool:
    content = _read_json(cell)
    return isinstance(content, dict) and _is_flat(content) and bool(content)


def _is_price_details(cell: str) -> bool:
    content = _read_json(cell)
    return (
        isinstance(content, dict)
        and _is_flat(content)
        and all(key == "GpuCount" or re.fullmatch(r"x_[A-Z][A-Za-z]+", key) for key in content)
    )


def _is_method_details(cell: str) -> bool:
    content = _read_json(cell)
    elements = content.get("Elements") if isinstance(content, dict) else None
    return (
        isinstance(elements, list)
        and bool(elements)
        and all(_is_flat(one) and "AllocatedRatio" in one for one in elements)
        and all("UsageUnit" in one or "UsageQuantity" not in one for one in elements)
    )


def _one_of(*allowed: str) -> Callable[[str], bool]:
    return lambda cell: cell in allowed


@dataclass(frozen=True)
class ColumnRule:
    """When a column is null, and what its values are. `level` is the feature level of the specification.

    `null` is NEVER, ALWAYS, a column with which it is null, or empty if it may be null.
    """

    level: str
    null: str
    is_valid: Callable[[str], bool] = _is_text


def _mandatory(is_valid: Callable[[str], bool] = _is_text, null: str = NEVER) -> ColumnRule:
    return ColumnRule("mandatory", null, is_valid)


def _conditional(is_valid: Callable[[str], bool] = _is_text, null: str = NEVER) -> ColumnRule:
    """A column that is mandatory for what gpuledger supports."""
    return ColumnRule("conditional", null, is_valid)


def _recommended(is_valid: Callable[[str], bool] = _is_text, null: str = NEVER) -> ColumnRule:
    return ColumnRule("recommended", null, is_valid)


RULES: Mapping[str, ColumnRule] = {
    # The part of a charge that belongs to no owner has no allocated resource.
    # What is not split, such as tokens, has no method.
    "AllocatedMethodDetails": _recommended(_is_method_details, null="AllocatedMethodId"),
    "AllocatedMethodId": _conditional(_one_of("allocation", "residence"), null=""),
    "AllocatedResourceId": _conditional(null=""),
    "AllocatedResourceName": _conditional(null="AllocatedResourceId"),
    "AllocatedTags": _conditional(_is_tags, null=""),
    "BilledCost": _mandatory(_is_number),
    "BillingAccountId": _mandatory(),
    "BillingAccountName": _mandatory(),
    "BillingCurrency": _mandatory(lambda cell: cell in CURRENCIES),
    "BillingPeriodEnd": _mandatory(_is_time),
    "BillingPeriodStart": _mandatory(_is_time),
    "ChargeCategory": _mandatory(_one_of("Usage", "Purchase", "Tax", "Credit", "Adjustment")),
    "ChargeClass": _mandatory(_one_of("Correction"), null=ALWAYS),
    "ChargeDescription": _mandatory(),
    "ChargeFrequency": _recommended(_one_of("One-Time", "Recurring", "Usage-Based")),
    "ChargePeriodEnd": _mandatory(_is_time),
    "ChargePeriodStart": _mandatory(_is_time),
    "ConsumedQuantity": _conditional(_is_number),
    "ConsumedUnit": _conditional(lambda cell: bool(_UNIT.fullmatch(cell))),
    "ContractedCost": _mandatory(_is_number),
    "ContractedUnitPrice": _conditional(_is_not_negative),
    "EffectiveCost": _mandatory(_is_number),
    "HostProviderName": _mandatory(),
    # No charge is on an invoice yet.
    "InvoiceId": _recommended(null=ALWAYS),
    "InvoiceIssuerName": _mandatory(),
    "ListCost": _mandatory(_is_number),
    "ListUnitPrice": _conditional(_is_not_negative),
    "PricingCategory": _conditional(_one_of("Standard", "Dynamic", "Committed", "Other")),
    "PricingQuantity": _mandatory(_is_number),
    "PricingUnit": _mandatory(lambda cell: bool(_UNIT.fullmatch(cell))),
    "ProviderName": _mandatory(),
    "PublisherName": _mandatory(),
    "ResourceId": _conditional(),
    # Null if the resource has no display name.
    "ResourceName": _conditional(null=""),
    "ResourceType": _conditional(),
    "ServiceCategory": _mandatory(_one_of("Compute", "AI and Machine Learning")),
    "ServiceName": _mandatory(),
    "ServiceProviderName": _mandatory(),
    "ServiceSubcategory": _recommended(
        _one_of(
            "Containers",
            "End User Computing",
            "Quantum Compute",
            "Serverless Compute",
            "Virtual Machines",
            "Other (Compute)",
            "Generative AI",
        )
    ),
    "SkuId": _conditional(),
    "SkuMeter": _conditional(),
    "SkuPriceDetails": _conditional(_is_price_details),
    "SkuPriceId": _conditional(),
    "Tags": _conditional(_is_tags),
}
# Units of what is counted and costs nothing.
_COUNTED = ("Tokens", "Requests")
# A value of the first column has one value of the second.
PARENTS = (
    ("ServiceSubcategory", "ServiceCategory"),
    ("ServiceName", "ServiceCategory"),
    ("ServiceName", "ServiceSubcategory"),
    ("SkuPriceId", "SkuId"),
    ("SkuPriceId", "SkuPriceDetails"),
    ("SkuId", "SkuMeter"),
    ("SkuId", "PricingUnit"),
    ("SkuId", "ConsumedUnit"),
    ("ResourceId", "ResourceType"),
    ("BillingAccountId", "BillingAccountName"),
    ("AllocatedResourceId", "AllocatedResourceName"),
)
# Columns in which the owners' parts of a charge may differ: the owner, and numbers that add up.
_OWN_OF_PARTS = frozenset(
    (
        *(name for name in RULES if name.startswith("Allocated") and name != "AllocatedMethodId"),
        *("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"),
        *("ConsumedQuantity", "PricingQuantity"),
    )
)
_ORIGIN = tuple(name for name in RULES if name not in _OWN_OF_PARTS)
# Apart from these, equal origins are one origin.
_ENTRY = "x_PriceEntry"


def broken_rules(rows: Sequence[Row]) -> list[str]:
    """One line for each rule that some row breaks, with the column's name first."""
    wrong_columns = list(_broken_columns(rows))
    return wrong_columns or [*_broken_cells(rows), *_broken_rows(rows), *_broken_relations(rows)]


def _broken_columns(rows: Sequence[Row]) -> Iterator[str]:
    columns = list(rows[0]) if rows else []
    for name, rule in RULES.items():
        if rows and name not in columns:
            yield f"{name}: a {rule.level} column is absent"
    own = [name for name in columns if name.startswith("x_")]
    for name in columns:
        if name not in RULES and not re.fullmatch(r"x_[A-Z][A-Za-z0-9]+", name):
            yield f"{name}: FOCUS has no such column, and it has no prefix"
    if columns[len(columns) - len(own) :] != own:
        yield f"{own[0]}: columns of FOCUS are first"


def _broken_cells(rows: Sequence[Row]) -> Iterator[str]:
    for name, rule in RULES.items():
        cells = {row.get(name, "") for row in rows}
        if rule.null == ALWAYS and cells - {""}:
            yield f"{name}: must be null"
        if rule.null == NEVER and "" in cells:
            yield f"{name}: must not be null"
        if rule.null in RULES and any(bool(row[name]) != bool(row[rule.null]) for row in rows):
            yield f"{name}: must be null exactly if {rule.null} is"
        for cell in sorted(cells - {""}):
            if not rule.is_valid(cell):
                yield f"{name}: {cell!r} is not valid"


def _broken_rows(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield from _broken_costs(row)
        if not row["ChargePeriodStart"] < row["ChargePeriodEnd"]:
            yield f"ChargePeriodEnd: {row['ChargePeriodEnd']} is not after the begin"
        if not _is_month(row["BillingPeriodStart"], row["BillingPeriodEnd"]):
            yield f"BillingPeriodEnd: {row['BillingPeriodStart']} to it is no month"
        is_counted = row["ConsumedUnit"] in _COUNTED
        if (row["x_Account"] == "process" and not is_counted) != bool(row["AllocatedResourceId"]):
            yield "AllocatedResourceId: must be null exactly for what no owner has, or is not split"
        if is_counted == bool(row["AllocatedMethodId"]):
            yield "AllocatedMethodId: must be null exactly for what is not split"
        if is_counted:
            yield from _broken_counts(row)
        if row["ResourceName"] == row["ResourceId"]:
            yield "ResourceName: must not repeat ResourceId"
        shared, own = (_read_json(row[name] or "{}") for name in ("Tags", "AllocatedTags"))
        if isinstance(shared, dict) and isinstance(own, dict) and shared.keys() & own.keys():
            yield "AllocatedTags: must not repeat a tag of the resource"


def _broken_counts(row: Row) -> Iterator[str]:
    """What other charges pay for has a price and a cost of 0, and is counted in whole units."""
    for name in ("BilledCost", "ListUnitPrice", "ContractedUnitPrice"):
        if _is_number(row[name]) and Decimal(row[name]):
            yield f"{name}: a count must cost nothing"
    if not row["ConsumedQuantity"].isdigit() or not int(row["ConsumedQuantity"]):
        yield "ConsumedQuantity: a count must be a whole number above 0"
    if row["PricingQuantity"] != row["ConsumedQuantity"] or row["PricingUnit"] != row["ConsumedUnit"]:
        yield "PricingQuantity: a count must be priced as it is consumed"
    if row["ServiceName"] == "GPU" or row["ResourceType"] == "GPU":
        yield "ResourceType: a count is not of a GPU"


def _broken_costs(row: Row) -> Iterator[str]:
    """Cost is price times quantity, both of which are rounded."""
    numbers = ("PricingQuantity", "ListUnitPrice", "ContractedUnitPrice", "ListCost", "ContractedCost")
    if not all(_is_number(row[name]) for name in (*numbers, "BilledCost", "EffectiveCost")):
        return
    quantity = Decimal(row["PricingQuantity"])
    for kind in ("List", "Contracted"):
        price = Decimal(row[f"{kind}UnitPrice"])
        if abs(Decimal(row[f"{kind}Cost"]) - price * quantity) > _ROUNDING * (1 + price + quantity):
            yield f"{kind}Cost: must be {kind}UnitPrice times PricingQuantity"
    if len({Decimal(row[name]) for name in ("BilledCost", "EffectiveCost", "ListCost")}) > 1:
        yield "EffectiveCost: without discounts all costs are equal"


def _is_month(begins: str, ends: str) -> bool:
    if not (_is_time(begins) and _is_time(ends)):
        return False
    first, last = datetime.fromisoformat(begins), datetime.fromisoformat(ends)
    following = (first.year + first.month // 12, first.month % 12 + 1)
    return first.strftime("%d%H%M%S") == "01000000" and last == first.replace(*following)


def _broken_relations(rows: Sequence[Row]) -> Iterator[str]:
    for child, parent in PARENTS:
        parents: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            parents[row.get(child, "")].add(row.get(parent, ""))
        for value, found in parents.items():
            if value and len(found) > 1:
                yield f"{child}: {value} has more than one {parent}: {sorted(found)}"
    origins: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    keys = ("ResourceId", "SkuId", "ChargePeriodStart", "SkuPriceId", "ListUnitPrice", _ENTRY, "Tags")
    for row in rows:
        origins[tuple(row.get(name, "") for name in keys)].append(row)
    for parts in origins.values():
        for name in _ORIGIN:
            if len({row.get(name, "") for row in parts}) > 1:
                yield f"{name}: must be equal in all parts of a charge"
        details = [_read_json(row["AllocatedMethodDetails"]) for row in parts]
        ratios = [
            Decimal(str(one["Elements"][0]["AllocatedRatio"])) for one in details if isinstance(one, dict)
        ]
        if len(parts) > 1 and parts[0]["ConsumedUnit"] in _COUNTED:
            yield f"ConsumedQuantity: {parts[0]['SkuId']} of {parts[0]['ResourceId']} is counted twice"
        if len(ratios) == len(parts) and sum(ratios) != 1:
            yield f"AllocatedMethodDetails: ratios of {parts[0]['ResourceId']} sum to {sum(ratios)}, not to 1"

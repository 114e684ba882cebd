"""Merges the receipts that several nodes have of one job (or pod, user, ...) into one receipt.

The result does not depend on the order of the parts, nor on whether some of them were merged before. Amounts
are summed exactly: as integers, as decimals, and seconds in whole microseconds. An amount that one node does
not know is not known of all: a sum of the others would look like the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final, cast, get_args, get_type_hints

from gpuledger.ledger.report.receipt.advice import advise
from gpuledger.ledger.report.receipt.content import (
    RECEIPT_VERSION,
    Amounts,
    ReceiptGpu,
    ReceiptJson,
    ReceiptOwner,
)
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.errors import GpuledgerError

# More digits than any sum of amounts has.
_EXACT: Final = Context(prec=60)
_TEN_DECIMALS: Final = Decimal("1e-10")


def merge_receipts(parts: Sequence[ReceiptJson], settings: AdviceSettings | None = None) -> ReceiptJson:
    """One receipt of those that different nodes have of one target; a single one is returned unchanged.

    Raises GpuledgerError if they are of different targets or bases, or if two are of the same node.
    """
    _require_same(parts)
    if len(parts) == 1:
        return parts[0]
    currencies = {part["currency"] for part in parts}
    merged: ReceiptJson = {
        "version": RECEIPT_VERSION,
        "program": ", ".join(sorted({one for part in parts for one in part["program"].split(", ")})),
        "nodes": sorted(node for part in parts for node in part["nodes"]),
        "simulated": any(part["simulated"] for part in parts),
        "made": max(part["made"] for part in parts),
        "who": parts[0]["who"],
        "owner": _merge_owner([part["owner"] for part in parts]),
        "since": min(part["since"] for part in parts),
        "until": max(part["until"] for part in parts),
        # What all nodes know.
        "ledger_until": min(part["ledger_until"] for part in parts),
        "begins": min((part["begins"] for part in parts if part["begins"] is not None), default=None),
        "ends": max((part["ends"] for part in parts if part["ends"] is not None), default=None),
        "running": any(part["running"] for part in parts),
        "zone": _common(part["zone"] for part in parts) or "UTC",
        "basis": parts[0]["basis"],
        "currency": "" if len(currencies) > 1 else parts[0]["currency"],
        "price_list": _common(part["price_list"] for part in parts),
        "total": sum_amounts([part["total"] for part in parts]),
        "gpus": _sorted(parts, "gpus", _place),
        "processes": _sorted(parts, "processes", lambda one: (one["begins"], one["node"], one["pid"])),
        "processes_omitted": sum(part["processes_omitted"] for part in parts),
        "owners": _merge_owners(parts),
        "owners_omitted": max(part["owners_omitted"] for part in parts),
        "hosts": _sorted(parts, "hosts", lambda one: (one["node"], one["job"])),
        # Bars of other times cannot be shown above each other.
        "bars": _common(part["bars"] for part in parts),
        "advice": [],
        "notes": sorted({note for part in parts for note in part["notes"]}),
    }
    if len(currencies) > 1:
        _forget_costs(merged)
    # Judged again: whether a GPU is the only one of many that was never used, only all nodes know.
    merged["advice"] = advise(merged, settings or AdviceSettings())
    return merged


def sum_amounts(parts: Sequence[Amounts]) -> Amounts:
    """The exact sum of each amount; None if it is not known of one part."""
    return cast("Amounts", {name: _sum(parts, name, *_INTEGERS[kind]) for name, kind in _AMOUNTS.items()})


def _sum(
    parts: Sequence[Amounts], name: str, to_integer: Callable[[Any], int], back: Callable[[int], Any]
) -> Any:
    values: list[Any] = [part.get(name) for part in parts]
    return None if None in values else back(sum(map(to_integer, values)))


def _units(text: str) -> int:
    """The amount in units of its tenth decimal."""
    return int(_EXACT.divide(Decimal(text), _TEN_DECIMALS))


# The type of each amount, and its values as integers and back. Decimals are whole microseconds (of grams:
# millionths), because sums of floats depend on their order.
_AMOUNTS: Final = {name: (get_args(hint) or (hint,))[0] for name, hint in get_type_hints(Amounts).items()}
_INTEGERS: Final[Mapping[object, tuple[Callable[[Any], int], Callable[[int], Any]]]] = {
    int: (int, int),
    float: (lambda value: round(value * MICRO), lambda total: total / MICRO),
    str: (_units, lambda total: f"{_EXACT.multiply(total, _TEN_DECIMALS):.10f}"),
}


def _require_same(parts: Sequence[ReceiptJson]) -> None:
    if not parts:
        raise GpuledgerError("there are no receipts to merge")
    nodes = [node for part in parts for node in part["nodes"]]
    shown = ", ".join(sorted(set(nodes)))
    twice = sorted({node for node in nodes if nodes.count(node) > 1})
    if twice:
        raise GpuledgerError(f"two receipts are of the node {twice[0]}: give each node its own --node-name")
    versions = {part["version"] for part in parts}
    if versions != {RECEIPT_VERSION}:
        raise GpuledgerError(
            f"the receipts of {shown} have version {max(versions)}, this gpuledger reads {RECEIPT_VERSION}: "
            "run the same version of gpuledger on all nodes and here"
        )
    if len({(part["who"]["kind"], *part["who"]["key"]) for part in parts}) > 1:
        raise GpuledgerError(f"the receipts of {shown} are not of the same owner")
    if len({part["basis"] for part in parts}) > 1:
        raise GpuledgerError(
            f"{shown} bill by different bases, and the sum has no meaning: set the same price.basis there"
        )


def _place(gpu: ReceiptGpu) -> tuple[str, int, str, str, str]:
    return gpu["node"], len(gpu["index"]), gpu["index"], gpu["instance"], gpu["uuid"]


def _common(values: Iterable[Any]) -> Any:
    """The value if it is the same everywhere, else None."""
    first, *others = list(values)
    return first if all(one == first for one in others) else None


def _sorted(parts: Sequence[ReceiptJson], name: str, key: Callable[[Any], Any]) -> Any:
    found = [one for part in parts for one in part[name]]  # type: ignore[literal-required]  # names of lists
    return sorted(found, key=lambda one: (key(one), repr(one)))


def _merge_owner(owners: Sequence[dict[str, str] | None]) -> dict[str, str] | None:
    """The owner; a fact that only some nodes know is taken from these, by the order of the texts."""
    known = [owner for owner in owners if owner is not None]
    if len(known) < len(owners):
        return None
    names = dict.fromkeys(name for owner in known for name in sorted(owner))
    return {name: min(filter(None, (one.get(name, "") for one in known)), default="") for name in names}


def _merge_owners(parts: Sequence[ReceiptJson]) -> list[ReceiptOwner]:
    """The owners of all nodes; one that is on several nodes is one row."""
    by_name: dict[str, list[ReceiptOwner]] = {}
    for part in parts:
        for owner in part["owners"]:
            by_name.setdefault(owner["explain"], []).append(owner)
    return [
        ReceiptOwner(
            **sum_amounts(rows),
            name=min(row["name"] for row in rows),
            explain=explain,
            gpus=sum(row["gpus"] for row in rows),
        )
        for explain, rows in sorted(by_name.items())
    ]


def _forget_costs(receipt: ReceiptJson) -> None:
    """Remove the sums of costs in different currencies."""
    amounts: list[Amounts] = [receipt["total"], *receipt["owners"]]
    for row in amounts:
        row["time_cost"] = row["energy_cost"] = row["cost"] = None
    note = "The nodes have different currencies: the costs of all together are not known."
    receipt["notes"] = sorted({*receipt["notes"], note})

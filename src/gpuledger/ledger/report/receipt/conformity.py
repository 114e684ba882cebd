"""Checks that JSON of another program has the form of a receipt, before any of it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.model.workload import FACTS

# Numbers of a receipt are far below: microseconds, millijoules and bytes of all that a ledger keeps.
_MOST: Final = 1 << 80
# Unix seconds: year 2200.
_LATEST: Final = 7_258_118_400
_OF_OWNER: Final = ("kind", "namespace", "pod", "container", "unit", "user", "job", *FACTS)
_MONEY: Final = frozenset({"time_cost", "energy_cost", "cost"})
_AMOUNT: Final = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")
_TIMES: Final = frozenset(
    {"made", "since", "until", "ledger_until", "begins", "ends", "first_active", "last_active"}
)


def find_malformed(raw: object) -> str:
    """The first place that is not as `ReceiptJson` declares it; empty for a receipt."""
    if wrong := _wrong(raw, ReceiptJson, ""):
        return wrong
    assert isinstance(raw, dict)
    for at, gpu in enumerate(raw["gpus"]):
        for name, bar in gpu["bars"].items():
            if len(bar) != len(gpu["bars"]["present"]):
                return f"gpus[{at}].bars.{name}"
    missing = [] if raw["owner"] is None else [name for name in _OF_OWNER if name not in raw["owner"]]
    return f"owner.{missing[0]}" if missing else ""


_hints = cache(get_type_hints)


def _wrong(value: Any, hint: Any, place: str) -> str:
    """The first wrong place in a value; empty if it has the type."""
    if is_typeddict(hint):
        return _wrong_object(value, hint, place)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        found = [_wrong(value, one, place) for one in parts if not (one is NoneType and value is not None)]
        return "" if "" in found else found[0]
    if origin is list:
        if not isinstance(value, list):
            return place
        return next((at for n, one in enumerate(value) if (at := _wrong(one, parts[0], f"{place}[{n}]"))), "")
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return place
        return next((at for key, one in value.items() if (at := _wrong(one, parts[1], f"{place}.{key}"))), "")
    return "" if _is_scalar(value, hint, place) else place


def _wrong_object(value: Any, hint: Any, place: str) -> str:
    if not isinstance(value, dict):
        return place or "the receipt"
    for name, part in _hints(hint).items():
        below = f"{place}.{name}".lstrip(".")
        if name not in value or (wrong := _wrong(value[name], part, below)):
            return below if name not in value else wrong
    return ""


def _is_scalar(value: Any, hint: Any, place: str) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float or hint is int:
        if isinstance(value, bool) or not isinstance(value, int | float if hint is float else int):
            return False
        if not -_MOST < value < _MOST or not isfinite(value):
            return False
        return place.rpartition(".")[2] not in _TIMES or 0 <= value <= _LATEST
    if hint is str:
        if not isinstance(value, str) or any("\ud800" <= sign <= "\udfff" for sign in value):
            return False
        return place.rpartition(".")[2] not in _MONEY or bool(_AMOUNT.fullmatch(value))
    return hint is Any or (isinstance(hint, type) and isinstance(value, hint))

"""Parses the settings of prices: a number, or a list of entries that say where and when an amount applies.

Amounts are decimals as they were written, never binary floats. Dates have no time zone yet: that of the
ledger is known when a report is made (`price_rules`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from textwrap import shorten
from typing import Final, NamedTuple

from gpuledger.model.errors import suggest_name
from gpuledger.model.settings import InvalidElement, choice, read_json_list

PER_GPU, PER_INSTANCE = "gpu", "instance"

# An implausible price of a kilowatt-hour or GPU-hour in any currency.
_MOST: Final = Decimal(10**9)
_NUMBER: Final = re.compile(r"([+-]?)((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,2})?)", re.ASCII | re.IGNORECASE)
_LONGEST_NUMBER: Final = 60
_HOUR: Final = r"([01]\d|2[0-3]):[0-5]\d"
_DATE: Final = re.compile(
    rf"\d{{4}}-\d\d-\d\d(?P<time>[T ]{_HOUR}(:[0-5]\d)?(?P<offset>Z|[+-]{_HOUR})?)?", re.ASCII
)
_YEARS: Final = range(1970, 2200)
# Characters of a value that a message repeats.
_SHOWN: Final = 60


class PriceDate(NamedTuple):
    """A date in a price list. `is_day` is a date without a time: the first instant of that day.

    `moment` has no time zone, unless the entry states an offset.
    """

    moment: datetime
    is_day: bool

    def __str__(self) -> str:
        return self.moment.date().isoformat() if self.is_day else self.moment.isoformat("T", "minutes")


class Patterns(NamedTuple):
    """Which Gpus, MIG profiles and nodes an entry matches, as in a shell; case matters. None matches all."""

    gpu: str | None = None
    mig: str | None = None
    node: str | None = None


EVERYWHERE: Final = Patterns()


@dataclass(frozen=True, slots=True)
class PriceEntry:
    """One entry of a list: an amount, and where and when it applies. `number` is its position, from 1.

    `unit` is the key of the amount.
    """

    number: int
    amount: Decimal
    patterns: Patterns = EVERYWHERE
    begins: PriceDate | None = None
    ends: PriceDate | None = None
    per: str = PER_GPU
    unit: str = "price"

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """Where and when the entry applies: keys and values as in the configuration file."""
        given = (
            *zip(Patterns._fields, self.patterns, strict=True),
            ("from", self.begins),
            ("until", self.ends),
            ("per", None if self.per == PER_GPU else self.per),
        )
        return tuple((key, str(value)) for key, value in given if value is not None)

    @property
    def identity(self) -> str:
        """Where and when the entry applies, without its number and amount: `gpu=*H100*,from=2026-01-01`."""
        return ",".join(f"{key}={value}" for key, value in self.conditions) or "any"

    def __str__(self) -> str:
        """For messages: `entry 2 (gpu *H100*, price 2.40)`."""
        texts = (*self.conditions, (self.unit, f"{self.amount:f}"))
        return f"entry {self.number} ({_entry_text(texts)})"


# A number for all GPUs, nodes and dates, or a list of entries. None: not set.
PriceValue = Decimal | tuple[PriceEntry, ...] | None


def plain_price(value: PriceValue) -> object:
    """A price setting as JSON: a number, a list of entries with amounts as decimal texts, or null."""
    if isinstance(value, tuple):
        return [{**dict(entry.conditions), entry.unit: f"{entry.amount:f}"} for entry in value]
    if value is None:
        return None
    return int(value) if value == value.to_integral_value() else float(value)


class RateKind(NamedTuple):
    """What a price setting measures: bounds of its amounts, their expected form, the keys of its entries."""

    lowest: Decimal
    highest: Decimal
    expected: str
    # The key of the amount in an entry; the others are accepted too.
    amounts: tuple[str, ...]
    by_gpu: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The valid keys of an entry."""
        return (*(("gpu", "mig", "per") if self.by_gpu else ()), "node", "from", "until", *self.amounts)


GPU_HOUR: Final = RateKind(
    Decimal(0),
    _MOST,
    f"expected a price of one GPU-hour of at least 0 and below {_MOST}, such as 1.20",
    ("price",),
    by_gpu=True,
)
KWH: Final = RateKind(
    Decimal(0),
    _MOST,
    f"expected a price of one kilowatt-hour of at least 0 and below {_MOST}, such as 0.32",
    ("price", "value"),
)
PUE: Final = RateKind(
    Decimal(1),
    Decimal(100),
    "expected a power usage effectiveness of at least 1 and below 100, such as 1.4",
    ("value", "price"),
)
CO2: Final = RateKind(
    Decimal(0),
    Decimal(10**6),
    "expected grams of CO2 per kilowatt-hour, below 1000000, such as 380",
    ("value", "price"),
)


RATE_KINDS: Final = {"gpu_hour": GPU_HOUR, "kwh": KWH, "pue": PUE, "co2": CO2}


def price_parser(kind: RateKind) -> Callable[[object], PriceValue]:
    """Returns the parser of a price setting: a number, a list of entries, or a JSON text of one.

    It raises ValueError; InvalidElement names the entry.
    """

    def parse(value: object) -> PriceValue:
        if isinstance(value, str):
            value = value.strip()
            if value.startswith(("[", "{")):
                expected = f"{kind.expected}, or a list of entries"
                value = read_json_list(value, expected, twice="remove one of them")
        if value in ("", None):
            return None
        if isinstance(value, list | tuple):
            if not value:
                raise InvalidElement("the list is empty: add an entry, or remove the setting")
            return tuple(_parse_entry(kind, number, entry) for number, entry in enumerate(value, 1))
        if isinstance(value, Mapping):
            raise ValueError(f"{kind.expected}, or a list of entries")
        return _parse_amount(kind, value)

    return parse


def _parse_entry(kind: RateKind, number: int, value: object) -> PriceEntry:
    if not isinstance(value, Mapping):
        others = ", ".join(key for key in kind.keys if key not in kind.amounts)
        raise InvalidElement(
            f"entry {number} ({'empty' if value is None else _shown(value)}): expected a mapping with "
            f"{kind.amounts[0]}, and maybe {others}"
        )
    given = {str(key): content for key, content in value.items() if content is not None}
    try:
        return _build_entry(kind, number, given)
    except ValueError as error:
        raise InvalidElement(f"entry {number} ({_entry_text(given.items())}): {error}") from None


def _build_entry(kind: RateKind, number: int, given: Mapping[str, object]) -> PriceEntry:
    for key in given:
        if key not in kind.keys:
            raise ValueError(f"unknown key '{_shown(key)}'; {suggest_name(key, kind.keys)}")
    units = [key for key in kind.amounts if key in given]
    if not units:
        raise ValueError(f"has no {kind.amounts[0]}; add it ({kind.expected})")
    if len(units) > 1:
        raise ValueError(f"has both {' and '.join(units)}; remove one of them")
    unit = units[0]
    try:
        amount = _parse_amount(kind, given[unit])
    except ValueError as error:
        raise ValueError(f"{unit}: {error}, not {_shown(given[unit])}") from None
    begins, ends = (_parse_date(key, given[key]) if key in given else None for key in ("from", "until"))
    if begins is not None and ends is not None and _is_reversed(begins, ends):
        raise ValueError("from is not before until, so the entry never applies; correct one of them")
    patterns = Patterns(**{key: _parse_pattern(key, given[key]) for key in Patterns._fields if key in given})
    return PriceEntry(number, amount, patterns, begins, ends, _parse_per(given), unit)


def _parse_per(given: Mapping[str, object]) -> str:
    try:
        return choice(PER_GPU, PER_INSTANCE)(given.get("per", PER_GPU))
    except ValueError as error:
        raise ValueError(f"per: {error}, not {_shown(given['per'])}") from None


def _parse_pattern(key: str, value: object) -> str:
    if isinstance(value, list | tuple | Mapping):
        raise ValueError(f"{key}: expected one pattern; write one entry for each")
    pattern = str(value).strip()
    if not pattern or not pattern.isprintable():
        raise ValueError(f"{key}: expected a pattern such as *, not {_shown(value)}; or omit the key")
    return pattern


def _parse_amount(kind: RateKind, value: object) -> Decimal:
    written = str(value).strip()
    # YAML allows 1_000.
    match = _NUMBER.fullmatch(re.sub(r"(?<=\d)_(?=\d)", "", written))
    if isinstance(value, bool) or match is None or len(written) > _LONGEST_NUMBER:
        raise ValueError(kind.expected)
    sign, digits = match.groups()
    amount = Decimal(digits)
    if (sign == "-" and amount) or not kind.lowest <= amount < kind.highest:
        raise ValueError(kind.expected)
    return amount


def _parse_date(key: str, value: object) -> PriceDate:
    written = value.isoformat() if isinstance(value, date) else str(value).strip()
    match = _DATE.fullmatch(written)
    if match is None:
        raise ValueError(
            f"{key}: expected a date (2026-01-01) or a full hour (2026-01-01T08:00, in the time zone of "
            f"reports unless it ends in Z or an offset), not {_shown(value)}"
        )
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise ValueError(f"{key}: {written} is not in the calendar; correct the date") from None
    if moment.year not in _YEARS:
        raise ValueError(f"{key}: expected a year from {_YEARS[0]} to {_YEARS[-1]}, not {moment.year}")
    # The full hours of a zone can be at other minutes of a stated offset: `price_rules` checks these.
    if not match["offset"] and (moment.minute or moment.second):
        raise ValueError(f"{key}: {written} is inside an hour; prices change at full hours, such as 08:00")
    return PriceDate(moment, match["time"] is None)


def _is_reversed(begins: PriceDate, ends: PriceDate) -> bool:
    comparable = (begins.moment.tzinfo is None) == (ends.moment.tzinfo is None)
    return comparable and begins.moment >= ends.moment


def _entry_text(given: Iterable[tuple[str, object]]) -> str:
    pairs = [f"{key} {_text(value)}" for key, value in given]
    return shorten(", ".join(pairs) or "empty", 2 * _SHOWN, placeholder=" ...")


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def _shown(value: object) -> str:
    return shorten(_text(value) or "''", _SHOWN, placeholder=" ...")

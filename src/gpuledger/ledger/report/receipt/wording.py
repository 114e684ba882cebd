"""Numbers, times and names of receipts as text for people: small amounts never look like nothing."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from fractions import Fraction
from typing import Final

from gpuledger.host.time_zone import find_time_zone, machine_time_zone, time_zone_name
from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.money import exact_text, round_decimal
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH
from gpuledger.model.text import format_duration

# What is not known. Zero is written as 0.
UNKNOWN: Final = "-"
_GIB: Final = 1 << 30
_KWH_DIGITS: Final = 3


def receipt_zone(name: str) -> tzinfo:
    """The time zone of a receipt; UTC if this machine does not know the zone of the receipt's node."""
    try:
        return find_time_zone(name)
    except ValueError:
        here = machine_time_zone()
        # A machine's zone can have no IANA name, such as TZ=CET-1CEST.
        return here if time_zone_name(here) == name else UTC


def clock_text(unix: float | None, zone: tzinfo) -> str:
    """A time as `2026-11-30 08:00`."""
    if unix is None:
        return UNKNOWN
    return datetime.fromtimestamp(unix, UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M")


def span_text(begins: float, ends: float, zone: tzinfo) -> str:
    """`2026-11-30 08:00 to 12:30 +0100`, with a second date if there is one, and a second UTC offset."""
    first, last = (datetime.fromtimestamp(unix, UTC).astimezone(zone) for unix in (begins, ends))
    begin = "%Y-%m-%d %H:%M" if first.utcoffset() == last.utcoffset() else "%Y-%m-%d %H:%M %z"
    end = "%H:%M %z" if first.date() == last.date() else "%Y-%m-%d %H:%M %z"
    return f"{first.strftime(begin)} to {last.strftime(end)}"


def duration_text(seconds: float) -> str:
    """`4h30m`, `12m5s`, `0.4s`: to the minute from an hour on, to the second from a minute on."""
    if seconds >= 3600:
        seconds = round(seconds / 60) * 60
    elif seconds >= 10:
        seconds = round(seconds)
    else:
        seconds = round(seconds, 1)
    return format_duration(seconds)


def ratio_text(ratio: float | None) -> str:
    """`86 %`; what is above zero and rounds to it is `<1 %`."""
    if ratio is None:
        return UNKNOWN
    percent = round(100 * ratio)
    return "<1 %" if not percent and ratio > 0 else f"{percent} %"


def bytes_text(amount: float | None) -> str:
    """`23.4 GiB`, `120 MiB`, `1.2 TiB`."""
    if amount is None:
        return UNKNOWN
    if amount < _GIB:
        return f"{amount / (1 << 20):.0f} MiB"
    return f"{amount / _GIB:.1f} GiB" if amount < 1000 * _GIB else f"{amount / (_GIB << 10):.1f} TiB"


def hours_text(microseconds: float | None) -> str:
    """Hours with two decimals, more for less than a hundredth."""
    if microseconds is None:
        return UNKNOWN
    return _small(Fraction(microseconds) / MICROSECONDS_PER_HOUR, 2)


def energy_text(millijoules: int | None) -> str:
    """`3.214 kWh`; less than a watt-hour in joules."""
    if millijoules is None:
        return UNKNOWN
    if not millijoules:
        return "0 kWh"
    if millijoules < MILLIJOULES_PER_KWH // 1000:
        return f"{millijoules / 1000:.3g} J"
    return f"{round_decimal(Fraction(millijoules, MILLIJOULES_PER_KWH), _KWH_DIGITS)} kWh"


def money_text(cost: str | Fraction | None, currency: str) -> str:
    """`12.50 EUR`, with more digits for less than a cent."""
    if cost is None:
        return UNKNOWN
    return f"{_small(Fraction(cost), 2)} {currency}".rstrip()


def co2_text(grams: float | None) -> str:
    """`1.22 kg`, `35 g`."""
    if grams is None:
        return UNKNOWN
    return f"{grams / 1000:.2f} kg" if grams >= 1000 else f"{grams:.3g} g"


def join_words(words: list[str]) -> str:
    """`1`, `1 and 2`, `1, 2 and 3`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _small(amount: Fraction, digits: int) -> str:
    """The amount with these decimals, or with its first two digits if that would be zero."""
    if not amount or abs(amount) >= Fraction(1, 2 * 10**digits):
        return f"{round_decimal(amount, digits)}"
    while digits < 9 and abs(amount) * 10**digits < 10:
        digits += 1
    return exact_text(amount, digits) if abs(amount) * 10**digits >= Fraction(1, 2) else "<0.000000001"

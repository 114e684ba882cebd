"""Formats numbers for the terminal: short, and `-` for absent values."""

from __future__ import annotations

ABSENT = "-"

_DECIMAL = ("", "k", "M", "G", "T", "P")
_BINARY = ("B", "K", "M", "G", "T", "P")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def share(ratio: float | None) -> str:
    """A ratio in percent. A value above zero that rounds to zero is `<1%`."""
    if ratio is None:
        return ABSENT
    percent = ratio * 100
    return "<1%" if 0 < percent <= 0.5 else f"{percent:.0f}%"


def size(number: float | None) -> str:
    """Bytes with three digits, in powers of 1024: `512M`, `31.2G`."""
    return ABSENT if number is None else _scaled(number, 1024, _BINARY)


def sizes(used: float | None, total: float | None) -> str:
    """Used and total bytes; an equal unit appears once: `31.2/80.0G`, `512M/80.0G`."""
    if total is None:
        return size(used)
    used_text, total_text = size(used), size(total)
    # Zero needs no unit.
    same_unit = used is not None and (used == 0 or used_text[-1] == total_text[-1])
    return f"{used_text[:-1] if same_unit else used_text}/{total_text}"


def watts(number: float | None) -> str:
    """Watts without the unit, which is in the heading."""
    if number is None:
        return ABSENT
    if 0 < number < 0.05:
        return "<0.1"
    return f"{number:.1f}" if number < 100 else f"{number:.0f}"


def kilowatts(watts: float) -> str:
    """Watts as kilowatts, without the unit. A value above zero that rounds to zero is `<0.1`."""
    return "<0.1" if 0 < watts < 50 else f"{watts / 1000:.1f}"


def power(drawn: float | None, limit: float | None) -> str:
    """Power and its limit: `312/700W`."""
    text = ABSENT if drawn is None else f"{drawn:.0f}"
    if limit is not None:
        return f"{text}/{limit:.0f}W"
    return text if drawn is None else text + "W"


def joules(number: float | None) -> str:
    """Joules with three digits: `950 J`, `12.3 kJ`, `4.6 MJ`."""
    if number is None:
        return ABSENT
    if 0 < number < 0.5:
        return "<1 J"
    if number < 999.5:
        return f"{number:.0f} J"
    return _scaled(number, 1000, _DECIMAL, " ") + "J"


def degrees(number: float | None) -> str:
    """Degrees Celsius: `61C`."""
    return ABSENT if number is None else f"{number:.0f}C"


def count(number: int | None) -> str:
    """A count."""
    return ABSENT if number is None else str(number)


def lasting(seconds: float | None, *, exact: bool = True) -> str:
    """A duration: `45s`, `12m03s`, `3h07m`, `2d04h`; with `>` when only a lower bound is known."""
    if seconds is None:
        return ABSENT
    # Negative when the clock was set back.
    whole = int(max(0.0, seconds))
    if whole < _MINUTE:
        text = f"{whole}s"
    elif whole < _HOUR:
        text = f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    elif whole < _DAY:
        text = f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    else:
        text = f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"
    return text if exact else f">{text}"


def bar_parts(ratio: float | None, width: int, *, full: str, rest: str) -> tuple[str, str]:
    """The filled and the unfilled part of a bar; both empty for an absent ratio. Only 0 fills nothing."""
    if ratio is None:
        return "", ""
    filled = round(min(1.0, max(0.0, ratio)) * width)
    if ratio > 0:
        filled = max(1, filled)
    return full * filled, rest * (width - filled)


def _scaled(number: float, base: int, units: tuple[str, ...], gap: str = "") -> str:
    value, place = float(number), 0
    # Switch to the next unit where rounding would show four digits.
    while value >= 999.5 and place < len(units) - 1:
        value /= base
        place += 1
    if place == 0 or value >= 99.95:
        return f"{value:.0f}{gap}{units[place]}"
    return f"{value:.1f}{gap}{units[place]}"

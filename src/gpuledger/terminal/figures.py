"""Numbers as a terminal shows them: short, aligned, and `-` for what is absent."""

from __future__ import annotations

ABSENT = "-"

_DECIMAL = ("", "k", "M", "G", "T", "P")
_BINARY = ("B", "K", "M", "G", "T", "P")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def share(ratio: float | None) -> str:
    """A ratio in percent. What is above zero and rounds to it is `<1%`: zero is something else."""
    if ratio is None:
        return ABSENT
    percent = ratio * 100
    return "<1%" if 0 < percent <= 0.5 else f"{percent:.0f}%"


def size(number: float | None) -> str:
    """Bytes in powers of 1024, three digits: `512M`, `31.2G`."""
    return ABSENT if number is None else _scaled(number, 1024, _BINARY)


def sizes(used: float | None, total: float | None) -> str:
    """How much of how much, the unit once where it is the same: `31.2/80.0G`, `512M/80.0G`."""
    if total is None:
        return size(used)
    told, most = size(used), size(total)
    # Nothing is nothing in any unit.
    same = used is not None and (used == 0 or told[-1] == most[-1])
    return f"{told[:-1] if same else told}/{most}"


def watts(number: float | None) -> str:
    """Without the unit, which stands in the heading."""
    if number is None:
        return ABSENT
    if 0 < number < 0.05:
        return "<0.1"
    return f"{number:.1f}" if number < 100 else f"{number:.0f}"


def kilowatts(watts: float) -> str:
    """Watts as kilowatts, without the unit. What is above zero and rounds to it is `<0.1`."""
    return "<0.1" if 0 < watts < 50 else f"{watts / 1000:.1f}"


def power(drawn: float | None, limit: float | None) -> str:
    """`312/700W`."""
    told = ABSENT if drawn is None else f"{drawn:.0f}"
    if limit is not None:
        return f"{told}/{limit:.0f}W"
    return told if drawn is None else told + "W"


def joules(number: float | None) -> str:
    """`950 J`, `12.3 kJ`, `4.56 MJ`."""
    if number is None:
        return ABSENT
    if 0 < number < 0.5:
        return "<1 J"
    if number < 999.5:
        return f"{number:.0f} J"
    return _scaled(number, 1000, _DECIMAL, " ") + "J"


def degrees(number: float | None) -> str:
    """Celsius."""
    return ABSENT if number is None else f"{number:.0f}C"


def count(number: int | None) -> str:
    """A plain number."""
    return ABSENT if number is None else str(number)


def lasting(seconds: float | None, *, exact: bool = True) -> str:
    """`45s`, `12m03s`, `3h07m`, `2d04h`; with `>` where only a lower bound is known."""
    if seconds is None:
        return ABSENT
    # Clocks are set back; nothing has begun in the future.
    whole = int(max(0.0, seconds))
    if whole < _MINUTE:
        told = f"{whole}s"
    elif whole < _HOUR:
        told = f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    elif whole < _DAY:
        told = f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    else:
        told = f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"
    return told if exact else f">{told}"


def bar(ratio: float | None, width: int, *, full: str, rest: str) -> tuple[str, str]:
    """The filled and the unfilled part; two empty texts where the ratio is absent. Only 0 is empty."""
    if ratio is None:
        return "", ""
    filled = round(min(1.0, max(0.0, ratio)) * width)
    if ratio > 0:
        filled = max(1, filled)
    return full * filled, rest * (width - filled)


def _scaled(number: float, base: int, units: tuple[str, ...], gap: str = "") -> str:
    value, place = float(number), 0
    # The next unit from where rounding would show four digits.
    while value >= 999.5 and place < len(units) - 1:
        value /= base
        place += 1
    if place == 0 or value >= 99.95:
        return f"{value:.0f}{gap}{units[place]}"
    return f"{value:.1f}{gap}{units[place]}"

"""What a user sets about reports: what energy and time cost (exact: decimals stay decimals until they are
written), and which Prometheus is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import ClassVar

from gpuledger.model.settings import Reload, duration, setting, text

# Neither a kilowatt-hour nor a GPU-hour costs so much in any currency.
_MOST = Decimal(10**9)

MILLIJOULES_PER_KWH = 3_600_000_000
SECONDS_PER_HOUR = 3600


def _decimal(lowest: str, wanted: str) -> Callable[[object], Decimal | None]:
    def parse(value: object) -> Decimal | None:
        if value in ("", None):
            return None
        try:
            found = Decimal(str(value).strip())
        except InvalidOperation:
            raise ValueError(wanted) from None
        if isinstance(value, bool) or not found.is_finite() or not Decimal(lowest) <= found < _MOST:
            raise ValueError(wanted)
        return found

    return parse


def _currency(value: object) -> str:
    code = text(value).strip().upper()
    if code and (len(code) != 3 or not code.isalpha() or not code.isascii()):
        raise ValueError("a currency code of three letters, such as EUR, is wanted")
    return code


_KWH = _decimal("0", "a price of one kilowatt-hour, such as 0.32, is wanted")
_GPU_HOUR = _decimal("0", "a price of one GPU-hour, such as 1.20, is wanted")
_PUE = _decimal("1", "a power usage effectiveness of at least 1, such as 1.4, is wanted")
_GRAMS = _decimal("0", "grams of CO2 for a kilowatt-hour, such as 380, are wanted")


@dataclass(frozen=True, slots=True)
class Prices:
    """What a user sets about money and carbon; None is not set, and what needs it has no column."""

    reload: ClassVar[Reload] = Reload()

    kwh: Decimal | None = setting(
        "price.kwh",
        _KWH,
        None,
        "price of a kilowatt-hour",
        metavar="PRICE",
    )
    gpu_hour: Decimal | None = setting(
        "price.gpu_hour",
        _GPU_HOUR,
        None,
        "price of an hour of a whole GPU, used or not",
        metavar="PRICE",
    )
    currency: str = setting(
        "price.currency", _currency, "", "currency of the prices, such as EUR", metavar="CODE"
    )
    pue: Decimal | None = setting(
        "pue",
        _PUE,
        None,
        "power usage effectiveness: energy of the building for each unit of energy of its machines; cost and "
        "CO2 are of the building's (default: 1)",
        metavar="RATIO",
    )
    co2: Decimal | None = setting(
        "co2.g_per_kwh",
        _GRAMS,
        None,
        "grams of CO2 for a kilowatt-hour",
        metavar="GRAMS",
    )

    @property
    def any_price(self) -> bool:
        """Whether there is a cost at all."""
        return self.kwh is not None or self.gpu_hour is not None

    def cost(self, millijoules: int, gpu_seconds: Fraction) -> Fraction | None:
        """Of both, in the currency; None where neither has a price."""
        if not self.any_price:
            return None
        return self.energy_cost(millijoules) + self.time_cost(gpu_seconds)

    def energy_cost(self, millijoules: int) -> Fraction:
        """In the currency; 0 without a price."""
        return self._kwh(millijoules) * Fraction(self.kwh or 0)

    def time_cost(self, gpu_seconds: Fraction) -> Fraction:
        """In the currency; 0 without a price."""
        return gpu_seconds / SECONDS_PER_HOUR * Fraction(self.gpu_hour or 0)

    def grams(self, millijoules: int) -> Fraction | None:
        """Of CO2; None where it is not set."""
        return None if self.co2 is None else self._kwh(millijoules) * Fraction(self.co2)

    def _kwh(self, millijoules: int) -> Fraction:
        """The building's kilowatt-hours."""
        return Fraction(millijoules, MILLIJOULES_PER_KWH) * Fraction(self.pue or 1)


def _headers(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else tuple(str(value).splitlines())


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Which Prometheus, and how it is asked."""

    url: str = setting(
        "prometheus.url",
        text,
        "",
        "report on every node that this Prometheus scrapes, instead of on this machine's books; "
        "user:password@ in it is basic auth",
        flags=("--prometheus",),
        metavar="URL",
    )
    headers: tuple[str, ...] = setting(
        "prometheus.header",
        _headers,
        (),
        "send this header with each query, as 'Authorization: Bearer TOKEN' or 'X-Scope-OrgID: TENANT'",
        metavar="HEADER",
        repeatable=True,
    )
    match: str = setting(
        "prometheus.match",
        text,
        "",
        'count only series with these labels, as \'cluster="a",node=~"gpu-.*"\'',
        metavar="LABELS",
    )
    timeout: float = setting(
        "prometheus.timeout",
        duration("s", lowest=1.0, highest=3600.0),
        120.0,
        "wait so long for the answer to one query",
        metavar="DURATION",
    )

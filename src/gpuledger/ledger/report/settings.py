"""Settings of reports: prices of energy and time (exact decimals), and the Prometheus of fleet reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import ClassVar

from gpuledger.model.settings import ReloadPolicy, duration, setting, text

# An implausible price of a kilowatt-hour or GPU-hour in any currency.
_MOST = Decimal(10**9)

MILLIJOULES_PER_KWH = 3_600_000_000
SECONDS_PER_HOUR = 3600


def _decimal(lowest: str, expected: str) -> Callable[[object], Decimal | None]:
    def parse(value: object) -> Decimal | None:
        if value in ("", None):
            return None
        try:
            found = Decimal(str(value).strip())
        except InvalidOperation:
            raise ValueError(expected) from None
        if isinstance(value, bool) or not found.is_finite() or not Decimal(lowest) <= found < _MOST:
            raise ValueError(expected)
        return found

    return parse


def _currency(value: object) -> str:
    code = text(value).strip().upper()
    if code and (len(code) != 3 or not code.isalpha() or not code.isascii()):
        raise ValueError("expected a currency code of three letters, such as EUR")
    return code


@dataclass(frozen=True, slots=True)
class Prices:
    """Settings for money and carbon; None is not set, and columns that need it are omitted."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    kwh: Decimal | None = setting(
        "price.kwh",
        _decimal("0", "expected a price of one kilowatt-hour, such as 0.32"),
        None,
        "price of a kilowatt-hour",
        metavar="PRICE",
    )
    gpu_hour: Decimal | None = setting(
        "price.gpu_hour",
        _decimal("0", "expected a price of one GPU-hour, such as 1.20"),
        None,
        "price of one hour of a whole GPU, used or not",
        metavar="PRICE",
    )
    currency: str = setting(
        "price.currency", _currency, "", "currency of the prices, such as EUR", metavar="CODE"
    )
    pue: Decimal | None = setting(
        "pue",
        _decimal("1", "expected a power usage effectiveness of at least 1, such as 1.4"),
        None,
        "power usage effectiveness: energy of the building per unit of energy of its machines; cost and CO2 "
        "refer to the energy of the building (default: 1)",
        metavar="RATIO",
    )
    co2: Decimal | None = setting(
        "co2.g_per_kwh",
        _decimal("0", "expected grams of CO2 per kilowatt-hour, such as 380"),
        None,
        "grams of CO2 per kilowatt-hour",
        metavar="GRAMS",
    )

    @property
    def any_price(self) -> bool:
        """Whether any price is set."""
        return self.kwh is not None or self.gpu_hour is not None

    def cost(self, millijoules: int | None, gpu_seconds: Fraction) -> Fraction | None:
        """Cost of energy and time in the currency; None if no price is set.

        Unknown energy (None) has no cost: the cost is that of the time, or None if time has no price.
        """
        if not self.any_price or (millijoules is None and self.gpu_hour is None):
            return None
        return self.energy_cost(millijoules or 0) + self.time_cost(gpu_seconds)

    def energy_cost(self, millijoules: int) -> Fraction:
        """Cost of energy in the currency; 0 without a price."""
        return self._kwh(millijoules) * Fraction(self.kwh or 0)

    def time_cost(self, gpu_seconds: Fraction) -> Fraction:
        """Cost of time in the currency; 0 without a price."""
        return gpu_seconds / SECONDS_PER_HOUR * Fraction(self.gpu_hour or 0)

    def grams(self, millijoules: int | None) -> Fraction | None:
        """Grams of CO2; None if not set or if the energy is unknown."""
        if self.co2 is None or millijoules is None:
            return None
        return self._kwh(millijoules) * Fraction(self.co2)

    def _kwh(self, millijoules: int) -> Fraction:
        """Kilowatt-hours of the building."""
        return Fraction(millijoules, MILLIJOULES_PER_KWH) * Fraction(self.pue or 1)


def _headers(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else tuple(str(value).splitlines())


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The Prometheus for fleet reports, and its queries."""

    url: str = setting(
        "prometheus.url",
        text,
        "",
        "report on all nodes that this Prometheus scrapes instead of this machine's ledger; user:password@ "
        "in the URL sets basic auth",
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
        "prometheus.timeout", duration("s", lowest=1.0, highest=3600.0), 120.0, "timeout of one query"
    )

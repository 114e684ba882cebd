"""Settings of reports: prices of energy and time (exact decimals), and the Prometheus of fleet reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from gpuledger.model.session import ALLOCATION, BASES
from gpuledger.model.settings import ReloadPolicy, choice, declared_settings, duration, setting, text

if TYPE_CHECKING:
    from gpuledger.ledger.report.price_entries import PriceValue
    from gpuledger.ledger.report.teams import Team

MILLIJOULES_PER_KWH = 3_600_000_000
SECONDS_PER_HOUR = 3600
ROW, SPREAD = "row", "spread"
# Formats of reports by FOCUS, the FinOps Open Cost and Usage Specification, and its version.
FOCUS_FORMATS = {"focus": "1.3", "focus-1.2": "1.2"}


def _currency(value: object) -> str:
    code = text(value).strip().upper()
    if code and (len(code) != 3 or not code.isalpha() or not code.isascii()):
        raise ValueError("expected a currency code of three letters, such as EUR")
    return code


def _parse_price(kind: str) -> Callable[[object], PriceValue]:
    """The parser of a kind of price. Its module is imported lazily: most nodes have no prices."""

    def parse(value: object) -> PriceValue:
        from gpuledger.ledger.report.price_entries import RATE_KINDS, price_parser

        return price_parser(RATE_KINDS[kind])(value)

    return parse


def _parse_teams(value: object) -> tuple[Team, ...]:
    """The parser of teams. Its module is imported lazily: most nodes have no teams."""
    from gpuledger.ledger.report.teams import parse_teams

    return parse_teams(value)


@dataclass(frozen=True)
class Prices:
    """Settings for money and carbon; None is not set, and columns that need it are omitted.

    `PriceList` applies them.
    """

    # Exported counters of GPU time have one basis.
    reload: ClassVar[ReloadPolicy] = ReloadPolicy(restart=("price.basis",))

    kwh: PriceValue = setting(
        "price.kwh",
        _parse_price("kwh"),
        None,
        "price of a kWh, or a list by node and date",
        metavar="PRICE",
        as_written=True,
    )
    gpu_hour: PriceValue = setting(
        "price.gpu_hour",
        _parse_price("gpu_hour"),
        None,
        "price of one hour of a whole GPU, or a list by GPU, MIG profile, node and date",
        metavar="PRICE",
        as_written=True,
    )
    currency: str = setting(
        "price.currency", _currency, "", "currency of the prices, such as EUR", metavar="CODE"
    )
    basis: str = setting(
        "price.basis",
        choice(*BASES),
        ALLOCATION,
        "owners pay for GPU time by allocation, or by residence (processes on the GPU)",
        flags=("--price.basis", "--basis"),
        metavar="BASIS",
    )
    idle: str = setting(
        "price.idle",
        choice(ROW, SPREAD),
        ROW,
        "idle GPUs: a separate row, or spread over the owners of each hour",
        metavar="HOW",
    )
    pue: PriceValue = setting(
        "pue",
        _parse_price("pue"),
        None,
        "energy of the building per energy of its machines; multiplies cost and CO2; or a list by node and "
        "date (default: 1)",
        metavar="RATIO",
        as_written=True,
    )
    co2: PriceValue = setting(
        "co2.g_per_kwh",
        _parse_price("co2"),
        None,
        "grams of CO2 per kilowatt-hour, or a list by node and date",
        metavar="GRAMS",
        as_written=True,
    )

    note: str = setting(
        "price.note",
        text,
        "",
        "a sentence about the prices, shown with each report",
        metavar="TEXT",
    )

    @property
    def any_price(self) -> bool:
        """Whether any price is set."""
        return self.kwh is not None or self.gpu_hour is not None

    def changed_by(self, values: Mapping[str, Any]) -> Prices:
        """These settings, but for those that are set in `values`."""
        given = {name: values[item.key] for name, item, _ in declared_settings(Prices) if item.key in values}
        return replace(self, **given)


def _headers(value: object) -> tuple[str, ...]:
    return tuple(map(text, value)) if isinstance(value, list | tuple) else tuple(text(value).splitlines())


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class TeamSettings:
    """The teams to which owners belong in reports."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    teams: tuple[Team, ...] = setting(
        "teams",
        _parse_teams,
        (),
        "teams for --by team: a list of entries with team and patterns by key, in the configuration file; "
        "the first entry that matches an owner counts",
        metavar="JSON",
        as_written=True,
    )

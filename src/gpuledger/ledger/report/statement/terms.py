"""The terms of a statement: grouping, prices, teams and time zone, by which amounts are computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from decimal import Decimal
from typing import Any

from gpuledger.host.time_zone import named_time_zone, time_zone_name
from gpuledger.ledger.report.price_entries import plain_price
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.teams import Team, parse_teams
from gpuledger.model.settings import build_settings, declared_settings


@dataclass(frozen=True, slots=True)
class StatementTerms:
    """What the amounts of a report follow from, beside the ledger.

    `by` and `every` are those of the command. `zone` is the time zone of dates, `zone_name` its IANA name.
    """

    by: str
    every: str
    prices: Prices
    teams: tuple[Team, ...]
    zone: tzinfo

    @property
    def zone_name(self) -> str:
        """The IANA name of the zone, or what is known of it."""
        return time_zone_name(self.zone)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the price list."""
        return PriceList(self.prices, self.zone).fingerprint


def terms_as_json(terms: StatementTerms) -> dict[str, Any]:
    """The sections of a statement that state its terms. Prices are decimal texts, as they were written."""
    return {
        "by": terms.by,
        "every": terms.every,
        "zone": terms.zone_name,
        "price_list": terms.fingerprint,
        # No amount follows from the note of the prices; it is one of the report's notes.
        "settings": {
            item.key: _written(getattr(terms.prices, name))
            for name, item, _ in declared_settings(Prices)
            if name != "note"
        },
        "teams": [
            {"team": team.name, **{key: list(patterns) for key, patterns in team.patterns}}
            for team in terms.teams
        ],
    }


def _written(value: object) -> object:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return plain_price(value) if isinstance(value, tuple) else value


def parse_terms(content: Mapping[str, Any]) -> StatementTerms:
    """The inverse of `terms_as_json`. Raises ValueError, KeyError and TypeError."""
    known = {item.key: item for _, item, _ in declared_settings(Prices)}
    given = dict(content["settings"])
    if unknown := given.keys() - known.keys():
        raise ValueError(f"unknown setting {min(unknown)}")
    values = {key: known[key].parse(value) for key, value in given.items() if value is not None}
    return StatementTerms(
        str(content["by"]),
        str(content["every"]),
        build_settings(Prices, values),
        parse_teams(content["teams"]),
        _parse_zone(str(content["zone"])),
    )


def _parse_zone(name: str) -> tzinfo:
    if name == "UTC":
        # It needs no time zone database.
        return UTC
    try:
        return named_time_zone(name)
    except ValueError as error:
        raise ValueError(f"zone {name}: {error}") from None

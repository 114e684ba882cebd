"""Makes the report of a fleet from its Prometheus: queries each part of the range, and checks the answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import NamedTuple

from gpuledger.app.fleet_queries import DAY, DEFAULT_INTERVAL, DEVICES, SEARCHED, FleetQueries, day_ranges
from gpuledger.app.gateway_queries import GatewayTokens
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.token_queries import ServedTokens
from gpuledger.host.time_zone import machine_time_zone
from gpuledger.ledger.report.fleet.fleet import Fleet, scrape_delay
from gpuledger.ledger.report.fleet.fleet_report import FleetScope, fleet_grouping, fleet_report
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.ranges import ReportPart, RequestedRange, split_range
from gpuledger.ledger.report.report_keys import SERVED_MODEL
from gpuledger.ledger.report.settings import FleetSettings, Prices
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.report.tokens.gateway_shares import report_by_gateway
from gpuledger.ledger.report.tokens.gateway_tokens import gateway_keys
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.report.tokens.token_report import report_with_tokens
from gpuledger.ledger.report.usage_report import Period, UsageReport
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.text import list_some


def report_from_prometheus(
    settings: FleetSettings,
    by: str,
    prices: Prices,
    requested: RequestedRange,
    now: float,
    progress: Callable[[str, float], None],
    warn: Callable[[str], None],
    *,
    every: str = "",
    teams: Sequence[Team] = (),
    tokens: TokenSettings | None = None,
) -> UsageReport:
    """The report of a range, from Prometheus. `every` splits it into hours, days, weeks or months.

    With `tokens`, it has those of inference servers. Raises GpuledgerError with one line.
    """
    client = PrometheusClient(settings.url, settings.headers, settings.timeout)
    conditions = [key for team in teams for key, _ in team.patterns]
    served = ServedTokens(client, tokens, settings.match) if tokens is not None else None
    split = gateway_keys(by) if tokens is not None else None
    gateways = GatewayTokens(client, tokens, settings.match, split) if tokens and split else None
    # The tokens of a gateway split the rows of models.
    by = SERVED_MODEL if split else by
    keys = [*by.split(","), *conditions, *(served.keys if served else ())]
    queries = FleetQueries(client, settings.match, keys)
    zone = machine_time_zone() if requested.zone is None else requested.zone
    begins, ends = requested.since, now if requested.until is None else min(requested.until, now)
    if begins >= ends:
        raise UsageError(f"{requested.since_text} must be in the past")
    inventory = Inventory(DEFAULT_INTERVAL)
    # Reject an unknown grouping, and an invalid price list, before the first query.
    models = served.models_of(inventory) if served else None
    grouping = fleet_grouping(by, inventory, teams, models.of_party if models else None)
    price_list = PriceList(prices, zone)
    first, last = int(begins // QUARTER), int(-(-ends // QUARTER))
    parts, notes = [ReportPart(first, last, "")], tuple[str, ...]()
    if every:
        parts, notes = split_range(first, last, every, lambda quarter: (quarter, quarter), zone)
    fleet_range = _FleetRange(begins, ends, now, price_list.boundaries(first, last))
    if len(parts) > 1:
        parts, notes = _parts_with_data(queries, parts, fleet_range, notes)
    fleets, counted = [], [one for one in (served, gateways) if one is not None]
    for number, part in enumerate(parts):
        within, shown = fleet_range.within(part), _partly(progress, number, len(parts))
        fleets.append(_query_fleet(queries, inventory, within, client.url, shown, counted))
    bases = set().union(*(fleet.bases for fleet in fleets))
    _require_basis(queries, bases, prices.basis, begins, ends, zone)
    if queries.is_simulated(ends):
        warn(f"Prometheus at {client.url}: data of a simulator or a recording, not of hardware")
    period = Period(int(begins), int(requested.until or ends), int(fleets[0].first or begins), ends)
    notes = (*notes, *_hold_notes(queries.short_holds(inventory.intervals, ends)))
    scope = FleetScope(grouping, prices, zone, period, parts, f"Prometheus at {client.url}")
    if models is not None and served is not None:
        models.learn(name for rises in served.rises for name in rises.totals())
    found = fleet_report(fleets, scope)
    if models is not None and served is not None:
        found = report_with_tokens(found, fleets, served.rises, models)
        if gateways is not None:
            names = [line.key[0] for line in (*found.lines, *found.gpu_accounts)]
            found = report_by_gateway(found, gateways.rises, gateways.scope(models, names))
    return replace(found, notes=(*notes, *found.notes))


def _hold_notes(short: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """The note about nodes with new counters that are not 0 for a whole scrape interval."""
    if not short:
        return
    hold, interval = max(short.values(), key=lambda one: one[1] - one[0])
    yield (
        f"{list_some(sorted(short))}: new counters are 0 for {hold:.0f} s, but the scrape interval is "
        f"{interval:.0f} s, so what short jobs used is unseen. Set energy.zero_hold to the interval and its "
        "timeout."
    )


def _partly(progress: Callable[[str, float], None], number: int, count: int) -> Callable[[str, float], None]:
    return lambda what, done: progress(what, (number + done) / count)


class _FleetRange(NamedTuple):
    """A range in unix seconds, and the quarters in which prices change."""

    begins: float
    ends: float
    now: float
    price_cuts: Sequence[int]

    def within(self, part: ReportPart) -> _FleetRange:
        """The range of a part."""
        begins, ends = max(self.begins, part.begins * QUARTER), min(self.ends, part.ends * QUARTER)
        return self._replace(begins=begins, ends=ends)

    def queried_parts(self) -> list[tuple[float, float]]:
        """Ranges of at most a day, in none of which a price changes."""
        return list(day_ranges(self.begins, self.ends, [float(cut * QUARTER) for cut in self.price_cuts]))


def _parts_with_data(
    queries: FleetQueries, parts: list[ReportPart], fleet_range: _FleetRange, notes: tuple[str, ...]
) -> tuple[list[ReportPart], tuple[str, ...]]:
    """The parts in which anything was scraped; all of them if nothing was."""
    ranges = {part: fleet_range.within(part) for part in parts}
    found = [part for part, within in ranges.items() if queries.has_data(within.begins, within.ends)]
    if not found or len(found) == len(parts):
        return parts, notes
    missing = f"{len(parts) - len(found)} of {len(parts)} parts of the range have no data in Prometheus."
    return found, (*notes, missing)


def _query_fleet(
    queries: FleetQueries,
    inventory: Inventory,
    within: _FleetRange,
    url: str,
    progress: Callable[[str, float], None],
    counted: Sequence[ServedTokens],
) -> Fleet:
    begins, ends, now, _ = within
    parts = within.queried_parts()
    intervals = queries.scrape_intervals([end for _, end in parts])
    if not intervals and not queries.has_data(begins, ends):
        raise GpuledgerError(
            f"Prometheus at {url} has no {DEVICES} in this period: {_known_times(queries, now)}"
        )
    later = scrape_delay(queries.interval)
    inventory.interval = queries.interval
    inventory.intervals = {**inventory.intervals, **intervals}
    fleet = Fleet(inventory)
    ahead = queries.query_levels(begins, min(begins + later, ends))
    fleet.begin(queries.query_levels(begins - DAY, begins, seconds=True), ahead)
    for served in counted:
        served.begin(ahead, [end for _, end in parts], inventory)
    for number, part in enumerate(parts):
        progress("Prometheus", number / len(parts))
        scraped = queries.query_range(*part)
        fleet.add(scraped)
        for served in counted:
            served.add(scraped, inventory)
    until = min(ends + later, now)
    after = queries.query_levels(ends, until) if until - ends >= 1 else None
    for served in counted:
        served.end(ends, now, after, inventory)
    energy, time = (
        ending(begins, ends, until) for ending in (queries.query_energy_ending, queries.query_time_ending)
    )
    fleet.end(after, energy, time, complete=now >= ends + later)
    if not (fleet.observed or fleet.inventory.gpus or any(fleet.seconds.values())):
        raise GpuledgerError(
            f"Prometheus at {url} scrapes gpuledger, but no GPU was read in this period: run `gpuledger "
            "doctor` on the nodes"
        )
    return fleet


def _require_basis(
    queries: FleetQueries, bases: Collection[str], basis: str, begins: float, ends: float, zone: tzinfo
) -> None:
    """Raise GpuledgerError unless all GPU time was split by this basis."""
    if bases == {basis} or not bases:
        return
    if len(bases) == 1:
        (exported,) = bases
        raise UsageError(
            f"Prometheus has GPU time by {exported} only, and price.basis is {basis}: report with --basis "
            f"{exported}, or by {basis} from the nodes' own ledgers, without --prometheus"
        )
    times = queries.bases_by_time(begins, ends)
    known = "; ".join(
        f"{name} from {format_local_time(first, zone)} to {format_local_time(last, zone)}"
        for name, (first, last) in times.items()
    )
    raise UsageError(
        "price.basis differs within this range, between nodes or times "
        f"({known or ', '.join(sorted(bases))}): choose a range or --prometheus.match with one basis, or "
        "report from the nodes' own ledgers"
    )


def _known_times(queries: FleetQueries, now: float) -> str:
    known = queries.data_times(now)
    if known is None:
        return (
            "let it scrape gpuledger's /metrics or /metrics/native, and check --since and --prometheus.match"
        )
    first, last = map(format_local_time, known)
    return f"in the last {SEARCHED / DAY:.0f} days it has it from {first} to {last}, to the hour"

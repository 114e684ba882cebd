"""The sentences below a fleet's report: the origin of the numbers, their error, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.fleet.fleet import Fleet, scrape_delay
from gpuledger.ledger.report.fleet.scraped import RESIDENT
from gpuledger.ledger.report.formats import format_time
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR, SPREAD, Prices
from gpuledger.ledger.report.usage_report import Period, ReportLine


def fleet_notes(
    fleets: Sequence[Fleet], total: ReportLine, period: Period, origin: str, prices: Prices
) -> Iterator[str]:
    """The notes of a report of these parts of the period, in order. `origin` names the Prometheus."""
    yield from _accuracy(fleets, total, origin)
    yield from _time_columns(fleets, prices)
    inventory = fleets[0].inventory
    unshared = set[tuple[str, ...]]().union(*(fleet.unshared for fleet in fleets))
    if unshared:
        yield (
            f"{len(unshared)} MIG instances are not in the columns beside GPU-hours: their part of the GPU "
            "is unknown (gpuledger_device_sm_ratio is missing)."
        )
    recut = set[str]().union(*(fleet.recut for fleet in fleets))
    if recut:
        gpus = f"{len(recut)} GPU{'' if len(recut) == 1 else 's'}"
        yield (
            f"The MIG layout of {gpus} changed within a day: time without an owner has the price of a GPU "
            "without MIG there."
        )
    if inventory.doubled:
        count = len(inventory.doubled)
        yield f"{count} GPU{' is' if count == 1 else 's are'} scraped by several targets: counted once."
    ambiguous = set[str]().union(*(fleet.energy.ambiguous | fleet.time.ambiguous for fleet in fleets))
    if ambiguous:
        count = len(ambiguous)
        yield (
            f"Of {count} GPU{'' if count == 1 else 's'} it is unclear whether two targets exported the same "
            "amounts or the node's ledger was reset between them: ± covers both."
        )
    first, last = fleets[0].first, fleets[-1].last
    if first is not None and first > period.since:
        yield f"Prometheus has no data before {format_time(first)}: earlier amounts are not counted."
    if last is not None and last < min(period.until, period.last):
        yield f"Prometheus has no data after {format_time(last)}."


def _accuracy(fleets: Sequence[Fleet], total: ReportLine, origin: str) -> Iterator[str]:
    interval = fleets[0].inventory.interval
    energy = _share(total.bound or 0, total.millijoules)
    text = (
        f"From {origin}, scraped every {interval:g} s. ± is the maximum difference from the nodes' own "
        f"ledgers: what was exported within {scrape_delay(interval):g} s of either end or not exported yet, "
        f"and values of counters that were reset. In total {(total.bound or 0) / MILLIJOULES_PER_KWH:,.5f} "
        f"kWh{energy}"
    )
    if total.time_bound is not None and any(fleet.time.is_scraped for fleet in fleets):
        hours = total.time_bound / MICROSECONDS_PER_HOUR
        text += f" and {hours:,.5f} GPU-hours{_share(total.time_bound, total.gpu_microseconds or 0)}"
    yield text + "."


def _share(bound: int, amount: int) -> str:
    return f", {100 * bound / amount:.2g} %" if amount else ""


def _time_columns(fleets: Sequence[Fleet], prices: Prices) -> Iterator[str]:
    observed = sum(sum(fleet.observed.values()) for fleet in fleets) / SECONDS_PER_HOUR
    scraped = f"GPU-hours: {observed:,.2f} scraped"
    if not any(fleet.time.is_scraped for fleet in fleets):
        yield (
            f"{scraped}. By owner they are unknown: the nodes' gpuledger is too old and has no "
            "gpuledger_gpu_seconds_total."
        )
        return
    columns = (
        " Columns beside them are sums over owners, without ±: owners that shared a GPU count separately, "
        "while a ledger counts each second once per row."
    )
    shows = any(RESIDENT in fleet.seconds for fleet in fleets)
    yield f"{scraped}, split by {prices.basis}; rows add up.{columns if shows else ''}"
    if prices.idle == SPREAD:
        yield (
            "Idle cost is spread within each day, or part of a day with the same prices; a ledger spreads it "
            "hour by hour."
        )

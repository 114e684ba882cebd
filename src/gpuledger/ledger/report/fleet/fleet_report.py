"""Reports from a fleet's Prometheus: the rows that the nodes' ledgers would have, with error bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from gpuledger.ledger.report.fleet.bounds import RowName, row_bounds, total_bound
from gpuledger.ledger.report.fleet.entries import (
    energy_entries,
    gpu_times,
    party_of_series,
    unseen_energy,
)
from gpuledger.ledger.report.fleet.fleet import Fleet
from gpuledger.ledger.report.fleet.fleet_notes import fleet_notes
from gpuledger.ledger.report.fleet.fleet_prices import FleetPrices
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.scraped import ALLOCATED, HELD, RESIDENT, SECONDS, Name
from gpuledger.ledger.report.grouping import Grouping, NameOfParty, find_grouping
from gpuledger.ledger.report.prices import PriceList, PriceUse
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.report_builder import ReportScope, build_usage_report
from gpuledger.ledger.report.report_keys import NODE
from gpuledger.ledger.report.segments import PriceSegment
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.tally import Amount, Tally
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.report.usage_report import (
    UNSEEN,
    GpuLine,
    Period,
    ReportLine,
    UsageReport,
    sum_lines,
)
from gpuledger.ledger.time.account import OWNER
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.errors import UsageError
from gpuledger.model.session import PROCESS

_MILLI = 1000
_RESTARTS = {"command": ", because each restart would begin new series", "unit": ""}


@dataclass(frozen=True, slots=True)
class FleetScope:
    """What a fleet's report is about: keys, prices, the time zone of dates, the range and its parts.

    `origin` names the Prometheus in the notes.
    """

    grouping: Grouping
    prices: Prices
    zone: tzinfo
    period: Period
    parts: Sequence[ReportPart]
    origin: str


def fleet_grouping(
    by: str,
    inventory: Inventory,
    teams: Sequence[Team] = (),
    served_model_of: NameOfParty | None = None,
) -> Grouping:
    """The grouping by these keys: those of a ledger except `command` and `unit`, `node`, and `served_model`.

    Raises UsageError.
    """
    for kind in [word.strip() for word in by.split(",")]:
        if kind in _RESTARTS:
            raise UsageError(
                f"--by {kind}: owner series have no {kind} label{_RESTARTS[kind]}; report from the node's "
                "own ledger, without --prometheus"
            )
    nodes = inventory.nodes
    return find_grouping(
        by,
        inventory.gpus,
        teams=teams,
        node_of=lambda uuid: nodes.get(uuid, ""),
        served_model_of=served_model_of,
    )


def fleet_report(fleets: Sequence[Fleet], scope: FleetScope) -> UsageReport:
    """Build the report of a Fleet for each part of the range; all have the same inventory.

    Raises UsageError for a price list with an invalid date.
    """
    inventory = fleets[0].inventory
    price_list = PriceList(scope.prices, scope.zone)

    @lru_cache(None)
    def prices_of(segment: PriceSegment) -> FleetPrices:
        return FleetPrices(price_list, inventory.node_at, segment.since)

    tally = _tally(fleets, scope, prices_of)
    found = build_usage_report(
        tally,
        ReportScope(
            scope.grouping,
            scope.prices,
            inventory.gpus,
            scope.period,
            scope.parts,
            unmetered=inventory.gpus.keys(),
            sights=_sights(fleets, tally),
            fingerprint=price_list.fingerprint,
            zone=scope.zone,
        ),
        prices_of,
    )
    uses = [
        PriceUse(part, inventory.node_at(part.gpu, segment.since), segment.since, segment.until)
        for part, segment in tally.uses
    ]
    problems = (text + "." for text in price_list.problems(uses))
    found = replace(found, notes=(*_moved_notes(inventory, scope), *problems, *found.notes))
    return _with_bounds(found, fleets, scope, tally)


def _moved_notes(inventory: Inventory, scope: FleetScope) -> Iterator[str]:
    """Sentences on Gpus that had several nodes, if rows are by node, and on pods with several labels."""
    begins, ends = scope.parts[0].begins, scope.parts[-1].ends
    moved = {
        uuid
        for uuid, moves in inventory.moves.items()
        if uuid not in inventory.doubled and any(begins < quarter < ends for quarter, _ in moves)
    }
    if moved and NODE in scope.grouping.columns:
        gpus = "1 GPU" if len(moved) == 1 else f"{len(moved)} GPUs"
        yield (
            f"{gpus} moved to another node: rows have all of the time and energy under the last one, at the "
            "prices of each, to the day. --fleet and --books divide them exactly."
        )
    if inventory.renamed:
        pods = "1 pod" if len(inventory.renamed) == 1 else f"{len(inventory.renamed)} pods"
        yield (
            f"{pods} had other labels or another controller before, as pods of the same name have: rows have "
            "all of their time and energy under the last ones. --fleet and --books divide them."
        )


def _tally(
    fleets: Sequence[Fleet], scope: FleetScope, prices_of: Callable[[PriceSegment], FleetPrices]
) -> Tally:
    grouping, prices = scope.grouping, scope.prices
    tally = Tally(grouping, lambda _: Fraction(1), basis=prices.basis, spread=prices.idle == SPREAD)
    for number, (fleet, part) in enumerate(zip(fleets, scope.parts, strict=True)):
        for (uuid,) in fleet.energy.totals.rises.total:
            # It is measured, even if no account has any of its energy.
            tally.gpus[uuid].millijoules += 0
        begins = sorted(fleet.energy.totals_by_quarter.keys() | fleet.time.totals_by_quarter.keys())
        for since, until in pairwise([*begins, part.ends]):
            segment = PriceSegment(number, since, until)
            rates = prices_of(segment)
            tally.begin_segment(segment, rates)
            for time in gpu_times(fleet, since):
                tally.add_gpu_time(time)
                if time.party is not None:
                    tally.amounts[number, grouping.key(time.party)].gpus.add(time.part.gpu)
            for energy in energy_entries(fleet, since):
                rates.choose(energy.uuid)
                tally.add_energy(energy)
            for uuid, millijoules in unseen_energy(fleet, since).items():
                rates.choose(uuid)
                row = tally.own[number, UNSEEN, grouping.own_key(uuid)]
                row.methods[UNSEEN] += millijoules
                row.energy_charges[rates.energy_rate(uuid)] += millijoules
                row.emissions[rates.grams_per_kwh] += millijoules
        for word, seconds in fleet.seconds.items():
            for (uuid, _, *owner), spent in seconds.items():
                amount = tally.amounts[number, grouping.key(party_of_series(uuid, tuple(owner), fleet))]
                _add_seconds(amount, word, uuid, spent)
    tally.finish()
    return tally


def _add_seconds(amount: Amount, word: str, uuid: str, seconds: float) -> None:
    """Add seconds that do not add up: sums over owners here."""
    spent = Fraction(round(_MILLI * seconds), _MILLI)
    if word == RESIDENT:
        amount.resident += spent
    elif word == HELD:
        amount.held += spent
    elif word == ALLOCATED:
        amount.allocated += spent
    if seconds:
        amount.gpus.add(uuid)


def _sights(fleets: Sequence[Fleet], tally: Tally) -> Mapping[str, tuple[int, int]]:
    """The first and the last sight of Gpus that were certainly not watched for a part of the time between.

    Scrapes are late by up to an interval at either end, and a restart can lose what was not scraped yet.
    """
    found: dict[str, tuple[int, int]] = {}
    slack: Counter[str] = Counter()
    for fleet in fleets:
        if not fleet.time.is_scraped:
            continue
        for uuid, (first, last) in fleet.sights.items():
            begins, ends = round(MICRO * first), round(MICRO * last)
            known = found.get(uuid, (begins, ends))
            found[uuid] = (min(known[0], begins), max(known[1], ends))
            lost = fleet.time.uncertainty.lost.get(uuid, 0.0)
            slack[uuid] += round(MICRO * (2 * fleet.inventory.interval + lost))
    watched = {uuid: sum(accounts.values()) for uuid, accounts in tally.watched.items()}
    return {
        uuid: (first, last)
        for uuid, (first, last) in found.items()
        if last - first - watched.get(uuid, 0) > slack[uuid]
    }


def _with_bounds(found: UsageReport, fleets: Sequence[Fleet], scope: FleetScope, tally: Tally) -> UsageReport:
    """Add what only a fleet's report has: bounds, unseen rows, and what Prometheus knows of each Gpu."""
    bounds = [_FleetBounds(fleet, scope.grouping) for fleet in fleets]
    lines = [
        _scraped_line(line, fleets[line.period], bounds[line.period])
        for line in found.lines
        if line.millijoules or line.gpu_microseconds or line.resident or line.held or line.allocated
    ]
    own = [_scraped_line(line, fleets[line.period], bounds[line.period]) for line in found.gpu_accounts]
    own += _unseen_lines(found, fleets, tally)
    total = replace(
        sum_lines((*lines, *own), ("total",)),
        period=0,
        high=None,
        bound=sum(total_bound(fleet.energy, _MILLI) for fleet in fleets),
        time_bound=sum(total_bound(fleet.time, MICRO) for fleet in fleets),
        unmetered=found.total.unmetered,
    )
    gpus = [_scraped_gpu(gpu, fleets) for gpu in found.gpus]
    nodes = fleets[0].inventory.nodes
    gpus.sort(key=lambda gpu: (nodes.get(gpu.uuid, ""), int(gpu.index or -1), gpu.uuid))
    notes = (*fleet_notes(fleets, total, scope.period, scope.origin, scope.prices), *found.notes)
    return replace(found, lines=lines, gpu_accounts=own, total=total, gpus=gpus, occupied=None, notes=notes)


class _FleetBounds:
    """The bounds of one Fleet's rows, in millijoules and in microseconds."""

    def __init__(self, fleet: Fleet, grouping: Grouping) -> None:
        def row_of(account: str, uuid: str, owner: Name) -> RowName:
            if account not in (OWNER, PROCESS):
                return account, grouping.own_key(uuid)
            return PROCESS, grouping.key(party_of_series(uuid, owner, fleet))

        self.energy = row_bounds(fleet.energy, lambda name: row_of(name[1], name[0], name[3:]), _MILLI)
        self.time = row_bounds(fleet.time, lambda name: row_of(name[2], name[0], name[3:]), MICRO)


def _scraped_line(line: ReportLine, fleet: Fleet, bounds: _FleetBounds) -> ReportLine:
    row = (line.account, line.key)
    known = {word: word in fleet.seconds for word in SECONDS}
    has_time = fleet.time.is_scraped
    return replace(
        line,
        gpu_microseconds=line.gpu_microseconds if has_time else None,
        time_charges=line.time_charges if has_time else None,
        high=None,
        sessions=None,
        active=None,
        unknown=None,
        resident=line.resident if known[RESIDENT] else None,
        # A counter that did not rise does not say whether activity was known.
        held=line.held if known[HELD] and (line.held or not (line.resident or line.allocated)) else None,
        allocated=line.allocated if known[ALLOCATED] else None,
        bound=bounds.energy.get(row, 0),
        time_bound=bounds.time.get(row, 0) if has_time and line.gpu_microseconds is not None else None,
    )


def _unseen_lines(found: UsageReport, fleets: Sequence[Fleet], tally: Tally) -> list[ReportLine]:
    """Rows of what is in the Gpus' counters, but in no scraped account."""
    lines, prices = [], found.prices
    for (number, account, key), amount in sorted(tally.own.items(), key=lambda item: item[0]):
        if account != UNSEEN or not (amount.microseconds or amount.millijoules):
            continue
        has_time = fleets[number].time.is_scraped
        lines.append(
            ReportLine(
                key,
                UNSEEN,
                number,
                gpu_microseconds=amount.microseconds if has_time else None,
                methods=dict(amount.methods),
                time_charges=dict(amount.time_charges) if has_time and prices.gpu_hour is not None else None,
                energy_charges=None if prices.kwh is None else dict(amount.energy_charges),
                grams=None if prices.co2 is None else amount.grams,
                bound=0,
                time_bound=0 if has_time else None,
            )
        )
    return lines


def _scraped_gpu(gpu: GpuLine, fleets: Sequence[Fleet]) -> GpuLine:
    """The energy of the GPU's counter, and the time for which it was scraped."""
    joules = [
        gained.amount for fleet in fleets if (gained := fleet.energy.totals.rises.total.get((gpu.uuid,)))
    ]
    observed = sum(fleet.observed.get(gpu.uuid, 0.0) for fleet in fleets)
    return replace(
        gpu,
        millijoules=round(_MILLI * sum(joules)) if joules else None,
        observed=Fraction(round(_MILLI * observed), _MILLI) if joules else None,
    )

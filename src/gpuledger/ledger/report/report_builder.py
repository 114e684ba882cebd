"""Converts the sums of a finished Tally to a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from fractions import Fraction

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.grouping import Grouping, Key, gpu_key
from gpuledger.ledger.report.prices import PriceList, PriceUse
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tally import Amount, Tally
from gpuledger.ledger.report.teams import Team, unmatched_teams
from gpuledger.ledger.report.usage_report import (
    UNWATCHED,
    GpuLine,
    Period,
    ReportLine,
    UnbilledTime,
    UsageReport,
    meter_notes,
    sum_lines,
)
from gpuledger.ledger.time.account import DOWN
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.model.devices import Device
from gpuledger.model.session import IDLE, PROCESS, UNATTRIBUTED, UNOBSERVED
from gpuledger.model.workload import Workload

# The accounts with separate rows, and those without a price, in the order of the rows.
OWN_ACCOUNTS = (IDLE, UNATTRIBUTED, UNOBSERVED)
UNBILLED_ACCOUNTS = (UNOBSERVED, DOWN, UNWATCHED)


@dataclass(slots=True)
class ListUses:
    """To what the entries of the price list and of `teams` can apply, of several reports together.

    `owners` are with their nodes.
    """

    parts: list[PriceUse] = field(default_factory=list)
    owners: set[tuple[Workload, str]] = field(default_factory=set)

    def notes(self, prices: PriceList, teams: Sequence[Team]) -> Iterator[str]:
        """Sentences on entries that apply to nothing, and on what no price applies to."""
        for problem in (*prices.problems(self.parts), *unmatched_teams(teams, self.owners)):
            yield problem + "."


@dataclass(frozen=True, slots=True)
class ReportScope:
    """What a report is about, beside the sums: prices, range, Devices.

    `unmetered` are Gpus that were never measured. `sights` are the first and the last time that each Gpu was
    seen, in unix microseconds. `uses` collects the owners of teams instead of notes on them.
    """

    grouping: Grouping
    prices: Prices
    devices: Mapping[str, Device]
    period: Period
    parts: Sequence[ReportPart]
    unmetered: Collection[str] = ()
    sights: Mapping[str, tuple[int, int]] | None = None
    fingerprint: str = ""
    zone: tzinfo | None = None
    uses: ListUses | None = None


def build_usage_report(
    tally: Tally, scope: ReportScope, prices_of: Callable[[PriceSegment], SegmentPrices]
) -> UsageReport:
    """The report of a finished Tally. `prices_of` returns the prices of each of its segments."""
    missing = tally.unmetered | (_present(scope.unmetered, scope) - tally.gpus.keys())
    incomplete = missing | tally.partly_metered
    lines = [
        _line(key, PROCESS, period, amount, scope.prices, incomplete)
        for (period, key), amount in tally.amounts.items()
    ]
    lines.sort(key=lambda line: (line.period, -line.millijoules, -(line.gpu_microseconds or 0), line.key))
    missed = _add_unwatched(tally, scope, prices_of)
    own = _own_lines(tally, scope, incomplete, metered=bool(tally.gpus) or not missing)
    # An upper bound of the total would not bound any single bill.
    total = replace(sum_lines((*lines, *own), ("total",)), period=0, high=None, unmetered=incomplete)
    gpus = _gpu_lines(tally, scope.devices, missing, missed)
    return UsageReport(
        scope.grouping,
        scope.prices,
        scope.period,
        lines,
        own,
        total,
        gpus,
        tally.occupied,
        (*_price_note(scope.prices), *_team_notes(tally, scope), *meter_notes(gpus, incomplete - missing)),
        scope.prices.basis,
        scope.parts,
        _unbilled_lines(tally, scope),
        scope.fingerprint,
        scope.zone,
    )


def _price_note(prices: Prices) -> Iterator[str]:
    if prices.note and prices.any_price:
        yield prices.note


def _team_notes(tally: Tally, scope: ReportScope) -> Iterator[str]:
    """Sentences on entries of `teams` that match nothing."""
    grouping = scope.grouping
    owners = {(party.owner, grouping.node_of(party.device)) for party in tally.parties}
    if scope.uses is not None:
        scope.uses.owners |= owners
        return
    for problem in unmatched_teams(grouping.teams, owners):
        yield f"{problem}."


def _line(
    key: Key,
    account: str,
    period: int,
    amount: Amount,
    prices: Prices,
    incomplete: frozenset[str],
    *,
    is_metered: bool = True,
) -> ReportLine:
    """The row of an amount. `incomplete` are Gpus that were not measured for some or all of the time.

    `is_metered`: the energy of some Gpu was measured.
    """
    unmetered = incomplete & amount.gpus
    metered = is_metered and (bool(amount.methods) or not unmetered or unmetered < amount.gpus)
    is_owner = account == PROCESS
    # A row without known energy can have charges: those of idle energy that is spread over its time.
    charges = _without_zeros(amount.energy_charges)
    return ReportLine(
        key,
        account,
        period,
        gpu_microseconds=amount.microseconds,
        estimated_microseconds=amount.estimated,
        uncut_microseconds=amount.uncut,
        methods=dict(amount.methods),
        integrated=amount.integrated,
        # Energy that was not measured has no bound, and neither have the Gpus' own accounts.
        high=amount.high if is_owner and not unmetered else None,
        resident=amount.resident if is_owner else None,
        held=amount.held if is_owner and amount.has_activity else None,
        allocated=amount.allocated if is_owner else None,
        active=amount.active if is_owner and _is_active_known(amount) else None,
        unknown=amount.unknown if is_owner else None,
        sessions=amount.sessions if is_owner else None,
        time_charges=None if prices.gpu_hour is None else _without_zeros(amount.time_charges),
        energy_charges=None if prices.kwh is None or not (metered or charges) else charges,
        grams=None if prices.co2 is None or not metered else amount.grams,
        unmetered=unmetered,
        metered=metered,
    )


def _is_active_known(amount: Amount) -> bool:
    """Whether some time is known to be active, or none can have been in hours of an earlier version."""
    return amount.has_activity and (bool(amount.active) or not amount.old)


def _without_zeros(charges: Counter[Rate]) -> Mapping[Rate, int]:
    return {rate: amount for rate, amount in charges.items() if amount}


def _own_lines(
    tally: Tally, scope: ReportScope, incomplete: frozenset[str], *, metered: bool
) -> list[ReportLine]:
    """The rows of the Gpus' own accounts, at least one of each in each period."""
    found = {(period, account, key): amount for (period, account, key), amount in tally.own.items()}
    for period, account, key in tally.unbilled:
        if account in OWN_ACCOUNTS:
            found.setdefault((period, account, key), Amount())
    lines = []
    for period, account, key in _with_empty_rows(found, scope, OWN_ACCOUNTS):
        amount = found.get((period, account, key), Amount())
        lines.append(_line(key, account, period, amount, scope.prices, incomplete, is_metered=metered))
    return lines


def _unbilled_lines(tally: Tally, scope: ReportScope) -> list[UnbilledTime]:
    """Time without a price of each period, with what it would have cost."""
    lines = []
    for name in _with_empty_rows(tally.unbilled, scope, UNBILLED_ACCOUNTS):
        period, account, key = name
        charges: Mapping[Rate, int] = tally.unbilled.get(name, {})
        priced = None if scope.prices.gpu_hour is None else charges
        lines.append(UnbilledTime(account, sum(charges.values()), priced, period, key))
    return lines


def _with_empty_rows(
    names: Iterable[tuple[int, str, Key]], scope: ReportScope, accounts: Sequence[str]
) -> Iterator[tuple[int, str, Key]]:
    """The rows' period, account and key in order; at least one of each account in each period."""
    keys: dict[tuple[int, str], list[Key]] = defaultdict(list)
    for period, account, key in sorted(names):
        keys[period, account].append(key)
    empty = tuple("" for _ in scope.grouping.columns)
    for period in range(len(scope.parts)):
        for account in accounts:
            yield from ((period, account, key) for key in keys[period, account] or [empty])


def _add_unwatched(
    tally: Tally, scope: ReportScope, prices_of: Callable[[PriceSegment], SegmentPrices]
) -> Counter[str]:
    """Add the time between each Gpu's first and last sight in which it was not watched; return it by Gpu."""
    last = round(min(scope.period.until, scope.period.last) * MICRO)
    missed: Counter[str] = Counter()
    for gpu, (first, end) in (scope.sights or {}).items():
        whole = GpuPart(gpu, gpu_key(gpu, scope.devices)[2])
        charges: Counter[tuple[int, Rate]] = Counter()
        for segment, watched in tally.segments.items():
            begins = max(segment.since * QUARTER * MICRO, first)
            ends = min(segment.until * QUARTER * MICRO, end, last)
            if missing := max(ends - begins, 0) - watched[gpu]:
                charges[segment.period, prices_of(segment).time_rate(whole)] += missing
        # A clock that was set back is watched twice, so that more is watched than there is.
        for (period, rate), amount in (+charges).items():
            tally.add_unbilled(period, UNWATCHED, rate, amount)
            missed[gpu] += amount
    return missed


def _present(gpus: Collection[str], scope: ReportScope) -> frozenset[str]:
    """Those of these Gpus that were seen in the period, or of which it is not known when."""
    begins, ends = (unix * MICRO for unix in (scope.period.since, scope.period.until))
    sights = scope.sights or {}
    return frozenset(
        gpu for gpu in gpus if gpu not in sights or (sights[gpu][0] < ends and begins < sights[gpu][1])
    )


def _gpu_lines(
    tally: Tally,
    devices: Mapping[str, Device],
    missing: Collection[str],
    missed: Mapping[str, int],
) -> list[GpuLine]:
    lines = []
    for uuid in tally.gpus.keys() | tally.watched.keys() | set(missing) | missed.keys():
        amount = tally.gpus.get(uuid)
        known = amount is not None or uuid not in missing
        lines.append(
            GpuLine(
                *gpu_key(uuid, devices),
                millijoules=(amount.millijoules if amount else 0) if known else None,
                observed=Fraction(amount.microseconds if amount else 0, MICRO) if known else None,
                accounts=dict(tally.watched.get(uuid, {})),
                unwatched=missed.get(uuid, 0),
                integrated=(amount.integrated if amount else 0) if known else None,
            )
        )
    return sorted(lines, key=lambda gpu: (int(gpu.index or -1), gpu.uuid))

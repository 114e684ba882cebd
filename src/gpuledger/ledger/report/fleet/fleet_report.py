"""Reports from a fleet's Prometheus: the rows that the nodes' ledgers would have, with error bounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil

from gpuledger.ledger.report.fleet.fleet import CounterRises, Fleet, Uncertainty, export_delay, scrape_delay
from gpuledger.ledger.report.fleet.inventory import ScrapedPod
from gpuledger.ledger.report.fleet.rises import Rise
from gpuledger.ledger.report.fleet.scraped import ALLOCATED, HELD, RESIDENT, Name
from gpuledger.ledger.report.formats import format_time
from gpuledger.ledger.report.grouping import NODE, Grouping, Key, Party, find_grouping, gpu_key
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR, Prices
from gpuledger.ledger.report.usage_report import (
    GpuLine,
    Period,
    ReportLine,
    UsageReport,
    gpu_account_line,
    sum_lines,
    unmetered_notes,
)
from gpuledger.model.errors import UsageError
from gpuledger.model.session import IDLE, PROCESS, UNATTRIBUTED, UNOBSERVED
from gpuledger.model.workload import Workload

UNSEEN = "unseen"
_ACCOUNTS = (IDLE, UNATTRIBUTED, UNOBSERVED, UNSEEN)


@dataclass(slots=True)
class _Row:
    """The sums of one row, in joules.

    `early`, `late` and `error` are parts of its bound. `uuids` are its Gpus with energy, `places` those on
    which it had time, `present_at_start` and `present_at_end` those on which it was present when the period
    began and ended.
    """

    methods: Counter[str] = field(default_factory=Counter)
    early: float = 0.0
    late: float = 0.0
    error: float = 0.0
    uuids: set[str] = field(default_factory=set)
    places: set[str] = field(default_factory=set)
    present_at_start: set[str] = field(default_factory=set)
    present_at_end: set[str] = field(default_factory=set)
    seconds: dict[str, Fraction] = field(default_factory=dict)

    def add_errors(self, name: Name, gained: Rise, counters: CounterRises) -> None:
        """Add the errors of one counter."""
        early, late = counters.early.get(name, Rise()), counters.late.get(name, Rise())
        self.error += gained.error
        self.early += early.amount + early.error
        self.late += late.amount + late.error

    def bound(self, uncertainty: Uncertainty) -> int:
        """Maximum error in millijoules, in either direction."""
        more = self.late + sum(uncertainty.tails.get(uuid, 0.0) for uuid in self.present_at_end)
        more += sum(
            uncertainty.lost.get(uuid, 0.0) + uncertainty.unseen.get(uuid, 0.0) for uuid in self.uuids
        )
        early = self.early + sum(uncertainty.heads.get(uuid, 0.0) for uuid in self.present_at_start)
        return ceil(1000 * (self.error + max(early, more)))


def fleet_grouping(by: str, fleet: Fleet) -> Grouping:
    """The grouping of this name: `node`, or one of a ledger's except `command` and `unit`.

    Raises UsageError.
    """
    if by in ("command", "unit"):
        reason = ", because each restart would begin new series" if by == "command" else ""
        raise UsageError(
            f"--by {by}: owner series have no {by} label{reason}; report from the node's own ledger, "
            "without --prometheus"
        )
    if by == NODE:
        nodes = fleet.inventory.nodes
        return Grouping(by, (NODE,), lambda party: (nodes.get(party.device, ""),))
    return find_grouping(by, fleet.inventory.gpus)


def fleet_report(fleet: Fleet, by: Grouping, prices: Prices, period: Period, origin: str) -> UsageReport:
    """Build the report of a Fleet. `origin` names the Prometheus in the notes."""
    rows = _rows(fleet, by)
    measured = {uuid for (uuid,), _ in _risen(fleet.devices)}
    unmetered = frozenset(fleet.inventory.gpus.keys() - measured)
    lines = [
        _line(key, row, fleet, prices, unmetered)
        for (account, key), row in rows.items()
        if account == PROCESS and (row.methods.total() or any(row.seconds.values()))
    ]
    lines.sort(key=lambda line: (-line.millijoules, -(line.resident or 0), line.key))
    accounts = {account: rows.get((account, ()), _Row()) for account in _ACCOUNTS}
    own = [
        gpu_account_line(
            account,
            row.methods.total(),
            prices,
            row.bound(fleet.uncertainty),
            metered=bool(measured) or not unmetered,
        )
        for account, row in accounts.items()
        if account != UNSEEN or row.methods.total()
    ]
    total = replace(
        sum_lines((*lines, *own), ("total",)),
        bound=_all_accounts(fleet).bound(fleet.uncertainty),
        unmetered=unmetered,
    )
    inventory = fleet.inventory
    gpus = [
        GpuLine(*gpu_key(uuid, inventory.gpus), round(1000 * gained.amount), _whole(fleet.observed[uuid]))
        for (uuid,), gained in _risen(fleet.devices)
    ]
    gpus += [GpuLine(*gpu_key(uuid, inventory.gpus), None, None) for uuid in unmetered]
    gpus.sort(key=lambda gpu: (inventory.nodes.get(gpu.uuid, ""), int(gpu.index or -1), gpu.uuid))
    notes = (*_notes(fleet, total, period, origin), *unmetered_notes(gpus))
    return UsageReport(by, prices, period, lines, own, total, gpus, None, notes)


def _rows(fleet: Fleet, by: Grouping) -> Mapping[tuple[str, Key], _Row]:
    rows: dict[tuple[str, Key], _Row] = defaultdict(_Row)
    for name, gained in _risen(fleet.energy):
        uuid, account, method, *owner = name
        key = by.key(_party(uuid, tuple(owner), fleet)) if account == PROCESS else ()
        row = rows[account, key]
        row.methods[method if account == PROCESS else account] += round(1000 * gained.amount)
        row.add_errors(name, gained, fleet.energy)
        row.uuids.add(uuid)
        if name in (fleet.began or ()):
            row.present_at_start.add(uuid)
        if name in fleet.alive:
            row.present_at_end.add(uuid)
    for word, seconds in fleet.seconds.items():
        for (uuid, _, *owner), spent in seconds.items():
            row = rows[PROCESS, by.key(_party(uuid, tuple(owner), fleet))]
            row.seconds[word] = row.seconds.get(word, Fraction(0)) + _whole(spent)
            if spent:
                row.places.add(uuid)
    for joules in fleet.uncertainty.unseen.values():
        rows[UNSEEN, ()].methods[UNSEEN] += round(1000 * joules)
    return rows


def _all_accounts(fleet: Fleet) -> _Row:
    """All accounts of all Gpus as one row: shifts between accounts do not affect their sum."""
    row = _Row()
    for name, gained in _risen(fleet.energy):
        row.add_errors(name, gained, fleet.energy)
    row.uuids |= {uuid for (uuid,), _ in _risen(fleet.devices)}
    row.present_at_start |= row.uuids
    row.present_at_end |= row.uuids
    return row


def _risen(counters: CounterRises) -> Iterable[tuple[Name, Rise]]:
    return counters.rises.total.items()


def _party(uuid: str, owner: Name, fleet: Fleet) -> Party:
    kind, namespace, pod, container, user, job = owner
    known = fleet.inventory.pods.get((namespace, pod), ScrapedPod()) if pod else ScrapedPod()
    # The energy series of a pod have its containers' user, its time series do not.
    return Party(
        uuid,
        Workload(
            kind=kind or "unknown",
            namespace=namespace,
            pod=pod,
            container=container,
            job=job,
            user="" if kind == "pod" else user,
            labels=known.labels,
            controller_kind=known.controller_kind,
            controller=known.controller,
        ),
    )


def _line(key: Key, row: _Row, fleet: Fleet, prices: Prices, unmetered: frozenset[str]) -> ReportLine:
    missing = unmetered & row.places
    metered = bool(row.methods) or not missing or missing < row.places
    millijoules = row.methods.total() if metered else None
    resident, held, allocated = (
        row.seconds.get(word, Fraction(0)) if word in fleet.seconds else None
        for word in (RESIDENT, HELD, ALLOCATED)
    )
    return ReportLine(
        key,
        methods=dict(row.methods),
        resident=resident,
        held=held,
        allocated=allocated,
        cost=prices.cost(millijoules, resident or Fraction(0)),
        grams=prices.grams(millijoules),
        bound=row.bound(fleet.uncertainty),
        unmetered=missing,
        metered=metered,
    )


def _whole(seconds: float) -> Fraction:
    """Seconds rounded to milliseconds; more digits of the float are noise."""
    return Fraction(round(1000 * seconds), 1000)


def _notes(fleet: Fleet, total: ReportLine, period: Period, origin: str) -> Iterator[str]:
    interval = fleet.inventory.interval
    bound, used = total.bound or 0, total.millijoules
    share = f", {100 * bound / used:.2g} %" if used else ""
    yield (
        f"From {origin}, scraped every {interval:g} s. ± is the maximum difference from the nodes' own "
        f"ledgers: energy exported within {scrape_delay(interval):g} s of either end or not exported yet, "
        f"and values of counters that were reset. In total {bound / MILLIJOULES_PER_KWH:,.5f} kWh{share}."
    )
    observed = float(sum(fleet.observed.values()) / SECONDS_PER_HOUR)
    if RESIDENT in fleet.seconds:
        yield (
            f"GPU-hours: {observed:,.2f} scraped. A row is the sum of its owners, without ±: "
            "owners that shared a GPU count separately, while a ledger counts them once; pauses and time "
            f"without a process list are not counted. The first {export_delay(interval):g} s of an owner are "
            "exported late: at either end of the period they can count on the other side of it."
        )
    else:
        yield (
            f"GPU-hours: {observed:,.2f} scraped. Per owner they are unknown: the nodes' gpuledger is "
            "too old and has no gpuledger_owner_resident_seconds_total."
        )
    if fleet.unshared:
        yield (
            f"{len(fleet.unshared)} MIG instances are not in the GPU-hours: their part of the GPU is unknown "
            "(gpuledger_device_sm_ratio is missing)."
        )
    if fleet.inventory.doubled:
        count = len(fleet.inventory.doubled)
        yield f"{count} GPU{' is' if count == 1 else 's are'} scraped by several targets: counted once."
    if fleet.ambiguous:
        count = len(fleet.ambiguous)
        yield (
            f"Of {count} GPU{'' if count == 1 else 's'} it is unclear whether two targets exported the same "
            "energy or the node's ledger was reset between them: ± covers both."
        )
    if fleet.first is not None and fleet.first > period.since:
        yield f"Prometheus has no data before {format_time(fleet.first)}: earlier energy is not counted."
    if fleet.last is not None and fleet.last < min(period.until, period.last):
        yield f"Prometheus has no data after {format_time(fleet.last)}."

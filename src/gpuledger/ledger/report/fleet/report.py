"""A report out of a fleet's Prometheus: the rows that books would have, and how far off they may be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil

from gpuledger.ledger.report.fleet.fleet import Doubts, Fleet, Told, margin
from gpuledger.ledger.report.fleet.inventory import Pod
from gpuledger.ledger.report.fleet.rises import Rise
from gpuledger.ledger.report.fleet.scraped import ALLOCATED, HELD, RESIDENT, Name
from gpuledger.ledger.report.formats import iso
from gpuledger.ledger.report.grouping import NODE, Grouping, Key, Party, gpu_key, grouping
from gpuledger.ledger.report.report import GpuLine, Line, Period, Report, own_line, together
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR, Prices
from gpuledger.model.errors import UsageError
from gpuledger.model.session import IDLE, PROCESS, UNATTRIBUTED, UNOBSERVED
from gpuledger.model.workload import Workload

UNSEEN = "unseen"
_ACCOUNTS = (IDLE, UNATTRIBUTED, UNOBSERVED, UNSEEN)


@dataclass(slots=True)
class _Row:
    """What a row has, in joules; `early`, `late` and `error` are parts of its bound, `uuids` where it was,
    `there` where it already was when the period began, `here` where it still was at its end.
    """

    methods: Counter[str] = field(default_factory=Counter)
    early: float = 0.0
    late: float = 0.0
    error: float = 0.0
    uuids: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    here: set[str] = field(default_factory=set)
    seconds: dict[str, Fraction] = field(default_factory=dict)

    def bound(self, doubts: Doubts) -> int:
        """Millijoules, either way."""
        more = self.late + sum(doubts.tails.get(uuid, 0.0) for uuid in self.here)
        more += sum(doubts.lost.get(uuid, 0.0) + doubts.unseen.get(uuid, 0.0) for uuid in self.uuids)
        early = self.early + sum(doubts.heads.get(uuid, 0.0) for uuid in self.there)
        return ceil(1000 * (self.error + max(early, more)))


def fleet_grouping(by: str, fleet: Fleet) -> Grouping:
    """The grouping of this name: those of books but `command`, and `node`. Raises UsageError."""
    if by == "command":
        raise UsageError(
            "--by command: series of owners bear no command, or each restart would begin new ones; ask the "
            "node's own books, without --prometheus"
        )
    if by == NODE:
        nodes = fleet.inventory.nodes
        return Grouping(by, (NODE,), lambda party: (nodes.get(party.device, ""),))
    return grouping(by, fleet.inventory.gpus)


def fleet_report(fleet: Fleet, by: Grouping, prices: Prices, period: Period, origin: str) -> Report:
    """What a Fleet holds, as rows. `origin` names the Prometheus in the notes."""
    rows = _rows(fleet, by)
    lines = [
        _line(key, row, fleet, prices)
        for (account, key), row in rows.items()
        if account == PROCESS and (row.methods.total() or any(row.seconds.values()))
    ]
    lines.sort(key=lambda line: (-line.millijoules, -(line.resident or 0), line.key))
    accounts = {account: rows.get((account, ()), _Row()) for account in _ACCOUNTS}
    own = [
        own_line(account, row.methods.total(), prices, row.bound(fleet.doubts))
        for account, row in accounts.items()
        if account != UNSEEN or row.methods.total()
    ]
    total = replace(together((*lines, *own), ("total",)), bound=_all(fleet).bound(fleet.doubts))
    gpus = [_gpu_line(uuid, round(1000 * gained.amount), fleet) for (uuid,), gained in _risen(fleet.devices)]
    gpus.sort(key=lambda gpu: (fleet.inventory.nodes.get(gpu.uuid, ""), int(gpu.index or -1), gpu.uuid))
    return Report(
        by, prices, period, lines, own, total, gpus, None, tuple(_notes(fleet, total, period, origin))
    )


def _rows(fleet: Fleet, by: Grouping) -> Mapping[tuple[str, Key], _Row]:
    rows: dict[tuple[str, Key], _Row] = defaultdict(_Row)
    for name, gained in _risen(fleet.energy):
        uuid, account, method, *owner = name
        key = by.key(_party(uuid, tuple(owner), fleet)) if account == PROCESS else ()
        row = rows[account, key]
        row.methods[method if account == PROCESS else account] += round(1000 * gained.amount)
        row.error += gained.error
        _add_ends(row, name, fleet.energy)
        row.uuids.add(uuid)
        if name in (fleet.began or ()):
            row.there.add(uuid)
        if name in fleet.alive:
            row.here.add(uuid)
    for word, seconds in fleet.seconds.items():
        for (uuid, _, *owner), spent in seconds.items():
            row = rows[PROCESS, by.key(_party(uuid, tuple(owner), fleet))]
            row.seconds[word] = row.seconds.get(word, Fraction(0)) + _whole(spent)
    for joules in fleet.doubts.unseen.values():
        rows[UNSEEN, ()].methods[UNSEEN] += round(1000 * joules)
    return rows


def _all(fleet: Fleet) -> _Row:
    """Every account of every Gpu as one row: what went from one to the other is no doubt about their sum."""
    row = _Row()
    for name, gained in _risen(fleet.energy):
        row.error += gained.error
        _add_ends(row, name, fleet.energy)
    row.uuids |= {uuid for (uuid,), _ in _risen(fleet.devices)}
    row.there |= row.uuids
    row.here |= row.uuids
    return row


def _risen(told: Told) -> Iterable[tuple[Name, Rise]]:
    return told.rises.total.items()


def _add_ends(row: _Row, name: Name, told: Told) -> None:
    early, late = told.early.get(name, Rise()), told.late.get(name, Rise())
    row.early += early.amount + early.error
    row.late += late.amount + late.error


def _party(uuid: str, owner: Name, fleet: Fleet) -> Party:
    kind, namespace, pod, container, user, job = owner
    known = fleet.inventory.pods.get((namespace, pod), Pod()) if pod else Pod()
    # The energy series of a pod bear its containers' user, those of its time do not.
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


def _line(key: Key, row: _Row, fleet: Fleet, prices: Prices) -> Line:
    millijoules = row.methods.total()
    resident, held, allocated = (
        row.seconds.get(word, Fraction(0)) if word in fleet.seconds else None
        for word in (RESIDENT, HELD, ALLOCATED)
    )
    return Line(
        key,
        methods=dict(row.methods),
        resident=resident,
        held=held,
        allocated=allocated,
        cost=prices.cost(millijoules, resident or Fraction(0)),
        grams=prices.grams(millijoules),
        bound=row.bound(fleet.doubts),
    )


def _gpu_line(uuid: str, millijoules: int, fleet: Fleet) -> GpuLine:
    _, index, model = gpu_key(uuid, fleet.inventory.gpus)
    return GpuLine(uuid, index, model, millijoules, _whole(fleet.observed.get(uuid, 0.0)))


def _whole(seconds: float) -> Fraction:
    """To the millisecond: floats bring more digits than they know."""
    return Fraction(round(1000 * seconds), 1000)


def _notes(fleet: Fleet, total: Line, period: Period, origin: str) -> Iterator[str]:
    interval = fleet.inventory.interval
    bound, used = total.bound or 0, total.millijoules
    share = f", {100 * bound / used:.2g} %" if used else ""
    yield (
        f"From {origin}, scraped every {interval:g} s. ± is how far that may be from the nodes' own books: "
        f"what was told within {margin(interval):g} s of either end or had not been told yet, and what a "
        f"counter had when it began anew. In all {bound / MILLIJOULES_PER_KWH:,.5f} kWh{share}."
    )
    observed = float(sum(fleet.observed.values()) / SECONDS_PER_HOUR)
    if RESIDENT in fleet.seconds:
        yield (
            f"GPU-hours: {observed:,.2f} scraped. A row's are the sum over its owners, and ± is not about "
            "them: owners of one row who shared a GPU count each, which books count once; pauses, time "
            "without a list of processes, and a scrape or two of each stay count for nobody."
        )
    else:
        yield (
            f"GPU-hours: {observed:,.2f} scraped. The nodes' gpuledger is too old to tell whose: it has no "
            "gpuledger_owner_resident_seconds_total."
        )
    if fleet.unshared:
        yield (
            f"{len(fleet.unshared)} MIG instances are in no GPU-hours: nobody told which part of their GPU "
            "they are (gpuledger_device_sm_ratio)."
        )
    if fleet.inventory.doubled:
        count = len(fleet.inventory.doubled)
        yield f"{count} GPU{' is' if count == 1 else 's are'} scraped by several targets: counted once."
    if fleet.unclear:
        count = len(fleet.unclear)
        yield (
            f"Of {count} GPU{'' if count == 1 else 's'} it is unclear whether two targets told the same or "
            "the node's books began anew between them: ± holds for both."
        )
    if fleet.first is not None and fleet.first > period.since:
        yield f"Prometheus has nothing before {iso(fleet.first)}: what was told by then is not counted."
    if fleet.last is not None and fleet.last < min(period.until, period.last):
        yield f"Prometheus has nothing after {iso(fleet.last)}."

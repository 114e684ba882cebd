"""The usage report of a period: rows by owner, Gpu or label that sum to the Gpus' own counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.grouping import Grouping, Key, gpu_key
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tally import Amount, Tally
from gpuledger.model.devices import Device
from gpuledger.model.session import IDLE, PROCESS, UNATTRIBUTED, UNOBSERVED
from gpuledger.model.text import escape_to_one_line

_MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One row. Energy in millijoules, time in seconds of whole Gpus; None if not applicable.

    `account` is process, or one of the Gpus' own: idle, unattributed, unobserved. `methods` has the
    millijoules by method. The row can have used at least `measured` and at most `high`, whatever the model.
    `cost` is in the prices' currency, `grams` is CO2. `bound` is the maximum error of scraped numbers, in
    either direction, compared with the ledgers; None if the numbers are the ledger's. `unmetered` are the
    Gpus that were not measured for some or all of the time, so that their energy is not in the row;
    `metered` is False if that is all of its energy: it is then unknown, not 0.
    """

    key: Key
    account: str = PROCESS
    methods: Mapping[str, int] = field(default_factory=dict)
    high: int | None = None
    resident: Fraction | None = None
    held: Fraction | None = None
    allocated: Fraction | None = None
    sessions: int | None = None
    cost: Fraction | None = None
    grams: Fraction | None = None
    bound: int | None = None
    unmetered: frozenset[str] = frozenset()
    metered: bool = True

    @property
    def energy(self) -> int | None:
        """Energy of all methods; None if it is unknown."""
        return self.millijoules if self.metered else None

    @property
    def millijoules(self) -> int:
        """Energy of all methods."""
        return sum(self.methods.values())

    @property
    def measured(self) -> int:
        """The part that needed no model; also the lower bound."""
        return self.methods.get(MEASURED, 0)

    @property
    def low(self) -> int | None:
        """The lower bound; the Gpus' own accounts have no bounds, because they are not part of any bill."""
        return None if self.high is None else self.measured

    @property
    def apportioned(self) -> int:
        """The part that was split, or integrated from power."""
        return self.millijoules - self.measured


_OPTIONAL_AMOUNTS = tuple(item.name for item in fields(ReportLine) if item.default is None)


@dataclass(frozen=True, slots=True)
class GpuLine:
    """One Gpu: the millijoules in its own accounting, and the seconds in which it was observed.

    Both are None if its energy was not measured.
    """

    uuid: str
    index: str
    model: str
    millijoules: int | None
    observed: Fraction | None


@dataclass(frozen=True, slots=True)
class Period:
    """The requested period and the ledger's period, in unix seconds; all but `last` are at full hours."""

    since: int
    until: int
    first: int
    last: float

    @property
    def whole(self) -> bool:
        """Whether the period covers everything in the ledger."""
        return self.since <= self.first and self.until >= self.last


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Rows by energy, highest first (`lines`), the Gpus' own accounts (`gpu_accounts`), and their `total`.

    `occupied` is the time in which Gpus had any resident, in seconds of whole Gpus: less than the sum of the
    lines if Gpus were shared; None if unknown. `notes` explain numbers that are not from a ledger.
    """

    grouping: Grouping
    prices: Prices
    period: Period
    lines: Sequence[ReportLine]
    gpu_accounts: Sequence[ReportLine]
    total: ReportLine
    gpus: Sequence[GpuLine]
    occupied: Fraction | None
    notes: Sequence[str] = ()

    @property
    def scraped(self) -> bool:
        """Whether the numbers come from a Prometheus instead of a ledger."""
        return self.total.bound is not None

    @property
    def observed(self) -> Fraction:
        """Seconds of whole Gpus that were observed."""
        return sum((gpu.observed for gpu in self.gpus if gpu.observed is not None), Fraction(0))


def report_from_tally(
    tally: Tally,
    grouping: Grouping,
    prices: Prices,
    devices: Mapping[str, Device],
    period: Period,
    unmetered: Collection[str] = (),
) -> UsageReport:
    """Convert a finished Tally to a report. `unmetered` are Gpus that were never measured."""
    missing = tally.unmetered | (frozenset(unmetered) - tally.gpus.keys())
    incomplete = missing | tally.partly_metered
    lines = [_line(key, amount, prices, incomplete) for key, amount in tally.amounts.items()]
    lines.sort(key=lambda line: (-line.millijoules, -(line.resident or 0), line.key))
    metered = bool(tally.gpus) or not missing
    own = [
        gpu_account_line(
            account, sum(getattr(gpu, account) for gpu in tally.gpus.values()), prices, metered=metered
        )
        for account in (IDLE, UNATTRIBUTED, UNOBSERVED)
    ]
    gpus = [
        GpuLine(*gpu_key(uuid, devices), amount.millijoules, Fraction(amount.microseconds, _MICRO))
        for uuid, amount in tally.gpus.items()
    ]
    gpus += [GpuLine(*gpu_key(uuid, devices), None, None) for uuid in missing]
    gpus.sort(key=lambda gpu: (int(gpu.index or -1), gpu.uuid))
    # An upper bound of the total would not bound any single bill.
    total = replace(sum_lines((*lines, *own), ("total",)), high=None, unmetered=incomplete)
    notes = unmetered_notes(gpus, incomplete - missing)
    return UsageReport(grouping, prices, period, lines, own, total, gpus, tally.occupied, notes)


def _line(key: Key, amount: Amount, prices: Prices, incomplete: frozenset[str]) -> ReportLine:
    """The row of an amount. `incomplete` are Gpus that were not measured for some or all of the time."""
    unmetered = incomplete & amount.gpus
    metered = bool(amount.methods) or not unmetered or unmetered < amount.gpus
    energy = amount.millijoules if metered else None
    return ReportLine(
        key,
        methods=dict(amount.methods),
        # Energy that was not measured has no bound.
        high=None if unmetered else amount.high,
        resident=amount.resident,
        held=amount.held,
        allocated=amount.allocated,
        sessions=amount.sessions,
        cost=prices.cost(energy, amount.resident),
        grams=prices.grams(energy),
        unmetered=unmetered,
        metered=metered,
    )


# Gpus named in a note.
_NAMED = 4


def unmetered_notes(gpus: Sequence[GpuLine], partly: Collection[str] = ()) -> tuple[str, ...]:
    """Sentences on the Gpus that have energy in no row. `partly`: measured for a part of the time."""
    missing = [gpu for gpu in gpus if gpu.millijoules is None]
    notes = []
    if missing:
        one = len(missing) == 1
        notes.append(
            f"{len(missing)} of {len(gpus)} GPU{'' if len(gpus) == 1 else 's'} {'is' if one else 'are'} not "
            f"measured (no energy counter and no power reading): {_named(missing)}. The total leaves out "
            f"{'its' if one else 'their'} energy."
        )
    part = [gpu for gpu in gpus if gpu.uuid in partly]
    if part:
        one = len(part) == 1
        notes.append(
            f"{len(part)} GPU{' was' if one else 's were'} not measured for a part of the time with "
            f"processes: {_named(part)}. The total leaves out the energy of that time."
        )
    return tuple(notes)


def _named(gpus: Sequence[GpuLine]) -> str:
    names = [escape_to_one_line(f"GPU {gpu.index} {gpu.model} ({gpu.uuid})") for gpu in gpus[:_NAMED]]
    return ", ".join(names) + (f" and {len(gpus) - _NAMED} more" if len(gpus) > _NAMED else "")


def sum_lines(lines: Iterable[ReportLine], key: Key) -> ReportLine:
    """Sum rows to one. The sum of upper bounds remains an upper bound, unless a row has none."""
    summed = list(lines)
    unmetered = frozenset().union(*(line.unmetered for line in summed))
    methods: Counter[str] = Counter()
    for line in summed:
        methods.update(line.methods)
    sums: dict[str, Any] = {}
    for name in _OPTIONAL_AMOUNTS:
        known = [amount for line in summed if (amount := getattr(line, name)) is not None]
        sums[name] = sum(known) if known else None
    if unmetered:
        sums["high"] = None
    metered = not summed or any(line.metered for line in summed)
    return ReportLine(key, methods=methods, **sums, unmetered=unmetered, metered=metered)


def gpu_account_line(
    account: str, millijoules: int, prices: Prices, bound: int | None = None, *, metered: bool = True
) -> ReportLine:
    """The row of one of the Gpus' own accounts. `metered`: the energy of some Gpu was measured."""
    return ReportLine(
        (account,),
        account,
        methods={account: millijoules} if metered else {},
        cost=prices.energy_cost(millijoules) if metered and prices.kwh is not None else None,
        grams=prices.grams(millijoules) if metered else None,
        bound=bound,
        metered=metered,
    )

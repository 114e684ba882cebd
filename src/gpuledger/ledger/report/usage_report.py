"""The usage report of a period: rows by owner, Gpu or label that sum to the Gpus' own counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.grouping import Grouping, Key, gpu_key
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tally import Tally
from gpuledger.model.devices import Device
from gpuledger.model.session import IDLE, PROCESS, UNATTRIBUTED, UNOBSERVED

_MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One row. Energy in millijoules, time in seconds of whole Gpus; None if not applicable.

    `account` is process, or one of the Gpus' own: idle, unattributed, unobserved. `methods` has the
    millijoules by method. The row can have used at least `measured` and at most `high`, whatever the model.
    `cost` is in the prices' currency, `grams` is CO2. `bound` is the maximum error of scraped numbers, in
    either direction, compared with the ledgers; None if the numbers are the ledger's.
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
    """One Gpu: the millijoules in its own accounting, and the seconds in which it was observed."""

    uuid: str
    index: str
    model: str
    millijoules: int
    observed: Fraction


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
        return sum((gpu.observed for gpu in self.gpus), Fraction(0))


def report_from_tally(
    tally: Tally, grouping: Grouping, prices: Prices, devices: Mapping[str, Device], period: Period
) -> UsageReport:
    """Convert a finished Tally to a report."""
    lines = [
        ReportLine(
            key,
            methods=dict(amount.methods),
            high=amount.high,
            resident=amount.resident,
            held=amount.held,
            allocated=amount.allocated,
            sessions=amount.sessions,
            cost=prices.cost(amount.millijoules, amount.resident),
            grams=prices.grams(amount.millijoules),
        )
        for key, amount in tally.amounts.items()
    ]
    lines.sort(key=lambda line: (-line.millijoules, -(line.resident or 0), line.key))
    own = [
        gpu_account_line(account, sum(getattr(gpu, account) for gpu in tally.gpus.values()), prices)
        for account in (IDLE, UNATTRIBUTED, UNOBSERVED)
    ]
    gpus = [
        GpuLine(*gpu_key(uuid, devices), amount.millijoules, Fraction(amount.microseconds, _MICRO))
        for uuid, amount in tally.gpus.items()
    ]
    gpus.sort(key=lambda gpu: (int(gpu.index or -1), gpu.uuid))
    # An upper bound of the total would not bound any single bill.
    total = replace(sum_lines((*lines, *own), ("total",)), high=None)
    return UsageReport(grouping, prices, period, lines, own, total, gpus, tally.occupied)


def sum_lines(lines: Iterable[ReportLine], key: Key) -> ReportLine:
    """Sum rows to one. The sum of upper bounds remains an upper bound."""
    summed = list(lines)
    methods: Counter[str] = Counter()
    for line in summed:
        methods.update(line.methods)
    sums: dict[str, Any] = {}
    for name in _OPTIONAL_AMOUNTS:
        known = [amount for line in summed if (amount := getattr(line, name)) is not None]
        sums[name] = sum(known) if known else None
    return ReportLine(key, methods=methods, **sums)


def gpu_account_line(account: str, millijoules: int, prices: Prices, bound: int | None = None) -> ReportLine:
    """The row of one of the Gpus' own accounts."""
    return ReportLine(
        (account,),
        account,
        methods={account: millijoules},
        cost=None if prices.kwh is None else prices.energy_cost(millijoules),
        grams=prices.grams(millijoules),
        bound=bound,
    )

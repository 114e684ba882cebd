"""A report: who had what of the Gpus between two hours, in rows that sum to the Gpus' own counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.grouping import Grouping, Key, gpu_key
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tally import Amount, Tally, own_amounts
from gpuledger.model.devices import Device
from gpuledger.model.session import PROCESS

N = TypeVar("N", int, Fraction)

_MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """One row. Energy in millijoules, time in seconds of whole Gpus; None is what this account cannot have.

    `account` is process, or one of the Gpus' own: idle, unattributed, unobserved. `methods` has the
    millijoules by method. `low` and `high` bound what it can have used, whatever the model. `cost` is
    in the prices' currency, `grams` of CO2. `bound` says of numbers that were scraped how far they may be
    from the books', either way; None is that they are the books'.
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
        """All of it."""
        return sum(self.methods.values())

    @property
    def measured(self) -> int:
        """The part that no model was needed for; the lower bound, too."""
        return self.methods.get(MEASURED, 0)

    @property
    def apportioned(self) -> int:
        """The part that was split, or integrated from power."""
        return self.millijoules - self.measured


@dataclass(frozen=True, slots=True)
class GpuLine:
    """One Gpu: the millijoules that its own books have, and the seconds in which it was observed."""

    uuid: str
    index: str
    model: str
    millijoules: int
    observed: Fraction


@dataclass(frozen=True, slots=True)
class Period:
    """From when to when was asked, and from when to when the books go, in unix seconds; the first three are
    at full hours.
    """

    since: int
    until: int
    first: int
    last: float

    @property
    def whole(self) -> bool:
        """Whether it has all that the books have."""
        return self.since <= self.first and self.until >= self.last


@dataclass(frozen=True, slots=True)
class Report:
    """`lines` by energy, most first; then the Gpus' `own` accounts; `total` is the sum of both.

    `occupied` is the time in which Gpus had a resident at all, in seconds of whole Gpus: less than the lines'
    sum where Gpus were shared; None where nobody tells. `notes` are what is to be known of numbers that are
    not out of books.
    """

    grouping: Grouping
    prices: Prices
    period: Period
    lines: Sequence[Line]
    own: Sequence[Line]
    total: Line
    gpus: Sequence[GpuLine]
    occupied: Fraction | None
    notes: Sequence[str] = ()

    @property
    def scraped(self) -> bool:
        """Whether it is what a Prometheus has, not what books have."""
        return self.total.bound is not None

    @property
    def observed(self) -> Fraction:
        """Seconds of whole Gpus in which the books looked at them."""
        return sum((gpu.observed for gpu in self.gpus), Fraction(0))


def report(
    tally: Tally, grouping: Grouping, prices: Prices, devices: Mapping[str, Device], period: Period
) -> Report:
    """What a finished Tally holds, as rows."""
    lines = [_line(key, amount, prices) for key, amount in tally.amounts.items()]
    lines.sort(key=lambda line: (-line.millijoules, -(line.resident or 0), line.key))
    own = [own_line(account, millijoules, prices) for account, millijoules in own_amounts(tally.gpus).items()]
    gpus = []
    for uuid, amount in tally.gpus.items():
        _, index, model = gpu_key(uuid, devices)
        observed = Fraction(amount.microseconds, _MICRO)
        gpus.append(GpuLine(uuid, index, model, amount.millijoules, observed))
    gpus.sort(key=lambda gpu: (int(gpu.index or -1), gpu.uuid))
    # A bound of everybody together is no bound of anybody's bill.
    total = replace(together((*lines, *own), ("total",)), high=None)
    return Report(grouping, prices, period, lines, own, total, gpus, tally.occupied)


def together(lines: Iterable[Line], key: Key) -> Line:
    """Rows as one. The upper bound stays one: of none of them can it be more than the sum."""
    every = list(lines)
    methods: Counter[str] = Counter()
    for line in every:
        methods.update(line.methods)
    return Line(
        key,
        methods=methods,
        high=_sum(line.high for line in every),
        resident=_sum(line.resident for line in every),
        held=_sum(line.held for line in every),
        allocated=_sum(line.allocated for line in every),
        sessions=_sum(line.sessions for line in every),
        cost=_sum(line.cost for line in every),
        grams=_sum(line.grams for line in every),
        bound=_sum(line.bound for line in every),
    )


def _sum(values: Iterable[N | None]) -> N | None:
    told = [value for value in values if value is not None]
    return sum(told[1:], told[0]) if told else None


def _line(key: Key, amount: Amount, prices: Prices) -> Line:
    millijoules = amount.millijoules
    return Line(
        key,
        methods=dict(amount.methods),
        high=amount.high,
        resident=amount.resident,
        held=amount.held,
        allocated=amount.allocated,
        sessions=amount.sessions,
        cost=prices.cost(millijoules, amount.resident),
        grams=prices.grams(millijoules),
    )


def own_line(account: str, millijoules: int, prices: Prices, bound: int | None = None) -> Line:
    """The row of one of the Gpus' own accounts."""
    return Line(
        (account,),
        account,
        methods={account: millijoules},
        cost=None if prices.kwh is None else prices.energy_cost(millijoules),
        grams=prices.grams(millijoules),
        bound=bound,
    )

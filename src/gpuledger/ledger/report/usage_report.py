"""The usage report of a range: rows by owner, Gpu or label that sum to the Gpus' own accounts.

Time, energy and money of the rows add up to the total, whatever the grouping and however the range is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import tzinfo
from fractions import Fraction
from typing import Any, NamedTuple

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.charges import (
    Charges,
    energy_cost,
    sum_charges,
    time_cost,
    unpriced_amount,
)
from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.token_counts import TokenCounts
from gpuledger.model.devices import is_superchip
from gpuledger.model.session import ALLOCATION, IDLE, PROCESS, UNATTRIBUTED, UNOBSERVED
from gpuledger.model.text import list_some

# Range time in which a Gpu was in the books, but was not watched: a stop, a pause or a suspend.
UNWATCHED = "unwatched"
# Used by owners that appeared and ended between two scrapes: in the Gpu's counter, but in no account.
UNSEEN = "unseen"
# The Gpus' own accounts, by which the energy of their rows is named in place of a method.
_OWN = frozenset((IDLE, UNATTRIBUTED, UNOBSERVED, UNSEEN))


class RowNote(str):
    """A note that concerns only the rows that have an amount; `model` is that of its Gpus, None for all."""

    amount: str
    model: str | None

    def __new__(cls, text: str, amount: str, model: str | None = None) -> RowNote:
        """`amount` is the name of an attribute of ReportLine."""
        note = super().__new__(cls, text)
        note.amount, note.model = amount, model
        return note

    def __add__(self, more: str) -> RowNote:
        """The same note with more text."""
        return RowNote(f"{self}{more}", self.amount, self.model)


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One row. Every amount is exact; None if it is not applicable.

    `key` has a text for each column of the grouping; in the rows of the Gpus' own accounts, those of owners
    are empty. `account` is process, or one of the Gpus' own: idle, unattributed, unobserved. `period` is the
    number of the row's period in `UsageReport.periods`.

    Billed, so that rows sum to the total: `gpu_microseconds` of whole Gpus, of which
    `estimated_microseconds` rest on an allocation of unknown fraction, and `uncut_microseconds` (of idle)
    belong to no MIG instance; `methods`, the millijoules by method, and `integrated`, those of owners that
    are power summed over time, whatever the method; `time_charges` and `energy_charges`, what is paid for by
    rate (with `price.idle: spread` also for a part of the idle time and energy); `grams` of CO2.

    Not additive, in seconds of whole Gpus, each second once per row: `resident`, `allocated`, `active` (an
    engine was busy), `held` (resident or allocated, and no engine was busy), `unknown` (neither is known:
    then `active` and `held` are the least).

    The row can have used at least `measured` and at most `high`, whatever the model. `bound` (millijoules)
    and `time_bound` (microseconds) are the maximum errors of scraped numbers, in either direction, compared
    with the ledgers; None if the numbers are the ledger's. `unmetered` are the Gpus that were not measured
    for some or all of the time, so that their energy is not in the row; `metered` is False if that is all of
    its energy: it is then unknown, not 0.

    `tokens` are those of the row's inference servers; None if the report has none. `apportioned_by` is empty,
    or by what time, energy and cost of a model's row were split to this row and others.
    """

    key: Key
    account: str = PROCESS
    period: int = 0
    gpu_microseconds: int | None = None
    estimated_microseconds: int = 0
    uncut_microseconds: int = 0
    methods: Mapping[str, int] = field(default_factory=dict)
    # A statement does not have it.
    integrated: int = field(default=0, compare=False)
    high: int | None = None
    resident: Fraction | None = None
    held: Fraction | None = None
    allocated: Fraction | None = None
    active: Fraction | None = None
    unknown: Fraction | None = None
    sessions: int | None = None
    time_charges: Charges | None = None
    energy_charges: Charges | None = None
    grams: Fraction | None = None
    bound: int | None = None
    time_bound: int | None = None
    unmetered: frozenset[str] = frozenset()
    metered: bool = True
    tokens: TokenCounts | None = None
    apportioned_by: str = ""

    @property
    def time_cost(self) -> Fraction | None:
        """The cost of its priced time in the prices' currency; None if time has no price."""
        return time_cost(self.time_charges)

    @property
    def energy_cost(self) -> Fraction | None:
        """The cost of its priced energy; None if energy has no price, or is unknown."""
        return energy_cost(self.energy_charges)

    @property
    def cost(self) -> Fraction | None:
        """The cost of its priced time and energy; None if neither has a price."""
        known = [cost for cost in (self.time_cost, self.energy_cost) if cost is not None]
        return sum(known, Fraction(0)) if known else None

    @property
    def unpriced_microseconds(self) -> int | None:
        """Billed time that no entry of the price list matched; None if time has no price at all."""
        return None if self.time_charges is None else unpriced_amount(self.time_charges)

    @property
    def unpriced_millijoules(self) -> int | None:
        """Energy that no entry of the price list matched; None if energy has no price at all."""
        return None if self.energy_charges is None else unpriced_amount(self.energy_charges)

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
        """The part of owners that was split, or integrated from power."""
        return sum(amount for method, amount in self.methods.items() if method not in (MEASURED, *_OWN))


# Amounts of which the sum of rows is the sum of the known ones.
_CHARGES = frozenset({"time_charges", "energy_charges"})
_SUMMED = tuple(
    item.name for item in fields(ReportLine) if item.default is None and item.name not in _CHARGES
)


class UnbilledTime(NamedTuple):
    """Time of whole Gpus without a price: `unobserved`, `down`, or `unwatched`; below the total.

    `charges` are what it would have cost; None if time has no price at all. `key` has what the grouping
    names of a Gpu.
    """

    account: str
    microseconds: int
    charges: Charges | None = None
    period: int = 0
    key: Key = ()

    @property
    def cost(self) -> Fraction | None:
        """What it would have cost, without the part that no entry of the price list matched."""
        return time_cost(self.charges)


@dataclass(frozen=True, slots=True)
class GpuLine:
    """One Gpu: the millijoules in its own accounting, and the seconds in which its energy was observed.

    Both are None if its energy was not measured. `integrated` are those of the millijoules that are power
    summed over time, because no energy counter was read; None if that is not known. `accounts` are the
    microseconds that it was watched, by account: owner, idle (with uncut), unattributed, unobserved, down.
    `unwatched` are those between its first and last sight in the range in which it was not.
    """

    uuid: str
    index: str
    model: str
    millijoules: int | None
    observed: Fraction | None
    accounts: Mapping[str, int] = field(default_factory=dict)
    unwatched: int = 0
    # A statement does not have it.
    integrated: int | None = field(default=None, compare=False)

    @property
    def watched(self) -> int:
        """Microseconds in which it was watched."""
        return sum(self.accounts.values())


@dataclass(frozen=True, slots=True)
class Period:
    """The range of the report and of the ledger, in unix seconds."""

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
    """Rows by period and energy, highest first (`lines`), the Gpus' own accounts (`gpu_accounts`), and their
    `total`.

    `basis` says who pays for a second of a shared Gpu. `periods` has one part without a name, or those of
    `--every`. `unbilled` is watched and unwatched time that is not in the total. `fingerprint` identifies the
    price list, `zone` is that of dates (None: the machine's). `occupied` is the time in which somebody had a
    process on a Gpu, or it was allocated, in seconds of whole Gpus; None if unknown. `notes` explain numbers.
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
    basis: str = ALLOCATION
    periods: Sequence[ReportPart] = ()
    unbilled: Sequence[UnbilledTime] = ()
    fingerprint: str = ""
    zone: tzinfo | None = None

    @property
    def has_periods(self) -> bool:
        """Whether rows are by period, even if only one has data."""
        return any(part.name for part in self.periods)

    @property
    def scraped(self) -> bool:
        """Whether the numbers come from a Prometheus instead of a ledger."""
        return self.total.bound is not None

    @property
    def has_tokens(self) -> bool:
        """Whether the tokens of inference servers are part of the report."""
        return self.total.tokens is not None

    @property
    def observed(self) -> Fraction:
        """Seconds of whole Gpus in which their energy was observed."""
        return sum((gpu.observed for gpu in self.gpus if gpu.observed is not None), Fraction(0))

    @property
    def watched(self) -> int:
        """Microseconds in which Gpus were watched."""
        return sum(gpu.watched for gpu in self.gpus)


_INTEGRATED = (
    "Some or all of the energy is an estimate: it was integrated from power readings, because a GPU has no "
    "energy counter, or one that stood still or could not be read."
)


def meter_notes(gpus: Sequence[GpuLine], partly: Collection[str] = ()) -> tuple[str, ...]:
    """Sentences on Gpus that were not measured, or together with others. `partly`: for a part of the time."""
    missing = [gpu for gpu in gpus if gpu.millijoules is None]
    notes = list[str]()
    if missing:
        one = len(missing) == 1
        text = (
            f"{len(missing)} of {len(gpus)} GPU{'' if len(gpus) == 1 else 's'} {'is' if one else 'are'} not "
            f"measured (no energy counter and no power reading): {_named(missing)}. The total leaves out "
            f"{'its' if one else 'their'} energy."
        )
        notes.append(RowNote(text, "unmetered"))
    part = [gpu for gpu in gpus if gpu.uuid in partly]
    if part:
        one = len(part) == 1
        text = (
            f"{len(part)} GPU{' was' if one else 's were'} not measured for a part of the "
            f"time: {_named(part)}. The total leaves out the energy of that time."
        )
        notes.append(RowNote(text, "unmetered"))
    modules = [gpu for gpu in gpus if gpu.millijoules is not None and is_superchip(gpu.model)]
    if modules:
        notes.append(
            f"The energy counter of {_named(modules)} covers the whole module, with its CPU and memory."
        )
    return tuple(notes)


def row_notes(report: UsageReport, line: ReportLine | None, unpriced: Collection[str] = ()) -> list[str]:
    """The notes of a report that concern one row, and one on its energy: without those on what others used.

    `unpriced` are the models of the GPUs of which the row has time without a price, if they are known.
    """
    if line is None:
        return list(report.notes)

    def is_of_others(note: RowNote) -> bool:
        is_other_model = bool(unpriced) and note.model is not None and note.model not in unpriced
        return is_other_model or not getattr(line, note.amount)

    notes = [note for note in report.notes if not (isinstance(note, RowNote) and is_of_others(note))]
    return [*notes, *([_INTEGRATED] if line.integrated else [])]


def _named(gpus: Sequence[GpuLine]) -> str:
    return list_some(f"GPU {gpu.index} {gpu.model} ({gpu.uuid})" for gpu in gpus)


def sum_lines(lines: Iterable[ReportLine], key: Key, account: str = PROCESS) -> ReportLine:
    """Sum rows to one. The sum of upper bounds remains an upper bound, unless a row has none."""
    summed = list(lines)
    unmetered = frozenset().union(*(line.unmetered for line in summed))
    methods: Counter[str] = Counter()
    for line in summed:
        methods.update(line.methods)
    sums: dict[str, Any] = {}
    for name in _SUMMED:
        known = [amount for line in summed if (amount := getattr(line, name)) is not None]
        sums[name] = sum(known) if known else None
    if unmetered:
        sums["high"] = None
    return ReportLine(
        key,
        account,
        summed[0].period if summed else 0,
        **sums,
        estimated_microseconds=sum(line.estimated_microseconds for line in summed),
        uncut_microseconds=sum(line.uncut_microseconds for line in summed),
        methods=methods,
        integrated=sum(line.integrated for line in summed),
        time_charges=sum_charges(line.time_charges for line in summed),
        energy_charges=sum_charges(line.energy_charges for line in summed),
        unmetered=unmetered,
        metered=not summed or any(line.metered for line in summed),
        apportioned_by=next((line.apportioned_by for line in summed if line.apportioned_by), ""),
    )

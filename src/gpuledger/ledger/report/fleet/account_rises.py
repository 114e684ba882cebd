"""The rises of one quantity, energy or time: counters of Gpus, and those of accounts that sum to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.ledger.report.fleet.inventory import DuplicateTargets, Inventory
from gpuledger.ledger.report.fleet.rises import Rise, Rises, add_rise
from gpuledger.ledger.report.fleet.scraped import (
    ENERGY,
    GPU_TIME,
    AccountAnswers,
    Answers,
    Labels,
    Name,
    PeriodEnd,
    SeriesWindows,
    Vector,
)

# Seconds for which a new series is exported as 0 (`energy.zero_hold`): this, or a scrape and its timeout.
_ZERO_HOLD, _TIMEOUT = 30.0, 10.0


class ScrapedQuantity(NamedTuple):
    """How a quantity is exported, in its unit.

    `names` are the labels of its accounts. `digit` is more than what rounding can add to one counter.
    `decided` is the most seconds for which an amount waits for its account.
    """

    names: tuple[str, ...]
    digit: float
    decided: float

    def export_delay(self, interval: float) -> float:
        """Seconds after which an amount has certainly been exported."""
        return self.decided + max(_ZERO_HOLD, interval + min(interval, _TIMEOUT))

    def scrape_delay(self, interval: float) -> float:
        """Seconds after which it has certainly been scraped, too."""
        return self.export_delay(interval) + 2 * interval


# Counters have millijoule precision; the name of an owner is awaited for 30 s.
JOULES = ScrapedQuantity(ENERGY, 0.002, 30.0)
# Counters have microseconds. A process list that fails is awaited for 60 s, the name of an owner for 30 s.
GPU_SECONDS = ScrapedQuantity(GPU_TIME, 5e-6, 90.0)


@dataclass(slots=True)
class Uncertainty:
    """Amounts by Gpu uuid that are in no rise but may belong to any account.

    `heads` were used before the period began and exported late within it; `tails` were used before its end
    and not exported by then; `lost` disappeared when a node's ledger was reset; `unseen` are in the Gpu's
    counter but in no scraped account.
    """

    heads: dict[str, float] = field(default_factory=dict)
    tails: dict[str, float] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class CounterRises:
    """Rises of the counters of one kind.

    `early` within the scrape delay after the period's start: the amount may have been used before. `late` in
    the same time after its end: it may have been used within.
    """

    rises: Rises = field(default_factory=Rises)
    early: Mapping[Name, Rise] = field(default_factory=dict)
    late: Mapping[Name, Rise] = field(default_factory=dict)

    def beyond(self, name: Name) -> tuple[float, float]:
        """The most of a counter that was used before the period's start, and that is missing at its end."""
        early, late = self.early.get(name, Rise()), self.late.get(name, Rise())
        return early.amount + early.error, late.amount + late.error


class AccountRises:
    """Adds consecutive ranges of one quantity, and holds the sums.

    `totals` are the Gpus' own counters, `accounts` those that sum to them; `by_quarter` and
    `totals_by_quarter` are the rises of the accounts and of the totals by the quarter (unix seconds // 900)
    at which their part of the period begins. `began` are
    accounts that existed when the period began, `alive` those that had not ended at its end. `ambiguous` are
    Gpus of which two targets may be duplicates or consecutive. `most` is the most that each Gpu can use in a
    second.
    """

    def __init__(self, quantity: ScrapedQuantity, inventory: Inventory) -> None:
        self.quantity = quantity
        self.inventory = inventory
        self.totals, self.accounts = CounterRises(), CounterRises()
        self.by_quarter: dict[int, dict[Name, Rise]] = defaultdict(dict)
        self.totals_by_quarter: dict[int, dict[Name, Rise]] = defaultdict(dict)
        self.uncertainty = Uncertainty()
        self.began: frozenset[Name] | None = None
        self.alive: frozenset[Name] = frozenset()
        self.ambiguous: set[str] = set()
        self.most: dict[str, float] = {}

    @property
    def is_scraped(self) -> bool:
        """Whether any Gpu exported the quantity."""
        return bool(self.totals.rises.total)

    def begin(self, before: AccountAnswers, ahead: AccountAnswers) -> None:
        """`before` is of a range before the period, `ahead` of a short range at its start."""
        windows = self.inventory.scrapes.windows
        self.totals.rises.begin(windows(before.totals, ENERGY[:1], before.dropped))
        self.accounts.rises.begin(windows(before.accounts, self.quantity.names, before.dropped))
        self.totals.early, self.accounts.early = self._beyond(ahead)

    def add(self, part: AccountAnswers, quarter: int) -> DuplicateTargets:
        """Add the next part of the period, which begins at `quarter`.

        Returns what it found out about duplicate targets.
        """
        duplicates = self._duplicates(part)
        gpu_rises, found = self._rise(part, duplicates, self.totals.rises, self.accounts.rises)
        for rises, sums in ((found, self.by_quarter[quarter]), (gpu_rises, self.totals_by_quarter[quarter])):
            for name, gained in rises.items():
                add_rise(sums, name, gained)
        if self.began is None:
            self.began = self._names(labels for labels, _ in part.accounts.get("alive", ()))
        for (uuid,), gained in gpu_rises.items():
            if gained.resets:
                lost = gained.resets * self.most.get(uuid, 0.0) * self.waits()
                self.uncertainty.lost[uuid] = self.uncertainty.lost.get(uuid, 0.0) + lost
            if gained.ambiguous:
                self.ambiguous.add(uuid)
            elif gained.duplicated is not None:
                self.inventory.doubled.add(uuid)
        return duplicates

    def end(self, after: AccountAnswers | None, ending: PeriodEnd, *, complete: bool) -> None:
        """`after` is of a short range after the period, None if there is none yet.

        `complete`: it is long enough for all amounts to be exported, except with a long `energy.zero_hold`.
        """
        if after is not None:
            self.totals.late, self.accounts.late = self._beyond(after)
        self.alive = self._names(ending.alive)
        before, pending = by_uuid(ending.pending_before), by_uuid(ending.pending_after)
        kept_before, kept = by_uuid(ending.kept_before), by_uuid(ending.kept_after)
        rates = by_uuid(ending.rates)
        accounts: dict[str, float] = defaultdict(float)
        for name, gained in self.accounts.rises.total.items():
            # The error of increase() is not counted as unseen.
            accounts[name[0]] += gained.amount + gained.error + self.quantity.digit
        for (uuid,), gained in self.totals.rises.total.items():
            grown = pending.get(uuid, 0.0) - before.get(uuid, 0.0)
            unseen = gained.amount - gained.error - accounts[uuid] - grown
            if unseen > 0:
                self.uncertainty.unseen[uuid] = unseen
            # What is no longer pending has been exported within the delay.
            held = before.get(uuid, 0.0)
            self.uncertainty.heads[uuid] = min(held, kept_before.get(uuid, held))
            held = pending.get(uuid, 0.0)
            if complete:
                self.uncertainty.tails[uuid] = min(held, kept.get(uuid, held))
            else:
                most = max(self.most.get(uuid, 0.0), 2 * rates.get(uuid, 0.0))
                self.uncertainty.tails[uuid] = held + 2 * self.inventory.interval * most

    def waits(self) -> float:
        """Seconds until a used amount has been exported and scraped once."""
        return self.inventory.interval + self.quantity.export_delay(self.inventory.interval)

    def _duplicates(self, part: AccountAnswers) -> DuplicateTargets:
        return DuplicateTargets(part, self.inventory, self.most, self.waits())

    def born(self, part: AccountAnswers, answers: Answers, names: tuple[str, ...]) -> Callable[[Name], bool]:
        """Return a function: did a counter not exist when the range began, while its Gpu did?"""
        own = self.inventory.scrapes.own_values
        gpus = {own(labels, names[:1])[0] for labels, _ in part.totals.get("alive", ())}
        there = {own(labels, names) for labels, _ in answers.get("alive", ())}
        return lambda name: name[0] in gpus and name not in there

    def _names(self, series: Iterable[Labels]) -> frozenset[Name]:
        return frozenset(self.inventory.scrapes.own_values(labels, self.quantity.names) for labels in series)

    def _born_of(
        self, part: AccountAnswers, windows: SeriesWindows, gpus: Mapping[Name, Rise]
    ) -> Callable[[Name], bool]:
        """The same for accounts; a new one cannot have more than its Gpu used recently."""
        born = self.born(part, part.accounts, self.quantity.names)

        def is_plausibly_new(name: Name) -> bool:
            used = gpus.get(name[:1], Rise()).amount
            return born(name) and all(piece.least <= 2 * used for piece in windows[name].values())

        return is_plausibly_new

    def _beyond(self, part: AccountAnswers) -> tuple[Mapping[Name, Rise], Mapping[Name, Rise]]:
        """The rises of a range that is not added."""
        copies = (self.totals.rises.copy(), self.accounts.rises.copy())
        return self._rise(part, self._duplicates(part), *copies)

    def _rise(
        self, part: AccountAnswers, duplicates: DuplicateTargets, totals: Rises, accounts: Rises
    ) -> tuple[Mapping[Name, Rise], Mapping[Name, Rise]]:
        """Add a range to these rises of Gpus and of accounts, and return its own."""
        windows = self.inventory.scrapes.windows(part.totals, ENERGY[:1], duplicates.dropped)
        gpu_rises = totals.add(windows, _never_new, duplicates.devices)
        duplicates.update(windows, gpu_rises)
        windows = self.inventory.scrapes.windows(part.accounts, self.quantity.names, duplicates.dropped)
        return gpu_rises, accounts.add(windows, self._born_of(part, windows, gpu_rises), duplicates.accounts)


def _never_new(_: Name) -> bool:
    # A Gpu's own counter never ends.
    return False


def by_uuid(answers: Vector) -> dict[str, float]:
    """The highest value by Gpu."""
    found: dict[str, float] = {}
    for labels, value in answers:
        uuid = labels.get("uuid", "")
        found[uuid] = max(found.get(uuid, 0.0), value)
    return found

"""Reconstructs a fleet's ledgers from Prometheus: the rises of all counters, and their uncertainty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger.ledger.report.fleet.inventory import DuplicateTargets, Inventory
from gpuledger.ledger.report.fleet.rises import Rise, Rises
from gpuledger.ledger.report.fleet.scraped import (
    ENERGY,
    SECONDS,
    TIMES,
    Answers,
    Labels,
    Name,
    PeriodEnd,
    ScrapedRange,
    SeriesWindows,
    target_of,
)

# Seconds for which energy waits for its owner's name, and default seconds for which a new series is exported
# as 0.
_NAMELESS, _ZERO_HOLD = 30.0, 30.0
# Joules: counters are exported with millijoule precision.
_DIGIT = 0.002


def export_delay(interval: float) -> float:
    """Seconds after which energy has certainly been exported; `energy.zero_hold` is at least one scrape."""
    return _NAMELESS + max(_ZERO_HOLD, interval)


def scrape_delay(interval: float) -> float:
    """Seconds after which it has certainly been scraped, too."""
    return export_delay(interval) + 2 * interval


@dataclass(slots=True)
class Uncertainty:
    """Joules by Gpu uuid that are in no rise but may belong to any owner.

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

    `early` within `scrape_delay` after the period's start: the energy may have been used before. `late` in
    the same time after its end: it may have been used within.
    """

    rises: Rises = field(default_factory=Rises)
    early: Mapping[Name, Rise] = field(default_factory=dict)
    late: Mapping[Name, Rise] = field(default_factory=dict)


class Fleet:
    """Adds consecutive ranges and holds the sums.

    `devices` and `energy` are in joules; `seconds` are those of whole Gpus by kind; `observed` is the time
    for which each Gpu was scraped. `began` are energy series that existed when the period began, `alive`
    those that had not ended at its end. `unshared` are Devices with an unknown part of their Gpu, `ambiguous`
    Gpus of which two targets may be duplicates or consecutive. `first` and `last` are unix seconds.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.devices, self.energy = CounterRises(), CounterRises()
        self.seconds: dict[str, dict[Name, float]] = {}
        self.observed: dict[str, float] = defaultdict(float)
        self.uncertainty = Uncertainty()
        self.began: frozenset[Name] | None = None
        self.alive: frozenset[Name] = frozenset()
        self.unshared: set[Name] = set()
        self.ambiguous: set[str] = set()
        self.first: float | None = None
        self.last: float | None = None
        self._times = {word: Rises() for word in SECONDS}
        self._watts: dict[str, float] = {}

    def begin(self, before: ScrapedRange, ahead: ScrapedRange) -> None:
        """`before` is a range before the period, `ahead` a short range at its start."""
        dropped = self.inventory.update(before)
        windows = self.inventory.scrapes.windows
        self.devices.rises.begin(windows(before.devices, ENERGY[:1], dropped))
        self.energy.rises.begin(windows(before.energy, ENERGY, dropped))
        for word, answers in before.seconds.items():
            self._times[word].begin(windows(answers, TIMES, dropped))
        if before.devices["last"]:
            self.first = before.ends
        self.devices.early, self.energy.early = self._beyond(ahead)

    def add(self, part: ScrapedRange) -> None:
        """Add the next part of the period."""
        self._watts.update(_by_uuid(part.watts))
        duplicates = self._duplicates(part)
        gpu_rises, _ = self._rise(part, duplicates, self.devices.rises, self.energy.rises)
        if self.began is None:
            self.began = self._names(labels for labels, _ in part.energy.get("alive", ()))
        for (uuid,), gained in gpu_rises.items():
            if gained.resets:
                lost = gained.resets * self._watts.get(uuid, 0.0) * self._waits()
                self.uncertainty.lost[uuid] = self.uncertainty.lost.get(uuid, 0.0) + lost
            if gained.ambiguous:
                self.ambiguous.add(uuid)
            elif gained.duplicated is not None:
                self.inventory.doubled.add(uuid)
        self._add_times(part, duplicates)
        self._count(part, duplicates)

    def end(self, after: ScrapedRange | None, ending: PeriodEnd, *, complete: bool) -> None:
        """`after` is a short range after the period, None if there is none yet.

        `complete`: it is long enough for all energy to be exported, except with a long `energy.zero_hold`.
        """
        if after is not None:
            self.devices.late, self.energy.late = self._beyond(after)
        self.alive = self._names(ending.alive)
        before, pending = _by_uuid(ending.pending_before), _by_uuid(ending.pending_after)
        kept_before, kept = _by_uuid(ending.kept_before), _by_uuid(ending.kept_after)
        rates = _by_uuid(ending.rates)
        accounts: dict[str, float] = defaultdict(float)
        for name, gained in self.energy.rises.total.items():
            # The error of increase() is not counted as unseen energy.
            accounts[name[0]] += gained.amount + gained.error + _DIGIT
        for (uuid,), gained in self.devices.rises.total.items():
            grown = pending.get(uuid, 0.0) - before.get(uuid, 0.0)
            unseen = gained.amount - gained.error - accounts[uuid] - grown
            if unseen > 0:
                self.uncertainty.unseen[uuid] = unseen
            # Energy that is no longer pending has been exported within the delay.
            held = before.get(uuid, 0.0)
            self.uncertainty.heads[uuid] = min(held, kept_before.get(uuid, held))
            held = pending.get(uuid, 0.0)
            if complete:
                self.uncertainty.tails[uuid] = min(held, kept.get(uuid, held))
            else:
                watts = max(self._watts.get(uuid, 0.0), 2 * rates.get(uuid, 0.0))
                self.uncertainty.tails[uuid] = held + 2 * self.inventory.interval * watts

    def _names(self, series: Iterable[Labels]) -> frozenset[Name]:
        return frozenset(self.inventory.scrapes.own_values(labels, ENERGY) for labels in series)

    def _born(self, part: ScrapedRange, answers: Answers, names: Sequence[str]) -> Callable[[Name], bool]:
        """Return a function: did a counter not exist when the range began, while its Gpu did?"""
        own = self.inventory.scrapes.own_values
        gpus = {own(labels, names[:1])[0] for labels, _ in part.devices.get("alive", ())}
        there = {own(labels, names) for labels, _ in answers.get("alive", ())}
        return lambda name: name[0] in gpus and name not in there

    def _born_of(
        self, part: ScrapedRange, energy: SeriesWindows, devices: Mapping[Name, Rise]
    ) -> Callable[[Name], bool]:
        """The same for energy; a new counter cannot have more than its Gpu used recently."""
        born = self._born(part, part.energy, ENERGY)

        def is_plausibly_new(name: Name) -> bool:
            used = devices.get(name[:1], Rise()).amount
            return born(name) and all(piece.least <= 2 * used for piece in energy[name].values())

        return is_plausibly_new

    def _beyond(self, part: ScrapedRange) -> tuple[Mapping[Name, Rise], Mapping[Name, Rise]]:
        """The rises of a range that is not added."""
        copies = (self.devices.rises.copy(), self.energy.rises.copy())
        return self._rise(part, self._duplicates(part), *copies)

    def _rise(
        self, part: ScrapedRange, duplicates: DuplicateTargets, devices: Rises, energy: Rises
    ) -> tuple[Mapping[Name, Rise], Mapping[Name, Rise]]:
        """Add a range to these rises of Gpus and of accounts, and return its own."""
        windows = self.inventory.scrapes.windows(part.devices, ENERGY[:1], duplicates.dropped)
        gpu_rises = devices.add(windows, _never_new, duplicates.devices)
        duplicates.update(windows, gpu_rises)
        windows = self.inventory.scrapes.windows(part.energy, ENERGY, duplicates.dropped)
        return gpu_rises, energy.add(windows, self._born_of(part, windows, gpu_rises), duplicates.energy)

    def _duplicates(self, part: ScrapedRange) -> DuplicateTargets:
        dropped = self.inventory.update(part)
        return DuplicateTargets(part, dropped, self.inventory, self._watts, self._waits())

    def _waits(self) -> float:
        """Seconds until used energy has been exported and scraped once."""
        return self.inventory.interval + export_delay(self.inventory.interval)

    def _add_times(self, part: ScrapedRange, duplicates: DuplicateTargets) -> None:
        own = self.inventory.scrapes.own_values
        ratios = {own(labels, TIMES[:2]): ratio for labels, ratio in part.ratios}
        for word, answers in part.seconds.items():
            windows = self.inventory.scrapes.windows(answers, TIMES, duplicates.dropped)
            rises = self._times[word].add(windows, self._born(part, answers, TIMES), duplicates.times)
            seconds = self.seconds.setdefault(word, {}) if rises else {}
            for name, gained in rises.items():
                ratio = ratios.get(name[:2], None if name[1] else 1.0)
                if ratio is None:
                    self.unshared.add(name[:2])
                else:
                    seconds[name] = seconds.get(name, 0.0) + gained.amount * ratio

    def _count(self, part: ScrapedRange, duplicates: DuplicateTargets) -> None:
        scraped: dict[str, float] = defaultdict(float)
        for labels, count in part.counts:
            uuid, target = labels.get("uuid", ""), target_of(labels)
            if (uuid, target) not in duplicates.dropped:
                scraped[uuid] += count * self.inventory.interval_of(target)
        length = part.ends - part.begins
        there = {uuid: min(seconds - duplicates.seconds[uuid], length) for uuid, seconds in scraped.items()}
        for uuid, seconds in there.items():
            self.observed[uuid] += seconds
        if there:
            self.last = part.ends
            if self.first is None:
                self.first = max(part.begins, part.ends - max(there.values()))


def _never_new(_: Name) -> bool:
    # A Gpu's own counter never ends.
    return False


def _by_uuid(answers: Sequence[tuple[Labels, float]]) -> dict[str, float]:
    """The highest value by Gpu."""
    found: dict[str, float] = {}
    for labels, value in answers:
        uuid = labels.get("uuid", "")
        found[uuid] = max(found.get(uuid, 0.0), value)
    return found

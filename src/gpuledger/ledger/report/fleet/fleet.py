"""A fleet's books as far as its Prometheus has them: what rose where for whom, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger.ledger.report.fleet.inventory import Inventory, Twice
from gpuledger.ledger.report.fleet.rises import Rise, Rises
from gpuledger.ledger.report.fleet.scraped import (
    ENERGY,
    SECONDS,
    TIMES,
    Answers,
    Ending,
    Labels,
    Name,
    Range,
    Target,
    Windows,
    target_of,
)

# Seconds for which energy waits for its owner's name, and for which a new series is told as 0 by default.
_NAMELESS, _ZERO_HOLD = 30.0, 30.0
# Each counter is told to the millijoule.
_DIGIT = 0.002


def held_back(interval: float) -> float:
    """Seconds after which energy has been told at the latest; `energy.zero_hold` is a scrape at least."""
    return _NAMELESS + max(_ZERO_HOLD, interval)


def margin(interval: float) -> float:
    """Seconds after which it has been scraped, too."""
    return held_back(interval) + 2 * interval


@dataclass(slots=True)
class Doubts:
    """Joules that no Rise has and that may be somebody's all the same, by Gpu uuid.

    `heads` were used before the period began and told within it, long after it began; `tails` were used
    before its end and had not been told by then; `lost` went with the books of a node; `unseen` are in the
    Gpu's counter and in no account that was scraped.
    """

    heads: dict[str, float] = field(default_factory=dict)
    tails: dict[str, float] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Told:
    """What the counters of one kind rose by.

    `early` within `margin` after the period's begin: it may have been used before. `late` in
    the same time after its end: it may have been used within.
    """

    rises: Rises = field(default_factory=Rises)
    early: Mapping[Name, Rise] = field(default_factory=dict)
    late: Mapping[Name, Rise] = field(default_factory=dict)


class Fleet:
    """Takes in Ranges, one after the other, and holds what they sum to.

    `devices` and `energy` are in joules; `seconds` are those of whole Gpus by kind; `observed` is for how
    long each Gpu was scraped. `began` are energy series that were there when the period began, `alive` those
    that had not ended at its end. `unshared` are Devices of which nobody told what part of their Gpu they
    are, `unclear` Gpus of which two targets may have told the same or one after the other. `first` and `last`
    are unix seconds.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.devices, self.energy = Told(), Told()
        self.seconds: dict[str, dict[Name, float]] = {}
        self.observed: dict[str, float] = defaultdict(float)
        self.doubts = Doubts()
        self.began: frozenset[Name] | None = None
        self.alive: frozenset[Name] = frozenset()
        self.unshared: set[Name] = set()
        self.unclear: set[str] = set()
        self.first: float | None = None
        self.last: float | None = None
        self._times = {word: Rises() for word in SECONDS}
        self._watts: dict[str, float] = {}

    def begin(self, before: Range, ahead: Range) -> None:
        """`before` is some time until the period begins, `ahead` a little of the period itself."""
        dropped = self.inventory.look(before)
        windows = self.inventory.scrapes.windows
        self.devices.rises.begin(windows(before.devices, ENERGY[:1], dropped))
        self.energy.rises.begin(windows(before.energy, ENERGY, dropped))
        for word, answers in before.seconds.items():
            self._times[word].begin(windows(answers, TIMES, dropped))
        if before.devices["last"]:
            self.first = before.ends
        self.devices.early, self.energy.early = self._beyond(ahead)

    def add(self, part: Range) -> None:
        """The next part of the period."""
        dropped = self.inventory.look(part)
        windows = self.inventory.scrapes.windows
        self._watts.update(_by_uuid(part.watts))
        devices, twice = windows(part.devices, ENERGY[:1], dropped), self._twice(part)
        fallen = self.devices.rises.add(devices, _goes_on, twice.devices)
        twice.look(devices, fallen)
        if self.began is None:
            self.began = self._names(labels for labels, _ in part.energy.get("alive", ()))
        energy = windows(part.energy, ENERGY, dropped)
        self.energy.rises.add(energy, self._born_of(part, energy, fallen), twice.energy)
        for (uuid,), gained in fallen.items():
            if gained.falls:
                gone = gained.falls * self._watts.get(uuid, 0.0) * self._waits()
                self.doubts.lost[uuid] = self.doubts.lost.get(uuid, 0.0) + gone
            if gained.unclear:
                self.unclear.add(uuid)
            elif gained.again is not None:
                self.inventory.doubled.add(uuid)
        self._add_times(part, dropped, twice)
        self._count(part, dropped, twice)

    def end(self, after: Range | None, ending: Ending, *, complete: bool) -> None:
        """`after` is a little time after the period, None where there is none yet; `complete` says that it
        is long enough for everything to have been told but what a long `energy.zero_hold` keeps.
        """
        if after is not None:
            self.devices.late, self.energy.late = self._beyond(after)
        self.alive = self._names(ending.alive)
        before, pending = _by_uuid(ending.pending_before), _by_uuid(ending.pending_after)
        kept_before, kept = _by_uuid(ending.kept_before), _by_uuid(ending.kept_after)
        rates = _by_uuid(ending.rates)
        accounts: dict[str, float] = defaultdict(float)
        for name, gained in self.energy.rises.total.items():
            # An error of increase() is not taken for energy that somebody must have had.
            accounts[name[0]] += gained.amount + gained.error + _DIGIT
        for (uuid,), gained in self.devices.rises.total.items():
            grown = pending.get(uuid, 0.0) - before.get(uuid, 0.0)
            unseen = gained.amount - gained.error - accounts[uuid] - grown
            if unseen > 0:
                self.doubts.unseen[uuid] = unseen
            # What is not pending any more has been told within the margin.
            held = before.get(uuid, 0.0)
            self.doubts.heads[uuid] = min(held, kept_before.get(uuid, held))
            held = pending.get(uuid, 0.0)
            if complete:
                self.doubts.tails[uuid] = min(held, kept.get(uuid, held))
            else:
                watts = max(self._watts.get(uuid, 0.0), 2 * rates.get(uuid, 0.0))
                self.doubts.tails[uuid] = held + 2 * self.inventory.interval * watts

    def _names(self, series: Iterable[Labels]) -> frozenset[Name]:
        return frozenset(self.inventory.scrapes.own(labels, ENERGY) for labels in series)

    def _born(self, part: Range, answers: Answers, names: Sequence[str]) -> Callable[[Name], bool]:
        """Whether a counter was not there when the Range began, while its Gpu was."""
        own = self.inventory.scrapes.own
        gpus = {own(labels, names[:1])[0] for labels, _ in part.devices.get("alive", ())}
        there = {own(labels, names) for labels, _ in answers.get("alive", ())}
        return lambda name: name[0] in gpus and name not in there

    def _born_of(self, part: Range, energy: Windows, devices: Mapping[Name, Rise]) -> Callable[[Name], bool]:
        """The same of energy, which a newborn cannot have more of than its Gpu used lately."""
        born = self._born(part, part.energy, ENERGY)

        def credibly(name: Name) -> bool:
            used = devices.get(name[:1], Rise()).amount
            return born(name) and all(piece.least <= 2 * used for piece in energy[name].values())

        return credibly

    def _beyond(self, part: Range) -> tuple[Mapping[Name, Rise], Mapping[Name, Rise]]:
        dropped = self.inventory.look(part)
        windows = self.inventory.scrapes.windows
        energy = windows(part.energy, ENERGY, dropped)
        told, twice = windows(part.devices, ENERGY[:1], dropped), self._twice(part)
        devices = self.devices.rises.beyond(told, _goes_on, twice.devices)
        twice.look(told, devices)
        return devices, self.energy.rises.beyond(energy, self._born_of(part, energy, devices), twice.energy)

    def _twice(self, part: Range) -> Twice:
        return Twice(part, self.inventory, self._watts, self._waits())

    def _waits(self) -> float:
        """Seconds after which what a Gpu used has been told, and scraped once more."""
        return self.inventory.interval + held_back(self.inventory.interval)

    def _add_times(self, part: Range, dropped: frozenset[tuple[str, Target]], twice: Twice) -> None:
        own = self.inventory.scrapes.own
        ratios = {own(labels, TIMES[:2]): ratio for labels, ratio in part.ratios}
        for word, answers in part.seconds.items():
            windows = self.inventory.scrapes.windows(answers, TIMES, dropped)
            rises = self._times[word].add(windows, self._born(part, answers, TIMES), twice.times)
            seconds = self.seconds.setdefault(word, {}) if rises else {}
            for name, gained in rises.items():
                ratio = ratios.get(name[:2], None if name[1] else 1.0)
                if ratio is None:
                    self.unshared.add(name[:2])
                else:
                    seconds[name] = seconds.get(name, 0.0) + gained.amount * ratio

    def _count(self, part: Range, dropped: frozenset[tuple[str, Target]], twice: Twice) -> None:
        scraped: dict[str, float] = defaultdict(float)
        for labels, count in part.counts:
            uuid, target = labels.get("uuid", ""), target_of(labels)
            if (uuid, target) not in dropped:
                scraped[uuid] += count * self.inventory.interval_of(target)
        length = part.ends - part.begins
        there = {uuid: min(seconds - twice.seconds(uuid), length) for uuid, seconds in scraped.items()}
        for uuid, seconds in there.items():
            self.observed[uuid] += seconds
        if there:
            self.last = part.ends
            if self.first is None:
                self.first = max(part.begins, part.ends - max(there.values()))


def _goes_on(_: Name) -> bool:
    # A Gpu's own counter does not end.
    return False


def _by_uuid(answers: Sequence[tuple[Labels, float]]) -> dict[str, float]:
    """The highest by Gpu."""
    found: dict[str, float] = {}
    for labels, value in answers:
        uuid = labels.get("uuid", "")
        found[uuid] = max(found.get(uuid, 0.0), value)
    return found

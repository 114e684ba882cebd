"""A fleet's books as far as its Prometheus has them: what rose where for whom, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger.ledger.report.inventory import Inventory
from gpuledger.ledger.report.ranges import SECONDS, Ending, Range
from gpuledger.ledger.report.rises import Rise, Rises
from gpuledger.ledger.report.scraped import ENERGY, TIMES, Labels, Name, Target, target_of

# So long after it was booked energy is told: `energy.zero_hold` and the wait for a name, 30 s each.
HELD_BACK = 60.0
# Each counter is told to the millijoule.
_DIGIT = 0.002


@dataclass(slots=True)
class Doubts:
    """Joules that no Rise has and that may be somebody's all the same, by Gpu uuid.

    `tails` were used before the period's end and had not been told by then; `lost` went with the books of a
    node; `unseen` are in the Gpu's counter and in no account that was scraped.
    """

    tails: dict[str, float] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Told:
    """What the counters of one kind rose by.

    `early` within HELD_BACK and two scrapes after the period's begin: it may have been used before. `late` in
    the same time after its end: it may have been used within.
    """

    rises: Rises = field(default_factory=Rises)
    early: Mapping[Name, Rise] = field(default_factory=dict)
    late: Mapping[Name, Rise] = field(default_factory=dict)


class Fleet:
    """Takes in Ranges, one after the other, and holds what they sum to.

    `devices` and `energy` are in joules; `seconds` are those of whole Gpus by kind; `observed` is for how
    long each Gpu was scraped. `alive` are energy series that had not ended at the period's end. `unshared`
    are Devices of which nobody told what part of their Gpu they are. `first` and `last` are unix seconds.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.devices, self.energy = Told(), Told()
        self.seconds: dict[str, dict[Name, float]] = {}
        self.observed: dict[str, float] = defaultdict(float)
        self.doubts = Doubts()
        self.alive: frozenset[Name] = frozenset()
        self.unshared: set[Name] = set()
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
        if self.devices.rises.seen:
            self.first = before.ends
        self.devices.early, self.energy.early = self._beyond(ahead)

    def add(self, part: Range) -> None:
        """The next part of the period."""
        dropped = self.inventory.look(part)
        windows = self.inventory.scrapes.windows
        known = self._known()
        fallen = self.devices.rises.add(windows(part.devices, ENERGY[:1], dropped), lambda _: False)
        self.energy.rises.add(windows(part.energy, ENERGY, dropped), lambda name: name[0] in known)
        self._watts.update(_by_uuid(part.watts))
        for (uuid,), gained in fallen.items():
            if gained.falls:
                seconds = gained.falls * (self.inventory.interval + HELD_BACK)
                gone = self._watts.get(uuid, 0.0) * seconds
                self.doubts.lost[uuid] = self.doubts.lost.get(uuid, 0.0) + gone
        self._add_times(part, dropped, known)
        self._count(part, dropped)

    def end(self, after: Range | None, ending: Ending, *, complete: bool) -> None:
        """`after` is a little time after the period, None where there is none yet; `complete` says that it
        is long enough for everything to have been told.
        """
        if after is not None:
            self.devices.late, self.energy.late = self._beyond(after)
        self.alive = frozenset(self.inventory.scrapes.own(labels, ENERGY) for labels in ending.alive)
        before, pending = _by_uuid(ending.pending_before), _by_uuid(ending.pending_after)
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
            if not complete:
                watts = max(self._watts.get(uuid, 0.0), 2 * rates.get(uuid, 0.0))
                self.doubts.tails[uuid] = pending.get(uuid, 0.0) + 2 * self.inventory.interval * watts

    def _known(self) -> frozenset[str]:
        return frozenset(uuid for (uuid,) in self.devices.rises.seen)

    def _beyond(self, part: Range) -> tuple[Mapping[Name, Rise], Mapping[Name, Rise]]:
        dropped = self.inventory.look(part)
        windows = self.inventory.scrapes.windows
        known = self._known()
        return (
            self.devices.rises.beyond(windows(part.devices, ENERGY[:1], dropped), lambda _: False),
            self.energy.rises.beyond(windows(part.energy, ENERGY, dropped), lambda name: name[0] in known),
        )

    def _add_times(self, part: Range, dropped: frozenset[tuple[str, Target]], known: frozenset[str]) -> None:
        own = self.inventory.scrapes.own
        ratios = {own(labels, TIMES[:2]): ratio for labels, ratio in part.ratios}
        for word, answers in part.seconds.items():
            windows = self.inventory.scrapes.windows(answers, TIMES, dropped)
            rises = self._times[word].add(windows, lambda name: name[0] in known)
            seconds = self.seconds.setdefault(word, {}) if rises else {}
            for name, gained in rises.items():
                ratio = ratios.get(name[:2], None if name[1] else 1.0)
                if ratio is None:
                    self.unshared.add(name[:2])
                else:
                    seconds[name] = seconds.get(name, 0.0) + gained.amount * ratio

    def _count(self, part: Range, dropped: frozenset[tuple[str, Target]]) -> None:
        scraped: dict[str, float] = defaultdict(float)
        for labels, count in part.counts:
            uuid, target = labels.get("uuid", ""), target_of(labels)
            if (uuid, target) not in dropped:
                scraped[uuid] += count * self.inventory.interval_of(target)
        for uuid, seconds in scraped.items():
            self.observed[uuid] += min(seconds, part.ends - part.begins)
        if scraped:
            self.last = part.ends
            if self.first is None:
                self.first = max(part.begins, part.ends - max(scraped.values()))


def _by_uuid(answers: Sequence[tuple[Labels, float]]) -> dict[str, float]:
    """The highest by Gpu."""
    found: dict[str, float] = {}
    for labels, value in answers:
        uuid = labels.get("uuid", "")
        found[uuid] = max(found.get(uuid, 0.0), value)
    return found

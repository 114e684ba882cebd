"""Reconstructs a fleet's ledgers from Prometheus: the rises of all counters, and their uncertainty."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from gpuledger.ledger.report.fleet.account_rises import GPU_SECONDS, JOULES, AccountRises, by_uuid
from gpuledger.ledger.report.fleet.inventory import DuplicateTargets, Inventory
from gpuledger.ledger.report.fleet.rises import Rises
from gpuledger.ledger.report.fleet.scraped import (
    SECONDS,
    TIMES,
    Dropped,
    Name,
    PeriodEnd,
    ScrapedRange,
)
from gpuledger.ledger.watched_time import QUARTER


def scrape_delay(interval: float) -> float:
    """Seconds after which all that was used has certainly been exported and scraped."""
    return max(quantity.scrape_delay(interval) for quantity in (JOULES, GPU_SECONDS))


class Fleet:
    """Adds consecutive ranges and holds the sums.

    `energy` is in joules, `time` in seconds of whole Gpus; `seconds` are those of each owner that do not add
    up, by kind; `observed` is the time for which each Gpu was scraped, `sights` the first and last time.
    `unshared` are Devices with an unknown part of their Gpu. `shares` and `profiles` are those of the MIG
    Instances of each part, by its quarter; `recut` are Gpus with several MIG layouts in a part. `bases` are
    the bases by which time was split. `first` and `last` are unix seconds.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.energy = AccountRises(JOULES, inventory)
        self.time = AccountRises(GPU_SECONDS, inventory)
        self.seconds: dict[str, dict[Name, float]] = {}
        self.observed: dict[str, float] = defaultdict(float)
        self.sights: dict[str, tuple[float, float]] = {}
        self.bases: set[str] = set()
        self.unshared: set[Name] = set()
        self.shares: dict[int, dict[tuple[str, str], Fraction]] = defaultdict(dict)
        self.profiles: dict[int, dict[tuple[str, str], str]] = defaultdict(dict)
        self.recut: set[str] = set()
        self.first: float | None = None
        self.last: float | None = None
        self._times = {word: Rises() for word in SECONDS}

    def begin(self, before: ScrapedRange, ahead: ScrapedRange) -> None:
        """`before` is a range before the period, `ahead` a short range at its start."""
        dropped = self.inventory.update(before)
        for word, answers in before.seconds.items():
            self._times[word].begin(self.inventory.scrapes.windows(answers, TIMES, dropped))
        if before.devices["last"] or before.watched["last"]:
            self.first = before.ends
        first = self.inventory.update(ahead)
        self.energy.begin(before.of_energy(dropped), ahead.of_energy(first))
        self.time.begin(before.of_time(dropped), ahead.of_time(first))

    def add(self, part: ScrapedRange) -> None:
        """Add the next part of the period, in which no price changes."""
        quarter = int(part.begins // QUARTER)
        self.energy.most.update(by_uuid(part.watts))
        # A Gpu has one second in a second.
        self.time.most.update({labels.get("uuid", ""): 1.0 for labels, _ in part.watched["last"]})
        dropped = self.inventory.update(part)
        self.shares[quarter].update(self.inventory.instance_shares(part))
        self.profiles[quarter].update(self.inventory.instance_profiles(part))
        duplicates = self.energy.add(part.of_energy(dropped), quarter)
        of_time = self.time.add(part.of_time(dropped), quarter)
        if part.watched["last"]:
            duplicates = of_time
        self.bases |= {labels["basis"] for labels, _ in part.bases if labels.get("basis")}
        self._add_times(part, duplicates)
        self._count(part, duplicates)

    def end(
        self,
        after: ScrapedRange | None,
        ending: PeriodEnd,
        time_ending: PeriodEnd = PeriodEnd(),  # noqa: B008  (immutable)
        *,
        complete: bool,
    ) -> None:
        """`after` is a short range after the period, None if there is none yet.

        `complete`: it is long enough for all amounts to be exported, except with a long `energy.zero_hold`.
        """
        dropped: Dropped = frozenset() if after is None else self.inventory.update(after)
        energy, time = (None, None) if after is None else (after.of_energy(dropped), after.of_time(dropped))
        self.energy.end(energy, ending, complete=complete)
        self.time.end(time, time_ending, complete=complete)

    def _add_times(self, part: ScrapedRange, duplicates: DuplicateTargets) -> None:
        own = self.inventory.scrapes.own_values
        totals = (
            part.of_time(duplicates.dropped) if part.watched["last"] else part.of_energy(duplicates.dropped)
        )
        ratios = {own(labels, TIMES[:2]): ratio for labels, ratio in part.ratios}
        for word, answers in part.seconds.items():
            windows = self.inventory.scrapes.windows(answers, TIMES, duplicates.dropped)
            born = self.energy.born(totals, answers, TIMES)
            rises = self._times[word].add(windows, born, duplicates.times)
            seconds = self.seconds.setdefault(word, {}) if rises else {}
            for name, gained in rises.items():
                ratio = ratios.get(name[:2], None if name[1] else 1.0)
                if ratio is None:
                    self.unshared.add(name[:2])
                else:
                    seconds[name] = seconds.get(name, 0.0) + gained.amount * ratio

    def _count(self, part: ScrapedRange, duplicates: DuplicateTargets) -> None:
        scraped: dict[str, float] = defaultdict(float)
        for uuid, targets in part.scrapes().items():
            for target, count in targets.items():
                if (uuid, target) not in duplicates.dropped:
                    scraped[uuid] += count * self.inventory.interval_of(target)
        length = part.ends - part.begins
        there = {uuid: min(seconds - duplicates.seconds[uuid], length) for uuid, seconds in scraped.items()}
        totals = part.watched if part.watched["last"] else part.devices
        here = {
            word: {labels.get("uuid") for labels, _ in totals.get(word, ())} for word in ("alive", "still")
        }
        for uuid, seconds in there.items():
            self.observed[uuid] += seconds
            first = part.begins if uuid in here["alive"] else part.ends - seconds
            last = part.ends if uuid in here["still"] else part.begins + seconds
            known = self.sights.get(uuid, (first, last))
            self.sights[uuid] = (known[0], max(last, known[1]))
        if there:
            self.last = part.ends
            if self.first is None:
                self.first = max(part.begins, part.ends - max(there.values()))

"""Price entries at work: their dates in the ledger's time zone, what they match, and which never apply."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from fnmatch import fnmatchcase
from fractions import Fraction
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

from gpuledger.host.time_zone import time_zone_name
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.patterns import pattern_covers
from gpuledger.ledger.report.price_entries import PER_INSTANCE, Patterns, PriceDate, PriceEntry
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.ledger.zone_hours import is_full_hour, local_time
from gpuledger.model.errors import UsageError

# Quarters before and after all dates.
_FIRST, _LAST = -(2**40), 2**40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANY = "*"
_WILDCARDS = frozenset("*?[")


class PriceTarget(NamedTuple):
    """What the patterns of an entry are compared with. `profile` is None where there is no MIG Instance."""

    node: str
    model: str = ""
    profile: str | None = None


def price_target(part: GpuPart, node: str) -> PriceTarget:
    """The target of a part of a Gpu on a node."""
    return PriceTarget(node, part.model, part.profile if part.instance else None)


class QuarterRange(NamedTuple):
    """Quarters from `begins` to before `ends`."""

    begins: int
    ends: int


class PriceRule(NamedTuple):
    """An entry that applies in the quarters from `begins` to before `ends`."""

    entry: PriceEntry
    begins: int = _FIRST
    ends: int = _LAST

    @property
    def stretch(self) -> QuarterRange:
        """The quarters in which it applies."""
        return QuarterRange(self.begins, self.ends)

    def matches(self, target: PriceTarget) -> bool:
        """Whether its patterns match; dates are ignored. With `mig` it matches only MIG Instances."""
        gpu, mig, node = self.entry.patterns
        if mig is not None and (target.profile is None or not fnmatchcase(target.profile, mig)):
            return False
        return all(
            pattern is None or fnmatchcase(name, pattern)
            for pattern, name in ((gpu, target.model), (node, target.node))
        )

    def price(self, part: GpuPart) -> Fraction:
        """The price of an hour of the whole Gpu; an Instance with `per: instance` is a part of it."""
        amount = Fraction(self.entry.amount)
        if self.entry.per == PER_INSTANCE and part.instance and part.share:
            return amount / part.share
        return amount


def build_rules(key: str, entries: Iterable[PriceEntry], zone: tzinfo) -> tuple[PriceRule, ...]:
    """The rules of the setting `key`, in the order of the list.

    Raises UsageError that names the entry if a date is no full hour of the zone, or if it never applies.
    """
    return tuple(_build_rule(key, entry, zone) for entry in entries)


def _build_rule(key: str, entry: PriceEntry, zone: tzinfo) -> PriceRule:
    try:
        begins = _FIRST if entry.begins is None else _quarter("from", entry.begins, zone)
        ends = _LAST if entry.ends is None else _quarter("until", entry.ends, zone)
        if begins >= ends:
            raise ValueError("from is not before until, so the entry never applies; correct one of them")
    except ValueError as error:
        raise UsageError(f"{key}: {entry}: {error}") from None
    return PriceRule(entry, begins, ends)


def _quarter(key: str, given: PriceDate, zone: tzinfo) -> int:
    """The quarter of a date. Raises ValueError if no full hour of the zone begins there, or two do."""
    place = f"in the time zone {time_zone_name(zone)}"
    moment = given.moment
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
        # A day begins with its first instant, even where midnight does not exist or occurs twice.
        if not given.is_day:
            _refuse_skipped(key, moment, place)
    seconds = (moment.astimezone(UTC) - _EPOCH) // timedelta(seconds=1)
    quarter, rest = divmod(seconds, QUARTER)
    if rest or not is_full_hour(quarter, zone):
        hour = local_time(quarter, zone).isoformat("T", "minutes")
        raise ValueError(f"{key}: {given} is {hour} {place}, inside an hour; prices change at full hours")
    return quarter


def _refuse_skipped(key: str, moment: datetime, place: str) -> None:
    """Raise ValueError for a local time that does not exist, or occurs twice."""
    earlier, later = (moment.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    if earlier == later:
        return
    text = moment.replace(tzinfo=None).isoformat("T", "minutes")
    if earlier > later:
        after = earlier.astimezone(moment.tzinfo).isoformat("T", "minutes")
        raise ValueError(
            f"{key}: {text} does not exist {place}, because clocks move forward; the hour after it is {after}"
        )
    both = " or ".join(at.astimezone(moment.tzinfo).isoformat("T", "minutes") for at in (earlier, later))
    raise ValueError(f"{key}: {text} occurs twice {place}, because clocks move back; write {both}")


class PriceTimeline:
    """The rule in force at each time: of those that apply then, the first in the list."""

    def __init__(self, rules: Sequence[PriceRule]) -> None:
        # Sweeps over all beginnings and ends; the heap has the positions of rules that have begun.
        by_begin = sorted(range(len(rules)), key=lambda at: rules[at].begins)
        cuts = sorted({cut for rule in rules for cut in rule.stretch})
        started: list[int] = []
        waiting = iter((*by_begin, None))
        following = next(waiting)
        self._begins: list[int] = []
        self._rules: list[PriceRule | None] = []
        for cut in cuts:
            while following is not None and rules[following].begins <= cut:
                heappush(started, following)
                following = next(waiting)
            while started and rules[started[0]].ends <= cut:
                heappop(started)
            rule = rules[started[0]] if started else None
            if not self._rules or self._rules[-1] is not rule:
                self._begins.append(cut)
                self._rules.append(rule)

    def rule_at(self, quarter: int) -> PriceRule | None:
        """The rule in force in a quarter."""
        place = bisect_right(self._begins, quarter) - 1
        return self._rules[place] if place >= 0 else None

    def pieces(self, stretch: QuarterRange) -> Iterator[tuple[QuarterRange, PriceRule | None]]:
        """The parts of a stretch with one rule, or none, in order of time."""
        at = stretch.begins
        place = bisect_right(self._begins, at) - 1
        while at < stretch.ends:
            following = self._begins[place + 1] if place + 1 < len(self._begins) else stretch.ends
            end = min(following, stretch.ends)
            yield QuarterRange(at, end), self._rules[place] if place >= 0 else None
            at, place = end, place + 1


def hidden_rules(rules: Sequence[PriceRule]) -> list[tuple[PriceRule, list[PriceRule]]]:
    """The rules that never apply, each with those that match first, in the order of the list."""
    groups: dict[Patterns, list[PriceRule]] = {}
    for rule in rules:
        groups.setdefault(rule.entry.patterns, []).append(rule)
    # A node's name without wildcards covers only itself: a list of each node's prices needs few comparisons.
    by_node: dict[str | None, list[Patterns]] = {}
    for patterns in groups:
        node = patterns.node
        by_node.setdefault(node if node and not _WILDCARDS.intersection(node) else None, []).append(patterns)
    found: list[tuple[PriceRule, list[PriceRule]]] = []
    for patterns, group in groups.items():
        candidates = [*by_node.get(None, ()), *(by_node.get(patterns.node, ()) if patterns.node else ())]
        wider = [groups[wide] for wide in candidates if _cover_all(wide, patterns)]
        timeline = PriceTimeline(sorted(chain.from_iterable(wider), key=lambda rule: rule.entry.number))
        for rule in group:
            # Also finds the rules after this one, but not before this one.
            first = dict.fromkeys(one for _, one in timeline.pieces(rule.stretch) if one is not None)
            if rule not in first:
                found.append((rule, list(first)))
    return sorted(found, key=lambda pair: pair[0].entry.number)


def _cover_all(wide: Patterns, narrow: Patterns) -> bool:
    """Whether an entry with the patterns `wide` matches every target that one with `narrow` matches."""
    if wide.mig is not None and (narrow.mig is None or not pattern_covers(wide.mig, narrow.mig)):
        return False
    return all(
        pattern_covers(one or _ANY, other or _ANY)
        for one, other in ((wide.gpu, narrow.gpu), (wide.node, narrow.node))
    )

"""Applies the price settings: what an hour of a Gpu, a kilowatt-hour and its overhead cost at a given time.

All amounts are exact. A price changes only at full hours of the ledger's time zone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo
from fractions import Fraction
from functools import cached_property
from textwrap import shorten
from typing import NamedTuple

from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.price_entries import PriceEntry, PriceValue
from gpuledger.ledger.report.price_rules import (
    PriceRule,
    PriceTarget,
    PriceTimeline,
    QuarterRange,
    build_rules,
    hidden_rules,
    price_target,
)
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import RowNote
from gpuledger.ledger.zone_hours import local_time
from gpuledger.model.text import list_some

GPU_HOUR_KEY, KWH_KEY, PUE_KEY, CO2_KEY = "price.gpu_hour", "price.kwh", "pue", "co2.g_per_kwh"
# What happens where no entry applies.
_WITHOUT = {
    GPU_HOUR_KEY: "this time has no price",
    KWH_KEY: "this energy has no price",
    PUE_KEY: "it counts as 1",
    CO2_KEY: "the CO2 of this energy is unknown",
}
# What only the rows have that no entry applies to.
_UNPRICED = {GPU_HOUR_KEY: "unpriced_microseconds", KWH_KEY: "unpriced_millijoules"}
_FINGERPRINT_DIGITS = 12
# Characters of a list of names in a message.
_SHOWN = 120
# Entries that a message names.
_NAMED = 3


class PriceUse(NamedTuple):
    """A part of a Gpu on a node, which has time between two quarters."""

    part: GpuPart
    node: str
    since: int
    until: int


class _Hole(NamedTuple):
    """A message on time without an entry: what is before and after the name of the target."""

    verb: str
    rest: str


class _Table:
    """The rules of one setting; the first that matches counts."""

    def __init__(self, key: str, value: PriceValue, zone: tzinfo) -> None:
        entries = value if isinstance(value, tuple) else () if value is None else (PriceEntry(1, value),)
        self.key = key
        self.is_list = isinstance(value, tuple)
        self.rules = build_rules(key, entries, zone)
        self._timelines: dict[PriceTarget, PriceTimeline] = {}

    def rule(self, target: PriceTarget, quarter: int) -> PriceRule | None:
        """The rule in force for a target."""
        return self.timeline(target).rule_at(quarter)

    def amount(self, node: str, quarter: int) -> Fraction | None:
        """The amount in force on a node."""
        rule = self.rule(PriceTarget(node), quarter)
        return None if rule is None else Fraction(rule.entry.amount)

    def timeline(self, target: PriceTarget) -> PriceTimeline:
        """The rules in force for a target at each time."""
        found = self._timelines.get(target)
        if found is None:
            matching = [rule for rule in self.rules if rule.matches(target)]
            found = self._timelines[target] = PriceTimeline(matching)
        return found

    @cached_property
    def hidden(self) -> list[tuple[PriceRule, list[PriceRule]]]:
        """The rules that never apply, each with those that match first."""
        return hidden_rules(self.rules)

    def effective(self) -> list[PriceRule]:
        """The rules that can apply."""
        hidden = {rule for rule, _ in self.hidden}
        return [rule for rule in self.rules if rule not in hidden]


class PriceList:
    """The price settings in a time zone. Raises UsageError that names an entry with an invalid date."""

    def __init__(self, prices: Prices, zone: tzinfo) -> None:
        self.currency = prices.currency
        self.zone = zone
        self._gpu_hour = _Table(GPU_HOUR_KEY, prices.gpu_hour, zone)
        self._kwh = _Table(KWH_KEY, prices.kwh, zone)
        self._pue = _Table(PUE_KEY, prices.pue, zone)
        self._co2 = _Table(CO2_KEY, prices.co2, zone)
        self._tables = (self._gpu_hour, self._kwh, self._pue, self._co2)

    @property
    def has_gpu_hour(self) -> bool:
        """Whether time has a price."""
        return bool(self._gpu_hour.rules)

    @property
    def has_kwh(self) -> bool:
        """Whether energy has a price."""
        return bool(self._kwh.rules)

    @property
    def has_profiles(self) -> bool:
        """Whether an entry is for MIG Instances alone."""
        return any(rule.entry.patterns.mig is not None for rule in self._gpu_hour.rules)

    def boundaries(self, since: int, until: int) -> list[int]:
        """The quarters after `since` and before `until` in which an amount may change, in order."""
        ends = {end for table in self._tables for rule in table.rules for end in rule.stretch}
        return sorted(quarter for quarter in ends if since < quarter < until)

    def gpu_hour(self, part: GpuPart, node: str, quarter: int) -> Fraction | None:
        """The price of an hour of the whole Gpu for this part of it; None if no entry applies."""
        rule = self._gpu_hour.rule(price_target(part, node), quarter)
        return None if rule is None else rule.price(part)

    def entry(self, part: GpuPart, node: str, quarter: int) -> str:
        """Identifies the entry of `gpu_hour`, whatever its position and amount; empty if no entry applies."""
        rule = self._gpu_hour.rule(price_target(part, node), quarter)
        return "" if rule is None else rule.entry.identity

    def kwh(self, node: str, quarter: int) -> Fraction | None:
        """The price of a kilowatt-hour; None if no entry applies."""
        return self._kwh.amount(node, quarter)

    def kwh_entry(self, node: str, quarter: int) -> str:
        """Identifies the entry of `kwh`; empty if no entry applies."""
        rule = self._kwh.rule(PriceTarget(node), quarter)
        return "" if rule is None else rule.entry.identity

    def pue(self, node: str, quarter: int) -> Fraction:
        """Energy of the building per unit of energy of its machines; 1 if no entry applies."""
        found = self._pue.amount(node, quarter)
        return Fraction(1) if found is None else found

    def co2(self, node: str, quarter: int) -> Fraction | None:
        """Grams of CO2 per kilowatt-hour; None if no entry applies."""
        return self._co2.amount(node, quarter)

    @property
    def fingerprint(self) -> str:
        """Equal for price lists that mean the same: 2.4 and 2.40, a number and a list of one entry."""
        # Imported lazily, for memory: `serve` needs no fingerprint.
        from hashlib import sha256
        from json import dumps

        meaning: dict[str, object] = {table.key: list(_meaning(table)) for table in self._tables}
        meaning["currency"] = self.currency
        text = dumps(meaning, sort_keys=True)
        return sha256(text.encode()).hexdigest()[:_FINGERPRINT_DIGITS]

    def describe(self) -> list[str]:
        """One line for each price or entry, for people."""
        currency = f" {self.currency}" if self.currency else ""
        units = {
            GPU_HOUR_KEY: f"{currency} per GPU-hour",
            KWH_KEY: f"{currency} per kWh",
            PUE_KEY: "",
            CO2_KEY: " g per kWh",
        }
        lines: list[str] = []
        for table in self._tables:
            for rule in table.rules:
                where = ", ".join(f"{key} {value}" for key, value in rule.entry.conditions)
                number = f" entry {rule.entry.number}" if table.is_list else ""
                amount = f"{rule.entry.amount:f}{units[table.key]}"
                lines.append(f"{table.key}{number}: {amount}{f' ({where})' if where else ''}")
        return lines

    def problems(self, uses: Iterable[PriceUse]) -> list[str]:
        """One line for each entry that never applies or matches nothing here, and for each unpriced stretch.

        `uses` are the parts of Gpus that have time, maybe several stretches of each.
        """
        by_part: dict[PriceTarget, list[QuarterRange]] = defaultdict(list)
        by_node: dict[PriceTarget, list[QuarterRange]] = defaultdict(list)
        for use in uses:
            stretch = QuarterRange(use.since, use.until)
            by_part[price_target(use.part, use.node)].append(stretch)
            by_node[PriceTarget(use.node)].append(stretch)
        found: list[str] = []
        for table in self._tables:
            used = by_part if table is self._gpu_hour else by_node
            found += _hidden_entries(table)
            found += _entries_without_target(table, list(used))
            # The parts of Gpus of one model that have the same hole are one line.
            holes: dict[tuple[str, str, _Hole], list[PriceTarget]] = defaultdict(list)
            for target in sorted(used, key=_order):
                for hole in self._holes(table, target, used[target]):
                    holes[target.node, target.model, hole].append(target)
            for (_, model, hole), targets in holes.items():
                by_gpu = table is self._gpu_hour
                text = f"{table.key}: no entry {hole.verb} {_target_name(*targets, by_gpu=by_gpu)}{hole.rest}"
                amount = _UNPRICED.get(table.key)
                found.append(RowNote(text, amount, model if by_gpu else None) if amount else text)
        return found

    def _holes(self, table: _Table, target: PriceTarget, stretches: list[QuarterRange]) -> Iterator[_Hole]:
        """The stretches in which no entry applies to a target."""
        if not table.rules:
            return
        rules = [rule for rule in table.rules if rule.matches(target)]
        if not rules:
            yield _Hole("matches", f": {_WITHOUT[table.key]}; add an entry for it")
            return
        timeline = table.timeline(target)
        pieces = (piece for one in stretches for piece in timeline.pieces(one))
        for begins, ends in _joined(piece for piece, rule in pieces if rule is None):
            since, until = (f"{local_time(at, self.zone):%Y-%m-%d %H:%M}" for at in (begins, ends))
            before = max((rule for rule in rules if rule.ends <= begins), key=_end, default=None)
            after = min((rule for rule in rules if rule.begins >= ends), key=_begin, default=None)
            near = [f"{before.entry} ends before it"] if before else []
            near += [f"{after.entry} begins after it"] if after else []
            rest = f" from {since} until {until}: {_WITHOUT[table.key]}; {' and '.join(near)}"
            yield _Hole("applies to", rest)


def _order(target: PriceTarget) -> tuple[str, str, str]:
    return target.node, target.model, target.profile or ""


def _begin(rule: PriceRule) -> int:
    return rule.begins


def _end(rule: PriceRule) -> int:
    return rule.ends


def _meaning(table: _Table) -> Iterator[tuple[object, ...]]:
    """The rules that can apply, each as its meaning."""
    rules = table.effective()
    if table.key == PUE_KEY and all(rule.entry.amount == 1 for rule in rules):
        # As if it were not set.
        return
    for rule in rules:
        gpu, mig, node = rule.entry.patterns
        # `*` is as if it were omitted, but for MIG.
        everywhere = [pattern if pattern and pattern.strip("*") else None for pattern in (gpu, node)]
        amount = str(Fraction(rule.entry.amount))
        yield (*everywhere, mig, rule.begins, rule.ends, rule.entry.per, amount)


def _hidden_entries(table: _Table) -> Iterator[str]:
    for rule, first in table.hidden:
        names = list_some((str(other.entry) for other in first), _NAMED, " and ")
        yield (
            f"{table.key}: {rule.entry} never applies, because {names} "
            f"{'match' if len(first) > 1 else 'matches'} first; move it up, or remove it"
        )


def _entries_without_target(table: _Table, targets: Sequence[PriceTarget]) -> Iterator[str]:
    """Entries with patterns that match nothing that has time. Silent if nothing has time."""
    by_gpu = table.key == GPU_HOUR_KEY
    for rule in table.effective() if targets else ():
        if not any(rule.matches(target) for target in targets):
            # Only what the entry compares.
            _, mig, node = rule.entry.patterns
            compared = {
                target._replace(
                    profile=target.profile if mig else None, node=target.node if node or not by_gpu else ""
                )
                for target in targets
            }
            names = ", ".join(sorted(_target_name(target, by_gpu=by_gpu) for target in compared))
            what = "GPU" if by_gpu else "node"
            yield (
                f"{table.key}: {rule.entry} matches no {what} of this report and has no effect; it has "
                f"{shorten(names, _SHOWN, placeholder=' ...')}"
            )


def _target_name(target: PriceTarget, *others: PriceTarget, by_gpu: bool) -> str:
    """The name of a target, and of other parts of Gpus of the same model on the same node."""
    if not by_gpu:
        return f"node {target.node}" if target.node else "this node"
    names = [_profile_name(one.profile) for one in (target, *others)]
    profile = "" if target.profile is None else f" {names[0]}"
    if others:
        profile = f" ({', '.join(names)})"
    node = f" on node {target.node}" if target.node else ""
    return f"{target.model or 'GPU of unknown model'}{profile}{node}"


def _profile_name(profile: str | None) -> str:
    return "whole GPU" if profile is None else profile or "MIG instance of unknown profile"


def _joined(stretches: Iterable[QuarterRange]) -> list[QuarterRange]:
    """The union of stretches, in order of time."""
    found: list[QuarterRange] = []
    for stretch in sorted(stretches):
        if found and stretch.begins <= found[-1].ends:
            found[-1] = QuarterRange(found[-1].begins, max(found[-1].ends, stretch.ends))
        else:
            found.append(stretch)
    return found

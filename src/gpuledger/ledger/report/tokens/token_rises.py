"""The rises of token counters over consecutive ranges, by the same arithmetic as those of energy and time.

A scrape does not say when something was counted since the scrape before it. The rise from the last scrape
before a range to the last one in it includes what was counted between the former and the range's start, and
lacks what was counted between the latter and its end. Each is at most the rise to the next scrape. The errors
of rises with several resets are added (`fleet/rises`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from gpuledger.ledger.report.fleet.account_rises import CounterRises
from gpuledger.ledger.report.fleet.rises import Rise, SharedBound
from gpuledger.ledger.report.fleet.scraped import (
    Answers,
    LabelResolver,
    Labels,
    Name,
    ScrapedRange,
    SeriesWindow,
    SeriesWindows,
    Target,
    Vector,
    combine_windows,
    target_of,
)
from gpuledger.ledger.report.tokens.token_sources import TokenMetric, TokenSource

# The namespace and name of a pod.
Pod = tuple[str, str]
# The namespace, pod and port of a server.
Server = tuple[str, str, str]
# Labels of targets, for those without a series `up`, as prometheus-operator and common scrape jobs set them.
TARGET_LABELS = frozenset(
    (
        *("job", "instance", "namespace", "pod", "container", "service", "endpoint", "node", "cluster"),
        *("prometheus", "prometheus_replica", "replica", "kubernetes_namespace", "kubernetes_pod_name"),
    )
)
# Names of the same label, as different scrape jobs set them.
_NAMESPACE, _POD = ("namespace", "kubernetes_namespace"), ("pod", "kubernetes_pod_name", "pod_name")
# What TensorRT-LLM exported as names of models before spring 2026.
_NO_MODEL = frozenset(("", "undefined"))


class TokenName(NamedTuple):
    """One counter. `others` are its other labels as text: each rank and each reason has its counter.

    `port` is that of its target: a pod can have several servers.
    """

    namespace: str
    pod: str
    port: str
    engine: str
    kind: str
    model: str
    others: str


class TokenRise(NamedTuple):
    """An increase: the true value is at most `over` less than `amount`, and at most `under` more."""

    amount: float = 0.0
    over: float = 0.0
    under: float = 0.0

    def plus(self, other: TokenRise) -> TokenRise:
        """The sum of two counters."""
        return TokenRise(self.amount + other.amount, self.over + other.over, self.under + other.under)

    def less(self, part: TokenRise) -> TokenRise:
        """This counter without what `part` counted of it, at least 0."""
        return TokenRise(max(self.amount - part.amount, 0.0), self.over + part.under, self.under + part.over)


@dataclass(frozen=True, slots=True)
class ScrapedTokens:
    """The answers about tokens for the time from `begins` to `ends` (unix seconds).

    `answers` are by the fields of SeriesWindow, and as `alive` the series that existed when the range began.
    `targets` are the series `up` of the range, `up_before` those that were 1 when it began. `scrapes` are the
    numbers of successful scrapes by target; with them, `answers` have those of samples as `count`, and as
    `still` the series at the end of the range.
    """

    begins: float
    ends: float
    answers: Mapping[TokenMetric, Answers]
    targets: Vector = ()
    up_before: Vector = ()
    scrapes: Vector = ()


@dataclass(slots=True)
class TokenRises:
    """Adds consecutive ranges of a fleet's token counters, and holds the sums.

    `names` are all counters that were seen, also those that did not rise. `missed` are the first values, at
    most, of those that were not scraped before: they may be older than the range, and are in no rise.
    `ended` are counters without a sample just after the range. `labels` are those of each counter.

    `by_address`: a target without a pod is named by its address, as gateways outside Kubernetes.
    """

    sources: Sequence[TokenSource]
    by_address: bool = False
    labels: dict[TokenName, Labels] = field(default_factory=dict)
    names: set[TokenName] = field(default_factory=set)
    missed: dict[TokenName, float] = field(default_factory=dict)
    ended: set[TokenName] = field(default_factory=set)
    _counters: CounterRises = field(default_factory=CounterRises)
    _known: set[Name] = field(default_factory=set)
    # What may have been counted since the last scrape, at the end of a range that ends now.
    _tails: dict[Name, float] = field(default_factory=dict)
    _target_labels: dict[Target, frozenset[str]] = field(default_factory=dict)
    # The engines of which a server exported counters at one moment: a set for each moment that is known.
    _together: dict[Server, set[frozenset[str]]] = field(default_factory=lambda: defaultdict(set))

    def begin(
        self, before: ScrapedTokens, ahead: ScrapedTokens | None = None, new_pods: Collection[Pod] = ()
    ) -> None:
        """Take the last values of a range before the period.

        `ahead` is a short range at its start, in which each counter was scraped once; `new_pods` are those
        that certainly began within it.
        """
        self._learn(before)
        windows = self._windows(before)
        self._counters.rises.begin(windows)
        self._known |= windows.keys()
        if ahead is not None:
            self._counters.early = self._beyond(ahead, new_pods)

    def add(self, part: ScrapedTokens, new_pods: Collection[Pod]) -> None:
        """Add the next range. `new_pods` are those that certainly began within it.

        A counter that begins within the range begins at 0, if its target was scraped before or its pod is
        new: several engines export a counter with the first token only.
        """
        self._learn(part)
        windows = self._windows(part)
        is_new = self._new_counters(part, windows, new_pods)
        self._add_late_first_scrapes(windows)
        for name in windows.keys() - self._known:
            if not is_new(name):
                self.missed[TokenName(*name)] = min(map(_highest_first_value, windows[name].values()))
        self._known |= windows.keys()
        self.names |= {TokenName(*name) for name in windows}
        self._counters.rises.add(windows, is_new, _shared_bounds(windows))

    def end(
        self,
        after: ScrapedTokens | None,
        new_pods: Collection[Pod] = (),
        tails: Mapping[TokenMetric, Vector] | None = None,
    ) -> None:
        """End the period. `after` is a short range after it, `new_pods` are those that began within it.

        `tails` are given if `after` is too short for a scrape of each counter: the most that each live series
        can have counted since its last scrape.
        """
        if after is not None:
            self._counters.late = self._beyond(after, new_pods)
            # In a range without a scrape of it, a counter can have counted what the next one shows.
            more = {name for name, rise in self._counters.late.items() if name in self._known or rise.amount}
            self.names |= {TokenName(*name) for name in more}
        if tails is None:
            self.ended = {name for name in self.names if name not in self._counters.late}
        for metric, series in (tails or {}).items():
            self._tails |= {self._name_of(metric, labels): value for labels, value in series}
        self._learn_engines(tails or {})

    def totals(self) -> Mapping[TokenName, TokenRise]:
        """The rise of each counter that counts.

        Of several engines of a server, the first in the table counts, and others that it did not export
        beside it but before or after: the server was replaced by one of another engine.
        """
        order = {source.engine: place for place, source in enumerate(self.sources)}
        chosen: dict[Server, list[str]] = defaultdict(list)
        for name in sorted(self.names, key=lambda one: order.get(one.engine, len(order))):
            engines, moments = chosen[name[:3]], self._together.get(name[:3], set())
            if name.engine not in engines and all(
                _was_replaced(moments, one, name.engine) for one in engines
            ):
                engines.append(name.engine)
        return {name: self._total(name) for name in self.names if name.engine in chosen[name[:3]]}

    def restarted(self) -> set[TokenName]:
        """The counters that began again within the period: what they had after their last scrape is lost."""
        return {TokenName(*name) for name, rise in self._counters.rises.total.items() if rise.resets}

    def _total(self, name: TokenName) -> TokenRise:
        found = self._counters.rises.total.get(name, Rise())
        over, under = (found.error + more for more in self._counters.beyond(name))
        return TokenRise(found.amount, over, under + self._tails.get(name, 0.0))

    def _beyond(self, part: ScrapedTokens, new_pods: Collection[Pod]) -> Mapping[Name, Rise]:
        """The rises to the first scrape in a range that is not added."""
        self._learn(part)
        windows = self._windows(part)
        is_new = self._new_counters(part, windows, new_pods)
        return self._counters.rises.copy().add(_to_first_scrape(windows), is_new, _shared_bounds(windows))

    def _add_late_first_scrapes(self, windows: SeriesWindows) -> None:
        """Counters that were not scraped at the period's start, but before it and now."""
        seen = self._counters.early.keys() | self.names
        late = {name: windows[name] for name in (self._known & windows.keys()) - seen}
        found = self._counters.rises.copy().add(_to_first_scrape(late), lambda _: False, _shared_bounds(late))
        self._counters.early = {**self._counters.early, **found}

    def _new_counters(
        self, part: ScrapedTokens, windows: SeriesWindows, new_pods: Collection[Pod]
    ) -> Callable[[Name], bool]:
        """Return a function: does a counter certainly begin within the range?"""
        alive = {
            self._name_of(metric, labels)
            for metric, answers in part.answers.items()
            for labels, _ in answers.get("alive", ())
        }
        up = {target_of(labels) for labels, _ in part.up_before}
        # Not later, when those of this range are known, too.
        late = self._late_counters(part) - self._known

        def is_new(name: Name) -> bool:
            if name in alive:
                return False
            if name in late:
                # With a reset, its first samples may be those of a process before.
                return not any(piece.resets for piece in windows[name].values())
            return name[:2] in new_pods or any(target in up for target in windows[name])

        return is_new

    def _late_counters(self, part: ScrapedTokens) -> set[Name]:
        """Counters that exist at the end of a range, and were missing in a scrape of their target before."""
        scrapes = {target_of(labels): count for labels, count in part.scrapes}
        found: set[Name] = set()
        for metric, answers in part.answers.items():
            still = {self._name_of(metric, labels) for labels, _ in answers.get("still", ())}
            found |= still & {
                self._name_of(metric, labels)
                for labels, count in answers.get("count", ())
                if count < scrapes.get(target_of(labels), 0)
            }
        return found

    def _learn(self, part: ScrapedTokens) -> None:
        for labels, _ in part.targets:
            target = target_of(labels)
            known = frozenset(name for name in labels if name != "__name__")
            self._target_labels[target] = self._target_labels.get(target, frozenset()) | known
        self._learn_engines({metric: found.get("alive", ()) for metric, found in part.answers.items()})

    def _learn_engines(self, live: Mapping[TokenMetric, Sequence[tuple[Labels, float]]]) -> None:
        """Learn from the counters that exist at one moment which engines a server exports together."""
        engines: dict[Server, set[str]] = defaultdict(set)
        for metric, series in live.items():
            for labels, _ in series:
                name = self._name_of(metric, labels)
                engines[name[:3]].add(name.engine)
        for server, found in engines.items():
            self._together[server].add(frozenset(found))

    def _windows(self, part: ScrapedTokens) -> SeriesWindows:
        found: dict[Name, Mapping[Target, SeriesWindow]] = {}
        for metric, answers in part.answers.items():
            found.update(combine_windows(answers, partial(self._name_of, metric)))
        return found

    def _name_of(self, metric: TokenMetric, labels: Labels) -> TokenName:
        source = next(one for one in self.sources if one.engine == metric.engine)
        of_target = self._target_labels.get(target_of(labels), TARGET_LABELS)
        model = labels.get(source.model, "")
        ignored = {"__name__", source.model, *of_target}
        others = ",".join(f"{name}={labels[name]}" for name in sorted(labels.keys() - ignored))
        pod, address = _first(labels, _POD), labels.get("instance", "")
        name = TokenName(
            _first(labels, _NAMESPACE),
            pod or (address if self.by_address else ""),
            _port(address),
            metric.engine,
            metric.kind,
            f"({metric.engine})" if model in _NO_MODEL else model,
            f"{metric.name}{{{others}}}",
        )
        self.labels[name] = labels
        return name


def _was_replaced(moments: Collection[frozenset[str]], first: str, second: str) -> bool:
    """Whether a server had each of two engines at some moment, and both at none."""
    return {first, second} <= frozenset().union(*moments) and not any(
        {first, second} <= engines for engines in moments
    )


def _to_first_scrape(windows: SeriesWindows) -> SeriesWindows:
    """The windows up to their first sample, which is the least; with a reset it is not known."""
    return {
        name: {
            target: piece if piece.resets else piece._replace(last=piece.least)
            for target, piece in pieces.items()
        }
        for name, pieces in windows.items()
    }


def _highest_first_value(piece: SeriesWindow) -> float:
    """The most that the first sample of a window can be: the least one, unless there was a reset."""
    return piece.highest if piece.resets else piece.least


def _shared_bounds(windows: SeriesWindows) -> Callable[[Name], SharedBound | None]:
    return lambda name: _bound_of_targets(list(windows[name]))


def _bound_of_targets(targets: Sequence[Target]) -> SharedBound | None:
    """Whether the targets of one counter are one server, scraped by several jobs.

    A pod has one address at a time: other addresses are consecutive pods of the same name.
    """
    addresses = {target[1] for target in targets}
    if len(addresses) == len(targets):
        return None
    return SharedBound() if len(addresses) == 1 else SharedBound(max_after_reset=inf)


def _first(labels: Labels, names: Sequence[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _port(instance: str) -> str:
    _, _, port = instance.rpartition(":")
    return port if port.isdigit() else ""


def pods_that_began(part: ScrapedRange, resolver: LabelResolver) -> frozenset[Pod]:
    """Pods that certainly began within a range: their Gpus were watched when it began, and they were not."""
    own = resolver.own_values
    watched = {
        labels.get("uuid") for totals in (part.devices, part.watched) for labels, _ in totals.get("alive", ())
    }
    gpus: dict[Pod, set[str]] = defaultdict(set)
    there: set[Pod] = set()
    for answers in (part.energy, part.gpu_time):
        for labels, _ in answers.get("last", ()):
            namespace, pod = own(labels, ("namespace", "pod"))
            if pod:
                gpus[namespace, pod].add(labels.get("uuid", ""))
        there |= {
            (namespace, pod)
            for labels, _ in answers.get("alive", ())
            for namespace, pod in [own(labels, ("namespace", "pod"))]
        }
    return frozenset(pod for pod, uuids in gpus.items() if pod not in there and uuids <= watched)

"""The rises of token counters over consecutive ranges, by the same arithmetic as those of energy and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from gpuledger.ledger.report.fleet.rises import Rise, Rises, SharedBound
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
# Labels of targets, for those without a series `up`, as prometheus-operator and common scrape jobs set them.
_TARGET_LABELS = frozenset(
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


@dataclass(frozen=True, slots=True)
class ScrapedTokens:
    """The answers about tokens for the time from `begins` to `ends` (unix seconds).

    `answers` are by the fields of SeriesWindow, and as `alive` the series that existed when the range began.
    `targets` are the series `up` of the range, `up_before` those that were 1 when it began.
    """

    begins: float
    ends: float
    answers: Mapping[TokenMetric, Answers]
    targets: Vector = ()
    up_before: Vector = ()


@dataclass(slots=True)
class TokenRises:
    """Adds consecutive ranges of a fleet's token counters, and holds the sums.

    `names` are all counters that were seen, also those that did not rise.
    """

    sources: Sequence[TokenSource]
    names: set[TokenName] = field(default_factory=set)
    _rises: Rises = field(default_factory=Rises)
    _target_labels: dict[Target, frozenset[str]] = field(default_factory=dict)

    def begin(self, before: ScrapedTokens) -> None:
        """Take the last values of a range before the period."""
        self._learn(before)
        self._rises.begin(self._windows(before))

    def add(self, part: ScrapedTokens, new_pods: Collection[Pod]) -> None:
        """Add the next range. `new_pods` are those that certainly began within it.

        A counter that begins within the range begins at 0, if its target was scraped before or its pod is
        new: several engines export a counter with the first token only.
        """
        self._learn(part)
        windows = self._windows(part)
        self.names |= {TokenName(*name) for name in windows}
        alive = {
            self._name_of(metric, labels)
            for metric, answers in part.answers.items()
            for labels, _ in answers.get("alive", ())
        }
        up = {target_of(labels) for labels, _ in part.up_before}

        def is_new(name: Name) -> bool:
            if name in alive:
                return False
            return name[:2] in new_pods or any(target in up for target in windows[name])

        def shared(name: Name) -> SharedBound | None:
            return _bound_of_targets(list(windows[name]))

        self._rises.add(windows, is_new, shared)

    def totals(self) -> Mapping[TokenName, Rise]:
        """The rise of each counter that counts: of one engine per server, the first in the table."""
        order = {source.engine: place for place, source in enumerate(self.sources)}
        chosen: dict[tuple[str, str, str], str] = {}
        for name in sorted(self.names, key=lambda one: order.get(one.engine, len(order))):
            chosen.setdefault(name[:3], name.engine)
        return {
            name: self._rises.total.get(name, Rise())
            for name in self.names
            if chosen[name[:3]] == name.engine
        }

    def _learn(self, part: ScrapedTokens) -> None:
        for labels, _ in part.targets:
            target = target_of(labels)
            known = frozenset(name for name in labels if name != "__name__")
            self._target_labels[target] = self._target_labels.get(target, frozenset()) | known

    def _windows(self, part: ScrapedTokens) -> SeriesWindows:
        found: dict[Name, Mapping[Target, SeriesWindow]] = {}
        for metric, answers in part.answers.items():
            found.update(combine_windows(answers, partial(self._name_of, metric)))
        return found

    def _name_of(self, metric: TokenMetric, labels: Labels) -> TokenName:
        source = next(one for one in self.sources if one.engine == metric.engine)
        of_target = self._target_labels.get(target_of(labels), _TARGET_LABELS)
        model = labels.get(source.model, "")
        ignored = {"__name__", source.model, *of_target}
        others = ",".join(f"{name}={labels[name]}" for name in sorted(labels.keys() - ignored))
        return TokenName(
            _first(labels, _NAMESPACE),
            _first(labels, _POD),
            _port(labels.get("instance", "")),
            metric.engine,
            metric.kind,
            f"({metric.engine})" if model in _NO_MODEL else model,
            f"{metric.name}{{{others}}}",
        )


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

"""Checks of `doctor --prometheus`: whether tokens of inference servers and energy of their pods meet, now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuledger.app.counter_queries import plain_matchers, with_matchers
from gpuledger.app.fleet_queries import ENERGY, GPU_TIME
from gpuledger.app.gateway_queries import query_adapters, sources_of_gateways
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.token_queries import TokenQueries
from gpuledger.ledger.report.fleet.scraped import LabelResolver
from gpuledger.ledger.report.settings import FleetSettings
from gpuledger.ledger.report.tokens.gateway_notes import UNMATCHED, listed_names
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.report.tokens.token_gateways import DEFAULT_GATEWAYS
from gpuledger.ledger.report.tokens.token_notes import LOST_LABELS, NOT_SCRAPED, named_pods
from gpuledger.ledger.report.tokens.token_rises import Pod, TokenRises
from gpuledger.model.checks import Check, Finding, fails, skipped, warning, works

# Seconds in which series count as current: some scrape intervals.
_RECENT = 300.0
_SCRAPE = ("prometheus.gpuledger", "gpuledger in Prometheus")
_LABELS = ("prometheus.labels", "owners in Prometheus")
_TOKENS = ("tokens.counters", "token counters")
_NO_ENERGY = ("tokens.energy", "energy of pods with tokens")
_NO_TOKENS = ("tokens.scraped", "tokens of pods on GPUs")
_MODELS = ("tokens.models", "models of pods")
_GATEWAYS = ("tokens.gateways", "models of gateways")


def prometheus_checks(fleet: FleetSettings, tokens: TokenSettings, now: float) -> tuple[Check, ...]:
    """The checks of this Prometheus. Raises UsageError for a malformed URL or header."""
    join = TokenJoin(PrometheusClient(fleet.url, fleet.headers, fleet.timeout), fleet.match, tokens, now)
    limit = fleet.timeout + 5

    def checked() -> Iterator[Finding]:
        join.query()
        yield from join.findings()

    return (Check(*_SCRAPE, checked, limit=limit),)


@dataclass(slots=True)
class TokenJoin:
    """What Prometheus has of pods with tokens and of pods on GPUs."""

    client: PrometheusClient
    match: str
    tokens: TokenSettings
    now: float
    pods: set[Pod] = field(default_factory=set)
    models: dict[Pod, set[str]] = field(default_factory=lambda: defaultdict(set))
    is_scraped: bool = False
    is_renamed: bool = False
    unnamed: set[str] = field(default_factory=set)
    # By gateway: names of models that no engine has; empty if all match.
    gateways: dict[str, set[str]] = field(default_factory=dict)

    def query(self) -> None:
        """Query the current series. Raises GpuledgerError."""
        match = plain_matchers(self.match)
        resolver = LabelResolver()
        for family in (ENERGY, GPU_TIME):
            series = [
                labels for labels, _ in self.client.query_vector(with_matchers(family, match), self.now)
            ]
            self.is_scraped = self.is_scraped or bool(series)
            resolver.learn(series)
            self._learn_pods(resolver, series)
        queries = TokenQueries(self.client, self.tokens, self.match)
        rises = TokenRises(queries.sources)
        rises.add(queries.query_range(self.now - _RECENT, self.now, 60.0), ())
        for name in rises.totals():
            if name.pod:
                self.models[name.namespace, name.pod].add(name.model)
            else:
                self.unnamed.add(name.engine)
        self._query_gateways(match)

    def _query_gateways(self, match: str) -> None:
        gateways = self.tokens.gateways or DEFAULT_GATEWAYS
        queries = TokenQueries(self.client, sources_of_gateways(self.tokens, gateways), self.match)
        rises = TokenRises(queries.sources, by_address=True)
        rises.add(queries.query_range(self.now - _RECENT, self.now, 60.0), ())
        match = plain_matchers(self.tokens.match) or match
        pods = query_adapters(self.client, match, self.now - _RECENT, self.now)
        models = {name for names in self.models.values() for name in names}
        adapters = {
            name: model for name, found in pods.items() for pod in found for model in self.models.get(pod, ())
        }
        by_name = {gateway.gateway: gateway for gateway in gateways}
        for name in rises.totals():
            labels, unmatched = rises.labels[name], self.gateways.setdefault(name.engine, set())
            if not by_name[name.engine].served_model(labels, models, adapters):
                unmatched.add(by_name[name.engine].name_of_model(labels))

    def _learn_pods(self, resolver: LabelResolver, series: Iterable[Mapping[str, str]]) -> None:
        for labels in series:
            if labels.get("exported_pod") or labels.get("exported_namespace"):
                self.is_renamed = True
            namespace, pod = resolver.own_values(labels, ("namespace", "pod"))
            if pod and labels.get("account") in ("process", "owner"):
                self.pods.add((namespace, pod))

    def findings(self) -> Iterator[Finding]:
        """One finding per question, of which later ones are skipped if an earlier one fails."""
        if not self.is_scraped:
            yield fails(
                *_SCRAPE,
                "Prometheus has no energy and no GPU time of gpuledger now",
                "scrape gpuledger's /metrics or /metrics/native, and check --prometheus.match",
            )
        else:
            yield works(*_SCRAPE, f"{len(self.pods)} pods on GPUs")
            yield self._labels()
        if not self.models and not self.unnamed:
            yield fails(*_TOKENS, "energy, no tokens: no token counter of an inference server", NOT_SCRAPED)
            return
        yield self._counters()
        yield from self._join()

    def _labels(self) -> Finding:
        if self.is_renamed:
            return fails(
                *_LABELS,
                "labels of owners are renamed to exported_pod and exported_namespace: rules and dashboards "
                "take the exporter's pod for the owner, and join no tokens (reports read both names)",
                "set honor_labels: true in the scrape job of gpuledger",
            )
        return works(*_LABELS, "namespace and pod are those of the owners")

    def _counters(self) -> Finding:
        if self.unnamed:
            return fails(
                *_TOKENS,
                f"counters of {', '.join(sorted(self.unnamed))} without the labels namespace and pod",
                "let the scrape set them, as a PodMonitor does: tokens join energy by pod",
            )
        names = {name for models in self.models.values() for name in models}
        return works(*_TOKENS, f"{len(self.models)} pods export tokens of {len(names)} models")

    def _join(self) -> Iterator[Finding]:
        lost = set(self.models) - self.pods
        if not self.is_scraped:
            yield skipped(*_NO_ENERGY, "gpuledger is not scraped")
            return
        if lost:
            yield fails(*_NO_ENERGY, f"tokens found, no energy: {named_pods(lost)}", LOST_LABELS)
        else:
            yield works(*_NO_ENERGY, "each pod with tokens has energy or GPU time")
        silent = self.pods - set(self.models)
        if silent:
            yield warning(
                *_NO_TOKENS,
                f"energy, no tokens: {named_pods(silent)}; no fault if they serve no model",
                NOT_SCRAPED,
            )
        else:
            yield works(*_NO_TOKENS, "each pod on a GPU exports tokens")
        several = {pod: names for pod, names in self.models.items() if len(names) > 1}
        for pod, names in sorted(several.items()):
            yield warning(
                *_MODELS,
                f"two model names in one pod: {named_pods([pod])} exports {', '.join(sorted(names))}; its "
                "row is (several)",
                "serve each model in a pod: the energy of one process cannot be split between its models",
            )
        if not several:
            yield works(*_MODELS, "each pod serves one model")
        yield from self._gateways()

    def _gateways(self) -> Iterator[Finding]:
        if not self.gateways:
            return
        unmatched = {gateway: names for gateway, names in sorted(self.gateways.items()) if names}
        if not unmatched:
            yield works(*_GATEWAYS, f"{', '.join(sorted(self.gateways))}: each model is one of an engine")
            return
        listed = "; ".join(f"{gateway}: {listed_names(names)}" for gateway, names in unmatched.items())
        yield warning(*_GATEWAYS, f"models that no engine has: {listed}", UNMATCHED)

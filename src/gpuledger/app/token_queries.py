"""The PromQL queries of token counters, in parts of at most a day as those of a fleet's report."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.app.counter_queries import (
    plain_matchers,
    query_levels,
    query_rises,
    scrape_intervals,
    span,
    with_matchers,
)
from gpuledger.app.fleet_queries import DAY, DEFAULT_INTERVAL
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.scraped import ScrapedRange, Vector
from gpuledger.ledger.report.report_keys import LABEL
from gpuledger.ledger.report.tokens.served_models import ServedModels
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.report.tokens.token_rises import ScrapedTokens, TokenRises, pods_that_began
from gpuledger.ledger.report.tokens.token_sources import DEFAULT_SOURCES, TokenMetric


class TokenQueries:
    """The queries about tokens. `match` are the labels of `--prometheus.match`."""

    def __init__(self, client: PrometheusClient, settings: TokenSettings, match: str) -> None:
        self._client = client
        self._query = client.query_vector
        self._match = plain_matchers(settings.match or match)
        self.sources = settings.sources or DEFAULT_SOURCES
        self._metrics = [metric for source in self.sources for metric in source.metrics()]

    def scrape_interval(self, times: Sequence[float], default: float) -> float:
        """The longest time between scrapes of servers, at the latest of these times that has samples."""
        # One kind of each engine suffices.
        kinds = {source.engine: source.metrics()[0].kind for source in self.sources}
        names = {metric.name for metric in self._metrics if metric.kind == kinds[metric.engine]}
        counters = with_matchers("", f'__name__=~"{"|".join(sorted(names))}"', self._match)
        for at in reversed(times):
            if found := scrape_intervals(self._client.query_sample_times, counters, at):
                return max(found.values())
        return default

    def query_tails(self, at: float, interval: float) -> dict[TokenMetric, Vector]:
        """The most that each live counter can have counted since its last scrape.

        Two scrape intervals at twice its mean rate of the last four: an engine has no highest rate.
        """
        recent = span(4 * interval)
        return {
            metric: self._query(f"{2 * 2 * interval:g} * rate({self._of(metric)}[{recent}])", at)
            for metric in self._present(at - 4 * interval, at)
        }

    def query_before(self, begins: float, ends: float) -> ScrapedTokens:
        """The last values in a range before the period."""
        answers = {
            metric: query_levels(self._query, self._of(metric), begins, ends)
            for metric in self._present(begins, ends)
        }
        return ScrapedTokens(begins, ends, answers, self._targets(begins, ends) if answers else ())

    def query_range(
        self, begins: float, ends: float, interval: float, *, births: bool = False
    ) -> ScrapedTokens:
        """All answers about one part of the period. `interval` is the longest time between scrapes.

        `births`: also those that show which counters began after the first scrape of their target.
        """
        answers = {
            metric: query_rises(self._query, self._of(metric), begins, ends, interval)
            for metric in self._present(begins, ends)
        }
        if not answers:
            return ScrapedTokens(begins, ends, {})
        up = self._query(f"{with_matchers('up', self._match)} == 1", begins)
        scrapes: Vector = []
        if births:
            within = f"[{span(ends - begins)}]"
            scrapes = self._query(f"sum_over_time({with_matchers('up', self._match)}{within})", ends)
            for metric, found in answers.items():
                found["count"] = self._query(f"count_over_time({self._of(metric)}{within})", ends)
                found["still"] = self._query(self._of(metric), ends)
        return ScrapedTokens(begins, ends, answers, self._targets(begins, ends), up, scrapes)

    def _present(self, begins: float, ends: float) -> Sequence[TokenMetric]:
        """The counters that have data in a range: one query instead of one for each name."""
        names = sorted({metric.name for metric in self._metrics})
        if not names:
            return ()
        selector = with_matchers("", f'__name__=~"{"|".join(names)}"', self._match)
        found = self._query(f"count by (__name__) (last_over_time({selector}[{span(ends - begins)}]))", ends)
        known = {labels.get("__name__", "") for labels, _ in found}
        return [metric for metric in self._metrics if metric.name in known]

    def _targets(self, begins: float, ends: float) -> Vector:
        """The series `up` of a range: their labels are those of the targets."""
        up = with_matchers("up", self._match)
        return self._query(f"last_over_time({up}[{span(ends - begins)}])", ends)

    def _of(self, metric: TokenMetric) -> str:
        return with_matchers(metric.name, metric.matchers, self._match)


class ServedTokens:
    """Reads the tokens of one report: `rises` has those of each part of its range.

    `by_address` as in TokenRises: for gateways, of which the pods are on no Gpu, so that only scrapes show
    when a counter began.
    """

    def __init__(
        self, client: PrometheusClient, settings: TokenSettings, match: str, *, by_address: bool = False
    ) -> None:
        self._settings, self._by_address = settings, by_address
        self._queries = TokenQueries(client, settings, match)
        self.rises: list[TokenRises] = []
        self._rises = TokenRises(self._queries.sources)
        # The longest time between scrapes of the servers: not that of gpuledger.
        self._interval = DEFAULT_INTERVAL
        # Facts of pods from which the models and roles of pods follow.
        labels = (settings.model_label, settings.role_label)
        self.keys = ["controller", *(f"{LABEL}{name}" for name in labels if name)]

    def models_of(self, inventory: Inventory) -> ServedModels:
        """The models of this fleet's pods."""
        return ServedModels(inventory, self._settings.model_label, self._settings.role_label)

    def begin(self, ahead: ScrapedRange, ends: Sequence[float], inventory: Inventory) -> None:
        """Begin a part of the report with ranges that have these `ends`. `ahead` is a range at its start."""
        begins = ahead.begins
        self._interval = self._queries.scrape_interval(ends, inventory.interval)
        self._rises = TokenRises(self._queries.sources, self._by_address)
        self.rises.append(self._rises)
        first = self._query(begins, min(begins + 2 * self._interval, ends[-1]))
        before = self._queries.query_before(begins - DAY, begins)
        self._rises.begin(before, first, pods_that_began(ahead, inventory.scrapes))

    def add(self, part: ScrapedRange, inventory: Inventory) -> None:
        """Add the tokens of a range, of which the energy is known."""
        found = self._query(part.begins, part.ends)
        self._rises.add(found, pods_that_began(part, inventory.scrapes))

    def end(self, ends: float, now: float, after: ScrapedRange | None, inventory: Inventory) -> None:
        """End the part. `after` is a range after it, if there is one yet."""
        until = min(ends + 2 * self._interval, now)
        later = self._query(ends, until) if until - ends >= 1 else None
        new_pods = pods_that_began(after, inventory.scrapes) if after is not None else ()
        is_complete = until >= ends + 2 * self._interval
        tails = None if is_complete else self._queries.query_tails(ends, self._interval)
        self._rises.end(later, new_pods, tails)

    def _query(self, begins: float, ends: float) -> ScrapedTokens:
        return self._queries.query_range(begins, ends, self._interval, births=self._by_address)

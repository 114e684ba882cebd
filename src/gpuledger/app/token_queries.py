"""The PromQL queries of token counters, in parts of at most a day as those of a fleet's report."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.app.counter_queries import (
    plain_matchers,
    query_levels,
    query_rises,
    span,
    with_matchers,
)
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.ledger.report.fleet.scraped import Vector
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.report.tokens.token_rises import ScrapedTokens
from gpuledger.ledger.report.tokens.token_sources import DEFAULT_SOURCES, TokenMetric


class TokenQueries:
    """The queries about tokens. `match` are the labels of `--prometheus.match`."""

    def __init__(self, client: PrometheusClient, settings: TokenSettings, match: str) -> None:
        self._query = client.query_vector
        self._match = plain_matchers(settings.match or match)
        self.sources = settings.sources or DEFAULT_SOURCES
        self._metrics = [metric for source in self.sources for metric in source.metrics()]

    def query_before(self, begins: float, ends: float) -> ScrapedTokens:
        """The last values in a range before the period."""
        answers = {
            metric: query_levels(self._query, self._of(metric), begins, ends)
            for metric in self._present(begins, ends)
        }
        return ScrapedTokens(begins, ends, answers, self._targets(begins, ends) if answers else ())

    def query_range(self, begins: float, ends: float, interval: float) -> ScrapedTokens:
        """All answers about one part of the period. `interval` is the longest time between scrapes."""
        answers = {
            metric: query_rises(self._query, self._of(metric), begins, ends, interval)
            for metric in self._present(begins, ends)
        }
        if not answers:
            return ScrapedTokens(begins, ends, {})
        up = self._query(f"{with_matchers('up', self._match)} == 1", begins)
        return ScrapedTokens(begins, ends, answers, self._targets(begins, ends), up)

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

"""Queries about tokens: which ranges, by the scrape interval of the servers and not that of gpuledger."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from gpuledger.app.token_queries import ServedTokens, TokenQueries
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.scraped import ScrapedRange
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.report.tokens.token_rises import TokenRise

NOW = 1_700_000_000.0
DAY = 86_400.0
COUNTER = "vllm:generation_tokens_total"
SERIES = {"model_name": "m", "namespace": "s", "pod": "p", "instance": "p:8000", "job": "e"}
NOTHING = {"last": (), "least": ()}


class ScriptedPrometheus:
    """A Prometheus with one counter, scraped at times of which the counter is this function."""

    def __init__(self, every: float, rate: float = 1.0, ends: float = NOW) -> None:
        self.every, self.rate, self.ends = every, rate, ends
        self.times = [ends - every * number - 1 for number in range(int(3 * DAY / every))][::-1]
        self.seen: list[tuple[str, float]] = []

    def query_sample_times(self, query: str, at: float) -> list[tuple[Any, list[float]]]:
        assert "__name__=~" in query
        found = self._within(at - 600, at)
        return [(SERIES, found)] if found else []

    def query_vector(self, query: str, at: float) -> list[tuple[Any, float]]:
        self.seen.append((query, at))
        window = re.search(r"\[(\d+)ms\]", query)
        seconds = int(window[1]) / 1000 if window else 300.0
        found = self._within(at - seconds, at)
        if not found:
            return []
        if query.startswith("count by (__name__)"):
            return [({"__name__": COUNTER}, 1.0)]
        if COUNTER not in query or query.startswith("resets"):
            return []
        if "rate(" in query:
            factor = float(query.partition(" * ")[0])
            return [(SERIES, factor * self.rate)]
        moment = found[0] if query.startswith("min_over_time") else found[-1]
        return [(SERIES, self._value(moment))]

    def ranges(self) -> set[tuple[float, float]]:
        """The ranges of the values of the counter, relative to NOW."""
        found = set()
        for query, at in self.seen:
            window = re.match(rf"last_over_time\(({re.escape(COUNTER)})\[(\d+)ms\]", query)
            if window:
                found.add((at - int(window[2]) / 1000 - NOW, at - NOW))
        return found

    def _value(self, at: float) -> float:
        return self.rate * (at - NOW + 3 * DAY)

    def _within(self, begins: float, ends: float) -> list[float]:
        return [time for time in self.times if begins < time <= ends]


def served(prometheus: ScriptedPrometheus, begins: float, ends: float) -> TokenRise:
    client: Any = prometheus
    tokens, inventory = ServedTokens(client, TokenSettings(), ""), Inventory(15.0)

    def scraped(since: float, until: float) -> ScrapedRange:
        return ScrapedRange(since, until, NOTHING, NOTHING)

    tokens.begin(scraped(begins, begins + 150), [ends], inventory)
    tokens.add(scraped(begins, ends), inventory)
    tokens.end(ends, NOW, None, inventory)
    (rises,) = tokens.rises
    (found,) = rises.totals().values()
    return found


def test_the_ends_of_a_range_are_two_scrapes_of_the_servers() -> None:
    """Engines each 300 s, gpuledger each 15 s."""
    prometheus = ScriptedPrometheus(300.0)
    found = served(prometheus, NOW - 7250, NOW - 3650)
    assert prometheus.ranges() == {
        (-7250 - DAY, -7250),
        (-7250, -7250 + 600),
        (-7250, -3650),
        (-3650, -3650 + 600),
    }
    # Scrapes at -7501, -7201, ..., -3901, -3601.
    assert found == TokenRise(3600, over=300, under=300)


def test_a_range_that_ends_now_can_lack_two_scrapes_at_twice_the_rate() -> None:
    prometheus = ScriptedPrometheus(60.0, rate=2.0)
    found = served(prometheus, NOW - 3600, NOW)
    assert found == TokenRise(2 * 3600, over=2 * 60, under=2 * 60 * 2 * 2.0)
    assert ("240 * rate(" + COUNTER + "[240000ms])", NOW) in prometheus.seen


def test_a_server_that_ended_long_ago_has_no_tail() -> None:
    prometheus = ScriptedPrometheus(60.0, ends=NOW - 1800)
    assert served(prometheus, NOW - 3600, NOW).under == 0


@pytest.mark.parametrize(
    ("times", "expected"),
    [([NOW - DAY, NOW], 30.0), ([NOW - DAY, NOW + DAY], 30.0), ([NOW + DAY], 15.0), ([], 15.0)],
)
def test_the_interval_is_that_of_the_latest_samples_else_the_default(
    times: Sequence[float], expected: float
) -> None:
    client: Any = ScriptedPrometheus(30.0)
    assert TokenQueries(client, TokenSettings(), "").scrape_interval(times, 15.0) == expected

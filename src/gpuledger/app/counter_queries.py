"""The PromQL queries of one counter over one range: its last values, and what is needed after a reset."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median

from gpuledger.app.prometheus_api import Labels
from gpuledger.ledger.report.fleet.scraped import Target, target_of

Vector = list[tuple[Labels, float]]
# Returns the samples of an instant vector at a time in unix seconds.
Query = Callable[[str, float], Vector]
# Returns the times of the samples of a range vector.
SampleTimes = Callable[[str, float], list[tuple[Labels, list[float]]]]
# Seconds of raw samples from which the scrape interval is computed.
SAMPLED = 600.0


def query_levels(query: Query, selector: str, begins: float, ends: float) -> dict[str, Vector]:
    """The last and the least values of a range, and the series that existed when it began (`alive`)."""
    within = f"({selector}[{span(ends - begins)}])"
    last = query(f"last_over_time{within}", ends)
    if not last:
        return {"last": last, "least": []}
    least = query(f"min_over_time{within}", ends)
    return {"last": last, "least": least, "alive": query(selector, begins)}


def query_rises(
    query: Query, selector: str, begins: float, ends: float, interval: float
) -> dict[str, Vector]:
    """The levels of a range, and the other fields of SeriesWindow for series that were reset in it.

    `interval` is the longest time between scrapes, in seconds.
    """
    answers = query_levels(query, selector, begins, ends)
    if not answers["last"]:
        return answers
    within = f"({selector}[{span(ends - begins)}])"
    # 1.5 scrape intervals more, so that the range includes the last value before it.
    wider = f"({selector}[{span(ends - begins + 1.5 * interval)}])"
    fell = f"resets{wider} > 0"
    answers["resets"] = query(fell, ends)
    if answers["resets"]:
        for word, function in (
            ("highest", f"max_over_time{within}"),
            ("increase", f"increase{within}"),
            ("samples", f"count_over_time{within}"),
            ("wider", f"increase{wider}"),
            ("wider_samples", f"count_over_time{wider}"),
        ):
            answers[word] = query(f"{function} and ({fell})", ends)
    return answers


def scrape_intervals(query: SampleTimes, selector: str, at: float) -> dict[Target, float]:
    """Seconds between the last scrapes, by target, of series that each scrape has."""
    found: dict[Target, float] = {}
    for labels, times in query(f"{selector}[{span(SAMPLED)}]", at):
        gaps = [after - before for before, after in pairwise(times) if after > before]
        if gaps:
            found[target_of(labels)] = median(gaps)
    return found


def span(seconds: float) -> str:
    """A PromQL duration."""
    return f"{max(round(seconds * 1000), 1)}ms"


def with_matchers(name: str, *matchers: str) -> str:
    """A selector of these matchers, which are written without braces; empty ones are omitted."""
    given = ",".join(filter(None, matchers))
    return f"{name}{{{given}}}" if given else name


def plain_matchers(match: str) -> str:
    """A user's matchers without braces and commas around them."""
    return match.strip().strip("{}").strip().strip(",")

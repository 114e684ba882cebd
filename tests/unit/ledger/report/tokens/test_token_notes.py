"""Notes on tokens that no row has: from before the first scrape, and after the last one."""

from __future__ import annotations

from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.token_counts import TokenCounts
from gpuledger.ledger.report.tokens.token_notes import TokenFindings, token_notes
from gpuledger.ledger.report.tokens.token_rises import ScrapedTokens, TokenRises
from gpuledger.ledger.report.tokens.token_sources import DEFAULT_SOURCES, OUTPUT, REQUESTS
from unit.ledger.report.fleet.support import BEGIN, DAY
from unit.ledger.report.tokens.serving import server, token_metric


def notes(*, before: float | None, after: float | None, kind: str = OUTPUT, last: float = 6000) -> str:
    """The notes on a counter that goes from 5,000 to `last`, with these values before and after the day."""

    def scraped(least: float | None, last: float | None) -> ScrapedTokens:
        if least is None or last is None:
            return ScrapedTokens(BEGIN, BEGIN + DAY, {})
        labels = server("p", "m")
        answers = {"last": [(labels, last)], "least": [(labels, least)]}
        return ScrapedTokens(BEGIN, BEGIN + DAY, {token_metric(kind): answers})

    rises = TokenRises(DEFAULT_SOURCES)
    rises.begin(scraped(before, before))
    rises.add(scraped(5000, last), ())
    rises.end(scraped(after, after))
    findings = TokenFindings()
    findings.learn_gaps(rises)
    return "\n".join(token_notes(findings, find_grouping("owner", {}), TokenCounts(output=1000), ()))


def test_a_server_that_was_scraped_before_and_after_has_no_gap() -> None:
    assert notes(before=5000, after=6000).startswith("Tokens and requests are those that were counted within")


def test_tokens_from_before_the_first_scrape_are_named_with_their_number() -> None:
    assert notes(before=None, after=6000).startswith(
        "serving/p had up to 5,000 tokens when they were scraped first,"
    )


def test_a_server_that_ended_or_restarted_is_named() -> None:
    for before, after in ((5000, None), (5500, 6000)):
        assert notes(before=before, after=after).startswith("serving/p restarted or ended: tokens between")


def test_so_is_one_that_ended_without_a_token_in_the_day() -> None:
    # What it counted between its last scrape and its end is not known.
    assert notes(before=5000, after=None, last=5000).startswith(
        "serving/p restarted or ended: tokens between"
    )


def test_requests_are_no_tokens() -> None:
    assert "serving/p" not in notes(before=None, after=None, kind=REQUESTS)

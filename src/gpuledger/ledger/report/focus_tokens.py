"""Tokens in FOCUS: rows of usage that cost nothing, because GPU time and energy carry all the cost.

A row counts what the inference servers of a pod served on one day, of one kind. Its resource is the pod: one
on four Gpus counts a token once. Kinds do not overlap, so that all quantities in Tokens sum to the tokens of
the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpuledger.ledger.report.focus_skus import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, Sku
from gpuledger.ledger.report.token_counts import CountError, TokenCounts
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport


class TokenUsage(NamedTuple):
    """What the servers of a row counted of one kind. `bound` is its maximum error, in either direction."""

    line: ReportLine
    sku: Sku
    amount: int
    bound: int


def token_usages(report: UsageReport) -> Iterator[TokenUsage]:
    """The counts of all rows by day and owner. A count of 0 is no usage."""
    lines = (*report.lines, *report.gpu_accounts)
    for line in sorted(lines, key=lambda one: (one.period, one.key, one.account)):
        for sku, amount, error in _kinds(line.tokens or TokenCounts()):
            if amount:
                yield TokenUsage(line, sku, amount, error.bound)


def _kinds(tokens: TokenCounts) -> Iterator[tuple[Sku, int, CountError]]:
    """The counts by kind: input that was computed apart from input that a cache had."""
    given = tokens.input or 0
    cached = min(tokens.cached or 0, given)
    error = tokens.input_error - tokens.cached_error if cached else tokens.input_error
    yield INPUT_TOKENS, given - cached, error
    yield CACHED_TOKENS, cached, tokens.cached_error
    yield OUTPUT_TOKENS, tokens.output or 0, tokens.output_error
    yield REQUESTS, tokens.requests or 0, tokens.requests_error

"""The columns of tokens: counts of inference servers, and energy and cost by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from operator import attrgetter
from typing import Unpack

from gpuledger.ledger.report.money import FILE_DIGITS, TABLE_DIGITS
from gpuledger.ledger.report.report_column import ColumnOptions, ReportColumn
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.token_counts import CountError, TokenCounts
from gpuledger.ledger.report.usage_report import ReportLine

# Rows of tokens: of pods without GPU time and energy, and of pods that are in several rows.
TOKENS_ONLY, SEVERAL_ROWS = "tokens_only", "several_rows"
# Columns that people do not see beside those of tokens; files have them.
HIDDEN_BESIDE_TOKENS = frozenset(
    (
        *("bound_gpu_hours", "allocated_gpu_hours", "apportioned_kwh", "resident_gpu_hours"),
        *("held_gpu_hours", "unknown_gpu_hours", "time_cost", "energy_cost"),
    )
)
_MILLION = 1_000_000
_MILLI = 1000
Amount = Callable[[ReportLine], int | Fraction | None]
Count = Callable[[TokenCounts], int | None]


def token_columns(prices: Prices) -> Iterator[ReportColumn]:
    """The columns for these prices. Ratios are of sums, also in the total: it has the idle GPUs, too."""
    yield _count("pods", "pods", lambda tokens: len(tokens.pods), additive=False)
    yield _count("input_tokens", "input", attrgetter("input"))
    yield _bound("input", "bound_input_tokens", "± input", people=True)
    yield _count("cached_tokens", "cached", attrgetter("cached"))
    yield _bound("cached", "bound_cached_tokens", "± cached")
    yield _count("output_tokens", "output", attrgetter("output"))
    yield _bound("output", "bound_output_tokens", "± output", people=True)
    yield _count("finished_requests", "requests", attrgetter("requests"))
    yield _bound("requests", "bound_finished_requests", "± requests")
    output, every, requests = (attrgetter(f"joined_{name}") for name in ("output", "all", "requests"))
    yield _ratio("joules_per_output_token", "J/output", _joules, output)
    yield _ratio("joules_per_token", "J/token", _joules, every)
    yield _ratio("joules_per_request", "J/request", _joules, requests, people=False)
    yield _ratio("measured_joules_per_output_token", "", _measured, output, people=False)
    yield _ratio("high_joules_per_output_token", "", _high, output, people=False, upper_bound=True)
    for name, count in (("bound_joules_per_output_token", _output), ("bound_joules_per_token", _every)):
        yield _column(name, "", _bound_of(count), 9, 4, metered=True, people=False, upper_bound=True)
    if prices.any_price:
        currency = f" {prices.currency}".rstrip()
        yield _cost("cost_per_million_output_tokens", f"cost/M output{currency}", output, prices)
        yield _cost("cost_per_million_tokens", f"cost/M tokens{currency}", every, prices)
    yield _column("idle_share", "idle share", idle_share, 6, 4, metered=True)
    yield _column("utilization", "utilization", utilization, 6, 4)


def idle_share(line: ReportLine) -> Fraction | None:
    """The part of the energy of a row that pods without any token used; None if no pod counts tokens."""
    tokens = line.tokens
    if tokens is None or tokens.all is None or not line.metered or not tokens.pod_millijoules:
        return None
    return Fraction(tokens.idle_millijoules, tokens.pod_millijoules)


def utilization(line: ReportLine) -> Fraction | None:
    """Time in which an engine was busy, per time in which the GPU was allocated or resident.

    The latter is at least the longer of the two. None if it is not known whether engines were busy.
    """
    had = max(line.allocated or Fraction(0), line.resident or Fraction(0))
    if line.tokens is None or line.held is None or not had:
        return None
    return max(1 - line.held / had, Fraction(0))


def per_million(cost: Fraction | None, tokens: int | None) -> Fraction | None:
    """The cost of a million tokens; None without tokens or price: neither 0 nor infinite."""
    return cost * _MILLION / tokens if cost is not None and tokens else None


def _column(
    name: str, heading: str, amount: Amount, digits: int, shown: int, **options: Unpack[ColumnOptions]
) -> ReportColumn:
    options["additive"] = False
    return ReportColumn(name, heading, digits, shown, amount, **options)


def _count(name: str, heading: str, count: Count, **options: Unpack[ColumnOptions]) -> ReportColumn:
    def amount(line: ReportLine) -> int | None:
        return None if line.tokens is None else count(line.tokens)

    return ReportColumn(name, heading, 0, 0, amount, **options)


def _bound(kind: str, name: str, heading: str, *, people: bool = False) -> ReportColumn:
    """The maximum error of a count, in either direction; None if nothing was counted."""

    def bound(tokens: TokenCounts) -> int | None:
        error: CountError = getattr(tokens, f"{kind}_error")
        return None if getattr(tokens, kind) is None else error.bound

    return _count(name, heading, bound, people=people, additive=False)


def _ratio(
    name: str, heading: str, energy: Amount, count: Count, **options: Unpack[ColumnOptions]
) -> ReportColumn:
    def amount(line: ReportLine) -> Fraction | None:
        tokens = None if line.tokens is None else count(line.tokens)
        used = energy(line)
        return Fraction(used) / tokens if tokens and used is not None else None

    options["metered"] = True
    return _column(name, heading, amount, 9, 4, **options)


def _cost(name: str, heading: str, count: Count, prices: Prices) -> ReportColumn:
    def amount(line: ReportLine) -> Fraction | None:
        return None if line.tokens is None else per_million(line.cost, count(line.tokens))

    def is_unpriced(line: ReportLine) -> bool:
        return bool(line.unpriced_microseconds or line.unpriced_millijoules)

    return ReportColumn(
        name,
        heading,
        FILE_DIGITS,
        TABLE_DIGITS + 2,
        amount,
        additive=False,
        metered=prices.kwh is not None,
        unpriced=is_unpriced,
    )


def _joules(line: ReportLine) -> Fraction | None:
    return Fraction(line.millijoules, _MILLI) if line.metered else None


def _measured(line: ReportLine) -> Fraction | None:
    return Fraction(line.measured, _MILLI) if line.metered else None


def _high(line: ReportLine) -> Fraction | None:
    return Fraction(line.high, _MILLI) if line.metered and line.high is not None else None


def _output(tokens: TokenCounts) -> tuple[int | None, CountError]:
    return tokens.joined_output, tokens.output_error


def _every(tokens: TokenCounts) -> tuple[int | None, CountError]:
    return tokens.joined_all, tokens.all_error


def _bound_of(count: Callable[[TokenCounts], tuple[int | None, CountError]]) -> Amount:
    """The maximum error of joules per token, from those of energy and tokens; None if it has no end."""

    def amount(line: ReportLine) -> Fraction | None:
        if line.tokens is None or not line.metered or line.bound is None:
            return None
        tokens, error = count(line.tokens)
        if not tokens or error.over >= tokens:
            return None
        middle = Fraction(line.millijoules, tokens)
        high = Fraction(line.millijoules + line.bound, tokens - error.over) - middle
        low = middle - Fraction(max(line.millijoules - line.bound, 0), tokens + error.under)
        return max(high, low) / _MILLI

    return amount

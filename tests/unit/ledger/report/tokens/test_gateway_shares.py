"""Rows that are split by the tokens of a gateway: every integer of the parts sums to that of the row."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.token_counts import CountError, TokenCounts
from gpuledger.ledger.report.tokens.gateway_shares import BY_GATEWAY, GatewayScope, _split_lines, split_line
from gpuledger.ledger.report.tokens.gateway_tokens import DIRECT, GatewayFindings, gateway_keys
from gpuledger.ledger.report.usage_report import ReportLine

AMOUNT = st.integers(0, 10**12)
KNOWN = st.none() | st.integers(0, 10**7)
COUNTS = st.builds(TokenCounts, input=KNOWN, output=KNOWN, cached=KNOWN, requests=KNOWN)
RATES = [Rate("a", "1", Fraction(2)), Rate("b", "1", Fraction(3)), Rate("b")]
CHARGES = st.none() | st.dictionaries(st.sampled_from(RATES), AMOUNT)


@st.composite
def lines(draw: st.DrawFn) -> ReportLine:
    time, energy = draw(CHARGES), draw(CHARGES)
    return ReportLine(
        ("m",),
        gpu_microseconds=draw(AMOUNT) if time is None else sum(time.values()),
        estimated_microseconds=draw(AMOUNT),
        methods={"measured": draw(AMOUNT)} if energy is None else {"activity": sum(energy.values())},
        time_charges=time,
        energy_charges=energy,
        grams=draw(st.none() | st.fractions(0, 10**6)),
        bound=7,
        tokens=draw(COUNTS),
    )


@given(
    lines(),
    st.dictionaries(st.sampled_from([("a",), ("b",), ("c",)]), COUNTS, min_size=1),
    st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(1)]),
)
def test_the_parts_sum_to_the_row(
    line: ReportLine, counted: dict[tuple[str, ...], TokenCounts], weight: Fraction
) -> None:
    findings = GatewayFindings()
    parts = split_line(line, counted, weight, findings)
    assert line.tokens is not None
    if not parts:
        assert not (line.tokens.output or 0) + weight * (line.tokens.input or 0)
        assert findings.unsplit == {"m"}
        return
    if len(parts) == 1:
        # One key has everything, as it was measured.
        assert parts[0][1] == line
        return
    pieces = [piece for _, piece in parts]
    assert len({texts for texts, _ in parts}) == len(parts)
    for name in ("gpu_microseconds", "estimated_microseconds", "millijoules"):
        assert sum(getattr(piece, name) for piece in pieces) == getattr(line, name)
    for name in ("time_charges", "energy_charges"):
        charges: Counter[Rate] = Counter()
        for piece in pieces:
            charges.update(getattr(piece, name) or {})
        assert +charges == +Counter(getattr(line, name) or {})
    for name in ("time_cost", "energy_cost", "grams"):
        known = [getattr(piece, name) for piece in pieces if getattr(piece, name) is not None]
        assert (sum(known) if known else None) == getattr(line, name)
    for kind in ("input", "output", "cached", "requests"):
        values = [getattr(piece.tokens, kind) for piece in pieces]
        if kind in ("cached", "requests") and all(getattr(one, kind) is None for one in counted.values()):
            # The gateway does not count it: nobody knows how much of it is left.
            assert set(values) == {None}
            continue
        assert sum(value or 0 for value in values) == (getattr(line.tokens, kind) or 0)
        assert all(value is None or value >= 0 for value in values)
    for piece in pieces:
        assert (piece.apportioned_by, piece.measured, piece.bound) == (BY_GATEWAY, 0, None)


def row(**tokens: int) -> ReportLine:
    return ReportLine(("m",), methods={"measured": 1000}, tokens=TokenCounts(**tokens))


def test_the_errors_of_both_counters_are_those_of_what_is_left() -> None:
    line = ReportLine(
        ("m",),
        methods={"measured": 1000},
        tokens=TokenCounts(output=100, output_error=CountError(over=1, under=2)),
    )
    counted = {("a",): TokenCounts(output=40, output_error=CountError(over=10, under=20))}
    (_, piece), (texts, left) = split_line(line, counted, Fraction(0), GatewayFindings())
    assert piece.tokens is not None
    assert left.tokens is not None
    assert piece.tokens.output_error == CountError(10, 20)
    # Too few at the gateway is too much in what is left.
    assert (texts, left.tokens.output_error) == ((DIRECT,), CountError(21, 12))


def test_what_the_gateway_counts_and_the_engine_does_not_is_found() -> None:
    findings = GatewayFindings()
    counted = {("a",): TokenCounts(output=100), ("b",): TokenCounts(output=50)}
    parts = split_line(row(output=90), counted, Fraction(0), findings)
    assert [(texts, piece.tokens and piece.tokens.output) for texts, piece in parts] == [
        (("a",), 60),
        (("b",), 30),
    ]
    assert findings.surplus == {("m", "output"): 60}


def test_a_key_with_input_only_has_its_tokens_and_no_cost() -> None:
    counted = {("a",): TokenCounts(input=10, output=0), ("b",): TokenCounts(input=0, output=5)}
    parts = dict(split_line(row(input=10, output=5), counted, Fraction(0), GatewayFindings()))
    assert (parts["a",].millijoules, parts["b",].millijoules) == (0, 1000)
    assert parts["a",].tokens == TokenCounts(input=10, output=0)


def test_what_no_gateway_counted_is_unknown_in_sums_over_models_too() -> None:
    rows = [
        ReportLine((model,), methods={"measured": 1000}, tokens=TokenCounts(output=9, cached=5))
        for model in ("m", "n", "o")
    ]
    parts = {
        "m": {("a",): TokenCounts(output=4)},
        "n": {("a",): TokenCounts(output=3, cached=2), ("b",): TokenCounts(output=1, cached=1)},
    }
    keys = gateway_keys("gateway:org")
    assert keys is not None
    findings = GatewayFindings()
    lines = _split_lines(rows, [parts], GatewayScope(keys, (), Fraction(0), frozenset("mno"), {}), findings)
    assert {line.key: line.tokens and (line.tokens.output, line.tokens.cached) for line in lines} == {
        ("a",): (7, None),
        ("b",): (1, 1),
        (DIRECT,): (19, None),
    }
    assert findings.uncounted == {("m", "cached")}

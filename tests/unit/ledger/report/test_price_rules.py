"""Laws of price rules: timelines, and entries that never apply, compared with trying all cases."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report import price_rules
from gpuledger.ledger.report.patterns import pattern_covers
from gpuledger.ledger.report.price_entries import Patterns, PriceEntry
from gpuledger.ledger.report.price_rules import (
    PriceRule,
    PriceTarget,
    PriceTimeline,
    QuarterRange,
    hidden_rules,
)

NAMES = ("", "a", "b", "ab", "ba")
PATTERNS = st.sampled_from((None, "*", "a", "b", "a*", "?", "[ab]"))
ENDS = st.integers(0, 8)


@st.composite
def rule_lists(draw: st.DrawFn) -> list[PriceRule]:
    found: list[PriceRule] = []
    for number in range(1, draw(st.integers(0, 7)) + 1):
        begins = draw(ENDS)
        ends = draw(st.integers(begins + 1, 9))
        patterns = Patterns(draw(PATTERNS), draw(PATTERNS), draw(PATTERNS))
        found.append(PriceRule(PriceEntry(number, Decimal(number), patterns), begins, ends))
    return found


def first_by_trying(rules: list[PriceRule], quarter: int) -> PriceRule | None:
    return next((rule for rule in rules if rule.begins <= quarter < rule.ends), None)


@given(rule_lists())
def test_a_timeline_has_the_first_rule_of_each_quarter(rules: list[PriceRule]) -> None:
    timeline = PriceTimeline(rules)
    for quarter in range(-1, 11):
        assert timeline.rule_at(quarter) == first_by_trying(rules, quarter)


@given(rule_lists(), ENDS, st.integers(1, 9))
def test_the_pieces_of_a_stretch_fill_it(rules: list[PriceRule], begins: int, length: int) -> None:
    pieces = list(PriceTimeline(rules).pieces(QuarterRange(begins, begins + length)))
    covered = [quarter for piece, _ in pieces for quarter in range(*piece)]
    assert covered == list(range(begins, begins + length))
    for piece, rule in pieces:
        assert {first_by_trying(rules, quarter) for quarter in range(*piece)} == {rule}


@given(rule_lists())
def test_a_rule_that_is_said_to_never_apply_never_applies(rules: list[PriceRule]) -> None:
    hidden = {rule for rule, _ in hidden_rules(rules)}
    targets = [PriceTarget(node, model, mig) for node in NAMES for model in NAMES for mig in (None, *NAMES)]
    for target in targets:
        matching = [rule for rule in rules if rule.matches(target)]
        assert not hidden & {first_by_trying(matching, quarter) for quarter in range(10)}


def test_prices_of_many_nodes_need_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def count(wide: str, narrow: str) -> bool:
        compared.append((wide, narrow))
        return pattern_covers(wide, narrow)

    monkeypatch.setattr(price_rules, "pattern_covers", count)
    patterns = [Patterns(gpu=f"*{number}*", node=f"n{number}") for number in range(200)]
    patterns.append(Patterns(gpu="*70*", node="n7"))
    rules = [PriceRule(PriceEntry(number, Decimal(1), one)) for number, one in enumerate(patterns, 1)]
    assert hidden_rules(rules) == [(rules[200], [rules[7]])]
    # Each with itself: a comparison of the GPU, and one of the node.
    assert len(compared) < 500

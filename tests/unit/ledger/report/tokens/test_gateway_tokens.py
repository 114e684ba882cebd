"""What gateways counted for each model: one gateway counts for a model, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gpuledger.ledger.report.tokens.gateway_tokens import (
    UNNAMED,
    GatewayFindings,
    GatewayKeys,
    gateway_keys,
    tokens_of_gateways,
)
from gpuledger.ledger.report.tokens.token_gateways import TokenGateway
from gpuledger.ledger.report.tokens.token_rises import ScrapedTokens, TokenRises
from gpuledger.ledger.report.tokens.token_sources import OUTPUT, TokenMetric
from gpuledger.model.errors import UsageError

# The first knows teams, the second does not.
GATEWAYS = (
    TokenGateway("proxy", output=("proxy_total",), cached=("proxy_cached_total",)),
    TokenGateway("picker", output=("picker_total",), team=()),
)
Counted = Sequence[tuple[str, Mapping[str, str], float]]


def rises_of(counted: Counted, *, known: bool = True) -> TokenRises:
    """Counters of gateways that rise from 100 by these amounts; `known` if they were scraped before.

    `proxy` counts output, `proxy_cached` cached tokens.
    """
    answers: dict[TokenMetric, dict[str, list[tuple[dict[str, str], float]]]] = {}
    for gateway, labels, amount in counted:
        name, _, kind = gateway.partition("_")
        metric = TokenMetric(name, kind or OUTPUT, f"{gateway}_total")
        words = answers.setdefault(metric, {"last": [], "least": [], "alive": []})
        series = {"job": gateway, "instance": f"{gateway}:4000", **labels}
        words["last"].append((series, 100 + amount))
        words["least"].append((series, 100.0))
        if known:
            words["alive"].append((series, 100.0))
    rises = TokenRises([gateway.source() for gateway in GATEWAYS], by_address=True)
    if known:
        before = {metric: {**words, "last": words["least"]} for metric, words in answers.items()}
        rises.begin(ScrapedTokens(0, 1, before))
    rises.add(ScrapedTokens(1, 2, answers), ())
    return rises


def outputs(
    counted: Counted, findings: GatewayFindings, *words: str, known: bool = True
) -> dict[str, dict[tuple[str, ...], int | None]]:
    found = tokens_of_gateways(
        rises_of(counted, known=known), GATEWAYS, words or ("team",), {"m", "n"}, {}, findings
    )
    return {model: {texts: one.output for texts, one in counts.items()} for model, counts in found.items()}


def test_replicas_and_other_labels_are_added() -> None:
    findings = GatewayFindings()
    counted = [
        ("proxy", {"model": "m", "team": "red", "user": "a"}, 5),
        ("proxy", {"model": "m", "team": "red", "user": "b"}, 6),
        ("proxy", {"model": "m", "team": "red", "user": "a", "instance": "other:4000"}, 7),
        ("proxy", {"model": "n", "team": "red"}, 8),
    ]
    assert outputs(counted, findings) == {"m": {("red",): 18}, "n": {("red",): 8}}
    assert outputs(counted, findings, "user", "team")["m"] == {("a", "red"): 12, ("b", "red"): 6}
    assert findings.used == {"m": {"proxy"}, "n": {"proxy"}}


PROXY, PICKER = ("proxy", {"model": "m", "team": "red"}, 5), ("picker", {"model": "m", "adapter": "x"}, 9)


@pytest.mark.parametrize(
    ("word", "expected", "left_out"),
    [
        ("team", {("red",): 5}, {"picker"}),
        # The first gateway that knows the label.
        ("user", {(UNNAMED,): 5}, {"picker"}),
    ],
)
def test_of_two_gateways_one_counts(word: str, expected: dict[tuple[str], int], left_out: set[str]) -> None:
    findings = GatewayFindings()
    assert outputs([PROXY, PICKER], findings, word)["m"] == expected
    assert findings.left_out["m"] == left_out


def test_each_model_has_its_gateway() -> None:
    findings = GatewayFindings()
    other = ("picker", {"model": "n", "user": "mira"}, 9)
    assert outputs([PROXY, other], findings, "user") == {"m": {(UNNAMED,): 5}, "n": {("mira",): 9}}
    assert not any(findings.left_out.values())


def test_a_gateway_without_tokens_in_the_range_does_not_count() -> None:
    findings = GatewayFindings()
    assert outputs([("proxy", {"model": "m", "team": "red"}, 0), PICKER], findings)["m"] == {(UNNAMED,): 9}
    assert not findings.left_out["m"]


def test_a_model_that_no_engine_has_is_named() -> None:
    findings = GatewayFindings()
    assert outputs([("proxy", {"model": "gpt", "team": "red"}, 5)], findings) == {}
    assert findings.unmatched == {("proxy", "gpt"): 5}


def test_a_label_without_a_value_is_known_beside_the_labels_that_have_one() -> None:
    findings = GatewayFindings()
    outputs([PROXY], findings, "temas", "team")
    assert (findings.labels, findings.valued) == ({"proxy": {"model", "team"}}, {"team"})


def test_tokens_of_a_model_without_a_row_are_found() -> None:
    findings = GatewayFindings()
    counted = [PROXY, ("proxy", {"model": "n", "team": "red"}, 6)]
    found = tokens_of_gateways(rises_of(counted), GATEWAYS, ["team"], {"m", "n"}, {}, findings)
    findings.learn_rows(found, ["m", ""])
    assert findings.without_row == {"n": 6}


def test_tokens_from_before_the_first_scrape_are_named() -> None:
    """A counter that was not scraped before: how much of its first value is of the range is not known."""
    findings = GatewayFindings()
    assert outputs([PROXY], findings, known=False)["m"] == {("red",): 5}
    assert findings.missed == {"proxy": 100}


def test_keys_are_those_of_gateways_and_the_model() -> None:
    keys = gateway_keys("gateway:team, served_model,gateway:user")
    assert keys == GatewayKeys(
        "gateway:team,served_model,gateway:user", ("gateway:team", "served_model", "gateway:user")
    )
    assert keys is not None
    assert keys.words == ("team", "user")
    assert keys.key("m", ("red", "mira")) == ("red", "m", "mira")
    assert gateway_keys("served_model") is None
    with pytest.raises(UsageError, match="does not know the node of its tokens"):
        gateway_keys("gateway:team,node")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("team", {("red",): (5, 2), ("blue",): (6, None)}),
        # Cached tokens are not counted by it: those of no key are known, and `(none)` has not all of them.
        ("org", {("a",): (5, None), ("b",): (6, None)}),
    ],
)
def test_a_counter_without_the_label_of_the_others_is_unknown(
    word: str, expected: dict[tuple[str], tuple[int, int | None]]
) -> None:
    red, blue = {"model": "m", "team": "red"}, {"model": "m", "team": "blue"}
    counted = [
        ("proxy", {**red, "org": "a"}, 5),
        ("proxy", {**blue, "org": "b"}, 6),
        ("proxy_cached", red, 2),
    ]
    found = tokens_of_gateways(rises_of(counted), GATEWAYS, [word], {"m"}, {}, GatewayFindings())
    known = {texts: (one.output, one.cached) for texts, one in found["m"].items()}
    assert {texts: one for texts, one in known.items() if any(one)} == expected

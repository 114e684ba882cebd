"""The table of gateways: defaults, entries of users, and which model of an engine a counter belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.ledger.report.tokens.token_gateways import (
    DEFAULT_GATEWAYS,
    TokenGateway,
    parse_token_gateways,
)

LITELLM = DEFAULT_GATEWAYS[0]
MODELS = {"org/llama", "m"}


def test_the_default_table_is_valid() -> None:
    for gateway in DEFAULT_GATEWAYS:
        names = sum(len(getattr(gateway, kind)) for kind in ("input", "output", "cached", "requests"))
        assert len(gateway.source().metrics()) == names
        assert gateway.input
        assert gateway.output


def test_entries_come_first_and_replace_a_default_of_the_same_name() -> None:
    found = parse_token_gateways(
        [{"gateway": "mine", "output": "out_total"}, {"gateway": "llm-d", "output": "x"}]
    )
    assert [one.gateway for one in found] == [
        "mine",
        "llm-d",
        "litellm",
        "envoy-ai-gateway",
        "inference-extension",
    ]
    assert found[0] == TokenGateway("mine", output=("out_total",))
    # Counters are replaced together; labels that are not given remain.
    assert (found[1].input, found[1].output, found[1].adapter) == (
        (),
        ("x",),
        ("target_model_name", "model_name"),
    )


def test_an_entry_of_a_default_gateway_can_have_names_of_models_only() -> None:
    (found, *_) = parse_token_gateways('[{"gateway": "litellm", "served": {"gpt-*": "m"}}]')
    assert found.output == LITELLM.output
    assert found.served_model({"model": "gpt-4"}, MODELS, {}) == "m"


def test_the_default_table_is_used_without_entries() -> None:
    assert parse_token_gateways("") == parse_token_gateways(None) == DEFAULT_GATEWAYS
    assert parse_token_gateways(DEFAULT_GATEWAYS) == DEFAULT_GATEWAYS


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "expected a list of entries"),
        ({"gateway": "a"}, "expected a list of entries"),
        (["a"], "entry 1 (a): expected a mapping"),
        ([{"output": "x"}], "entry 1 has no gateway"),
        ([{"gateway": "a"}], "entry 1 (gateway a) has neither input nor output"),
        ([{"gateway": "litelm", "served": {"a": "m"}}], "nor output; did you mean 'litellm'?"),
        ([{"gateway": "a", "output": "1x"}], "output: expected the name of a counter"),
        ([{"gateway": "a", "output": "x", "modle": "y"}], "unknown key 'modle'; did you mean 'model'"),
        ([{"gateway": "a", "output": "x", "served": ["m"]}], "served: expected names"),
        ([{"gateway": "a", "output": "x", "served": {"m": None}}], "served: expected names"),
        ([{"gateway": "a", "output": "x"}] * 2, "gateway a has two entries"),
    ],
)
def test_an_invalid_entry_is_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError) as found:
        parse_token_gateways(value)
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("labels", "model"),
    [
        ({"model": "m"}, "m"),
        ({"model": "org/llama"}, "org/llama"),
        # The provider in front of the model's name.
        ({"model": "hosted_vllm/org/llama"}, "org/llama"),
        ({"model": "hosted_vllm/adapter"}, "m"),
        # An alias, beside the name of the model.
        ({"model": "m", "requested_model": "fast"}, "m"),
        ({"model": "None", "requested_model": "m"}, "m"),
        # A label that a relabeling rule has added.
        ({"model": "fast", "base_model": "m"}, "m"),
        ({"model": "M"}, ""),
        ({"model": "llama"}, ""),
        ({}, ""),
    ],
)
def test_the_model_is_one_of_the_engines_or_unknown(labels: dict[str, str], model: str) -> None:
    assert LITELLM.served_model(labels, MODELS, {"adapter": "m"}) == model


def test_an_alias_of_a_model_that_no_engine_has_is_unknown() -> None:
    gateway = TokenGateway("a", served={"m": "gone"})
    assert gateway.served_model({"model": "m"}, MODELS, {}) == ""


@pytest.mark.parametrize(
    ("word", "labels", "text"),
    [
        ("team", {"team": "id", "team_alias": "red"}, "red"),
        ("team", {"team": "id", "team_alias": "None"}, "id"),
        ("team", {"team": "None"}, ""),
        # The target of the scrape has a label of this name, too.
        ("team", {"team": "platform", "exported_team": "red"}, "red"),
        ("user", {"user": "mira"}, "mira"),
        ("adapter", {"model": "sql"}, "sql"),
        ("end_user", {}, ""),
    ],
)
def test_the_text_of_a_key(word: str, labels: dict[str, str], text: str) -> None:
    assert LITELLM.text(word, labels) == text

"""The table of token sources: the default, entries of users, and errors that name the entry."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.ledger.report.tokens.token_sources import (
    DEFAULT_SOURCES,
    TokenMetric,
    TokenSource,
    parse_token_sources,
)


def test_the_default_table_is_valid() -> None:
    for source in DEFAULT_SOURCES:
        names = sum(
            len(getattr(source, kind)) for kind in ("input", "output", "cached", "requests", "transferred")
        )
        assert len(source.metrics()) == names
        assert source.input
        assert source.output
    assert len({source.engine for source in DEFAULT_SOURCES}) == len(DEFAULT_SOURCES)


def test_an_entry_is_added_and_one_of_the_same_engine_replaces_the_default() -> None:
    entries = [
        {
            "engine": "mine",
            "output": 'made_total{job="mine"}',
            "input": ["a_total", "b_total"],
            "model": "name",
        },
        {"engine": "vllm", "output": "vllm:generation_tokens_total"},
    ]
    found = {source.engine: source for source in parse_token_sources(entries)}
    assert found["mine"] == TokenSource(
        "mine", ("a_total", "b_total"), ('made_total{job="mine"}',), model="name"
    )
    assert found["mine"].metrics()[-1] == TokenMetric("mine", "output", "made_total", 'job="mine"')
    assert found["vllm"].input == ()
    assert set(found) == {source.engine for source in DEFAULT_SOURCES} | {"mine"}


def test_json_text_is_the_same_and_empty_is_the_default() -> None:
    text = '[{"engine": "mine", "input": "a_total"}]'
    assert parse_token_sources(text)[-1] == TokenSource("mine", ("a_total",))
    assert parse_token_sources("") == parse_token_sources(None) == DEFAULT_SOURCES


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"engine": "x"}, "expected a list of entries"),
        ("not json", "expected a list of entries"),
        (["vllm"], "entry 1 (vllm): expected a mapping"),
        ([{"output": "a"}], "entry 1 has no engine"),
        ([{"engine": "x", "model": "m"}], "entry 1 (engine x) has neither input nor output"),
        (
            [{"engine": "x", "outputs": "a"}],
            "entry 1 (engine x): unknown key 'outputs'; did you mean 'output'?",
        ),
        ([{"engine": "x", "output": "rate(a[5m])"}], "expected the name of a counter"),
        ([{"engine": "x", "output": None}], "expected the name of a counter"),
        (
            [{"engine": "x", "output": "a"}, {"engine": "x", "output": "b"}],
            "entry 2: engine x has two entries",
        ),
    ],
)
def test_an_error_names_the_entry(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match="e") as refused:
        parse_token_sources(value)
    assert message in str(refused.value)

"""FOCUS with tokens: rows that count and cost nothing, beside the unchanged rows of GPU time and energy."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focus_rules import broken_rules
from gpuledger.ledger.report.focus import as_focus, focus_keys
from gpuledger.ledger.report.formats import as_json
from gpuledger.ledger.report.token_counts import CountError, TokenCounts
from gpuledger.ledger.report.usage_report import UsageReport
from money_helpers import prices
from unit.ledger.report.test_focus_rules import SERVING_KEYS
from unit.ledger.report.tokens.serving import serving_reports

PRICED = prices(gpu_hour="2.37", kwh="0.3")
PLAIN, SERVING = serving_reports(SERVING_KEYS, PRICED)
VERSIONS = ("1.3", "1.2")
Rows = list[dict[str, str]]


def charges(report: UsageReport, version: str = "1.3") -> Rows:
    return list(csv.DictReader(io.StringIO(as_focus(report, "cluster-1", version))))


def counts(report: UsageReport, version: str = "1.3") -> Rows:
    return [row for row in charges(report, version) if row["ConsumedUnit"] in ("Tokens", "Requests")]


def test_each_pod_and_kind_has_a_row_and_cached_input_is_no_part_of_input() -> None:
    shown = ("ResourceId", "SkuId", "ConsumedQuantity", "ConsumedUnit", "x_ServedModel", "x_BoundQuantity")
    assert [tuple(row[name] for name in shown) for row in counts(SERVING)] == [
        ("pod/serving/lost", "tokens-output", "20", "Tokens", "llama", "2"),
        # More cached tokens than input: the engine counted wrong, and no token counts twice.
        ("unknown", "tokens-input-cached", "3", "Tokens", "nobody", "2"),
        # On two GPUs: its tokens count once. Both counters can only be too low, which offsets in the
        # difference: it is wrong by at most 2.
        ("pod/serving/chat", "tokens-input", "2500", "Tokens", "llama", "2"),
        ("pod/serving/chat", "tokens-input-cached", "500", "Tokens", "llama", "2"),
        ("pod/serving/chat", "tokens-output", "1000", "Tokens", "llama", "2"),
        ("pod/serving/chat", "requests", "4", "Requests", "llama", "2"),
        ("pod/serving/small", "tokens-input", "70", "Tokens", "'=qwen", "2"),
        ("pod/serving/small", "tokens-output", "7", "Tokens", "'=qwen", "2"),
    ]


def test_a_count_has_a_price_of_zero_and_no_part_in_the_split_of_gpus() -> None:
    row = next(row for row in counts(SERVING) if row["ResourceId"] == "pod/serving/chat")
    expected = {
        "AllocatedMethodId": "",
        "AllocatedResourceId": "",
        "AllocatedTags": "",
        "BilledCost": "0.0000000000",
        "ListUnitPrice": "0",
        "PricingQuantity": "2500",
        "PricingUnit": "Tokens",
        "ResourceName": "serving/chat",
        "ResourceType": "Inference Server",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
        "SkuPriceDetails": '{"x_PriceEntry": "included", "x_TokenDirection": "Input"}',
        "SkuPriceId": "tokens-input/included",
        "x_Account": "",
        "x_GpuMicroseconds": "",
        "x_Millijoules": "",
    }
    assert {name: row[name] for name in expected} == expected
    assert '"gpuledger/served_model": "llama"' in row["Tags"]
    assert [one["x_Account"] for one in counts(SERVING)[:2]] == ["tokens_only", "tokens_only"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_rows_of_money_are_those_of_the_report_without_tokens(version: str) -> None:
    """Each cell, and so each sum of money, is equal to the last digit."""
    own = ("x_ServedModel", "x_BoundQuantity")
    found = [row for row in charges(SERVING, version) if row["x_GpuMicroseconds"] or row["x_Millijoules"]]
    assert [{name: row[name] for name in row if name not in own} for row in found] == charges(PLAIN, version)
    assert len(found) + len(counts(SERVING, version)) == len(charges(SERVING, version))
    assert [row["x_ServedModel"] for row in found] == ["", "", "llama", "llama", "'=qwen"]


def test_a_report_without_tokens_has_no_column_of_them() -> None:
    assert not {"x_ServedModel", "x_BoundQuantity"} & charges(PLAIN)[0].keys()


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("owner", "node,gpu,owner,tags,served_model"),
        ("served_model", "node,gpu,owner,tags,served_model"),
        ("label:app,served_model", "node,gpu,owner,tags,label:app,served_model"),
    ],
)
def test_the_model_is_a_key_of_reports_with_tokens(by: str, keys: str) -> None:
    assert focus_keys(by, has_teams=False, has_tokens=True) == keys


def test_version_1_2_has_the_namespace_of_the_server() -> None:
    assert {row["SubAccountId"] for row in counts(SERVING, "1.2")} == {"serving", ""}
    assert all(
        "x_AllocatedResourceId" in row and not row["x_AllocatedResourceId"] for row in counts(SERVING, "1.2")
    )


def amount(most: int = 10**13) -> st.SearchStrategy[int | None]:
    return st.none() | st.just(0) | st.integers(0, most)


LINES = len(SERVING.lines) + len(SERVING.gpu_accounts)
ERRORS = st.builds(CountError, st.integers(0, 99), st.integers(0, 99))
COUNTS = st.builds(
    TokenCounts,
    input=amount(),
    cached=amount(),
    output=amount(),
    requests=amount(),
    input_error=ERRORS,
    output_error=ERRORS,
)


@given(st.lists(COUNTS, min_size=LINES, max_size=LINES), st.sampled_from(VERSIONS))
def test_tokens_are_those_of_json_and_money_that_of_the_report_without(
    found: Sequence[TokenCounts], version: str
) -> None:
    lines = [*SERVING.lines, *SERVING.gpu_accounts]
    given_lines = [replace(line, tokens=one) for line, one in zip(lines, found, strict=True)]
    size = len(SERVING.lines)
    total = replace(SERVING.total, tokens=sum(found, start=TokenCounts()))
    report = replace(SERVING, lines=given_lines[:size], gpu_accounts=given_lines[size:], total=total)
    rows, whole = charges(report, version), as_json(report)
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal(str(whole["total"]["cost"]))

    def of_sku(*names: str) -> int:
        return sum(int(row["ConsumedQuantity"]) for row in rows if row["SkuId"] in names)

    def of_json(name: str) -> int:
        return sum(row[name] or 0 for row in (*whole["rows"], *whole["own"]))

    assert of_sku("tokens-input", "tokens-input-cached") == of_json("input_tokens")
    assert of_sku("tokens-output") == of_json("output_tokens")
    assert of_sku("requests") == of_json("finished_requests")
    known: list[dict[str, Any]] = [*whole["rows"], *whole["own"]]
    assert of_sku("tokens-input-cached") == sum(
        min(row["cached_tokens"] or 0, row["input_tokens"] or 0) for row in known
    )


def test_a_pod_that_is_listed_by_two_keys_breaks_no_rule() -> None:
    keys = focus_keys("container,controller", has_teams=False, has_tokens=True)
    assert broken_rules(charges(serving_reports(keys, PRICED)[1])) == []

"""`report --prometheus --by served_model` on a real Prometheus: the worked examples, with the engines' names.

An hour, at 0.25 per kWh, pue 1.2 and 2.00 per GPU-hour. GPU-hours are those of the time books: an hour that
several pods share is split, and counts once.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import pytest

from focus_rules import broken_rules
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.token_diagnosis import TokenJoin
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.model.checks import Verdict
from running import Prometheus, gpuledger
from token_examples import NAMES, clusters
from token_worlds import BEGIN, END, stored

pytestmark = pytest.mark.group("tokens")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with all clusters."""
    with stored(clusters(), tmp_path_factory.mktemp("tokens")) as prometheus:
        yield prometheus


@cache
def report(
    serving: Prometheus,
    cluster: str,
    *flags: str,
    by: str = "served_model",
    within: tuple[int, int] = (BEGIN, END),
) -> dict[str, Any]:
    since, until = (datetime.fromtimestamp(at, UTC).isoformat() for at in within)
    prices = ("--price.kwh", "0.25", "--pue", "1.2", "--price.gpu-hour", "2.00")
    chosen = ("--prometheus", serving.url, "--prometheus.match", f'cluster="{cluster}"')
    output = () if "--format" in flags else ("--format", "json")
    done = gpuledger(
        "report", *chosen, "--by", by, "--since", since, "--until", until, *prices, *output, *flags
    )
    assert done.returncode == 0, done.stderr
    if output:
        return dict(json.loads(done.stdout))
    return {"text": done.stdout, "notes": done.stderr}


def row_of(found: dict[str, Any], name: str = "m") -> dict[str, Any]:
    (row,) = (row for row in found["rows"] if row["served_model"] == name)
    return dict(row)


# By cluster and model: the expected values.
EXAMPLES: dict[tuple[str, str], dict[str, float | None]] = {
    ("plain", "m"): {
        "pods": 1,
        "gpu_hours": 1,
        "millijoules": 720_000_000,
        "input_tokens": 3_000_000,
        "cached_tokens": 500_000,
        "output_tokens": 1_000_000,
        "finished_requests": 4000,
        "joules_per_output_token": 0.72,
        "joules_per_token": 0.18,
        "joules_per_request": 180,
        "measured_joules_per_output_token": 0.72,
        "cost": 2.06,
        "cost_per_million_output_tokens": 2.06,
        "cost_per_million_tokens": 0.515,
        "idle_share": 0,
        "utilization": 0.75,
    },
    ("replica", "m"): {
        "pods": 2,
        "gpu_hours": 2,
        "millijoules": 936_000_000,
        "joules_per_output_token": 0.936,
        "cost_per_million_output_tokens": 4.078,
        "idle_share": 0.230769,
        "utilization": 0.375,
    },
    ("parallel", "m"): {
        "gpu_hours": 4,
        "output_tokens": 500_000,
        "joules_per_output_token": 2.88,
        "cost": 8.12,
        "cost_per_million_output_tokens": 16.24,
    },
    ("restart", "m"): {"pods": 2, "output_tokens": 150, "bound_output_tokens": 0, "input_tokens": None},
    ("replaced", "m"): {"output_tokens": 1500, "bound_output_tokens": 0, "joules_per_output_token": 200.0},
    ("disaggregated", "m"): {
        "input_tokens": 1_000_000,
        "output_tokens": 500_000,
        "cached_tokens": 200_000,
        "finished_requests": 1000,
        "joules_per_output_token": 4.32,
        "joules_per_token": 1.44,
    },
    ("several", "(several)"): {"output_tokens": 900_000, "joules_per_output_token": 1.0},
    ("several", "m"): {"joules_per_output_token": 0.72},
    ("late", "new"): {"output_tokens": 20_000, "joules_per_output_token": 3.0},
    ("late", "old"): {"output_tokens": 20_000, "joules_per_output_token": 3.0},
    ("nothing", "m"): {
        "output_tokens": 0,
        "millijoules": 216_000_000,
        "cost": 2.018,
        "joules_per_output_token": None,
        "cost_per_million_output_tokens": None,
        "idle_share": 1,
    },
    # decisions: an hour of a shared GPU is split, and counts once.
    ("shared", "m"): {"pods": 3, "gpu_hours": 1, "time_cost": 2.0, "output_tokens": 200_000},
    ("twice", "m"): {"input_tokens": 3_000_000, "output_tokens": 1_000_000, "joules_per_output_token": 0.72},
    ("bounds", "a"): {
        "measured_joules_per_output_token": 2.0,
        "joules_per_output_token": 3.0,
        # The most is known to the ledger only.
        "high_joules_per_output_token": None,
    },
    ("bounds", "b"): {"measured_joules_per_output_token": 0, "joules_per_output_token": 6.0},
    ("hours", "m"): {"output_tokens": 1_001_000, "joules_per_output_token": 0.935064935},
    **{
        ("engines", {"tgi": "(tgi)", "llamacpp": "(llama.cpp)"}.get(pod, f"model-{pod}")): {
            "input_tokens": 3000,
            "output_tokens": 1000,
            "cached_tokens": 600 if names[2] else None,
            "finished_requests": 20 if names[3] else None,
            "joules_per_output_token": 2.0,
        }
        for pod, names in NAMES.items()
    },
}


@pytest.mark.parametrize(("cluster", "model"), EXAMPLES)
def test_the_row_of_a_model_is_as_computed_manually(serving: Prometheus, cluster: str, model: str) -> None:
    row, expected = row_of(report(serving, cluster), model), EXAMPLES[cluster, model]
    assert {name: row[name] for name in expected} == expected


def test_roles_of_disaggregated_pods_have_a_row_each(serving: Prometheus) -> None:
    found = report(serving, "disaggregated", by="served_model,label:llm-d.ai/role")
    rows = {row["llm-d.ai/role"]: row for row in found["rows"]}
    assert rows["prefill"]["joules_per_token"] == 0.72
    assert (rows["prefill"]["output_tokens"], rows["prefill"]["joules_per_output_token"]) == (None, None)
    assert (rows["decode"]["joules_per_output_token"], rows["decode"]["input_tokens"]) == (2.88, 0)


def test_energy_and_time_are_those_of_the_report_without_tokens(serving: Prometheus) -> None:
    """Tokens are added to rows, and never change the amounts of one."""
    plain, tokens = (report(serving, "unmatched", *flags, by="pod") for flags in ((), ("--tokens",)))
    names = ("pod", "account", "millijoules", "gpu_microseconds", "cost", "bound_millijoules")

    def amounts(found: dict[str, Any]) -> list[list[Any]]:
        rows = [*found["rows"], *(row for row in found["own"] if row["account"] != "tokens_only")]
        return [[row[name] for name in names] for row in rows]

    assert amounts(plain) == amounts(tokens)
    assert plain["total"]["millijoules"] == tokens["total"]["millijoules"]


def test_an_empty_join_is_named_and_breaks_no_other_row(serving: Prometheus) -> None:
    found = report(serving, "unmatched")
    assert row_of(found)["joules_per_output_token"] == pytest.approx(0.72007)
    assert row_of(found)["pods"] == 2
    assert row_of(found, "")["output_tokens"] is None
    (lost,) = (row for row in found["own"] if row["account"] == "tokens_only")
    assert (lost["served_model"], lost["output_tokens"], lost["kwh"], lost["cost"]) == (
        "lost",
        20,
        None,
        None,
    )
    # No energy is divided by lost tokens, also not in the total.
    joules = found["total"]["millijoules"] / 1000
    assert found["total"]["joules_per_output_token"] == pytest.approx(joules / 1_000_000)
    assert found["total"]["output_tokens"] == 1_000_020
    notes = "\n".join(found["notes"])
    assert "Tokens found, no energy: serving/elsewhere served tokens, but have no GPU time" in notes
    assert "honor_labels: true" in notes
    assert "Energy, no tokens: serving/loading used energy for a served model" in notes
    assert "No model known: serving/silent used energy without tokens" in notes


def test_a_prometheus_without_token_counters_says_so(serving: Prometheus) -> None:
    found = report(serving, "unscraped")
    assert found["rows"][0]["joules_per_output_token"] is None
    assert any(
        note.startswith("Energy, no tokens: Prometheus has no token counter") for note in found["notes"]
    )


def test_engines_that_count_no_cached_tokens_are_named(serving: Prometheus) -> None:
    assert "Input tokens of llama.cpp are without cached ones." in report(serving, "engines")["notes"]


def test_a_pod_with_two_models_is_named(serving: Prometheus) -> None:
    notes = report(serving, "several")["notes"]
    assert any(note.startswith("Two model names in one pod: serving/q exports x, y.") for note in notes)


def test_tokens_of_a_pod_in_several_rows_are_not_divided(serving: Prometheus) -> None:
    found = report(serving, "parallel", "--tokens", by="gpu")
    assert [row["output_tokens"] for row in found["rows"]] == [None] * 4
    (whole,) = (row for row in found["own"] if row["account"] == "several_rows")
    assert whole["output_tokens"] == found["total"]["output_tokens"] == 500_000


def test_the_table_shows_tokens_beside_utilization(serving: Prometheus) -> None:
    text = report(serving, "replica", "--format", "table")["text"]
    head = next(line for line in text.splitlines() if "J/output" in line)
    for heading in ("pods", "GPU-hours", "input", "cached", "output", "cost/M output", "utilization"):
        assert heading in head
    assert "3,000,000" in text
    assert "4.0780" in text


def test_csv_has_the_columns(serving: Prometheus) -> None:
    head, row, *_ = report(serving, "plain", "--format", "csv")["text"].splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    assert cells["cost_per_million_output_tokens"] == "2.0600000000"
    assert (cells["served_model"], cells["output_tokens"]) == ("m", "1000000")


def test_parts_of_the_range_sum_to_the_whole(serving: Prometheus) -> None:
    found = report(serving, "replica", "--every", "hour")
    assert [row["output_tokens"] for row in found["rows"]] == [1_000_000]


def test_errors_at_the_ends_are_what_was_counted_until_the_next_scrapes(serving: Prometheus) -> None:
    """1,000 tokens of the first scrape can be older than the range, 500 are in none of its scrapes."""
    found = report(serving, "ends", within=(BEGIN + 30, END - 30))
    row, names = row_of(found), ("output_tokens", "bound_output_tokens", "input_tokens", "bound_input_tokens")
    assert [row[name] for name in names] == [9000, 1000, 34, 20]
    # 8,000 tokens are certain: that many joules per token is the most.
    joules = row["millijoules"] / 1000
    high = (joules + row["bound_millijoules"] / 1000) / 8000
    assert row["bound_joules_per_output_token"] == pytest.approx(high - joules / 9000, rel=1e-6)
    whole = found["total"]
    assert (whole["output_tokens"], whole["bound_output_tokens"]) == (9050, 1000)
    notes = "\n".join(found["notes"])
    assert "serving/p, serving/q restarted or ended: tokens between the last scrape" in notes


def test_the_table_shows_the_errors_beside_the_tokens(serving: Prometheus) -> None:
    text = report(serving, "ends", "--format", "table", within=(BEGIN + 30, END - 30))["text"]
    assert "± output" in text
    # Ends of the range at scrapes: exact.
    assert "± output" not in report(serving, "ends", "--format", "table")["text"]


MONEY = ("--price.currency", "EUR", "--format")


def focus(
    serving: Prometheus, cluster: str, *flags: str, version: str = "focus", by: str = "owner"
) -> list[dict[str, str]]:
    text = report(serving, cluster, *flags, *MONEY, version, by=by)["text"]
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("cluster", ["parallel", "disaggregated", "unmatched"])
def test_focus_has_the_tokens_of_json_and_the_money_of_a_file_without(
    serving: Prometheus, cluster: str
) -> None:
    plain, rows = focus(serving, cluster), focus(serving, cluster, "--tokens")
    assert broken_rules(rows) == broken_rules(plain) == []
    money, counts = (
        [row for row in rows if bool(row["AllocatedMethodId"]) == split] for split in (True, False)
    )
    assert [{name: row[name] for name in plain[0] if name != "AllocatedTags"} for row in money] == [
        {name: row[name] for name in row if name != "AllocatedTags"} for row in plain
    ]
    assert {Decimal(row["BilledCost"]) for row in counts} == {0}
    found = report(serving, cluster)

    def of_models(name: str) -> dict[str, int]:
        sums: dict[str, int] = defaultdict(int)
        for row in (*found["rows"], *found["own"]):
            sums[row["served_model"]] += row[name] or 0
        return {model: amount for model, amount in sums.items() if amount}

    def of_skus(*names: str) -> dict[str, int]:
        sums: dict[str, int] = defaultdict(int)
        for row in counts:
            if row["SkuId"] in names:
                sums[row["x_ServedModel"]] += int(row["ConsumedQuantity"])
        return dict(sums)

    assert of_skus("tokens-input", "tokens-input-cached") == of_models("input_tokens")
    assert of_skus("tokens-output") == of_models("output_tokens") != {}
    assert of_skus("requests") == of_models("finished_requests")
    row, served = row_of(found), [row for row in rows if row["x_ServedModel"] == "m"]
    cost = sum(Decimal(row["BilledCost"]) for row in served)
    assert float(cost * 10**6 / row["output_tokens"]) == pytest.approx(row["cost_per_million_output_tokens"])


def test_focus_1_2_has_the_same_tokens(serving: Prometheus) -> None:
    old, new = (focus(serving, "parallel", version=one, by="served_model") for one in ("focus-1.2", "focus"))
    for name in ("ResourceId", "SkuId", "ConsumedQuantity", "BilledCost", "x_ServedModel"):
        assert [row[name] for row in old] == [row[name] for row in new]
    # Four GPUs: the tokens count once.
    assert [row["ConsumedQuantity"] for row in new if row["SkuId"] == "tokens-output"] == ["500000"]


def test_doctor_finds_in_a_real_prometheus_why_pods_do_not_meet(serving: Prometheus) -> None:
    join = TokenJoin(PrometheusClient(serving.url), 'cluster="unmatched"', TokenSettings(), float(END))
    join.query()
    found = {one.check: one for one in join.findings()}
    assert found["tokens.energy"].why == "tokens found, no energy: serving/elsewhere"
    assert "serving/loading, serving/silent" in found["tokens.scraped"].why
    assert found["prometheus.labels"].verdict is Verdict.WORKS

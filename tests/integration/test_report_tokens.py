"""`report --prometheus --by served_model` on a real Prometheus: the worked examples, with the engines' names.

An hour, at 0.25 per kWh, pue 1.2 and 2.00 per GPU-hour. GPU-hours are those of the time books: an hour that
several pods share is split, and counts once.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.token_diagnosis import TokenJoin
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.model.checks import Verdict
from running import Prometheus, free_port, gpuledger
from token_worlds import BEGIN, END, FIRST, HOUR, ServingCluster, between, linear, openmetrics, restarted

pytestmark = pytest.mark.group("tokens")
PREFILL, DECODE = ({"llm-d.ai/role": role} for role in ("prefill", "decode"))


def plain(name: str) -> ServingCluster:
    """Example 1: 200 W."""
    cluster = ServingCluster(name).pod("p", {"GPU-0": 720_000}, held=900)
    return cluster.vllm("p", 3_000_000, 1_000_000, cached=500_000, requests=4000)


def disaggregated() -> ServingCluster:
    cluster = ServingCluster("disaggregated")
    cluster.pod("prefill", {"GPU-0": 720_000}, labels=PREFILL)
    cluster.pod("decode", {"GPU-1": 1_440_000}, labels=DECODE)
    cluster.vllm("prefill", 1_000_000, 1000, cached=200_000, requests=1000)
    cluster.vllm("decode", 1_000_000, 500_000, cached=1_000_000, requests=1000)
    transferred = "vllm:prompt_tokens_by_source_total"
    return cluster.tokens(transferred, "decode", linear(0, 1_000_000), source="external_kv_transfer")


def engines() -> ServingCluster:
    """One pod of each engine, with its real names; each made 1,000 tokens of 3,000."""
    cluster = ServingCluster("engines")
    pairs = {
        "ray-serve": ("ray_vllm_prompt_tokens_total", "ray_vllm_generation_tokens_total"),
        "sglang": ("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
        "sglang-router": ("sglang_prompt_tokens_total", "sglang_generation_tokens_total"),
        "tgi": ("tgi_request_input_length_sum", "tgi_request_generated_tokens_sum"),
        "trtllm": ("trtllm_prompt_tokens_total", "trtllm_generation_tokens_total"),
        "lmdeploy": ("lmdeploy:prompt_tokens_total", "lmdeploy:generation_tokens_total"),
        "llamacpp": ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
        "nim": ("prompt_tokens_total", "generation_tokens_total"),
    }
    for number, (pod, names) in enumerate(pairs.items()):
        model = None if pod in ("tgi", "llamacpp") else f"model-{pod}"
        cluster.pod(pod, {f"GPU-{number}": 2000})
        for name, amount in zip(names, (3000, 1000), strict=True):
            cluster.tokens(name, pod, linear(7, 7 + amount), model=model)
    return cluster


def clusters() -> list[ServingCluster]:
    made = ServingCluster
    half = BEGIN + HOUR // 2
    replica = plain("replica").pod("idle", {"GPU-1": 216_000}, held=HOUR).vllm("idle", 0, 0)
    parallel = made("parallel").pod("p", {f"GPU-{number}": 360_000 for number in range(4)})
    for engine in ("0", "1"):
        parallel.vllm("p", 0, 250_000, engine=engine)
    restart = made("restart").pod("r0", {"GPU-0": 100}).pod("r1", {"GPU-1": 100})
    restart.tokens("vllm:generation_tokens_total", "r0", linear(100, 200))
    again = restarted(lambda _: 1000.0, linear(0, 50, half, END), half)
    restart.tokens("vllm:generation_tokens_total", "r1", again)
    several = plain("several").pod("q", {"GPU-1": 900_000})
    several.vllm("q", 0, 300_000, model="x").vllm("q", 0, 600_000, model="y")
    # SGLang exports counters with the first finished request. One pod is new, the other was scraped before.
    late, born = made("late"), BEGIN + 20 * 60
    for pod, since in (("new", BEGIN + 10 * 60), ("old", FIRST)):
        counter = between(linear(5000, 20_000, born, END), born)
        late.pod(pod, {f"GPU-{pod}": 60_000}, since=since, namespace=pod)
        late.tokens("sglang:generation_tokens_total", pod, counter, namespace=pod, model=pod, up=pod == "old")
    third = {"GPU-0": HOUR / 3}
    shared = made("shared")
    for pod, joules in (("a", 400_000), ("b", 300_000), ("c", 0)):
        shared.pod(pod, {"GPU-0": joules}, seconds=third, method="activity", controller="r")
        if pod != "c":
            shared.vllm(pod, 0, 100_000)
    unmatched = plain("unmatched").vllm("elsewhere", 10, 20, model="lost")
    unmatched.pod("silent", {"GPU-1": 5000}).pod("loading", {"GPU-2": 70}, labels={"llm-d.ai/model": "m"})
    twice = plain("twice")
    for name, amount in (("prompt", 3_000_000), ("generation", 1_000_000)):
        twice.tokens(f"vllm:{name}_tokens_total", "p", linear(100, 100 + amount), job="second")
    nothing = made("nothing").pod("p", {"GPU-0": 216_000}).vllm("p", 0, 0)
    idle = made("unscraped").pod("p", {"GPU-0": 216_000})
    found = [
        plain("plain"),
        replica,
        parallel,
        restart,
        several,
        late,
        shared,
        unmatched,
        twice,
        nothing,
        idle,
    ]
    return [*found, disaggregated(), engines()]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with all clusters."""
    folder = tmp_path_factory.mktemp("tokens")
    file = folder / "tokens.om"
    file.write_text(openmetrics(clusters()))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True)
    real = Prometheus(folder, "global: {}\n", free_port())
    try:
        yield real
    finally:
        real.stop()


def report(serving: Prometheus, cluster: str, *flags: str, by: str = "served_model") -> dict[str, Any]:
    since, until = (datetime.fromtimestamp(at, UTC).isoformat() for at in (BEGIN, END))
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
    **{
        ("engines", name): {"input_tokens": 3000, "output_tokens": 1000, "joules_per_output_token": 2.0}
        for name in (
            *(
                f"model-{pod}"
                for pod in ("ray-serve", "sglang", "sglang-router", "trtllm", "lmdeploy", "nim")
            ),
            *("(tgi)", "(llama.cpp)"),
        )
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


def test_doctor_finds_in_a_real_prometheus_why_pods_do_not_meet(serving: Prometheus) -> None:
    join = TokenJoin(PrometheusClient(serving.url), 'cluster="unmatched"', TokenSettings(), float(END))
    join.query()
    found = {one.check: one for one in join.findings()}
    assert found["tokens.energy"].why == "tokens found, no energy: serving/elsewhere"
    assert "serving/loading, serving/silent" in found["tokens.scraped"].why
    assert found["prometheus.labels"].verdict is Verdict.WORKS

"""`report --by served_model,gateway:LABEL` on a real Prometheus: rows of models split by gateways' tokens."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.token_diagnosis import TokenJoin
from gpuledger.cli.main import main
from gpuledger.ledger.report.tokens.settings import TokenSettings
from running import Prometheus
from token_worlds import (
    BEGIN,
    END,
    FIRST,
    HOUR,
    LAST,
    ServingCluster,
    Value,
    between,
    linear,
    restarted,
    stepped,
    stored,
)

pytestmark = pytest.mark.group("tokens")
DIRECT, HALF = "(not through a gateway)", BEGIN + HOUR // 2
INPUT, OUTPUT = "litellm_input_tokens_metric_total", "litellm_output_tokens_metric_total"
TEAM, ADAPTER = "gateway:team", "gateway:adapter"


def plain(name: str) -> ServingCluster:
    """Example 1: 200 W for an hour, 1,000,000 of output and 3,000,000 of input."""
    return ServingCluster(name).pod("p", {"GPU-0": 720_000}).vllm("p", 3_000_000, 1_000_000)


def gateway(
    cluster: ServingCluster,
    name: str,
    value: Value,
    *,
    pod: str = "gw-0",
    job: str = "gateway",
    **labels: str,
) -> ServingCluster:
    """A counter of a gateway's pod."""
    target = {"job": job, "instance": f"{pod}:4000", "namespace": "edge", "pod": pod}
    cluster.add(name, {**labels, **target}, value, target={})
    if not any(target.items() <= known.items() for known, _ in cluster.series["up"]):
        cluster.add("up", target, lambda _: 1.0, target={})
    return cluster


def litellm(cluster: ServingCluster, team: str, given: float, made: float, **more: str) -> ServingCluster:
    labels = {"model": "m", "requested_model": "chat", "team": f"id-{team}", "team_alias": team, **more}
    for name, amount in ((INPUT, given), (OUTPUT, made)):
        gateway(cluster, name, linear(9, 9 + amount), **labels)
    return cluster


def picker(cluster: ServingCluster, target: str, made: float, **more: str) -> ServingCluster:
    name = "inference_objective_output_tokens_sum"
    labels = {"model_name": "alias", "target_model_name": target, **more}
    return gateway(cluster, name, linear(9, 9 + made), pod="epp-0", **labels)


def clusters() -> list[ServingCluster]:
    made = plain
    # Example 12: the picker counts 250,000 of 1,000,000 output tokens for a LoRA adapter.
    lora = picker(made("lora"), "sql-adapter", 250_000)
    running = {"running_lora_adapters": "sql-adapter,other", "waiting_lora_adapters": "", "max_lora": "4"}
    lora.tokens("vllm:lora_requests_info", "p", between(lambda at: float(at), BEGIN, HALF), **running)
    teams = litellm(litellm(made("teams"), "red", 1_500_000, 600_000), "blue", 1_500_000, 300_000)
    teams.pod("q", {"GPU-1": 1000}).vllm("q", 10, 20, model="other").pod("train", {"GPU-2": 5})
    # The gateway restarts: one counter begins again at 0, in the same pod.
    again = gateway(
        made("restart"),
        OUTPUT,
        restarted(linear(0, 200_000, BEGIN, HALF - 60), linear(0, 50_000, HALF, END), HALF),
        model="m",
        team_alias="red",
    )
    # LiteLLM in front of the picker: both count the same requests.
    chain = picker(litellm(made("chain"), "red", 3_000_000, 1_000_000), "m", 1_000_000)
    surplus = litellm(litellm(made("surplus"), "red", 3_000_000, 1_000_000), "blue", 0, 1_000_001)
    alias = litellm(made("alias"), "red", 0, 400_000, model="hosted_vllm/m")
    litellm(alias, "blue", 0, 100_000, model="mine/fast")
    litellm(alias, "green", 0, 70, model="gpt-4o", requested_model="gpt-4o")
    nothing = litellm(made("nothing"), "red", 0, 0)
    replicas = made("replicas")
    # Two replicas, each scraped by two jobs.
    for pod, job in product(("gw-0", "gw-1"), ("gateway", "second")):
        labels = {"model": "m", "team": "None", "team_alias": "red"}
        gateway(replicas, OUTPUT, linear(5, 125_005), pod=pod, job=job, **labels)
    # A rollout: the new pod is scraped before it has counters, which begin with the first tokens.
    rollout = made("rollout")
    for pod, first, last in (("gw-a", FIRST, HALF), ("gw-b", HALF + 60, LAST)):
        target = {"job": "gateway", "instance": f"{pod}:4000", "namespace": "edge", "pod": pod}
        rollout.add("up", target, between(lambda _: 1.0, first, last), target={})
        labels = {"model": "m", "team": "None", "team_alias": "red"}
        begins = first if pod == "gw-a" else first + 300
        counter = between(linear(70, 200_070, BEGIN, BEGIN + 600), first, last)
        if pod == "gw-b":
            counter = between(stepped((begins, 40_000), (begins + 600, 50_000)), begins, last)
        gateway(rollout, OUTPUT, counter, pod=pod, **labels)
    stranger = picker(made("stranger"), "nobody-knows", 250_000)
    # A router's pod: the gateway knows its models, and energy is that of both.
    router = litellm(made("router"), "red", 0, 400_000, model="x").pod("r", {"GPU-1": 90})
    router.vllm("r", 0, 400_000, model="x").vllm("r", 0, 5, model="y")
    found = [lora, teams, again, chain, surplus, alias, nothing, replicas, rollout, stranger, router]
    return [*found, made("without")]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with all clusters."""
    with stored(clusters(), tmp_path_factory.mktemp("gateways")) as prometheus:
        yield prometheus


@pytest.fixture
def report(serving: Prometheus, capsys: pytest.CaptureFixture[str]) -> Any:
    def made(cluster: str, by: str, *flags: str, form: str = "json", until: int = END) -> Any:
        since, ends = (datetime.fromtimestamp(at, UTC).isoformat() for at in (BEGIN, until))
        prices = ("--price.kwh", "0.25", "--pue", "1.2", "--price.gpu-hour", "2.00")
        chosen = ("--prometheus", serving.url, "--prometheus.match", f'cluster="{cluster}"')
        words = ["report", *chosen, "--by", by, "--since", since, "--until", ends, *prices, "--format", form]
        assert main([*words, *flags]) == 0
        text = capsys.readouterr().out
        return json.loads(text) if form == "json" else text

    return made


def rows_of(found: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in found["rows"] if row.get("served_model", "m") == "m"}


def amounts(rows: dict[str, dict[str, Any]], *names: str) -> dict[str, tuple[Any, ...]]:
    return {text: tuple(row[name] for name in names) for text, row in rows.items()}


def test_an_adapter_has_the_part_of_cost_that_its_tokens_have_of_those_of_the_engine(report: Any) -> None:
    found = report("lora", f"served_model,{ADAPTER}")
    rows = rows_of(found, ADAPTER)
    assert amounts(rows, "cost", "output_tokens", "millijoules", "apportioned_by") == {
        "sql-adapter": (0.515, 250_000, 180_000_000, "gateway_tokens"),
        DIRECT: (1.545, 750_000, 540_000_000, "gateway_tokens"),
    }
    # What was not measured for the row alone is not known, and nothing of its energy is measured.
    names = ("utilization", "idle_share", "measured_kwh", "apportioned_kwh", "bound_kwh")
    assert amounts(rows, *names)["sql-adapter"] == (None, None, 0, 0.05, None)
    notes = "\n".join(found["notes"])
    assert (
        "apportioned: GPU time, energy and cost of a model by the output tokens that llm-d counted" in notes
    )
    assert "llm-d counts no input tokens" in notes


def test_teams_and_the_total_are_those_of_the_report_by_model(report: Any) -> None:
    whole, found = report("teams", "served_model"), report("teams", f"served_model,{TEAM}")
    rows = rows_of(found, TEAM)
    assert amounts(rows, "input_tokens", "output_tokens", "cost", "gpu_hours") == {
        "red": (1_500_000, 600_000, 1.236, 0.6),
        "blue": (1_500_000, 300_000, 0.618, 0.3),
        DIRECT: (0, 100_000, 0.206, 0.1),
    }
    exact = ("millijoules", "gpu_microseconds", "input_tokens", "output_tokens", "finished_requests", "cost")
    (model,) = (row for row in whole["rows"] if row["served_model"] == "m")
    for name in exact:
        assert sum(row[name] or 0 for row in rows.values()) == pytest.approx(model[name], abs=1e-9)
        assert found["total"][name] == whole["total"][name]
    # Models without a gateway, and pods without a model, keep their rows.
    others = {row["served_model"]: row for row in found["rows"] if row["served_model"] != "m"}
    assert others["other"][TEAM] == DIRECT
    assert others["other"]["measured_kwh"] == 0.000277778
    assert others[""][TEAM] == ""
    assert "apportioned_by" not in others["other"]


def test_teams_without_the_model_are_sums_over_models(report: Any) -> None:
    found, by_model = report("teams", TEAM), report("teams", f"served_model,{TEAM}")
    rows = {row[TEAM]: row for row in found["rows"]}
    assert set(rows) == {"red", "blue", DIRECT, ""}
    for team, row in rows.items():
        same = [one for one in by_model["rows"] if one[TEAM] == team]
        for name in ("millijoules", "gpu_microseconds"):
            assert row[name] == sum(one[name] for one in same)
    assert rows[DIRECT]["output_tokens"] == 100_020
    assert found["total"]["millijoules"] == by_model["total"]["millijoules"]


def test_input_tokens_count_by_the_weight_that_is_set(report: Any) -> None:
    found = report("teams", f"served_model,{TEAM}", "--tokens.input-weight", "0.1")
    # 0.75, 0.45 and 0.1 million of 1.3 million.
    costs = {team: row["cost"] for team, row in rows_of(found, TEAM).items()}
    assert costs == pytest.approx(
        {"red": 2.06 * 0.75 / 1.3, "blue": 2.06 * 0.45 / 1.3, DIRECT: 2.06 * 0.1 / 1.3}
    )
    assert any("output tokens plus 0.1 x input tokens (tokens.input_weight)" in one for one in found["notes"])


# By cluster: the rows of the model, with their output tokens, and a part of a note.
CASES: dict[str, tuple[dict[str, int], str]] = {
    "restart": ({"red": 250_000, DIRECT: 750_000}, ""),
    "chain": ({"red": 1_000_000}, "llm-d also counted tokens of m: left out"),
    "surplus": ({"red": 500_000, "blue": 500_000}, "litellm counted 1,000,001 more output tokens of m"),
    "alias": (
        {"red": 400_000, DIRECT: 600_000},
        "litellm counted 100,000 tokens of mine/fast, which matches no",
    ),
    "nothing": ({DIRECT: 1_000_000}, ""),
    "replicas": ({"red": 250_000, DIRECT: 750_000}, ""),
    "rollout": ({"red": 250_000, DIRECT: 750_000}, ""),
    "without": ({DIRECT: 1_000_000}, "Prometheus has no tokens of a gateway in this range"),
    "stranger": ({DIRECT: 1_000_000}, "llm-d counted 250,000 tokens of nobody-knows, which matches no"),
    "lora": ({"(none)": 250_000, DIRECT: 750_000}, "No counter of a gateway has a value of gateway:team, so"),
    "router": ({DIRECT: 1_000_000}, "Gateways counted 400,000 tokens of x, without a row of GPU time"),
}


@pytest.mark.parametrize("cluster", CASES)
def test_rows_have_the_tokens_of_the_engine(report: Any, cluster: str) -> None:
    expected, note = CASES[cluster]
    found = report(cluster, f"served_model,{TEAM}")
    rows = rows_of(found, TEAM)
    assert {team: row["output_tokens"] for team, row in rows.items()} == expected
    assert sum(row["millijoules"] for row in rows.values()) == 720_000_000
    assert note in "\n".join(found["notes"])


def test_an_alias_is_mapped_to_the_engines_name(report: Any) -> None:
    entry = '[{"gateway": "litellm", "served": {"mine/*": "m"}}]'
    found = report("alias", f"served_model,{TEAM}", "--tokens.gateways", entry)
    tokens = {team: row["output_tokens"] for team, row in rows_of(found, TEAM).items()}
    assert tokens == {"red": 400_000, "blue": 100_000, DIRECT: 500_000}
    assert "70 tokens of gpt-4o, which matches no" in "\n".join(found["notes"])


def test_any_label_of_a_gateway_is_a_key(report: Any) -> None:
    rows = rows_of(
        report("chain", "served_model,gateway:requested_model,gateway:team"), "gateway:requested_model"
    )
    assert {name: row[TEAM] for name, row in rows.items()} == {"chat": "red"}
    # One key has all tokens: nothing is split, and the row is as measured.
    assert (rows["chat"]["measured_kwh"], rows["chat"].get("apportioned_by")) == (0.2, None)


def test_the_parts_of_a_range_are_split_by_their_tokens(report: Any) -> None:
    found = report("restart", f"served_model,{TEAM}", "--every", "hour")
    assert [(row["period"][-5:], row[TEAM], row["output_tokens"]) for row in found["rows"]] == [
        (found["rows"][0]["period"][-5:], DIRECT, 750_000),
        (found["rows"][0]["period"][-5:], "red", 250_000),
    ]


def test_table_and_csv_mark_what_is_apportioned(report: Any) -> None:
    text = report("lora", f"served_model,{ADAPTER}", form="table")
    (line,) = (line for line in text.splitlines() if "sql-adapter" in line)
    assert "0.25~" in line
    assert "0.050~" in line
    (whole,) = (line for line in text.splitlines() if line.startswith("total"))
    assert "~" not in whole
    cells = {
        row[ADAPTER]: row
        for row in csv.DictReader(io.StringIO(report("lora", f"served_model,{ADAPTER}", form="csv")))
    }
    assert Decimal(cells["sql-adapter"]["apportioned_gpu_hours"]) == Decimal("0.25")
    assert Decimal(cells["sql-adapter"]["cost"]) == Decimal("0.515")


def test_doctor_names_models_of_gateways_that_no_engine_has(serving: Prometheus) -> None:
    join = TokenJoin(PrometheusClient(serving.url), 'cluster="alias"', TokenSettings(), float(END))
    join.query()
    (found,) = (one for one in join.findings() if one.check == "tokens.gateways")
    assert "litellm: gpt-4o, mine/fast" in found.why

"""The rules of tokens, in promtool: the worked examples, and what must not break the rows of other models."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dashboards import EVERYTHING, TOKENS, substituted
from stack import copy_rules

STEP, HOUR = 15, 3600
STEPS = 2 * HOUR // STEP
UNTIL = "2h"
# Of the engine's counters: input and output.
VLLM = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
LLAMA = ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total")


@dataclass
class Cluster:
    """The series of one cluster, with rates per hour."""

    name: str
    series: list[dict[str, str]] = field(default_factory=list)

    def add(self, name: str, values: str, /, **labels: str) -> None:
        written = ",".join(f'{label}="{word}"' for label, word in {**labels, "cluster": self.name}.items())
        self.series.append({"series": f"{name}{{{written}}}", "values": values})

    def pod(
        self, pod: str, watts: float | None, *gpus: str, part: float = 1, method: str = "measured"
    ) -> Cluster:
        """A pod with these watts on each GPU, and this part of its time; None: it has no energy series."""
        owner = {"owner_kind": "pod", "namespace": "s", "pod": pod, "container": "c"}
        node = {"job": "gpuledger", "instance": "n:9400"}
        for gpu in gpus:
            uuid = f"{self.name}-{gpu}"
            self.add(
                "gpuledger_gpu_seconds_total",
                f"100+{part * STEP}x{STEPS}",
                **node,
                uuid=uuid,
                account="owner",
                **owner,
            )
            there = {"uuid": uuid, **owner, **node}
            self.add("gpuledger_owner_resident_seconds_total", f"0+{STEP}x{STEPS}", **there)
            # A fourth of the time; always while a pod is idle.
            held = STEP if pod == "idle" else STEP / 4
            self.add("gpuledger_owner_held_seconds_total", f"0+{held}x{STEPS}", **there)
            if watts is not None:
                energy = {"uuid": uuid, "account": "process", "method": method, **owner, **node}
                self.add("gpuledger_energy_joules_total", f"7000+{watts * STEP}x{STEPS}", **energy)
            if not any(f'uuid="{uuid}"' in one["series"] and "price" in one["series"] for one in self.series):
                self.add("gpuledger_gpu_price", f"2x{STEPS}", uuid=uuid, mig_instance="", **node)
                self.add("gpuledger_device_info", f"1x{STEPS}", uuid=uuid, gpu="0", name="H200", **node)
        return self

    def tokens(
        self, pod: str, given: float, made: float, names: tuple[str, str] = VLLM, **labels: str
    ) -> Cluster:
        """A server in a pod that counts these tokens in an hour."""
        target = {"job": "engines", "instance": f"{pod}:8000", "namespace": "s", "pod": pod}
        for name, amount in zip(names, (given, made), strict=True):
            self.counter(
                name, f"100+{amount * STEP / HOUR!r}x{STEPS}", **{"model_name": "m", **target, **labels}
            )
        return self

    def counter(self, name: str, values: str, /, **labels: str) -> Cluster:
        self.add(name, values, **{label: word for label, word in labels.items() if word})
        return self


def plain(name: str) -> Cluster:
    """Example 1."""
    return Cluster(name).pod("p", 200, "0").tokens("p", 3_000_000, 1_000_000)


def clusters() -> Iterator[Cluster]:
    yield plain("plain")
    yield plain("replica").pod("idle", 60, "1").tokens("idle", 0, 0)
    parallel = Cluster("parallel").pod("p", 100, "0", "1", "2", "3")
    for engine in ("0", "1"):
        parallel.tokens("p", 0, 250_000, engine=engine)
    yield parallel
    restart = Cluster("restart").pod("r0", 100, "0").pod("r1", 100, "1").tokens("r0", 0, 3600)
    # A restart between the last two scrapes of the window.
    steps = STEPS - 8
    target = {"job": "e", "instance": "r1:8000", "namespace": "s", "pod": "r1", "model_name": "m"}
    yield restart.counter(VLLM[1], f"100000+15x{steps} 15+15x8", **target)
    yield (
        plain("several")
        .pod("q", 250, "1")
        .tokens("q", 0, 300_000, model_name="x")
        .tokens("q", 0, 600_000, model_name="y")
    )
    shared = Cluster("shared").tokens("a", 0, 100_000).tokens("b", 0, 100_000)
    for pod, watts in (("a", 90.0), ("b", 90.0), ("c", None)):
        shared.pod(pod, watts, "0", part=1 / 3, method="activity")
    yield shared.tokens("c", 0, 0)
    # Two jobs scrape one server; a server exports the names of two engines; labels of gpuledger are lost.
    yield plain("twice").tokens("p", 3_000_000, 1_000_000, job="second", endpoint="http")
    nim = ("prompt_tokens_total", "generation_tokens_total")
    yield plain("names").tokens("p", 3_000_000, 1_000_000, nim)
    yield plain("lost").tokens("elsewhere", 10, 3600, model_name="z").pod("silent", 30, "1")
    yield (
        Cluster("unnamed")
        .pod("t", 200, "0")
        .tokens(
            "t",
            1000,
            1_000_000,
            ("tgi_request_input_length_sum", "tgi_request_generated_tokens_sum"),
            model_name="",
        )
    )
    yield (
        Cluster("prefill")
        .pod("pre", 200, "0")
        .tokens("pre", 1_000_000, 1000)
        .pod("dec", 400, "1")
        .tokens("dec", 1_000_000, 500_000)
    )
    # Prompt tokens of llama.cpp are without cached ones, which older versions do not count.
    llama = Cluster("llama").pod("new", 200, "0").pod("old", 200, "1")
    for pod in ("new", "old"):
        llama.tokens(pod, 1_000_000, 1_000_000, LLAMA, model_name=pod)
    cached, target = "llamacpp:prompt_tokens_cached_total", {"job": "engines", "instance": "new:8000"}
    rate = f"0+{2_000_000 * STEP / HOUR!r}x{STEPS}"
    yield llama.counter(cached, rate, model_name="new", **target, namespace="s", pod="new")
    yield Cluster("nothing").pod("p", 60, "0").tokens("p", 0, 0)
    born = Cluster("born").pod("p", 100, "0")
    half = STEPS // 2
    target = {"job": "e", "instance": "p:8000", "namespace": "s", "pod": "p", "model_name": "m"}
    yield born.counter("sglang:generation_tokens_total", f"_x{half} 5000+15x{half}", **target)


OUTPUT = 'gpuledger:model_tokens:rate5m{kind="output"}'
PER_OUTPUT = f"gpuledger:model_power:watts5m / ignoring (kind) ({OUTPUT} > 0)"
EVERY = 'sum without (kind) (gpuledger:model_tokens:rate5m{kind=~"input|output"})'
PER_TOKEN = f"gpuledger:model_power:watts5m / ({EVERY} > 0)"
COST = (
    "(gpuledger:model_gpu_cost:per_hour5m + gpuledger:model_power:watts5m / 1000 * 1.2 * 0.25)"
    f" / 3600 / ignoring (kind) ({OUTPUT} > 0) * 1e6"
)
# By query, the values by cluster and model; other clusters are not looked at.
EXPECTED: dict[str, dict[tuple[str, str], float]] = {
    PER_OUTPUT: {
        ("plain", "m"): 0.72,
        ("replica", "m"): 0.936,
        ("parallel", "m"): 2.88,
        ("several", "m"): 0.72,
        ("several", "(several)"): 1.0,
        ("shared", "m"): 3.24,
        ("twice", "m"): 0.72,
        ("names", "m"): 0.72,
        ("lost", "m"): 0.72,
        ("unnamed", "(unnamed)"): 0.72,
        ("born", "m"): 100.0,
        # Pods of both roles: the model's output has one token of each prefill, too.
        ("prefill", "m"): 4.311,
    },
    PER_TOKEN: {
        ("plain", "m"): 0.18,
        ("replica", "m"): 0.234,
        ("llama", "new"): 0.18,
        ("llama", "old"): 0.36,
    },
    COST: {("plain", "m"): 2.06, ("replica", "m"): 4.078, ("parallel", "m"): 16.24},
    # One token a second of each replica; that of summed counters would fall to 0.
    OUTPUT: {("restart", "m"): 2.0},
    # An hour of a shared GPU is split and counts once.
    "gpuledger:model_gpus:mean5m": {("shared", "m"): 1.0, ("parallel", "m"): 4.0, ("nothing", "m"): 1.0},
    "gpuledger:model_gpu_cost:per_hour5m": {("shared", "m"): 2.0},
    "gpuledger:model_idle_power:watts5m": {
        ("replica", "m"): 60.0,
        ("nothing", "m"): 60.0,
        ("shared", "m"): 0.0,
    },
    "gpuledger:model_idle_gpus:mean5m": {("replica", "m"): 1.0, ("shared", "m"): 0.333},
    "1 - gpuledger:model_held:mean5m / gpuledger:model_presence:mean5m": {("replica", "m"): 0.375},
    "gpuledger:model_measured_power:watts5m": {("plain", "m"): 200.0},
}
# By query, the clusters and pods that it names.
NAMED = {
    "gpuledger:pod_without_energy:info": [("lost", "elsewhere")],
    "gpuledger:pod_without_tokens:info": [("lost", "silent")],
}
# Models for which a ratio must not exist: no tokens is neither 0 nor infinite.
ABSENT = (("nothing", "m"), ("lost", "z"))


def checks() -> Iterator[dict[str, Any]]:
    for query, values in EXPECTED.items():
        for (cluster, model), value in values.items():
            labels = {"cluster": cluster, "model_name": model, "namespace": "s"}
            chosen = f"({query}) and on (cluster, model_name) group by (cluster, model_name) "
            chosen += f'(gpuledger:pod_model:info{{cluster="{cluster}",model_name="{model}"}})'
            yield expectation(
                f"round(sum by (cluster, model_name, namespace) ({chosen}), 0.001)", labels, value
            )
    for query, pods in NAMED.items():
        yield {
            "expr": query,
            "eval_time": UNTIL,
            "exp_samples": [
                {"labels": f'{query}{{cluster="{cluster}",namespace="s",pod="{pod}"}}', "value": 1}
                for cluster, pod in pods
            ],
        }
    for cluster, model in ABSENT:
        row = f'{{cluster="{cluster}",model_name="{model}"}}'
        ratio = f"gpuledger:model_power:watts5m{row} / ignoring (kind) ({OUTPUT} > 0)"
        yield {"expr": ratio, "eval_time": UNTIL, "exp_samples": []}


def panel_checks() -> Iterator[dict[str, Any]]:
    """Each query of the dashboard returns something."""
    values = {**EVERYTHING, "price_kwh": "0.25", "pue": "1.2", "price_gpu_hour": "0"}
    values |= {"__range": "1h", "__rate_interval": "2m"}
    for panel in TOKENS["panels"]:
        for target in panel.get("targets", ()):
            query = f"count({substituted(target['expr'], values)}) > bool 0"
            yield expectation(query, {}, 1)


def expectation(query: str, labels: dict[str, str], value: float) -> dict[str, Any]:
    written = ",".join(f'{label}="{word}"' for label, word in labels.items())
    return {"expr": query, "eval_time": UNTIL, "exp_samples": [{"labels": f"{{{written}}}", "value": value}]}


def test_the_rules_give_the_worked_examples_whatever_other_models_do(tmp_path: Path) -> None:
    """All clusters are evaluated together: one failing join would empty the rows of all."""
    test = {
        "rule_files": [
            file for file in copy_rules(tmp_path, "60s") if Path(file).stem in ("recording", "tokens")
        ],
        # One evaluation a minute saves CPU time.
        "evaluation_interval": "60s",
        "tests": [
            {
                "interval": f"{STEP}s",
                "input_series": [series for cluster in clusters() for series in cluster.series],
                "promql_expr_test": [*checks(), *panel_checks()],
            }
        ],
    }
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps(test), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

"""`doctor --prometheus`: each reason for which tokens and energy do not meet has its line and remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpuledger.app.token_diagnosis import TokenJoin
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.model.checks import Finding, Verdict

Labels = Mapping[str, str]


def energy(pod: str, **more: str) -> Labels:
    return {"uuid": "GPU-0", "account": "process", "namespace": "s", "pod": pod, "job": "g", **more}


def engine(pod: str, model: str = "m", **more: str) -> Labels:
    return {"model_name": model, "namespace": "s", "pod": pod, "instance": f"{pod}:8000", "job": "e", **more}


class ScriptedPrometheus:
    """A Prometheus with these energy series and these series of `vllm:generation_tokens_total`."""

    def __init__(self, owners: Sequence[Labels], tokens: Sequence[Labels]) -> None:
        self._owners, self._tokens = owners, tokens

    def query_vector(self, query: str, _at: float) -> list[tuple[Any, float]]:
        if query.startswith("gpuledger_energy_joules_total"):
            return [(labels, 1.0) for labels in self._owners]
        if query.startswith("count by (__name__)"):
            return [({"__name__": "vllm:generation_tokens_total"}, 1.0)] if self._tokens else []
        if "vllm:generation_tokens_total" in query and "resets" not in query:
            return [(labels, 5.0) for labels in self._tokens]
        return []


def findings(owners: Sequence[Labels], tokens: Sequence[Labels]) -> dict[str, Finding]:
    client: Any = ScriptedPrometheus(owners, tokens)
    join = TokenJoin(client, "", TokenSettings(), 1_700_000_000.0)
    join.query()
    return {one.check: one for one in join.findings()}


def test_pods_with_energy_and_tokens_work() -> None:
    found = findings([energy("p")], [engine("p")])
    assert {one.verdict for one in found.values()} == {Verdict.WORKS}
    assert set(found) == {
        *("prometheus.gpuledger", "prometheus.labels"),
        *("tokens.counters", "tokens.energy", "tokens.scraped", "tokens.models"),
    }


RENAMED = energy("exporter", exported_pod="p", exported_namespace="s")
EXPORTER = {**energy("exporter"), "account": "idle"}
# The series of energy and of tokens; the check, its verdict, and parts of its text and remedy.
CASES: dict[str, tuple[Any, ...]] = {
    "nothing": ([], [], "prometheus.gpuledger", Verdict.FAILS, "no energy", "scrape gpuledger"),
    "labels renamed": (
        [RENAMED, EXPORTER],
        [engine("p")],
        *("prometheus.labels", Verdict.FAILS, "exported_pod", "honor_labels: true"),
    ),
    "no tokens": (
        [energy("p")],
        [],
        *("tokens.counters", Verdict.FAILS, "energy, no tokens", "--enable-metrics"),
    ),
    "tokens without pod": (
        [energy("p")],
        [{"model_name": "m", "instance": "h:8000", "job": "e"}],
        *("tokens.counters", Verdict.FAILS, "without the labels namespace and pod", "PodMonitor"),
    ),
    "tokens only": (
        [energy("p")],
        [engine("p"), engine("lost")],
        *("tokens.energy", Verdict.FAILS, "tokens found, no energy: s/lost", "honor_labels: true"),
    ),
    "energy only": (
        [energy("p"), energy("train")],
        [engine("p")],
        *("tokens.scraped", Verdict.WARNING, "energy, no tokens: s/train", "scrape the servers"),
    ),
    "two models": (
        [energy("p")],
        [engine("p", "x"), engine("p", "y")],
        *("tokens.models", Verdict.WARNING, "two model names in one pod: s/p exports x, y", "each model in"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_reason_has_its_line_and_remedy(name: str) -> None:
    owners, tokens, check, verdict, why, remedy = CASES[name]
    one = findings(owners, tokens)[check]
    assert one.verdict is verdict
    assert why in one.why
    assert remedy in one.remedy


def test_renamed_labels_do_not_hide_the_pods() -> None:
    assert findings([RENAMED, EXPORTER], [engine("p")])["tokens.energy"].verdict is Verdict.WORKS

"""`doctor --prometheus` and a report beside a Prometheus that scrapes a node and a stand-in for vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running import Prometheus, gpuledger, prometheus, serving_prepared, wait_until
from scripted_target import Answer, scripted

NODE = """
gpus:
  - model: NVIDIA H100 80GB HBM3
    processes:
      - {name: vllm, load: 0.8, memory: 60GiB, pod: {namespace: ml, name: chat-0, container: main}}
"""
PAGE = """\
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="chat"} 3000.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="chat"} 1000.0
"""
# The exporter's own pod, as a monitor sets it.
EXPORTER = "{namespace: monitoring, pod: exporter-x}"

# One worker: each would start the fixture.
pytestmark = pytest.mark.group("token-doctor")


def job(name: str, address: str, labels: str, *, honor: bool) -> str:
    return (
        f"- job_name: {name}\n  honor_labels: {str(honor).lower()}\n"
        f"  static_configs: [{{targets: ['{address}'], labels: {labels}}}]\n"
    )


@pytest.fixture(scope="module")
def scraping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the jobs `kept` and `lost` (without honor_labels) of a node, and `engine`."""
    scenario = tmp_path_factory.mktemp("tokens") / "node.yaml"
    Path(scenario).write_text(NODE)
    page = Answer(PAGE)
    with serving_prepared("--source", f"simulator:{scenario}") as server, scripted(lambda _: page) as engine:
        address = server.url.removeprefix("http://")
        jobs = job("kept", address, EXPORTER, honor=True) + job("lost", address, EXPORTER, honor=False)
        jobs += job("engine", f"127.0.0.1:{engine.port}", "{namespace: ml, pod: chat-0}", honor=False)
        with prometheus(f"global: {{scrape_interval: 1s}}\nscrape_configs:\n{jobs}") as real:
            real.wait_query('vllm:generation_tokens_total{pod="chat-0"}')
            for labels in ('job="kept",pod="chat-0"', 'job="lost",exported_pod="chat-0"'):
                real.wait_query(f"gpuledger_gpu_seconds_total{{{labels}}}")
            yield real


def doctor(real: Prometheus, match: str) -> dict[str, dict[str, Any]]:
    flags = ("--prometheus.match", match, "--tokens.match", 'job="engine"', "--format", "json")
    done = gpuledger("doctor", "--prometheus", real.url, *flags)
    return {one["check"]: one for one in json.loads(done.stdout)["findings"]}


def test_lost_labels_are_found_and_kept_ones_work(scraping: Prometheus) -> None:
    kept, lost = (doctor(scraping, f'job="{name}"') for name in ("kept", "lost"))
    assert {check: one["verdict"] for check, one in kept.items()} == dict.fromkeys(kept, "works")
    assert "tokens.energy" in kept
    assert lost["prometheus.labels"]["verdict"] == "fails"
    assert "honor_labels: true" in lost["prometheus.labels"]["remedy"]


def test_the_report_joins_the_tokens_of_the_live_server(scraping: Prometheus) -> None:
    """Its counters stand still: the model has a row, and no number per token."""

    def row() -> dict[str, Any] | None:
        flags = ("--prometheus.match", 'job="kept"', "--tokens.match", 'job="engine"', "--format", "json")
        done = gpuledger(
            "report", "--prometheus", scraping.url, "--by", "served_model", "--since", "1h", *flags
        )
        rows = json.loads(done.stdout)["rows"] if done.returncode == 0 else []
        return next((one for one in rows if one["served_model"] == "chat" and one["millijoules"]), None)

    # A report has many queries: it is repeated only from here on.
    scraping.wait_query('increase(gpuledger_energy_joules_total{job="kept",pod="chat-0"}[1h]) > 0')
    found = wait_until(row, "energy of the model")
    assert found is not None
    assert (found["pods"], found["output_tokens"], found["joules_per_output_token"]) == (1, 0, None)

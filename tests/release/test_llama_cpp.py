"""A real inference server beside simulated GPUs: the report has the tokens that its client counted.

The server is on the CPU of this machine, and scraped with the labels of a pod of the simulator: tokens are
real, energy is not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from release.llama_cpp import METRICS, SCENARIO, SCRAPES, VERSION, LlamaServer, llama_server
from running import Prometheus, free_port, gpuledger, prometheus, serving, wait_until

pytestmark = pytest.mark.group("llama-cpp")
POD = {"namespace": "serving", "pod": "llama-0"}


@dataclass
class Client:
    """Sends requests, and counts the tokens of their `usage`."""

    input: int = 0
    output: int = 0
    cached: int = 0

    def count(self, usage: dict[str, Any]) -> None:
        self.input += usage["prompt_tokens"]
        self.output += usage["completion_tokens"]
        self.cached += usage["prompt_tokens_details"]["cached_tokens"]

    def work(self, server: LlamaServer) -> None:
        """Plain, streamed and repeated prompts, the last with a cache."""
        for prompt, tokens in (("abc", 5), ("d" * 40, 1), ("xyz" * 70, 30)):
            self.count(server.complete(prompt, tokens))
        for _ in range(3):
            self.count(server.stream("question" * 30, 20))


@dataclass
class World:
    """Prometheus, the address of the server, and its model."""

    store: Prometheus
    port: int
    model: Path

    def wait_scraped(self, server: LlamaServer) -> None:
        """Wait until Prometheus has the server's counters as they are now."""

        def is_scraped() -> bool:
            names = "|".join(METRICS)
            found = {
                row["metric"]["__name__"]: int(row["value"][1])
                for row in self.store.query(f'{{__name__=~"{names}"}}')
            }
            return found == server.counters()

        wait_until(is_scraped, "a scrape of the server")

    def report(self, begins: float, ends: float) -> dict[str, Any]:
        since, until = (datetime.fromtimestamp(at, UTC).isoformat() for at in (begins, ends))
        within = ("--by", "served_model", "--since", since, "--until", until, "--format", "json")
        done = gpuledger("report", "--prometheus", self.store.url, *within)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("llama")
    scenario = folder / "node.yaml"
    scenario.write_text(SCENARIO)
    node = serving(
        "--source", f"simulator:{scenario}", "--state-dir", str(folder), "--energy.zero-hold", "2s"
    )
    with node as gpus:
        port = free_port()
        with prometheus(SCRAPES.format(node=gpus.port, engine=port)) as store:
            store.wait_query('gpuledger_gpu_seconds_total{pod="llama-0"} > 0')
            store.wait_query('gpuledger_energy_joules_total{pod="llama-0"} > 0')
            yield World(store, port, folder / "tiny.gguf")


def test_the_report_has_the_tokens_that_the_client_counted(
    world: World, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Over a restart of the server, and with a request that the client aborts."""
    record_testsuite_property("llama.cpp server: PyPI `xllamacpp`", VERSION)
    client = Client()
    with llama_server(world.model, world.port) as server:
        world.wait_scraped(server)
        begins = time.time()
        client.work(server)
        assert client.cached > 0
        before = server.counters()
        assert [sum(before[name] for name in METRICS[:2]), before[METRICS[2]]] == [
            client.input,
            client.output,
        ]
        server.abort("aborted" * 20, 2000)
        # Its prompt was computed: a token for each letter, the begin of the text, and a space before it.
        after = wait_until(lambda: _changed(server, before), "the counters of the aborted request")
        client.input += len("aborted" * 20) + 2
        client.output += after[METRICS[2]] - before[METRICS[2]]
        client.cached += after[METRICS[1]] - before[METRICS[1]]
        assert 1 <= after[METRICS[2]] - before[METRICS[2]] < 2000
        world.wait_scraped(server)
    with llama_server(world.model, world.port) as server:
        assert sum(server.counters().values()) == 0
        world.wait_scraped(server)
        client.work(server)
        world.wait_scraped(server)
        ends = time.time()
        found = world.report(begins, ends)
    (row,) = (row for row in found["rows"] if row["served_model"] == "(llama.cpp)")
    names = ("input_tokens", "output_tokens", "cached_tokens", "finished_requests", "pods")
    assert [row[name] for name in names] == [client.input, client.output, client.cached, None, 1]
    assert row["joules_per_output_token"] == pytest.approx(
        row["millijoules"] / 1000 / client.output, rel=1e-6
    )
    assert row["millijoules"] > 0
    assert not any("without cached ones" in note for note in found["notes"])


def _changed(server: LlamaServer, before: dict[str, int]) -> dict[str, int] | None:
    """The counters when the server works for no request any more, and they have changed."""
    now = server.counters()
    return now if now[METRICS[2]] > before[METRICS[2]] and not server.is_busy() else None

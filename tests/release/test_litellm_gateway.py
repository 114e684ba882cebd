"""A real gateway in front of a real inference server: its teams have the tokens that their clients counted.

Both are on the CPU of this machine. The server is scraped with the labels of a pod of the simulator: tokens
are real, energy is not.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from release.litellm_gateway import METRICS, VERSION, LiteLlm, litellm_gateway
from release.llama_cpp import METRICS as ENGINE_METRICS
from release.llama_cpp import SCENARIO, LlamaServer, llama_server
from release.llama_cpp import SCRAPES as ENGINE_SCRAPES
from running import Prometheus, free_port, gpuledger, prometheus, serving, wait_until

pytestmark = pytest.mark.group("litellm")
# The engine's scrape comes last. LiteLLM serves its metrics to those who have a key.
SCRAPES = (
    ENGINE_SCRAPES
    + """    metric_relabel_configs: [{{target_label: model_name, replacement: tiny}}]
  - job_name: gateways
    scrape_interval: 5s
    scrape_timeout: 5s
    authorization: {{credentials: sk--prometheus}}
    static_configs: [{{targets: ["127.0.0.1:{gateway}"], labels: {{namespace: edge, pod: litellm-0}}}}]
"""
)
# The gateway's names of models, and those that it requests from the engine.
MODELS = {"chat": "tiny", "sql": "sql-adapter"}
COLUMNS = ("input_tokens", "output_tokens", "cached_tokens")
DIRECT = "(not through a gateway)"


@dataclass(frozen=True)
class Request:
    """A request with a key of a team, and the texts of its rows by the label of the gateway."""

    team: str
    key: str
    model: str
    user: str
    prompt: str
    tokens: int
    stream: bool = False

    def send(self, gateway: LiteLlm) -> dict[str, Any]:
        """The answer's `usage`."""
        more: dict[str, Any] = {"user": self.user} if self.user else {}
        if self.stream:
            more |= {"stream": True, "stream_options": {"include_usage": True}}
        return gateway.chat(f"sk-{self.team}-{self.key}", self.model, self.prompt, self.tokens, **more)

    def text(self, word: str) -> str:
        """The text of its row in a report by `gateway:WORD`."""
        texts = {
            "team": self.team,
            "adapter": MODELS[self.model],
            "requested_model": self.model,
            "api_key_alias": self.key,
            "end_user": self.user,
        }
        return texts[word] or "(none)"


REQUESTS = (
    Request("red", "one", "chat", "alice", "abc", 5),
    Request("red", "two", "chat", "", "question" * 30, 20, stream=True),
    Request("blue", "three", "sql", "bob", "question" * 30, 30, stream=True),
    Request("blue", "three", "sql", "alice", "xyz" * 70, 1),
    Request("", "four", "chat", "", "d" * 40, 7),
)


@dataclass
class GatewayWorld:
    """A gateway, its engine, a Prometheus that scrapes both, and the tokens that clients counted."""

    store: Prometheus
    gateway: LiteLlm
    engine: LlamaServer
    begins: float = 0.0
    ends: float = 0.0
    sent: list[tuple[Request, Counter[str]]] = field(default_factory=list)
    direct: Counter[str] = field(default_factory=Counter)

    def stored(self) -> dict[str, int]:
        """The sums of all counters in Prometheus."""
        names = "|".join((*METRICS, *ENGINE_METRICS))
        found = self.store.query(f'sum by (__name__) ({{__name__=~"{names}"}})')
        return {row["metric"]["__name__"]: int(row["value"][1]) for row in found}

    def rows(self, word: str, begins: float, ends: float) -> dict[str, dict[str, Any]]:
        """The rows of the model in a report by this label of the gateway."""
        since, until = (datetime.fromtimestamp(at, UTC).isoformat() for at in (begins, ends))
        served = json.dumps([{"gateway": "litellm", "served": {"sql-*": "tiny"}}])
        within = ("--since", since, "--until", until, "--tokens.gateways", served, "--format", "json")
        by = ("--by", f"served_model,gateway:{word}")
        done = gpuledger("report", "--prometheus", self.store.url, *by, *within)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["rows"]
        return {row[f"gateway:{word}"]: row for row in rows if row["served_model"] == "tiny"}


def tokens_of(usage: dict[str, Any]) -> Counter[str]:
    """The tokens of an answer, by the columns of a report."""
    return Counter(
        input_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayWorld]:
    """After all requests, when they are scraped."""
    folder = tmp_path_factory.mktemp("gateway")
    scenario = folder / "node.yaml"
    scenario.write_text(SCENARIO)
    ports = {"engine": free_port(), "gateway": free_port()}
    with (
        llama_server(folder / "tiny.gguf", ports["engine"]) as engine,
        litellm_gateway(folder, ports["gateway"], engine.url, MODELS) as gateway,
        serving(
            "--source", f"simulator:{scenario}", "--state-dir", str(folder), "--energy.zero-hold", "2s"
        ) as node,
        prometheus(SCRAPES.format(node=node.port, **ports)) as store,
    ):
        store.wait_query('gpuledger_gpu_seconds_total{pod="llama-0"} > 0')
        store.wait_query('gpuledger_energy_joules_total{pod="llama-0"} > 0')
        store.wait_query('up{job="gateways"} == 1')
        store.wait_query('up{job="engines"} == 1')
        made = GatewayWorld(store, gateway, engine)
        made.begins = time.time()
        made.sent = [(request, tokens_of(request.send(gateway))) for request in REQUESTS]
        made.direct = tokens_of(engine.complete("direct" * 20, 11))
        counted = sum((tokens for _, tokens in made.sent), Counter[str]())
        expected = dict(zip(METRICS, (counted[name] for name in COLUMNS), strict=True)) | engine.counters()
        wait_until(lambda: made.stored() == expected, f"a scrape of {expected}")
        made.ends = time.time()
        yield made


@pytest.mark.parametrize("word", ["team", "adapter", "requested_model", "api_key_alias", "end_user"])
def test_rows_have_the_tokens_that_clients_counted(
    world: GatewayWorld, word: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    record_testsuite_property("LiteLLM: PyPI `litellm`", VERSION)
    expected = {DIRECT: world.direct}
    for request, tokens in world.sent:
        expected[request.text(word)] = expected.get(request.text(word), Counter()) + tokens
    rows = world.rows(word, world.begins, world.ends)
    assert {
        text: Counter({name: row[name] or 0 for name in COLUMNS}) for text, row in rows.items()
    } == expected


def test_what_litellm_does_not_count_of_an_aborted_answer_is_not_through_a_gateway(
    world: GatewayWorld,
) -> None:
    """It estimates the tokens of an answer that its client does not read to the end."""
    begins, before = time.time(), world.stored()
    world.gateway.abort("sk-red-one", "chat", "aborted" * 20, 4000)

    def is_counted() -> bool:
        stored = world.stored()
        return stored[METRICS[1]] > before[METRICS[1]] and stored.items() >= world.engine.counters().items()

    wait_until(lambda: not world.engine.is_busy(), "the end of the request")
    wait_until(is_counted, "scrapes of gateway and engine")
    rows = world.rows("team", begins, time.time())
    assert set(rows) <= {"red", DIRECT}
    output = world.stored()[ENGINE_METRICS[2]] - before[ENGINE_METRICS[2]]
    assert sum(row["output_tokens"] for row in rows.values()) == output
    assert 0 < rows["red"]["output_tokens"] <= output

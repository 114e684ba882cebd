"""A real inference server: that of llama.cpp, from the wheel of PyPI `xllamacpp`, on the CPU.

It runs in a virtual environment that is kept. The model is made by llama_cpp_program.py: two layers of random
numbers, half a megabyte, nothing is downloaded for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from release.pythons import DOWNLOADS, ENVIRONMENTS
from running import Program, get

VERSION = "2026.10.11549"
_REQUIREMENTS = (f"xllamacpp=={VERSION}", "gguf==0.19.0", "numpy")
_PROGRAM = Path(__file__).with_name("llama_cpp_program.py")
METRICS = (
    "llamacpp:prompt_tokens_total",
    "llamacpp:prompt_tokens_cached_total",
    "llamacpp:tokens_predicted_total",
)
# A node with the server's pod, and the scrapes of both: `node` and `engine` are ports.
SCENARIO = """
gpus:
  - model: NVIDIA H100 80GB HBM3
    processes:
      - {name: llama-server, load: 0.5, age: 1h, pod: {namespace: serving, name: llama-0, container: main}}
"""
SCRAPES = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: gpuledger
    honor_labels: true
    metrics_path: /metrics/native
    static_configs: [{{targets: ["127.0.0.1:{node}"]}}]
  - job_name: engines
    static_configs: [{{targets: ["127.0.0.1:{engine}"], labels: {{namespace: serving, pod: llama-0}}}}]
"""


class LlamaServer:
    """A running server on a port, which its client can use."""

    def __init__(self, model: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        python = python_with("llama-cpp", _REQUIREMENTS)
        self._program = Program([str(python), str(_PROGRAM), str(model), str(port)])
        self._program.wait_answer(f"{self.url}/health")

    def complete(self, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
        """The `usage` of an answer."""
        body = _request(prompt, tokens, **more)
        answer = httpx.post(f"{self.url}/v1/completions", json=body, trust_env=False, timeout=60)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["usage"])

    def stream(self, prompt: str, tokens: int) -> dict[str, Any]:
        """The `usage` at the end of a streamed answer."""
        (usage,) = (event["usage"] for event in self._events(prompt, tokens) if event.get("usage"))
        return dict(usage)

    def abort(self, prompt: str, tokens: int) -> None:
        """Close the connection after the first part of an answer."""
        next(self._events(prompt, tokens))

    def counters(self) -> dict[str, int]:
        """The server's counters of tokens now."""
        values = self._metrics()
        return {name: int(float(values[name])) for name in METRICS}

    def is_busy(self) -> bool:
        """Whether it works for a request."""
        return self._metrics()["llamacpp:requests_processing"] != "0"

    def _metrics(self) -> dict[str, str]:
        return dict(line.rsplit(" ", 1) for line in get(f"{self.url}/metrics").text.splitlines())

    def stop(self) -> None:
        self._program.stop()

    def _events(self, prompt: str, tokens: int) -> Iterator[dict[str, Any]]:
        body = _request(prompt, tokens, stream=True, stream_options={"include_usage": True})
        with httpx.stream(
            "POST", f"{self.url}/v1/completions", json=body, trust_env=False, timeout=60
        ) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))


@contextmanager
def llama_server(model: Path, port: int) -> Iterator[LlamaServer]:
    """A server with a new process."""
    server = LlamaServer(model, port)
    try:
        yield server
    finally:
        server.stop()


def _request(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    # The model is random: without ignore_eos it could end at any token.
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}


def python_with(name: str, requirements: Sequence[str]) -> Path:
    """The Python of a kept environment with these packages; installing takes minutes, once."""
    identity = hashlib.sha256(json.dumps([sys.version, requirements]).encode()).hexdigest()[:12]
    folder = ENVIRONMENTS / f"{name}-{identity}"
    for needed in (ENVIRONMENTS, DOWNLOADS):
        needed.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "complete"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            pip = [folder / "bin/pip", "install", "--quiet", "--cache-dir", DOWNLOADS, "--no-input"]
            subprocess.run([*pip, *requirements], check=True, timeout=900)
            done.touch()
    return folder / "bin/python"

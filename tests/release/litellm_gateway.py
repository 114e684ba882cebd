"""A real gateway: the proxy of LiteLLM, from PyPI, in a virtual environment that is kept.

Neither a database nor a licence is necessary.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import yaml

from release.llama_cpp import python_with
from running import PATIENCE, Program

VERSION = "1.108.4"
_REQUIREMENTS = (f"litellm[proxy]=={VERSION}", "prometheus-client==0.26.0")
_KEYS = Path(__file__).with_name("litellm_keys.py")
# LiteLLM does not start without one. All requests have other keys.
MASTER_KEY = f"sk-{'7' * 48}"
METRICS = (
    "litellm_input_tokens_metric_total",
    "litellm_output_tokens_metric_total",
    "litellm_input_cached_tokens_metric_total",
)


class LiteLlm:
    """A running proxy on a port. `models` are the names that it offers, and those of the engine."""

    def __init__(self, folder: Path, port: int, engine: str, models: dict[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        shutil.copy(_KEYS, folder)
        config = folder / "litellm.yaml"
        config.write_text(yaml.safe_dump(_settings(engine, models)))
        command = [str(python_with("litellm", _REQUIREMENTS)), "-m", "litellm.proxy.proxy_cli"]
        where = ["--host", "127.0.0.1", "--port", str(port), "--config", str(config)]
        # Prices of other providers are not downloaded.
        self._program = Program([*command, *where], {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        self._program.wait_answer(f"{self.url}/health/liveliness")

    def chat(self, key: str, model: str, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
        """The `usage` of an answer; of a streamed one, that at its end."""
        with self._answer(key, model, prompt, tokens, **more) as answer:
            answer.read()
            assert answer.status_code == 200, answer.text
        if not more.get("stream"):
            return dict(answer.json()["usage"])
        events = (
            line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")
        )
        (usage,) = (event["usage"] for event in map(json.loads, events) if event.get("usage"))
        return dict(usage)

    def abort(self, key: str, model: str, prompt: str, tokens: int) -> None:
        """Close the connection after the first lines of an answer."""
        with self._answer(key, model, prompt, tokens, stream=True) as answer:
            assert len(list(islice(answer.iter_lines(), 40))) == 40

    def _answer(
        self, key: str, model: str, prompt: str, tokens: int, **more: Any
    ) -> AbstractContextManager[httpx.Response]:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            **more,
        }
        # The model is random: without ignore_eos it could end at any token.
        return httpx.stream(
            "POST",
            f"{self.url}/v1/chat/completions",
            headers={"Authorization": f"Bearer {key}"},
            json={**body, "ignore_eos": True},
            trust_env=False,
            timeout=PATIENCE,
        )

    def stop(self) -> None:
        self._program.stop()


@contextmanager
def litellm_gateway(folder: Path, port: int, engine: str, models: dict[str, str]) -> Iterator[LiteLlm]:
    """A proxy with a new process."""
    gateway = LiteLlm(folder, port, engine, models)
    try:
        yield gateway
    finally:
        gateway.stop()


def _settings(engine: str, models: dict[str, str]) -> dict[str, Any]:
    served = {"api_base": f"{engine}/v1", "api_key": "none"}
    return {
        "model_list": [
            {"model_name": name, "litellm_params": {"model": f"hosted_vllm/{model}", **served}}
            for name, model in models.items()
        ],
        "litellm_settings": {
            "callbacks": ["prometheus"],
            # Without it, the label end_user has no value.
            "enable_end_user_cost_tracking_prometheus_only": True,
        },
        "general_settings": {"master_key": MASTER_KEY, "custom_auth": f"{_KEYS.stem}.user_api_key_auth"},
    }

"""Token sources: the counters of inference servers, by engine. A table in the settings, with this default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from gpuledger.ledger.report.tokens.named_entries import NamedEntries, entry_text, entry_texts, shown_entry
from gpuledger.model.errors import suggest_name
from gpuledger.model.settings import InvalidElement

INPUT, OUTPUT, CACHED, REQUESTS, TRANSFERRED = "input", "output", "cached", "requests", "transferred"
_KINDS: Final = (INPUT, OUTPUT, CACHED, REQUESTS, TRANSFERRED)
_METRIC: Final = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{(?P<matchers>[^{}]*)\})?")


class TokenMetric(NamedTuple):
    """One counter of an engine: its kind, name and further matchers (PromQL, without braces)."""

    engine: str
    kind: str
    name: str
    matchers: str = ""


@dataclass(frozen=True, slots=True)
class TokenSource:
    """The counters of an engine. `model` is the label with the served model's name.

    Each kind has the names under which versions of the engine export it, or of counters that sum to it.
    `input` are prompt tokens, `cached` those of them that a cache had, `requests` finished ones, and
    `transferred` prompt tokens of which another server computed the cache (disaggregated prefill).
    """

    engine: str
    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    transferred: tuple[str, ...] = ()
    model: str = "model_name"

    def metrics(self) -> Sequence[TokenMetric]:
        """All counters."""
        found = []
        for kind in _KINDS:
            for text in getattr(self, kind):
                parsed = _METRIC.fullmatch(text)
                # Checked by parse_token_sources; the default table by a test.
                if parsed is not None:
                    matchers = (parsed["matchers"] or "").strip().strip(",")
                    found.append(TokenMetric(self.engine, kind, parsed["name"], matchers))
        return found


def _vllm(engine: str, prefix: str) -> TokenSource:
    """vLLM V1, and Ray Serve LLM, which exports the same with another prefix."""
    return TokenSource(
        engine,
        (f"{prefix}prompt_tokens_total",),
        (f"{prefix}generation_tokens_total",),
        (f"{prefix}prompt_tokens_cached_total",),
        (f'{prefix}request_success_total{{finished_reason!="abort"}}',),
        (f'{prefix}prompt_tokens_by_source_total{{source="external_kv_transfer"}}',),
    )


def _sglang() -> TokenSource:
    """SGLang; routers and Ray rename `sglang:` to `sglang_`."""

    def both(name: str) -> tuple[str, str]:
        return f"sglang:{name}", f"sglang_{name}"

    return TokenSource(
        "sglang",
        both("prompt_tokens_total"),
        both("generation_tokens_total"),
        both("cached_tokens_total"),
        both("num_requests_total"),
    )


# Read in the engines' sources and documentation in August and September 2026. The order decides which
# source counts if a server exports the counters of several.
DEFAULT_SOURCES: Final = (
    _vllm("vllm", "vllm:"),
    _vllm("ray-serve", "ray_vllm_"),
    _sglang(),
    TokenSource(
        "tgi",
        ("tgi_request_input_length_sum",),
        ("tgi_request_generated_tokens_sum",),
        requests=("tgi_request_success",),
    ),
    TokenSource(
        "tensorrt-llm",
        ("trtllm_prompt_tokens_total",),
        ("trtllm_generation_tokens_total",),
        ("trtllm_prompt_cached_tokens_total",),
        ("trtllm_request_success_total",),
    ),
    TokenSource(
        "lmdeploy",
        ("lmdeploy:prompt_tokens_total",),
        ("lmdeploy:generation_tokens_total",),
        ("lmdeploy:cached_tokens_total",),
        ("lmdeploy:request_success_total",),
    ),
    # Its input is without cached tokens, which it counts since autumn 2026.
    TokenSource(
        "llama.cpp",
        ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        ("llamacpp:tokens_predicted_total",),
        ("llamacpp:prompt_tokens_cached_total",),
    ),
    # Names without a prefix: only with a model's name.
    TokenSource(
        "nim",
        ('prompt_tokens_total{model_name!=""}',),
        ('generation_tokens_total{model_name!=""}',),
        requests=('request_finish_total{model_name!=""}',),
    ),
)
# Engines of which older versions count no cached tokens, also not as input.
WITHOUT_CACHED: Final = frozenset(("llama.cpp",))


def parse_token_sources(value: object) -> tuple[TokenSource, ...]:
    """The entries of a YAML list, or of a JSON text; the default table for an empty one.

    An entry with the engine of a default entry replaces it, another one is added. Raises ValueError;
    InvalidElement names the entry.
    """
    defaults = {source.engine: source for source in DEFAULT_SOURCES}
    return tuple((defaults | _ENTRIES.read(value)).values())


def _parse_source(engine: str, given: dict[str, Any], where: str) -> TokenSource:
    model = entry_text(given.pop("model", "model_name"))
    names: dict[str, tuple[str, ...]] = {}
    for key, content in given.items():
        if key not in _KINDS:
            known = [item.name for item in fields(TokenSource)]
            raise InvalidElement(f"{where}: unknown key '{shown_entry(key)}'; {suggest_name(key, known)}")
        names[key] = read_counters(where, key, content)
    if not names.get(INPUT) and not names.get(OUTPUT):
        raise InvalidElement(f"{where} has neither input nor output: add a counter")
    return TokenSource(engine, **names, model=model)


_ENTRIES: Final = NamedEntries(
    TokenSource,
    "engine",
    "expected a list of entries, such as [{engine: mine, input: mine_prompt_tokens_total, output: "
    "mine_output_tokens_total}]",
    _parse_source,
)


def read_counters(where: str, key: str, content: object) -> tuple[str, ...]:
    """The names of counters of one kind, with or without matchers. Raises InvalidElement."""
    names = entry_texts(content)
    for name in names:
        if not _METRIC.fullmatch(name):
            raise InvalidElement(
                f"{where}: {key}: expected the name of a counter, such as "
                f"mine_tokens_total or mine_tokens_total{{job=\"mine\"}}, not '{shown_entry(name)}'"
            )
    return names

"""Gateways in front of inference servers: their token counters and labels. A table in the settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from gpuledger.ledger.report.tokens.named_entries import NamedEntries, entry_text, entry_texts, shown_entry
from gpuledger.ledger.report.tokens.token_sources import (
    CACHED,
    INPUT,
    OUTPUT,
    REQUESTS,
    TokenSource,
    read_counters,
)
from gpuledger.model.errors import suggest_name
from gpuledger.model.settings import InvalidElement

# Words of keys that stand for labels, which have other names in each gateway: `gateway:adapter`.
ADAPTER, TEAM_OF_GATEWAY = "adapter", "team"
_KINDS: Final = (INPUT, OUTPUT, CACHED, REQUESTS)
_LABELS: Final = ("model", ADAPTER, TEAM_OF_GATEWAY)
# Names of models with the provider in front, as in `hosted_vllm/meta-llama/Llama-3.1-8B`.
_PROVIDER: Final = "/"
# Texts of labels without a value, as Python programs export them.
_NO_VALUE: Final = frozenset(("", "None"))


@dataclass(frozen=True, slots=True)
class TokenGateway:
    """The counters of a gateway, by kind as in TokenSource, and its labels.

    `model` are the labels with the model that serves a request: the first one counts that names a model of
    an engine. `adapter` and `team` are labels, of which the first with a value counts. `served` are patterns
    of other names (aliases, LoRA adapters) and the engine's name of their model.
    """

    gateway: str
    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    model: tuple[str, ...] = ("model",)
    adapter: tuple[str, ...] = ("model",)
    team: tuple[str, ...] = ("team",)
    served: Mapping[str, str] = field(default_factory=dict)

    def source(self) -> TokenSource:
        """Its counters. Their model depends on several labels, so it has no label of it."""
        return TokenSource(self.gateway, self.input, self.output, self.cached, self.requests, model="")

    def served_model(
        self, labels: Mapping[str, str], models: Collection[str], adapters: Mapping[str, str]
    ) -> str:
        """The model of `models` that served what a counter with these labels counted; empty if unknown.

        `adapters` are the models of LoRA adapters by the adapter's name, as the engines report them.
        """
        names = list(_texts(labels, self.model))
        for name in names:
            for alias, model in self.served.items():
                if fnmatchcase(name, alias):
                    return model if model in models else ""
        for name in names:
            for known in (name, name.partition(_PROVIDER)[2]):
                if known in models:
                    return known
                if known in adapters:
                    return adapters[known]
        return ""

    def name_of_model(self, labels: Mapping[str, str]) -> str:
        """The gateway's name of the model, for messages."""
        return next(_texts(labels, self.model), "")

    def text(self, word: str, labels: Mapping[str, str]) -> str:
        """The text of a key `gateway:WORD`: that of a label, or of the gateway's labels for this word."""
        return next(_texts(labels, self._labels_of(word)), "")

    def has_label(self, word: str, labels: Collection[str]) -> bool:
        """Whether a counter with these labels is counted by a key `gateway:WORD`, with or without a value."""
        return any(label in labels or f"exported_{label}" in labels for label in self._labels_of(word))

    def _labels_of(self, word: str) -> tuple[str, ...]:
        return {ADAPTER: self.adapter, TEAM_OF_GATEWAY: self.team}.get(word, (word,))


def _texts(labels: Mapping[str, str], wanted: Iterable[str]) -> Iterator[str]:
    """The values of these labels. A scrape without honor_labels renames those that its target has, too."""
    for label in wanted:
        text = labels.get(f"exported_{label}") or labels.get(label, "")
        if text not in _NO_VALUE:
            yield text


def _endpoint_picker(gateway: str, prefix: str) -> TokenGateway:
    """llm-d's endpoint picker. The target is the served model, or a LoRA adapter of it."""
    return TokenGateway(
        gateway,
        (f"{prefix}_input_tokens_sum",),
        (f"{prefix}_output_tokens_sum",),
        (f"{prefix}_prompt_cached_tokens_sum",),
        (f"{prefix}_request_total",),
        ("base_model", "target_model_name", "model_name"),
        ("target_model_name", "model_name"),
    )


# tests/release runs LiteLLM; the others were read in sources and documentation, August to November 2026. The
# order decides which gateway counts if several counted the tokens of a model: those that know teams first.
DEFAULT_GATEWAYS: Final = (
    TokenGateway(
        "litellm",
        ("litellm_input_tokens_metric_total",),
        ("litellm_output_tokens_metric_total",),
        ("litellm_input_cached_tokens_metric_total",),
        (),
        ("base_model", "model", "requested_model"),
        ("model", "requested_model"),
        ("team_alias", "team"),
    ),
    TokenGateway(
        "envoy-ai-gateway",
        ('gen_ai_client_token_usage_token_sum{gen_ai_token_type="input"}',),
        ('gen_ai_client_token_usage_token_sum{gen_ai_token_type="output"}',),
        (),
        ('gen_ai_client_token_usage_token_count{gen_ai_token_type="output"}',),
        ("base_model", "gen_ai_response_model", "gen_ai_request_model"),
        ("gen_ai_response_model", "gen_ai_request_model"),
    ),
    _endpoint_picker("llm-d", "inference_objective"),
    # Older versions of Gateway API Inference Extension.
    _endpoint_picker("inference-extension", "inference_model"),
)


def parse_token_gateways(value: object) -> tuple[TokenGateway, ...]:
    """The entries of a YAML list, or of a JSON text, and the default gateways that they do not replace.

    Entries come first, in their order. Raises ValueError; InvalidElement names the entry.
    """
    found = _ENTRIES.read(value)
    return (*found.values(), *(one for one in DEFAULT_GATEWAYS if one.gateway not in found))


def _parse_gateway(name: str, given: dict[str, Any], where: str) -> TokenGateway:
    served = given.pop("served", {})
    if not isinstance(served, Mapping) or not all(map(entry_text, served.values())):
        raise InvalidElement(
            f"{where}: served: expected names, such as {{my-alias: meta-llama/Llama-3.1-8B}}"
        )
    default = next((one for one in DEFAULT_GATEWAYS if one.gateway == name), None)
    # An entry for a default gateway can be labels only.
    found = {key: getattr(default, key) for key in (*_KINDS, *_LABELS)} if default else {}
    if any(key in given for key in _KINDS):
        found |= dict.fromkeys(_KINDS, ())
    for key, content in given.items():
        if key in _KINDS:
            found[key] = read_counters(where, key, content)
        elif key in _LABELS:
            found[key] = entry_texts(content)
        else:
            known = ["gateway", *_KINDS, *_LABELS, "served"]
            raise InvalidElement(f"{where}: unknown key '{shown_entry(key)}'; {suggest_name(key, known)}")
    if not found.get(INPUT) and not found.get(OUTPUT):
        defaults = (one.gateway for one in DEFAULT_GATEWAYS)
        hint = suggest_name(name, defaults, otherwise="add a counter")
        raise InvalidElement(f"{where} has neither input nor output; {hint}")
    return TokenGateway(
        name, **found, served={str(alias): entry_text(model) for alias, model in served.items()}
    )


_ENTRIES: Final = NamedEntries(
    TokenGateway,
    "gateway",
    "expected a list of entries, such as [{gateway: mine, output: mine_output_tokens_total, model: model, "
    "team: team}]",
    _parse_gateway,
)

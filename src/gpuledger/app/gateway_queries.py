"""The PromQL queries of gateways' tokens, and of the LoRA adapters that engines serve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from gpuledger.app.counter_queries import plain_matchers, span, with_matchers
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.token_queries import ServedTokens
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.scraped import ScrapedRange
from gpuledger.ledger.report.tokens.gateway_shares import GatewayScope
from gpuledger.ledger.report.tokens.gateway_tokens import GatewayKeys
from gpuledger.ledger.report.tokens.served_models import SEVERAL, ServedModels
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.report.tokens.token_gateways import DEFAULT_GATEWAYS, TokenGateway
from gpuledger.ledger.report.tokens.token_rises import Pod

# vLLM names the adapters of its present requests in labels. Its token counters have the base model only.
_ADAPTERS = "vllm:lora_requests_info"
_ADAPTER_LABELS = ("running_lora_adapters", "waiting_lora_adapters")


class GatewayTokens(ServedTokens):
    """Reads the tokens that gateways counted, and which pods served which LoRA adapters."""

    def __init__(
        self, client: PrometheusClient, settings: TokenSettings, match: str, keys: GatewayKeys
    ) -> None:
        self.gateways = settings.gateways or DEFAULT_GATEWAYS
        super().__init__(client, sources_of_gateways(settings, self.gateways), match, by_address=True)
        self._client, self._scope_keys = client, keys
        self._match = plain_matchers(settings.match or match)
        self._weight = Fraction(str(settings.input_weight))
        self._pods: dict[str, set[Pod]] = defaultdict(set)

    def add(self, part: ScrapedRange, inventory: Inventory) -> None:
        """Add the tokens and the adapters of a range."""
        super().add(part, inventory)
        for name, pods in query_adapters(self._client, self._match, part.begins, part.ends).items():
            self._pods[name] |= pods

    def scope(self, models: ServedModels, names: Collection[str]) -> GatewayScope:
        """How the rows of these models are split."""
        known = frozenset((*names, *(name for found in models.names.values() for name in found))) - {
            "",
            SEVERAL,
        }
        return GatewayScope(
            self._scope_keys, self.gateways, self._weight, known, models_of_adapters(self._pods, models)
        )


def sources_of_gateways(settings: TokenSettings, gateways: Sequence[TokenGateway]) -> TokenSettings:
    """Settings that query the counters of gateways in place of those of engines."""
    return replace(settings, sources=tuple(gateway.source() for gateway in gateways))


def query_adapters(client: PrometheusClient, match: str, begins: float, ends: float) -> dict[str, set[Pod]]:
    """The pods that served each LoRA adapter in a range."""
    series = f"last_over_time({with_matchers(_ADAPTERS, match)}[{span(ends - begins)}])"
    labels = ", ".join(("namespace", "pod", *_ADAPTER_LABELS))
    found: dict[str, set[Pod]] = defaultdict(set)
    for one, _ in client.query_vector(f"count by ({labels}) ({series})", ends):
        for label in _ADAPTER_LABELS:
            for name in filter(None, map(str.strip, one.get(label, "").split(","))):
                found[name].add((one.get("namespace", ""), one.get("pod", "")))
    return found


def models_of_adapters(pods: Mapping[str, Collection[Pod]], models: ServedModels) -> dict[str, str]:
    """The model of each adapter that pods of one model only have served."""
    served = {name: {models.of_pod(pod) for pod in found} for name, found in pods.items()}
    return {name: next(iter(found)) for name, found in served.items() if len(found) == 1 and found != {""}}

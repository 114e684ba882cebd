"""Settings of reports with tokens: where the counters of tokens are, and what pods without them serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.model.settings import number, setting, text

if TYPE_CHECKING:
    from gpuledger.ledger.report.tokens.token_gateways import TokenGateway
    from gpuledger.ledger.report.tokens.token_sources import TokenSource


def _parse_sources(value: object) -> tuple[TokenSource, ...]:
    # Imported lazily: nodes have no tokens.
    from gpuledger.ledger.report.tokens.token_sources import parse_token_sources

    return parse_token_sources(value)


def _parse_gateways(value: object) -> tuple[TokenGateway, ...]:
    from gpuledger.ledger.report.tokens.token_gateways import parse_token_gateways

    return parse_token_gateways(value)


@dataclass(frozen=True)
class TokenSettings:
    """Tokens of inference servers in reports from a Prometheus.

    Empty `sources` and `gateways` are the default tables.
    """

    sources: tuple[TokenSource, ...] = setting(
        "tokens.sources",
        _parse_sources,
        (),
        "counters of further inference servers: a list of entries with engine, input, output, cached, "
        "requests and model (a label), in the configuration file",
        metavar="JSON",
    )
    match: str = setting(
        "tokens.match",
        text,
        "",
        "count only token series with these labels (default: those of --prometheus.match)",
        metavar="LABELS",
    )
    model_label: str = setting(
        "tokens.model_label",
        text,
        "llm-d.ai/model",
        "pod label with the served model, for pods that export no tokens (see kubernetes.labels)",
        metavar="LABEL",
    )
    role_label: str = setting(
        "tokens.role_label",
        text,
        "llm-d.ai/role",
        "pod label that is prefill or decode in disaggregated pods, which count a prompt once together",
        metavar="LABEL",
    )
    gateways: tuple[TokenGateway, ...] = setting(
        "tokens.gateways",
        _parse_gateways,
        (),
        "counters of further gateways for --by gateway:LABEL: a list of entries with gateway, input, output, "
        "cached, requests, the labels model, adapter and team, and served (models by other names), in the "
        "configuration file",
        metavar="JSON",
    )
    input_weight: float = setting(
        "tokens.input_weight",
        number(0, 1000),
        0.0,
        "weight of an input token where the tokens of gateways split a row; an output token has 1",
        metavar="NUMBER",
    )

"""Settings of reports with tokens: where the counters of tokens are, and what pods without them serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.model.settings import setting, text

if TYPE_CHECKING:
    from gpuledger.ledger.report.tokens.token_sources import TokenSource


def _parse_sources(value: object) -> tuple[TokenSource, ...]:
    # Imported lazily: nodes have no tokens.
    from gpuledger.ledger.report.tokens.token_sources import parse_token_sources

    return parse_token_sources(value)


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Tokens of inference servers in reports from a Prometheus. Empty `sources` are the default table."""

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

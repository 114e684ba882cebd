"""Tokens by pod: counters of its servers summed, with each prompt of disaggregated pods once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from gpuledger.ledger.report.token_counts import CountError, TokenCounts
from gpuledger.ledger.report.tokens.served_models import DECODE, PREFILL, ServedModels
from gpuledger.ledger.report.tokens.token_rises import Pod, TokenName, TokenRise
from gpuledger.ledger.report.tokens.token_sources import CACHED, INPUT, OUTPUT, REQUESTS, TRANSFERRED


@dataclass(frozen=True, slots=True)
class PodTokens:
    """The rises of a pod by kind; a kind that no server counts is missing.

    `active`: it served a token. `doubled`: it received prompts of other servers, and its role is not known.
    """

    rises: Mapping[str, TokenRise] = field(default_factory=dict)
    active: bool = False
    doubled: bool = False

    def amount(self, kind: str) -> int | None:
        """The rise of a kind, rounded; None if it is not counted."""
        rise = self.rises.get(kind)
        return None if rise is None else round(rise.amount)

    def error(self, kind: str) -> CountError:
        """The maximum error of a kind."""
        rise = self.rises.get(kind, TokenRise())
        return CountError(ceil(rise.over), ceil(rise.under))


def tokens_by_pod(
    totals: Mapping[TokenName, TokenRise], models: ServedModels
) -> dict[tuple[Pod, str], PodTokens]:
    """The tokens of each pod, by the model of its row. Pods without a name are one by model.

    A prefill pod makes one output token per request, which its decode pod has, too: it counts none. A decode
    pod counts only the input that was not transferred from a prefill pod.
    """
    sums: dict[tuple[Pod, str], dict[str, TokenRise]] = defaultdict(dict)
    for name, rise in totals.items():
        pod = (name.namespace, name.pod)
        rises = sums[pod, models.of_pod(pod) if name.pod else name.model]
        rises[name.kind] = rises.get(name.kind, TokenRise()).plus(rise)
    return {key: _by_role(rises, models.role(key[0])) for key, rises in sums.items()}


def _by_role(rises: dict[str, TokenRise], role: str) -> PodTokens:
    transferred = rises.pop(TRANSFERRED, None)
    active = any(rise.amount > 0 for kind, rise in rises.items() if kind in (INPUT, OUTPUT))
    if role == PREFILL:
        # Each request ends in a decode pod.
        rises = {kind: rise for kind, rise in rises.items() if kind not in (OUTPUT, REQUESTS)}
    elif role == DECODE and INPUT in rises:
        whole = rises[INPUT]
        own = TokenRise() if transferred is None else whole.less(transferred)
        # Transferred tokens can look like hits of the cache.
        rises = {kind: rise for kind, rise in rises.items() if kind != CACHED} | {INPUT: own}
    doubled = not role and transferred is not None and transferred.amount > 0
    return PodTokens(rises, active, doubled)


def counts_of(tokens: PodTokens) -> TokenCounts:
    """The amounts of these tokens in a row."""
    return TokenCounts(
        input=tokens.amount(INPUT),
        output=tokens.amount(OUTPUT),
        cached=tokens.amount(CACHED),
        requests=tokens.amount(REQUESTS),
        input_error=tokens.error(INPUT),
        output_error=tokens.error(OUTPUT),
        cached_error=tokens.error(CACHED),
        requests_error=tokens.error(REQUESTS),
    )

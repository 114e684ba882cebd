"""Notes of a report by labels of gateways: what is apportioned, by which tokens, and what does not match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from gpuledger.ledger.report.money import exact_text
from gpuledger.ledger.report.report_keys import GATEWAY
from gpuledger.ledger.report.tokens.gateway_tokens import GatewayFindings
from gpuledger.ledger.report.tokens.token_gateways import TokenGateway
from gpuledger.ledger.report.tokens.token_sources import REQUESTS
from gpuledger.model.text import escape_to_one_line, list_some

# Names in a note.
_NAMED = 4
UNMATCHED = (
    "no fault if another provider serves it; else add the name to `served` of the entry in tokens.gateways, "
    "as in served: {my-alias: the engine's name}"
)


def gateway_notes(
    findings: GatewayFindings,
    gateways: Sequence[TokenGateway],
    words: Sequence[str],
    input_weight: Fraction,
    *,
    is_apportioned: bool,
) -> Iterator[str]:
    """The sentences below the report, of which `words` are the labels. `is_apportioned`: a row of it is."""
    if not findings.used and not findings.unmatched:
        names = ", ".join(gateway.gateway for gateway in gateways)
        yield (
            f"Prometheus has no tokens of a gateway in this range ({names}): scrape its metrics, or add it "
            "to tokens.gateways."
        )
    for word in words:
        if findings.labels and word not in findings.valued:
            known = "; ".join(
                f"{gateway}: {listed_names(labels)}" for gateway, labels in sorted(findings.labels.items())
            )
            yield (
                f"No counter of a gateway has a value of {GATEWAY}{word}, so rows have (none). Their labels: "
                f"{known}."
            )
    if is_apportioned:
        weighed = "output tokens"
        if input_weight:
            weighed += f" plus {exact_text(input_weight, 9)} x input tokens (tokens.input_weight)"
        used = set().union(*findings.used.values())
        yield (
            f"Rows marked ~ are apportioned: GPU time, energy and cost of a model by the {weighed} that "
            f"{listed_names(used)} counted. Within a model, they are equal per such token by construction, "
            "not measured."
        )
    yield from _notes_on_counted(findings)
    yield from _notes_on_uncounted(findings)


def _notes_on_counted(findings: GatewayFindings) -> Iterator[str]:
    """What several gateways counted, or a gateway more than the engine."""
    for model, others in sorted(findings.left_out.items()):
        if others:
            yield (
                f"{listed_names(others)} also counted tokens of {_shown(model)}: left out, because gateways "
                "in a chain count the same requests. If they are not in a chain, what only "
                f"{listed_names(others)} counted is in (not through a gateway)."
            )
    for (model, kind), amount in sorted(findings.surplus.items()):
        yield (
            f"{listed_names(findings.used[model])} counted {amount:,} more {_counted(kind)} of "
            f"{_shown(model)} than its engine: rows have the engine's, in the same proportion."
        )


def _notes_on_uncounted(findings: GatewayFindings) -> Iterator[str]:
    """What gateways counted for no row, and what they could not count."""
    if rowless := {model for model, amount in findings.without_row.items() if amount}:
        yield (
            f"Gateways counted {findings.without_row.total():,} tokens of {listed_names(rowless)}, without a "
            "row of GPU time: they are in pods with several models, of which the row is (several), or in "
            "pods that gpuledger does not know."
        )
    unmatched = {names: amount for names, amount in findings.unmatched.items() if amount}
    for (gateway, name), amount in sorted(unmatched.items(), key=lambda item: (-item[1], item[0]))[:_NAMED]:
        yield (
            f"{gateway} counted {amount:,} tokens of {_shown(name) or '(no model)'}, which matches no "
            f"engine's model: they are in no row; {UNMATCHED}."
        )
    if len(unmatched) > _NAMED:
        yield f"{len(unmatched) - _NAMED} more models of gateways match no engine's model."
    for gateway, amount in sorted(findings.missed.items()):
        if amount:
            yield (
                f"{gateway} had up to {amount:,} tokens when their counters were scraped first, within the "
                "range: when these were counted is not known, and they count as not through a gateway."
            )
    for gateway in sorted(findings.without_input):
        yield f"{gateway} counts no input tokens: those are in (not through a gateway)."
    for kind in sorted({kind for _, kind in findings.uncounted}):
        models = listed_names(model for model, one in findings.uncounted if one == kind)
        yield (
            f"The {_counted(kind)} of {models} are unknown in each row: no gateway counted them by these "
            "labels."
        )
    if findings.unsplit:
        yield (
            f"{listed_names(findings.unsplit)} had no output tokens, so that nothing is apportioned; set "
            "tokens.input_weight for models with input only."
        )


def listed_names(names: Iterable[str]) -> str:
    """The first of these names, in order."""
    return list_some(sorted(names))


def _counted(kind: str) -> str:
    return kind if kind == REQUESTS else f"{kind} tokens"


def _shown(name: str) -> str:
    return escape_to_one_line(name)

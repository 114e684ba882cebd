"""What a report with tokens says about missing joins: tokens without energy, energy without tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from gpuledger.ledger.report.fleet.fleet import Fleet
from gpuledger.ledger.report.grouping import Grouping
from gpuledger.ledger.report.report_keys import SERVED_MODEL
from gpuledger.ledger.report.token_counts import TokenCounts
from gpuledger.ledger.report.tokens.served_models import ServedModels
from gpuledger.ledger.report.tokens.token_rises import Pod, TokenRises
from gpuledger.ledger.report.tokens.token_sources import INPUT, OUTPUT
from gpuledger.model.session import PROCESS
from gpuledger.model.text import escape_to_one_line, list_some

# Names in a note.
_NAMED = 4
LOST_LABELS = (
    "check that gpuledger is scraped on their nodes, with honor_labels: true, and that both scrapes set "
    "namespace and pod"
)
NOT_SCRAPED = (
    "scrape the servers, and enable their metrics (SGLang: --enable-metrics, llama.cpp: --metrics); other "
    "engines need an entry in tokens.sources"
)


@dataclass(slots=True)
class TokenFindings:
    """Pods of which tokens and energy do not meet.

    `without_energy` have tokens only, `without_tokens` a model but no tokens, `several` have several models.
    `doubled` received prompts from other servers and have no known role. `unserved` have GPU time or energy,
    and no model. `interrupted` restarted or ended. `missed` are tokens from before the first scrape.
    """

    without_energy: set[Pod] = field(default_factory=set)
    without_tokens: set[Pod] = field(default_factory=set)
    unserved: set[Pod] = field(default_factory=set)
    several: dict[Pod, frozenset[str]] = field(default_factory=dict)
    doubled: set[Pod] = field(default_factory=set)
    interrupted: set[Pod] = field(default_factory=set)
    missed: dict[Pod, int] = field(default_factory=lambda: defaultdict(int))

    def learn_gaps(self, rises: TokenRises) -> None:
        """Find the pods of which tokens were counted while nobody scraped.

        Those that served no token, too: what they counted after their last scrape is not known.
        """
        counters = {name for name in rises.totals() if name.kind in (INPUT, OUTPUT)}
        for name in counters & (rises.restarted() | rises.ended):
            self.interrupted.add((name.namespace, name.pod))
        for name in rises.missed.keys() & counters:
            if rises.missed[name]:
                self.missed[name.namespace, name.pod] += round(rises.missed[name])

    def learn_models(self, models: ServedModels, fleets: Sequence[Fleet]) -> None:
        """Find the pods with several models, and those on GPUs without tokens."""
        self.several = {pod: frozenset(names) for pod, names in models.names.items() if len(names) > 1}
        for fleet in fleets:
            for _, account, _, *owner in fleet.energy.accounts.rises.total:
                pod = owner[1], owner[2]
                if account == PROCESS and pod[1] and pod not in models.names:
                    (self.without_tokens if models.of_pod(pod) else self.unserved).add(pod)


def token_notes(
    findings: TokenFindings, grouping: Grouping, total: TokenCounts, without_cached: Collection[str]
) -> Iterator[str]:
    """The sentences below the report. `without_cached` are engines that count no cached tokens."""
    yield from _missing_joins(
        findings, by_model=SERVED_MODEL in grouping.columns, has_tokens=total.all is not None
    )
    yield from _uncounted_tokens(findings)
    if without_cached:
        yield f"Input tokens of {', '.join(sorted(without_cached))} are without cached ones."
    if total.all is not None:
        yield (
            "Tokens and requests are those that were counted within the range, ± what was counted between "
            "two scrapes at its ends; energy includes idle pods."
        )


def _missing_joins(findings: TokenFindings, *, by_model: bool, has_tokens: bool) -> Iterator[str]:
    """Where tokens and energy do not meet, or not as one model."""
    if not has_tokens:
        yield (
            f"Energy, no tokens: Prometheus has no token counter of an inference server: {NOT_SCRAPED}. Its "
            "series need the labels of tokens.match, by default those of --prometheus.match."
        )
    if findings.without_energy:
        yield (
            f"Tokens found, no energy: {named_pods(findings.without_energy)} served tokens, but have no GPU "
            f"time and no energy: {LOST_LABELS}."
        )
    if findings.without_tokens:
        yield (
            f"Energy, no tokens: {named_pods(findings.without_tokens)} used energy for a served model, but "
            f"exported no tokens, as while a model is loaded. Else: {NOT_SCRAPED}."
        )
    if findings.unserved and has_tokens:
        yield _about_unserved(named_pods(findings.unserved), by_model=by_model)
    for pod, names in sorted(findings.several.items())[:_NAMED]:
        listed = ", ".join(map(escape_to_one_line, sorted(names)))
        yield (
            f"Two model names in one pod: {named_pods([pod])} exports {listed}. Its row is (several): energy "
            "cannot be split between models of one process."
        )


def _about_unserved(pods: str, *, by_model: bool) -> str:
    if by_model:
        return f"No model known: {pods} used energy without tokens. If they serve a model: {NOT_SCRAPED}."
    return (
        f"Rows also have the energy of pods that serve no model ({pods}): for energy by token add "
        f"{SERVED_MODEL} to --by."
    )


def _uncounted_tokens(findings: TokenFindings) -> Iterator[str]:
    """Tokens that count twice, or not at all."""
    if findings.doubled:
        yield (
            f"{named_pods(findings.doubled)} received prompts that other servers computed, and have no role: "
            "prompts may count twice. Set the pod label of tokens.role_label to prefill or decode, and list "
            "it in kubernetes.labels."
        )
    if findings.interrupted:
        yield (
            f"{named_pods(findings.interrupted)} restarted or ended: tokens between the last scrape and that "
            "moment are not counted, at most those of one scrape interval, or of a gap in scrapes, each time."
        )
    if findings.missed:
        yield (
            f"{named_pods(findings.missed)} had up to {sum(findings.missed.values()):,} tokens when they "
            "were scraped first, within the range: when these were counted is not known, and they are in no "
            "row."
        )


def named_pods(pods: Collection[Pod]) -> str:
    """The first of these pods, by namespace and name."""
    return list_some("/".join(filter(None, pod)) or "series without a pod label" for pod in sorted(pods))

"""Adds tokens to the report of a fleet: to each row those of its pods, and rows for those of no row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuledger.ledger.report.fleet.entries import party_of_series
from gpuledger.ledger.report.fleet.fleet import Fleet
from gpuledger.ledger.report.fleet.scraped import Name
from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.report_keys import SERVED_MODEL
from gpuledger.ledger.report.token_columns import SEVERAL_ROWS, TOKENS_ONLY
from gpuledger.ledger.report.token_counts import TokenCounts
from gpuledger.ledger.report.tokens.pod_tokens import PodTokens, counts_of, tokens_by_pod
from gpuledger.ledger.report.tokens.served_models import ServedModels
from gpuledger.ledger.report.tokens.token_notes import TokenFindings, token_notes
from gpuledger.ledger.report.tokens.token_rises import Pod, TokenRises
from gpuledger.ledger.report.tokens.token_sources import CACHED, WITHOUT_CACHED
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.ledger.time.account import OWNER
from gpuledger.model.session import PROCESS
from gpuledger.model.workload import Workload

_MILLI = 1000


def report_with_tokens(
    report: UsageReport, fleets: Sequence[Fleet], tokens: Sequence[TokenRises], models: ServedModels
) -> UsageReport:
    """The report of these fleets, one per part of its range, with the tokens of each part.

    Rows keep their energy, time and cost. Tokens of pods without a row of GPU time or energy have rows of
    their own (TOKENS_ONLY), and those of pods that are in several rows, too (SEVERAL_ROWS): no energy is
    divided by them.
    """
    findings = TokenFindings()
    lines, own = list[ReportLine](), list(report.gpu_accounts)
    for number, (fleet, rises) in enumerate(zip(fleets, tokens, strict=True)):
        served = tokens_by_pod(rises.totals(), models)
        rows = _Rows(fleet, report.grouping, models)
        present = [line for line in report.lines if line.period == number]
        counts, rest = rows.add_tokens(served, {line.key for line in present}, findings)
        lines += [replace(line, tokens=counts.get(line.key, TokenCounts())) for line in present]
        findings.learn_gaps(rises)
        own += [
            ReportLine(key, account, number, metered=False, tokens=amounts)
            for (account, key), amounts in sorted(rest.items(), key=lambda item: item[0])
        ]
    findings.learn_models(models, fleets)
    total: TokenCounts = sum(
        (line.tokens for line in (*lines, *own) if line.tokens is not None), start=TokenCounts()
    )
    notes = (*report.notes, *token_notes(findings, report.grouping, total, _engines_without_cached(tokens)))
    return replace(
        report,
        lines=lines,
        gpu_accounts=own,
        total=replace(report.total, tokens=total),
        notes=notes,
    )


@dataclass(slots=True)
class _Rows:
    """The rows of one fleet's pods, and the energy of each pod in each row."""

    fleet: Fleet
    grouping: Grouping
    models: ServedModels
    keys: dict[Pod, set[Key]] = field(default_factory=lambda: defaultdict(set))
    energy: Counter[tuple[Key, Pod]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for uuid, owner in _owners(self.fleet):
            self.keys[owner[1], owner[2]].add(self._key(uuid, owner))
        for rises in self.fleet.energy.by_quarter.values():
            for (uuid, account, _, *labels), rise in rises.items():
                if account == PROCESS and labels[2]:
                    key = self._key(uuid, tuple(labels))
                    self.energy[key, (labels[1], labels[2])] += round(_MILLI * rise.amount)

    def add_tokens(
        self, served: Mapping[tuple[Pod, str], PodTokens], present: set[Key], findings: TokenFindings
    ) -> tuple[dict[Key, TokenCounts], dict[tuple[str, Key], TokenCounts]]:
        """The tokens by row, and those of no row by account and key. `present` are the keys of the rows."""
        counts: dict[Key, TokenCounts] = {}
        rest: dict[tuple[str, Key], TokenCounts] = {}
        by_pod = {pod: tokens for (pod, _), tokens in served.items() if pod[1]}
        for pod, keys in self.keys.items():
            for key in keys & present:
                known = self._pod_counts(pod, key, by_pod.get(pod, PodTokens()))
                counts[key] = counts.get(key, TokenCounts()) + known
        for (pod, model), tokens in served.items():
            keys = self.keys.get(pod, set()) & present if pod[1] else set()
            if tokens.doubled:
                findings.doubled.add(pod)
            if len(keys) == 1:
                (key,) = keys
                counts[key] = counts[key] + counts_of(tokens)
            elif tokens.active:
                account = SEVERAL_ROWS if keys else TOKENS_ONLY
                if not keys:
                    findings.without_energy.add(pod)
                place = account, _common(keys) if keys else self._key_without_gpu(pod, model)
                found = counts_of(tokens) if keys else _lost(counts_of(tokens))
                rest[place] = rest.get(place, TokenCounts()) + found
        return counts, rest

    def _pod_counts(self, pod: Pod, key: Key, tokens: PodTokens) -> TokenCounts:
        """The pod and its energy; one that serves no model is not idle for want of tokens."""
        if not self.models.of_pod(pod):
            return TokenCounts(frozenset([pod]))
        used = self.energy[key, pod]
        idle = 0 if tokens.active else used
        return TokenCounts(frozenset([pod]), idle_millijoules=idle, pod_millijoules=used)

    def _key(self, uuid: str, owner: Name) -> Key:
        return self.grouping.key(party_of_series(uuid, owner, self.fleet))

    def _key_without_gpu(self, pod: Pod, model: str) -> Key:
        namespace, name = pod
        known = self.fleet.inventory.pods.get(pod)
        labels = known.labels if known else ()
        owner = Workload(kind="pod" if name else "unknown", namespace=namespace, pod=name, labels=labels)
        key = list(self.grouping.key(Party("", owner)))
        if SERVED_MODEL in self.grouping.columns:
            key[self.grouping.columns.index(SERVED_MODEL)] = model
        return tuple(key)


def _owners(fleet: Fleet) -> Iterator[tuple[str, Name]]:
    """The Gpu and the owner labels of all counters of pods."""
    for uuid, account, _, *owner in fleet.energy.accounts.rises.total:
        if account == PROCESS and owner[2]:
            yield uuid, tuple(owner)
    for uuid, _, account, *owner in fleet.time.accounts.rises.total:
        if account == OWNER and owner[2]:
            yield uuid, tuple(owner)
    for seconds in fleet.seconds.values():
        for uuid, _, *owner in seconds:
            if owner[2]:
                yield uuid, tuple(owner)


def _engines_without_cached(tokens: Sequence[TokenRises]) -> set[str]:
    """The engines of servers that count no cached tokens, not even as input."""
    kinds: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for rises in tokens:
        for name in rises.totals():
            if name.engine in WITHOUT_CACHED:
                kinds[name[:4]].add(name.kind)
    return {name[3] for name, found in kinds.items() if CACHED not in found}


def _lost(counts: TokenCounts) -> TokenCounts:
    return replace(
        counts,
        lost_input=counts.input or 0,
        lost_output=counts.output or 0,
        lost_requests=counts.requests or 0,
    )


def _common(keys: set[Key]) -> Key:
    """What these keys have in common; empty where they differ."""
    return tuple(texts[0] if len(set(texts)) == 1 else "" for texts in zip(*keys, strict=True))

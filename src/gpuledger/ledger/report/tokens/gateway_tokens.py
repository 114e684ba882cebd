"""What gateways counted for each served model, by the texts of their labels; of each model, one gateway."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger.ledger.report.grouping import Key
from gpuledger.ledger.report.report_keys import GATEWAY, SERVED_MODEL
from gpuledger.ledger.report.token_counts import TokenCounts
from gpuledger.ledger.report.tokens.pod_tokens import PodTokens, counts_of
from gpuledger.ledger.report.tokens.token_gateways import TokenGateway
from gpuledger.ledger.report.tokens.token_rises import TARGET_LABELS, TokenRise, TokenRises
from gpuledger.ledger.report.tokens.token_sources import INPUT, OUTPUT
from gpuledger.model.errors import UsageError

# Texts of a key: what no gateway counted, and what it counted without a value of the label.
DIRECT, UNNAMED = "(not through a gateway)", "(none)"


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    """The keys of a report: `columns` as given, of which `words` are the labels of gateways in order."""

    name: str
    columns: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The labels, or the words `adapter` and `team`."""
        return tuple(name.removeprefix(GATEWAY) for name in self.columns if name.startswith(GATEWAY))

    def key(self, model: str, texts: Key) -> Key:
        """The key of a row."""
        left = iter(texts)
        return tuple(model if name == SERVED_MODEL else next(left) for name in self.columns)

    def extended(self, by_model: Key, texts: Key) -> Key:
        """The key of a row that has one by served model only."""
        (model,) = by_model
        return self.key(model, texts)


def gateway_keys(by: str) -> GatewayKeys | None:
    """The keys of a report by labels of gateways; None if it has none. Raises UsageError."""
    columns = tuple(word.strip() for word in by.split(","))
    labels = [name for name in columns if name.startswith(GATEWAY)]
    if not labels:
        return None
    if "" in (name.removeprefix(GATEWAY).strip() for name in labels):
        raise UsageError(
            f"--by {GATEWAY} requires a gateway's label, such as --by {SERVED_MODEL},{GATEWAY}team"
        )
    if len(set(columns)) < len(columns):
        raise UsageError(f"--by {by}: a key is given twice")
    if others := [name for name in columns if name not in (SERVED_MODEL, *labels)]:
        raise UsageError(
            f"--by {by}: a gateway does not know the {others[0]} of its tokens: combine {labels[0]} with "
            f"{SERVED_MODEL} only"
        )
    return GatewayKeys(",".join(columns), columns)


@dataclass(slots=True)
class GatewayFindings:
    """What the notes of a report by labels of gateways say, of all its parts.

    `used` are the gateways by model, `left_out` the others that counted tokens of the model. `unmatched` are
    tokens by gateway and its name of a model that no engine has. `missed` are tokens, by gateway, that were
    counted before their counter was scraped first. `surplus` are tokens of a model, by kind, that its gateway
    counted and its engine did not. `without_row` are tokens of a model that has no row. `without_input` are
    gateways that counted output only. `uncounted` are kinds of a model's tokens that its engine counted and
    its gateway did not, or not by these labels. `labels` are those of each gateway's counters, `valued` the
    words of keys for which one of them has a value.
    """

    used: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    left_out: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    unmatched: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    surplus: Counter[tuple[str, str]] = field(default_factory=Counter)
    without_row: Counter[str] = field(default_factory=Counter)
    without_input: set[str] = field(default_factory=set)
    uncounted: set[tuple[str, str]] = field(default_factory=set)
    unsplit: set[str] = field(default_factory=set)
    labels: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    valued: set[str] = field(default_factory=set)

    def learn_rows(self, found: Mapping[str, Mapping[Key, TokenCounts]], rows: Collection[str]) -> None:
        """Find the models without a row in a part of the report. `rows` are the models that have one."""
        for model in found.keys() - set(rows):
            self.without_row[model] += _all_tokens(found[model].values())


def tokens_of_gateways(
    rises: TokenRises,
    gateways: Sequence[TokenGateway],
    words: Sequence[str],
    models: Collection[str],
    adapters: Mapping[str, str],
    findings: GatewayFindings,
) -> dict[str, dict[Key, TokenCounts]]:
    """The tokens of each served model by the texts of these labels, of one part of a report.

    Gateways in a chain count the same requests, so one counts for each model: the first in the table that
    has a value of a label, else the first. `models` are the engines' names.
    """
    by_name = {gateway.gateway: gateway for gateway in gateways}
    # The words by which each gateway counts each kind.
    counted_by: dict[tuple[str, str], set[str]] = defaultdict(set)
    sums: dict[tuple[str, str], dict[Key, dict[str, TokenRise]]] = defaultdict(lambda: defaultdict(dict))
    for name, rise in rises.totals().items():
        gateway, labels = by_name[name.engine], rises.labels[name]
        if name.kind in (INPUT, OUTPUT):
            findings.missed[name.engine] += round(rises.missed.get(name, 0.0))
        model = gateway.served_model(labels, models, adapters)
        if not model:
            if name.kind in (INPUT, OUTPUT):
                findings.unmatched[name.engine, gateway.name_of_model(labels)] += round(rise.amount)
            continue
        texts = tuple(gateway.text(word, labels) or UNNAMED for word in words)
        counted_by[name.engine, name.kind] |= {word for word in words if gateway.has_label(word, labels)}
        findings.labels[name.engine] |= labels.keys() - TARGET_LABELS - {"__name__"}
        findings.valued |= {word for word, text in zip(words, texts, strict=True) if text != UNNAMED}
        kinds = sums[model, name.engine][texts]
        kinds[name.kind] = kinds.get(name.kind, TokenRise()).plus(rise)
    for (_, gateway_name), by_texts in sums.items():
        for kinds in by_texts.values():
            for kind in kinds.keys() - {INPUT, OUTPUT}:
                if _is_counted_less(counted_by, gateway_name, kind):
                    del kinds[kind]
    found: dict[str, dict[Key, TokenCounts]] = {}
    for model in {model for model, _ in sums}:
        counted = {
            gateway: {texts: counts_of(PodTokens(rises)) for texts, rises in sums[model, gateway].items()}
            for gateway in by_name
            if (model, gateway) in sums
        }
        active = [gateway for gateway, counts in counted.items() if _all_tokens(counts.values())]
        if not active:
            continue
        named = [one for one in active if any(set(texts) != {UNNAMED} for texts in counted[one])]
        chosen = (named or active)[0]
        found[model] = counted[chosen]
        findings.used[model].add(chosen)
        findings.left_out[model] |= set(active) - {chosen}
        if all(counts.input is None for counts in found[model].values()):
            findings.without_input.add(chosen)
    return found


def _is_counted_less(counted_by: Mapping[tuple[str, str], set[str]], gateway: str, kind: str) -> bool:
    """Whether a counter lacks a label that the gateway's tokens have: LiteLLM's cached tokens have no org."""
    words = counted_by.get((gateway, INPUT), set()) | counted_by.get((gateway, OUTPUT), set())
    return not words <= counted_by[gateway, kind]


def _all_tokens(counts: Iterable[TokenCounts]) -> int:
    return sum(one.all or 0 for one in counts)

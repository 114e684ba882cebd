"""Splits the rows of served models by the tokens that gateways counted: an apportionment, not a measurement.

Integers of the parts sum to those of the row. What no gateway counted is a separate part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from gpuledger.ledger.energy.shares import round_parts
from gpuledger.ledger.report.charges import Charges
from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.report_keys import SERVED_MODEL
from gpuledger.ledger.report.token_counts import CountError, TokenCounts
from gpuledger.ledger.report.tokens.gateway_notes import gateway_notes
from gpuledger.ledger.report.tokens.gateway_tokens import (
    DIRECT,
    GatewayFindings,
    GatewayKeys,
    tokens_of_gateways,
)
from gpuledger.ledger.report.tokens.token_gateways import TokenGateway
from gpuledger.ledger.report.tokens.token_rises import TokenRises
from gpuledger.ledger.report.tokens.token_sources import CACHED, INPUT, OUTPUT, REQUESTS
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport, sum_lines
from gpuledger.model.session import PROCESS

# The method of energy that was split by the tokens of a gateway.
BY_GATEWAY = "gateway_tokens"
_KINDS = (INPUT, OUTPUT, CACHED, REQUESTS)
# Amounts of a model's pods together, of which a gateway's tokens say nothing.
_OF_PODS = ("bound", "time_bound", "high", "resident", "held", "allocated", "active", "unknown", "sessions")


@dataclass(frozen=True, slots=True)
class GatewayScope:
    """How rows are split: the keys, the table of gateways, and the weight of an input token (output: 1).

    `models` are all names of models that engines have, `adapters` the models of LoRA adapters by name.
    """

    keys: GatewayKeys
    gateways: Sequence[TokenGateway]
    input_weight: Fraction
    models: frozenset[str]
    adapters: Mapping[str, str]


def report_by_gateway(report: UsageReport, counted: Sequence[TokenRises], scope: GatewayScope) -> UsageReport:
    """A report by served model, split by the tokens that gateways counted in each part of its range.

    A row keeps its amounts if one key has all its tokens. GPU time, energy and cost of other rows are split
    in proportion to weighted tokens. The total is the same, but for the part of its energy that is measured.
    """
    keys, findings = scope.keys, GatewayFindings()
    parts = [
        tokens_of_gateways(rises, scope.gateways, keys.words, scope.models, scope.adapters, findings)
        for rises in counted
    ]
    for number, found in enumerate(parts):
        findings.learn_rows(found, [line.key[0] for line in report.lines if line.period == number])
    lines = _split_lines(report.lines, parts, scope, findings)
    split = _with_keys(report, keys)
    methods = sum_lines((*lines, *split.gpu_accounts), ("total",)).methods
    is_apportioned = any(line.apportioned_by for line in lines)
    notes = gateway_notes(
        findings, scope.gateways, keys.words, scope.input_weight, is_apportioned=is_apportioned
    )
    total = replace(report.total, methods=methods)
    return replace(split, lines=lines, total=total, notes=(*report.notes, *notes))


def _split_lines(
    rows: Sequence[ReportLine],
    parts: Sequence[Mapping[str, Mapping[Key, TokenCounts]]],
    scope: GatewayScope,
    findings: GatewayFindings,
) -> list[ReportLine]:
    """The parts of all rows, joined by period and key, in the order of a report."""
    keys, lines = scope.keys, defaultdict[tuple[int, Key], list[ReportLine]](list)
    unknown = defaultdict[tuple[int, Key], set[str]](set)
    empty, direct = (tuple(text for _ in keys.words) for text in ("", DIRECT))
    for line in rows:
        (model,) = line.key
        counts = parts[line.period].get(model) if model else None
        pieces = [(direct if model else empty, line)]
        if counts and line.tokens is not None:
            pieces = split_line(line, counts, scope.input_weight, findings) or pieces
        for texts, piece in pieces:
            key = keys.key(model, texts)
            lines[line.period, key].append(replace(piece, key=key))
            unknown[line.period, key] |= {kind for name, kind in findings.uncounted if name == model}
    merged = [_merged(same, key, unknown_kinds=unknown[period, key]) for (period, key), same in lines.items()]
    return sorted(
        merged, key=lambda one: (one.period, -one.millijoules, -(one.gpu_microseconds or 0), one.key)
    )


def _with_keys(report: UsageReport, keys: GatewayKeys) -> UsageReport:
    """The same report with the columns of these keys, empty in its own accounts."""
    empty, base = tuple("" for _ in keys.words), report.grouping
    own = [replace(line, key=keys.extended(line.key, empty)) for line in report.gpu_accounts]
    return replace(
        report,
        grouping=Grouping(
            keys.name,
            keys.columns,
            lambda party: keys.extended(base.key(party), empty),
            lambda uuid: keys.extended(base.own_key(uuid), empty),
        ),
        gpu_accounts=own if SERVED_MODEL in keys.columns else _merged_by_account(own),
        unbilled=[
            one._replace(key=keys.extended(one.key, empty) if one.key else ()) for one in report.unbilled
        ],
    )


def split_line(
    line: ReportLine, counted: Mapping[Key, TokenCounts], input_weight: Fraction, findings: GatewayFindings
) -> list[tuple[Key, ReportLine]]:
    """The parts of a row by the texts of its gateway, and what is left; empty if no token has a weight."""
    assert line.tokens is not None
    texts = sorted(counted)
    direct = tuple(DIRECT for _ in texts[0])
    tokens = _split_tokens(line.tokens, [counted[one] for one in texts], line.key[0], findings)
    parts = [
        (text, one)
        for text, one in zip([*texts, direct], tokens, strict=True)
        if any(getattr(one, kind) for kind in _KINDS)
    ]
    weights = [(one.output or 0) + input_weight * (one.input or 0) for _, one in parts]
    if not sum(weights):
        findings.unsplit.add(line.key[0])
        return []
    if len(parts) == 1:
        return [(parts[0][0], line)]
    amounts = _split_amounts(line, weights)
    return [
        (text, replace(line, tokens=one, apportioned_by=BY_GATEWAY, **amount))
        for (text, one), amount in zip(parts, amounts, strict=True)
    ]


def _split_tokens(
    engine: TokenCounts, counted: Sequence[TokenCounts], model: str, findings: GatewayFindings
) -> list[TokenCounts]:
    """The tokens of each part, and of what is left: they sum to those of the engine."""
    values: list[dict[str, Any]] = [{} for _ in range(len(counted) + 1)]
    for kind in _KINDS:
        total = getattr(engine, kind)
        if total is None:
            continue
        given = [getattr(one, kind) for one in counted]
        if kind in (CACHED, REQUESTS) and all(amount is None for amount in given):
            # Not counted by these labels: what is left is not known either.
            findings.uncounted.add((model, kind))
            continue
        amounts = [amount or 0 for amount in given]
        most = sum(amounts)
        if most > total:
            findings.surplus[model, kind] += most - total
            amounts = round_parts(total, [Fraction(amount * total, most) for amount in amounts])
        errors = [getattr(one, f"{kind}_error") for one in counted]
        lost = sum(errors, CountError())
        for place, amount in enumerate(amounts):
            if given[place] is not None:
                values[place] |= {kind: amount, f"{kind}_error": errors[place]}
        own: CountError = getattr(engine, f"{kind}_error")
        values[-1] |= {kind: max(total - most, 0), f"{kind}_error": own - lost}
    return [TokenCounts(pods=engine.pods, **one) for one in values]


def _split_amounts(line: ReportLine, weights: Sequence[int | Fraction]) -> list[dict[str, Any]]:
    """The amounts of each part: integers by largest remainder, of equal ones the first."""
    whole = sum(weights, Fraction(0))
    shares = [Fraction(weight) / whole for weight in weights]

    def split(amount: int) -> list[int]:
        return round_parts(amount, [amount * share for share in shares])

    def split_charges(charges: Charges | None) -> list[Charges | None]:
        if charges is None:
            return [None for _ in shares]
        pieces = {rate: split(amount) for rate, amount in charges.items()}
        return [{rate: amounts[place] for rate, amounts in pieces.items()} for place in range(len(shares))]

    def split_charged(amount: int, charges: Charges | None, pieces: Sequence[Charges | None]) -> list[int]:
        """Each part of an amount that is charged in whole is the sum of its charges."""
        if charges is None or sum(charges.values()) != amount:
            return split(amount)
        return [sum((piece or {}).values()) for piece in pieces]

    time_charges, energy_charges = split_charges(line.time_charges), split_charges(line.energy_charges)
    joules = split_charged(line.millijoules, line.energy_charges, energy_charges)
    estimated, times = split(line.estimated_microseconds), None
    if line.gpu_microseconds is not None:
        times = split_charged(line.gpu_microseconds, line.time_charges, time_charges)
    return [
        {
            "gpu_microseconds": None if times is None else times[place],
            "estimated_microseconds": estimated[place],
            "methods": {BY_GATEWAY: joules[place]} if joules[place] else {},
            "time_charges": time_charges[place],
            "energy_charges": energy_charges[place],
            "grams": None if line.grams is None else line.grams * share,
            **dict.fromkeys(_OF_PODS),
        }
        for place, share in enumerate(shares)
    ]


def _merged(
    lines: Sequence[ReportLine], key: Key, account: str = PROCESS, unknown_kinds: Collection[str] = ()
) -> ReportLine:
    """The sum of rows of several models with one key. What one of them does not have, the sum has not.

    `unknown_kinds` are kinds of tokens that one of them has, and nobody knows how many.
    """
    if len(lines) == 1:
        return lines[0]
    unknown: dict[str, Any] = {
        name: None for name in _OF_PODS if any(getattr(line, name) is None for line in lines)
    }
    apportioned = next((line.apportioned_by for line in lines if line.apportioned_by), "")
    tokens: TokenCounts = sum((line.tokens for line in lines if line.tokens), start=TokenCounts())
    for kind in unknown_kinds:
        nothing: dict[str, Any] = {kind: None, f"{kind}_error": CountError()}
        tokens = replace(tokens, **nothing)
    summed = sum_lines(lines, key, account)
    return replace(summed, tokens=tokens, apportioned_by=apportioned, **unknown)


def _merged_by_account(lines: Sequence[ReportLine]) -> list[ReportLine]:
    same: dict[tuple[int, str, Key], list[ReportLine]] = {}
    for line in lines:
        same.setdefault((line.period, line.account, line.key), []).append(line)
    return [_merged(ones, key, account) for (_, account, key), ones in same.items()]

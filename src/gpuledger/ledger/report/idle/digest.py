"""A digest for owners or teams: how long each held GPUs without use in a period, and what is held now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpuledger.ledger.owners import user_of
from gpuledger.ledger.report.formats import rounded_row
from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.idle.holds import IdleHold, IdleReport, holds_json
from gpuledger.ledger.report.party import party_of
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport

VERSION: Final = 1


def digest_json(report: UsageReport, idle: IdleReport) -> dict[str, Any]:
    """The digest as JSON: an entry for each row of the report that held a GPU without use, or does now.

    Time and money of an entry are those of the report's row: GPU-hours and cost of the whole period, not only
    of the time without use, of which no exact cost exists. Entries with the longest time without use come
    first.
    """
    holds = _holds_by_key(idle.holds, report.grouping)
    lines = {line.key: line for line in report.lines}
    keys = [key for key, line in lines.items() if line.held or key in holds]
    keys += [key for key in holds if key not in lines]
    entries = [_entry(report, key, lines.get(key), holds.get(key, ())) for key in keys]
    entries.sort(key=lambda one: (-one["held_seconds"], one["name"]))
    return {
        "version": VERSION,
        "node": idle.node,
        "reader": idle.reader,
        "since": report.period.since,
        "until": min(report.period.until, report.period.last),
        "now": idle.until,
        "by": report.grouping.name,
        "basis": report.basis,
        "currency": report.prices.currency,
        "has_price": report.prices.any_price,
        "entries": entries,
        "notes": list(report.notes),
    }


def _holds_by_key(holds: Sequence[IdleHold], grouping: Grouping) -> dict[Key, list[IdleHold]]:
    found: dict[Key, list[IdleHold]] = {}
    for one in holds:
        party = party_of(one.device.uuid, one.owner, one.commands[0] if one.commands else "")
        found.setdefault(grouping.key(party), []).append(one)
    return found


def _entry(
    report: UsageReport, key: Key, line: ReportLine | None, holds: Sequence[IdleHold]
) -> dict[str, Any]:
    cost = None if line is None else rounded_row(report, line).get("cost")
    return {
        "key": list(key),
        "name": _entry_name(report.grouping, key),
        "user": _only_user(holds, report.grouping, key),
        "gpu_microseconds": None if line is None else line.gpu_microseconds,
        "held_seconds": 0.0 if line is None else round(float(line.held or 0), 3),
        "active_seconds": None if line is None or line.active is None else round(float(line.active), 3),
        "unknown_seconds": None if line is None or line.unknown is None else round(float(line.unknown), 3),
        "cost": None if cost is None else format(cost, "f"),
        "unpriced_microseconds": None if line is None else line.unpriced_microseconds,
        "unpriced_millijoules": None if line is None else line.unpriced_millijoules,
        "holds": holds_json(holds),
    }


def _entry_name(grouping: Grouping, key: Key) -> str:
    """The name for people: of an owner without its kind."""
    words = [part for part in key if part]
    if grouping.name == "owner" and len(words) > 1:
        words = words[1:]
    return "/".join(words) or f"(no {grouping.columns[-1]} known)"


def _only_user(holds: Sequence[IdleHold], grouping: Grouping, key: Key) -> str:
    """The user to whom an entry can be sent; empty if there is none, or several."""
    if grouping.name == "user" and key[0]:
        return key[0]
    users = {user_of(one.owner) for one in holds}
    return users.pop() if len(users) == 1 else ""

"""Adds up the reports of several ledgers to one report, exactly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from gpuledger.ledger.report.charges import sum_charges
from gpuledger.ledger.report.grouping import Key
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.report_builder import OWN_ACCOUNTS, UNBILLED_ACCOUNTS
from gpuledger.ledger.report.usage_report import (
    GpuLine,
    Period,
    ReportLine,
    UnbilledTime,
    UsageReport,
    sum_lines,
)
from gpuledger.model.text import list_some


class NodeReport(NamedTuple):
    """The report of one ledger, and the name of its node."""

    node: str
    report: UsageReport


def combine_reports(reports: Sequence[NodeReport]) -> UsageReport:
    """The sum of reports with the same grouping, prices and time zone; `reports` is not empty.

    No second of a Device may be in two of them: then amounts that are united within a row add up as well.
    """
    found = [one.report for one in reports]
    parts = _united_parts(found)
    moved = [_moved_to_parts(report, parts) for report in found]
    lines = _sum_rows(line for report in moved for line in report.lines)
    lines.sort(key=lambda line: (line.period, -line.millijoules, -(line.gpu_microseconds or 0), line.key))
    own = _without_empty_rows(_sum_rows(line for report in moved for line in report.gpu_accounts))
    own.sort(key=lambda line: (line.period, OWN_ACCOUNTS.index(line.account), line.key))
    unmetered = frozenset().union(*(report.total.unmetered for report in found))
    total = replace(sum_lines((*lines, *own), ("total",)), period=0, high=None, unmetered=unmetered)
    occupied = [report.occupied for report in found if report.occupied is not None]
    periods = [report.period for report in found]
    return replace(
        found[0],
        grouping=replace(found[0].grouping, node_of=_node_of(reports)),
        period=Period(
            min(one.since for one in periods),
            max(one.until for one in periods),
            min(one.first for one in periods),
            max(one.last for one in periods),
        ),
        lines=lines,
        gpu_accounts=own,
        total=total,
        gpus=_sum_gpus(gpu for report in found for gpu in report.gpus),
        occupied=sum(occupied, Fraction(0)) if occupied else None,
        notes=_notes(reports),
        periods=parts,
        unbilled=_sum_unbilled(time for report in moved for time in report.unbilled),
    )


def _node_of(reports: Iterable[NodeReport]) -> Callable[[str], str]:
    """The node of each Gpu; of one that moved, the last."""
    in_order = sorted(reports, key=lambda one: one.report.period.last)
    nodes = {gpu.uuid: one.node for one in in_order for gpu in one.report.gpus}
    return lambda uuid: nodes.get(uuid, "")


def _united_parts(reports: Iterable[UsageReport]) -> list[ReportPart]:
    """The periods of all reports by name, in the order of time."""
    by_name: dict[str, ReportPart] = {}
    for report in reports:
        for part in report.periods:
            known = by_name.get(part.name, part)
            by_name[part.name] = ReportPart(
                min(known.begins, part.begins), max(known.ends, part.ends), part.name
            )
    return sorted(by_name.values())


def _moved_to_parts(report: UsageReport, parts: Sequence[ReportPart]) -> UsageReport:
    """The report with rows numbered by these periods."""
    places = {part.name: place for place, part in enumerate(parts)}
    numbers = [places[part.name] for part in report.periods]
    return replace(
        report,
        lines=[replace(line, period=numbers[line.period]) for line in report.lines],
        gpu_accounts=[replace(line, period=numbers[line.period]) for line in report.gpu_accounts],
        unbilled=[time._replace(period=numbers[time.period]) for time in report.unbilled],
    )


def _sum_rows(lines: Iterable[ReportLine]) -> list[ReportLine]:
    found: dict[tuple[int, str, Key], list[ReportLine]] = defaultdict(list)
    for line in lines:
        found[line.period, line.account, line.key].append(line)
    return [
        same[0] if len(same) == 1 else sum_lines(same, key, account)
        for (_, account, key), same in found.items()
    ]


def _without_empty_rows(lines: Sequence[ReportLine]) -> list[ReportLine]:
    """The rows without those that only say that a ledger has nothing in an account, if another has."""

    def is_empty(line: ReportLine) -> bool:
        return not (line.gpu_microseconds or line.millijoules or any(line.key))

    full = {(line.period, line.account) for line in lines if not is_empty(line)}
    return [line for line in lines if not (is_empty(line) and (line.period, line.account) in full)]


def _sum_unbilled(times: Iterable[UnbilledTime]) -> list[UnbilledTime]:
    found: dict[tuple[int, str, Key], list[UnbilledTime]] = defaultdict(list)
    for time in times:
        found[time.period, time.account, time.key].append(time)
    summed = [
        UnbilledTime(
            account,
            sum(one.microseconds for one in same),
            sum_charges(one.charges for one in same),
            period,
            key,
        )
        for (period, account, key), same in found.items()
    ]
    full = {(one.period, one.account) for one in summed if one.microseconds}
    kept = [one for one in summed if one.microseconds or (one.period, one.account) not in full]
    return sorted(kept, key=lambda one: (one.period, UNBILLED_ACCOUNTS.index(one.account), one.key))


def _sum_gpus(gpus: Iterable[GpuLine]) -> list[GpuLine]:
    """The Gpus; one that moved between nodes is one."""
    found: dict[str, GpuLine] = {}
    for gpu in gpus:
        known = found.get(gpu.uuid)
        found[gpu.uuid] = gpu if known is None else _sum_of_gpu(known, gpu)
    return sorted(found.values(), key=lambda gpu: (int(gpu.index or -1), gpu.uuid))


def _sum_of_gpu(one: GpuLine, other: GpuLine) -> GpuLine:
    energies = [gpu.millijoules for gpu in (one, other) if gpu.millijoules is not None]
    integrated = [gpu.integrated for gpu in (one, other) if gpu.integrated is not None]
    times = [gpu.observed for gpu in (one, other) if gpu.observed is not None]
    return replace(
        one,
        millijoules=sum(energies) if energies else None,
        observed=sum(times, Fraction(0)) if times else None,
        accounts=dict(Counter(one.accounts) + Counter(other.accounts)),
        unwatched=one.unwatched + other.unwatched,
        integrated=sum(integrated) if integrated else None,
    )


def _notes(reports: Sequence[NodeReport]) -> tuple[str, ...]:
    """The notes of all reports, each with the nodes that it is about, unless it is about all."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for node, report in reports:
        for note in dict.fromkeys(report.notes):
            nodes[note].append(node)
    return tuple(
        note if len(named) == len(reports) else f"{list_some(dict.fromkeys(named))}: {note}"
        for note, named in nodes.items()
    )

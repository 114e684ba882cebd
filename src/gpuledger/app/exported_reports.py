"""Makes the report of exported ledgers: a report of each node, added up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuledger.host.time_zone import machine_time_zone
from gpuledger.ledger.books.exported_history import Export, ExportedHistory, open_exports
from gpuledger.ledger.books.library import export_notes, find_exports, volumes, without_repetitions
from gpuledger.ledger.report.combined_report import NodeReport, combine_reports
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.ranges import EmptyRange, RequestedRange
from gpuledger.ledger.report.report_builder import ListUses
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.watched_range import NothingWatched, resolve_watched_range
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.text import list_some

Progress = Callable[[str, float], None]


def load_exports(folder: str) -> list[Export]:
    """The exports below a directory, without repetitions; their tables are verified when they are read.

    Raises GpuledgerError.
    """
    exports = without_repetitions(find_exports([Path(folder)], verify=False))
    for node in dict.fromkeys(one.manifest.node for one in exports if one.manifest.is_simulated):
        sys.stderr.write(f"{folder}: {node}: data of a simulator or a recording, not of hardware\n")
    return exports


def current_time_of_exports(exports: Sequence[Export]) -> float:
    """The current time in unix seconds; the end of the data if all of them are of simulated nodes."""
    if all(one.manifest.is_simulated for one in exports):
        return max(one.manifest.last for one in exports)
    return time.time()


def report_from_exports(
    exports: Sequence[Export],
    by: str,
    prices: Prices,
    requested: RequestedRange,
    progress: Progress,
    *,
    every: str = "",
    teams: Sequence[Team] = (),
) -> UsageReport:
    """The report of a range. `every` splits it into hours, days, weeks or months.

    Raises GpuledgerError with one line.
    """
    if prices.idle == SPREAD:
        raise UsageError(
            "price.idle: spread is for the ledger of one node or for --prometheus: report several ledgers "
            "with --price.idle row"
        )
    zone = machine_time_zone() if requested.zone is None else requested.zone
    price_list = PriceList(prices, zone)
    # An unknown grouping is reported before an empty range.
    find_grouping(by, {}, teams=teams, node_of=lambda _: "")
    uses, reports, used, empty = ListUses(), list[NodeReport](), list[Export](), list[str]()
    uncut: dict[str, EmptyRange] = {}
    found = volumes(exports)
    for number, volume in enumerate(found):
        manifest = volume[0].manifest
        clipped = _clip(requested, volume, found)
        report = None
        if clipped is not None:
            with open_exports([one for one in volume if _is_within(one, clipped)]) as history:
                nodes = _Query(by, prices, every, teams, uses, _partly(progress, number, len(found)))
                try:
                    report = nodes.report(history, manifest.node, clipped)
                except EmptyRange as error:
                    uncut.setdefault(manifest.node, error)
                    continue
        if report is None:
            empty.append(manifest.node)
            continue
        reports.append(NodeReport(manifest.node, report))
        used += volume
    if not reports:
        raise next(iter(uncut.values()), GpuledgerError(_nothing_watched(exports, requested)))
    combined = combine_reports(reports)
    reported = {one.node for one in reports}
    missing = [node for node in dict.fromkeys(empty) if node not in reported | uncut.keys()]
    notes = (
        *export_notes(used),
        *_empty_notes(missing),
        *(
            f"Nothing of {node} is in this report: {error}."
            for node, error in uncut.items()
            if node not in reported
        ),
        *combined.notes,
        *uses.notes(price_list, teams),
    )
    return replace(combined, notes=notes)


@dataclass(frozen=True, slots=True)
class _Query:
    """What is reported of each node."""

    by: str
    prices: Prices
    every: str
    teams: Sequence[Team]
    uses: ListUses
    progress: Progress

    def report(self, history: ExportedHistory, node: str, requested: RequestedRange) -> UsageReport | None:
        """The report of one node; None if nothing was watched in the range."""
        try:
            within = resolve_watched_range(history, requested)
        except NothingWatched:
            return None
        grouping = find_grouping(self.by, history.devices, teams=self.teams, node_of=lambda _: node)
        return build_report(
            history,
            grouping,
            self.prices,
            within,
            self.progress,
            every=self.every,
            node=node,
            uses=self.uses,
        )


def _clip(
    requested: RequestedRange, volume: Sequence[Export], others: Sequence[Sequence[Export]]
) -> RequestedRange | None:
    """The part of the range for a volume; None if it is outside. At a gap, it ends with the volume."""
    books, begins = volume[0].manifest.books, volume[0].manifest.begins
    ends = volume[-1].manifest.ends
    if not any(_is_within(one, requested) for one in volume):
        return None
    firsts = [one[0].manifest.begins for one in others if one[0].manifest.books == books]
    since, until = requested.since, requested.until
    if min(firsts) < begins:
        since = max(since, float(begins))
    if max(firsts) > begins:
        until = float(ends) if until is None else min(until, float(ends))
    return replace(requested, since=since, until=until)


def _is_within(export: Export, requested: RequestedRange) -> bool:
    begins, ends = export.manifest.begins, export.manifest.ends
    return requested.since < ends and (requested.until is None or begins < requested.until)


def _partly(progress: Progress, number: int, count: int) -> Progress:
    return lambda what, done: progress(what, (number + done) / count)


def _empty_notes(nodes: Sequence[str]) -> Iterator[str]:
    if nodes:
        yield f"Nothing was watched in this range on {list_some(nodes)}."


def _nothing_watched(exports: Sequence[Export], requested: RequestedRange) -> str:
    first, last = min(one.manifest.begins for one in exports), max(one.manifest.last for one in exports)
    known = " to ".join(format_local_time(unix, requested.zone) for unix in (first, last))
    until = "" if requested.until_text == requested.since_text else f" {requested.until_text}"
    return (
        f"nothing was watched in {requested.since_text}{until}: the exported ledgers have {known}; choose a "
        "range within it, or export the missing one"
    )

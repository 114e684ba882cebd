"""The ledgers, exports or Prometheus that reports are made from, and with which a statement is compared."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from gpuledger.app.exported_reports import load_exports, report_from_exports
from gpuledger.app.fleet_reports import report_from_prometheus
from gpuledger.app.ledger_file import node_of_ledger, open_history
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.app.statement_verification import Range, StatementBooks, Surroundings, range_of
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.ledger.books.exported_history import Export
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.ranges import ReportRange, RequestedRange
from gpuledger.ledger.report.settings import FleetSettings
from gpuledger.ledger.report.statement.changes import FOLDED, UNFINISHED, Reason
from gpuledger.ledger.report.statement.content import EXPORTS, LEDGER, PROMETHEUS, Statement
from gpuledger.ledger.report.statement.terms import StatementTerms
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.settings import ExportedBooksSettings
from gpuledger.ledger.store.history import History, Progress
from gpuledger.ledger.store.read_only_file import LedgerNotFound
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import build_settings
from gpuledger.terminal.settings import FleetUrlSettings


class NoBooks(GpuledgerError):
    """Nothing to compare a statement with: not a failure of the statement."""


class MissingNode(GpuledgerError):
    """The exported ledgers that the user named lack the node of a statement."""


class LedgerBooks:
    """The ledger of a node."""

    def __init__(self, history: History, node: str, progress: Progress) -> None:
        self._history, self._node, self._progress = history, node, progress
        self.name = f"the ledger {history.file}"

    @property
    def gpus(self) -> Collection[str] | None:
        """The uuids of all Gpus of the ledger."""
        return {device.gpu.uuid for device in self._history.devices.values()}

    def report(self, terms: StatementTerms, within: Range) -> UsageReport:
        """The report of a range."""
        begins, ends = _quarters(within)
        history, node = self._history, self._node
        return build_report(
            history,
            find_grouping(terms.by, history.devices, teams=terms.teams, node_of=lambda _: node),
            terms.prices,
            ReportRange(begins, ends, within[1], terms.zone, is_fixed=True),
            self._progress,
            every=terms.every,
            node=node,
        )

    def surroundings(self, statement: Statement) -> Surroundings | None:
        """The ranges around that of a statement, if an end is inside a folded hour or an open quarter."""
        begins, ends = _quarters(range_of(statement))
        history, zone = self._history, statement.terms.zone
        first, last = history.cuts_around(begins), history.cuts_around(ends)
        folded = [(cut, around) for cut, around in ((begins, first), (ends, last)) if around != (cut, cut)]
        if statement.until < ends * QUARTER * MICRO:
            if round(history.last * MICRO) > statement.until:
                last = (history.cuts_around(ends - 1)[0], last[1])
            elif not folded:
                return None
        if first[0] == first[1] and last[0] == last[1]:
            return None
        inner = (float(first[1] * QUARTER), float(last[0] * QUARTER))
        outer = (float(first[0] * QUARTER), float(last[1] * QUARTER))
        if folded:
            cut, around = folded[0]
            at, since, until = (format_local_time(one * QUARTER, zone) for one in (cut, *around))
            text = f"the ledger can no longer be cut at {at}: {since} to {until} is summed since"
            return Surroundings(inner if inner[0] < inner[1] else None, outer, Reason(FOLDED, text))
        end = format_local_time(statement.until / MICRO, zone)
        text = f"the statement ends at {end}, the last posting when it was made; the ledger has more since"
        return Surroundings(inner if inner[0] < inner[1] else None, outer, Reason(UNFINISHED, text))


def _quarters(within: Range) -> tuple[int, int]:
    return int(within[0] // QUARTER), -int(-within[1] // QUARTER)


class ReportedBooks:
    """Books of many nodes that are read by a function: a Prometheus, or exported ledgers."""

    def __init__(self, name: str, report: Callable[[StatementTerms, Range], UsageReport]) -> None:
        self.name, self.report = name, report

    @property
    def gpus(self) -> Collection[str] | None:
        """Not known without a report."""
        return None

    def surroundings(self, _: Statement) -> Surroundings | None:
        """A range is cut as it was."""
        return None


@contextmanager
def open_books(
    statement: Statement, values: Mapping[str, Any], progress: Progress
) -> Iterator[StatementBooks]:
    """Open what a statement was made of. Exported ledgers (`--books`) also serve for that of one ledger.

    Raises NoBooks if there is nothing to compare it with, MissingNode if `--books` lacks its node, and
    GpuledgerError if that cannot be read.
    """
    fleet = build_settings(FleetSettings, values)
    folder = build_settings(ExportedBooksSettings, values).folder
    if statement.source == PROMETHEUS:
        if not fleet.url:
            raise NoBooks("it was made from a Prometheus: add --prometheus URL to compare it")
        yield _prometheus_books(fleet, progress)
    elif folder:
        yield _exported_books(statement, folder, progress)
    elif statement.source == EXPORTS and (lab := build_settings(FleetUrlSettings, values).fleet):
        yield _node_books(lab, values, progress)
    elif statement.source == EXPORTS:
        raise NoBooks("it was made from exported ledgers: add --books DIR or --fleet URL to compare it")
    else:
        # The node's name of then: prices and teams can depend on it.
        nodes = sorted(set(filter(None, statement.nodes.values())))
        try:
            with open_history(values) as history:
                yield LedgerBooks(history, nodes[0] if nodes else node_of_ledger(history, values), progress)
        except LedgerNotFound as error:
            raise NoBooks(str(error)) from None


def _requested(within: Range, terms: StatementTerms) -> RequestedRange:
    return RequestedRange(*within, "the statement's range", "the statement's range", terms.zone)


def fleet_report_by_terms(
    fleet: FleetSettings,
    terms: StatementTerms,
    requested: RequestedRange,
    now: float,
    progress: Progress,
    tokens: TokenSettings | None = None,
) -> UsageReport:
    """The report of a fleet from its Prometheus; warnings are written to stderr. Raises GpuledgerError."""
    return report_from_prometheus(
        fleet,
        terms.by,
        terms.prices,
        requested,
        now,
        progress,
        lambda text: print(text, file=sys.stderr),  # noqa: T201  (like the warning of open_history)
        every=terms.every,
        teams=terms.teams,
        tokens=tokens,
    )


def exports_report_by_terms(
    exports: Sequence[Export], terms: StatementTerms, requested: RequestedRange, progress: Progress
) -> UsageReport:
    """The report of exported ledgers. Raises GpuledgerError."""
    return report_from_exports(
        exports, terms.by, terms.prices, requested, progress, every=terms.every, teams=terms.teams
    )


def _prometheus_books(fleet: FleetSettings, progress: Progress) -> StatementBooks:
    def report(terms: StatementTerms, within: Range) -> UsageReport:
        return fleet_report_by_terms(fleet, terms, _requested(within, terms), time.time(), progress)

    return ReportedBooks(f"Prometheus {PrometheusClient(fleet.url).host}", report)


def _node_books(url: str, values: Mapping[str, Any], progress: Progress) -> StatementBooks:
    # Imported lazily: it needs threads and archives.
    from gpuledger.app.fleet_api import FleetApiClient
    from gpuledger.app.node_ledgers import report_from_nodes

    access = build_settings(ClientAccessSettings, values)

    def report(terms: StatementTerms, within: Range) -> UsageReport:
        return report_from_nodes(
            lambda: FleetApiClient(url, access), terms, _requested(within, terms), progress
        )

    with closing(FleetApiClient(url, access)) as client:
        return ReportedBooks(f"the nodes of {client.url}", report)


def _exported_books(statement: Statement, folder: str, progress: Progress) -> StatementBooks:
    exports = load_exports(folder)
    if statement.source == LEDGER:
        # Those of other nodes are no part of it.
        nodes = set(statement.nodes.values())
        exports = [export for export in exports if export.manifest.node in nodes]
        if not exports:
            raise MissingNode(
                f"{folder} has no exported ledger of {', '.join(sorted(nodes))}: export it there, or omit "
                "--books to verify only the file"
            )

    def report(terms: StatementTerms, within: Range) -> UsageReport:
        return exports_report_by_terms(exports, terms, _requested(within, terms), progress)

    return ReportedBooks(f"the exported ledgers in {folder}", report)

"""Ledgers of nodes, and exports of them, for tests of `gpuledger books`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from builders import FakeClock, process
from gpuledger.ledger.books.exporting import ExportScope, export_ledger
from gpuledger.ledger.books.library import add_export
from gpuledger.ledger.books.manifest import Manifest
from gpuledger.ledger.books.work_folder import work_folder
from gpuledger.ledger.store.history import History
from gpuledger.model.devices import Gpu
from gpuledger.model.workload import Allocation
from ledger_helpers import Run
from report_helpers import quarters
from time_books import HOUR, PODS, A, B, Node

# A full hour of UTC, and the end of the ledgers below.
SINCE = int(HOUR)
UNTIL = SINCE + 3 * 3600


def write_node(folder: Path, *cards: Gpu, ticks: int = 180, begins: float = HOUR) -> Path:
    """The ledger of a stopped node: a pod throughout, another at times, an allocation without a process."""
    folder.mkdir(parents=True, exist_ok=True)
    node = Node(folder, clock=FakeClock(begins))
    first, second = cards or (A, B)
    for tick in range(ticks):
        runs = [process(first, 7, workload=PODS[0])]
        if tick % 50 > 20:
            runs.append(process(first, 8, workload=PODS[1]))
        has = [Allocation(second, PODS[2])] if tick > 60 else []
        node.look(first, second, seconds=50, runs=runs, has=has)
    node.store.close()
    return node.file


def write_metered_node(folder: Path, ticks: int = 100) -> Path:
    """The ledger of a stopped node with an energy counter, of which two pods share some of the time."""
    node = Run(folder, clock=FakeClock(HOUR))
    for tick in range(ticks):
        runs = [process(A, 7, workload=PODS[0])]
        if tick % 20 > 8:
            runs.append(process(A, 8, workload=PODS[1]))
        node.tick({A: 1_000_000 + 50_000 * tick}, runs, seconds=50.0)
    node.store.close()
    return node.store.file


def write_export(
    file: Path,
    into: Path,
    node: str = "node-1",
    between: tuple[int, int] = (SINCE, UNTIL),
    form: str = "csv",
) -> tuple[Path, Manifest]:
    """Export a range of a ledger; return the directory of the export and its manifest."""
    with closing(History(file)) as history, work_folder(into) as work:
        written = work / "export"
        written.mkdir()
        scope = ExportScope(node, f"{node}.example.com", quarters(*between), form)
        manifest = export_ledger(history, scope, written)
        place, _ = add_export(written, manifest, into)
    return place, manifest

"""A node with a ledger file, tick by tick, and what its time books hold."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

from builders import gpu, instance, reading
from gpuledger.ledger.report.gpu_time import GpuTime
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.time_sums import gpu_time_sums
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.process import GpuProcess
from gpuledger.model.session import BASES, LedgerState
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import Run

A, B = gpu(0, name="NVIDIA H100", sm_count=132), gpu(1, name="NVIDIA A100", sm_count=108)

PARTS = (
    instance(A, 1, index=0, profile="4g.40gb", sm_count=60),
    instance(A, 2, index=1, profile="2g.20gb", sm_count=32),
)
# A full hour in UTC, and half an hour after one in Kolkata.
HOUR = 1_700_002_800.0
PODS = [Workload("pod", "ml", f"train-{number}", "main", pod_uid=f"uid-{number}") for number in range(3)]
KOLKATA, LORD_HOWE = ZoneInfo("Asia/Kolkata"), ZoneInfo("Australia/Lord_Howe")


class Node(Run):
    """A node with a ledger file, tick by tick."""

    def look(
        self,
        *gpus: Gpu,
        seconds: float = 1.0,
        runs: Sequence[GpuProcess] = (),
        has: Sequence[Allocation] = (),
        unlisted: bool = False,
        lost: bool = False,
        parts: Sequence[Instance] = (),
    ) -> LedgerState:
        """One tick. `unlisted`: no process list can be read; `lost`: no Gpu is up."""
        self.clock.advance(seconds)
        readings = []
        for card in gpus:
            cut = [part for part in parts if part.parent == card]
            devices: list[Device] = [card, *cut]
            for device in devices:
                mine = [] if device is card and cut else [one for one in runs if one.device == device]
                failed = (unlisted or lost) and not (device is card and cut)
                readings.append(
                    reading(
                        device,
                        *([] if failed else mine),
                        failed=failed,
                        up=not lost,
                        mig_enabled=bool(cut),
                    )
                )
        state = self.ledger.post(
            Snapshot(
                self.clock.now_unix,
                self.clock.now_elapsed,
                SourceInfo("test"),
                tuple(readings),
                tuple(has),
                boot_id=self.boot,
            )
        )
        assert_exports_all_time(state)
        return state

    @property
    def file(self) -> Path:
        return self.store.file


def again(node: Node, folder: Path, *, seconds: float = 5.0, **options: object) -> Node:
    """Start the program again, after a clean stop or a kill."""
    if node.store._connection is not None:
        node.store.close()
    node.clock.advance(seconds)
    return Node(folder, clock=node.clock, **options)  # type: ignore[arg-type]


def assert_exports_all_time(state: LedgerState) -> None:
    time = state.time
    exported: Counter[str] = Counter()
    series: Counter[str] = Counter()
    for row in time.rows:
        exported[row.labels[0]] += row.microseconds
        series[row.labels[0]] += 1
    for uuid, watched in time.watched.items():
        assert abs(exported[uuid] + time.pending[uuid] + time.closed[uuid] - watched) <= series[uuid]


def time_of(file: Path, since: int = 0, until: int = 2**40) -> list[GpuTime]:
    """Time by quarter; of a folded hour, that of its first one."""
    with closing(History(file)) as history:
        first, end = max(since, history.first_quarter or 0), min(until, history.end_quarter)
        return [one for quarter in range(first, end) for one in gpu_time_sums(history, quarter, quarter + 1)]


def sums(file: Path, since: int = 0, until: int = 2**40) -> dict[str, list[int]]:
    """Microseconds by both bases, by Gpu."""
    found: dict[str, list[int]] = {}
    for one in time_of(file, since, until):
        amounts = found.setdefault(one.part.gpu, [0, 0])
        amounts[0] += one.allocation
        amounts[1] += one.residence
    return found


def names(file: Path) -> dict[str, tuple[int, int]]:
    """Seconds by both bases, by pod and command or own account."""
    found: dict[str, list[Fraction]] = {}
    for one in time_of(file):
        name = one.account if one.party is None else f"{one.party.owner.pod} {one.party.command}"
        amounts = found.setdefault(name, [Fraction(0), Fraction(0)])
        amounts[0] += Fraction(one.allocation, 1_000_000)
        amounts[1] += Fraction(one.residence, 1_000_000)
    return {name: (int(both[0]), int(both[1])) for name, both in found.items()}


def assert_time_is_conserved(file: Path) -> dict[str, int]:
    """Assert that the file has all microseconds of each Gpu by both bases; return those that were posted."""
    with closing(sqlite3.connect(file)) as books:
        query = """
            SELECT uuid, posted + coalesce(microseconds, 0), forgotten FROM gpu_times
            LEFT JOIN time_spans ON number = span
        """
        posted = {uuid: (total, gone) for uuid, total, gone in books.execute(query)}
        assert books.execute(
            "SELECT count(*) FROM time_spans WHERE split NOT IN (SELECT number FROM time_splits)"
        ).fetchone() == (0,)
    found = sums(file)
    for uuid, (total, forgotten) in posted.items():
        assert found.get(uuid, [0, 0]) == [total - forgotten] * 2, uuid
    assert found.keys() <= posted.keys()
    return {uuid: total for uuid, (total, _) in posted.items()}


def by_cell(file: Path, cuts: Iterable[int]) -> list[Counter[tuple[object, ...]]]:
    """Amounts before each of these quarters, which are ascending, by everything but the quarter."""
    found: Counter[tuple[object, ...]] = Counter()
    amounts = []
    begin = 0
    for cut in cuts:
        for one in time_of(file, begin, cut):
            for basis in BASES:
                key = (basis, one.part, one.account, one.party, one.is_estimate)
                found[key] += one.microseconds(basis)
        amounts.append(+found)
        begin = cut
    return amounts

"""A node with a ledger file, and checks of the file without the program."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import finalize

from builders import FakeClock, gpu, process, reading
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.schema import migrate_schema
from gpuledger.ledger.store.store import Store
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu
from gpuledger.model.process import GpuProcess, UtilizationSample
from gpuledger.model.session import EnergyState, LedgerState
from gpuledger.model.snapshot import CollectorRun, Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload

UNIX = 1_700_000_000.0
SETTINGS = LedgerSettings(zero_hold=2.0, retention=5.0)
# A GPU, and the process of a pod on it.
TRAINED = gpu(0, sm_count=132)
TRAINING = process(TRAINED, 1, workload=Workload("pod", "ml", "train-0"))


@cache
def _empty_file() -> bytes:
    with TemporaryDirectory() as folder, closing(sqlite3.connect(Path(folder, "empty.db"))) as books:
        migrate_schema(books)
        books.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(folder, "empty.db").read_bytes()


def open_store(
    folder: Path, boot: str, clock: FakeClock, limits: RetentionLimits | None = None, name: str = "gpuledger"
) -> Store:
    """Open a ledger. A new one gets the tables of a copy: creating them takes ten times as long."""
    file = folder / f"{name}.db"
    if folder.is_dir() and not file.exists():
        file.write_bytes(_empty_file())
        file.chmod(0o600)
    return Store(folder, name, boot, clock, limits or RetentionLimits())


class Run:
    """One run of the program on a persistent ledger. `boot` is the boot id of the machine and the source."""

    def __init__(
        self,
        folder: Path,
        *,
        boot: str = "boot-1",
        clock: FakeClock | None = None,
        limits: RetentionLimits | None = None,
        settings: LedgerSettings = SETTINGS,
    ) -> None:
        self.boot = boot
        self.clock = clock or FakeClock(UNIX)
        self.store = open_store(folder, boot, self.clock, limits)
        self.ledger = Ledger(settings, self.store)
        # Most tests end without a clean stop. From Python 3.13 on, a connection that is collected warns.
        finalize(self, close_file, self.store)

    def tick(
        self,
        counters: dict[Gpu, int],
        processes: Sequence[GpuProcess] = (),
        seconds: float = 1.0,
        busy: bool | None = True,
        allocations: tuple[Allocation, ...] = (),
    ) -> LedgerState:
        """Post one tick. `busy` is None if the driver reports no utilization."""
        self.clock.advance(seconds)
        at = self.clock.now_elapsed
        readings = []
        for card, value in counters.items():
            mine = [one for one in processes if one.device == card]
            samples = [
                UtilizationSample(one.pid, round((at - seconds / 2) * 1e6), 0.5, 0, 0, 0)
                for one in mine
                if busy
            ]
            values = {q.ENERGY: value, q.POWER_LIMIT_MAX: 10_000.0}
            if busy is not None:
                values[q.UTILIZATION] = 0.5 if samples else 0.0
            readings.append(reading(card, *mine, values=values, samples=tuple(samples)))
        seen = tuple(readings)
        source = SourceInfo("test")
        snapshot = Snapshot(self.clock.now_unix, at, source, seen, allocations, boot_id=self.boot)
        state = self.ledger.post(snapshot)
        assert_exports_everything(state.energy)
        return state

    def kill(self) -> None:
        """Simulate kill -9: nothing is written, the kernel releases the lock."""
        assert self.store._connection is not None
        self.store._connection.close()
        assert self.store._lock is not None
        self.store._lock.release()
        self.store._connection = None


def as_simulated(file: Path, target: Path) -> Path:
    """Move the ledger to another file, and make it one of a simulator."""
    file.rename(target)
    with closing(sqlite3.connect(target)) as books, books:
        books.execute("REPLACE INTO meta VALUES ('ledger', ?)", (target.stem,))
    return target


def post_training(run: Run, count: int, start: int = 0) -> CollectorRun:
    """Post ticks of the training, 100 J each; return how the last one was stored."""
    for number in range(count):
        (part,) = run.tick({TRAINED: (start + number) * 100_000}, [TRAINING]).parts
    return part


def close_file(store: Store) -> None:
    """Close the file as it is, without a clean stop."""
    if store._connection is not None:
        store._connection.close()


def assert_exports_everything(energy: EnergyState) -> None:
    """Assert that exported + pending + closed is the total, per Gpu."""
    exported: dict[str, int] = defaultdict(int)
    for row in energy.owners:
        exported[row.labels[0]] += row.millijoules
    assert set(energy.imbalance.values()) <= {0}
    for uuid, total in energy.totals.items():
        assert exported[uuid] + energy.pending[uuid] + energy.closed[uuid] == total


def exported_values(state: LedgerState) -> dict[tuple[str, ...], int]:
    """Every exported energy counter by its labels."""
    energy = state.energy
    counters = {("owner", *row.labels): row.millijoules for row in energy.owners}
    counters |= {("total", uuid): joules for uuid, joules in energy.totals.items()}
    for row in energy.rows:
        process = row.process
        start, owner = str(process.host.start.ticks), process.workload
        names = (owner.namespace, owner.pod, owner.container, owner.pod_uid, owner.container_id)
        name = ("row", process.device.uuid, str(process.pid), start, *names, str(row.other))
        counters[name] = row.millijoules
    return counters


def assert_books_balance(file: Path) -> int:
    """Assert that the accounts in the file sum to closing minus opening per epoch; return the millijoules in
    it.
    """
    with closing(sqlite3.connect(file)) as books:
        books.execute("BEGIN")  # one state of the file for all queries: the server may be writing
        booked: dict[tuple[str, int], int] = defaultdict(int)
        spans = books.execute(
            "SELECT uuid, life, idle + unattributed + unobserved"
            " + coalesce((SELECT sum(millijoules) FROM shares WHERE span = number), 0) FROM spans"
        ).fetchall()
        hours = books.execute(
            "SELECT uuid, life, idle + unattributed + unobserved"
            " + coalesce((SELECT sum(millijoules) FROM hour_shares WHERE number = hours.number), 0)"
            " FROM hours WHERE life >= 0"
        ).fetchall()
        for uuid, life, joules in spans + hours + books.execute("SELECT * FROM forgotten").fetchall():
            booked[uuid, life] += joules
        ours = "SELECT uuid, life, opening, booked FROM "
        epochs = books.execute(ours + "gpus").fetchall() + books.execute(ours + "epochs").fetchall()
        expected = {
            (uuid, life): closing - opening for uuid, life, opening, closing in epochs if opening is not None
        }
        got = {key: joules for key, joules in booked.items() if key[1] is not None}
        assert {key: joules for key, joules in expected.items() if joules or key in got} == got
        # The energy of processes is also in their Sessions.
        shares = books.execute("SELECT session, sum(millijoules) FROM shares GROUP BY session").fetchall()
        sessions = dict(books.execute("SELECT number, measured + apportioned FROM usage").fetchall())
        folded = books.execute("SELECT count(*) FROM spans WHERE method = 'folded'").fetchone()[0]
        if not folded and not hours and not books.execute("SELECT count(*) FROM forgotten").fetchone()[0]:
            assert {number: joules for number, joules in sessions.items() if joules} == {
                number: joules for number, joules in shares if joules
            }
        assert books.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return sum(expected.values())


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as books:
        return books.execute(query).fetchall()

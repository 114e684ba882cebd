"""Export of booked energy: hold, late owners, ended processes, the cap; always balanced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Sized
from itertools import pairwise

import pytest

from builders import gpu, process, reading
from gpuledger.ledger.exported_counters import ExportedCounters
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.process import GpuProcess, UtilizationSample
from gpuledger.model.session import EnergyRow, LedgerState
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Workload

CARD = gpu(0)
UNIX = 1_700_000_000.0
WATT = 100
NAMED = Workload("pod", namespace="ml", pod="train-0", container="main", pod_uid="u")
NAMELESS = Workload("pod", pod_uid="u", missing="pod_name")


class LedgerBench:
    """A Ledger with one tick per second and a counter that rises by 100 J per tick."""

    def __init__(self, **settings: object) -> None:
        self.ledger = Ledger(LedgerSettings(**settings))  # type: ignore[arg-type]  # free-form by design
        self.second = 0

    def tick(self, *processes: GpuProcess, seconds: int = 1) -> LedgerState:
        for _ in range(seconds):
            values = {q.ENERGY: self.second * WATT * 1000, q.UTILIZATION: 0.5}
            at = round((self.second - 0.5) * 1e6)
            samples = tuple(UtilizationSample(one.pid, at, 0.5, 0.0, 0.0, 0.0) for one in processes)
            exported = reading(CARD, *processes, values=values, samples=samples)
            state = self.ledger.post(
                Snapshot(UNIX + self.second, float(self.second), SourceInfo("test"), (exported,))
            )
            self.second += 1
            assert_balance(state)
        return state


def assert_balance(state: LedgerState) -> None:
    energy = state.energy
    assert set(energy.imbalance.values()) <= {0}
    for uuid, total in energy.totals.items():
        exported = sum(row.millijoules for row in energy.owners if row.labels[0] == uuid)
        assert exported + energy.pending[uuid] + energy.closed[uuid] == total


def owners(state: LedgerState) -> dict[tuple[str, str], int]:
    """Joules by account and pod."""
    exported: Counter[tuple[str, str]] = Counter()
    for row in state.energy.owners:
        exported[row.labels[1], row.labels[5]] += row.millijoules
    return {key: joules // 1000 for key, joules in exported.items()}


def rows(state: LedgerState) -> dict[str, int]:
    """Joules by pid."""
    return {name(row): row.millijoules // 1000 for row in state.energy.rows}


def name(row: EnergyRow) -> str:
    return "other" if row.other else str(row.process.pid)


def test_a_new_series_is_exported_as_zero_and_then_in_full() -> None:
    books = LedgerBench()
    p = process(CARD, 1, workload=NAMED)
    state = books.tick(p, seconds=20)
    assert owners(state)["process", "train-0"] == 0
    assert rows(state) == {"1": 0}
    state = books.tick(p, seconds=20)
    # Energy until the first move is not booked.
    assert owners(state)["process", "train-0"] == 3800
    assert rows(state) == {"1": 3800}


def test_an_owner_named_late_gets_all_energy_from_the_beginning() -> None:
    books = LedgerBench()
    books.tick(process(CARD, 1, workload=NAMELESS), seconds=20)
    state = books.tick(process(CARD, 1, workload=NAMED), seconds=35)
    assert owners(state) == {("process", "train-0"): 5300}
    (row,) = state.energy.rows
    assert row.process.workload.pod == "train-0"


def test_an_owner_is_unknown_after_thirty_seconds_and_gets_later_energy_once_resolved() -> None:
    books = LedgerBench()
    books.tick(process(CARD, 1, workload=NAMELESS), seconds=50)
    state = books.tick(process(CARD, 1, workload=NAMED), seconds=100)
    exported = owners(state)
    assert exported["process", ""] + exported["process", "train-0"] == 148 * WATT
    assert exported["process", ""] == 4800
    assert {row.labels[3] for row in state.energy.owners} == {"unknown", "pod"}


@pytest.mark.parametrize("missing", ["", "no_cgroup"])
def test_a_late_name_of_a_user_counts_from_then_on(missing: str) -> None:
    books = LedgerBench()
    books.tick(process(CARD, 1, workload=Workload("user", user="812345", missing=missing)), seconds=40)
    state = books.tick(process(CARD, 1, workload=Workload("user", user="lena", missing=missing)), seconds=40)
    users = {row.labels[7]: row.millijoules // 1000 for row in state.energy.owners if row.labels[7]}
    assert users.keys() == {"812345", "lena"}
    assert sum(users.values()) == 78 * WATT


def test_the_late_number_of_a_job_counts_from_then_on() -> None:
    """Slurm 26.05: the cgroup has a SLUID, and processes of the job its number and user."""
    books = LedgerBench()
    late = Workload("slurm", job="s5K1KKYAYG5D00", user="root")
    books.tick(process(CARD, 1, workload=late), seconds=40)
    state = books.tick(process(CARD, 1, workload=Workload("slurm", job="131", user="lena")), seconds=40)
    jobs = {row.labels[8]: row.millijoules // 1000 for row in state.energy.owners if row.labels[8]}
    assert jobs.keys() == {"s5K1KKYAYG5D00", "131"}
    assert sum(jobs.values()) == 78 * WATT
    other = Workload("slurm", job="132", user="lena")
    state = books.tick(process(CARD, 1, workload=other), seconds=40)
    assert "132" not in {row.labels[8] for row in state.energy.owners}


def test_labels_are_frozen_once_resolved() -> None:
    books = LedgerBench()
    books.tick(process(CARD, 1, workload=NAMED), seconds=40)
    renamed = Workload("pod", namespace="ml", pod="other", container="main")
    state = books.tick(process(CARD, 1, workload=renamed), seconds=10)
    assert owners(state).keys() == {("process", "train-0")}


def test_a_process_of_forty_seconds_named_late_is_exported_in_full_after_its_exit() -> None:
    books = LedgerBench()
    books.tick(process(CARD, 1, workload=NAMELESS), seconds=20)
    books.tick(process(CARD, 1, workload=NAMED), seconds=20)
    state = books.tick(seconds=60)
    (row,) = state.energy.rows
    assert (row.active, row.millijoules // 1000) == (False, 3800)
    assert owners(state)["process", "train-0"] == 3800


def test_only_energy_used_alone_is_measured_in_a_row() -> None:
    books = LedgerBench(zero_hold=0.0)
    alone, beside = process(CARD, 1, workload=NAMED), process(CARD, 2)
    books.tick(alone, seconds=6)
    (row,) = books.tick(alone).energy.rows
    assert (row.measured, row.millijoules) == (row.millijoules, 500_000)
    rows = {one.process.pid: one for one in books.tick(alone, beside, seconds=4).energy.rows}
    assert (rows[1].measured, rows[2].measured) == (500_000, 0)
    assert rows[1].millijoules + rows[2].millijoules == 900_000


def test_rows_end_after_the_retention_and_their_energy_is_closed() -> None:
    books = LedgerBench(retention=100.0)
    books.tick(process(CARD, 1, workload=NAMED), seconds=40)
    kept = books.tick(seconds=90)
    assert rows(kept)["1"] == rows(books.tick())["1"] > 0
    state = books.tick(seconds=30)
    assert rows(state) == {}
    assert ("process", "train-0") not in owners(state)
    assert state.energy.closed["GPU-0"] == kept.energy.rows[0].millijoules


def test_energy_of_an_ended_process_is_frozen_while_the_gpu_continues() -> None:
    books = LedgerBench()
    books.tick(process(CARD, 1, workload=NAMED), seconds=40)
    first = rows(books.tick(seconds=5))["1"]
    assert rows(books.tick(seconds=50))["1"] == first


def test_a_new_process_with_equal_labels_starts_the_row_at_zero() -> None:
    books = LedgerBench()
    books.tick(process(CARD, 1, ticks=1, workload=NAMED), seconds=60)
    state = books.tick(process(CARD, 1, ticks=2, workload=NAMED), seconds=5)
    (row,) = state.energy.rows
    assert (row.active, row.millijoules) == (True, 0)
    # The owner is the same, so the owner's series continues.
    assert owners(state)["process", "train-0"] > 5000


def test_a_pod_that_restarts_its_process_keeps_one_increasing_series() -> None:
    books = LedgerBench(retention=20.0)
    exported: list[int] = []
    for generation in range(6):
        p = process(CARD, 100 + generation, ticks=generation, workload=NAMED)
        exported += [owners(books.tick(p)).get(("process", "train-0"), 0) for _ in range(30)]
    assert exported == sorted(exported)


def test_energy_of_processes_beyond_the_cap_is_exported_in_one_row() -> None:
    books = LedgerBench(max_per_device=1)
    crowd = [process(CARD, pid, memory=pid, sm=0.5, workload=NAMED) for pid in (1, 2, 3)]
    state = books.tick(*crowd, seconds=60)
    exported = rows(state)
    assert exported.keys() == {"3", "other"}
    assert sum(row.millijoules for row in state.energy.rows) == 58 * WATT * 1000


def test_idle_energy_is_in_the_gpus_idle_account_without_owner() -> None:
    state = LedgerBench().tick(seconds=40)
    (row,) = (row for row in state.energy.owners if row.millijoules)
    assert row.labels[1] == "unattributed"
    assert row.labels[3:] == ("", "", "", "", "", "")


def exported_series(states: Sequence[LedgerState]) -> dict[tuple[str, ...], list[int]]:
    series: dict[tuple[str, ...], list[int]] = {}
    for state in states:
        for row in state.energy.owners:
            series.setdefault(row.labels, []).append(row.millijoules)
    return series


def test_no_exported_series_ever_decreases() -> None:
    books, states = LedgerBench(retention=15.0), []
    for second in range(300):
        crowd = [
            process(CARD, pid, workload=Workload("pod", namespace="n", pod=f"p{pid}"))
            for pid in (1, 2, 3)
            if (second // (10 * pid)) % 2
        ]
        states.append(books.tick(*crowd))
    for values in exported_series(states).values():
        for before, after in pairwise(values):
            assert after >= before or after == 0


def entries(held: object) -> int:
    """Number of all entries in an object and its series."""
    kept = list(vars(held).values()) if hasattr(held, "__dict__") else []
    series = [thing for thing in kept if isinstance(thing, ExportedCounters)]
    things = kept + [getattr(one, name) for one in series for name in one.__dataclass_fields__]
    return sum(len(thing) for thing in things if isinstance(thing, Sized))


def test_a_ledger_without_store_does_not_grow_with_ended_processes() -> None:
    books = LedgerBench(retention=10.0)
    counts = []
    for generation in range(600):
        books.tick(process(CARD, generation + 1, ticks=generation, workload=NAMED))
        if generation in (299, 599):
            counts.append(entries(books.ledger._accounts))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("retention", [0.0, 0.5])
def test_without_retention_only_running_processes_are_exported(retention: float) -> None:
    books = LedgerBench(retention=retention, zero_hold=2.0)
    p = process(CARD, 1, workload=NAMED)
    state = books.tick(p, seconds=10)
    assert rows(state) == {"1": 800}
    assert rows(books.tick(seconds=2)) == {}


def latest(state: LedgerState) -> list[tuple[int | None, bool, int]]:
    """Start, activity and joules of each row."""
    return [(row.process.host.start.ticks, row.active, row.millijoules // 1000) for row in state.energy.rows]


@pytest.mark.parametrize("workload", [NAMED, Workload("user", user="bob")])
def test_the_row_of_a_reused_pid_begins_at_zero_even_if_the_old_process_gets_late_energy(
    workload: Workload,
) -> None:
    books = LedgerBench(zero_hold=0.0)
    books.tick(process(CARD, 1, ticks=1, workload=workload), seconds=10)
    # Its last interval is booked in the tick that first shows the other process.
    new = process(CARD, 1, ticks=2, started=10.0, workload=workload)
    assert latest(books.tick(new)) == [(2, True, 0)]
    assert latest(books.tick(new)) == [(2, True, 100)]


def test_a_process_that_ended_unnamed_does_not_take_the_row_of_the_next_process_with_its_pid() -> None:
    books = LedgerBench(zero_hold=0.0)
    owner = Workload("user", user="bob")
    books.tick(process(CARD, 1, ticks=1, workload=owner, missing="pod_name"), seconds=10)
    new = process(CARD, 1, ticks=2, started=10.0, workload=owner)
    state = books.tick(new, seconds=5)
    assert latest(state) == [(2, True, 400)]


def test_a_pid_in_no_list_is_one_session_and_one_row() -> None:
    books = LedgerBench(zero_hold=0.0)
    ended = 0
    for _ in range(60):
        at = round((books.second - 0.5) * 1e6)
        values = {q.ENERGY: books.second * WATT * 1000, q.UTILIZATION: 0.5}
        exported = reading(CARD, values=values, samples=(UtilizationSample(77, at, 0.5, 0.0, 0.0, 0.0),))
        state = books.ledger.post(
            Snapshot(UNIX + books.second, float(books.second), SourceInfo("test"), (exported,))
        )
        books.second += 1
        assert_balance(state)
        ended += len(books.ledger.sessions.ended)
    (ghost,) = books.ledger.sessions.open()
    assert (ended, ghost.process.pid, ghost.apportioned) == (0, 77, 58 * WATT * 1000)
    assert {(row.process.pid, row.active) for row in state.energy.rows} == {(77, True)}
    books.tick(seconds=2)
    assert [one.process.pid for one in books.ledger.sessions.open()] == []


def test_energy_of_a_gpu_is_exported_as_zero_before_its_first_joule() -> None:
    books = LedgerBench()
    assert books.tick().energy.totals == {CARD.uuid: 0}


def test_a_gpu_without_energy_and_power_readings_has_no_total() -> None:
    ledger = Ledger(LedgerSettings())
    state = ledger.post(Snapshot(UNIX, 0.0, SourceInfo("test"), (reading(CARD, values={}),)))
    assert state.energy.totals == {}


STAGES = [
    ("gpuledger.ledger.sessions.Sessions.post"),
    ("gpuledger.ledger.accounts.Accounts.post"),
    ("gpuledger.ledger.accounts.Accounts._post_residents"),
    ("gpuledger.ledger.accounts.Accounts._end_process"),
    ("gpuledger.ledger.device_states.DeviceStates.post"),
    ("gpuledger.ledger.energy.gpu_energy_ledger.apportion"),
]


@pytest.mark.parametrize("stage", STAGES)
def test_a_failed_posting_loses_no_energy(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    books = LedgerBench(zero_hold=0.0)
    a, b = process(CARD, 1, workload=NAMED), process(CARD, 2, workload=NAMED)
    books.tick(a, b, seconds=10)

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError(stage)

    with monkeypatch.context() as broken:
        broken.setattr(stage, fails)
        try:
            books.tick(a)
        except ZeroDivisionError:
            books.second += 1
    state = books.tick(a, seconds=5)
    # The first second is before the first move, the last one has not ended.
    assert state.energy.totals == {CARD.uuid: 14 * WATT * 1000}
    exported = sum(row.millijoules for row in state.energy.owners)
    assert exported == 14 * WATT * 1000


def test_a_user_without_further_owner_data_becomes_the_owner_after_thirty_seconds() -> None:
    """Without a cgroup, its device can still reveal the owner, so the energy waits until then."""
    books = LedgerBench(zero_hold=0.0)
    p = process(CARD, 1, workload=Workload("user", user="bob"), missing="no_cgroup")
    books.tick(p, seconds=20)
    assert books.tick(p).energy.owners == ()
    state = books.tick(p, seconds=15)
    (row,) = [row for row in state.energy.owners if row.labels[1] == "process"]
    assert (row.labels[3], row.labels[7]) == ("user", "bob")

"""What the ledger keeps of each owner on each device: the hard cases, each from snapshots to the row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders import GIB, MIB, process
from gpuledger.model import quantities as q
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import rows
from usage_helpers import (
    ANN,
    CUT,
    DAN,
    HOUR,
    SECOND,
    A,
    B,
    only_row,
    usage_node,
    usage_of,
)


def of(
    owner: Workload, pid: int = 1, sm: float | None = 0.5, memory: int | None = GIB, **more: object
) -> GpuProcess:
    return process(A, pid, workload=owner, sm=sm, memory=memory, **more)  # type: ignore[arg-type]


def test_the_memory_of_an_owner_is_the_sum_of_its_processes_at_one_moment(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    # 3 GiB and then 4 GiB, never both: neither the sum of peaks nor a single process.
    for _ in range(10):
        node.see(of(ANN, 1, memory=2 * GIB), of(ANN, 2, memory=GIB))
    for _ in range(10):
        node.see(of(ANN, 1, memory=GIB), of(ANN, 2, memory=3 * GIB))
    row = only_row(node.file)
    assert row.memory_peak == 4 * GIB
    # The first tick begins the presence, so 9 s with 3 GiB and 10 s with 4 GiB.
    assert row.memory_mean == pytest.approx((9 * 3 + 10 * 4) * GIB / 19)
    assert row.memory_size == 80 * GIB


def test_time_counts_once_however_many_processes_an_owner_has(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(11):
        node.see(*(of(ANN, pid, sm=0.1) for pid in range(8)))
    row = only_row(node.file)
    assert (row.seen, row.resident, row.active) == (10 * SECOND, 10 * SECOND, 10 * SECOND)
    assert (row.sm_mean, row.sm_peak) == (pytest.approx(0.8), pytest.approx(0.8))


def test_a_reused_pid_continues_its_owner_and_nobody_else(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(6):
        node.see(of(ANN, 5, ticks=1, memory=GIB))
    for _ in range(6):
        node.see(of(DAN, 5, ticks=2, memory=2 * GIB))
    found = usage_of(node.file)
    assert (found["7", A.uuid].memory_peak, found["8", A.uuid].memory_peak) == (GIB, 2 * GIB)
    assert (found["7", A.uuid].seen, found["8", A.uuid].seen) == (5 * SECOND, 5 * SECOND)


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart_continues_the_row(tmp_path: Path, kill: bool) -> None:
    node = usage_node(tmp_path)
    for _ in range(11):
        node.see(of(ANN, sm=0.2, memory=3 * GIB))
    later = node.again(tmp_path, seconds=20.0, kill=kill)
    for _ in range(11):
        later.see(of(ANN, sm=0.4))
    row = only_row(later.file)
    # 20 s were not seen, and are in no mean.
    assert (row.begins, row.ends) == (HOUR + 2, HOUR + 43)
    assert (row.seen, row.sm_known) == (20 * SECOND, 20 * SECOND)
    assert (row.sm_mean, row.memory_peak) == (pytest.approx(0.3), 3 * GIB)
    (bar,) = row.bars
    assert (bar.ratio, bar.seen) == (pytest.approx(0.3), 20 * SECOND)


def test_a_kill_loses_at_most_ten_seconds_and_no_arrival(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(36):
        node.see(of(ANN, sm=0.5))
    for _ in range(5):
        node.see(of(ANN, 1), of(DAN, 2))
    later = node.again(tmp_path, seconds=100.0, kill=True)
    found = usage_of(later.file)
    # Stored as the second owner came, and not since then.
    assert (found["7", A.uuid].seen, found["8", A.uuid].seen) == (36 * SECOND, 0)
    assert found["7", A.uuid].sm_mean == pytest.approx(0.5)


def test_cells_are_stored_every_ten_seconds_and_as_owners_come_and_go(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    ends = []
    for second in range(40):
        node.see(*([of(ANN)] if 3 <= second < 25 else []))
        ends += [round(end - HOUR) for (end,) in rows(node.store.file, "SELECT ends FROM usage_quarters")]
    # Second n ends at n + 2. The owner came with the fourth, and was gone with the twenty-sixth.
    assert sorted(set(ends)) == [5, 15, 25, 26]


@pytest.mark.parametrize("gap", ["hang", "pause"])
def test_a_gap_is_not_seen(tmp_path: Path, gap: str) -> None:
    node = usage_node(tmp_path)
    for _ in range(11):
        node.see(of(ANN, sm=1.0))
    if gap == "pause":
        node.ledger.interrupt()
    node.see(of(ANN, sm=1.0), seconds=30.0 if gap == "pause" else 100.0)
    for _ in range(10):
        node.see(of(ANN, sm=0.0), busy=0.0)
    row = only_row(node.file)
    assert (row.seen, row.active, row.inactive) == (20 * SECOND, 10 * SECOND, 10 * SECOND)
    assert row.sm_mean == pytest.approx(0.5)
    assert len(rows(node.file, "SELECT 1 FROM usage_periods")) == 1


def test_a_missed_tick_counts_as_much_as_it_lasted(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    node.see(of(ANN, sm=0.0), busy=0.0)
    node.see(of(ANN, sm=0.0), busy=0.0)
    node.see(of(ANN, sm=0.5), seconds=9.0)
    row = only_row(node.file)
    assert (row.seen, row.sm_mean) == (10 * SECOND, pytest.approx(0.45))


def test_an_unreadable_list_is_not_seen_and_ends_nothing(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for second in range(31):
        node.see(of(ANN), unread=[A] if 10 <= second < 20 else [])
    row = only_row(node.file)
    assert (row.seen, row.resident) == (20 * SECOND, 20 * SECOND)
    assert len(rows(node.file, "SELECT 1 FROM usage_periods")) == 1


def test_what_the_driver_does_not_report_is_absent(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(5):
        node.see(of(ANN, sm=None, memory=None), busy=None)
    row = only_row(node.file)
    assert (row.sm_mean, row.sm_peak, row.memory_mean, row.memory_peak) == (None, None, None, None)
    assert (row.active, row.inactive) == (None, None)
    assert (row.pcie_tx, row.pcie_rx, row.nvlink_tx, row.nvlink_rx) == (None, None, None, None)
    assert (row.throttled, row.throttle_known) == ({}, 0)
    assert row.bars == ()


def test_one_process_without_a_value_leaves_the_sum_unknown(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(6):
        node.see(of(ANN, 1, memory=GIB), of(ANN, 2, memory=None, sm=None), of(DAN, 3, memory=GIB, sm=0.25))
    found = usage_of(node.file)
    assert (found["7", A.uuid].memory_peak, found["7", A.uuid].sm_mean) == (None, None)
    assert (found["8", A.uuid].memory_peak, found["8", A.uuid].sm_mean) == (GIB, pytest.approx(0.25))


def test_an_allocation_without_a_process_used_nothing(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(31):
        node.see(has=[Allocation(A, ANN)], busy=0.0)
    row = only_row(node.file)
    assert (row.seen, row.allocated, row.resident) == (30 * SECOND, 30 * SECOND, 0)
    assert (row.active, row.inactive, row.starts, row.sm_mean) == (0, 30 * SECOND, 0, None)
    assert row.memory_peak is None
    assert [bar.ratio for bar in row.bars] == [0.0]


def test_the_time_to_the_first_activity_counts_from_the_allocation(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for second in range(41):
        runs = [of(ANN, sm=0.5 if second > 30 else 0.0)] if second > 20 else []
        node.see(*runs, has=[Allocation(A, ANN)], busy=0.5 if second > 30 else 0.0)
    row = only_row(node.file)
    assert (row.starts, row.waited) == (1, 30 * SECOND)
    assert row.active == 10 * SECOND


@pytest.mark.parametrize("unseen", ["before the start", "a gap"])
def test_a_wait_that_was_not_seen_is_unknown(tmp_path: Path, unseen: str) -> None:
    node = usage_node(tmp_path)
    if unseen == "before the start":
        node = node.again(tmp_path)
    for _ in range(10):
        node.see(has=[Allocation(A, ANN)], busy=0.0)
    if unseen == "a gap":
        node.see(has=[Allocation(A, ANN)], busy=0.0, seconds=100.0)
    for _ in range(10):
        node.see(of(ANN), has=[Allocation(A, ANN)])
    row = only_row(node.file)
    assert (row.starts, row.waited) == (0, 0)


def test_instances_have_their_own_rows(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    owners = (ANN, DAN)
    for _ in range(11):
        runs = [process(part, 9, workload=one, sm=None) for part, one in zip(CUT, owners, strict=True)]
        node.see(*runs, devices=(B, *CUT), busy=0.25)
    found = usage_of(node.file)
    assert found.keys() == {("7", CUT[0].uuid), ("8", CUT[1].uuid)}
    row = found["7", CUT[0].uuid]
    assert (row.sm_mean, row.shared) == (None, 0)
    # Nobody else was on the instance, so its activity is the owner's.
    assert (row.active, [bar.ratio for bar in row.bars]) == (10 * SECOND, [pytest.approx(0.25)])


def test_a_name_that_arrives_late_names_the_whole_row(tmp_path: Path) -> None:
    unnamed = Workload("pod", pod_uid="uid-1", container_id="c1", missing="pod_name", found_by="cgroup")
    named = replace(unnamed, namespace="ml", pod="train-0", container="main", missing="")
    node = usage_node(tmp_path)
    for second in range(21):
        node.see(of(unnamed if second < 10 else named))
    found = usage_of(node.file, "pod")
    assert found.keys() == {("train-0", A.uuid)}
    assert found["train-0", A.uuid].seen == 20 * SECOND
    assert rows(node.file, "SELECT count(*) FROM usage_periods") == [(1,)]


def test_a_process_without_a_name_counts_to_the_pod_that_has_the_device(tmp_path: Path) -> None:
    pod = Workload("pod", "ml", "train-0", "main", pod_uid="uid-1", found_by="kubelet")
    unnamed = Workload("pod", pod_uid="uid-1", container_id="c1", missing="pod_name", found_by="cgroup")
    named = replace(unnamed, namespace="ml", pod="train-0", container="main", missing="")
    node = usage_node(tmp_path)
    for second in range(21):
        node.see(of(unnamed if second < 10 else named), has=[Allocation(A, pod)])
    row = only_row(node.file, "pod")
    assert (row.key, row.seen, row.allocated) == (("ml", "train-0"), 20 * SECOND, 20 * SECOND)
    assert row.sm_known == 20 * SECOND


def test_an_unknown_process_that_gets_an_owner_is_that_owner_from_the_beginning(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for second in range(21):
        node.see(of(ANN if second >= 5 else Workload(missing="exited")))
    row = only_row(node.file)
    assert (row.key, row.seen) == (("", "7"), 20 * SECOND)


def test_owners_at_the_same_time_are_shared(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for second in range(21):
        node.see(of(ANN, 1), *([of(DAN, 2)] if second >= 10 else []))
    found = usage_of(node.file)
    assert (found["7", A.uuid].seen, found["7", A.uuid].shared) == (20 * SECOND, 11 * SECOND)
    assert (found["8", A.uuid].seen, found["8", A.uuid].shared) == (10 * SECOND, 10 * SECOND)


def test_programs_one_after_the_other_are_one_presence(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    user = Workload("user", user="ann", found_by="uid")
    for second in range(100):
        node.see(*([of(user, second // 10)] if second % 10 < 8 else []), busy=0.0)
    for _ in range(70):
        node.see(busy=0.0)
    assert rows(node.file, "SELECT count(*), sum(over) FROM usage_periods") == [(1, 1)]
    # Two of ten seconds are without a process, and one more until the next one is seen.
    assert only_row(node.file, "user").seen == 70 * SECOND


@pytest.mark.parametrize("step", [-7200.0, -5.0, 5.0, 86_400.0])
def test_a_step_of_the_wall_clock_loses_nothing(tmp_path: Path, step: float) -> None:
    node = usage_node(tmp_path)
    for second in range(41):
        node.see(of(ANN, sm=0.5), step=step if second == 10 else -step if second == 20 else 0.0)
    row = only_row(node.file)
    assert (row.seen, row.sm_known, row.sm_mean) == (40 * SECOND, 40 * SECOND, pytest.approx(0.5))
    assert sum(seen for (seen,) in rows(node.file, "SELECT seen FROM usage_quarters")) == 40 * SECOND


def test_a_row_goes_on_over_quarters_and_hours(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(121):
        node.see(of(ANN, sm=0.5), seconds=60.0)
    row = only_row(node.file)
    assert row.seen == 7200 * SECOND
    quarters = int(HOUR // 900)
    parts = [
        only_row(node.file, since=first, until=first + 1).seen for first in range(quarters, quarters + 8)
    ]
    assert sum(parts) == row.seen - only_row(node.file, since=quarters + 8).seen
    assert len(row.bars) <= 60
    assert all(bar.ratio == pytest.approx(0.5) for bar in row.bars)


def test_moved_bytes_are_those_of_the_gpu_while_the_owner_was_there(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    sent = 0
    for second in range(31):
        sent += MIB
        # The driver was loaded again: the counter restarts.
        counter = sent if second < 25 else sent - 25 * MIB
        node.see(*([of(ANN)] if second >= 10 else []), values={q.PCIE_TX: counter})
    row = only_row(node.file)
    assert (row.pcie_tx, row.pcie_rx, row.nvlink_tx) == (19 * MIB, None, None)


def test_throttled_time_counts_to_those_who_were_there(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    slowed = 0
    for second in range(61):
        slowed += 500_000_000
        present = [of(ANN, 1)] if second < 40 else [of(ANN, 1), of(DAN, 2)]
        node.see(*present, values={q.POWER_VIOLATION: slowed, q.THERMAL_VIOLATION: 0})
    found = usage_of(node.file)
    ann, dan = found["7", A.uuid], found["8", A.uuid]
    assert set(ann.throttled) == {"power"}
    assert ann.throttled["power"] == pytest.approx(ann.throttle_known / 2, abs=SECOND)
    assert 40 * SECOND <= ann.throttle_known <= 60 * SECOND
    assert dan.throttled["power"] == pytest.approx(dan.throttle_known / 2, abs=SECOND)
    assert 0 < dan.throttle_known <= 20 * SECOND


def test_a_service_shares_nothing_and_is_active_for_nobody(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    root = Workload("user", user="root", found_by="uid")
    xorg = process(A, 99, name="Xorg", types="G", workload=root, memory=100 * MIB, sm=0.01)
    for _ in range(11):
        node.see(of(ANN), xorg)
    assert only_row(node.file, is_own=lambda party: party.owner.job == "7").shared == 0


def test_only_permitted_owners_count(tmp_path: Path) -> None:
    node = usage_node(tmp_path)
    for _ in range(11):
        node.see(of(ANN, 1), of(DAN, 2))
    found = usage_of(node.file, "slurm_account", is_own=lambda party: party.owner.user == "dan")
    assert [row.sm_mean for row in found.values()] == [pytest.approx(0.5)]

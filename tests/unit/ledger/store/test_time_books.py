"""The time books of a ledger file: what is stored, and what goes on over restarts, kills and damage."""

from __future__ import annotations

import gc
from dataclasses import replace
from fractions import Fraction
from math import inf
from pathlib import Path

import pytest

from builders import FakeClock, process
from gpuledger.ledger.journal import TimeOwner
from gpuledger.ledger.report.gpu_time import NONE_RUNNING
from gpuledger.ledger.store.schema import TIME_FROM
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import rows
from time_books import HOUR, PARTS, PODS, A, B, Node, again, assert_time_is_conserved, names, sums, time_of


def test_time_is_stored_by_part_account_and_owner(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    has = [Allocation(PARTS[0], PODS[0], fraction=Fraction(1))]
    runs = [process(PARTS[1], 7, workload=PODS[1], name="python3")]
    for _ in range(34):
        node.look(A, parts=PARTS, has=has, runs=runs)
    node.store.close()
    found = {
        (one.part.instance, one.part.profile, one.part.share, one.account, one.party and one.party.command): (
            one.allocation,
            one.residence,
        )
        for one in time_of(node.file)
    }
    # 33 seconds: 60, 32 and 40 of 132 multiprocessors.
    assert found == {
        ("1_0", "4g.40gb", Fraction(60, 132), "owner", NONE_RUNNING): (15_000_000, 0),
        ("1_0", "4g.40gb", Fraction(60, 132), "idle", None): (0, 15_000_000),
        ("2_0", "2g.20gb", Fraction(32, 132), "owner", "python3"): (8_000_000, 8_000_000),
        ("", "", Fraction(40, 132), "uncut", None): (10_000_000, 10_000_000),
    }
    assert {one.part.model for one in time_of(node.file)} == {"NVIDIA H100"}
    assert_time_is_conserved(node.file)


def test_an_open_span_is_one_row_that_each_tick_extends(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR - 10))
    for second in range(30):
        node.look(A, runs=[process(A, 1, workload=PODS[0])])
        assert sum(one for one, _ in sums(node.file).values()) == second * 1_000_000
    # The first tick was 9 seconds before the hour.
    quarter = int(HOUR) // 900
    assert rows(node.file, "SELECT quarter, microseconds, split FROM time_spans") == [
        (quarter - 1, 9_000_000, 1),
        (quarter, 20_000_000, 1),
    ]
    assert rows(node.file, f"SELECT value FROM meta WHERE key = '{TIME_FROM}'") == [(quarter - 1,)]
    node.store.close()


@pytest.mark.parametrize("killed", [False, True])
def test_series_go_on_over_a_restart(tmp_path: Path, killed: bool) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    runs = [process(A, 1, workload=PODS[0]), process(A, 2, workload=PODS[1])]
    for _ in range(21):
        before = node.look(A, runs=runs)
    if killed:
        node.kill()
    node = again(node, tmp_path)
    after = [node.look(A, runs=runs) for _ in range(11)][-1]
    assert before.time.watched == {A.uuid: 20_000_000}
    assert after.time.watched == {A.uuid: 30_000_000}
    shown = {row.labels[5]: row.microseconds for row in after.time.rows}
    assert shown == {"train-0": 15_000_000, "train-1": 15_000_000}
    assert assert_time_is_conserved(node.file) == {A.uuid: 30_000_000}


def test_series_begin_at_zero_if_their_last_values_are_unknown(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for _ in range(21):
        node.look(A)
    node.kill()
    node = again(node, tmp_path, boot="boot-2")
    assert node.look(A).time.watched == {A.uuid: 0}
    assert [node.look(A) for _ in range(10)][-1].time.watched == {A.uuid: 10_000_000}
    node = again(node, tmp_path, boot="boot-2")
    assert [node.look(A) for _ in range(6)][-1].time.watched == {A.uuid: 15_000_000}
    assert assert_time_is_conserved(node.file) == {A.uuid: 35_000_000}


def test_ended_series_are_closed_over_a_restart(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for _ in range(11):
        node.look(A, runs=[process(A, 1, workload=PODS[0])])
    for _ in range(20):
        node.look(A)
    node = again(node, tmp_path)
    state = node.look(A)
    # It ended at some time in the last second.
    assert state.time.closed == {A.uuid: 10_500_000}
    assert rows(node.file, "SELECT count(*) FROM series WHERE book = 'time'") == [(1,)]
    node.store.close()


def test_pending_time_is_posted_after_a_kill(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    has = [Allocation(A, PODS[0], fraction=Fraction(1, 2))]
    node.look(A, has=has)
    for _ in range(10):
        state = node.look(A, has=has, unlisted=True)
    assert state.time.pending == {A.uuid: 10_000_000}
    assert sums(node.file) == {}
    node.kill()
    node = again(node, tmp_path)
    node.look(A, has=has)
    assert names(node.file) == {f"train-0 {NONE_RUNNING}": (5, 0), "unobserved": (5, 10)}
    assert assert_time_is_conserved(node.file) == {A.uuid: 10_000_000}


def test_pending_time_that_was_decided_is_not_posted_again_by_a_restart(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    runs = [process(A, 1, workload=PODS[0], name="python3")]
    for unlisted in (False, False, True, True, True, False):
        node.look(A, runs=runs, unlisted=unlisted)
    node.kill()
    node = again(node, tmp_path)
    node.look(A, runs=runs)
    assert names(node.file) == {"train-0 python3": (5, 5)}
    assert assert_time_is_conserved(node.file) == {A.uuid: 5_000_000}


def test_a_loss_goes_on_after_a_restart_until_a_good_reading(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    node.look(A, B)
    for _ in range(10):
        node.look(A, B, lost=True)
    node.kill()
    node = again(node, tmp_path)
    for _ in range(6):
        # Lost Gpus can vanish from the list of Devices.
        node.look(B)
    for _ in range(6):
        node.look(A, B)
    # 9 seconds until the kill; of A 5 and 1 more afterwards.
    down = dict.fromkeys((A.uuid, B.uuid), 0)
    for one in time_of(node.file):
        down[one.part.gpu] += one.allocation if one.account == "down" else 0
    assert down == {A.uuid: 15_000_000, B.uuid: 9_000_000}
    assert_time_is_conserved(node.file)


def test_a_gpu_that_is_absent_at_a_restart_continues_when_it_is_back(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for _ in range(11):
        node.look(A, B)
    node = again(node, tmp_path)
    for _ in range(11):
        state = node.look(A)
    assert state.time.watched == {A.uuid: 20_000_000}
    for _ in range(11):
        state = node.look(A, B)
    assert state.time.watched == {A.uuid: 31_000_000, B.uuid: 20_000_000}
    assert {row.labels[0]: row.microseconds for row in state.time.rows} == state.time.watched
    assert assert_time_is_conserved(node.file) == {A.uuid: 31_000_000, B.uuid: 20_000_000}


@pytest.mark.parametrize("damage", ["removed", "scribbled"])
def test_a_replaced_file_has_the_later_time_and_knows_what_is_lost(tmp_path: Path, damage: str) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    has = [Allocation(A, PODS[0], fraction=Fraction(1, 4))]
    for _ in range(11):
        node.look(A, has=has)
    if damage == "removed":
        node.file.unlink()
    else:
        assert node.store._connection is not None
        node.store._connection.execute("DROP TABLE time_spans")
    for _ in range(10):
        state = node.look(A, has=has)
    assert state.time.watched == {A.uuid: 20_000_000}
    posted = assert_time_is_conserved(node.file)
    assert posted == {A.uuid: 20_000_000}
    assert 5 <= names(node.file)["idle"][0] <= 20
    node = again(node, tmp_path)
    assert node.look(A, has=has).time.watched == {A.uuid: 20_000_000}
    node.store.close()


def test_of_owners_that_come_and_go_only_those_that_have_a_gpu_are_remembered(tmp_path: Path) -> None:
    """A node needs no more memory after a month of pods; a new file has the owners of open spans."""
    node = Node(tmp_path, clock=FakeClock(HOUR))
    holds = Allocation(B, PODS[0], fraction=Fraction(1))
    for number in range(400):
        goes = replace(PODS[1], pod=f"goes-{number}", pod_uid=f"goes-{number}")
        node.look(A, B, has=[holds, Allocation(A, goes, fraction=Fraction(1))])
    gc.collect()
    remembered = {one.owner.pod for one in gc.get_objects() if isinstance(one, TimeOwner)}
    assert PODS[0].pod in remembered
    assert 200 <= len(remembered & {f"goes-{number}" for number in range(400)}) <= 260
    node.file.unlink()
    for _ in range(10):
        node.look(A, B, has=[holds])
    assert names(node.file)[f"{PODS[0].pod} {NONE_RUNNING}"][0] >= 5
    node.store.close()


def test_a_new_file_has_the_owners_of_all_that_the_old_one_could_not_store(tmp_path: Path) -> None:
    """A full disk for an hour of many short pods, until the file is removed to make space."""
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for _ in range(5):
        node.look(A, has=[Allocation(A, PODS[0], fraction=Fraction(1))])
    node.store._retry_at = inf
    node.look(A, has=[Allocation(A, PODS[0], fraction=Fraction(1))])
    for number in range(300):
        goes = replace(PODS[1], pod=f"goes-{number}", pod_uid=f"goes-{number}")
        node.look(A, has=[Allocation(A, goes, fraction=Fraction(1))])
    node.store._retry_at = 0.0
    node.file.unlink()
    node.look(A)
    node.look(A)
    assert len(names(node.file)) == 302
    assert names(node.file)[f"{PODS[0].pod} {NONE_RUNNING}"] == (6, 0)
    node.store.close()


def test_names_that_arrive_later_are_posted_backwards(tmp_path: Path) -> None:
    unnamed = Workload("pod", pod_uid="uid-0", container_id="c0", missing="pod name")
    node = Node(tmp_path, clock=FakeClock(HOUR))
    has = [Allocation(A, unnamed, fraction=Fraction(1, 2))]
    for _ in range(6):
        node.look(A, has=has)
    node = again(node, tmp_path, seconds=1.0)
    for _ in range(5):
        node.look(A, has=has)
    has = [Allocation(A, PODS[0], fraction=Fraction(1, 2))]
    for _ in range(2):
        node.look(A, has=has)
    assert names(node.file) == {f"train-0 {NONE_RUNNING}": (5, 0), "idle": (5, 11)}


def test_the_names_of_a_process_are_those_of_its_session(tmp_path: Path) -> None:
    unnamed = Workload("pod", pod_uid="uid-0", container_id="c0", missing="pod name")
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for owner in (unnamed, PODS[0]):
        for _ in range(5):
            node.look(A, runs=[process(A, 1, workload=owner, name="python3")])
    assert names(node.file) == {"train-0 python3": (9, 9)}


def test_the_state_of_a_watched_gpu_is_written_once(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    node.look(A, B)
    node.look(A, B)
    written: list[str] = []
    connection = node.store._connection
    assert connection is not None
    connection.set_trace_callback(written.append)
    for _ in range(5):
        node.look(A, B)
    assert any("time_spans" in one for one in written)
    assert not [one for one in written if "INSERT INTO gpu_times" in one]
    node.look(A, B, seconds=100.0)
    assert len([one for one in written if "INSERT INTO gpu_times" in one]) == 2


def test_a_split_is_stored_as_short_text_and_once_if_it_is_the_same_by_both_bases(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for _ in range(3):
        node.look(A, runs=[process(A, 1, workload=PODS[0])])
    assert rows(node.file, "SELECT * FROM time_splits") == [(1, '[[[1,"owner",1,1,null,0]],null]')]
    assert rows(node.file, "SELECT * FROM gpu_parts") == [(1, '["GPU-0","NVIDIA H100","","",1,1]')]

"""Folded time: conserved by each basis, in the full hours of a time zone, with the same owners."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, tzinfo
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import FakeClock, process
from fuzzing import costly
from gpuledger.ledger import time_persistence
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.schema import EARLIER_ZONES, ZONE
from gpuledger.model.snapshot import CollectorRun
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import rows
from report_helpers import folded
from time_books import (
    HOUR,
    KOLKATA,
    LORD_HOWE,
    PARTS,
    PODS,
    A,
    B,
    Node,
    again,
    assert_time_is_conserved,
    by_cell,
    names,
    sums,
    time_of,
)


def test_the_time_of_an_absent_gpu_is_folded_and_deleted_with_the_others(tmp_path: Path) -> None:
    limits = RetentionLimits(7200.0, 86_400.0)
    node = Node(tmp_path, clock=FakeClock(HOUR), limits=limits)
    for _ in range(11):
        node.look(A, B)
    node = again(node, tmp_path, limits=limits)
    for _ in range(500):
        node.look(A, seconds=55.0)
    assert rows(node.file, f"SELECT span FROM gpu_times WHERE uuid = '{B.uuid}'") == [(None,)]
    assert assert_time_is_conserved(node.file) == {A.uuid: 27_455_000_000, B.uuid: 10_000_000}
    for _ in range(2000):
        node.look(A, seconds=55.0)
    node = again(node, tmp_path, limits=limits)
    state = node.look(A, B)
    assert state.time.watched[B.uuid] == 10_000_000
    assert rows(node.file, f"SELECT forgotten FROM gpu_times WHERE uuid = '{B.uuid}'") == [(10_000_000,)]
    assert_time_is_conserved(node.file)


def test_the_series_of_an_absent_gpu_can_end_after_its_time_is_folded(tmp_path: Path) -> None:
    limits, settings = RetentionLimits(detail=7200.0), LedgerSettings(zero_hold=2.0, retention=10_800.0)
    node = Node(tmp_path, clock=FakeClock(HOUR), limits=limits, settings=settings)
    for _ in range(20):
        node.look(A, B, seconds=10, runs=[process(A, 7, workload=PODS[0])])
    for _ in range(240):
        state = node.look(B, seconds=60)
    assert state.time.closed[A.uuid] == state.time.watched[A.uuid] == 190_000_000
    assert not rows(node.file, f"SELECT 1 FROM time_spans WHERE gpu = '{A.uuid}'")
    later = again(node, tmp_path, limits=limits, settings=settings)
    for _ in range(3):
        state = later.look(A, B)
    assert state.time.watched[A.uuid] == 192_000_000


def test_spans_that_the_size_limit_leaves_keep_their_owner(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR), limits=RetentionLimits(max_size=1))
    for _ in range(11):
        node.look(A, seconds=50, runs=[process(A, 7, workload=PODS[0])])
    # Its hour is folded when it ended more than two hours ago as a whole.
    for _ in range(160):
        node.look(A, seconds=50)
    owners = {time.party.owner.pod for time in time_of(node.file) if time.party is not None}
    assert owners == {PODS[0].pod}


def test_more_splits_than_a_reader_remembers_are_folded_in_one_step(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for number in range(300):
        pod = Workload("pod", "ml", f"short-{number}", "main", pod_uid=f"uid-{number}")
        node.look(A, has=[Allocation(A, pod)])
    node.store.close()
    file = folded(node.file, HOUR + 7200, tmp_path / "folded.db")
    assert sums(file) == sums(node.file) == {A.uuid: [299_000_000] * 2}
    assert rows(file, "SELECT * FROM time_owners") == []


def test_owners_of_folded_spans_are_deleted(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR), limits=RetentionLimits(7200.0))
    for number in range(600):
        pod = Workload("pod", "ml", f"train-{number // 10}", pod_uid=f"uid-{number // 10}")
        node.look(A, seconds=55.0, has=[Allocation(A, pod, fraction=Fraction(1, 2))])
    kept = "SELECT count(*) FROM {}"
    for table in ("time_owners", "time_splits", "time_spans"):
        assert 10 < int(str(rows(node.file, kept.format(table))[0][0])) < 40, table
    assert len(names(node.file)) == 61
    assert_time_is_conserved(node.file)


@pytest.mark.parametrize(("zone", "first"), [(UTC, 0), (KOLKATA, 2)])
def test_folded_hours_are_those_of_the_time_zone(tmp_path: Path, zone: tzinfo, first: int) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR), limits=RetentionLimits(zone=zone))
    for _ in range(240):
        node.look(A, seconds=60.0, runs=[process(A, 1, workload=PODS[0])])
    node.store.close()
    copy = folded(node.file, node.clock.now_unix, tmp_path / "folded.db", zone)
    quarter = int(HOUR) // 900
    (begun, *more) = [hour for (hour,) in rows(copy, "SELECT DISTINCT quarter FROM hour_gpu_time")]
    assert begun == quarter
    assert [int(str(hour)) - quarter for hour in more] == list(range(first or 4, 16, 4))[: len(more)]
    for table in ("hours", "hour_times"):
        found = [hour for (hour,) in rows(copy, f"SELECT DISTINCT quarter FROM {table} ORDER BY quarter")]
        assert found in ([], [begun, *more]), table
    with closing(History(copy)) as history:
        assert history.cuts_around(quarter + 7) == (
            (quarter + 6, quarter + 10) if first else (quarter + 4, quarter + 8)
        )
    assert rows(copy, f"SELECT value FROM meta WHERE key = '{ZONE}'")[0][0] == str(getattr(zone, "key", zone))
    assert assert_time_is_conserved(copy) == assert_time_is_conserved(node.file)


def test_a_changed_time_zone_counts_from_the_change(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR), limits=RetentionLimits(zone=UTC))
    for _ in range(100):
        node.look(A, seconds=60.0)
    node.store.limits = RetentionLimits(zone=KOLKATA)
    for _ in range(200):
        node.look(A, seconds=60.0)
    node.store.close()
    quarter, change = int(HOUR) // 900, int(HOUR + 101 * 60) // 900
    (earlier,) = rows(node.file, f"SELECT value FROM meta WHERE key = '{EARLIER_ZONES}'")
    assert json.loads(str(earlier[0])) == [[change, "UTC"]]
    copy = folded(node.file, node.clock.now_unix, tmp_path / "folded.db", KOLKATA)
    found = rows(copy, "SELECT DISTINCT quarter FROM hour_gpu_time")
    hours = [int(str(hour)) - quarter for (hour,) in found]
    assert hours == [0, 4, 6, 10, 14]
    assert assert_time_is_conserved(copy) == assert_time_is_conserved(node.file)


event = st.tuples(
    st.sampled_from(["look", "look", "look", "look", "restart", "kill", "reboot", "zone", "remove"]),
    st.sets(st.integers(0, 2)),
    st.sets(st.integers(0, 2)),
    st.sampled_from(["", "", "", "unlisted", "lost", "mig", "absent"]),
    st.sampled_from([0.25, 1.0, 7.3, 59.9, 60.0, 70.0, 1000.0, 4000.0]),
)


@given(st.lists(event, min_size=5, max_size=40), st.sampled_from([UTC, KOLKATA, LORD_HOWE]))
@costly
def test_time_is_conserved_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory,
    life: list[tuple[str, set[int], set[int], str, float]],
    zone: tzinfo,
) -> None:
    folder = tmp_path_factory.mktemp("time")
    node, boot = Node(folder, clock=FakeClock(HOUR - 100), limits=RetentionLimits(zone=zone)), 1
    for kind, resident, holders, state, seconds in life:
        match kind:
            case "kill" | "restart" | "reboot":
                if kind == "kill":
                    node.kill()
                boot += kind == "reboot"
                node = again(node, folder, boot=f"boot-{boot}", limits=node.store.limits)
            case "zone":
                node.store.limits = RetentionLimits(zone=zone if node.store.limits.zone is UTC else UTC)
            case "remove":
                node.file.unlink(missing_ok=True)
        parts = PARTS if state == "mig" else ()
        device = parts[0] if parts else A
        runs = [process(device, 1 + one, workload=PODS[one]) for one in sorted(resident)]
        has = [
            Allocation(device, PODS[one], fraction=Fraction(1, 3) if one else None) for one in sorted(holders)
        ]
        node.look(
            *((B,) if state == "absent" else (A, B)),
            seconds=seconds,
            runs=[] if state == "absent" else runs,
            has=has,
            unlisted=state == "unlisted",
            lost=state == "lost",
            parts=parts,
        )
    node.store.close()
    posted = assert_time_is_conserved(node.file)
    with closing(History(node.file)) as history:
        sights = history.gpu_sights
        for quarter, gpu, begins, ends, *_ in history.time_spans(0, 2**40):
            assert sights[gpu][0] <= begins <= ends <= sights[gpu][1]
            assert begins // 900_000_000 == quarter
        # Also Gpus that were read, but never watched.
        assert sights.keys() >= sums(node.file).keys()
    middle = node.clock.now_unix - sum(one[-1] for one in life) / 2
    for name, before in (("partly", middle), ("wholly", node.clock.now_unix + 1e6)):
        copy = folded(node.file, before, folder / f"{name}.db", node.store.limits.zone)
        assert assert_time_is_conserved(copy) == posted
        cuts = {2**40}
        with closing(History(copy)) as history:
            assert history.gpu_sights == sights
            for quarter in range(int(HOUR) // 900 - 2, history.end_quarter + 3):
                first, last = history.cuts_around(quarter)
                assert first <= quarter <= last
                cuts.add(first)
        assert by_cell(copy, sorted(cuts)) == by_cell(node.file, sorted(cuts))


@pytest.mark.parametrize(("most", "owners"), [(10, 2), (10, 50)], ids=["same splits", "many splits"])
def test_spans_that_cannot_be_stored_for_long_are_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, owners: int
) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    node.look(A, B)
    write = node.store.save
    monkeypatch.setattr(time_persistence, "_MAX_SPANS", most)
    monkeypatch.setattr(node.store, "save", lambda _: (CollectorRun("store", 0.0, "full"), False))
    longest = 0
    for second in range(200):
        pod = Workload("pod", "ml", f"train-{second % owners}", pod_uid=f"uid-{second % owners}")
        node.look(A, B, has=[Allocation(A, pod, fraction=Fraction(1, 2))])
        assert node.ledger._persistence is not None
        longest = max(longest, len(node.ledger._persistence.journal.time_spans))
    monkeypatch.setattr(node.store, "save", write)
    node.look(A, B)
    assert longest <= most + 2
    assert assert_time_is_conserved(node.file) == {A.uuid: 201_000_000, B.uuid: 201_000_000}
    assert ("unobserved" in names(node.file)) == (owners == 50)
    node.store.close()


def test_a_folded_hour_that_began_within_it_ends_at_the_full_hour(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR + 2700))
    for _ in range(60):
        node.look(A, seconds=30)
    node.store.close()
    copy = folded(node.file, HOUR + 3700, tmp_path / "folded.db", node.store.limits.zone)
    full_hour = int(HOUR) // 900 + 4
    with closing(History(copy)) as history:
        assert [history.cuts_around(full_hour + at) for at in (-1, 0, 1)] == [
            (full_hour - 1, full_hour - 1),
            (full_hour, full_hour),
            (full_hour + 1, full_hour + 1),
        ]


def test_an_owner_of_times_after_the_clock_was_set_back_is_kept(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR), limits=RetentionLimits(7200.0))
    for _ in range(30):
        node.look(A, seconds=55.0, has=[Allocation(A, PODS[0], fraction=Fraction(1, 2))])
    # A later split of the same owner, in times that are folded at once.
    node.clock.now_unix -= 20 * 3600
    for number in range(30):
        node.look(A, seconds=55.0, has=[Allocation(A, PODS[0], fraction=Fraction(1, 3 + number))])
    for _ in range(200):
        node.look(A, seconds=55.0)
    # The split of the later times is the first one.
    assert rows(node.file, "SELECT number, split FROM time_owners") == [(1, 1)]

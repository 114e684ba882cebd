"""The stored time books: conserved over restarts, kills, folding and deletion; names arrive later."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, tzinfo
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import FakeClock, gpu, instance, process, reading
from gpuledger.ledger import time_persistence
from gpuledger.ledger.report.gpu_time import NONE_RUNNING, GpuTime
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.schema import EARLIER_ZONES, TIME_FROM, ZONE
from gpuledger.ledger.store.time_sums import gpu_time_sums
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.process import GpuProcess
from gpuledger.model.session import BASES, LedgerState
from gpuledger.model.snapshot import CollectorRun, Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import Run, rows
from report_helpers import folded, report_of

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


def by_cell(file: Path, before: int) -> Counter[tuple[object, ...]]:
    """Amounts before a quarter by everything but the quarter."""
    found: Counter[tuple[object, ...]] = Counter()
    for one in time_of(file, 0, before):
        for basis in BASES:
            key = (basis, one.part, one.account, one.party, one.is_estimate)
            found[key] += one.microseconds(basis)
    return +found


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


def hours_below_the_total(node: Node) -> dict[str, int]:
    report = report_of(node.file)
    return {one.account: one.microseconds for one in report.unbilled if one.microseconds}


def test_a_node_that_is_never_watched_has_all_its_hours_below_the_total(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for number in range(41):
        node.look(A, B, seconds=100.0, runs=[process(A, 1, workload=PODS[0])])
        with closing(History(node.file)) as history:
            assert len(history.gpu_sights) == (2 if number else 0)
    assert hours_below_the_total(node) == {"unwatched": 2 * 4000 * 1_000_000}


@pytest.mark.parametrize("restarts", [False, True])
def test_the_time_after_the_last_watched_reading_is_not_watched(tmp_path: Path, restarts: bool) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for _ in range(3):
        node.look(A, B)
    node.look(A, B, seconds=100.0)
    if restarts:
        node = again(node, tmp_path, seconds=0.0)
    node.look(A, seconds=100.0)
    # Gpu B is gone: it was last read 100 seconds ago.
    assert hours_below_the_total(node) == {"unwatched": 300_000_000}
    with closing(History(node.file)) as history:
        last = {uuid: sight[1] / 1e6 - node.clock.now_unix for uuid, sight in history.gpu_sights.items()}
    assert last == {A.uuid: 0.0, B.uuid: -100.0}


def test_time_that_is_pending_is_not_below_the_total(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    node.look(A, seconds=100.0)
    node.look(A, seconds=100.0)
    node.look(A, seconds=20.0, unlisted=True)
    assert hours_below_the_total(node) == {"unwatched": 100_000_000}
    node.look(A, seconds=20.0)
    assert hours_below_the_total(node) == {"unwatched": 100_000_000}


def test_a_report_ends_with_its_latest_data_if_the_clock_was_set_back(tmp_path: Path) -> None:
    node = Node(tmp_path, clock=FakeClock(HOUR))
    for _ in range(60):
        node.look(A, seconds=30.0)
    latest = node.clock.now_unix
    assert report_of(node.file).period.last == latest
    node.clock.now_unix -= 1500.0
    node = again(node, tmp_path)
    for _ in range(3):
        node.look(A, seconds=30.0)
    with closing(History(node.file)) as history:
        assert history.last < latest - 1000
    report = report_of(node.file)
    assert report.period.last == latest
    assert report.total.gpu_microseconds == (59 + 2) * 30_000_000
    copy = folded(node.file, latest + 1e6, tmp_path / "folded.db")
    assert report_of(copy).period.last >= latest - 1800


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


event = st.tuples(
    st.sampled_from(["look", "look", "look", "look", "restart", "kill", "reboot", "zone", "remove"]),
    st.sets(st.integers(0, 2)),
    st.sets(st.integers(0, 2)),
    st.sampled_from(["", "", "", "unlisted", "lost", "mig", "absent"]),
    st.sampled_from([0.25, 1.0, 7.3, 59.9, 60.0, 70.0, 1000.0, 4000.0]),
)


@given(st.lists(event, min_size=5, max_size=40), st.sampled_from([UTC, KOLKATA, LORD_HOWE]))
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
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
        assert by_cell(copy, 2**40) == by_cell(node.file, 2**40)
        with closing(History(copy)) as history:
            assert history.gpu_sights == sights
            for quarter in range(int(HOUR) // 900 - 2, history.end_quarter + 3):
                first, last = history.cuts_around(quarter)
                assert first <= quarter <= last
                assert by_cell(copy, first) == by_cell(node.file, first)


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

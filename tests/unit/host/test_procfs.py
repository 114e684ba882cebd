"""Facts about pids from a procfs, on directory trees."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from gpuledger.host.name_service import NameService
from gpuledger.host.procfs import ProcFs
from gpuledger.host.users import PasswdUsers
from running import PATIENCE
from unit.host.counted_procfs import BOOT_ID, BTIME, POD_CGROUP, UNIX, CountedReads, Tree, procfs_of


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def reads(tree: Tree) -> CountedReads:
    return CountedReads(tree.root)


@pytest.fixture
def host(tree: Tree, reads: CountedReads) -> ProcFs:
    return procfs_of(tree, reads)


def test_a_process_has_start_executable_comm_user_and_cgroup(tree: Tree, host: ProcFs) -> None:
    tree.process(42, ticks=5025)
    facts = host.identify([42], UNIX)[42]
    assert (facts.start.boot_id, facts.start.ticks, facts.start.exact) == (BOOT_ID, 5025, True)
    assert facts.start.unix == BTIME + 50.25
    assert facts.executable == "/usr/bin/python3.11"
    assert facts.comm == "python3"
    assert (facts.uid, facts.user) == (1000, "alice")
    assert facts.cgroup == POD_CGROUP
    assert facts.missing == ""


@pytest.mark.parametrize(
    ("comm", "expected"),
    [
        (b"a b", "a b"),
        (b") (", ") ("),
        (b"x) R 1 2 3 (y", "x) R 1 2 3 (y"),
        (b"()", "()"),
        (b"", ""),
        (b"line\nfeed", "line\nfeed"),
        (b"nul\x01", "nul\\x01"),
        (b"\xff\xfe", "\\xff\\xfe"),
    ],
)
def test_comm_may_contain_any_bytes(tree: Tree, host: ProcFs, comm: bytes, expected: str) -> None:
    tree.process(42, comm=comm, ticks=777)
    facts = host.identify([42], UNIX)[42]
    assert facts.comm == expected
    assert facts.start.ticks == 777


def test_a_deleted_executable_keeps_its_path(tree: Tree, host: ProcFs) -> None:
    tree.process(42, executable="/opt/app/train (deleted)")
    assert host.identify([42], UNIX)[42].executable == "/opt/app/train"


def test_a_uid_without_a_name_is_shown_as_a_number(tree: Tree, host: ProcFs) -> None:
    tree.process(42, uid=100999)
    facts = host.identify([42], UNIX)[42]
    assert (facts.uid, facts.user) == (100999, "100999")


def test_a_known_process_costs_one_read_of_stat_per_tick(
    tree: Tree, host: ProcFs, reads: CountedReads
) -> None:
    tree.process(42)
    tree.process(43)
    first = host.identify([42, 43], UNIX)
    reads.seen.clear()
    for tick in range(1, 200):
        again = host.identify([42, 43], UNIX + tick)
        assert again[42] is first[42]
    assert reads.seen == {"42/stat": 199, "43/stat": 199}


def test_a_second_reader_of_the_same_procfs_forgets_nothing_of_the_first(
    tree: Tree, host: ProcFs, reads: CountedReads
) -> None:
    tree.process(100)
    tree.process(200)
    other = host.separate()
    first = host.identify([100], UNIX)[100]
    assert other.identify([200], UNIX)[200].start.ticks == 5000
    reads.seen.clear()
    assert host.identify([100], UNIX + 1)[100] is first
    assert reads.seen == {"100/stat": 1}
    assert other.looks_up_pids == host.looks_up_pids


def test_a_reused_pid_is_another_process(tree: Tree, host: ProcFs) -> None:
    tree.process(42, ticks=5000, comm="old")
    old = host.identify([42], UNIX)[42]
    tree.process(42, ticks=6000, comm="new", uid=0, cgroup="0::/system.slice/x.service\n")
    new = host.identify([42], UNIX + 1)[42]
    assert old.start != new.start
    assert (new.comm, new.user, new.cgroup) == ("new", "root", "0::/system.slice/x.service\n")


def test_a_clock_step_creates_no_new_process(tree: Tree, host: ProcFs) -> None:
    tree.process(42)
    before = host.identify([42], UNIX)[42]
    tree.write("stat", f"cpu 1\nbtime {BTIME + 3600}\n")
    after = host.identify([42], UNIX + 3600)[42]
    assert after.start == before.start
    assert after.start.unix == before.start.unix


def test_a_process_first_seen_after_a_clock_step_has_a_start_of_the_new_clock(
    tree: Tree, host: ProcFs
) -> None:
    tree.process(42, ticks=0)
    host.identify([42], UNIX)
    tree.write("stat", f"cpu 1\nbtime {BTIME + 3600}\n")
    tree.process(43, ticks=0)
    assert host.identify([43], UNIX + 3600)[43].start.unix == BTIME + 3600


def test_the_boot_time_is_not_read_for_each_new_process(
    tree: Tree, host: ProcFs, reads: CountedReads
) -> None:
    for pid in range(100, 130):
        tree.process(pid, ticks=pid)
        host.identify([pid], UNIX + (pid - 100))
    assert reads.seen["stat"] == 1
    assert reads.seen["sys/kernel/random/boot_id"] == 1


def test_without_a_boot_time_the_start_is_the_tick_and_the_identity_is_exact(
    tree: Tree, host: ProcFs, reads: CountedReads
) -> None:
    reads.failing["stat"] = errno.EACCES
    tree.process(42, ticks=5000)
    start = host.identify([42], UNIX)[42].start
    assert (start.ticks, start.unix) == (5000, UNIX)
    assert host.identify([42], UNIX + 9)[42].start.unix == UNIX


def test_a_pid_that_is_not_requested_is_forgotten(tree: Tree, host: ProcFs) -> None:
    first = host.identify([42], UNIX)[42]
    host.identify([], UNIX + 1)
    again = host.identify([42], UNIX + 2)[42]
    assert first.start != again.start
    assert again.start.unix == UNIX + 2


def test_a_process_has_the_name_of_its_user_as_soon_as_it_is_known(tree: Tree, host: ProcFs) -> None:
    tree.process(42, ticks=5025, uid=812345)
    tree.process(43, ticks=5026, uid=0)
    first = host.identify([42, 43], UNIX)
    assert first[42].user == "812345"
    with (tree.root / "passwd").open("a") as file:
        file.write("lena:x:812345:1::/:/bin/sh\n")
    assert host.identify([42, 43], UNIX + 1)[42] is first[42], "the file is not read at each tick"
    later = host.identify([42, 43], UNIX + 11)
    assert later[42] == replace(first[42], user="lena")
    assert later[43] is first[43]
    (tree.root / "passwd").write_text("renamed:x:812345:1::/:/bin/sh\n")
    assert host.identify([42], UNIX + 100)[42].user == "lena", "a running process keeps its name"


def test_a_name_that_the_name_service_finds_is_that_of_the_next_tick(tree: Tree) -> None:
    names: dict[int, str] = {}
    found = Event()

    def look_up(uid: int) -> str:
        found.wait(PATIENCE)
        return names.get(uid, "")

    users = PasswdUsers("/dev/null", name_service=(service := NameService(look_up, patience=0.0)))
    host = ProcFs(tree.root, users=users, pids="trust")
    tree.process(42, ticks=5025, uid=812345)
    assert host.identify([42], UNIX)[42].user == "812345"
    names[812345] = "lena"
    found.set()
    with service._answered:
        assert service._answered.wait_for(lambda: service.changes == 1, PATIENCE)
    assert host.identify([42], UNIX + 1)[42].user == "lena"


def test_ten_thousand_processes_leave_only_the_last_tick_in_memory(tree: Tree, reads: CountedReads) -> None:
    ticks = iter(range(1, 100_000))
    root_depth = str(tree.root).count("/") + 1
    reads_by_path: Counter[str] = Counter()

    def read(path: str) -> bytes:
        reads_by_path[path] += 1
        if path.endswith("/stat") and path.count("/") > root_depth:
            return b"1 (x) S" + b" 0" * 18 + b" %d 0\n" % next(ticks)
        return b"kthreadd"

    host = ProcFs(tree.root, users=PasswdUsers("/nowhere"), read=read, link=reads.link)
    for batch in range(0, 10_000, 100):
        host.identify(range(batch, batch + 100), UNIX + batch)
    host.identify(range(100), UNIX + 10_000)
    cgroup_reads = [reads_by_path[f"{tree.root}/{pid}/cgroup"] for pid in range(200)]
    assert cgroup_reads == [2] * 100 + [1] * 100, "those of the first tick were forgotten"


def test_pids_are_not_looked_up_where_host_pids_are_not_visible(
    tmp_path: Path,
) -> None:
    tree = Tree(tmp_path, host_pids=False)
    reads = CountedReads(tmp_path)
    tree.process(42)
    host = procfs_of(tree, reads)
    facts = host.identify([42], UNIX)[42]
    assert not host.host_pids
    assert facts.missing == "pid_namespace"
    assert (facts.start.boot_id, facts.start.ticks, facts.start.seen) == ("", None, UNIX)
    assert (facts.comm, facts.user, facts.cgroup) == ("", "", "")
    assert host.identify([42], UNIX + 1)[42] is facts
    assert not any(name.startswith("42/") for name in reads.seen)


def test_trusted_pids_are_looked_up_in_any_namespace(tmp_path: Path) -> None:
    tree = Tree(tmp_path, host_pids=False)
    tree.process(42)
    host = procfs_of(tree, CountedReads(tmp_path), pids="trust")
    assert host.identify([42], UNIX)[42].user == "alice"


@pytest.mark.parametrize(("namespace", "visible"), [("4026531836", True), ("4026532999", False)])
def test_the_own_pid_namespace_decides_if_kernel_threads_are_hidden(
    tmp_path: Path, namespace: str, visible: bool
) -> None:
    tree = Tree(tmp_path)
    (tmp_path / "2/comm").unlink()
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(f"pid:[{namespace}]")
    assert procfs_of(tree, CountedReads(tmp_path)).host_pids is visible


def test_a_process_seen_before_it_moves_gets_its_cgroup_soon(tree: Tree, host: ProcFs) -> None:
    tree.process(42, cgroup="1:cpu:/\n0::/\n")
    before = host.identify([42], UNIX)[42]
    tree.write("42/cgroup", POD_CGROUP)
    after = host.identify([42], UNIX + 1)[42]
    assert after.cgroup == POD_CGROUP
    assert after.start == before.start


def test_a_process_in_the_root_cgroup_is_read_five_times(
    tree: Tree, host: ProcFs, reads: CountedReads
) -> None:
    tree.process(42, cgroup="0::/\n")
    cgroup_reads = []
    for tick in range(1, 300):
        host.identify([42], UNIX + tick)
        cgroup_reads.append(reads.seen["42/cgroup"])
    assert cgroup_reads[0] == 1
    assert [tick + 1 for tick in range(1, 299) if cgroup_reads[tick] > cgroup_reads[tick - 1]] == [
        2,
        4,
        16,
        64,
    ]
    assert reads.seen["42/status"] == 1

"""Processes that end while they are read, and files of a procfs that cannot be read."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger.host.procfs import ProcFs
from unit.host.counted_procfs import POD_CGROUP, UNIX, CountedReads, FailingReads, Tree, procfs_of


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def reads(tree: Tree) -> CountedReads:
    return CountedReads(tree.root)


@pytest.fixture
def host(tree: Tree, reads: CountedReads) -> ProcFs:
    return procfs_of(tree, reads)


def test_a_process_that_exits_between_two_reads_keeps_its_known_facts(
    tree: Tree, host: ProcFs, reads: CountedReads
) -> None:
    tree.process(42)
    for name in ("cgroup", "status", "exe"):
        reads.failing[f"42/{name}"] = errno.ESRCH if name == "cgroup" else errno.ENOENT
    facts = host.identify([42], UNIX)[42]
    assert facts.start.ticks == 5000
    assert facts.comm == "python3"
    assert (facts.executable, facts.uid, facts.user, facts.cgroup) == ("", None, "", "")
    assert facts.missing == "exited"


def test_a_process_listed_after_its_exit_is_the_same_process(tree: Tree, host: ProcFs) -> None:
    tree.process(42)
    alive = host.identify([42], UNIX)[42]
    tree.end(42)
    gone = host.identify([42], UNIX + 1)[42]
    assert gone.start == alive.start
    assert (gone.cgroup, gone.user) == (alive.cgroup, alive.user)
    assert gone.missing == "exited"
    assert host.identify([42], UNIX + 2)[42] is gone


def test_a_transient_error_does_not_change_a_known_process(
    tree: Tree, host: ProcFs, reads: CountedReads
) -> None:
    tree.process(42)
    before = host.identify([42], UNIX)[42]
    reads.failing["42/stat"] = errno.EMFILE
    assert host.identify([42], UNIX + 1)[42] is before


@pytest.mark.parametrize("name", ["exe", "status", "cgroup"])
def test_an_unreadable_file_empties_only_its_own_field(
    tree: Tree, host: ProcFs, reads: CountedReads, name: str
) -> None:
    tree.process(42)
    reads.failing[f"42/{name}"] = errno.EACCES
    facts = host.identify([42], UNIX)[42]
    fields = {"exe": facts.executable, "status": facts.user, "cgroup": facts.cgroup}
    assert fields.pop(name) == ""
    assert all(fields.values())
    assert (facts.start.ticks, facts.missing) == (5000, "")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.EACCES, "permission"),
        (errno.EPERM, "permission"),
        (errno.ENOENT, "not_found"),
        (errno.ESRCH, "not_found"),
        (errno.EMFILE, "unreadable"),
    ],
)
def test_a_pid_without_stat_has_a_reason_and_keeps_its_first_sight(
    tree: Tree, host: ProcFs, reads: CountedReads, error: int, reason: str
) -> None:
    reads.failing["42/stat"] = error
    first = host.identify([42], UNIX)[42]
    assert first.missing == reason
    assert (first.start.boot_id, first.start.ticks, first.start.exact) == ("", None, False)
    assert (first.start.unix, first.start.seen) == (UNIX, UNIX)
    assert host.identify([42], UNIX + 1)[42] is first


@pytest.mark.parametrize("stat", [b"", b"42", b"42 (x", b"42 (x) S 1 2\n", b"42 (x) S" + b" -" * 40])
def test_a_malformed_stat_is_unreadable(tree: Tree, host: ProcFs, stat: bytes) -> None:
    tree.write("42/stat", stat)
    assert host.identify([42], UNIX)[42].missing == "unreadable"


def test_an_exited_process_keeps_the_cgroup_that_it_moved_to(
    tree: Tree, host: ProcFs, reads: CountedReads
) -> None:
    tree.process(42, cgroup="0::/\n")
    host.identify([42], UNIX)
    reads.failing["42/stat"] = errno.ENOENT
    assert host.identify([42], UNIX + 1)[42].cgroup == "0::/\n"
    reads.failing.clear()
    tree.write("42/cgroup", POD_CGROUP)
    host.identify([42], UNIX + 2)
    reads.failing["42/stat"] = errno.ENOENT
    gone = host.identify([42], UNIX + 3)[42]
    assert (gone.cgroup, gone.missing) == (POD_CGROUP, "exited")


def test_an_unreadable_cgroup_is_read_again_soon(tree: Tree, host: ProcFs, reads: CountedReads) -> None:
    tree.process(42)
    reads.failing["42/cgroup"] = errno.EACCES
    assert host.identify([42], UNIX)[42].cgroup == ""
    reads.failing.clear()
    assert host.identify([42], UNIX + 1)[42].cgroup == POD_CGROUP


FAULTS = [errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM]


@pytest.mark.parametrize("fault", FAULTS, ids=[errno.errorcode[fault] for fault in FAULTS])
@pytest.mark.parametrize("whole", [False, True], ids=["one-file", "all-following-reads"])
def test_a_failure_of_any_read_loses_no_known_and_no_other_process(
    tree: Tree, fault: int, whole: bool
) -> None:
    """A process exits between two reads, or descriptors run out; two processes are known, one is new."""
    for number in range(1, 60):
        for pid in (50, 60, 70):
            tree.process(pid, ticks=5000 + pid)
        reads = FailingReads(tree.root, fault, whole)
        host = procfs_of(tree, reads)
        known = host.identify([50, 60], UNIX)
        truth = procfs_of(tree, CountedReads(tree.root)).identify([70], UNIX + 1)[70]
        reads.begin(number)
        during = host.identify([50, 60, 70], UNIX + 1)
        reached = reads.hit
        for pid in (50, 60):
            assert during[pid].start == known[pid].start
            assert replace(during[pid], missing="") == known[pid]
        new = during[70]
        expected = {name for name in ("executable", "comm", "uid", "user", "cgroup") if getattr(new, name)}
        assert all(getattr(new, name) == getattr(truth, name) for name in expected)
        assert new.start == truth.start or (new.start.ticks is None and new.missing)
        reads.end()
        after = host.identify([50, 60, 70], UNIX + 2)
        assert {pid: after[pid] for pid in (50, 60)} == known
        assert after[70].start == truth.start
        host.epoch()
        if not reached:
            break
    assert number > 5 and not reached

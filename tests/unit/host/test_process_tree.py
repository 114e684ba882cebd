"""Processes that are read on request, on a procfs in a folder."""

from __future__ import annotations

import pytest

from gpuledger.host.process_tree import ProcessTree
from procfs_tree import ProcfsTree


@pytest.fixture
def procfs(tmp_path):
    return ProcfsTree(tmp_path)


def names(procfs, pid):
    tree = ProcessTree(str(procfs.root))
    return [process.name for process in tree.ancestors(tree.read(pid))]


def test_a_process_has_its_start_its_parent_and_its_users(procfs):
    procfs.process(40, 30, ticks=77, name="a) (b", uid=1000, effective=0, state="Z")
    process = ProcessTree(str(procfs.root)).read(40)
    assert (process.pid, process.parent, process.ticks, process.name) == (40, 30, 77, "a) (b")
    assert (process.uids, process.uid, process.running) == ({0, 1000}, None, False)


def test_ancestors_end_before_init(procfs):
    procfs.process(1, 0, ticks=1, name="systemd")
    procfs.process(20, 1, ticks=20, name="sshd")
    procfs.process(30, 20, ticks=30, name="bash")
    procfs.process(40, 30, ticks=40)
    assert names(procfs, 40) == ["bash", "sshd"]


def test_the_first_process_of_a_container_is_an_ancestor(procfs):
    procfs.process(1, 0, ticks=1, name="launch.sh")
    procfs.process(40, 1, ticks=40)
    assert names(procfs, 40) == ["launch.sh"]


def test_ancestors_end_at_a_parent_that_is_not_visible(procfs):
    procfs.process(40, 30, ticks=40)
    assert names(procfs, 40) == []


def test_a_parent_that_is_younger_than_its_child_is_another_process(procfs):
    procfs.process(40, 30, ticks=40)
    procfs.process(30, 1, ticks=41)
    assert names(procfs, 40) == []


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("python\0train.py\0", ["python", "train.py"]),
        ("python\0\0-c\0", ["python", "", "-c"]),
        ("vllm: worker\0\0\0\0", ["vllm: worker"]),
        ("no end", ["no end"]),
        ("", []),
        ("\0\0", []),
    ],
)
def test_arguments_are_separated_by_zero_bytes(procfs, written, arguments):
    procfs.write("7/cmdline", written)
    assert ProcessTree(str(procfs.root)).arguments(7) == arguments


def test_a_very_long_command_line_is_cut(procfs):
    procfs.write("7/cmdline", "x" * 3_000_000)
    assert len(ProcessTree(str(procfs.root)).arguments(7)[0]) == 16 * 1024


def test_what_is_hidden_is_absent(procfs):
    tree = ProcessTree(str(procfs.root))
    assert (tree.read(9), tree.cgroup(9), tree.arguments(9)) == (None, "", [])
    procfs.write("9/stat", "9 (x) S")
    assert tree.read(9) is None


@pytest.mark.parametrize(
    ("uid", "uid_map", "root"),
    [
        (0, "0 0 4294967295\n", True),
        (1000, "0 0 4294967295\n", False),
        (0, "0 1000 1\n1 100000 65536\n", False),
    ],
)
def test_root_of_a_user_namespace_is_not_root(tmp_path, uid, uid_map, root):
    assert ProcessTree(str(ProcfsTree(tmp_path, uid_map).root)).is_root(uid) is root


@pytest.mark.parametrize(
    ("info", "pid"), [("pos:\t0\nPid:\t40\nNSpid:\t40\n", 40), ("Pid:\t-1\n", None), ("", None)]
)
def test_the_pid_of_a_descriptor_is_that_of_this_procfs(procfs, info, pid):
    procfs.write("self/fdinfo/5", f"flags:\t02\n{info}")
    assert ProcessTree(str(procfs.root)).pid_of(5) == pid

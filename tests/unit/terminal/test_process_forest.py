"""The tree of GPU processes, on a procfs in a folder."""

from __future__ import annotations

import pytest

from gpuledger.host.process_tree import ProcessTree
from gpuledger.terminal.layout import ASCII, UNICODE, place_columns, plain_text, row_line
from gpuledger.terminal.local_processes import LocalProcesses
from gpuledger.terminal.process_forest import build_forest, forest_columns
from procfs_tree import ProcfsTree
from unit.terminal.support import NOW, process, rows


@pytest.fixture
def procfs(tmp_path):
    made = ProcfsTree(tmp_path)
    made.process(1, 0, ticks=1, name="systemd")
    made.process(10, 1, ticks=10, name="bash")
    made.process(20, 10, ticks=20, name="torchrun")
    made.process(30, 20, ticks=30)
    made.process(31, 20, ticks=31)
    made.process(32, 10, ticks=32)
    return made


def forest(procfs, *pids, glyphs=UNICODE):
    starts = {30: 30, 31: 31, 32: 32, 20: 20}
    local = LocalProcesses(
        ProcessTree(str(procfs.root)), lambda pid, _: starts.get(pid), lambda _: "ann", uid=1000
    )
    return build_forest(rows(*(process(pid, gpu) for pid, gpu in pids)), local, glyphs)


def drawn(lines):
    return [f"{line.branches}{line.name} {line.pid}" for line in lines]


def test_processes_are_below_the_processes_that_started_them(procfs):
    lines = forest(procfs, (30, "0"), (31, "1"), (32, "2"))
    assert drawn(lines) == [
        "bash 10",
        "├ torchrun 20",
        "│ ├ python 30",
        "│ └ python 31",
        "└ python 32",
    ]
    assert [bool(line.rows) for line in lines] == [False, False, True, True, True]


def test_a_gpu_process_can_be_the_parent_of_another_in_any_order(procfs):
    once = [(line.pid, len(line.rows)) for line in forest(procfs, (30, "0"), (20, "0"))]
    again = [(line.pid, len(line.rows)) for line in forest(procfs, (20, "0"), (30, "0"))]
    assert once == again == [(10, 0), (20, 1), (30, 1)]


def test_a_process_on_two_gpus_is_one_line_with_their_sums(procfs):
    line = forest(procfs, (32, "0"), (32, "1"))[-1]
    placed = place_columns(forest_columns(NOW, lambda row: f"python {row.pid}.py"), [line], 80)
    text = plain_text(row_line(placed, line, UNICODE)).split()
    assert text == ["32", "ann", "0,1", "2.0G", "200", "1m00s", "└", "python", "32.py"]


def test_a_process_that_is_not_visible_has_no_parents(procfs):
    lines = forest(procfs, (30, "0"), (999, "3"))
    assert drawn(lines)[-1] == "python 999"
    assert lines[-1].identity is None


def test_branches_are_ascii_where_the_terminal_is(procfs):
    assert all(
        line.isascii() for line in drawn(forest(procfs, (30, "0"), (31, "1"), (32, "1"), glyphs=ASCII))
    )


def test_a_deep_tree_is_drawn(procfs):
    pids = range(100, 1300)
    for pid in pids:
        procfs.process(pid, pid - 1, ticks=pid)
    local = LocalProcesses(ProcessTree(str(procfs.root)), lambda pid, _: pid, lambda _: "ann", uid=1000)
    lines = build_forest(rows(*(process(pid) for pid in pids)), local, UNICODE)
    assert len(lines) == len(pids)
    assert max(len(line.branches) for line in lines) < 100

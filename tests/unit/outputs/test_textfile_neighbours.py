"""Foreign `.prom` files that contain families of gpuledger are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuledger.outputs.textfile_neighbours import NeighbourFiles

OURS = ("gpu_process_count", "gpu_process_info", "gpu_total_processes")

TEXTS = [
    ('gpu_process_count{gpu="0"} 1\n', ("gpu_process_count",)),
    ("gpu_total_processes 3\n", ("gpu_total_processes",)),
    ("# HELP gpu_process_count Processes.\n", ("gpu_process_count",)),
    ("# TYPE gpu_process_count gauge\n", ("gpu_process_count",)),
    ("#  TYPE\tgpu_process_count gauge\n", ("gpu_process_count",)),
    ('  gpu_process_info {gpu="0"} 1\n', ("gpu_process_info",)),
    ("other 1\ngpu_total_processes 3\ngpu_process_count 1\n", ("gpu_process_count", "gpu_total_processes")),
    ("gpu_process_counts 1\n", ()),
    ("my_gpu_process_count 1\n", ()),
    ('other{name="gpu_process_count"} 1\n', ()),
    ("# gpu_process_count is not exported here\n", ()),
    ("# HELP other is like gpu_process_count\n", ()),
    ("", ()),
]


@pytest.mark.parametrize(("text", "families"), TEXTS)
def test_families_are_found_by_the_names_at_line_starts(
    tmp_path: Path, text: str, families: tuple[str, ...]
) -> None:
    other = tmp_path / "other.prom"
    other.write_text(text)
    why = f"{other} exports {', '.join(families)} too: node_exporter drops one of two equal series"
    found = NeighbourFiles(tmp_path / "gpu_processes.prom", OURS).find_problems()
    assert [problem.why for problem in found] == ([why] if families else [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a 1 1700000000000\n", "has timestamps"),
        ('a{b="c d"} 1 1700000000000\n', "has timestamps"),
        ("b 1\na{} 1e3\t-5 \nc 1\n", "has timestamps"),
        ("a 1", "does not end with a line end"),
        ("a 1\r\n", "has line ends of Windows"),
        ("# TYPE a gauge\r\na 1\n", "has line ends of Windows"),
        ("a 1\n\r\nb 1\n", "has line ends of Windows"),
        ("\ufeffa 1\n", "is not in Prometheus's text format in line 1"),
        ("a 1\nb 1,5\n", "is not in Prometheus's text format in line 2"),
        ("a\n", "is not in Prometheus's text format in line 1"),
        ("a 1 # x\n", "is not in Prometheus's text format in line 1"),
        ("usage: tool\n", "is not in Prometheus's text format in line 1"),
        ("\0\n" * 100, "is not in Prometheus's text format in line 1"),
        ("a 1_0\n", "is not in Prometheus's text format in line 1"),
        ("# TYPE a gauge\na 1\n# TYPE a gauge\na{} 2\n", "has a second TYPE line of a in line 3"),
        ("# HELP a x\n#  HELP\ta y\na 1\n", "has a second HELP line of a in line 2"),
        ("a 1\n# TYPE a gauge\n", "has the TYPE line of a after a sample in line 2"),
        # Types of OpenMetrics, and what only a lenient parser accepts.
        ("# TYPE a info\na 1\n", "is not in Prometheus's text format in line 1"),
        ("a_total 1\n#TYPE a unknown\n", "is not in Prometheus's text format in line 2"),
        ("# TYPE a gauge \na 1\n", "is not in Prometheus's text format in line 1"),
        ("# HELP a C:\\x\na 1\n", "is not in Prometheus's text format in line 1"),
        ("# HELP 1a x\na 1\n", "is not in Prometheus's text format in line 1"),
        ("a 1 \n", "is not in Prometheus's text format in line 1"),
        ("a{b=1} 2\n", "is not in Prometheus's text format in line 1"),
        ("a{b='c'} 2\n", "is not in Prometheus's text format in line 1"),
        ('a{b="c" d="e"} 2\n', "is not in Prometheus's text format in line 1"),
        ('a{b="c",b="d"} 2\n', "is not in Prometheus's text format in line 1"),
        ('a{b="C:\\x"} 2\n', "is not in Prometheus's text format in line 1"),
        ('a{b-c="d"} 2\n', "is not in Prometheus's text format in line 1"),
        ('a{__name__="b"} 2\n', "is not in Prometheus's text format in line 1"),
        ('a 1 # {t="x"} 1\n', "is not in Prometheus's text format in line 1"),
        ('a{b="c"} 1 # {t="x"} 1\n', "is not in Prometheus's text format in line 1"),
        ("a 1e400\n", "is not in Prometheus's text format in line 1"),
        ("a +nan\n", "is not in Prometheus's text format in line 1"),
        ("# HELP\n# HELP a\n#HELP b \\\\x\\n\n# UNIT c \\x\n# EOF\n#\n", ""),
        ("# TYPE\n# TYPE a\n# TYPE b Gauge\na -inf\nb -.5e-3\nc+1\n", ""),
        ('a { b = "c" , d="\\"\\\\}",} 1\n', ""),
        ("a_sum 1\n# HELP a x\n# TYPE a summary\na 1\nb 1\n# HELP b y\n", ""),
        ("<html>\n", "is not in Prometheus's text format in line 1"),
        ("a 1\n", ""),
        ('# HELP a b\r\n# x\r\n  # TYPE a gauge\n\n \t\n a{} +Inf\nb NaN\nc{d="}"}1e3\n', ""),
        ('a{b="} 1 2"} 5\n', ""),
        ("# HELP a 1 2\n# 1 2\n", ""),
        ("", ""),
    ],
)
def test_a_file_that_node_exporter_drops_is_found(tmp_path: Path, text: str, reason: str) -> None:
    other = tmp_path / "other.prom"
    other.write_text(text)
    found = NeighbourFiles(tmp_path / "gpu_processes.prom", OURS).find_problems()
    assert [problem.why.split(": ")[0] for problem in found] == ([f"{other} {reason}"] if reason else [])


def test_the_own_file_and_files_that_node_exporter_ignores_are_skipped(tmp_path: Path) -> None:
    for name in ("gpu_processes.prom", "other.prom.tmp", ".gpu_processes.prom.lock", "other.txt"):
        (tmp_path / name).write_text("gpu_process_count 1\n")
    assert NeighbourFiles(tmp_path / "gpu_processes.prom", OURS).find_problems() == []


def test_a_file_is_reported_once_and_again_after_a_change(tmp_path: Path) -> None:
    other = tmp_path / "other.prom"
    other.write_text("gpu_process_count 1\n")
    neighbours = NeighbourFiles(tmp_path / "gpu_processes.prom", OURS)
    assert len(neighbours.find_problems()) == 1
    assert neighbours.find_problems() == []
    other.write_text("gpu_process_count 1\ngpu_process_info 1\n")
    (problem,) = neighbours.find_problems()
    assert "gpu_process_count, gpu_process_info" in problem.why
    other.unlink()
    assert neighbours.find_problems() == []
    other.write_text("gpu_process_count 1\ngpu_process_info 1\n")
    assert len(neighbours.find_problems()) == 1


def test_unreadable_files_are_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.prom")
    (tmp_path / "directory.prom").mkdir()
    (tmp_path / "gone.prom").symlink_to(tmp_path / "nowhere")
    assert NeighbourFiles(tmp_path / "gpu_processes.prom", OURS).find_problems() == []
    assert NeighbourFiles(tmp_path / "missing" / "gpu_processes.prom", OURS).find_problems() == []


def test_a_file_of_which_a_label_is_not_utf_8_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "other.prom").write_bytes(b'# HELP a \xff\na 1\nb{c="\xff"} 1\n')
    (found,) = NeighbourFiles(tmp_path / "gpu_processes.prom", OURS).find_problems()
    assert "is not in Prometheus's text format in line 3" in found.why

"""Foreign `.prom` files that tell families of ours are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuledger.outputs.textfile import Neighbours

OURS = ("gpu_process_count", "gpu_process_info", "gpu_total_processes")

TEXTS = [
    ('gpu_process_count{gpu="0"} 1\n', ("gpu_process_count",)),
    ("gpu_total_processes 3\n", ("gpu_total_processes",)),
    ("# HELP gpu_process_count Processes.\n", ("gpu_process_count",)),
    ("# TYPE gpu_process_count gauge\n", ("gpu_process_count",)),
    ("#  TYPE\tgpu_process_count gauge\n", ("gpu_process_count",)),
    ('  gpu_process_info {gpu="0"} 1', ("gpu_process_info",)),
    ("other 1\ngpu_total_processes 3\ngpu_process_count 1\n", ("gpu_process_count", "gpu_total_processes")),
    ("gpu_process_counts 1\n", ()),
    ("my_gpu_process_count 1\n", ()),
    ('other{name="gpu_process_count"} 1\n', ()),
    ("# gpu_process_count is not told here\n", ()),
    ("# HELP other is like gpu_process_count\n", ()),
    ("", ()),
]


@pytest.mark.parametrize(("text", "families"), TEXTS)
def test_families_are_known_by_the_names_that_begin_lines(
    tmp_path: Path, text: str, families: tuple[str, ...]
) -> None:
    (tmp_path / "other.prom").write_text(text)
    expected = [(tmp_path / "other.prom", families)] if families else []
    assert Neighbours(tmp_path / "gpu_processes.prom", OURS).clashes() == expected


def test_our_own_file_and_what_node_exporter_does_not_read_are_passed_over(tmp_path: Path) -> None:
    for name in ("gpu_processes.prom", "other.prom.tmp", ".gpu_processes.prom.lock", "other.txt"):
        (tmp_path / name).write_text("gpu_process_count 1\n")
    assert Neighbours(tmp_path / "gpu_processes.prom", OURS).clashes() == []


def test_a_file_is_named_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    other = tmp_path / "other.prom"
    other.write_text("gpu_process_count 1\n")
    neighbours = Neighbours(tmp_path / "gpu_processes.prom", OURS)
    assert len(neighbours.clashes()) == 1
    assert neighbours.clashes() == []
    other.write_text("gpu_process_count 1\ngpu_process_info 1\n")
    assert neighbours.clashes() == [(other, ("gpu_process_count", "gpu_process_info"))]
    other.unlink()
    assert neighbours.clashes() == []
    other.write_text("gpu_process_count 1\ngpu_process_info 1\n")
    assert len(neighbours.clashes()) == 1


def test_what_is_no_readable_file_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.prom")
    (tmp_path / "directory.prom").mkdir()
    (tmp_path / "gone.prom").symlink_to(tmp_path / "nowhere")
    (tmp_path / "binary.prom").write_bytes(b"\xff\x00\n" * 100)
    assert Neighbours(tmp_path / "gpu_processes.prom", OURS).clashes() == []
    assert Neighbours(tmp_path / "missing" / "gpu_processes.prom", OURS).clashes() == []

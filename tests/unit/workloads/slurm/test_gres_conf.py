"""Parsing of gres.conf and hostlists."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.workloads.slurm.gres_conf import (
    GpuNumbering,
    expand_hostlist,
    gpu_numbering,
    node_gres,
    parse_gres_conf,
)


def files(*names: str) -> GpuNumbering:
    return GpuNumbering(files=tuple((f"/dev/nvidia{name}",) for name in names))


@pytest.mark.parametrize(
    ("text", "numbering"),
    [
        ("Name=gpu File=/dev/nvidia[0-3]", files("0", "1", "2", "3")),
        ("NAME=GPU FILE=/dev/nvidia[0-1] # two", files("0", "1")),
        ("Name=gpu Type=a100 File=/dev/nvidia1\nName=gpu Type=t4 File=/dev/nvidia0", files("1", "0")),
        ("Name=gpu File=/dev/nvidia10\nName=gpu File=/dev/nvidia9", files("10", "9")),
        ("Name=gpu File=/dev/nvidia[2,5-6]", files("2", "5", "6")),
        ("Name=gpu \\\n  File=/dev/nvidia0", files("0")),
        ("NodeName=n[01-04] Name=gpu File=/dev/nvidia0\nNodeName=m1 Name=gpu File=/dev/nvidia7", files("0")),
        ("NodeName=m1 Name=gpu File=/dev/nvidia7", GpuNumbering()),
        ("Name=mps Count=100 File=/dev/nvidia0", GpuNumbering()),
        ("Name=gpu Count=4", GpuNumbering()),
        ("AutoDetect=nvml", GpuNumbering(by_driver=True)),
        ("AutoDetect=nvml\nName=gpu File=/dev/nvidia[1,0]", replace(files("0", "1"), by_driver=True)),
        (
            "AutoDetect=nvml\nName=gpu Type=t4 Count=1\nName=gpu File=/dev/nvidia0",
            GpuNumbering(by_driver=True),
        ),
        ("AutoDetect=nvidia", GpuNumbering(by_minor=True)),
        ("AutoDetect=nvidia\nName=gpu File=/dev/nvidia[2,1]", files("1", "2")),
        ("AutoDetect=nvidia\nName=gpu Type=t4 Count=2", GpuNumbering(by_minor=True)),
        ("AutoDetect=off\nName=gpu File=/dev/nvidia0", files("0")),
        ("NodeName=n02 AutoDetect=off Name=gpu File=/dev/nvidia0\nAutoDetect=nvml", files("0")),
        ("NodeName=m1 AutoDetect=nvidia\nName=gpu File=/dev/nvidia0", files("0")),
        (
            "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]",
            GpuNumbering(
                files=(
                    (
                        "/dev/nvidia0",
                        "/dev/nvidia-caps/nvidia-cap21",
                        "/dev/nvidia-caps/nvidia-cap22",
                    ),
                )
            ),
        ),
        ("", GpuNumbering()),
        ("#Name=gpu File=/dev/nvidia0", GpuNumbering()),
    ],
)
def test_gres_conf_defines_the_numbering_of_the_node(text: str, numbering: GpuNumbering) -> None:
    assert gpu_numbering(parse_gres_conf(text), "n02") == numbering


TYPES = """\
Name=gpu Type=P100 File=/dev/nvidia[1-2]
Name=gpu Type=v100 File=/dev/nvidia0
Name=gpu Type=v100 File=/dev/nvidia3
"""


@pytest.mark.parametrize(
    ("slurm", "order"),
    [
        ("NodeName=n0[1-2] Gres=gpu:v100:2,gpu:p100:2", "0312"),
        ("NodeName=n02 Gres=shard:8,gpu:p100:2(S:0),gpu:v100:2", "1203"),
        ("NodeName=n02 Gres=gpu:4", "1203"),
        # It has fewer than gres.conf, or it is not known.
        ("NodeName=n02 Gres=gpu:p100:1,gpu:v100:1", "10"),
        ("NodeName=n01 Gres=gpu:v100:2,gpu:p100:2", "1203"),
        ("NodeName=n02 Gres=gpu:h100:4", "1203"),
        ("", "1203"),
    ],
)
def test_without_detection_the_types_in_slurm_conf_order_the_gpus(slurm: str, order: str) -> None:
    configured = node_gres(parse_gres_conf(slurm), "n02")
    assert gpu_numbering(parse_gres_conf(TYPES), "n02", configured) == files(*order)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[08-10],login", ["gpu08", "gpu09", "gpu10", "login"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("gpu[3-1]", []),
        ("gpu[x]", []),
        ("", []),
    ],
)
def test_hostlists_are_expanded(text: str, names: list[str]) -> None:
    assert expand_hostlist(text) == names


def test_a_huge_range_is_cut() -> None:
    assert len(expand_hostlist("gpu[0-999999999]")) < 10_000


@given(st.text('Name=gpuFile/dv[]0-9,# \\\n"', max_size=60))
def test_any_gres_conf_text_is_parsed(text: str) -> None:
    gpu_numbering(parse_gres_conf(text), "n02")


def test_at_most_eight_bracket_lists_in_a_name_are_expanded() -> None:
    """Bounds the depth: no machine has such names, but a file can nest without limit."""
    assert expand_hostlist("gpu" + "[1]" * 8) == ["gpu11111111"]
    assert expand_hostlist("gpu" + "[1]" * 9) == ["gpu11111111[1]"]
    assert expand_hostlist("gpu" + "[1]" * 2000) == [], "longer than any name"

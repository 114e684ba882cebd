"""Parsing of gres.conf, hostlists and device files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.slurm.gres_conf import GpuNumbering, expand_hostlist, gpu_numbering, parse_gres_conf
from gpuledger.workloads.slurm.job_reader import (
    NO_MIG_CAPABILITIES,
    MigCapabilities,
    parse_mig_capabilities,
    refs_from_device_files,
    refs_from_device_rules,
)


def files(*names: str) -> GpuNumbering:
    return GpuNumbering(files=tuple((f"/dev/nvidia{name}",) for name in names))


@pytest.mark.parametrize(
    ("text", "numbering"),
    [
        ("Name=gpu File=/dev/nvidia[0-3]", files("0", "1", "2", "3")),
        ("NAME=GPU FILE=/dev/nvidia[0-1] # two", files("0", "1")),
        ("Name=gpu Type=a100 File=/dev/nvidia1\nName=gpu Type=t4 File=/dev/nvidia0", files("0", "1")),
        ("Name=gpu File=/dev/nvidia10\nName=gpu File=/dev/nvidia9", files("9", "10")),
        ("Name=gpu File=/dev/nvidia[2,5-6]", files("2", "5", "6")),
        ("Name=gpu \\\n  File=/dev/nvidia0", files("0")),
        ("NodeName=n[01-04] Name=gpu File=/dev/nvidia0\nNodeName=m1 Name=gpu File=/dev/nvidia7", files("0")),
        ("NodeName=m1 Name=gpu File=/dev/nvidia7", GpuNumbering()),
        ("Name=mps Count=100 File=/dev/nvidia0", GpuNumbering()),
        ("Name=gpu Count=4", GpuNumbering()),
        ("AutoDetect=nvml", GpuNumbering(by_driver=True)),
        ("AutoDetect=nvml\nName=gpu Type=a100 File=/dev/nvidia0", GpuNumbering(by_driver=True)),
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


CAPS = parse_mig_capabilities(
    "Character devices:\n  1 mem\n195 nvidia-frontend\n235 nvidia-caps\n\nBlock devices:\n259 blkext\n",
    "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"
    "gpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\n"
    "gpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\n",
)


def refs(*names: str) -> tuple[DeviceRef, ...]:
    return tuple(DeviceRef("mig" if "/" in name else "minor", name) for name in names)


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ("c 195:0 rwm\nc 195:3 rw\nc 195:255 rwm\nc 195:254 rwm\nc 1:3 rwm\n", refs("0", "3")),
        ("c 1:3 rwm\nc 5:* rwm\nb 8:0 r\n", ()),
        ("b *:* m\nc 195:2 rwm\n", refs("2")),
        ("", ()),
        ("a *:* rwm\n", None),
        ("c *:* rwm\n", None),
        ("c 195:* rwm\n", None),
        ("c 195:0 rwm\nc 235:12 r\nc 235:13 r\n", refs("0/1/0")),
        ("c 195:0 rwm\nc 195:1 rwm\nc 235:21 r\nc 235:22 r\n", refs("0/2/0", "1")),
        ("c 195:0 rwm\nc 235:12 r\n", refs("0/1")),
        ("c 195:0 rwm\nc 235:148 r\n", refs("0")),
        ("nonsense\nc 195:1 rwm\n", refs("1")),
    ],
)
def test_device_rules_give_the_allowed_gpus_and_instances_or_none(
    rules: str, found: tuple[DeviceRef, ...] | None
) -> None:
    assert refs_from_device_rules(rules, CAPS) == found


@pytest.mark.parametrize(
    ("names", "caps", "found"),
    [
        (["/dev/nvidia3"], NO_MIG_CAPABILITIES, refs("3")),
        (
            ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"],
            CAPS,
            refs("0/1/0"),
        ),
        (["/dev/dri/card0"], NO_MIG_CAPABILITIES, (DeviceRef("node", "card0"),)),
        (["/dev/nvidia1", "/dev/dri/card0"], NO_MIG_CAPABILITIES, (DeviceRef("minor", "1"),)),
        (["/dev/nvidiactl"], NO_MIG_CAPABILITIES, ()),
        (["/dev/mapper/nvidia1"], NO_MIG_CAPABILITIES, ()),
    ],
)
def test_device_files_give_gpus_and_instances(
    names: list[str], caps: MigCapabilities, found: tuple[DeviceRef, ...]
) -> None:
    assert refs_from_device_files(names, caps) == found


def test_at_most_eight_bracket_lists_in_a_name_are_expanded() -> None:
    """Bounds the depth: no machine has such names, but a file can nest without limit."""
    assert expand_hostlist("gpu" + "[1]" * 8) == ["gpu11111111"]
    assert expand_hostlist("gpu" + "[1]" * 9) == ["gpu11111111[1]"]
    assert expand_hostlist("gpu" + "[1]" * 2000) == [], "longer than any name"

"""What the numbers that Slurm gives GPUs count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.slurm.gres import Numbering, expand, numbering, parse_gres
from gpuledger.workloads.slurm.reader import NO_CAPS, Caps, parse_caps, refs_of_files, refs_of_rules


def files(*names: str) -> Numbering:
    return Numbering(files=tuple((f"/dev/nvidia{name}",) for name in names))


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("Name=gpu File=/dev/nvidia[0-3]", files("0", "1", "2", "3")),
        ("NAME=GPU FILE=/dev/nvidia[0-1] # two", files("0", "1")),
        ("Name=gpu Type=a100 File=/dev/nvidia1\nName=gpu Type=t4 File=/dev/nvidia0", files("0", "1")),
        ("Name=gpu File=/dev/nvidia10\nName=gpu File=/dev/nvidia9", files("9", "10")),
        ("Name=gpu File=/dev/nvidia[2,5-6]", files("2", "5", "6")),
        ("Name=gpu \\\n  File=/dev/nvidia0", files("0")),
        ("NodeName=n[01-04] Name=gpu File=/dev/nvidia0\nNodeName=m1 Name=gpu File=/dev/nvidia7", files("0")),
        ("NodeName=m1 Name=gpu File=/dev/nvidia7", Numbering()),
        ("Name=mps Count=100 File=/dev/nvidia0", Numbering()),
        ("Name=gpu Count=4", Numbering()),
        ("AutoDetect=nvml", Numbering(by_driver=True)),
        ("AutoDetect=nvml\nName=gpu Type=a100 File=/dev/nvidia0", Numbering(by_driver=True)),
        ("AutoDetect=off\nName=gpu File=/dev/nvidia0", files("0")),
        ("NodeName=n02 AutoDetect=off Name=gpu File=/dev/nvidia0\nAutoDetect=nvml", files("0")),
        ("NodeName=m1 AutoDetect=nvidia\nName=gpu File=/dev/nvidia0", files("0")),
        (
            "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]",
            Numbering(
                files=(
                    (
                        "/dev/nvidia0",
                        "/dev/nvidia-caps/nvidia-cap21",
                        "/dev/nvidia-caps/nvidia-cap22",
                    ),
                )
            ),
        ),
        ("", Numbering()),
        ("#Name=gpu File=/dev/nvidia0", Numbering()),
    ],
)
def test_numbers_count_the_drivers_order_or_the_files_of_the_node(text: str, counted: Numbering) -> None:
    assert numbering(parse_gres(text), "n02") == counted


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
def test_lists_of_names_are_written_out(text: str, names: list[str]) -> None:
    assert expand(text) == names


def test_a_range_without_end_is_cut() -> None:
    assert len(expand("gpu[0-999999999]")) < 10_000


@settings(deadline=None, max_examples=200)
@given(st.text('Name=gpuFile/dv[]0-9,# \\\n"', max_size=60))
def test_any_text_is_read(text: str) -> None:
    numbering(parse_gres(text), "n02")


CAPS = parse_caps(
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
def test_the_device_cgroup_allows_gpus_and_instances_or_does_not_tell(
    rules: str, found: tuple[DeviceRef, ...] | None
) -> None:
    assert refs_of_rules(rules, CAPS) == found


@pytest.mark.parametrize(
    ("names", "caps", "found"),
    [
        (["/dev/nvidia3"], NO_CAPS, refs("3")),
        (
            ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"],
            CAPS,
            refs("0/1/0"),
        ),
        (["/dev/dri/card0"], NO_CAPS, ()),
        (["/dev/nvidiactl"], NO_CAPS, ()),
        (["/dev/mapper/nvidia1"], NO_CAPS, ()),
    ],
)
def test_device_files_are_gpus_and_instances(
    names: list[str], caps: Caps, found: tuple[DeviceRef, ...]
) -> None:
    assert refs_of_files(names, caps) == found


def test_beyond_eight_lists_in_one_name_the_rest_stays_as_it_is_written() -> None:
    """No machine has such names, and there is no end to how deep a file may go."""
    assert expand("gpu" + "[1]" * 8) == ["gpu11111111"]
    assert expand("gpu" + "[1]" * 9) == ["gpu11111111[1]"]
    assert expand("gpu" + "[1]" * 2000) == [], "that is longer than any name"

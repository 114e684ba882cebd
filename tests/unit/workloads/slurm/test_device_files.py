"""GPUs and MIG Instances of device files and device cgroups."""

from __future__ import annotations

import pytest

from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.slurm.device_files import (
    NO_MIG_CAPABILITIES,
    MigCapabilities,
    parse_mig_capabilities,
    refs_from_device_files,
    refs_from_device_rules,
)

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

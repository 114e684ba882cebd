"""The GPUs and MIG Instances of device files, and of the device cgroups of jobs. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from gpuledger.workloads.device_index import DeviceRef

# The major number is the same in every driver (NV_MAJOR_DEVICE_NUMBER). Minors 254 and 255 are
# nvidia-modeset and nvidiactl.
_NVIDIA_MAJOR: Final = 195
_FIRST_CONTROL_MINOR: Final = 254
# Render nodes: the files of GPUs of other makers (major number and first minor of DRM).
_DRM_MAJOR: Final = 226
_FIRST_RENDER_MINOR: Final = 128
_RULE: Final = re.compile(r"([abc]) (\*|\d+):(\*|\d+) [rwm]+", re.ASCII)
_GPU_FILE: Final = re.compile(r"/dev/nvidia(\d{1,3})", re.ASCII)
_DRI_FILE: Final = re.compile(r"/dev/dri/((?:renderD|card)\d{1,4})", re.ASCII)
_CAP_FILE: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,6})", re.ASCII)
_CAPS_MAJOR: Final = re.compile(r"^\s*(\d+) nvidia-caps$", re.MULTILINE | re.ASCII)
# /proc/driver/nvidia-caps/mig-minors: `gpu1/gi3/access 111` and `gpu1/gi3/ci0/access 112`; gpu1 is a minor.
_MIG_MINOR: Final = re.compile(r"^gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True)
class MigCapabilities:
    """The capability device files of MIG instances: their major number, and the `minor/gi` or `minor/gi/ci`
    of each minor number.
    """

    major: int | None = None
    instances: dict[int, str] = field(default_factory=dict)


NO_MIG_CAPABILITIES = MigCapabilities()


def parse_mig_capabilities(devices: str, mig_minors: str) -> MigCapabilities:
    """Parse the texts of /proc/devices and /proc/driver/nvidia-caps/mig-minors."""
    major = _CAPS_MAJOR.search(devices)
    instances = {
        int(match[4]): "/".join(filter(None, match.group(1, 2, 3)))
        for match in _MIG_MINOR.finditer(mig_minors)
    }
    return MigCapabilities(int(major[1]) if major else None, instances)


def refs_from_device_rules(
    rules: str, caps: MigCapabilities = NO_MIG_CAPABILITIES
) -> tuple[DeviceRef, ...] | None:
    """GPUs that `devices.list` of cgroup v1 allows; None if it allows all devices or all GPUs."""
    minors: list[int] = []
    cap_minors: list[int] = []
    nodes: list[DeviceRef] = []
    for line in rules.splitlines():
        rule = _RULE.fullmatch(line.strip())
        if not rule or rule[1] == "b":
            continue
        if rule[2] == "*" or (rule[2] == str(_NVIDIA_MAJOR) and rule[3] == "*"):
            return None
        if rule[2] == str(_NVIDIA_MAJOR) and int(rule[3]) < _FIRST_CONTROL_MINOR:
            minors.append(int(rule[3]))
        elif rule[2] == str(_DRM_MAJOR) and rule[3] != "*":
            if int(rule[3]) >= _FIRST_RENDER_MINOR:
                nodes.append(DeviceRef("node", f"renderD{rule[3]}"))
        elif rule[2] == str(caps.major) and rule[3] != "*":
            cap_minors.append(int(rule[3]))
    return (*_refs(minors, cap_minors, caps), *dict.fromkeys(nodes))


def minor_of_file(*files: str) -> int | None:
    """The minor number of an NVIDIA GPU by its only device file; None for any other files."""
    match = _GPU_FILE.fullmatch(files[0]) if len(files) == 1 else None
    return int(match[1]) if match else None


def refs_from_device_files(
    files: Iterable[str], caps: MigCapabilities = NO_MIG_CAPABILITIES
) -> tuple[DeviceRef, ...]:
    """The GPU or MIG Instance of the device files of one gres.conf entry; empty if there is none."""
    names = tuple(files)
    minors = [int(match[1]) for name in names if (match := _GPU_FILE.fullmatch(name))]
    cap_minors = [int(match[1]) for name in names if (match := _CAP_FILE.fullmatch(name))]
    if found := _refs(minors, cap_minors, caps):
        return found
    # A GPU of another maker can have two files here; they are the same device.
    nodes = [DeviceRef("node", match[1]) for name in names if (match := _DRI_FILE.fullmatch(name))]
    return tuple(nodes[:1])


def _refs(minors: Collection[int], cap_minors: Iterable[int], caps: MigCapabilities) -> tuple[DeviceRef, ...]:
    instances = [caps.instances[minor] for minor in sorted(set(cap_minors)) if minor in caps.instances]
    # The GPU instance and its compute instance each have a file; keep the more specific one.
    deepest = [
        position for position in instances if not any(other.startswith(f"{position}/") for other in instances)
    ]
    found: list[DeviceRef] = []
    for minor in sorted(set(minors)):
        inside = [DeviceRef("mig", position) for position in deepest if position.split("/")[0] == str(minor)]
        found += inside or [DeviceRef("minor", str(minor))]
    return tuple(found)

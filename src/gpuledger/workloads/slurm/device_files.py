"""From device files and device numbers of the kernel to GPUs and MIG instances."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from gpuledger.workloads.device_index import DeviceRef

# The same in every driver (NV_MAJOR_DEVICE_NUMBER); 254 and 255 are nvidia-modeset and nvidiactl.
_NVIDIA_MAJOR: Final = 195
_FIRST_OF_NO_GPU: Final = 254
_RULE: Final = re.compile(r"([abc]) (\*|\d+):(\*|\d+) [rwm]+", re.ASCII)
_GPU_FILE: Final = re.compile(r"/dev/nvidia(\d{1,3})", re.ASCII)
_CAP_FILE: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,6})", re.ASCII)
_CAPS_MAJOR: Final = re.compile(r"^\s*(\d+) nvidia-caps$", re.MULTILINE | re.ASCII)
# /proc/driver/nvidia-caps/mig-minors: `gpu1/gi3/access 111` and `gpu1/gi3/ci0/access 112`, gpu by minor.
_MIG_MINOR: Final = re.compile(r"^gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Caps:
    """How MIG instances are guarded on this machine: the major number of their device files, and which
    `minor/gi` or `minor/gi/ci` each minor number is.
    """

    major: int | None = None
    places: dict[int, str] = field(default_factory=dict)


NO_CAPS = Caps()


def parse_caps(devices: str, mig_minors: str) -> Caps:
    """Caps by the texts of /proc/devices and /proc/driver/nvidia-caps/mig-minors."""
    major = _CAPS_MAJOR.search(devices)
    places = {
        int(match[4]): "/".join(filter(None, match.group(1, 2, 3)))
        for match in _MIG_MINOR.finditer(mig_minors)
    }
    return Caps(int(major[1]) if major else None, places)


def refs_of_rules(rules: str, caps: Caps = NO_CAPS) -> tuple[DeviceRef, ...] | None:
    """GPUs that `devices.list` of cgroup v1 allows; None where it does not tell them from one another."""
    minors: list[int] = []
    opened: list[int] = []
    for line in rules.splitlines():
        rule = _RULE.fullmatch(line.strip())
        if not rule or rule[1] == "b":
            continue
        if rule[2] == "*" or (rule[2] == str(_NVIDIA_MAJOR) and rule[3] == "*"):
            return None
        if rule[2] == str(_NVIDIA_MAJOR) and int(rule[3]) < _FIRST_OF_NO_GPU:
            minors.append(int(rule[3]))
        elif rule[2] == str(caps.major) and rule[3] != "*":
            opened.append(int(rule[3]))
    return _refs(minors, opened, caps)


def refs_of_files(files: Iterable[str], caps: Caps = NO_CAPS) -> tuple[DeviceRef, ...]:
    """The GPU, or Instance, that device files of one entry of gres.conf are; none if they are no such."""
    names = tuple(files)
    minors = [int(match[1]) for name in names if (match := _GPU_FILE.fullmatch(name))]
    opened = [int(match[1]) for name in names if (match := _CAP_FILE.fullmatch(name))]
    return _refs(minors, opened, caps)


def _refs(minors: Collection[int], opened: Iterable[int], caps: Caps) -> tuple[DeviceRef, ...]:
    places = [caps.places[minor] for minor in sorted(set(opened)) if minor in caps.places]
    # Both the GPU instance and the compute instance in it have a file: the deeper one says more.
    deepest = [place for place in places if not any(other.startswith(f"{place}/") for other in places)]
    found: list[DeviceRef] = []
    for minor in sorted(set(minors)):
        inside = [DeviceRef("mig", place) for place in deepest if place.split("/")[0] == str(minor)]
        found += inside or [DeviceRef("minor", str(minor))]
    return tuple(found)

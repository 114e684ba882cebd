"""The NVIDIA GPUs on the PCI bus, independent of the driver."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final

from gpuledger.host.files import ReadFile, read_whole

_NVIDIA: Final = b"0x10de"
_DISPLAY: Final = b"0x03"
_DRIVER: Final = "nvidia"
_NODE: Final = re.compile(r"nvidia\d+")


class PciBus:
    """NVIDIA GPUs from sysfs (`/sys/bus/pci/devices`), and whether this process may use all of them.

    Virtual functions and GPUs bound to another driver (passed to a virtual machine by vfio-pci) are omitted.
    The devices are read again only when one was added or removed.
    """

    def __init__(
        self,
        sysfs: str = "/sys",
        dev: str = "/dev",
        *,
        read: ReadFile = read_whole,
        usable: Callable[[str], bool] = lambda path: os.access(path, os.R_OK | os.W_OK),
    ) -> None:
        self._devices = f"{sysfs.rstrip('/')}/bus/pci/devices"
        self._dev = dev.rstrip("/")
        self._read = read
        self._usable = usable
        self._seen: frozenset[str] = frozenset()
        self._display: tuple[str, ...] = ()

    def gpus(self) -> tuple[str, ...]:
        """PCI bus ids as nvidia-smi prints them, `00000000:3B:00.0`; none where sysfs is not readable."""
        names = frozenset(_list(self._devices))
        if names != self._seen:
            self._seen = names
            folders = ((name, f"{self._devices}/{name}") for name in names)
            found = (name for name, folder in folders if is_nvidia_gpu(folder, self._read))
            self._display = tuple(sorted(found))
        drivers = {name: driver_of(f"{self._devices}/{name}") for name in self._display}
        return tuple(_as_nvml(name) for name, driver in drivers.items() if driver in ("", _DRIVER))

    def all_usable(self) -> bool:
        """Whether there are as many `/dev/nvidiaN` as GPUs, and this process may use all of them.

        In a container or Slurm job with some of the GPUs, device nodes are missing or the device cgroup
        denies access, which access(2) reports; the driver then rightly counts fewer GPUs.
        """
        nodes = [name for name in _list(self._dev) if _NODE.fullmatch(name)]
        return len(nodes) >= len(self.gpus()) and all(self._usable(f"{self._dev}/{name}") for name in nodes)


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  (avoids a Path object per device and tick)
    except OSError:
        return []


def is_nvidia_gpu(folder: str, read: ReadFile = read_whole) -> bool:
    """Whether a device in sysfs is an NVIDIA GPU and not a virtual function (used by a virtual machine)."""
    try:
        vendor, kind = read(f"{folder}/vendor"), read(f"{folder}/class")
    except OSError:
        return False
    return vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY) and not _target(f"{folder}/physfn")


def driver_of(folder: str) -> str:
    """The kernel driver to which a device in sysfs is bound; empty without one."""
    return _target(f"{folder}/driver").rpartition("/")[2]


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  (avoids a Path object per device and tick)
    except OSError:
        return ""


def _as_nvml(name: str) -> str:
    domain, _, rest = name.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper()

"""The NVIDIA GPUs on the PCI bus, independent of the driver, and whether the machine has other GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from typing import Final

from gpuledger.host.files import ReadFile, read_or_none, read_whole

_NVIDIA: Final = b"0x10de"
_DISPLAY: Final = b"0x03"
_DRIVER: Final = "nvidia"
# 255 stands for an unknown width.
_MOST_LANES: Final = 32
# PCIe generation by speed in GT/s.
_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_NODE: Final = re.compile(r"nvidia\d+")
_CARD: Final = re.compile(r"card\d+")
_DRM_DRIVERS: Final = (b"DRIVER=amdgpu\n", b"DRIVER=radeon\n", b"DRIVER=i915\n", b"DRIVER=xe\n")
# Intel's integrated GPUs are always at this address.
_INTEGRATED: Final = b"PCI_SLOT_NAME=0000:00:02.0\n"
_AMD: Final = b"0x1002"
# Display controllers, and processing accelerators: MI300 is one.
_GPU_CLASSES: Final = (b"0x03", b"0x12")
_MINOR: Final = re.compile(rb"^Device Minor:\s*(\d+)", re.MULTILINE)


class PciBus:
    """NVIDIA GPUs from sysfs (`/sys/bus/pci/devices`), and which of them this process may use.

    Virtual functions are omitted. Devices are read again only when one was added or removed, but their
    drivers in each call.
    """

    def __init__(
        self,
        sysfs: str = "/sys",
        dev: str = "/dev",
        procfs: str = "/proc",
        *,
        read: ReadFile = read_whole,
        usable: Callable[[str], bool] = lambda path: os.access(path, os.R_OK | os.W_OK),
    ) -> None:
        self.sysfs, self.procfs = sysfs.rstrip("/"), procfs.rstrip("/")
        self._devices = f"{self.sysfs}/bus/pci/devices"
        self._dev = dev.rstrip("/")
        self._information = f"{procfs.rstrip('/')}/driver/nvidia/gpus"
        self._read = read
        self._usable = usable
        self._seen: frozenset[str] = frozenset()
        self._display: tuple[str, ...] = ()

    @property
    def nvidia_count(self) -> int:
        """How many NVIDIA GPUs there are, with or without a driver."""
        return len(self._names())

    def has_drm_gpus(self) -> bool:
        """Whether there are AMD or Intel GPUs to monitor.

        Beside an NVIDIA GPU an integrated one of Intel does not count: it usually only shows the image.
        """
        beside_nvidia = bool(self._names())
        for name in _list(f"{self.sysfs}/class/drm"):
            if _CARD.fullmatch(name):
                event = read_or_none(f"{self.sysfs}/class/drm/{name}/device/uevent", self._read) or b""
                is_extra = beside_nvidia and _INTEGRATED in event
                if not is_extra and any(driver in event for driver in _DRM_DRIVERS):
                    return True
        if beside_nvidia:
            return False
        # Without its driver it is no DRM device yet.
        return any(self._is_amd(f"{self._devices}/{name}") for name in _list(self._devices))

    def _is_amd(self, folder: str) -> bool:
        try:
            vendor, kind = self._read(f"{folder}/vendor"), self._read(f"{folder}/class")
        except OSError:
            return False
        return vendor.strip() == _AMD and kind.startswith(_GPU_CLASSES)

    def gpus(self) -> tuple[str, ...]:
        """PCI bus ids of the GPUs that NVIDIA's driver has, as nvidia-smi prints them, `00000000:3B:00.0`.

        None where sysfs is not readable.
        """
        return self._bound_to(_DRIVER)

    def without_driver(self) -> tuple[str, ...]:
        """PCI bus ids of the GPUs to which no kernel driver is bound."""
        return self._bound_to("")

    def _bound_to(self, driver: str) -> tuple[str, ...]:
        return tuple(
            _as_nvml(name) for name in self._names() if driver_of(f"{self._devices}/{name}") == driver
        )

    def _names(self) -> tuple[str, ...]:
        names = frozenset(_list(self._devices))
        if names != self._seen:
            self._seen = names
            folders = ((name, f"{self._devices}/{name}") for name in names)
            found = (name for name, folder in folders if is_nvidia_gpu(folder, self._read))
            self._display = tuple(sorted(found))
        return self._display

    def usable(self, addresses: Collection[str]) -> tuple[str, ...]:
        """Those of these GPUs that this process may use.

        In a container or Slurm job with some of the GPUs, device nodes are missing or the device cgroup
        denies access, which access(2) reports; the driver then rightly counts fewer GPUs. A GPU without
        a minor number in procfs is usable only if all are.
        """
        names = [name for name in self._names() if _as_nvml(name) in addresses]
        minors = {name: gpu_minor(f"{self._information}/{name}", self._read) for name in names}
        everything = self.all_usable() if None in minors.values() else False
        return tuple(
            _as_nvml(name)
            for name, minor in minors.items()
            if (everything if minor is None else self._usable(f"{self._dev}/nvidia{minor}"))
        )

    def slot_width(self, address: str) -> int | None:
        """The lanes of the port to which the GPU at this PCI bus id is connected; None if unknown."""
        try:
            lanes = int(self._of_slot(address, "max_link_width"))
        except (OSError, ValueError):
            return None
        return lanes if 0 < lanes <= _MOST_LANES else None

    def slot_generation(self, address: str) -> int | None:
        """The highest PCIe generation of that port; None if unknown."""
        try:
            # "32.0 GT/s PCIe", older kernels "8 GT/s".
            speed = float(self._of_slot(address, "max_link_speed").split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return _GENERATIONS.get(speed)

    def _of_slot(self, address: str, file: str) -> bytes:
        """Reads a file of the port. Raises OSError and ValueError."""
        domain, _, rest = address.lower().partition(":")
        # The entry is a link into the tree of devices, where the port is the parent.
        return self._read(f"{self._devices}/{int(domain, 16):04x}:{rest}/../{file}")

    def all_usable(self) -> bool:
        """Whether there are as many `/dev/nvidiaN` as GPUs, and this process may use all of them."""
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


def gpu_minor(folder: str, read: ReadFile = read_whole) -> int | None:
    """The N of /dev/nvidiaN, from the driver's folder of a GPU in procfs; None if it has none."""
    try:
        match = _MINOR.search(read(f"{folder}/information"))
    except OSError:
        return None
    return int(match[1]) if match else None


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  (avoids a Path object per device and tick)
    except OSError:
        return ""


def _as_nvml(name: str) -> str:
    domain, _, rest = name.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper()

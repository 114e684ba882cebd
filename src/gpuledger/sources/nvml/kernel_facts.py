"""Read what procfs, sysfs and /dev report about NVIDIA GPUs, without calling the driver."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuledger.host.pci import driver_of, gpu_minor, is_nvidia_gpu
from gpuledger.model.text import clean_name, decode_utf8

# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 ...".
_VERSION = re.compile(r"\s(\d{3,}\.\d+(?:\.\d+)?)\s")
_NODE = re.compile(r"nvidia(\d+)")


@dataclass(frozen=True, slots=True)
class PciGpu:
    """An NVIDIA display device on the PCI bus.

    `driver` is the kernel driver bound to it, empty if none. `minor` is the N of /dev/nvidiaN, known only
    while the NVIDIA driver has the device. `power` is the `runtime_status` of runtime power management.
    """

    address: str
    driver: str = ""
    minor: int | None = None
    power: str = ""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts from the kernel. `pci` is None if the bus cannot be read; `version` is empty without a driver.

    `nodes` pairs each existing NVIDIA device node with whether this process may read and write it; `minors`
    are those of GPUs. `wsl` means that the driver runs in Windows, `tegra` that the GPU is integrated.
    """

    version: str = ""
    pci: tuple[PciGpu, ...] | None = None
    nodes: tuple[tuple[str, bool], ...] = ()
    minors: frozenset[int] = frozenset()
    wsl: bool = False
    tegra: bool = False


def read_kernel_facts(procfs: Path, sysfs: Path, devices: Path) -> KernelFacts:
    """Read the trees mounted at these paths. Never raises; unreadable facts are unknown."""
    nodes = _nodes(devices)
    found = [_NODE.fullmatch(Path(path).name) for path, _ in nodes]
    return KernelFacts(
        version=_version(procfs, sysfs),
        pci=_pci(procfs, sysfs),
        nodes=nodes,
        minors=frozenset(int(match[1]) for match in found if match),
        wsl=(devices / "dxg").exists(),
        tegra=(devices / "nvhost-ctrl").exists() or (devices / "nvhost-gpu").exists(),
    )


def pci_slot(address: str) -> tuple[int, int, int]:
    """Return domain, bus and device, which `00000000:01:00.0` of NVML and `0000:01:00.0` of sysfs share.

    Raises ValueError for text that is not a PCI address.
    """
    domain, bus, rest = address.split(":")
    return int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)


def _version(procfs: Path, sysfs: Path) -> str:
    # sysfs has only the version. A container often has only one of the two files.
    bare = _text(sysfs / "module/nvidia/version")
    match = _VERSION.search(_text(procfs / "driver/nvidia/version").split("\n")[0] + " ")
    return bare or (match[1] if match else "")


def _pci(procfs: Path, sysfs: Path) -> tuple[PciGpu, ...] | None:
    try:
        entries = sorted((sysfs / "bus/pci/devices").iterdir())
    except OSError:
        return None
    return tuple(_gpus(entries, procfs))


def _gpus(entries: list[Path], procfs: Path) -> Iterator[PciGpu]:
    for entry in entries:
        if is_nvidia_gpu(str(entry)):
            yield PciGpu(
                address=entry.name,
                driver=driver_of(str(entry)),
                minor=gpu_minor(f"{procfs}/driver/nvidia/gpus/{entry.name}"),
                power=_text(entry / "power/runtime_status"),
            )


def _nodes(devices: Path) -> tuple[tuple[str, bool], ...]:
    try:
        names = sorted(entry.name for entry in devices.iterdir())
    except OSError:
        return ()
    wanted = [name for name in names if name in ("nvidiactl", "nvidia-uvm") or _NODE.fullmatch(name)]
    return tuple((str(devices / name), os.access(devices / name, os.R_OK | os.W_OK)) for name in wanted)


def _text(path: Path) -> str:
    try:
        return clean_name(decode_utf8(path.read_bytes()), 4096).strip()
    except OSError:
        return ""

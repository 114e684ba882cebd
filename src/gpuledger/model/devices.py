"""Devices that processes run on: physical GPUs and MIG compute instances."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Makers of GPUs, as the label `vendor` has them.
NVIDIA = "nvidia"
AMD = "amd"
INTEL = "intel"
OTHER_VENDOR = "other"
VENDORS = (NVIDIA, AMD, INTEL, OTHER_VENDOR)

# NVIDIA's superchips have their CPU, its memory and one or more GPUs on one module.
_SUPERCHIP = re.compile(r"\bG[HB][23]00\b")
_PCI_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")


def partition_word(vendor: str) -> str:
    """What the maker of a GPU calls its parts."""
    return "MIG" if vendor in (NVIDIA, "") else "partition"


def is_superchip(name: str) -> bool:
    """Whether the energy counter of a GPU with this name covers its whole module: GH200, GB200, GB300."""
    return _SUPERCHIP.search(name) is not None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU with its static attributes, which are read once per driver load.

    Equality and hashing use only the UUID (`nvmlDeviceGetUUID`): index, minor number and PCI bus id can
    change between boots and containers. The UUID of an AMD GPU is `GPU-` and its `unique_id`; a GPU without
    one has its PCI address and ids, and digits of its machine: `PCI-0000:03:00.0-8086:e20b-7a1f0c93b2de`.
    `sm_count` is the number of multiprocessors, AMD's compute units. `nodes` are names by which the kernel
    knows a GPU that is not NVIDIA's: those of its files in /dev/dri (`card0`, `renderD128`).
    """

    uuid: str
    index: int = field(compare=False)
    name: str = field(default="", compare=False)
    pci_bus_id: str = field(default="", compare=False)
    minor: int | None = field(default=None, compare=False)
    serial: str | None = field(default=None, compare=False)
    vbios: str | None = field(default=None, compare=False)
    architecture: str | None = field(default=None, compare=False)
    compute_capability: str | None = field(default=None, compare=False)
    sm_count: int | None = field(default=None, compare=False)
    unified_memory: bool = field(default=False, compare=False)
    vendor: str = field(default=NVIDIA, compare=False)
    nodes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def gpu(self) -> Gpu:
        """The Gpu itself, so that callers can treat Gpu and Instance alike."""
        return self

    @property
    def instance(self) -> str:
        """Empty: a Gpu is not an Instance."""
        return ""


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG compute instance `(gpu, gi, ci)` with its own UUID (`MIG-...`), or a partition of an AMD GPU.

    The UUID of a partition is that of its GPU, a slash and its number, which is `gi`; `ci` is 0. `nodes` are
    those of the partition: its file in /dev/dri, and its platform device (`amdgpu_xcp_3`).

    `index` is the position in the driver's MIG device order (`nvmlDeviceGetMigDeviceHandleByIndex`).
    `sm_count` is the number of multiprocessors in the compute instance (`nvmlDeviceGetAttributes_v2`).
    """

    uuid: str
    parent: Gpu
    gi: int
    ci: int
    index: int = field(compare=False)
    profile: str = field(default="", compare=False)
    sm_count: int | None = field(default=None, compare=False)
    nodes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def gpu(self) -> Gpu:
        """The physical GPU that contains the instance."""
        return self.parent

    @property
    def instance(self) -> str:
        """`GI_CI`, which identifies the Instance within its Gpu."""
        return f"{self.gi}_{self.ci}"


Device = Gpu | Instance


def selection_name(name: str) -> str:
    """The form in which names of `--devices` are compared: lower case, and one notation of PCI bus ids.

    nvidia-smi writes domains of eight digits, the kernel of four, and lspci omits domain 0.
    """
    found = _PCI_BUS_ID.fullmatch(name.lower())
    return f"{int(found[1] or '0', 16):x}:{found[2]}" if found else name.lower()


def is_selected(gpu: Gpu, chosen: tuple[str, ...]) -> bool:
    """Whether `--devices` takes this Gpu: named by index, UUID or PCI bus id; an empty list takes all."""
    if not chosen:
        return True
    names = {str(gpu.index), gpu.uuid.lower(), selection_name(gpu.pci_bus_id)}
    return any(selection_name(name) in names for name in chosen)

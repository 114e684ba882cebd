"""The GPUs that the kernel's DRM subsystem has: address, driver, identity and name.

`cardN` and `hwmonN` change from boot to boot, so they are never an identity. AMD's `unique_id` is one; a GPU
without it is named by its PCI address and ids, and digits of its machine: slots are the same in all machines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpuledger.host.files import ReadFile, read_whole
from gpuledger.model.devices import AMD, INTEL, NVIDIA, OTHER_VENDOR, Gpu, Instance
from gpuledger.sources.drm.kfd import MI100, MI200, KfdNode, KfdReader
from gpuledger.sources.drm.pci_names import PciId, fallback_name, pci_names
from gpuledger.sources.drm.sysfs import SysfsFolder, is_asleep

AMDGPU, I915, XE = "amdgpu", "i915", "xe"
# Drivers of GPUs; others show an image only (ast, mgag200), or belong to a virtual machine.
DRIVERS: Final = frozenset({AMDGPU, I915, XE, "radeon", "nouveau"})
INTEL_DRIVERS: Final = frozenset({I915, XE})
_CARD: Final = re.compile(r"card(\d+)")
_RENDER: Final = re.compile(r"renderD(\d+)")
_ADDRESS: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_PCI_ID: Final = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4})")
_UNIQUE_ID: Final = re.compile(r"[0-9a-fA-F]{1,16}")
# Intel's integrated GPUs are always here.
INTEL_INTEGRATED: Final = "0000:00:02.0"
_VENDORS: Final = {0x1002: AMD, 0x8086: INTEL, 0x10DE: NVIDIA}
# amdgpu_drv.c: chips for which the driver's table of device ids has CHIP_ARCTURUS and CHIP_ALDEBARAN.
_TARGETS: Final = {
    **dict.fromkeys((0x7388, 0x738C, 0x738E, 0x7390), MI100),
    **dict.fromkeys((0x7408, 0x740C, 0x740F, 0x7410), MI200),
}
# PCI ids of MI250 and MI250X: two dies, each with a PCI device.
_TWO_DIES: Final = frozenset({0x7408, 0x740C})
# By compute partition mode, the partitions that a card has.
_PARTITION_COUNTS: Final = {"DPX": 2, "TPX": 3, "QPX": 4, "CPX": 8}
_AMD_ARCHITECTURES: Final = (
    (90000, "Vega"),
    (90008, "CDNA"),
    (90010, "CDNA 2"),
    (90011, "Vega"),
    (90400, "CDNA 3"),
    (90500, "CDNA 4"),
    (100000, "RDNA"),
    (100300, "RDNA 2"),
    (110000, "RDNA 3"),
    (110500, "RDNA 3.5"),
    (120000, "RDNA 4"),
)


@dataclass(frozen=True, slots=True)
class CardPartition:
    """A compute partition of a card (MI300 family), and its KFD node."""

    instance: Instance
    number: int
    node: KfdNode | None


@dataclass(frozen=True, slots=True)
class DrmCard:
    """One GPU. `folder` is its folder in `class/drm`, `address` its PCI address in lower case.

    `nodes` are its KFD nodes: one, or one for each partition. `render_minors` are its render nodes by the
    KFD node's number of partition. `board` is the FRU's serial number that the two dies of an MI250 share.
    """

    folder: str
    address: str
    driver: str
    ids: PciId
    gpu: Gpu
    nodes: tuple[KfdNode, ...] = ()
    partitions: tuple[CardPartition, ...] = ()
    render_minor: int | None = None
    board: str = ""

    @property
    def has_two_dies(self) -> bool:
        """Whether the GPU is a die of a card with two."""
        return self.gpu.vendor == AMD and self.ids[1] in _TWO_DIES

    @property
    def target(self) -> int:
        """The version of AMD's instruction set; 0 if it is not known."""
        return max((node.target for node in self.nodes), default=0) or _TARGETS.get(self.ids[1], 0)


class CardReader:
    """Lists the cards below `sysfs`. Facts that do not change are read once for each card.

    `indexes_from` is the index of the first card. `machine` becomes part of the identity of cards that have
    none; empty if the machine is not known.
    """

    def __init__(
        self,
        sysfs: str,
        read: ReadFile = read_whole,
        find_names: Callable[[Collection[PciId]], Mapping[PciId, str]] = pci_names,
        machine: str = "",
    ) -> None:
        self._machine = machine
        self._drm = SysfsFolder(f"{sysfs.rstrip('/')}/class/drm", read)
        self._platform = SysfsFolder(f"{sysfs.rstrip('/')}/bus/platform/devices", read)
        self._kfd = KfdReader(sysfs, read)
        self._find_names = find_names
        self._read = read
        self._integrated: dict[str, bool] = {}
        self._state: tuple[object, ...] = ()
        self._listed: tuple[DrmCard, ...] = ()
        self.indexes_from = 0

    def cards(self) -> tuple[DrmCard, ...]:
        """The cards in the order of their PCI addresses, which is that of their indexes."""
        names = tuple(name for name in self._drm.names() if _CARD.fullmatch(name))
        modes = tuple(self._drm.text(f"{name}/device/current_compute_partition") for name in names)
        # A name can belong to another card after a hot-plug, or after the driver was bound again.
        inodes = tuple(self._drm.folder(name).inode() for name in names)
        if (names, modes, inodes, self.indexes_from) != self._state:
            self._state = (names, modes, inodes, self.indexes_from)
            self._listed = self._list(names)
        return self._listed

    def is_integrated(self, card: DrmCard) -> bool:
        """Whether the GPU is part of a desktop or laptop CPU."""
        if card.address not in self._integrated:
            self._integrated[card.address] = _is_integrated(card, SysfsFolder(card.folder, self._read))
        return self._integrated[card.address]

    def _list(self, names: Collection[str]) -> tuple[DrmCard, ...]:
        nodes = self._kfd.nodes()
        found: dict[str, DrmCard] = {}
        for name in names:
            card = _read_card(self._drm.folder(name), nodes, self._machine)
            if card is not None:
                found[card.address] = card
        uuids = Counter(card.gpu.uuid for card in found.values())
        for address, card in found.items():
            if uuids[card.gpu.uuid] > 1:
                # Functions of one physical GPU in a virtual machine can have the same unique id.
                uuid = _local_identity(address, card.ids, self._machine)
                found[address] = replace(card, gpu=replace(card.gpu, uuid=uuid))
        platform = _platform_nodes(self._platform)
        titles = self._find_names({card.ids for card in found.values()}) if found else {}
        cards = []
        for position, address in enumerate(sorted(found)):
            card = found[address]
            name = card.gpu.name or titles.get(card.ids) or fallback_name(card.ids)
            gpu = replace(card.gpu, index=self.indexes_from + position, name=name)
            partitions = _partitions(card, gpu, self._drm, platform)
            if partitions and not card.nodes:
                gpu = replace(gpu, sm_count=len(partitions))
                partitions = _partitions(card, gpu, self._drm, platform)
            cards.append(replace(card, gpu=gpu, partitions=partitions))
        return tuple(cards)


def _read_card(folder: SysfsFolder, nodes: Collection[KfdNode], machine: str) -> DrmCard | None:
    device = folder.folder("device")
    event = device.pairs("uevent")
    driver, address = event.get("DRIVER", ""), event.get("PCI_SLOT_NAME", "").lower()
    ids = _parse_ids(event.get("PCI_ID", ""))
    if driver not in DRIVERS or ids is None or not _ADDRESS.fullmatch(address):
        return None
    mine = tuple(node for node in nodes if node.address == address) if driver == AMDGPU else ()
    unique = _unique_id(device, mine)
    minor = _CARD.fullmatch(folder.path.rpartition("/")[2])
    serial = device.text("serial_number") or device.text("fru_id")
    render = _render_minor(device, mine)
    gpu = Gpu(
        uuid=f"GPU-{unique}" if unique else _local_identity(address, ids, machine),
        index=0,
        name=device.text("product_name"),
        pci_bus_id=address,
        minor=int(minor[1]) if minor else None,
        serial=serial or None,
        vbios=device.text("vbios_version") or None,
        architecture=_architecture(mine),
        sm_count=_compute_units(mine, device.text("current_compute_partition")),
        vendor=_VENDORS.get(ids[0], OTHER_VENDOR),
        nodes=(folder.path.rpartition("/")[2], *(() if render is None else (f"renderD{render}",))),
    )
    return DrmCard(
        folder.path,
        address,
        driver,
        ids,
        gpu,
        mine,
        render_minor=render,
        board=serial if serial.lower() != unique.lstrip("0") else "",
    )


def _local_identity(address: str, ids: PciId, machine: str) -> str:
    """`PCI-0000:03:00.0-8086:e20b-7a1f0c93b2de`: address, ids and machine, without the last if unknown."""
    return "-".join(filter(None, ("PCI", address, f"{ids[0]:04x}:{ids[1]:04x}", machine)))


def has_machine(local: str) -> bool:
    """Whether an identity by PCI address names the machine."""
    return local.count("-") > 2


def _parse_ids(text: str) -> PciId | None:
    match = _PCI_ID.fullmatch(text)
    return (int(match[1], 16), int(match[2], 16)) if match else None


def _unique_id(device: SysfsFolder, nodes: Collection[KfdNode]) -> str:
    text = device.text("unique_id")
    found = int(text, 16) if _UNIQUE_ID.fullmatch(text) else 0
    found = found or next((node.unique_id for node in nodes if node.unique_id), 0)
    return f"{found:016x}" if found else ""


def _render_minor(device: SysfsFolder, nodes: Collection[KfdNode]) -> int | None:
    minors = [int(match[1]) for name in device.folder("drm").names() if (match := _RENDER.fullmatch(name))]
    if minors:
        return minors[0]
    return min((node.render_minor for node in nodes if node.render_minor), default=None)


def _architecture(nodes: Collection[KfdNode]) -> str | None:
    target = max((node.target for node in nodes), default=0)
    names = [name for first, name in _AMD_ARCHITECTURES if first <= target]
    return names[-1] if names else None


def _compute_units(nodes: Collection[KfdNode], mode: str) -> int | None:
    """Compute units of the whole card. The kernel can lack a node for a partition, so that it has no sum."""
    if not nodes:
        return None
    largest = max(node.compute_units for node in nodes)
    return largest * max(_PARTITION_COUNTS.get(mode, 1), len({node.partition for node in nodes}))


def _is_integrated(card: DrmCard, folder: SysfsFolder) -> bool:
    if card.driver in INTEL_DRIVERS:
        return card.address == INTEL_INTEGRATED
    device = folder.folder("device")
    if is_asleep(device):
        # Only a card sleeps (amdgpu_driver_set_runtime_pm_mode), and reading its table would wake it.
        return False
    table = device.raw("gpu_metrics") or b""
    if len(table) >= 4:
        # Formats 2 and 3 are those of APUs. An MI300A has format 1: it is no desktop CPU.
        return table[2] > 1
    hwmons = device.folder("hwmon")
    files = {file for name in hwmons.names() for file in hwmons.folder(name).names()}
    links = device.raw("pp_dpm_pcie")
    # No clocks of a PCIe link, and no fan.
    return links is not None and not links.strip(b"\0\n ") and not files & {"pwm1", "fan1_input"}


def _platform_nodes(platform: SysfsFolder) -> dict[int, str]:
    """Platform devices of partitions (`amdgpu_xcp_3`, older `amdgpu_xcp.3`) by minor of their render node."""
    found: dict[int, str] = {}
    for name in platform.names():
        if name.startswith("amdgpu_xcp"):
            for node in platform.folder(f"{name}/drm").names():
                if match := _RENDER.fullmatch(node):
                    found[int(match[1])] = name
    return found


def _partitions(
    card: DrmCard, gpu: Gpu, drm: SysfsFolder, platform: Mapping[int, str]
) -> tuple[CardPartition, ...]:
    mode = drm.text(f"{card.folder.rpartition('/')[2]}/device/current_compute_partition")
    count = _PARTITION_COUNTS.get(mode, len({node.partition for node in card.nodes}))
    if count < 2:
        return ()
    memory_mode = drm.text(f"{card.folder.rpartition('/')[2]}/device/current_memory_partition")
    profile = "_".join(word.lower() for word in (mode, memory_mode) if word)
    by_number = {node.partition: node for node in card.nodes}
    # Without KFD (a container that may not read it) all partitions of the mode are listed.
    numbers = sorted(by_number) or list(range(count))
    found = []
    for number in numbers:
        node = by_number.get(number)
        # Without KFD the partitions are equal parts of the GPU, of unknown size.
        units = node.compute_units if node is not None else 1
        minor = node.render_minor if node is not None else 0
        names = (f"renderD{minor}", platform.get(minor, "")) if minor else ()
        instance = Instance(
            f"{gpu.uuid}/{number}",
            gpu,
            number,
            0,
            number,
            profile or "partition",
            units,
            tuple(filter(None, names)),
        )
        found.append(CardPartition(instance, number, node))
    return tuple(found)

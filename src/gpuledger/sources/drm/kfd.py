"""KFD, the kernel's interface of ROCm: the compute nodes of GPUs, and the processes that use them.

No engine time: user queues bypass the DRM scheduler. `cu_occupancy` is how many compute units held waves at
that moment, which only GFX9 chips report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.host.files import ReadFile, read_whole
from gpuledger.sources.drm.sysfs import SysfsFolder, whole_number

KFD: Final = "class/kfd/kfd"
MI100: Final = 90008
MI200: Final = 90010
_HEAP_TYPES: Final = frozenset({1, 2})


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One GPU or one partition of a GPU.

    `gpu_id` names it in the folders of processes; None if it could not be read. `partition` is its number on
    the card. `memory` is bytes. `target` is the version of the instruction set: 90402 is gfx942.
    """

    number: int
    address: str
    partition: int
    gpu_id: int | None
    render_minor: int
    unique_id: int
    compute_units: int
    memory: int
    target: int
    device_id: int


@dataclass(frozen=True, slots=True)
class KfdUse:
    """What one process holds on one node.

    `memory` is bytes. `occupancy` is compute units in use now, None if the chip does not report it.
    """

    memory: int | None = None
    queues: int = 0
    occupancy: int | None = None

    @property
    def is_user(self) -> bool:
        """False for daemons that only opened /dev/kfd."""
        return bool(self.memory or self.queues or self.occupancy)


@dataclass(slots=True)
class _Context:
    memory: dict[int, int] = field(default_factory=dict)
    queues: dict[int, int] = field(default_factory=dict)
    occupancy: dict[int, int] = field(default_factory=dict)


class KfdReader:
    """Reads nodes and processes below `sysfs`."""

    def __init__(self, sysfs: str, read: ReadFile = read_whole) -> None:
        self._root = SysfsFolder(f"{sysfs.rstrip('/')}/{KFD}", read)

    def nodes(self) -> tuple[KfdNode, ...]:
        """The GPU nodes in the order of their numbers; nodes of CPUs and those that may not be read are
        omitted (the device cgroup of a container denies GPUs that it does not have).
        """
        topology = self._root.folder("topology/nodes")
        numbers = sorted(int(name) for name in topology.names() if name.isdigit())
        nodes = (_read_node(topology.folder(str(number)), number) for number in numbers)
        return tuple(node for node in nodes if node is not None)

    def uses(self, gpu_ids: frozenset[int]) -> Mapping[int, Mapping[int, KfdUse]]:
        """By pid, what each process holds on the nodes with these ids. Pids are the host's."""
        processes = self._root.folder("proc")
        found: dict[int, dict[int, KfdUse]] = {}
        for name in processes.names():
            if name.isdigit():
                uses = _read_process(processes.folder(name), gpu_ids)
                if uses:
                    found[int(name)] = uses
        return found


def _read_node(folder: SysfsFolder, number: int) -> KfdNode | None:
    properties = {
        key: amount
        for key, value in folder.pairs("properties").items()
        if (amount := whole_number(value)) is not None
    }
    simds = properties.get("simd_count", 0)
    if not simds:
        return None
    location = properties.get("location_id", 0)
    bus, slot = location >> 8 & 0xFF, location >> 3 & 0x1F
    return KfdNode(
        number=number,
        # The function of a physical GPU is 0; the low three bits are the number of a partition.
        address=f"{properties.get('domain', 0):04x}:{bus:02x}:{slot:02x}.0",
        partition=location & 7,
        gpu_id=folder.number("gpu_id"),
        render_minor=properties.get("drm_render_minor", 0),
        unique_id=properties.get("unique_id", 0),
        compute_units=simds // (properties.get("simd_per_cu") or 1),
        memory=sum(_memory_banks(folder.folder("mem_banks"))),
        target=properties.get("gfx_target_version", 0),
        device_id=properties.get("device_id", 0),
    )


def _memory_banks(banks: SysfsFolder) -> Iterator[int]:
    for name in banks.names():
        properties = banks.folder(name).pairs("properties")
        # Heap types 1 and 2: the card's memory, which the CPU can reach or not.
        size = whole_number(properties.get("size_in_bytes", ""))
        if size is not None and whole_number(properties.get("heap_type", "1")) in _HEAP_TYPES:
            yield size


def _read_process(folder: SysfsFolder, gpu_ids: frozenset[int]) -> dict[int, KfdUse]:
    context = _Context()
    names = folder.names()
    _add_context(context, folder, names)
    # Newer kernels: further contexts of the same process.
    for name in names:
        if name.startswith("context_"):
            inner = folder.folder(name)
            _add_context(context, inner, inner.names())
    uses = {
        gpu_id: KfdUse(
            context.memory.get(gpu_id), context.queues.get(gpu_id, 0), context.occupancy.get(gpu_id)
        )
        for gpu_id in gpu_ids
    }
    return {gpu_id: use for gpu_id, use in uses.items() if use.is_user}


def _add_context(context: _Context, folder: SysfsFolder, names: list[str]) -> None:
    for name in names:
        kind, _, rest = name.partition("_")
        gpu_id = whole_number(rest)
        if gpu_id is None:
            continue
        if kind == "vram":
            _add(context.memory, gpu_id, folder.number(name))
        elif kind == "stats":
            _add(context.occupancy, gpu_id, folder.number(f"{name}/cu_occupancy"))
    queues = folder.folder("queues")
    for name in queues.names() if "queues" in names else ():
        owner = queues.number(f"{name}/gpuid")
        if owner is not None:
            _add(context.queues, owner, 1)


def _add(amounts: dict[int, int], key: int, amount: int | None) -> None:
    if amount is not None:
        amounts[key] = amounts.get(key, 0) + amount

"""Blocks made Gpus, Instances and values: what the cells mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from re import compile as pattern

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.quantities import MEMORY_TOTAL, Quantity
from gpuledger.model.text import clean_name
from gpuledger.sources.findings import Findings
from gpuledger.sources.smi import names
from gpuledger.sources.smi.answer import Block, Cells, bus_id, first
from gpuledger.sources.smi.values import measure, whole, why_absent, word

_GPU = pattern(r"GPU\s+([0-9]{1,5}):.*\(UUID:\s*([^\s()]+)\)\s*")
# So long a line is nobody's, and takes the patterns long.
_LONGEST = 1000
_MIG = pattern(r"\s+MIG\s+(\S.*?)\s+Device\s+([0-9]{1,5}):\s*\(UUID:\s*(MIG-[^\s()]+)\)\s*")


@dataclass(slots=True)
class Listing:
    """Index by GPU UUID; `(UUID, profile)` of a MIG device by `(GPU UUID, MIG device index)`."""

    indexes: dict[str, int] = field(default_factory=dict)
    parts: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)


def parse_listing(text: str) -> Listing:
    """What the list holds; a line that is not whole is left out, with the MIG lines that follow a GPU's."""
    listing = Listing()
    gpu = ""
    for line in text.split("\n"):
        if len(line) > _LONGEST:
            gpu = ""
        elif found := _GPU.fullmatch(line):
            gpu = found[2]
            listing.indexes[gpu] = int(found[1])
        elif (found := _MIG.fullmatch(line)) and gpu:
            listing.parts[gpu, int(found[2])] = (found[3], found[1])
        elif not line.startswith(" "):
            gpu = ""
    return listing


_DOWN = frozenset({"GPU_IS_LOST", "RESET_REQUIRED", "UNKNOWN", "NO_PERMISSION"})


@dataclass(slots=True)
class Card:
    """One Gpu with what was told of it: `down` is why it is not up, empty when it is."""

    gpu: Gpu
    block: Block
    mig: bool = False
    instances: tuple[Instance, ...] = ()
    down: str = ""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The Gpu and its Instances."""
        return (self.gpu, *self.instances)


def uuid_of(block: Block) -> str | None:
    """The GPU's UUID, or None where an error stands in its place."""
    told = word(block.first(names.UUID))
    return told if told and not any(char.isspace() for char in told) and len(told) <= 128 else None


def bus_of(block: Block) -> str:
    """The PCI bus id in NVML's form; empty when not told."""
    return block.bus or bus_id(word(block.first(names.BUS)) or "")


def gpu_of(block: Block, uuid: str, index: int, findings: Findings) -> Gpu:
    """The static facts of one Block."""
    minor = whole(block.first(names.MINOR), findings)
    return Gpu(
        uuid,
        index,
        name=clean_name(word(block.first(names.NAME)) or ""),
        pci_bus_id=bus_of(block),
        minor=minor,
        serial=word(block.first(names.SERIAL)),
        vbios=word(block.first(names.VBIOS)),
        architecture=word(block.first(names.ARCHITECTURE)),
        compute_capability=word(block.first(names.COMPUTE_CAPABILITY)),
        unified_memory=_shares_memory(block),
    )


def _shares_memory(block: Block) -> bool:
    # GB10 and Jetson have no memory of their own and say N/A; a GPU in trouble says something else.
    total = block.first(names.GPU_NAMES[MEMORY_TOTAL])
    return total is not None and why_absent(total) == "NOT_SUPPORTED" and not why_down(block)


def mig_enabled(block: Block) -> bool:
    """Whether MIG mode is on now."""
    return (block.first(names.MIG_MODE) or "").strip().lower() == "enabled"


def why_down(block: Block) -> str:
    """Why the GPU is not up (`GPU_IS_LOST`), or empty.

    One cell that says that the GPU is lost is enough; any other error must stand where no vital cell tells
    anything, for one bad sensor is not a lost GPU.
    """
    if any("lost" in cell and why_absent(cell) == "GPU_IS_LOST" for cell in block.cells.values()):
        return "GPU_IS_LOST"
    found = [block.first(names.GPU_NAMES[quantity]) for quantity in names.VITAL]
    reasons = [why_absent(cell) for cell in found if cell is not None]
    if "" in reasons:
        return ""
    return next((reason for reason in reasons if reason in _DOWN), "")


def instances_of(gpu: Gpu, block: Block, listing: Listing, findings: Findings) -> tuple[Instance, ...]:
    """The MIG instances of one Gpu, in MIG device order.

    An instance whose UUID is nowhere told goes by its place on the Gpu, and the failure says so.
    """
    found: dict[tuple[int, int], Instance] = {}
    for cells in block.parts:
        gi, ci = (whole(first(cells, name), findings) for name in (names.PART_GI, names.PART_CI))
        index = whole(first(cells, names.INDEX), findings)
        if gi is None or ci is None or index is None or (gi, ci) in found:
            detail = f"{gpu.uuid}: a MIG device without its own index, GPU and compute instance id"
            findings.note("devices", "MIG_IDS_UNKNOWN", detail, gpu)
            continue
        listed, profile = listing.parts.get((gpu.uuid, index), ("", ""))
        uuid = word(first(cells, names.PART_UUID)) or listed
        if not uuid:
            uuid = f"{gpu.uuid}/{gi}/{ci}"
            detail = f"{uuid}: nvidia-smi -L does not tell this MIG device's UUID; its place stands in"
            findings.note("devices", "MIG_UUID_UNKNOWN", detail, gpu)
        sms = whole(first(cells, names.PART_SMS), findings)
        found[gi, ci] = Instance(uuid, gpu, gi, ci, index, profile, sms)
    return tuple(sorted(found.values(), key=lambda instance: instance.index))


def gpu_values(
    card: Card, wanted: frozenset[Quantity], findings: Findings
) -> tuple[dict[Quantity, float], dict[str, bool]]:
    """The wanted quantities that the GPU told, and for those it speaks of whether it has them."""
    values: dict[Quantity, float] = {}
    supported: dict[str, bool] = {}
    for quantity in wanted:
        cell = card.block.first(names.GPU_NAMES.get(quantity, ()))
        value = _sum(card.block.cells, quantity, findings)
        if value is None and cell is not None:
            value = _value(cell, quantity, card.gpu, findings)
            _note_support(supported, quantity, cell)
        if value is not None:
            values[quantity] = value
            supported[quantity.key] = True
    return values, supported


def part_values(
    instance: Instance, cells: Cells, wanted: frozenset[Quantity], findings: Findings
) -> tuple[dict[Quantity, float], dict[str, bool]]:
    """The same of one MIG instance."""
    values: dict[Quantity, float] = {}
    supported: dict[str, bool] = {}
    for quantity, paths in names.PART_NAMES.items():
        cell = first(cells, paths) if quantity in wanted else None
        if cell is None:
            continue
        _note_support(supported, quantity, cell)
        value = _value(cell, quantity, instance, findings)
        if value is not None:
            values[quantity] = value
    return values, supported


def cells_of(instance: Instance, block: Block) -> Cells:
    """The cells of the MIG device that `instance` is."""
    ids = (str(instance.gi), str(instance.ci))
    of_part = names.PART_GI, names.PART_CI
    return next((cells for cells in block.parts if tuple(first(cells, name) for name in of_part) == ids), {})


def _value(cell: str, quantity: Quantity, device: Device, findings: Findings) -> float | None:
    reason = why_absent(cell)
    if reason in _DOWN:
        findings.note("readings", reason, f"{device.uuid}: {quantity.key}: {cell.strip()}", device)
    return measure(cell, quantity, findings)


def _note_support(supported: dict[str, bool], quantity: Quantity, cell: str) -> None:
    reason = why_absent(cell)
    if reason in ("", "NOT_SUPPORTED"):
        supported[quantity.key] = not reason


def _sum(cells: Cells, quantity: Quantity, findings: Findings) -> float | None:
    for terms in names.GPU_SUMS.get(quantity, ()):
        told = [cells.get(term) for term in terms]
        if all(term is not None and not why_absent(term) for term in told):
            counts = [measure(term, quantity, findings) for term in told]
            return None if None in counts else float(sum(count for count in counts if count is not None))
    return None

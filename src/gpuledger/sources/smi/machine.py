"""Blocks made Gpus, Instances and values: what the cells mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Failure
from gpuledger.model.text import clean_name
from gpuledger.sources.smi import names
from gpuledger.sources.smi.answer import Block, Cells, bus_id, first
from gpuledger.sources.smi.listing import Listing
from gpuledger.sources.smi.values import Tally, measure, whole, why_absent, word

_DOWN = frozenset({"GPU_IS_LOST", "RESET_REQUIRED", "UNKNOWN", "NO_PERMISSION"})


@dataclass(slots=True)
class Findings:
    """Failures in the order met, and how many values were not believed."""

    failures: list[Failure] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def fail(self, part: str, reason: str, detail: str, device: Device | None = None) -> None:
        """Note that `part` went wrong, of `device` or of the machine."""
        self.failures.append(Failure(part, reason, device, clean_name(detail, 300)))

    def error_of(self, part: str) -> str:
        """One line for the part's health: its first failure and how many more there were; empty if none."""
        mine = [failure.detail for failure in self.failures if failure.part == part]
        more = f" (and {len(mine) - 1} more)" if len(mine) > 1 else ""
        return f"{mine[0]}{more}" if mine else ""


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


def gpu_of(block: Block, uuid: str, index: int, tally: Tally) -> Gpu:
    """The static facts of one Block."""
    minor = whole(block.first(names.MINOR), tally)
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
    total = block.first(names.GPU_NAMES[_MEMORY_TOTAL])
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
        gi, ci = (whole(first(cells, name), findings.tally) for name in (names.PART_GI, names.PART_CI))
        index = whole(first(cells, names.INDEX), findings.tally)
        if gi is None or ci is None or index is None or (gi, ci) in found:
            detail = f"{gpu.uuid}: a MIG device without its own index, GPU and compute instance id"
            findings.fail("devices", "MIG_IDS_UNKNOWN", detail, gpu)
            continue
        listed, profile = listing.parts.get((gpu.uuid, index), ("", ""))
        uuid = word(first(cells, names.PART_UUID)) or listed
        if not uuid:
            uuid = f"{gpu.uuid}/{gi}/{ci}"
            detail = f"{uuid}: nvidia-smi -L does not tell this MIG device's UUID; its place stands in"
            findings.fail("devices", "MIG_UUID_UNKNOWN", detail, gpu)
        sms = whole(first(cells, names.PART_SMS), findings.tally)
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
        value = _sum(card.block.cells, quantity, findings.tally)
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
    return next(
        (cells for cells in block.parts if (first(cells, names.PART_GI), first(cells, names.PART_CI)) == ids),
        _NO_CELLS,
    )


def _value(cell: str, quantity: Quantity, device: Device, findings: Findings) -> float | None:
    reason = why_absent(cell)
    if reason in _DOWN:
        findings.fail("readings", reason, f"{device.uuid}: {quantity.key}: {cell.strip()}", device)
    return measure(cell, quantity, findings.tally)


def _note_support(supported: dict[str, bool], quantity: Quantity, cell: str) -> None:
    reason = why_absent(cell)
    if reason in ("", "NOT_SUPPORTED"):
        supported[quantity.key] = not reason


def _sum(cells: Cells, quantity: Quantity, tally: Tally) -> float | None:
    for terms in names.GPU_SUMS.get(quantity, ()):
        told = [cells.get(term) for term in terms]
        if all(term is not None and not why_absent(term) for term in told):
            counts = [measure(term, quantity, tally) for term in told]
            return None if None in counts else float(sum(count for count in counts if count is not None))
    return None


_NO_CELLS: Mapping[str, str] = {}
_MEMORY_TOTAL = names.VITAL[0]

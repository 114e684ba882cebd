"""Conversion of GpuBlocks to Gpus, Instances and values in base units; parser of `nvidia-smi -L`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from re import IGNORECASE
from re import compile as pattern

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.enumeration_words import RECOVERY_ACTIONS
from gpuledger.model.quantities import (
    CLOCK_EVENT_REASONS,
    MEMORY_TOTAL,
    PCIE_GENERATION,
    PCIE_LINK_BUSY,
    RECOVERY_ACTION,
    Quantity,
    is_link_busy,
    link_busy_needs,
)
from gpuledger.model.text import clean_name
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi import cell_names
from gpuledger.sources.smi.cell_values import absent_reason, cell_text, parse_quantity, parse_whole
from gpuledger.sources.smi.parsed_output import (
    MOST_GPUS,
    Cells,
    GpuBlock,
    first_present,
    normalize_bus_id,
    without_note,
)

_GPU = pattern(r"GPU\s+([0-9]{1,5}):.*\(UUID:\s*([^\s()]+)\)\s*")
# Longer lines are not nvidia-smi's, and would make the patterns slow.
_MAX_LINE_LENGTH = 1000
# A GPU has at most seven MIG instances of GPUs, each with seven of compute.
_MAX_LINES = MOST_GPUS * 50
_MIG = pattern(r"\s+MIG\s+(\S+)\s+Device\s+([0-9]{1,5}):\s*\(UUID:\s*(MIG-[^\s()]+)\)\s*")


@dataclass(slots=True)
class GpuListing:
    """`nvidia-smi -L`: index by GPU UUID; MIG `(UUID, profile)` by `(GPU UUID, MIG device index)`."""

    indexes: dict[str, int] = field(default_factory=dict)
    mig_devices: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)


def parse_gpu_listing(text: str) -> GpuListing:
    """Parse the listing; skip an incomplete line, and after an incomplete GPU line its MIG lines."""
    listing = GpuListing()
    gpu = ""
    for printed in text.split("\n", _MAX_LINES)[:_MAX_LINES]:
        line = without_note(printed) if len(printed) <= _MAX_LINE_LENGTH else ""
        if found := _GPU.fullmatch(line):
            gpu = found[2]
            listing.indexes[gpu] = int(found[1])
        elif (found := _MIG.fullmatch(line)) and gpu:
            listing.mig_devices[gpu, int(found[2])] = (found[3], found[1])
        elif not line.startswith(" "):
            gpu = ""
    return listing


# The first one counts if cells differ.
_DOWN_REASONS = ("GPU_IS_LOST", "RESET_REQUIRED", "TIMEOUT", "UNKNOWN", "NO_PERMISSION")
_WHOLE_GPU = pattern(r"lost|off the bus|reset", IGNORECASE)


@dataclass(slots=True)
class ParsedGpu:
    """One Gpu with its block of output and the cells of its Instances, in MIG device order.

    `down` is why it is down, empty if it is up.
    """

    gpu: Gpu
    block: GpuBlock
    mig: bool = False
    instances: Mapping[Instance, Cells] = field(default_factory=dict)
    down: str = ""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The Gpu and its Instances."""
        return (self.gpu, *self.instances)


def block_uuid(block: GpuBlock) -> str | None:
    """Return the GPU's UUID, or None if an error is printed in its place."""
    uuid = cell_text(block.first_cell(cell_names.UUID))
    return uuid if uuid and not any(char.isspace() for char in uuid) and len(uuid) <= 128 else None


def block_bus_id(block: GpuBlock) -> str:
    """Return the PCI bus id in NVML's form; empty if it is not in the output."""
    return block.bus or normalize_bus_id(cell_text(block.first_cell(cell_names.BUS)) or "")


def build_gpu(block: GpuBlock, uuid: str, index: int, findings: SourceFindings) -> Gpu:
    """Build the Gpu from the static facts of its block."""
    minor = parse_whole(block.first_cell(cell_names.MINOR), findings)
    return Gpu(
        uuid,
        index,
        name=clean_name(cell_text(block.first_cell(cell_names.NAME)) or ""),
        pci_bus_id=block_bus_id(block),
        minor=minor,
        serial=cell_text(block.first_cell(cell_names.SERIAL)),
        vbios=cell_text(block.first_cell(cell_names.VBIOS)),
        architecture=cell_text(block.first_cell(cell_names.ARCHITECTURE)),
        compute_capability=cell_text(block.first_cell(cell_names.COMPUTE_CAPABILITY)),
        unified_memory=_shares_memory(block),
    )


def _shares_memory(block: GpuBlock) -> bool:
    # GB10 and Jetson use host memory and print N/A; a GPU that is down prints an error instead.
    total = block.first_cell(cell_names.GPU_CELLS[MEMORY_TOTAL])
    return total is not None and absent_reason(total) == "NOT_SUPPORTED" and not down_reason(block)


def is_mig_enabled(block: GpuBlock) -> bool:
    """Whether MIG mode is on now."""
    return (block.first_cell(cell_names.MIG_MODE) or "").strip().lower() == "enabled"


def down_reason(block: GpuBlock) -> str:
    """Return why the GPU is down (`GPU_IS_LOST`), or empty if it is up.

    One cell that says so is enough for a GPU that is lost or requires a reset: the driver says it of the
    whole GPU. Any other error counts only if no quantity of LIVENESS_QUANTITIES proves that the GPU works,
    because one failed sensor does not mean a lost GPU.
    """
    named = {absent_reason(cell) for cell in block.cells.values() if _WHOLE_GPU.search(cell)}
    certain = named & {"GPU_IS_LOST", "RESET_REQUIRED"}
    possible = _liveness_errors(block)
    return next((reason for reason in _DOWN_REASONS if reason in certain or reason in possible), "")


def _liveness_errors(block: GpuBlock) -> set[str]:
    for quantities in cell_names.LIVENESS_QUANTITIES:
        found = [block.first_cell(cell_names.GPU_CELLS[quantity]) for quantity in quantities]
        # A working card does not print only phrases that are not known here.
        reasons = {absent_reason(cell).replace("OTHER", "UNKNOWN") for cell in found if cell is not None}
        if "" in reasons:
            return set()
        if errors := reasons.intersection(_DOWN_REASONS):
            return errors
    return set()


def build_instances(
    gpu: Gpu, block: GpuBlock, listing: GpuListing, findings: SourceFindings
) -> dict[Instance, Cells]:
    """Build the MIG instances of one Gpu, in MIG device order, with their cells.

    Without a UUID in the output, an instance gets the id `GPU_UUID/GI/CI`, and a failure is noted.
    """
    found: dict[tuple[int, int], tuple[Instance, Cells]] = {}
    for cells in block.mig_devices:
        gi = parse_whole(first_present(cells, cell_names.MIG_GI), findings)
        ci = parse_whole(first_present(cells, cell_names.MIG_CI), findings)
        index = parse_whole(first_present(cells, cell_names.INDEX), findings)
        if gi is None or ci is None or index is None or (gi, ci) in found:
            detail = f"{gpu.uuid}: a MIG device has no unique index, GPU instance id and compute instance id"
            findings.note("devices", "MIG_IDS_UNKNOWN", detail, gpu)
            continue
        listed, profile = listing.mig_devices.get((gpu.uuid, index), ("", ""))
        uuid = cell_text(first_present(cells, cell_names.MIG_UUID)) or listed
        if not uuid:
            uuid = f"{gpu.uuid}/{gi}/{ci}"
            detail = f"{uuid}: nvidia-smi -L does not list this MIG device's UUID; its ids are used instead"
            findings.note("devices", "MIG_UUID_UNKNOWN", detail, gpu)
        sms = parse_whole(first_present(cells, cell_names.MIG_SM_COUNT), findings)
        found[gi, ci] = Instance(uuid, gpu, gi, ci, index, profile, sms), cells
    return dict(sorted(found.values(), key=lambda pair: pair[0].index))


def parse_values(
    device: Device, cells: Cells, wanted: frozenset[Quantity], findings: SourceFindings
) -> tuple[dict[Quantity, float], dict[str, bool]]:
    """Return the wanted values in the cells, and for each quantity there, whether it is supported."""
    values: dict[Quantity, float] = {}
    supported: dict[str, bool] = {}
    cells_by_quantity = cell_names.GPU_CELLS if isinstance(device, Gpu) else cell_names.MIG_CELLS
    for quantity, names in cells_by_quantity.items():
        if quantity not in wanted:
            continue
        cell = first_present(cells, names)
        value = _parse_sum(cells, quantity, findings)
        if quantity is CLOCK_EVENT_REASONS and cell is None:
            value = _parse_clock_reasons(cells)
        if quantity is RECOVERY_ACTION and (cell is None or absent_reason(cell) == "NOT_SUPPORTED"):
            value = _parse_reset_status(cells)
        if value is None and cell is not None:
            reason = absent_reason(cell)
            if reason in ("", "NOT_SUPPORTED"):
                supported[quantity.key] = not reason
            elif reason in _DOWN_REASONS:
                findings.note("readings", reason, f"{device.uuid}: {quantity.key}: {cell.strip()}", device)
            value = parse_quantity(cell, quantity, findings)
        if value is not None:
            values[quantity] = value
            supported[quantity.key] = True
    if PCIE_LINK_BUSY in wanted and PCIE_GENERATION in values:
        busy = _is_link_busy(cells, findings)
        if busy is not None:
            values[PCIE_LINK_BUSY] = float(busy)
            supported[PCIE_LINK_BUSY.key] = True
    return values, supported


def _is_link_busy(cells: Cells, findings: SourceFindings) -> bool | None:
    mig = (first_present(cells, cell_names.MIG_MODE) or "").strip().lower() == "enabled"
    found = {
        quantity: parse_quantity(first_present(cells, cell_names.GPU_CELLS[quantity]), quantity, findings)
        for quantity in link_busy_needs(mig=mig)
    }
    return is_link_busy({quantity: value for quantity, value in found.items() if value is not None}, mig=mig)


def _parse_sum(cells: Cells, quantity: Quantity, findings: SourceFindings) -> float | None:
    for names in cell_names.GPU_CELL_SUMS.get(quantity, ()):
        terms = [cells.get(name) for name in names]
        if all(term is not None and not absent_reason(term) for term in terms):
            counts = [parse_quantity(term, quantity, findings) for term in terms]
            return None if None in counts else float(sum(count for count in counts if count is not None))
    return None


_REASON_STATES = {"active": 1, "not active": 0}


def _parse_reset_status(cells: Cells) -> float | None:
    """The recovery action of drivers that only say whether a reset is required, or recommended after a drain.

    None if they say neither.
    """
    stated = {
        action: (first_present(cells, names) or "").strip().lower()
        for action, names in (
            ("reset", cell_names.RESET_REQUIRED),
            ("drain and reset", cell_names.DRAIN_AND_RESET),
        )
    }
    if "no" not in stated.values() and "yes" not in stated.values():
        return None
    return float(RECOVERY_ACTIONS[next((name for name, word in stated.items() if word == "yes"), "none")])


def _parse_clock_reasons(cells: Cells) -> float | None:
    """The reasons for the current clocks as bits, from a list with `Active` or `Not Active` for each.

    None unless each reason is listed: a missing one may be active.
    """
    found: dict[int, int] = {}
    for path, cell in cells.items():
        if path.startswith(cell_names.CLOCK_REASON_LISTS):
            name = path.rpartition("/")[2]
            name = name.removeprefix("clocks_event_reason_").removeprefix("clocks_throttle_reason_")
            bit, state = cell_names.CLOCK_REASONS.get(name), _REASON_STATES.get(cell.strip().lower())
            if bit is not None and state is not None:
                found[bit] = state * bit
    return float(sum(found.values())) if found.keys() == set(cell_names.CLOCK_REASONS.values()) else None

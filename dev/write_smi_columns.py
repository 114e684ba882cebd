"""Writes the table of nvidia_gpu_exporter's columns in docs/smi.md: what of NVML each is read from.

    python dev/write_smi_columns.py

The table stands between two comments. The rest of the page is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuledger.dialects.smi.emulated_row import REQUIRED_QUANTITIES, emulate_row
from gpuledger.dialects.smi.fields import column_family
from gpuledger.model.devices import Gpu
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading, SourceInfo
from gpuledger.sources.nvml import queries
from gpuledger.sources.nvml.column_queries import ACTIVE_VGPUS, COLUMN_CALLS, COLUMN_FIELDS, HOST_GENERATION
from gpuledger.sources.nvml.queries import Depth
from gpuledger.sources.nvml.vgpus import ACTIVE_CALL

PAGE = Path(__file__).parents[1] / "docs" / "smi.md"
BEGIN, END = "<!-- columns: begin -->\n", "<!-- columns: end -->\n"
TIMES: Final = {Depth.FAST: "each reading", Depth.SLOW: "10 s", Depth.CONSTANT: "10 min"}

_LABEL: Final = "text; a label of `nvidia_smi_gpu_info`"
_TEXT: Final = "text without a number, so there is no family"
_DEPRECATED: Final = "deprecated; nvidia-smi of driver 590 prints no value"
# Columns of nvidia_gpu_exporter's NVML backend without a family, and why.
ABSENT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("uuid", "pci.bus_id", "vbios_version", "driver_model.current", "driver_model.pending"), _LABEL
    ),
    "timestamp": "a date; Prometheus has the time of each sample",
    **dict.fromkeys(
        (
            *("addressing_mode", "inforom.img", "inforom.checksum_validation", "gom.current", "gom.pending"),
            *("fabric.status", "fabric.clusterUuid", "platform.peer_type"),
        ),
        _TEXT,
    ),
    "hostname": "text; the target has it",
    **dict.fromkeys(("display_mode", "power.management"), _DEPRECATED),
    **dict.fromkeys(
        (
            f"clocks.{kind}.{clock} [MHz]"
            for kind in ("applications", "default_applications")
            for clock in ("graphics", "memory")
        ),
        _DEPRECATED,
    ),
}
# Columns of neither NVML backend: NVML has no documented call for them, or no one has seen a card with them.
ONLY_NVIDIA_SMI: Final[Mapping[str, str]] = {
    "kmd_version": "`driver_version` has the version",
    "module.power.*": "power of a superchip's module; no such card was at hand",
    "power_smoothing.*": "settings of Blackwell; no such card was at hand",
    "vgpu_*": "what vGPU supports; `nvidia_smi_vgpu_info` has its instances",
    "fabric.health.*": "text without a number",
}


def served() -> dict[str, tuple[str, str]]:
    """Header to what it is read from and how often, in the order of reading."""
    found = dict.fromkeys(_row({}), ("facts of the GPU", "once"))
    for quantity in queries_by_quantity():
        if quantity in REQUIRED_QUANTITIES:
            for header in _row({quantity: 1.0}).keys() - _row({}).keys():
                found[header] = queries_by_quantity()[quantity], TIMES[Depth.of(quantity)]
    for call in COLUMN_CALLS:
        for column in call.columns:
            found.setdefault(column.header, (f"`{call.call}`", TIMES[call.depth]))
    for each in COLUMN_FIELDS:
        found[each.column.header] = f"field {each.field_id}", TIMES[each.depth]
    found[ACTIVE_VGPUS.header] = f"`{ACTIVE_CALL}`", TIMES[Depth.SLOW]
    found[HOST_GENERATION.header] = "the port in sysfs", TIMES[Depth.CONSTANT]
    return {header: origin for header, origin in found.items() if header not in ABSENT}


def _row(values: Mapping[Quantity, float]) -> Mapping[str, str]:
    gpu = Gpu("GPU-0", 0, name="NVIDIA H100", pci_bus_id="00000000:01:00.0")
    return emulate_row(Reading(gpu, values=values), SourceInfo("nvml", driver_version="580.1"), 1)


def queries_by_quantity() -> dict[Quantity, str]:
    """The call or field id that each quantity is read by."""
    calls = {query.quantity: f"`{query.call}`" for query in queries.NUMBER_QUERIES}
    calls |= {query.quantity: f"field {query.field_id}" for query in queries.FIELD_QUERIES}
    calls |= {each: f"`{query.call}`" for query in queries.STRUCT_QUERIES for each in query.quantities}
    calls |= dict.fromkeys(queries.MEMORY_QUANTITIES, f"`{queries.MEMORY_CALL}`")
    return calls | dict.fromkeys(queries.MIG_QUANTITIES, "`nvmlDeviceGetMigMode`")


def table() -> Iterator[str]:
    """A row for each column, served or not, by name."""
    rows = {
        header: f"| `{header}` | `{column_family(header).name}` | {origin} | {time} |"
        for header, (origin, time) in served().items()
    }
    rows |= {header: f"| `{header}` | none: {reason} | | |" for header, reason in ABSENT.items()}
    rows |= {
        header: f"| `{header}` | none with NVML: {reason} | | |" for header, reason in ONLY_NVIDIA_SMI.items()
    }
    yield "| column | family | read from | how often |"
    yield "|---|---|---|---|"
    yield from (rows[header] for header in sorted(rows, key=str.lower))


def page(before: str) -> str:
    """The whole page with a new table."""
    head, _, rest = before.partition(BEGIN)
    return head + BEGIN + "".join(f"{line}\n" for line in table()) + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

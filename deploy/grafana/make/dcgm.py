"""What only the dcgm dialect tells of a GPU: what holds its clocks down, profiling, NVLink, memory rows."""

from __future__ import annotations

from typing import Any

from panels import GOOD_IS_ZERO, Column, Panel, Query, series, table
from promql import of_node, once

_EMPTY = "Served with --dialect process,session,energy,native,dcgm (docs/dashboards.md)"
_ROW = ("UUID", "GPU_I_ID", "gpu", "Hostname")


def field_of(field: str) -> str:
    """A field of the dcgm dialect on the chosen GPUs, each row once."""
    return once(of_node(f"DCGM_FI_{field}", 'UUID=~"$gpu"'), *_ROW)


def of_dcgm() -> list[Panel]:
    """The row of the dashboard of GPU health."""
    legend = "{{Hostname}} GPU {{gpu}} {{GPU_I_ID}}"
    share: dict[str, Any] = {
        "unit": "percentunit",
        "decimals": 0,
        "highest": 1,
        "size": (8, 8),
        "empty": _EMPTY,
    }
    causes = {
        "power cap": 4,
        "hardware slowdown": 8,
        "heat, software": 32,
        "heat, hardware": 64,
        "power brake": 128,
    }
    reasons = once(of_node("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 'UUID=~"$gpu"'), "UUID")
    held_down = [Query(f"sum(floor({reasons} / {bit}) % 2)", cause) for cause, bit in causes.items()]
    link = field_of("DEV_NVLINK_BANDWIDTH_TOTAL")
    rows = [
        Column(
            "Remapped, uncorrected",
            field_of("DEV_UNCORRECTABLE_REMAPPED_ROWS"),
            decimals=0,
            steps=GOOD_IS_ZERO,
        ),
        Column("Remapped, corrected", field_of("DEV_CORRECTABLE_REMAPPED_ROWS"), decimals=0),
        Column("Waits for a reset", field_of("DEV_ROW_REMAP_PENDING"), decimals=0, steps=GOOD_IS_ZERO),
        Column("Failed", field_of("DEV_ROW_REMAP_FAILURE"), decimals=0, steps=GOOD_IS_ZERO),
    ]
    return [
        series(
            "GPUs whose clocks are held down",
            "By cause: the power limit, the hardware (heat or power, at once), heat as the driver or "
            "the hardware "
            "sees it, an external brake. A GPU can have several.",
            held_down,
            decimals=0,
            empty=_EMPTY,
        ),
        series(
            "NVLink",
            "Bytes a second over all links of the GPU, both ways.",
            [Query(f"{link} * 1024000", legend)],
            unit="Bps",
            decimals=1,
            empty=_EMPTY,
        ),
        series(
            "SM active",
            "Share of cycles in which an SM had a warp, over all SMs.",
            [Query(field_of("PROF_SM_ACTIVE"), legend)],
            **share,
        ),
        series(
            "Tensor active",
            "Share of cycles in which the tensor pipes were busy.",
            [Query(field_of("PROF_PIPE_TENSOR_ACTIVE"), legend)],
            **share,
        ),
        series(
            "DRAM active",
            "Share of cycles in which device memory was read or written.",
            [Query(field_of("PROF_DRAM_ACTIVE"), legend)],
            **share,
        ),
        table(
            "Memory rows",
            "Rows remapped over the life of the board. What waits for a reset is done at the next; what "
            "failed "
            "wants a new board.",
            {"Hostname": "Node", "gpu": "GPU", "UUID": "UUID"},
            rows,
            empty=_EMPTY,
            sort="Remapped, uncorrected",
            size=(24, 8),
        ),
    ]

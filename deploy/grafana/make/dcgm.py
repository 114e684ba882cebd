"""Panels of the dcgm dialect: throttling, profiling, NVLink and remapped memory rows."""

from __future__ import annotations

from typing import Any

from panels import GOOD_IS_ZERO, Column, Panel, Query, series, table
from promql import deduplicated, of_node

_EMPTY = "Needs --dialect process,session,energy,native,dcgm (see docs/dashboards.md)"
_ROW = ("UUID", "GPU_I_ID", "gpu", "Hostname")


def field_of(field: str) -> str:
    """Selects a field of the dcgm dialect on the chosen GPUs, each row once."""
    return deduplicated(of_node(f"DCGM_FI_{field}", 'UUID=~"$gpu"'), *_ROW)


def dcgm_panels() -> list[Panel]:
    """Returns the panels of the GPU health dashboard that need the dcgm dialect."""
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
        "thermal, software": 32,
        "thermal, hardware": 64,
        "power brake": 128,
    }
    reasons = deduplicated(of_node("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 'UUID=~"$gpu"'), "UUID")
    throttled = [Query(f"sum(floor({reasons} / {bit}) % 2)", cause) for cause, bit in causes.items()]
    link = field_of("DEV_NVLINK_BANDWIDTH_TOTAL")
    rows = [
        Column(
            "Uncorrected",
            field_of("DEV_UNCORRECTABLE_REMAPPED_ROWS"),
            decimals=0,
            steps=GOOD_IS_ZERO,
        ),
        Column("Corrected", field_of("DEV_CORRECTABLE_REMAPPED_ROWS"), decimals=0),
        Column("Pending reset", field_of("DEV_ROW_REMAP_PENDING"), decimals=0, steps=GOOD_IS_ZERO),
        Column("Failed", field_of("DEV_ROW_REMAP_FAILURE"), decimals=0, steps=GOOD_IS_ZERO),
    ]
    return [
        series(
            "Throttled GPUs by reason",
            "GPUs with reduced clocks, by reason: power limit, hardware slowdown (thermal or power), thermal "
            "slowdown by driver or hardware, external power brake. A GPU can have several reasons.",
            throttled,
            decimals=0,
            empty=_EMPTY,
        ),
        series(
            "NVLink throughput",
            "Bytes per second over all links of the GPU, in both directions.",
            [Query(f"{link} * 1024000", legend)],
            unit="Bps",
            decimals=1,
            empty=_EMPTY,
        ),
        series(
            "SM activity",
            "Percentage of cycles in which an SM had a warp, averaged over all SMs.",
            [Query(field_of("PROF_SM_ACTIVE"), legend)],
            **share,
        ),
        series(
            "Tensor core activity",
            "Percentage of cycles in which the tensor cores were busy.",
            [Query(field_of("PROF_PIPE_TENSOR_ACTIVE"), legend)],
            **share,
        ),
        series(
            "DRAM activity",
            "Percentage of cycles in which device memory was read or written.",
            [Query(field_of("PROF_DRAM_ACTIVE"), legend)],
            **share,
        ),
        table(
            "Remapped memory rows",
            "Memory rows remapped over the lifetime of the board. Pending rows are remapped at the next "
            "reset; after a failed remapping, replace the board.",
            {"Hostname": "Node", "gpu": "GPU", "UUID": "UUID"},
            rows,
            empty=_EMPTY,
            sort="Uncorrected",
            size=(24, 8),
        ),
    ]

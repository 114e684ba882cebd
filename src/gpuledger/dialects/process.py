"""The vocabulary of document 000: processes per GPU, who they are, how much they use."""

from __future__ import annotations

from gpuledger.dialects.counted import CountedDialect
from gpuledger.dialects.rows import Rows
from gpuledger.model.family import FamilySpec
from gpuledger.model.page import Page
from gpuledger.model.snapshot import Reading


def process_dialect(rows: Rows) -> CountedDialect:
    """`gpu_process_count`, `gpu_total_processes` and the process rows."""

    def count(_page: Page, reading: Reading) -> int | None:
        if reading.processes is None:
            return None
        return sum(1 for _ in rows.counted(reading.processes))

    per_gpu = FamilySpec(
        "gpu_process_count",
        "gauge",
        "Number of processes on each GPU; 0 when there is none.",
        (*rows.node_label, "gpu"),
        source="process lists",
    )
    total = FamilySpec(
        "gpu_total_processes",
        "gauge",
        "Number of processes over all GPUs; absent when a GPU could not be read.",
        rows.node_label,
        source="process lists",
    )
    return CountedDialect("process", rows, per_gpu, total, count)

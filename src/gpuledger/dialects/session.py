"""The vocabulary of document 001: sessions per GPU, with the same process rows as document 000."""

from __future__ import annotations

from gpuledger.dialects.counted import CountedDialect
from gpuledger.dialects.rows import Rows
from gpuledger.model.family import FamilySpec
from gpuledger.model.page import Page
from gpuledger.model.snapshot import Reading


def session_dialect(rows: Rows) -> CountedDialect:
    """`gpu_session_count`, `gpu_total_sessions` and the process rows."""

    def count(page: Page, reading: Reading) -> int | None:
        computing = page.ledger.compute_sessions.get(reading.device.uuid)
        if computing is None or not rows.settings.graphics:
            return computing
        return computing + page.ledger.graphics_sessions[reading.device.uuid]

    per_gpu = FamilySpec(
        "gpu_session_count",
        "gauge",
        "Number of open sessions on each GPU; 0 when there is none.",
        (*rows.node_label, "gpu"),
        source="ledger",
    )
    total = FamilySpec(
        "gpu_total_sessions",
        "gauge",
        "Number of open sessions over all GPUs; absent when a GPU could not be read.",
        rows.node_label,
        source="ledger",
    )
    return CountedDialect("session", rows, per_gpu, total, count)

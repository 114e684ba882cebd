"""The vocabulary of document 000: processes per GPU, who they are, how much they use."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.dialects.rows import WANTS, Rows, node_labels, tell_counts
from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.page import Page


class ProcessDialect:
    """`gpu_process_count`, `gpu_total_processes` and the process rows."""

    name = "process"
    wants = WANTS

    def __init__(self, settings: DialectSettings) -> None:
        node = node_labels(settings)
        self._settings = settings
        self._rows = Rows.under(settings)
        self._count = FamilySpec(
            "gpu_process_count",
            "gauge",
            "Number of processes on each GPU; 0 when there is none.",
            (*node, "gpu"),
            source="process lists",
        )
        self._total = FamilySpec(
            "gpu_total_processes",
            "gauge",
            "Number of processes over all GPUs; absent when a GPU could not be read.",
            node,
            source="process lists",
        )
        self.specs = (self._count, self._total, *self._rows.specs)

    def tell(self, page: Page) -> Iterable[Family]:
        """The families of one Page."""
        counts = {
            self._rows.gpu(reading.device): sum(1 for _ in self._rows.counted(reading.processes))
            for reading in (page.snapshot.holders if page.snapshot else ())
            if reading.processes is not None
        }
        totals = tell_counts(page, self._settings, self._count, self._total, counts)
        return (*totals, *self._rows.tell(page))

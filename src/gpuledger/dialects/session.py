"""The vocabulary of document 001: sessions per GPU, with the same process rows as document 000."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.dialects.rows import WANTS, Rows, node_labels, tell_counts
from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.page import Page


class SessionDialect:
    """`gpu_session_count`, `gpu_total_sessions` and the process rows."""

    name = "session"
    wants = WANTS

    def __init__(self, settings: DialectSettings) -> None:
        node = node_labels(settings)
        self._settings = settings
        self._rows = Rows.under(settings)
        self._count = FamilySpec(
            "gpu_session_count",
            "gauge",
            "Number of open sessions on each GPU; 0 when there is none.",
            (*node, "gpu"),
            source="ledger",
        )
        self._total = FamilySpec(
            "gpu_total_sessions",
            "gauge",
            "Number of open sessions over all GPUs; absent when a GPU could not be read.",
            node,
            source="ledger",
        )
        self.specs = (self._count, self._total, *self._rows.specs)

    def tell(self, page: Page) -> Iterable[Family]:
        """The families of one Page."""
        counts: dict[str, int] = {}
        for reading in page.snapshot.holders if page.snapshot else ():
            uuid = reading.device.uuid
            if reading.processes is not None and uuid in page.ledger.compute_sessions:
                drawing = page.ledger.graphics_sessions[uuid] if self._settings.graphics else 0
                counts[self._rows.gpu(reading.device)] = page.ledger.compute_sessions[uuid] + drawing
        totals = tell_counts(page, self._settings, self._count, self._total, counts)
        return (*totals, *self._rows.tell(page))

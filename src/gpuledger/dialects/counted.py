"""What the dialects of documents 000 and 001 have in common: a count per GPU, its sum, and the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuledger.dialects.rows import WANTS, Rows
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.page import Page
from gpuledger.model.snapshot import Reading, Snapshot

Count = Callable[[Page, Reading], int | None]


class CountedDialect:
    """Counts something on every Device. `count` answers None where it is not known: no sample then."""

    wants = WANTS

    def __init__(self, name: str, rows: Rows, per_gpu: FamilySpec, total: FamilySpec, count: Count) -> None:
        self.name = name
        self.specs = (per_gpu, total, *rows.specs)
        self._rows = rows
        self._per_gpu = per_gpu
        self._total = total
        self._count = count

    def tell(self, page: Page) -> Iterable[Family]:
        """The families of one Page."""
        by_gpu, everything = Family(self._per_gpu), Family(self._total)
        if page.snapshot is not None:
            node = self._rows.node
            for reading in page.snapshot.holders:
                by_gpu.add(self._count(page, reading), *node, self._rows.gpu(reading.device))
            if _is_whole(page.snapshot):
                everything.add(sum(by_gpu.samples.values()), *node)
        return (by_gpu, everything, *self._rows.tell(page))


def _is_whole(snapshot: Snapshot) -> bool:
    """Whether every Device was listed and every process list read: only then is a total a total."""
    return not snapshot.devices_failed and all(reading.processes is not None for reading in snapshot.holders)

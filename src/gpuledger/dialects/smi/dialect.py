"""nvidia_gpu_exporter's vocabulary: `nvidia_smi_*`, one family for each field that nvidia-smi prints.

Names, units and values are those that it prints for the same card, mistakes such as a number in a model's
name included: who comes from it finds every series again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.dialects.settings import SmiDialectSettings
from gpuledger.dialects.smi import hardware, health, printed, processes
from gpuledger.dialects.smi.columns import GPU_INFO, Columns, column_spec
from gpuledger.dialects.smi.fields import HEADERS
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.page import Page
from gpuledger.model.quantities import COLUMNS, Quantity

_OWN = (GPU_INFO, *processes.SPECS, *hardware.SPECS, *health.SPECS)


class SmiDialect:
    """Columns where the source has them, else what can be told of the same fields from quantities."""

    name = "smi"
    # Beside fields of nvidia-smi that are known today a page may have those of tomorrow's driver.
    specs: tuple[FamilySpec, ...] = (*_OWN, *(column_spec(header) for header in HEADERS))
    wants: frozenset[Quantity] = printed.WANTS | hardware.WANTS | {COLUMNS}

    def __init__(self, settings: SmiDialectSettings, version: str) -> None:
        self._settings = settings
        self._version = version
        self._columns = Columns(spec.name for spec in _OWN)

    def tell(self, page: Page) -> Iterable[Family]:
        """The families of one Page; without a Snapshot only how reading goes, and counters."""
        return list(self._families(page))

    def _families(self, page: Page) -> Iterator[Family]:
        if page.snapshot is not None:
            yield from self._columns.tell(page.snapshot)
            if self._settings.compute_apps:
                yield from processes.tell(page, page.snapshot)
            yield from hardware.tell(page.snapshot)
        yield from hardware.tell_xids(page)
        yield from health.tell(page, self._version)

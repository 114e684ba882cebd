"""nvidia_gpu_exporter's vocabulary: `nvidia_smi_*`, one family for each field that nvidia-smi prints.

Names, units and values are those that it prints for the same card, mistakes such as a number in a model's
name included: who comes from it finds every series again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpuledger.dialects.settings import SmiDialectSettings
from gpuledger.dialects.smi import hardware, printed, processes
from gpuledger.dialects.smi.columns import GPU_INFO, Columns, column_spec
from gpuledger.dialects.smi.fields import HEADERS, PREFIX
from gpuledger.model.family import Family, FamilySpec, single
from gpuledger.model.node_state import CollectorHealth, NodeState
from gpuledger.model.quantities import COLUMNS, Quantity

_FAILED = FamilySpec(
    f"{PREFIX}failed_scrapes_total",
    "counter",
    "Readings that failed since the program started, the whole or its columns.",
    source="the tick",
)
_EXIT_CODE = FamilySpec(
    f"{PREFIX}command_exit_code",
    "gauge",
    "Exit code of nvidia-smi at the last reading; -1 when there was none or its answer could not be read, 0 "
    "when NVML was read and answered.",
    source="the command",
)
_SUCCESS = FamilySpec(
    f"{PREFIX}last_collect_success", "gauge", "1 when the last reading worked, else 0.", source="the tick"
)
_LAST = FamilySpec(
    f"{PREFIX}last_collect_success_timestamp_seconds",
    "gauge",
    "Unix time of the last reading that worked.",
    source="the tick",
)
_SECONDS = FamilySpec(
    f"{PREFIX}last_collect_duration_seconds",
    "gauge",
    "Time that the last reading took.",
    source="the tick",
)
_BUILD = FamilySpec(
    "nvidia_gpu_exporter_build_info",
    "gauge",
    "1, with the version of gpuledger, which stands in for nvidia_gpu_exporter.",
    ("version",),
    source="the program",
)
SPECS: Final = (_FAILED, _EXIT_CODE, _SUCCESS, _LAST, _SECONDS, _BUILD)

# The parts of the tick without which no GPU has its columns.
_NEEDED: Final = ("source", COLUMNS.key)


def health_families(page: NodeState, version: str) -> Iterator[Family]:
    """Families of one Page. Before the first reading, and in a pause, nothing is said of it."""
    parts = [part for part in page.health.collectors if part.name in _NEEDED]
    success = page.snapshot is not None and all(part.success for part in parts)
    yield single(_FAILED, sum(part.failures for part in parts) if parts else None)
    if page.health.tried and not page.health.paused:
        yield single(_EXIT_CODE, _exit_code(page))
        yield single(_SUCCESS, int(success))
    yield single(_LAST, _last_success(parts))
    yield single(_SECONDS, next((part.seconds for part in parts if part.name == "source"), None))
    yield single(_BUILD, 1, version)


def _exit_code(page: NodeState) -> int:
    code = page.source.exit_code or 0
    # A command that ended well and told nothing, or does not end at all.
    return -1 if code == 0 and page.snapshot is None else code


def _last_success(parts: list[CollectorHealth]) -> float | None:
    times = [part.last_success for part in parts]
    return None if None in times or not times else min(time for time in times if time is not None)


_OWN = (GPU_INFO, *processes.SPECS, *hardware.SPECS, *SPECS)


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

    def families(self, page: NodeState) -> Iterable[Family]:
        """The families of one Page; without a Snapshot only how reading goes, and counters."""
        return list(self._families(page))

    def _families(self, page: NodeState) -> Iterator[Family]:
        if page.snapshot is not None:
            yield from self._columns.families(page.snapshot)
            if self._settings.compute_apps:
                yield from processes.process_families(page, page.snapshot)
            yield from hardware.hardware_families(page.snapshot)
        yield from hardware.xid_families(page)
        yield from health_families(page, self._version)

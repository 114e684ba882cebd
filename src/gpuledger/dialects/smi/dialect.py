"""The smi dialect: the `nvidia_smi_*` families of nvidia_gpu_exporter, one per field of nvidia-smi.

Names, units and values equal those of nvidia_gpu_exporter for the same card, including its mistakes (such as
a value taken from a number in a model name), so that its users find all series unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpuledger.dialects.labels import nvidia_only
from gpuledger.dialects.settings import SmiDialectSettings
from gpuledger.dialects.smi import emulated_row as printed
from gpuledger.dialects.smi import hardware, processes
from gpuledger.dialects.smi.columns import GPU_INFO, ColumnFamilies, column_spec
from gpuledger.dialects.smi.fields import HEADERS, declare_smi_family
from gpuledger.model.family import Family, FamilySpec, single_sample_family
from gpuledger.model.node_state import CollectorHealth, NodeState
from gpuledger.model.quantities import COLUMNS, PCIE_SAMPLES, Quantity

_FAILED = declare_smi_family(
    "failed_scrapes_total",
    "Failed readings since the program started, of the source or of its columns.",
    source="the tick",
)
_EXIT_CODE = declare_smi_family(
    "command_exit_code",
    "Exit code of nvidia-smi at the last reading; -1 if it did not exit or its output could not be parsed, 0 "
    "if NVML was read successfully.",
    source="the command",
)
_RETURN_CODE = declare_smi_family(
    "nvml_return_code",
    "NVML's code of the last reading, 0 if it succeeded; -1 if it failed without one. Only with NVML.",
    source="nvmlReturn_t",
)
_SUCCESS = declare_smi_family(
    "last_collect_success", "1 if the last reading succeeded, else 0.", source="the tick"
)
_LAST = declare_smi_family(
    "last_collect_success_timestamp_seconds", "Unix time of the last successful reading.", source="the tick"
)
_SECONDS = declare_smi_family(
    "last_collect_duration_seconds", "Duration of the last reading.", source="the tick"
)
_BUILD = FamilySpec(
    "nvidia_gpu_exporter_build_info",
    "gauge",
    "1, with the version of gpuledger, which replaces nvidia_gpu_exporter.",
    ("version",),
    source="the program",
)
SPECS: Final = (_FAILED, _EXIT_CODE, _RETURN_CODE, _SUCCESS, _LAST, _SECONDS, _BUILD)

# The collectors that columns depend on.
_NEEDED: Final = ("source", COLUMNS.key)


def health_families(state: NodeState, version: str) -> Iterator[Family]:
    """Yields the families of reading itself; no result before the first reading and while paused."""
    collectors = [collector for collector in state.health.collectors if collector.name in _NEEDED]
    success = state.snapshot is not None and all(collector.success for collector in collectors)
    failures = sum(collector.failures for collector in collectors) if collectors else None
    yield single_sample_family(_FAILED, failures)
    if state.health.attempted and not state.health.paused:
        yield single_sample_family(_EXIT_CODE, _exit_code(state))
        yield single_sample_family(_RETURN_CODE, _return_code(state))
        yield single_sample_family(_SUCCESS, int(success))
    yield single_sample_family(_LAST, _last_success(collectors))
    seconds = (collector.seconds for collector in collectors if collector.name == "source")
    yield single_sample_family(_SECONDS, next(seconds, None))
    yield single_sample_family(_BUILD, 1, version)


def _exit_code(state: NodeState) -> int:
    code = state.source.exit_code or 0
    # The command exited with 0 but without usable output, or it has not exited.
    return -1 if code == 0 and state.snapshot is None else code


def _return_code(state: NodeState) -> int | None:
    if "nvml" not in state.source.name.split("+"):
        return None
    return 0 if state.snapshot is not None else state.source.return_code or -1


def _last_success(collectors: list[CollectorHealth]) -> float | None:
    times = [collector.last_success for collector in collectors]
    return None if None in times or not times else min(time for time in times if time is not None)


_OWN = (GPU_INFO, *processes.SPECS, *hardware.SPECS, *SPECS)


_COLUMNS_ONLY = frozenset({COLUMNS})


class SmiDialect:
    """Exports nvidia-smi's columns if the source has them, else the same fields computed from quantities."""

    name = "smi"
    # The known fields of nvidia-smi. A page can also have fields of newer drivers.
    specs: tuple[FamilySpec, ...] = (*_OWN, *(column_spec(header) for header in HEADERS))
    required_quantities: frozenset[Quantity] = (
        printed.REQUIRED_QUANTITIES | hardware.REQUIRED_QUANTITIES | {COLUMNS}
    )

    def __init__(self, settings: SmiDialectSettings, version: str) -> None:
        self._settings = settings
        if settings.pcie_throughput:
            self.required_quantities = self.required_quantities | {PCIE_SAMPLES}
        self._version = version
        self._columns = ColumnFamilies(spec.name for spec in _OWN)

    def families(self, state: NodeState) -> Iterable[Family]:
        """Returns the families of one NodeState; without a Snapshot only health and Xid counters."""
        return list(self._families(nvidia_only(state)))

    def _families(self, state: NodeState) -> Iterator[Family]:
        # Before columns are read, a page would have the labels of computed fields.
        if state.snapshot is not None and state.has_read(_COLUMNS_ONLY):
            yield from self._columns.families(state.snapshot)
            if self._settings.compute_apps:
                yield from processes.process_families(state, state.snapshot)
            yield from hardware.hardware_families(state.snapshot)
        yield from hardware.xid_families(state)
        yield from health_families(state, self._version)

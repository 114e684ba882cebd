"""The energy dialect of document 003: energy and utilization per process.

The document promises "measured, not estimated" energy per process, which no hardware provides
(`dcgmPidSingleInfo_t.energyConsumed` is that of the whole GPU). The ledger splits the GPU's energy counter
instead; `_energy_measured_joules` is the part that needed no split.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.dialects.labels import gpu_label
from gpuledger.dialects.settings import DialectSettings, EnergyDialectSettings
from gpuledger.model.family import Family, FamilySpec, LabelValues
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import EnergyRow

_LABELS = ("pid", "gpu", "process_name", "pod", "namespace", "container", "pod_uid", "container_id")
_OTHER = "other"
_ENERGY = "ledger, from the GPU's energy counter"
_UTILIZATION = "nvmlDeviceGetProcessesUtilizationInfo"

# Name without prefix, help text and source, in page order.
_FAMILIES = (
    (
        "energy_joules",
        "Energy booked to the process, measured and apportioned; absent if the GPU has no energy counter and "
        "no power reading.",
        _ENERGY,
    ),
    (
        "energy_measured_joules",
        "Energy booked to the process while no other process shared the GPU; absent like energy_joules.",
        _ENERGY,
    ),
    (
        "sm_utilization_ratio",
        "Fraction of time for which the process kept the SMs busy.",
        _UTILIZATION,
    ),
    (
        "memory_utilization_ratio",
        "Fraction of time for which the process read or wrote device memory; not its amount of memory.",
        _UTILIZATION,
    ),
    ("memory_used_bytes", "Device memory used by the process.", "process lists usedGpuMemory"),
    ("start_time_seconds", "Unix time at which the process started.", "/proc/PID/stat field 22"),
    ("active", "1 while the process runs, 0 after it has ended.", "process lists"),
)


class EnergyDialect:
    """`<prefix>_energy_joules` and related families for every running or recently ended process."""

    name = "energy"
    required_quantities: frozenset[Quantity] = frozenset()

    def __init__(self, settings: DialectSettings, energy: EnergyDialectSettings | None = None) -> None:
        self._settings = settings
        total = "_total" if energy is not None and energy.total_suffix else ""
        self.specs = tuple(
            FamilySpec(
                f"{settings.metric_prefix}_{name}{total if name.startswith('energy') else ''}",
                "counter" if name.startswith("energy") else "gauge",
                help_text,
                _LABELS,
                source=source,
            )
            for name, help_text, source in _FAMILIES
        )

    def families(self, state: NodeState) -> Iterable[Family]:
        """Returns the families of one NodeState; without a Snapshot, utilization is omitted."""
        families = tuple(Family(spec) for spec in self.specs)
        energy, measured, sm, bandwidth, memory, start, active = families
        alive: dict[ProcessKey, GpuProcess] = {}
        if state.snapshot is not None:
            alive = {process.key: process for process in state.snapshot.processes}
        for row in state.ledger.energy.rows:
            labels = self._labels(row)
            if row.metered:
                energy.add(row.millijoules / 1000, *labels)
                measured.add(row.measured / 1000, *labels)
            if row.other:
                continue
            start.add(row.process.host.start.unix, *labels)
            current = alive.get(row.process.key) if row.active else None
            if current is not None:
                sm.add(current.usage.sm, *labels)
                bandwidth.add(current.usage.memory, *labels)
                memory.add(current.memory, *labels)
            if state.snapshot is not None or not row.active:
                active.add(int(row.active), *labels)
        return families

    def _labels(self, row: EnergyRow) -> LabelValues:
        process = row.process
        gpu = gpu_label(process.device, self._settings)
        if row.other:
            return (_OTHER, gpu, "", "", "", "", "", "")
        owner = process.workload
        names = (owner.pod, owner.namespace, owner.container, owner.pod_uid, owner.container_id)
        return (str(process.pid), gpu, process.command, *names)

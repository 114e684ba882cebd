"""The vocabulary of document 003: energy per process, and what it did with it.

The document promises "measured, not estimated" per process; no hardware tells that
(`dcgmPidSingleInfo_t.energyConsumed` is the whole GPU's). What it wants, shares that sum to the GPU's
counter, comes from the ledger: `_energy_measured_joules` is the part that needed no apportioning.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.dialects.labels import gpu_label
from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.family import Family, FamilySpec, LabelValues
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import EnergyRow

_LABELS = ("pid", "gpu", "process_name", "pod", "namespace", "container", "pod_uid", "container_id")
_OTHER = "other"
_UTILIZATION = "nvmlDeviceGetProcessesUtilizationInfo"


class EnergyDialect:
    """`<prefix>_energy_joules` and its companions: every process, alive or lately gone."""

    name = "energy"
    wants: frozenset[Quantity] = frozenset()

    def __init__(self, settings: DialectSettings) -> None:
        self._settings = settings
        prefix = settings.metric_prefix

        def spec(name: str, help_text: str, source: str, *, counter: bool = False) -> FamilySpec:
            return FamilySpec(
                f"{prefix}_{name}", "counter" if counter else "gauge", help_text, _LABELS, source=source
            )

        self._energy = spec(
            "energy_joules",
            "Energy booked to the process: the measured and the apportioned part.",
            "ledger, from the GPU's energy counter",
            counter=True,
        )
        self._measured = spec(
            "energy_measured_joules",
            "The part of the process's energy that no other process shared.",
            "ledger, from the GPU's energy counter",
            counter=True,
        )
        self._sm = spec(
            "sm_utilization_ratio", "Share of time in which the process kept the SMs busy.", _UTILIZATION
        )
        self._bandwidth = spec(
            "memory_utilization_ratio",
            "Share of time in which the process read or wrote device memory; not a fill level.",
            _UTILIZATION,
        )
        self._memory = spec(
            "memory_used_bytes", "Device memory that the process holds.", "process lists usedGpuMemory"
        )
        self._start = spec(
            "start_time_seconds", "Unix time at which the process started.", "/proc/PID/stat field 22"
        )
        self._active = spec("active", "1 while the process runs, 0 after it has ended.", "process lists")
        self.specs = (
            self._energy,
            self._measured,
            self._sm,
            self._bandwidth,
            self._memory,
            self._start,
            self._active,
        )

    def families(self, page: NodeState) -> Iterable[Family]:
        """The families of one Page. Energy stays while there is no Snapshot; what a process does now goes."""
        families = tuple(Family(spec) for spec in self.specs)
        energy, measured, sm, bandwidth, memory, start, active = families
        alive: dict[ProcessKey, GpuProcess] = {}
        if page.snapshot is not None:
            alive = {process.key: process for process in page.snapshot.processes}
        for row in page.ledger.energy.rows:
            who = self._labels(row)
            energy.add(row.millijoules / 1000, *who)
            measured.add(row.measured / 1000, *who)
            if row.other:
                continue
            start.add(row.process.host.start.unix, *who)
            now = alive.get(row.process.key) if row.active else None
            if now is not None:
                sm.add(now.usage.sm, *who)
                bandwidth.add(now.usage.memory, *who)
                memory.add(now.memory, *who)
            if page.snapshot is not None or not row.active:
                active.add(int(row.active), *who)
        return families

    def _labels(self, row: EnergyRow) -> LabelValues:
        process = row.process
        gpu = gpu_label(process.device, self._settings)
        if row.other:
            return (_OTHER, gpu, "", "", "", "", "", "")
        owner = process.workload
        names = (owner.pod, owner.namespace, owner.container, owner.pod_uid, owner.container_id)
        return (str(process.pid), gpu, process.command, *names)

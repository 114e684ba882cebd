"""The process and session dialects (documents 000 and 001), which share the process families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpuledger.dialects.labels import gpu_label
from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.family import Family, FamilySpec, LabelValues
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import MEMORY_TOTAL, Quantity
from gpuledger.model.snapshot import Reading, Snapshot

REQUIRED_QUANTITIES: frozenset[Quantity] = frozenset({MEMORY_TOTAL})

_MIB = 1024 * 1024
_PROCESS_LABELS = ("gpu", "pid", "command", "pod", "namespace", "container")
_NONE = "none"

ProcessFamilies = tuple[Family, Family, Family]


class ProcessRows:
    """The three process families, with labels according to the user's settings.

    The families of the last NodeState are cached, because both dialects export them.
    """

    def __init__(self, settings: DialectSettings) -> None:
        self.settings = settings
        self.node = (settings.node_name,) if settings.node_name else ()
        self.node_label = ("node",) if settings.node_name else ()
        memory = ("gpu_memory",) if settings.memory_label else ()
        labels = (*self.node_label, *_PROCESS_LABELS)
        self.specs = (
            FamilySpec(
                "gpu_process_info",
                "gauge",
                'A process on the GPU (1, status="active"), or a GPU without processes (0, status="idle").',
                (*labels, "status", *memory),
                source="process lists; host; workload",
            ),
            FamilySpec(
                "gpu_process_utilization",
                "gauge",
                "Percentage of time for which the process kept the SMs busy.",
                labels,
                source="nvmlDeviceGetProcessesUtilizationInfo smUtil",
            ),
            FamilySpec(
                "gpu_process_memory_utilization",
                "gauge",
                "Percentage of the GPU's memory used by the process.",
                labels,
                source="process lists usedGpuMemory; nvmlDeviceGetMemoryInfo_v2 total",
            ),
        )
        self._last: tuple[NodeState, ProcessFamilies] | None = None

    def counted_processes(self, processes: Iterable[GpuProcess]) -> Iterator[GpuProcess]:
        """Yields the processes to count; includes graphics-only ones if `process.graphics` is set."""
        return (process for process in processes if self.settings.graphics or process.computes)

    def families(self, state: NodeState) -> ProcessFamilies:
        """Returns the process families; without a Snapshot they are empty."""
        last = self._last
        if last is not None and last[0] is state:
            return last[1]
        info, utilization, memory_utilization = self.specs
        families = (Family(info), Family(utilization), Family(memory_utilization))
        for reading in state.snapshot.process_readings if state.snapshot is not None else ():
            if reading.processes is not None:
                self._add_device(reading, reading.processes, state, families)
        self._last = (state, families)
        return families

    def _add_device(
        self, reading: Reading, processes: tuple[GpuProcess, ...], state: NodeState, families: ProcessFamilies
    ) -> None:
        info, utilization, memory_utilization = families
        gpu = gpu_label(reading.device, self.settings)
        omitted = state.ledger.omitted.get(reading.device.uuid, frozenset())
        total = reading.get(MEMORY_TOTAL)
        is_idle = True
        for process in self.counted_processes(processes):
            is_idle = False
            if omitted and process.key in omitted:
                continue
            labels = (*self.node, *self._labels(gpu, process))
            info.add(1, *labels, "active", *self._memory(process))
            if process.usage.sm is not None:
                # The driver reports whole percents, so 0.57 * 100 must be exported as 57.
                utilization.add(round(process.usage.sm * 100.0, 9), *labels)
            if process.memory is not None and total:
                memory_utilization.add(process.memory * 100.0 / total, *labels)
        if is_idle:
            memory = ("0MiB",) if self.settings.memory_label else ()
            info.add(0, *self.node, gpu, _NONE, _NONE, _NONE, _NONE, _NONE, "idle", *memory)

    def _labels(self, gpu: str, process: GpuProcess) -> LabelValues:
        prefixed = self.settings.pid_label == "gpu-prefixed"
        pid = f"gpu{process.device.gpu.index}_{process.pid}" if prefixed else str(process.pid)
        owner = process.workload
        return (gpu, pid, process.command, owner.pod, owner.namespace, owner.container)

    def _memory(self, process: GpuProcess) -> tuple[str, ...]:
        if not self.settings.memory_label:
            return ()
        return ("" if process.memory is None else f"{process.memory // _MIB}MiB",)


Count = Callable[[NodeState, Reading], int | None]


class CountedDialect:
    """Exports a count per Device and the total. If `count` returns None (unknown), there is no sample.

    `total` is the name of the family of the total, `counted` says what is counted.
    """

    required_quantities = REQUIRED_QUANTITIES

    def __init__(
        self, name: str, total: str, counted: str, source: str, rows: ProcessRows, count: Count
    ) -> None:
        self.name = name
        self._per_gpu = FamilySpec(
            f"gpu_{name}_count",
            "gauge",
            f"Number of {counted} on the GPU.",
            (*rows.node_label, "gpu"),
            source=source,
        )
        self._total = FamilySpec(
            total,
            "gauge",
            f"Number of {counted} on all GPUs; absent if a GPU could not be read.",
            rows.node_label,
            source=source,
        )
        self.specs = (self._per_gpu, self._total, *rows.specs)
        self._rows = rows
        self._count = count

    def families(self, state: NodeState) -> Iterable[Family]:
        """Returns the families of one NodeState."""
        by_gpu, total = Family(self._per_gpu), Family(self._total)
        if state.snapshot is not None:
            node = self._rows.node
            for reading in state.snapshot.process_readings:
                gpu = gpu_label(reading.device, self._rows.settings)
                by_gpu.add(self._count(state, reading), *node, gpu)
            if _is_complete(state.snapshot):
                total.add(sum(by_gpu.samples.values()), *node)
        return (by_gpu, total, *self._rows.families(state))


def _is_complete(snapshot: Snapshot) -> bool:
    """Returns whether all Devices and all process lists were read; otherwise a total would be too low."""
    return not snapshot.devices_failed and all(
        reading.processes is not None for reading in snapshot.process_readings
    )


def process_dialect(rows: ProcessRows) -> CountedDialect:
    """Creates the process dialect: `gpu_process_count`, `gpu_total_processes` and the process families."""

    def count(_state: NodeState, reading: Reading) -> int | None:
        if reading.processes is None:
            return None
        return sum(1 for _ in rows.counted_processes(reading.processes))

    return CountedDialect("process", "gpu_total_processes", "processes", "process lists", rows, count)


def session_dialect(rows: ProcessRows) -> CountedDialect:
    """Creates the session dialect: `gpu_session_count`, `gpu_total_sessions` and the process families."""

    def count(state: NodeState, reading: Reading) -> int | None:
        computing = state.ledger.compute_sessions.get(reading.device.uuid)
        if computing is None or not rows.settings.graphics:
            return computing
        return computing + state.ledger.graphics_sessions[reading.device.uuid]

    return CountedDialect("session", "gpu_total_sessions", "open sessions", "ledger", rows, count)

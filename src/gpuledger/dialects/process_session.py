"""The process rows that the documents 000 and 001 share: one declaration, told by both dialects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpuledger.dialects.labels import gpu_label
from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.devices import Device
from gpuledger.model.family import Family, FamilySpec, LabelValues
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import MEMORY_TOTAL, Quantity
from gpuledger.model.snapshot import Reading, Snapshot

WANTS: frozenset[Quantity] = frozenset({MEMORY_TOTAL})

_MIB = 1024 * 1024
_WHO = ("gpu", "pid", "command", "pod", "namespace", "container")
_NONE = "none"

Told = tuple[Family, Family, Family]


class Rows:
    """The three process families, their labels shaped by the user's settings.

    The rows of a Page are made once, whichever dialects tell them.
    """

    def __init__(self, settings: DialectSettings) -> None:
        self.settings = settings
        self.node = (settings.node_name,) if settings.node_name else ()
        self.node_label = ("node",) if settings.node_name else ()
        memory = ("gpu_memory",) if settings.memory_label else ()
        self._info = FamilySpec(
            "gpu_process_info",
            "gauge",
            'A process on the GPU (1, status="active"), or a GPU without one (0, status="idle").',
            (*self.node_label, *_WHO, "status", *memory),
            source="process lists; host; workload",
        )
        self._utilization = FamilySpec(
            "gpu_process_utilization",
            "gauge",
            "Share of time in which the process kept the SMs busy, in percent.",
            (*self.node_label, *_WHO),
            source="nvmlDeviceGetProcessesUtilizationInfo smUtil",
        )
        self._memory_utilization = FamilySpec(
            "gpu_process_memory_utilization",
            "gauge",
            "Share of the GPU's memory that the process holds, in percent.",
            (*self.node_label, *_WHO),
            source="process lists usedGpuMemory; nvmlDeviceGetMemoryInfo_v2 total",
        )
        self.specs = (self._info, self._utilization, self._memory_utilization)
        self._last: tuple[NodeState, Told] | None = None

    def gpu(self, device: Device) -> str:
        """The `gpu` label of a Device."""
        return gpu_label(device, self.settings)

    def counted(self, processes: Iterable[GpuProcess]) -> Iterator[GpuProcess]:
        """The processes that these dialects count: all but the merely graphic ones, unless asked."""
        return (process for process in processes if self.settings.graphics or process.computes)

    def families(self, page: NodeState) -> Told:
        """The process rows of a page; none at all while there is no Snapshot."""
        last = self._last
        if last is not None and last[0] is page:
            return last[1]
        families = (Family(self._info), Family(self._utilization), Family(self._memory_utilization))
        for reading in page.snapshot.holders if page.snapshot is not None else ():
            if reading.processes is not None:
                self._tell_device(reading, reading.processes, page, families)
        self._last = (page, families)
        return families

    def _tell_device(
        self, reading: Reading, processes: tuple[GpuProcess, ...], page: NodeState, families: Told
    ) -> None:
        info, utilization, memory_utilization = families
        gpu = self.gpu(reading.device)
        untold = page.ledger.omitted.get(reading.device.uuid, frozenset())
        total = reading.get(MEMORY_TOTAL)
        anybody = False
        for process in self.counted(processes):
            anybody = True
            if untold and process.key in untold:
                continue
            who = (*self.node, *self._who(gpu, process))
            info.add(1, *who, "active", *self._memory(process))
            if process.usage.sm is not None:
                # The driver tells whole percents: 0.57 * 100 must come out as 57.
                utilization.add(round(process.usage.sm * 100.0, 9), *who)
            if process.memory is not None and total:
                memory_utilization.add(process.memory * 100.0 / total, *who)
        if not anybody:
            memory = ("0MiB",) if self.settings.memory_label else ()
            info.add(0, *self.node, gpu, _NONE, _NONE, _NONE, _NONE, _NONE, "idle", *memory)

    def _who(self, gpu: str, process: GpuProcess) -> LabelValues:
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
    """Counts something on every Device. `count` answers None where it is not known: no sample then."""

    wants = WANTS

    def __init__(self, name: str, rows: Rows, per_gpu: FamilySpec, total: FamilySpec, count: Count) -> None:
        self.name = name
        self.specs = (per_gpu, total, *rows.specs)
        self._rows = rows
        self._per_gpu = per_gpu
        self._total = total
        self._count = count

    def families(self, page: NodeState) -> Iterable[Family]:
        """The families of one Page."""
        by_gpu, everything = Family(self._per_gpu), Family(self._total)
        if page.snapshot is not None:
            node = self._rows.node
            for reading in page.snapshot.holders:
                by_gpu.add(self._count(page, reading), *node, self._rows.gpu(reading.device))
            if _is_whole(page.snapshot):
                everything.add(sum(by_gpu.samples.values()), *node)
        return (by_gpu, everything, *self._rows.families(page))


def _is_whole(snapshot: Snapshot) -> bool:
    """Whether every Device was listed and every process list read: only then is a total a total."""
    return not snapshot.devices_failed and all(reading.processes is not None for reading in snapshot.holders)


def process_dialect(rows: Rows) -> CountedDialect:
    """`gpu_process_count`, `gpu_total_processes` and the process rows."""

    def count(_page: NodeState, reading: Reading) -> int | None:
        if reading.processes is None:
            return None
        return sum(1 for _ in rows.counted(reading.processes))

    per_gpu = FamilySpec(
        "gpu_process_count",
        "gauge",
        "Number of processes on each GPU; 0 when there is none.",
        (*rows.node_label, "gpu"),
        source="process lists",
    )
    total = FamilySpec(
        "gpu_total_processes",
        "gauge",
        "Number of processes over all GPUs; absent when a GPU could not be read.",
        rows.node_label,
        source="process lists",
    )
    return CountedDialect("process", rows, per_gpu, total, count)


def session_dialect(rows: Rows) -> CountedDialect:
    """`gpu_session_count`, `gpu_total_sessions` and the process rows."""

    def count(page: NodeState, reading: Reading) -> int | None:
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

"""The process rows that the documents 000 and 001 share: one declaration, told by both dialects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.devices import Device, Gpu
from gpuledger.model.family import Family, FamilySpec, LabelValues
from gpuledger.model.page import Page
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import MEMORY_TOTAL, Quantity
from gpuledger.model.snapshot import Reading

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
        self._last: tuple[Page, Told] | None = None

    def gpu(self, device: Device) -> str:
        """The `gpu` label: the index, and for MIG `GPU_GI_CI` or the order of MIG devices."""
        if isinstance(device, Gpu):
            return str(device.index)
        if self.settings.mig_label == "device":
            return f"{device.gpu.index}_{device.index}_0"
        return f"{device.gpu.index}_{device.gi}_{device.ci}"

    def counted(self, processes: Iterable[GpuProcess]) -> Iterator[GpuProcess]:
        """The processes that these dialects count: all but the merely graphic ones, unless asked."""
        return (process for process in processes if self.settings.graphics or process.computes)

    def tell(self, page: Page) -> Told:
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
        self, reading: Reading, processes: tuple[GpuProcess, ...], page: Page, families: Told
    ) -> None:
        info, utilization, memory_utilization = families
        gpu = self.gpu(reading.device)
        untold = page.ledger.untold.get(reading.device.uuid, frozenset())
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

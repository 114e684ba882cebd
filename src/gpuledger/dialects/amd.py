"""The amd dialect: names and labels of AMD's device metrics exporter, for AMD GPUs.

Everything is a gauge there, counts too. Metrics of a package with partitions have `gpu_partition_id="0"`, as
in AMD's exporter. `gpu_uuid` is the 16 digits of the kernel's unique id: AMD's tools print a UUID made of it
and of the PCI device id. What the kernel's files do not have is left out: XGMI, profiler, errors by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuledger.dialects.labels import readings_of_maker
from gpuledger.dialects.settings import AmdDialectSettings
from gpuledger.model import quantities as q
from gpuledger.model.devices import AMD, Instance
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import Workload

_LABELS: Final = (
    *("gpu_id", "gpu_uuid", "serial_number", "card_model", "card_series", "card_vendor", "driver_version"),
    *("vbios_version", "hostname", "gpu_partition_id", "gpu_compute_partition_type"),
    *("gpu_memory_partition_type", "pod", "namespace", "container", "job_id", "job_user", "job_partition"),
)
_VENDOR: Final = "AMD"
_MEGA: Final = 1_000_000
_MEBI: Final = 1 << 20
# Cards that report the power of the package now, and no edge temperature.
_INSTINCT_3: Final = frozenset({"CDNA 3", "CDNA 4"})
# Index and type of the clocks, as on an MI300X, which has eight system clocks: metricslist.md of
# ROCm/device-metrics-exporter. Its older releases have GPU_CLOCK_TYPE_SYSTEM instead of system.
_SYSTEM_CLOCK: Final = ("0", "system")
_MEMORY_CLOCK: Final = ("8", "memory")
_JOBS: Final = frozenset({"slurm", "job"})


@dataclass(frozen=True, slots=True)
class _AmdMetric:
    """A quantity as a metric: `scale` converts it; `more` are values of own labels; `only` selects GPUs."""

    name: str
    help: str
    quantity: Quantity
    scale: Callable[[float], float] = lambda value: value
    more: tuple[str, ...] = ()
    only: Callable[[Reading], bool] = lambda _: True


def _percent(value: float) -> float:
    return value * 100


def _mebibytes(value: float) -> float:
    return value / _MEBI


def _megahertz(value: float) -> float:
    return value / _MEGA


def _transfer_rate(generation: float) -> float:
    """Transfer rate of the link in GT/s."""
    return 2.5 * generation if generation < 3 else 8.0 * 2 ** (generation - 3)


def _is_instinct_3(reading: Reading) -> bool:
    return reading.device.gpu.architecture in _INSTINCT_3


def _is_other(reading: Reading) -> bool:
    return not _is_instinct_3(reading)


_METRICS: Final = (
    _AmdMetric("gpu_package_power", "Package power in W (MI3xx).", q.POWER, only=_is_instinct_3),
    _AmdMetric("gpu_average_package_power", "Mean package power in W (others).", q.POWER, only=_is_other),
    _AmdMetric("gpu_power_usage", "Power in W.", q.POWER),
    _AmdMetric("gpu_energy_consumed", "Energy counter in µJ.", q.ENERGY, lambda value: value * 1000),
    _AmdMetric("gpu_edge_temperature", "Edge temperature in °C.", q.TEMPERATURE, only=_is_other),
    _AmdMetric("gpu_junction_temperature", "Junction temperature in °C.", q.TEMPERATURE, only=_is_instinct_3),
    _AmdMetric("gpu_memory_temperature", "Memory temperature in °C.", q.MEMORY_TEMPERATURE),
    _AmdMetric("gpu_gfx_activity", "Utilization in %.", q.UTILIZATION, _percent),
    _AmdMetric("gpu_umc_activity", "Load of the memory controller in %.", q.MEMORY_UTILIZATION, _percent),
    _AmdMetric("gpu_clock", "Clock in MHz.", q.GRAPHICS_CLOCK, _megahertz, _SYSTEM_CLOCK),
    _AmdMetric("gpu_clock", "Clock in MHz.", q.MEMORY_CLOCK, _megahertz, _MEMORY_CLOCK),
    _AmdMetric("gpu_max_clock", "Highest clock in MHz.", q.MAX_GRAPHICS_CLOCK, _megahertz, _SYSTEM_CLOCK),
    _AmdMetric("gpu_max_clock", "Highest clock in MHz.", q.MAX_MEMORY_CLOCK, _megahertz, _MEMORY_CLOCK),
    _AmdMetric("gpu_total_vram", "VRAM in MiB.", q.MEMORY_TOTAL, _mebibytes),
    _AmdMetric("gpu_used_vram", "VRAM used, in MiB.", q.MEMORY_USED, _mebibytes),
    _AmdMetric("gpu_free_vram", "VRAM free, in MiB.", q.MEMORY_FREE, _mebibytes),
    _AmdMetric("gpu_total_visible_vram", "VRAM that the CPU can reach, in MiB.", q.BAR1_TOTAL, _mebibytes),
    _AmdMetric("gpu_used_visible_vram", "VRAM used that the CPU can reach, in MiB.", q.BAR1_USED, _mebibytes),
    _AmdMetric("gpu_ecc_correct_total", "Corrected errors of all blocks.", q.ECC_CORRECTED_VOLATILE),
    _AmdMetric("gpu_ecc_uncorrect_total", "Uncorrected errors of all blocks.", q.ECC_UNCORRECTED_VOLATILE),
    _AmdMetric("pcie_speed", "PCIe transfer rate in GT/s.", q.PCIE_GENERATION, _transfer_rate),
    _AmdMetric(
        "pcie_max_speed", "Highest PCIe transfer rate in GT/s.", q.PCIE_GENERATION_MAX, _transfer_rate
    ),
    _AmdMetric("pcie_replay_count", "PCIe replays.", q.PCIE_REPLAYS),
)


class AmdDialect:
    """Families of AMD GPUs; a page without them has only `gpu_nodes_total`, 0."""

    name = "amd"
    required_quantities: frozenset[Quantity] = frozenset(metric.quantity for metric in _METRICS)

    def __init__(self, settings: AmdDialectSettings, hostname: str = "") -> None:
        self._hostname = hostname
        prefix = settings.prefix
        self._nodes = FamilySpec(f"{prefix}gpu_nodes_total", "gauge", "AMD GPUs of this node.")
        self._health = FamilySpec(
            f"{prefix}gpu_health", "gauge", "1 if the GPU responds, else 0.", _LABELS, source="every file"
        )
        self._specs = {
            metric.name: FamilySpec(
                f"{prefix}{metric.name}",
                "gauge",
                metric.help,
                (*_LABELS, "clock_index", "clock_type") if metric.more else _LABELS,
                source=metric.quantity.key,
            )
            for metric in _METRICS
        }
        self.specs = (self._nodes, self._health, *self._specs.values())

    def families(self, state: NodeState) -> Iterable[Family]:
        """Returns the families of one NodeState; none without a Snapshot."""
        snapshot = state.snapshot
        if snapshot is None:
            return ()
        families = {name: Family(spec) for name, spec in self._specs.items()}
        nodes, health = Family(self._nodes), Family(self._health)
        gpus = [
            reading
            for reading in readings_of_maker(snapshot, AMD)
            if not isinstance(reading.device, Instance)
        ]
        nodes.add(len(gpus))
        profiles = _profiles(snapshot)
        for reading in gpus:
            labels = self._labels(reading, snapshot, profiles.get(reading.device.uuid, ""))
            health.add(int(reading.up), *labels)
            for metric in _METRICS:
                value = reading.get(metric.quantity)
                if value is not None and metric.only(reading):
                    families[metric.name].add(metric.scale(value), *labels, *metric.more)
        return (nodes, health, *families.values())

    def _labels(self, reading: Reading, snapshot: Snapshot, profile: str) -> tuple[str, ...]:
        gpu = reading.device.gpu
        compute, _, memory = profile.partition("_")
        holder = _find_holder(reading, snapshot)
        pod = holder if holder is not None and holder.kind == "pod" else None
        job = holder if holder is not None and holder.kind in _JOBS else None
        return (
            str(gpu.index),
            gpu.uuid.removeprefix("GPU-"),
            gpu.serial or "",
            gpu.name,
            gpu.name,
            _VENDOR,
            "",
            gpu.vbios or "",
            self._hostname,
            "0",
            compute,
            memory,
            *((pod.pod, pod.namespace, pod.container) if pod else ("", "", "")),
            *((job.job, job.user, job.partition) if job else ("", "", "")),
        )


def _profiles(snapshot: Snapshot) -> Mapping[str, str]:
    """The partition modes of the GPUs that have partitions, such as `cpx_nps4`."""
    instances = (reading.device for reading in snapshot.readings if isinstance(reading.device, Instance))
    return {device.parent.uuid: device.profile for device in instances}


def _find_holder(reading: Reading, snapshot: Snapshot) -> Workload | None:
    """The pod or job of the GPU if there is exactly one: by allocation, else by processes."""
    gpu = reading.device.gpu
    allocated = [
        one.workload
        for one in snapshot.allocations
        if one.device.gpu == gpu and (one.fraction is None or one.fraction > 0)
    ]
    running = [process.workload for process in snapshot.processes if process.device.gpu == gpu]
    owners = [one for one in allocated or running if one.kind == "pod" or one.kind in _JOBS]
    names = {(one.kind, one.namespace, one.pod, one.job) for one in owners}
    return owners[0] if len(names) == 1 else None

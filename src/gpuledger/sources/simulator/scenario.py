"""The parts of a scenario: the GPUs of a simulated node, and its processes, allocations and faults over time.

All values are integers, so that energy is exact: times in microseconds of scenario time (0 = creation of the
simulator), power in microwatts, loads in parts per million of an engine's time, memory in bytes. The YAML
form (in seconds, watts and ratios) is documented at the top of `scenarios/k8s-node.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuledger.model.process import ProcessType

SECOND = 1_000_000
WATT = 1_000_000
WHOLE = 1_000_000
FOREVER = 2**62

DRIVER_VERSION = "570.172.08"
LIBRARY_VERSION = "12.570.172.08"
CUDA_VERSION = "12.8"
UPTIME = 3 * 86_400 * SECOND


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """A MIG compute instance: ids, profile, multiprocessors and memory."""

    gi: int
    ci: int
    profile: str
    sm_count: int
    memory: int


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The partition of a GPU from `at` on; the first one starts at 0. `instances` None: MIG is off."""

    at: int
    instances: tuple[InstanceSpec, ...] | None


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One physical GPU.

    Power is `empty_power` without a compute context, else `resident_power`, plus up to `load_power` at full
    load of all multiprocessors, capped at `power_limit`. The energy counter starts at `counter_start` mJ; it
    is updated at each multiple of `counter_refresh`, or continuously if that is 0. `pcie_rate` and
    `nvlink_rate` are the bytes per second at full load, both directions together. `lacks` are the keys of
    quantities that this model does not support.
    """

    model: str = "NVIDIA H100 80GB HBM3"
    architecture: str = "Hopper"
    compute_capability: str = "9.0"
    uuid: str = ""
    memory: int = 81_559 * 2**20
    reserved_memory: int = 551 * 2**20
    unified_memory: bool = False
    sm_count: int = 132
    empty_power: int = 70 * WATT
    resident_power: int = 115 * WATT
    load_power: int = 550 * WATT
    power_limit: int = 700 * WATT
    power_limit_max: int = 700 * WATT
    counter_refresh: int = SECOND // 10
    counter_start: int = 0
    samples_per_second: int = 6
    sm_clock: int = 1_980_000_000
    idle_sm_clock: int = 345_000_000
    memory_clock: int = 2_619_000_000
    idle_performance_state: int = 0
    pcie_rate: int = 3_000_000_000
    nvlink_rate: int = 0
    lacks: frozenset[str] = frozenset()
    partitions: tuple[PartitionSpec, ...] = (PartitionSpec(0, None),)


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """The device of a process or an allocation: a GPU by index, or one of its Instances by gi and ci."""

    gpu: int
    gi: int | None = None
    ci: int = 0


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A Kubernetes pod. `{n}` in `name` is the number of the run; an empty `uid` is derived from the names.

    The uid and container id are known immediately, the names `known_after` microseconds after the start.
    """

    namespace: str
    name: str
    container: str
    uid: str = ""
    known_after: int = 0


@dataclass(frozen=True, slots=True)
class SlurmSpec:
    """A Slurm job step."""

    job: str
    step: str = "0"


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """A systemd service."""

    name: str


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container outside Kubernetes; an empty `id` is derived from the name."""

    name: str
    runtime: str = "docker"
    id: str = ""


OwnerSpec = PodSpec | SlurmSpec | UnitSpec | ContainerSpec | None


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process; with `every` a series of processes, one each `every`, with a random delay below `jitter`.

    From its start the process is busy for `busy`, then quiet for `quiet`, and so on; `quiet` 0 is always
    busy. While busy, it uses the multiprocessors of its device for the share `load`, varied each second by up
    to `noise` percentage points, the memory bus for `memory_load` of that time, and `encoder` and `decoder`.
    Demands that exceed an engine are scaled down proportionally. Its power is `intensity` times the device's
    load power times the load of its busiest engine. `age` is the process's age when it starts to use the GPU.
    """

    name: str
    placements: tuple[PlacementSpec, ...]
    executable: str = ""
    comm: str = ""
    types: frozenset[ProcessType] = frozenset({ProcessType.COMPUTE})
    is_mps_server: bool = False
    user: str = "root"
    uid: int = 0
    pid: int | None = None
    memory: int = 0
    load: int = 0
    noise: int = 0
    memory_load: int = 0
    encoder: int = 0
    decoder: int = 0
    intensity: int = WHOLE
    busy: int = 0
    quiet: int = 0
    start: int = 0
    stop: int = FOREVER
    every: int = 0
    duration: int = FOREVER
    jitter: int = 0
    age: int = 0
    owner: OwnerSpec = None

    @property
    def computes(self) -> bool:
        """False for graphics-only processes, which are not residents: they are charged load but no floor."""
        return self.types != frozenset({ProcessType.GRAPHICS})


@dataclass(frozen=True, slots=True)
class AllocationSpec:
    """A device allocated to a pod, used or not."""

    placement: PlacementSpec
    pod: PodSpec
    start: int = 0
    stop: int = FOREVER


FaultKind = Literal[
    "gpu_lost",
    "process_list_fails",
    "utilization_fails",
    "hang",
    "xid",
    "counter_reset",
    "bad_value",
    "source_fails",
]


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A fault that starts at `at`, ends after `duration` and repeats each `every`, if that is not 0.

    `gpu` None means every GPU. `quantity` and `value` belong to bad_value (without value the driver returns a
    sentinel, which is dropped and counted), `xid` to xid, `reason` to source_fails.
    """

    kind: FaultKind
    at: int
    duration: int = FOREVER
    every: int = 0
    gpu: int | None = None
    gi: int | None = None
    ci: int = 0
    xid: int = 0
    quantity: str = ""
    value: float | None = None
    reason: str = "unavailable"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulated node. `uptime` is its uptime at time 0."""

    name: str
    gpus: tuple[GpuSpec, ...]
    processes: tuple[ProcessSpec, ...] = ()
    allocations: tuple[AllocationSpec, ...] = ()
    faults: tuple[FaultSpec, ...] = ()
    driver_version: str = DRIVER_VERSION
    library_version: str = LIBRARY_VERSION
    cuda_version: str = CUDA_VERSION
    uptime: int = UPTIME

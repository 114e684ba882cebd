"""The words of a scenario: what a simulated node has, and what happens on it when.

Units are whole numbers, so that energy is exact: times in microseconds of scenario time (0 = the moment
the simulator was made), power in microwatts, loads in parts per million of an engine's time, memory in bytes.
The written form (YAML, in seconds, watts and ratios) is explained at the head of `scenarios/k8s-node.yaml`.
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
    """A MIG compute instance: its ids, profile, multiprocessors and memory."""

    gi: int
    ci: int
    profile: str
    sm_count: int
    memory: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How a GPU is partitioned from `at` on; the first Layout is at 0. `instances` None: MIG is off."""

    at: int
    instances: tuple[InstanceSpec, ...] | None


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One physical GPU.

    Power: `empty_power` while no compute process is resident, `resident_power` otherwise (contexts alone),
    plus `load_power` at full load of all multiprocessors, cut at `power_limit`. The energy counter starts at
    `counter_start` mJ and tells the value as of the last multiple of `counter_refresh`; 0 is continuous.
    `pcie_rate` and `nvlink_rate` are bytes a second that full load moves, both directions together.
    `lacks` are keys of quantities that this model does not have.
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
    layouts: tuple[Layout, ...] = (Layout(0, None),)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process sits or a pod is allocated: a GPU by index, or one of its Instances by gi and ci."""

    gpu: int
    gi: int | None = None
    ci: int = 0


@dataclass(frozen=True, slots=True)
class Pod:
    """A Kubernetes owner. `{n}` in `name` is the number of the run; an empty `uid` is made from the names.

    The uid and container id are known at once, the names only `known_after` microseconds after the start.
    """

    namespace: str
    name: str
    container: str
    uid: str = ""
    known_after: int = 0


@dataclass(frozen=True, slots=True)
class Slurm:
    """A Slurm job step."""

    job: str
    step: str = "0"


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd service."""

    name: str


@dataclass(frozen=True, slots=True)
class Container:
    """A container outside Kubernetes; an empty `id` is made from the name."""

    name: str
    runtime: str = "docker"
    id: str = ""


Owner = Pod | Slurm | Unit | Container | None


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process, or with `every` a series of them, one starting each `every` plus a draw below `jitter`.

    While busy it keeps the multiprocessors of its device busy for `load`, moved each second by up to `noise`
    percent points; memory bandwidth for `memory_load` of that time; encoder and decoder as given. It is
    busy for `busy`, then quiet for `quiet`, and so on from its start; `quiet` 0 is always busy. It
    causes `intensity` of the device's load power times the share of its busiest engine. Demands above one
    whole engine are scaled down together. `age` is how long it had run before it came to the GPU.
    """

    name: str
    places: tuple[Place, ...]
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
    lasting: int = FOREVER
    jitter: int = 0
    age: int = 0
    owner: Owner = None

    @property
    def computes(self) -> bool:
        """Graphics-only processes are not residents: they bear load, never a floor."""
        return self.types != frozenset({ProcessType.GRAPHICS})


@dataclass(frozen=True, slots=True)
class AllocationSpec:
    """A device handed to a pod, whether or not it runs anything there."""

    place: Place
    pod: Pod
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
    """Something that goes wrong at `at` for `lasting`, again each `every` if that is not 0.

    `gpu` None is every GPU. `quantity` and `value` belong to bad_value (no value: the driver answers with a
    sentinel, which is dropped and counted), `xid` to xid, `reason` to source_fails.
    """

    kind: FaultKind
    at: int
    lasting: int = FOREVER
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
    """A simulated node. `uptime` is how long it had been up at time 0."""

    name: str
    gpus: tuple[GpuSpec, ...]
    processes: tuple[ProcessSpec, ...] = ()
    allocations: tuple[AllocationSpec, ...] = ()
    faults: tuple[FaultSpec, ...] = ()
    driver_version: str = DRIVER_VERSION
    library_version: str = LIBRARY_VERSION
    cuda_version: str = CUDA_VERSION
    uptime: int = UPTIME

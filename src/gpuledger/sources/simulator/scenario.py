"""The parts of a scenario: the GPUs of a simulated node, and its processes, allocations and faults over time.

All values are integers, so that energy is exact: times in microseconds of scenario time (0 = creation of the
simulator), power in microwatts, loads in parts per million of an engine's time, memory in bytes. Fields that
are created by `key` are keys of the YAML form (in seconds, watts and ratios), which is documented at the top
of `scenarios/k8s-node.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from typing import Any, Final, Literal, TypeVar

from gpuledger.model.devices import AMD, INTEL, NVIDIA
from gpuledger.model.errors import unknown_name_error
from gpuledger.model.process import ProcessType
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.settings import boolean, choice, duration, integer, number, size, text

T = TypeVar("T")

SECOND = 1_000_000
WATT = 1_000_000
WHOLE = 1_000_000
FOREVER = 2**62

REQUIRED: Final[Any] = MISSING


def key(parse: Callable[[object], T], default: T = REQUIRED, name: str = "") -> T:
    """Return a dataclass field that a key of the scenario file sets; the key is `name` or the field's name.

    `parse` converts the YAML value and raises ValueError.
    """
    return field(default=default, metadata={"key": name, "parse": parse})


def parse_name(value: object) -> str:
    """Parse text that is not empty."""
    found = text(value).strip()
    if not found:
        raise ValueError("expected a name")
    return found


def parse_quantity_key(value: object) -> str:
    """Parse the key of a quantity."""
    found = text(value)
    if found not in QUANTITIES:
        raise ValueError(str(unknown_name_error("quantity", found, QUANTITIES)))
    return found


def parse_positive_duration(value: object) -> int:
    """Parse a duration above zero as microseconds."""
    found = parse_duration(value)
    if found <= 0:
        raise ValueError("expected a duration above 0")
    return found


def _parse_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError("expected a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("expected a number below 1e308") from None


def _scaled(parse: Callable[[object], float], unit: int) -> Callable[[object], int]:
    return lambda value: round(parse(value) * unit)


# `90s`, `1m30s`, or a number of seconds.
parse_duration = _scaled(duration("s"), SECOND)
_parse_ratio = _scaled(number(0, 1), WHOLE)
_parse_percent_points = _scaled(number(0, 1), 100)
_parse_watts = _scaled(number(0, 100_000), WATT)
_parse_millijoules = _scaled(number(0, 1e15), 1000)
_parse_megahertz = _scaled(number(0, 100_000), 1_000_000)
_parse_sm_count = integer(1, 10_000)
# The id of a GPU instance or a compute instance.
parse_instance_id = integer(0, 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """A MIG compute instance: ids, profile, multiprocessors and memory."""

    gi: int = key(parse_instance_id)
    ci: int = key(parse_instance_id, 0)
    profile: str = key(parse_name)
    sm_count: int = key(_parse_sm_count)
    memory: int = key(size)


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
    quantities that this model does not support. `basis` is the evidence of utilization samples of a GPU that
    is not NVIDIA's (see `MeterRules`); by default engine time. A pod's allocation is one of `replicas` of the
    GPU, or of each instance; 0: the whole device, or an unknown part if several pods have it.
    """

    model: str = key(parse_name, "NVIDIA H100 80GB HBM3")
    vendor: str = key(choice(NVIDIA, AMD, INTEL), NVIDIA)
    basis: str = key(choice("engine_time", "occupancy", "equal"), "")
    architecture: str = key(parse_name, "Hopper")
    compute_capability: str = key(parse_name, "9.0")
    uuid: str = key(parse_name, "")
    memory: int = key(size, 81_559 * 2**20)
    reserved_memory: int = key(size, 551 * 2**20)
    unified_memory: bool = key(boolean, False)
    sm_count: int = key(_parse_sm_count, 132)
    empty_power: int = key(_parse_watts, 70 * WATT, "empty_watts")
    resident_power: int = key(_parse_watts, 115 * WATT, "resident_watts")
    load_power: int = key(_parse_watts, 550 * WATT, "load_watts")
    power_limit: int = key(_parse_watts, 700 * WATT, "limit_watts")
    power_limit_max: int = key(_parse_watts, 700 * WATT, "max_limit_watts")
    counter_refresh: int = key(parse_duration, SECOND // 10)
    counter_start: int = key(_parse_millijoules, 0)
    samples_per_second: int = key(integer(1, 60), 6)
    sm_clock: int = key(_parse_megahertz, 1_980_000_000, "sm_clock_mhz")
    idle_sm_clock: int = key(_parse_megahertz, 345_000_000, "idle_sm_clock_mhz")
    memory_clock: int = key(_parse_megahertz, 2_619_000_000, "memory_clock_mhz")
    idle_performance_state: int = key(integer(0, 15), 0)
    pcie_rate: int = key(size, 3_000_000_000)
    pcie_width: int = key(integer(1, 32), 16)
    pcie_generation: int = key(integer(1, 7), 5)
    nvlink_rate: int = key(size, 0)
    lacks: frozenset[str] = frozenset()
    replicas: int = key(integer(0, 256), 0)
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

    namespace: str = key(parse_name)
    name: str = key(parse_name)
    container: str = key(parse_name, "main")
    uid: str = key(parse_name, "")
    known_after: int = key(parse_duration, 0)


@dataclass(frozen=True, slots=True)
class SlurmSpec:
    """A Slurm job step."""

    job: str = key(parse_name)
    step: str = key(text, "0")


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """A systemd service."""

    name: str


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container outside Kubernetes; an empty `id` is derived from the name."""

    name: str = key(parse_name)
    runtime: str = key(parse_name, "docker")
    id: str = key(parse_name, "")


OwnerSpec = PodSpec | SlurmSpec | UnitSpec | ContainerSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process; with `every` a series of processes, one each `every`, with a random delay below `jitter`.

    From its start the process is busy for `busy`, then quiet for `quiet`, and so on; `quiet` 0 is always
    busy. While busy, it uses the multiprocessors of its device for the share `load`, varied each second by up
    to `noise` percentage points, the memory bus for `memory_load` of that time, and `encoder` and `decoder`.
    Demands that exceed an engine are scaled down proportionally. Its power is `intensity` times the device's
    load power times the load of its busiest engine. `age` is the process's age when it starts to use the GPU.
    """

    name: str = key(parse_name)
    placements: tuple[PlacementSpec, ...]
    types: frozenset[ProcessType]
    is_mps_server: bool
    owner: OwnerSpec
    executable: str = key(parse_name, "")
    comm: str = key(parse_name, "")
    user: str = key(parse_name, "root")
    uid: int = key(integer(0, 2**32 - 2), 0)
    pid: int | None = key(integer(2, 2**22), None)
    memory: int = key(size, 0)
    load: int = key(_parse_ratio, 0)
    noise: int = key(_parse_percent_points, 0)
    memory_load: int = key(_parse_ratio, 0)
    encoder: int = key(_parse_ratio, 0)
    decoder: int = key(_parse_ratio, 0)
    intensity: int = key(_parse_ratio, WHOLE)
    busy: int = key(parse_positive_duration, 0)
    quiet: int = key(parse_positive_duration, 0)
    start: int = key(parse_duration, 0)
    stop: int = key(parse_duration, FOREVER)
    every: int = key(parse_positive_duration, 0)
    duration: int = key(parse_positive_duration, FOREVER, "for")
    jitter: int = key(parse_duration, 0)
    age: int = key(parse_duration, 0)

    @property
    def computes(self) -> bool:
        """False for graphics-only processes, which are not residents: they are charged load but no floor."""
        return self.types != frozenset({ProcessType.GRAPHICS})


@dataclass(frozen=True, slots=True)
class AllocationSpec:
    """A device allocated to a pod, used or not."""

    placement: PlacementSpec
    pod: PodSpec
    start: int = key(parse_duration, 0)
    stop: int = key(parse_duration, FOREVER)


FaultKind = Literal[
    "gpu_lost",
    "reset_required",
    "throttle",
    "row_remap",
    "pcie_link",
    "nvlink_down",
    "process_list_fails",
    "utilization_fails",
    "hang",
    "xid",
    "counter_reset",
    "bad_value",
    "source_fails",
]


# By the reason of a throttle: its bits of nvmlClocksEventReasons, and the share of the SM clock that is left.
THROTTLES: Final = {
    "sw_power_cap": (0x4, 0.8),
    "hw_slowdown": (0x8, 0.5),
    "sw_thermal": (0x20, 0.7),
    "hw_thermal": (0x40 | 0x8, 0.5),
    "power_brake": (0x80 | 0x8, 0.5),
}
PENDING: Final = "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """A fault that starts at `at`, ends after `duration` and repeats each `every`, if that is not 0.

    `gpu` None means every GPU. `quantity` and `value` belong to bad_value (without value the driver returns a
    sentinel, which is dropped and counted), `reason` to source_fails, `by` to throttle, `remap` to row_remap,
    `width` and `generation` to pcie_link, `links` to nvlink_down. The driver reports `xid` when the fault
    starts, if that is not 0.
    """

    kind: FaultKind
    at: int = key(parse_duration)
    duration: int
    every: int = key(parse_positive_duration, 0)
    gpu: int | None
    gi: int | None = key(parse_instance_id, None)
    ci: int = key(parse_instance_id, 0)
    xid: int = key(integer(1, 999), 0)
    quantity: str = key(parse_quantity_key, "")
    value: float | None = key(_parse_number, None)
    reason: str = key(parse_name, "unavailable")
    by: str = key(choice(*THROTTLES), "hw_thermal")
    remap: str = key(choice(PENDING, "failed"), PENDING)
    width: int = key(integer(1, 32), 0)
    generation: int = key(integer(1, 7), 0)
    links: int = key(integer(1, 18), 1)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulated node. `uptime` is its uptime at time 0."""

    name: str
    gpus: tuple[GpuSpec, ...]
    processes: tuple[ProcessSpec, ...]
    allocations: tuple[AllocationSpec, ...]
    faults: tuple[FaultSpec, ...]
    driver_version: str = key(text, "570.172.08")
    library_version: str = key(text, "12.570.172.08")
    cuda_version: str = key(text, "12.8")
    uptime: int = key(parse_duration, 3 * 86_400 * SECOND)

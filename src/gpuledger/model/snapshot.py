"""Snapshot, the immutable result of reading a machine once: Readings, processes, events and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuledger.model.devices import Device, Gpu, Instance, is_superchip
from gpuledger.model.process import AccountingRecord, GpuProcess, UtilizationSample
from gpuledger.model.quantities import ENERGY, Quantity
from gpuledger.model.workload import Allocation, Workload

# Maximum length of an interval in seconds. After a longer gap (a suspend, a driver that hangs) energy is
# unobserved, and who had a GPU is not known.
LONGEST_INTERVAL = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A part that could not be read, of one Device or (`device` None) of the machine.

    `reason` is a short, stable code for labels (`NOT_SUPPORTED`, `GPU_IS_LOST`); `detail` is one line for
    people.
    """

    part: str
    reason: str
    device: Device | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One Xid from the driver's event set; `gi` and `ci` only if the driver attributes it to an instance."""

    gpu: Gpu
    xid: int
    at: float
    gi: int | None = None
    ci: int | None = None


@dataclass(frozen=True, slots=True)
class CollectorRun:
    """One run of a collector (a part of the tick): wall time in seconds and the error, if any."""

    name: str
    seconds: float
    error: str = ""

    @property
    def success(self) -> bool:
        """Whether the collector worked, even if it found nothing."""
        return not self.error


@dataclass(frozen=True, slots=True)
class VgpuInstance:
    """A virtual GPU that a virtual machine of this host has.

    `vm` is the id of the virtual machine, `profile` the name of the vGPU's type (`GRID A100-10C`); each is
    empty if unknown. `memory` is what it uses of the GPU's memory in bytes, None if unknown.
    """

    uuid: str
    vm: str = ""
    profile: str = ""
    memory: int | None = None


@dataclass(frozen=True)
class MeterRules:
    """How to read the energy counter and the utilization samples of a Device; defaults are NVIDIA's.

    `epoch` replaces the Snapshot's `driver_load` as the key with which the counter restarts; empty if nothing
    but the boot is known to restart it. `starts_at_zero` is False for a counter with a first value from
    before the driver was loaded, which must not be booked. `basis` is the evidence of the samples, as a
    method of the energy accounts; empty for the driver's own samples of each period. `listed` is whether the
    source could list all Devices of this Gpu, even if others failed; None if `devices_failed` says it.
    """

    epoch: str | None = None
    starts_at_zero: bool = True
    basis: str = ""
    listed: bool | None = None


NVIDIA_RULES = MeterRules()
LISTED_RULES = MeterRules(listed=True)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one Device reported at one moment, in base units.

    `values` holds only reported quantities: a missing one is absent, not zero. `processes` is None if a
    process list could not be read, unlike `()`. `samples` are the driver's per-process samples since the last
    tick, in any order; None if they cannot be read. `supported` says, for each requested quantity by key,
    whether the Device has it. `accounting` holds the records of processes that started or ended since the
    last tick, if accounting mode is on. `raw` holds the columns of nvidia-smi's CSV: header with unit to
    cell, both as printed. `down_reason` is why the Gpu is not up, as the driver's name of an error
    (`RESET_REQUIRED`); empty if it is up, or if the reason is not known. A Device that is down may still have
    values. `vgpus` is None if the Device has no virtual GPUs, or if they were not requested. `rules` say how
    its counter and samples are booked. `unseen` is the share of the time since the last tick, 0 to 1, in
    which it worked for processes that this program may not look at, as far as that is known.
    """

    device: Device
    up: bool = True
    values: Mapping[Quantity, float] = field(default_factory=dict)
    processes: tuple[GpuProcess, ...] | None = ()
    samples: tuple[UtilizationSample, ...] | None = ()
    supported: Mapping[str, bool] = field(default_factory=dict)
    mig_enabled: bool = False
    accounting: tuple[AccountingRecord, ...] = ()
    raw: Mapping[str, str] = field(default_factory=dict)
    down_reason: str = ""
    vgpus: tuple[VgpuInstance, ...] | None = None
    rules: MeterRules = NVIDIA_RULES
    unseen: float = 0.0

    def get(self, quantity: Quantity) -> float | None:
        """Returns the value in the quantity's unit, or None if the Device did not report it."""
        return self.values.get(quantity)

    @property
    def counts_module_energy(self) -> bool:
        """Whether its energy counter covers the whole module of a superchip; its power does not."""
        return self.supported.get(ENERGY.key, ENERGY in self.values) and is_superchip(self.device.gpu.name)


def nvlinks(reading: Reading, mask: Quantity) -> tuple[int, ...] | None:
    """Returns the numbers of the links in NVLINKS_UP or NVLINKS_DOWN; None if they are not reported."""
    bits = reading.get(mask)
    return None if bits is None else tuple(link for link in range(64) if int(bits) >> link & 1)


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """What the cgroup of an owner used of the machine since it was created.

    `cpu` is microseconds of all its CPUs. `memory_peak` is bytes: the kernel's own maximum, or only the
    memory at this moment if `is_sampled`. `memory_limit` is the bytes and `cpus` the number of CPUs that it
    may use: the lowest one of its cgroup and those around it, else those of the machine. Each is None if
    it is not known. `is_limited`: the memory limit is one of a cgroup. `sluid` is that of a Slurm job in the
    name of its cgroup: its number becomes known later.
    """

    workload: Workload
    cpu: int | None = None
    memory_peak: int | None = None
    is_sampled: bool = False
    memory_limit: int | None = None
    cpus: int | None = None
    is_limited: bool = False
    sluid: str = ""


@dataclass(frozen=True)
class SourceInfo:
    """The name and versions of a source. `simulated` is true for anything but hardware.

    `exit_code` is that of the last command, -1 if the command gave no output; None for sources that run no
    commands. `return_code` is NVML's code for the last start of the driver, None for other sources, and if
    the start failed without one.
    """

    name: str
    simulated: bool = False
    driver_version: str = ""
    library_version: str = ""
    cuda_version: str = ""
    detail: str = ""
    exit_code: int | None = None
    return_code: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """One tick of one machine.

    `unix` is wall time in seconds. `elapsed` is the source's clock in seconds (boot clock, scenario,
    recording); compute durations only from it. Readings are in order of GPU index, each Gpu before its
    Instances. `devices_failed` is true if the Devices could not be listed completely. Hardware counters
    restart when `boot_id` (`/proc/sys/kernel/random/boot_id`) or `driver_load` (start of the driver's kernel
    threads) changes; each is empty if unknown. `allocations_complete` is False while a configured source of
    Allocations does not answer, or it is not known what it lists. `suspended` is for how long the machine was
    suspended since its boot, read together with `elapsed`; `interval` is the time that was planned from the
    last tick to this one. Both are seconds, None if unknown. `cgroups` is what owners use of the machine
    itself, in the ticks in which that is read.
    """

    unix: float
    elapsed: float
    source: SourceInfo
    readings: tuple[Reading, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    xids: tuple[XidEvent, ...] = ()
    failures: tuple[Failure, ...] = ()
    collected: tuple[CollectorRun, ...] = ()
    invalid: int = 0
    devices_failed: bool = False
    boot_id: str = ""
    driver_load: str = ""
    allocations_complete: bool = True
    suspended: float | None = None
    interval: float | None = None
    cgroups: tuple[CgroupUsage, ...] = ()

    # Readings that list processes: all except Gpus that have MIG Instances. Computed once: used often.
    process_readings: tuple[Reading, ...] = field(init=False, compare=False, repr=False)
    # Compute instances that share the memory of a GPU instance with a lower one, the value. `shared`
    # quantities are exported only for the lowest, so that their sum is right.
    memory_shared_with: Mapping[Device, Instance] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        cut = {reading.device.parent for reading in self.readings if isinstance(reading.device, Instance)}
        holders = tuple(reading for reading in self.readings if reading.device not in cut)
        object.__setattr__(self, "process_readings", holders)
        object.__setattr__(self, "memory_shared_with", _memory_sharers(reading.device for reading in holders))

    def get(self, reading: Reading, quantity: Quantity) -> float | None:
        """Returns the value of one of the Readings; None if it is that of a lower compute instance."""
        shared = quantity.shared and reading.device in self.memory_shared_with
        return None if shared else reading.get(quantity)

    def driver_load_of(self, reading: Reading) -> str:
        """Returns the key, with the boot, of the life of this Reading's energy counter; empty if unknown."""
        return self.driver_load if reading.rules.epoch is None else reading.rules.epoch

    def is_listed_completely(self, reading: Reading) -> bool:
        """Returns whether the source of this Reading could list all Devices of its Gpu."""
        return not self.devices_failed if reading.rules.listed is None else reading.rules.listed

    def is_gone(self, device: Device) -> bool:
        """Returns whether a Device without a Reading is certainly not there any more."""
        gpu = next((reading for reading in self.readings if reading.device == device.gpu), None)
        return not self.devices_failed if gpu is None else self.is_listed_completely(gpu)

    @property
    def processes(self) -> Iterator[GpuProcess]:
        """All reported processes, Device by Device."""
        return (process for reading in self.process_readings for process in reading.processes or ())

    @property
    def unresolved(self) -> Mapping[str, int]:
        """Processes without a fully known owner, by reason; each counts once, even on several Devices."""
        reasons = {(item.pid, item.host.start): item.workload.missing for item in self.processes}
        return Counter(reason for reason in reasons.values() if reason)


def _memory_sharers(devices: Iterable[Device]) -> dict[Device, Instance]:
    lowest: dict[tuple[Gpu, int], Instance] = {}
    instances = [device for device in devices if isinstance(device, Instance)]
    for each in sorted(instances, key=lambda instance: instance.ci):
        lowest.setdefault((each.parent, each.gi), each)
    return {each: first for each in instances if (first := lowest[each.parent, each.gi]) != each}

"""All Readings and GpuProcesses of one tick, with the tick's failures in it: immutable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.process import AccountingRecord, GpuProcess, UtilizationSample
from gpuledger.model.quantities import Quantity
from gpuledger.model.workload import Allocation


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that could not be read: of which Device (None: of the machine), which part, and why.

    `reason` is short and stable (`NOT_SUPPORTED`, `GPU_IS_LOST`), fit for a label; `detail` is one line
    for a person.
    """

    part: str
    reason: str
    device: Device | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One Xid drained from the driver's event set; `gi`/`ci` only where the driver attributes it."""

    gpu: Gpu
    xid: int
    at: float
    gi: int | None = None
    ci: int | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """How one part of the tick went: seconds of wall time, and the failure if there was one."""

    name: str
    seconds: float
    error: str = ""

    @property
    def success(self) -> bool:
        """True when the part did its work, even if it found nothing."""
        return not self.error


@dataclass(frozen=True, slots=True)
class Reading:
    """What one Device said at one moment, in base units.

    `values` holds only what was told: a quantity that is not in it is absent, not zero. `processes` is
    None when a list could not be read, which is not the same as `()`. `samples` are the driver's
    per-process samples since the last tick, newest not necessarily last; None when they are not readable.
    `supported` says for the quantities asked whether this Device has them at all. `accounting` holds
    the records of processes that began or ended since the last tick, where accounting mode is on. `raw`
    carries the columns of nvidia-smi's CSV, header with unit and cell as printed.
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

    def get(self, quantity: Quantity) -> float | None:
        """The value in the quantity's unit, or None when the Device did not tell it."""
        return self.values.get(quantity)


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Which machine and which way of reading it. `simulated` is true for anything that is not hardware.

    `exit_code` is how the command ended that was run last, -1 where it gave no answer; None for sources that
    run none.
    """

    name: str
    simulated: bool = False
    driver_version: str = ""
    library_version: str = ""
    cuda_version: str = ""
    detail: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One tick of one machine.

    `unix` is wall time in seconds; `elapsed` is the source's own clock in seconds (boot clock, scenario,
    recording), the only one that durations may be computed from. Readings come in order of GPU index,
    each Gpu before its Instances. `devices_failed` is true when the Devices could not be listed whole.
    `boot_id` and `driver_load` tell lives of the hardware counters apart; each is empty where it cannot be
    known (`/proc/sys/kernel/random/boot_id`; start of the driver's kernel threads).
    """

    unix: float
    elapsed: float
    source: SourceInfo
    readings: tuple[Reading, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    xids: tuple[XidEvent, ...] = ()
    failures: tuple[Failure, ...] = ()
    collected: tuple[Collected, ...] = ()
    invalid: int = 0
    devices_failed: bool = False
    boot_id: str = ""
    driver_load: str = ""

    # Readings on which processes are told: not a MIG-enabled Gpu that has Instances. Asked for all the time.
    holders: tuple[Reading, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        cut = {reading.device.parent for reading in self.readings if isinstance(reading.device, Instance)}
        holders = tuple(reading for reading in self.readings if reading.device not in cut)
        object.__setattr__(self, "holders", holders)

    @property
    def processes(self) -> Iterator[GpuProcess]:
        """Every process that was told, Device by Device."""
        return (process for reading in self.holders for process in reading.processes or ())

    @property
    def unresolved(self) -> Mapping[str, int]:
        """Processes whose owner is not fully known, by reason; one on several Devices counts once."""
        reasons = {(item.pid, item.host.start): item.workload.missing for item in self.processes}
        return Counter(reason for reason in reasons.values() if reason)

"""Evidence about one Gpu, collected while an interval is open."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.ledger.service_processes import NO_PROCESSES
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import AccountingRecord, GpuProcess, ProcessKey, UtilizationSample
from gpuledger.model.snapshot import Reading

# A graphics-only process below this share of engine time is a desktop and does not count as activity.
DESKTOP_SHARE = 0.05
# Bases of samples (see `MeterRules`), the strongest evidence first; others are the driver's own samples.
BASES = ("engine_time", "occupancy", "equal")
# Seconds: maximum age of a sample in the driver's buffer, and maximum difference of one machine's clocks.
_OLDEST_SAMPLE = 60.0
_SKEW = 0.5
# So many ticks in a row, each with a newest sample from before the tick before it, and from more than so many
# seconds before: a clock is behind. Samples from within the interval are those of work that ended in it.
_RECENT = 5
_LATE = 1.0


@dataclass(frozen=True, slots=True)
class ProcessLists:
    """One tick's complete process lists of a Gpu and its Instances.

    `serving` are processes of the machine that served others at that time.
    """

    at: float
    processes: Mapping[ProcessKey, GpuProcess]
    serving: frozenset[ProcessKey] = NO_PROCESSES


@dataclass(slots=True)
class Evidence:
    """The input of rules 3 to 6 for the interval that began at `began`.

    `lists` are those of all ticks: the first one begins the interval, and the last one ends it, at the wall
    time `ended_unix`. `offset` converts the driver's microseconds to the source's seconds. `activity` holds
    the time-weighted activity of Instances (`seconds x ratio`) until `activity_at`, None if any tick lacked
    it. `basis` is the weakest of the samples' bases, `unseen` the work of processes that may not be seen, as
    the sum over ticks. `records` are by pid and start time, because pids are
    reused. `ghosts` are, by pid, processes of the previous interval that were in no list.
    """

    gpu: Gpu
    lists: list[ProcessLists]
    ended_unix: float = 0.0
    instances: tuple[Instance, ...] = ()
    samples: list[UtilizationSample] = field(default_factory=list)
    samples_readable: bool = True
    busy: bool = False
    records: dict[int, dict[float, AccountingRecord]] = field(default_factory=dict)
    ghosts: Mapping[int, GpuProcess] = field(default_factory=dict)
    activity: dict[Instance, float] | None = field(default_factory=dict)
    basis: str = ""
    unseen: float = 0.0
    offset: float = 0.0
    activity_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.activity_at = self.began

    @property
    def began(self) -> float:
        """Beginning of the interval on the source's clock."""
        return self.lists[0].at

    @property
    def ended(self) -> float:
        """The last tick of the interval on the source's clock."""
        return self.lists[-1].at

    @property
    def length(self) -> int:
        """Length of the interval in microseconds."""
        return round((self.ended - self.began) * 1e6)

    @property
    def unix_shift(self) -> float:
        """Unix time minus the source's clock, at the end of the interval."""
        return self.ended_unix - self.ended

    def gather(self, reading: Reading, offset: float | None, *, is_cut: bool) -> None:
        """Add the records, samples and utilization of one tick. A cut Gpu (MIG) has no usable samples."""
        self.offset = offset or 0.0
        for record in reading.accounting:
            if record.ended is None or record.ended >= self.began:
                self.records.setdefault(record.pid, {})[record.began] = record
        if reading.samples is None or is_cut:
            self.samples_readable = False
        else:
            oldest = (self.began - self.offset) * 1e6
            self.samples += [sample for sample in reading.samples if sample.at >= oldest]
        self.basis = _weaker(self.basis, reading.rules.basis)
        self.unseen += reading.unseen
        self.busy = self.busy or (bool(reading.get(q.UTILIZATION)) and not _is_desktop(reading))

    def all_processes(self) -> dict[ProcessKey, GpuProcess]:
        """Every process in any list of the interval."""
        processes: dict[ProcessKey, GpuProcess] = {}
        for lists in self.lists:
            processes |= lists.processes
        return processes

    def graphics_pids(self, processes: Mapping[ProcessKey, GpuProcess]) -> frozenset[int]:
        """Pids with graphics contexts only."""
        drawing = {process.pid for process in processes.values() if not process.computes}
        if not drawing:
            return frozenset()
        return frozenset(drawing - {process.pid for process in processes.values() if process.computes})


def _weaker(one: str, other: str) -> str:
    if one == other:
        return one
    ranked = [basis for basis in BASES if basis in (one, other)]
    return ranked[-1] if ranked else ""


def engine_time(sample: UtilizationSample) -> float:
    """Share of one sample period in which the pid's busiest engine was active, 0 to 1 (rule 4)."""
    busiest = sample.sm
    if sample.encoder > busiest:
        busiest = sample.encoder
    if sample.decoder > busiest:
        busiest = sample.decoder
    if sample.jpeg and sample.jpeg > busiest:
        busiest = sample.jpeg
    return sample.ofa if sample.ofa and sample.ofa > busiest else busiest


def is_activity(sample: UtilizationSample, drawing: frozenset[int]) -> bool:
    """Return whether a sample shows activity of the Gpu. A desktop's drawing does not count."""
    return engine_time(sample) >= DESKTOP_SHARE if sample.pid in drawing else engine_time(sample) > 0


def _is_desktop(reading: Reading) -> bool:
    """Return whether only graphics processes run, with little utilization: not activity."""
    processes = reading.processes or ()
    drawing = bool(processes) and not any(process.computes for process in processes)
    return drawing and (reading.get(q.UTILIZATION) or 0.0) < DESKTOP_SHARE


@dataclass(slots=True)
class SampleClock:
    """Finds the source's clock minus the driver's sample time (the header says only "CPU timestamp").

    Drivers count from boot or from 1970. Otherwise, a sample is never newer than its tick, so the smallest
    difference ever seen is the best estimate. A clock that does not run during a suspend, or is not corrected
    as that of the source, falls behind: then all new samples look old. `offset` is None until the first
    sample, `recent` are the last differences, each with the seconds since the tick before, `last` is the last
    tick.
    """

    offset: float | None = None
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    last: float | None = None

    def update(self, reading: Reading, at: float, unix: float) -> float | None:
        """Return the offset after the samples of one tick."""
        length, self.last = _OLDEST_SAMPLE if self.last is None else at - self.last, at
        if not reading.samples:
            return self.offset
        behind = at - max(sample.at for sample in reading.samples) / 1e6
        self.recent.append((behind, length))
        known = (clock for clock in (0.0, at - unix) if -_SKEW <= behind - clock <= _OLDEST_SAMPLE)
        found = next(known, behind if self.offset is None else min(self.offset, behind))
        is_behind = all(one - found > max(interval, _LATE) for one, interval in self.recent)
        least = min(one for one, _ in self.recent)
        self.offset = least if len(self.recent) == _RECENT and is_behind else found
        return self.offset

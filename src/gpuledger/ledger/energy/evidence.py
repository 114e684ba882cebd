"""What was seen of one Gpu while an interval was open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import AccountingRecord, GpuProcess, ProcessKey, UtilizationSample

# Below this share of time a process that only draws is a desktop, not activity.
DESKTOP = 0.05


@dataclass(frozen=True, slots=True)
class Sighting:
    """One tick's good process lists of a Gpu: who was on it or on its Instances."""

    at: float
    processes: Mapping[ProcessKey, GpuProcess]


@dataclass(slots=True)
class Evidence:
    """Everything that rules 3 to 6 look at, for the interval that began at `began`.

    `offset` turns the driver's microseconds into the source's seconds. `activity` holds the time-weighted
    activity of Instances (`seconds x ratio`) until `activity_at`, None once any tick could not tell it.
    `records` are by pid and by when they began: a pid can be used twice. `ghosts` are, by pid, the processes
    that no list had in the interval before this one.
    """

    gpu: Gpu
    first: Sighting
    instances: tuple[Instance, ...] = ()
    between: list[Sighting] = field(default_factory=list)
    samples: list[UtilizationSample] = field(default_factory=list)
    samples_readable: bool = True
    busy: bool = False
    records: dict[int, dict[float, AccountingRecord]] = field(default_factory=dict)
    ghosts: Mapping[int, GpuProcess] = field(default_factory=dict)
    activity: dict[Instance, float] | None = field(default_factory=dict)
    offset: float = 0.0
    activity_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.activity_at = self.first.at

    @property
    def began(self) -> float:
        """When the interval began, in the source's seconds."""
        return self.first.at

    def seen(self, last: Sighting) -> dict[ProcessKey, GpuProcess]:
        """Every process in any of the interval's lists."""
        everybody = dict(self.first.processes)
        for sighting in (*self.between, last):
            everybody |= sighting.processes
        return everybody

    def lists(self, key: ProcessKey, last: Sighting) -> bool:
        """Whether any of the interval's lists has this process."""
        if key in last.processes or key in self.first.processes:
            return True
        return any(key in sighting.processes for sighting in self.between)

    def graphics_pids(self, everybody: Mapping[ProcessKey, GpuProcess]) -> frozenset[int]:
        """Pids that only draw."""
        drawing = {process.pid for process in everybody.values() if not process.computes}
        if not drawing:
            return frozenset()
        return frozenset(drawing - {process.pid for process in everybody.values() if process.computes})


def engine_time(sample: UtilizationSample) -> float:
    """Share of one sample period in which the busiest engine worked for the pid, 0 to 1 (rule 4)."""
    busiest = sample.sm
    if sample.encoder > busiest:
        busiest = sample.encoder
    if sample.decoder > busiest:
        busiest = sample.decoder
    if sample.jpeg and sample.jpeg > busiest:
        busiest = sample.jpeg
    return sample.ofa if sample.ofa and sample.ofa > busiest else busiest


def is_activity(sample: UtilizationSample, drawing: frozenset[int]) -> bool:
    """Whether a sample says that the Gpu worked: a desktop's flicker does not."""
    return engine_time(sample) >= DESKTOP if sample.pid in drawing else engine_time(sample) > 0

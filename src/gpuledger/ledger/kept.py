"""What an earlier run left in the store. Times on the source's clock are kept as ages: it may start anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.ledger.energy.counter import Counter
from gpuledger.ledger.energy.floor import QuietPower
from gpuledger.ledger.handed import Handover
from gpuledger.ledger.sessions import OpenSession
from gpuledger.ledger.told import Labels
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Workload


@dataclass(frozen=True, slots=True)
class KeptSeries:
    """One told counter. `process` stands behind a row of the energy dialect, None for an owner's series.

    `age` is seconds since it was born, `lasting` marks a Gpu's own account, which does not end.
    """

    number: int
    labels: Labels
    process: GpuProcess | None
    age: float
    lasting: bool
    millijoules: int
    measured: int


@dataclass(frozen=True, slots=True)
class KeptOwner:
    """A living process's owner, None while it is not known; then `process` holds the labels as they froze."""

    process: GpuProcess
    age: float
    owner: Workload | None
    resolved: bool
    waiting: Mapping[str, int]
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeptGpu:
    """One Gpu's books. `total` is all millijoules since they were opened, `base` what was in them when the
    exported counters last began at 0, `closed` what ended series had since then. `floors` are those without
    and with residents, by version of the driver.
    """

    uuid: str
    counter: Counter
    floors: Mapping[str, tuple[QuietPower, QuietPower]]
    last_unix: float | None
    total: int
    base: int
    closed: int
    series: tuple[KeptSeries, ...] = ()
    owners: tuple[KeptOwner, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """Everything, at source time `elapsed` and wall time `unix` of the last commit.

    What begins with `following` are the first numbers not used yet.
    """

    gpus: Mapping[str, KeptGpu] = field(default_factory=dict)
    sessions: tuple[OpenSession, ...] = ()
    handovers: tuple[Handover, ...] = ()
    elapsed: float = 0.0
    unix: float = 0.0
    following_session: int = 1
    following_span: int = 1
    following_series: int = 1
    following_handover: int = 1


NOTHING = Kept()

"""What everything downstream reads: a named Snapshot or none, the Ledger's state, the node's Health."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Snapshot, SourceInfo


@dataclass(frozen=True, slots=True)
class CollectorHealth:
    """How a part of the tick went last.

    `seconds` of wall time, None when it did not run; `last_success` in unix seconds, None for never;
    `failures` since the program started.
    """

    name: str
    success: bool
    seconds: float | None = None
    last_success: float | None = None
    error: str = ""
    failures: int = 0


@dataclass(frozen=True, slots=True)
class IndexHealth:
    """How a map of owners (pods, pod_resources, ...) stands, that is kept up to date beside the tick.

    `success` of the last try; `last_success` in unix seconds, None for never; `entries` in it now. A failed
    map keeps its last entries, and `error` is one line that says why and what to do.
    """

    name: str
    success: bool
    last_success: float | None = None
    entries: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class PauseHealth:
    """Whether the driver was let go because a user asked for it.

    `until` is the unix time at which that ends by itself, None while there is no pause.
    """

    paused: bool = False
    until: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReloadHealth:
    """How the settings were read last, at the start or since.

    `last_success` in unix seconds is when those in force were read. A failed reload keeps them, and `error`
    is one line that says why and what to do. `pending` are keys that were changed and need a restart.
    """

    success: bool
    last_success: float
    error: str = ""
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """The node's own condition, told from memory.

    `status` is one line for a person: `ok`, or what is wrong and what to do. `tried` is true once a first
    tick was attempted: that, not a healthy GPU, makes the node ready. `interval` is the effective seconds
    between ticks, `asked_interval` what the user asked for. `stalled` means that a tick has not come back.
    `pause` is None where nobody can ask for one, `reload` where settings are read only once.
    """

    status: str = "starting"
    healthy: bool = False
    tried: bool = False
    stalled: bool = False
    ticks: int = 0
    interval: float = 1.0
    asked_interval: float = 1.0
    started: float = 0.0
    collectors: tuple[CollectorHealth, ...] = ()
    maps: tuple[IndexHealth, ...] = ()
    pause: PauseHealth | None = None
    reload: ReloadHealth | None = None

    @property
    def paused(self) -> bool:
        """Whether the driver was let go on request: then no part of the tick that reads it has failed."""
        return self.pause is not None and self.pause.paused


@dataclass(frozen=True, slots=True)
class NodeState:
    """One immutable state of the node. `snapshot` is None before the first tick and while the source is
    failed, hanging or paused: then gauges are gone, booked counters stay, and health says so.
    """

    unix: float
    source: SourceInfo
    snapshot: Snapshot | None = None
    ledger: LedgerState = field(default_factory=LedgerState)
    health: Health = field(default_factory=Health)


class Dialect(Protocol):
    """A vocabulary of metric families in which the same facts are told."""

    @property
    def name(self) -> str:
        """The word in `/metrics/<dialect>`."""

    @property
    def specs(self) -> tuple[FamilySpec, ...]:
        """Every family that it can tell, in page order: the catalogue."""

    @property
    def wants(self) -> frozenset[Quantity]:
        """The quantities to read for it."""

    def families(self, page: NodeState) -> Iterable[Family]:
        """The families of one Page: a pure function."""

"""NodeState, the result of one tick that all outputs read: Snapshot, ledger state and health."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuledger.model.availability import Availability
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Snapshot, SourceInfo


@dataclass(frozen=True, slots=True)
class CollectorHealth:
    """The last result of one collector, that is, of one part of the tick.

    `seconds` is wall time, None if it did not run. `last_success` is in unix seconds, None if it never
    succeeded. `failures` counts since the program started.
    """

    name: str
    success: bool
    seconds: float | None = None
    last_success: float | None = None
    error: str = ""
    failures: int = 0


@dataclass(frozen=True)
class IndexHealth:
    """The condition of an owner index (pods, pod_resources, ...), which is updated independently of the tick.

    `success` is the result of the last update. `last_success` is in unix seconds, None if it never succeeded.
    An index that fails keeps its last entries; `error` is then one line with the cause and the remedy.
    """

    name: str
    success: bool
    last_success: float | None = None
    entries: int = 0
    error: str = ""


@dataclass(frozen=True)
class PauseHealth:
    """Whether the driver is released because a user requested a pause.

    `until` is the unix time at which the pause ends automatically, None without a pause.
    """

    paused: bool = False
    until: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class ReloadHealth:
    """The result of the last time the settings were read: at startup or at a reload.

    `last_success` is the unix time at which the settings in force were read. A failed reload keeps them;
    `error` is then one line with the cause and the remedy. `pending` holds changed keys that need a restart.
    """

    success: bool
    last_success: float
    error: str = ""
    pending: tuple[str, ...] = ()


@dataclass(frozen=True)
class Health:
    """The health of the node process.

    `status` is one line for people: `ok`, or the problem and its remedy. `attempted` is true after the first
    tick was attempted, which makes the node ready even without a healthy GPU. `interval` is the effective
    time between ticks in seconds, `configured_interval` the requested one. `stalled` means that a tick has
    not returned. `pause` is None if pausing is unavailable, `reload` if settings are read only once.
    """

    status: str = "starting"
    healthy: bool = False
    attempted: bool = False
    stalled: bool = False
    ticks: int = 0
    interval: float = 1.0
    configured_interval: float = 1.0
    started: float = 0.0
    collectors: tuple[CollectorHealth, ...] = ()
    owner_indexes: tuple[IndexHealth, ...] = ()
    pause: PauseHealth | None = None
    reload: ReloadHealth | None = None

    @property
    def paused(self) -> bool:
        """Whether the driver is released on request. Collectors of the driver then do not count as failed."""
        return self.pause is not None and self.pause.paused


@dataclass(frozen=True)
class NodeState:
    """One immutable state of the node.

    `snapshot` is None before the first tick and while the source has failed, hangs or is paused: gauges are
    then omitted, booked counters are still exported, and `health` has the reason. `requested` are the
    quantities that the source was to read for the snapshot; None if all. `availability` says, by GPU
    uuid and `GI_CI`, which Devices can be taken; empty if this node does not judge that.
    """

    unix: float
    source: SourceInfo
    snapshot: Snapshot | None = None
    ledger: LedgerState = field(default_factory=LedgerState)
    health: Health = field(default_factory=Health)
    requested: frozenset[Quantity] | None = None
    availability: Mapping[tuple[str, str], Availability] = field(default_factory=dict)

    def has_read(self, quantities: frozenset[Quantity]) -> bool:
        """Whether the quantities were to be read: a label from others would change at the next tick."""
        return self.requested is None or quantities <= self.requested


class Dialect(Protocol):
    """A set of metric families that exports a NodeState under particular names."""

    @property
    def name(self) -> str:
        """The name in `/metrics/<dialect>`."""

    @property
    def specs(self) -> tuple[FamilySpec, ...]:
        """Every family that it can export, in page order."""

    @property
    def required_quantities(self) -> frozenset[Quantity]:
        """The quantities that the source must read for it."""

    def families(self, state: NodeState) -> Iterable[Family]:
        """Returns the families of one NodeState; a pure function."""

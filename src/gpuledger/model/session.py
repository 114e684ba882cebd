"""The Ledger's results: Sessions, Accounts and the state of both after a Snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.model.devices import Device, Gpu
from gpuledger.model.family import Distribution
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.snapshot import CollectorRun

# The kinds of Account. PROCESS belongs to a process. Each Gpu also has three own accounts: IDLE (no process
# was present), UNATTRIBUTED (energy that was used, but not by a known process) and UNOBSERVED (gpuledger was
# not reading the Gpu).
PROCESS, IDLE, UNATTRIBUTED, UNOBSERVED = "process", "idle", "unattributed", "unobserved"

# Who pays for a second of a Gpu: owners that have it allocated, or those with a process on it.
ALLOCATION, RESIDENCE = "allocation", "residence"
BASES = (ALLOCATION, RESIDENCE)


@dataclass(frozen=True, slots=True)
class Account:
    """The account to which energy is booked: a process on a Gpu, or one of the Gpu's own three accounts.

    `kind` is one of the four constants above. `instance` is `GI_CI` under MIG, else empty. `process` is set
    only if `kind` is PROCESS.
    """

    gpu: Gpu
    kind: str
    instance: str = ""
    process: ProcessKey | None = None


class EnergyRow(NamedTuple):
    """Exported energy of one process that is running or has just ended.

    `process` carries the labels, frozen when its owner became known. `other` marks the one row of a Device
    that sums all processes beyond the cap. Energy is in millijoules; `measured` is the part that was not
    apportioned. `metered` is False if the Gpu had no meter so far: the energy is then unknown, not 0.
    """

    process: GpuProcess
    millijoules: int
    measured: int
    active: bool
    other: bool = False
    metered: bool = True


class AccountRow(NamedTuple):
    """Exported energy of one account.

    Labels: uuid, account (process, idle, unattributed, unobserved), method, owner kind, namespace, pod,
    container, user, Slurm job.
    """

    labels: tuple[str, ...]
    millijoules: int


class SessionRow(NamedTuple):
    """A Session for display and the API, with everything booked to it, without the hold of exported series.

    `number` identifies the Session in the ledger. `process` is as last seen. Times are unix seconds.
    `sm_mean` and `sm_most` are ratios over the time in which the SM share was reported. `held_seconds` is
    time resident without engine time, None if activity is unknown. Energy is in millijoules: `measured` and
    `apportioned` are booked to the Session, `high` is the upper bound of what it can have used. `watts` is
    the energy booked in the last interval divided by its length; None before the first interval, if that
    interval ended more than a minute ago, and after the Session has ended. `memory_mean` is bytes over the
    time in which memory was reported, `active_seconds` is time in which an engine was certainly busy for it,
    and `first_active` (unix seconds) when that was first seen; each is None if it is not known.
    """

    number: int
    process: GpuProcess
    first_seen: float
    last_seen: float
    peak_memory: int | None = None
    sm_mean: float | None = None
    sm_most: float | None = None
    held_seconds: float | None = None
    measured: int = 0
    apportioned: int = 0
    high: int = 0
    watts: float | None = None
    memory_mean: float | None = None
    active_seconds: float | None = None
    first_active: float | None = None


class OwnerRow(NamedTuple):
    """A Workload on a Device, now or recently: the Device is allocated to it, or it has processes there.

    `labels` are owner kind, namespace, pod, container, user (empty for a pod: user names inside containers
    are not users of this machine) and Slurm job. `processes` is the number of its processes on the Device
    now, None if the list could not be read or the owner is gone. The times are seconds since the program
    started: `allocated` to the owner; `held` by it (allocated or resident while none of its processes used an
    engine); `resident`, with at least one process on the Device. `held_at_zero`: the row is so new that its
    times are exported as 0, like new energy series.
    """

    device: Device
    labels: tuple[str, ...]
    present: bool
    processes: int | None
    allocated: float
    held: float
    resident: float = 0.0
    held_at_zero: bool = False


@dataclass(frozen=True)
class EnergyState:
    """The exported state of the energy ledger, in whole millijoules.

    By Gpu uuid: `totals` since the ledger was created, `pending` booked but not exported yet, `closed` of
    series that have ended, `imbalance` the difference in totals = exported + pending + closed (always 0).
    `unmetered` are the Gpus that cannot be measured now: no reading of a meter for a minute.
    """

    rows: tuple[EnergyRow, ...] = ()
    owners: tuple[AccountRow, ...] = ()
    totals: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    closed: Mapping[str, int] = field(default_factory=dict)
    imbalance: Mapping[str, int] = field(default_factory=dict)
    unmetered: frozenset[str] = frozenset()

    def is_known(self, row: SessionRow) -> bool:
        """Return whether the energy of an open Session is known: it was measured, or can be now."""
        uuid = row.process.device.gpu.uuid
        return uuid in self.totals and (row.high > 0 or uuid not in self.unmetered)


class TimeRow(NamedTuple):
    """Exported GPU time of one account, in microseconds.

    Labels: uuid, `GI_CI` of the Instance, account (owner, idle, unattributed, unobserved, down), owner kind,
    namespace, pod, container, user, Slurm job.
    """

    labels: tuple[str, ...]
    microseconds: int


@dataclass(frozen=True)
class TimeState:
    """The exported state of the time ledger, in whole microseconds by the basis `basis`.

    By Gpu uuid: `watched` since the ledger was created, `pending` watched but not exported yet, `closed` of
    series that have ended. Exported + pending + closed is watched, within 1 microsecond for each series.
    """

    basis: str = "allocation"
    rows: tuple[TimeRow, ...] = ()
    watched: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    closed: Mapping[str, int] = field(default_factory=dict)


class XidRow(NamedTuple):
    """Equal Xids of one Gpu (and `GI_CI`, if the driver names an Instance) in quick succession.

    `number` identifies the row in the ledger. The Xid was read so many `times` from `first` to `last` (unix
    seconds). `pid` and `command` are of the only process that was on the device then, None and empty if there
    was none or several: the driver does not say which process was the cause.
    """

    number: int
    uuid: str
    instance: str
    xid: int
    first: float
    last: float
    times: int = 1
    pid: int | None = None
    command: str = ""


class ThrottleRow(NamedTuple):
    """For how long the clocks of a Gpu were reduced for one `reason`, `seconds` out of `observed`.

    `observed` seconds of the last hour are known, fewer after a start. `since` is the unix time from which
    the clocks are reduced without a pause, None if they are not now. `recent` is the ratio of the last one or
    two minutes. `is_estimate`: the driver does not count this time; known are the reasons at each tick.
    """

    reason: str
    since: float | None
    seconds: float
    observed: float
    recent: float
    is_estimate: bool = False

    @property
    def ratio(self) -> float:
        """The share of the observed time."""
        return min(self.seconds / self.observed, 1.0) if self.observed else 0.0


@dataclass(frozen=True)
class LedgerState:
    """The immutable state of the Ledger after one Snapshot.

    `compute_sessions` and `graphics_sessions` count open Sessions per Device uuid (graphics: Sessions with
    graphics contexts only); a Device without a readable process list is in neither. `omitted` are the
    processes beyond the per-Device cap, by Device uuid: only their number is exported. `xids` counts events
    per `(gpu uuid, xid)` since the start; `xid_times` holds the unix time of the last event of each, in order
    of arrival (NVML reports no time: all events of a tick have the same). `invalid` counts rejected values.
    `sessions_closed` and `session_durations` (seconds) are by Gpu uuid. `device_states`, `state_seconds` and
    `sm_ratios` (each Device's part of its Gpu's multiprocessors) are by uuid and `GI_CI` (empty without MIG).
    `new_xids` and `new_devices` are the keys of counts and seconds that are still exported as 0.
    `owners` are present or recently gone owners of whole Gpus and Instances. `sessions` are the open ones.
    `parts` holds the results of separately reported parts of the posting, such as the store. `xid_log` are
    the last Xids, oldest first, also those of earlier runs; `throttling` what reduced the clocks in the last
    hour, by Gpu uuid. New series are exported as 0 for `zero_hold` seconds.
    """

    compute_sessions: Mapping[str, int] = field(default_factory=dict)
    graphics_sessions: Mapping[str, int] = field(default_factory=dict)
    omitted: Mapping[str, frozenset[ProcessKey]] = field(default_factory=dict)
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    xid_times: Mapping[tuple[str, int], float] = field(default_factory=dict)
    invalid: int = 0
    energy: EnergyState = field(default_factory=EnergyState)
    time: TimeState = field(default_factory=TimeState)
    sessions_closed: Mapping[str, int] = field(default_factory=dict)
    session_durations: Mapping[str, Distribution] = field(default_factory=dict)
    device_states: Mapping[tuple[str, str], str] = field(default_factory=dict)
    state_seconds: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    sm_ratios: Mapping[tuple[str, str], float] = field(default_factory=dict)
    owners: tuple[OwnerRow, ...] = ()
    sessions: tuple[SessionRow, ...] = ()
    parts: tuple[CollectorRun, ...] = ()
    new_xids: frozenset[tuple[str, int]] = frozenset()
    new_devices: frozenset[tuple[str, str]] = frozenset()
    xid_log: tuple[XidRow, ...] = ()
    throttling: Mapping[str, tuple[ThrottleRow, ...]] = field(default_factory=dict)
    zero_hold: float | None = None

"""What the Ledger keeps: Sessions and Accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.model.devices import Device, Gpu
from gpuledger.model.family import Distribution
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.snapshot import Collected

# Kinds of Account: of a process, and a Gpu's own three: nobody was there (idle), somebody whom nobody knows
# (unattributed), or we were not looking (unobserved).
PROCESS, IDLE, UNATTRIBUTED, UNOBSERVED = "process", "idle", "unattributed", "unobserved"


@dataclass(frozen=True, slots=True)
class Account:
    """Where joules are booked: a process on a Gpu, or one of the Gpu's own three.

    `kind` is one of the four above. `instance` is `GI_CI` under MIG, else empty; `process` is set for kind
    process alone.
    """

    gpu: Gpu
    kind: str
    instance: str = ""
    process: ProcessKey | None = None


class EnergyRow(NamedTuple):
    """Energy of one process as the page tells it, alive or just gone.

    `process` carries the labels, frozen when its owner became known. `other` marks the one row of a Device
    for all processes beyond the cap. Millijoules; `measured` is the part that was not apportioned.
    """

    process: GpuProcess
    millijoules: int
    measured: int
    active: bool
    other: bool = False


class AccountRow(NamedTuple):
    """Energy of one account as the page tells it. Labels: uuid, account (process, idle, unattributed,
    unobserved), method, owner kind, namespace, pod, container, user, Slurm job.
    """

    labels: tuple[str, ...]
    millijoules: int


class SessionRow(NamedTuple):
    """A Session as people are shown it: everything booked to it, at once and not held back.

    `number` names it in the books; `process` is as last seen; times are unix seconds. `sm_mean` and `sm_most`
    are ratios over the time in which the share was told. `held_seconds` is time resident without engine time.
    Energy is in millijoules: `measured` and `apportioned` are its own, `high` bounds what it can have used.
    `watts` is what was booked to it in the last interval, by the seconds of that; None before there was one,
    when it is a minute ago, and after the Session has ended.
    """

    number: int
    process: GpuProcess
    first_seen: float
    last_seen: float
    peak_memory: int | None = None
    sm_mean: float | None = None
    sm_most: float | None = None
    held_seconds: float = 0.0
    measured: int = 0
    apportioned: int = 0
    high: int = 0
    watts: float | None = None


class OwnerRow(NamedTuple):
    """A Workload on a Device: it was handed it, or has processes on it, or did so lately.

    `labels` are owner kind, namespace, pod, container, user (empty for a pod: its containers' users are no
    names of this machine) and Slurm job. `processes` of it on the Device now, None where the list could not
    be read or the owner has gone. Seconds since the program started: `allocated` to it, `held` by it (handed
    over or resident, none of its processes at work), and those in which it had a `resident` there.
    """

    device: Device
    labels: tuple[str, ...]
    present: bool
    processes: int | None
    allocated: float
    held: float
    resident: float = 0.0


@dataclass(frozen=True, slots=True)
class EnergyState:
    """The energy books as the page tells them, in whole millijoules.

    By Gpu uuid: `totals` since the books were opened, `pending` booked but not told yet, `closed` of series
    that have ended, `imbalance` what is missing from totals = told + pending + closed (0, always).
    """

    rows: tuple[EnergyRow, ...] = ()
    owners: tuple[AccountRow, ...] = ()
    totals: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    closed: Mapping[str, int] = field(default_factory=dict)
    imbalance: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The Ledger after one Snapshot: immutable, so that a Page can hold it.

    `compute_sessions` and `graphics_sessions` count open Sessions per Device uuid (graphics: those that only
    draw); a Device whose process list failed is in neither. `untold` are the processes beyond the
    per-Device cap, by Device uuid: they are told by count alone. `xids` counts events per `(gpu uuid, xid)`
    since start; `xid_times` holds the unix time of the last one of each, in the order in which these came
    (NVML tells no time: all events of a tick have the same). `invalid` counts values not believed.
    `sessions_closed` and `session_durations` (seconds) are by Gpu uuid. `device_states`, `state_seconds` and
    `sm_ratios`, each Device's part of its Gpu's multiprocessors, are by uuid and `GI_CI` (empty without MIG).
    `owners` are those of whole Gpus and Instances, present or lately gone. `sessions` are the open ones.
    `parts` tells how parts of the posting went that are told apart, such as the store.
    """

    compute_sessions: Mapping[str, int] = field(default_factory=dict)
    graphics_sessions: Mapping[str, int] = field(default_factory=dict)
    omitted: Mapping[str, frozenset[ProcessKey]] = field(default_factory=dict)
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    xid_times: Mapping[tuple[str, int], float] = field(default_factory=dict)
    invalid: int = 0
    energy: EnergyState = field(default_factory=EnergyState)
    sessions_closed: Mapping[str, int] = field(default_factory=dict)
    session_durations: Mapping[str, Distribution] = field(default_factory=dict)
    device_states: Mapping[tuple[str, str], str] = field(default_factory=dict)
    state_seconds: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    sm_ratios: Mapping[tuple[str, str], float] = field(default_factory=dict)
    owners: tuple[OwnerRow, ...] = ()
    sessions: tuple[SessionRow, ...] = ()
    parts: tuple[Collected, ...] = ()

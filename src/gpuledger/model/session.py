"""What the Ledger keeps: Sessions and Accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.model.devices import Device, Gpu
from gpuledger.model.process import GpuProcess, ProcessKey


@dataclass(frozen=True, slots=True)
class Session:
    """One GpuProcess from first to last sight. Times are unix seconds; `process` is as last seen."""

    process: GpuProcess
    first_seen: float
    last_seen: float
    peak_memory: int | None = None

    @property
    def device(self) -> Device:
        """Where the process sits; a process on two Devices has two Sessions."""
        return self.process.device


@dataclass(frozen=True, slots=True)
class Account:
    """Where joules are booked: a process on a Gpu, or one of the Gpu's own three.

    `kind` is process, idle (nobody), unattributed (we looked; whose is not known) or unobserved (we were
    not looking). `instance` is `GI_CI` under MIG, else empty; `process` is set for kind process alone.
    """

    gpu: Gpu
    kind: str
    instance: str = ""
    process: ProcessKey | None = None


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The Ledger after one Snapshot: immutable, so that a Page can hold it.

    `open_sessions` counts per Device uuid; a Device whose list failed is not in it. `told` are the
    processes within the per-Device cap, `untold` counts the rest per Device uuid. `xids` counts events per
    `(gpu uuid, xid)` since start, `xid_times` holds the unix time of the last one.
    """

    open_sessions: Mapping[str, int] = field(default_factory=dict)
    told: frozenset[ProcessKey] = frozenset()
    untold: Mapping[str, int] = field(default_factory=dict)
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    xid_times: Mapping[tuple[str, int], float] = field(default_factory=dict)
    invalid: int = 0

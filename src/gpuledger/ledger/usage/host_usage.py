"""What the cgroup of each owner used on the node: CPU time and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from gpuledger.ledger.time.account import OwnerKey, owner_key
from gpuledger.model.snapshot import CgroupUsage, Snapshot
from gpuledger.model.workload import PENDING_NAMES, Workload, merge_owner

# The cgroup of an owner is over if it was not read for this many seconds.
_ABSENCE: Final = 60.0
# Ended periods that are kept, also over a restart: their cgroups can be read again.
MOST_ENDED: Final = 200


@dataclass(slots=True)
class HostPeriod:
    """The cgroup of an owner from the first reading to the last one (unix seconds).

    `cpu` is the last value of its counter in microseconds, `closed` the sum of the last values of earlier
    cgroups of the same owner, such as of a requeued job. The other fields are as in `CgroupUsage`;
    `memory_peak` is the largest value. `seen_at` is the last reading on the source's clock.
    """

    number: int
    owner: Workload
    begins: float
    ends: float
    seen_at: float = 0.0
    cpu: int | None = None
    closed: int = 0
    memory_peak: int | None = None
    is_sampled: bool = False
    memory_limit: int | None = None
    cpus: int | None = None
    is_limited: bool = False
    over: bool = False

    @property
    def total_cpu(self) -> int | None:
        """CPU microseconds of all cgroups of the owner; None if they were never read."""
        return None if self.cpu is None else self.closed + self.cpu

    def absorb(self, waiting: HostPeriod, *, is_other: bool) -> None:
        """Take the cgroup of a period of which the owner is the same job, as is known now.

        `is_other`: it is certainly not the cgroup that was read last. Else the counter decides, as always.
        """
        if waiting.cpu is not None:
            if self.cpu is not None and (is_other or waiting.cpu < self.cpu):
                self.closed += self.cpu
            self.cpu, waiting.cpu = waiting.cpu, None
        waiting.owner, waiting.over = self.owner, True

    def update(self, usage: CgroupUsage, unix: float, elapsed: float) -> None:
        """Add a reading."""
        self.ends, self.seen_at = unix, elapsed
        if usage.cpu is not None:
            if self.cpu is not None and usage.cpu < self.cpu:
                self.closed += self.cpu
            self.cpu = usage.cpu
        if usage.memory_peak is not None:
            is_larger = self.memory_peak is None or usage.memory_peak > self.memory_peak
            self.memory_peak = usage.memory_peak if is_larger else self.memory_peak
            self.is_sampled = self.is_sampled or usage.is_sampled
        self.memory_limit = usage.memory_limit
        self.cpus, self.is_limited = usage.cpus, usage.is_limited


def _of_node(owner: Workload) -> Workload:
    """The owner of a cgroup: a pod, not its container."""
    return replace(owner, container="", container_id="") if owner.kind == "pod" and owner.pod_uid else owner


def _key_by_name(owner: Workload) -> OwnerKey:
    """The key of an owner that the ledger returns: of a container, it keeps only the name."""
    return owner_key(
        replace(owner, container_id="") if owner.kind == "container" and owner.container else owner
    )


class HostRecorder:
    """The cgroups of present owners. Used only by the tick thread."""

    def __init__(self) -> None:
        self._open: dict[OwnerKey, HostPeriod] = {}
        self._next = 1
        # The owners of Slurm jobs by SLUID, from when their numbers are known.
        self._numbered: dict[str, OwnerKey] = {}
        self._changed: list[HostPeriod] = []
        # By owner, the newest last: a service that uses a GPU now and then keeps its cgroup and its counter.
        self._ended: dict[OwnerKey, HostPeriod] = {}

    def resume(self, stored: Iterable[HostPeriod], next_number: int, seen_at: float) -> None:
        """Continue those that an earlier run left, the newest last; number new ones from `next_number`.

        `seen_at` is the end of that run on the source's clock.
        """
        for period in stored:
            period.seen_at = seen_at
            (self._ended if period.over else self._open)[owner_key(period.owner)] = period
        self._next = next_number

    def post(self, snapshot: Snapshot) -> None:
        """Add the cgroups of one tick."""
        for usage in snapshot.cgroups:
            period = self._period(_of_node(usage.workload), usage, snapshot)
            period.update(usage, snapshot.unix, snapshot.elapsed)
            self._changed.append(period)
        oldest = snapshot.elapsed - _ABSENCE
        for key in [key for key, period in self._open.items() if period.seen_at < oldest]:
            period = self._open.pop(key)
            period.over = True
            self._changed.append(period)
            self._ended.pop(key, None)
            self._ended[key] = period
        for key in list(self._ended)[:-MOST_ENDED]:
            del self._ended[key]
        self._numbered = {sluid: key for sluid, key in self._numbered.items() if key in self._open}

    def _period(self, owner: Workload, usage: CgroupUsage, snapshot: Snapshot) -> HostPeriod:
        key, sluid = owner_key(owner), usage.sluid
        if sluid and owner.has_sluid:
            # Nothing may say the number any more.
            key = self._numbered.get(sluid, key)
        period = self._open.get(key)
        if sluid and not owner.has_sluid:
            if period is not None and (waiting := self._open.pop(("job", sluid), None)) is not None:
                period.absorb(waiting, is_other=key in self._numbered.values())
                self._changed.append(waiting)
            self._numbered[sluid] = key
        if period is None and owner.kind != "slurm":
            # A Slurm job is read as long as it has its GPUs; later it has another cgroup.
            period = self._reopened(key, owner, usage)
        if period is None:
            unnamed = self._unnamed(owner, sluid)
            period = (
                HostPeriod(self._next, owner, snapshot.unix, snapshot.unix)
                if unnamed is None
                else self._open.pop(unnamed)
            )
            self._next += unnamed is None
            self._open[key] = period
        period.owner = merge_owner(period.owner, owner)
        return period

    def _reopened(self, key: OwnerKey, owner: Workload, usage: CgroupUsage) -> HostPeriod | None:
        """The period of an owner that was absent, if its counter went on meanwhile: it is the same cgroup."""
        by_name = _key_by_name(owner)
        if by_name in self._open:
            return None
        ended = self._ended.pop(key if key in self._ended else by_name, None)
        if ended is None or ended.cpu is None or usage.cpu is None or usage.cpu < ended.cpu:
            return None
        ended.over = False
        self._open[key] = ended
        return ended

    def _unnamed(self, owner: Workload, sluid: str) -> OwnerKey | None:
        """The key under which an owner waited for its name or id, or a Slurm job for its number."""
        if (by_name := _key_by_name(owner)) in self._open:
            return by_name
        if sluid and ("job", sluid) in self._open:
            return ("job", sluid)
        for key, period in self._open.items():
            waiting = period.owner
            if waiting.missing in PENDING_NAMES and waiting.ids == owner.ids and any(owner.ids):
                return key
        return None

    def take_changed(self) -> list[HostPeriod]:
        """Those that are not stored yet."""
        found, self._changed = self._changed, []
        return found

    def mark_all_changed(self) -> None:
        """Mark everything in memory as not stored: the store was replaced."""
        self._changed.extend(self._open.values())

"""A node with one GPU, from the host facts of its processes to its ledger file, and some of its pods."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from builders import gpu, process, reading
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart, UtilizationSample
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.container import RuntimeList
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.owner_lookup import OwnerLookup
from gpuledger.workloads.owner_resolution import OwnerFacts
from gpuledger.workloads.pods.pod import Pod, Pods
from ledger_helpers import UNIX, Run
from report_helpers import report_of

CARD = gpu(0)
UID_A, UID_B = "1a1a1a1a-0001-4001-8001-000000000001", "2b2b2b2b-0002-4002-8002-000000000002"
FIT = Workload("pod", "science", "fit-0", "main")
RESERVATION = Workload("pod", "kai-resource-reservation", "gpu-reservation-n1-zz9", "resource-reservation")
RANK = Pod(UID_A, "shop", "rank-a", containers={"a" * 64: "app"})


def in_pod(uid: str, digit: str) -> str:
    return f"/kubepods/burstable/pod{uid}/{digit * 64}"


def runs(
    pid: int, cgroup: str, *, name: str = "python3", types: str = "C", sm: float | None = 0.5
) -> GpuProcess:
    """A process that started 5 s after the first tick, or with it."""
    one = process(CARD, pid, name=name, types=types, sm=sm)
    start = ProcessStart("boot", pid, UNIX)
    return replace(one, host=HostFacts(start, uid=0, user="root", cgroup=f"0::{cgroup}\n"))


def has(owner: Workload, fraction: Fraction | None = Fraction(1)) -> Allocation:
    return Allocation(CARD, owner, "pod_resources", "nvidia.com/gpu", fraction)


def in_a_pod(one: GpuProcess) -> GpuProcess:
    return replace(one, host=replace(one.host, cgroup=f"0::{in_pod(UID_B, 'b')}\n"))


class Machine:
    """A node with one GPU, from the host facts of its processes to its ledger file."""

    def __init__(self, folder: Path, *allocations: Allocation, facts: OwnerFacts | None = None) -> None:
        self.allocations = allocations
        self.facts = facts or OwnerFacts(names_pods=True)
        self.start(Run(folder))
        self.energy = 0
        self.seen: Snapshot | None = None
        # Use of an engine that no process shows.
        self.busy = 0.0

    def start(self, run: Run) -> None:
        """Start the program, with nothing but the ledger file of an earlier run."""
        self.run = run
        self.lookup = OwnerLookup(
            directory=OwnerIndexes((), lambda: self.facts, [self._allocations_of]),
            known_owner=run.ledger.sessions.owner_of,
            job_users=run.ledger.job_users,
        )

    def _allocations_of(self, devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        found = tuple(one for one in self.allocations if one.device in devices)
        return self.allocations if found == self.allocations else found

    def fail(self, *readings: Reading) -> None:
        """A tick of one second that read no list of processes; without `readings`, no GPU either."""
        now = self.run.clock
        now.advance(1)
        seen = Snapshot(
            now.now_unix,
            now.now_elapsed,
            SourceInfo("test"),
            readings,
            devices_failed=not readings,
            boot_id="boot-1",
        )
        self.run.ledger.post(self.lookup.assign_owners(seen))

    def ticks(self, seconds: int, *processes: GpuProcess) -> LedgerState:
        """Ticks of one second; the GPU draws 100 W and is as busy as its processes."""
        for _ in range(seconds):
            self.run.clock.advance(1)
            self.energy += 100_000
            now = self.run.clock
            busy = max([self.busy, *(one.usage.sm or 0.0 for one in processes)])
            values = {q.ENERGY: self.energy, q.UTILIZATION: busy}
            samples = tuple(
                UtilizationSample(each.pid, round((now.now_elapsed - 0.5) * 1e6), each.usage.sm, 0, 0, 0)
                for each in processes
                if each.usage.sm
            )
            one = reading(CARD, *processes, values=values, samples=samples)
            seen = Snapshot(now.now_unix, now.now_elapsed, SourceInfo("test"), (one,), boot_id="boot-1")
            self.seen = self.lookup.assign_owners(seen)
            state = self.run.ledger.post(self.seen)
        return state

    def owners(self) -> dict[int, tuple[str, str, str]]:
        """Kind, name and what is missing by pid."""
        assert self.seen is not None
        found = {one.pid: one.workload for one in self.seen.processes}
        return {pid: (one.kind, one.pod or one.container, one.missing) for pid, one in found.items()}

    def report(self, by: str = "owner") -> dict[str, tuple[int, int, int]]:
        """Billed and held-idle seconds and joules of each row, by the last word of its key; zeros omitted."""
        self.run.store.close()
        found = report_of(self.run.store.file, by)
        rows = {}
        for line in (*found.lines, *found.gpu_accounts):
            amounts = (line.gpu_microseconds or 0) / 1e6, float(line.held or 0), line.millijoules / 1000
            if any(map(round, amounts)):
                rows[next(filter(None, reversed(line.key)), line.account)] = tuple(map(round, amounts))
        return rows


WEB = RuntimeList({"c" * 64: "web"}, UNIX + 1000)


def held(state: LedgerState) -> dict[str, int]:
    """Held seconds by pod or by container, user or kind."""
    return {next(filter(None, (*row.labels[2:5], row.labels[0]))): round(row.held) for row in state.owners}


def billed(state: LedgerState) -> dict[str, int]:
    """Exported GPU seconds by pod, container, user or account; zeros omitted."""
    found = {
        next(filter(None, (row.labels[5], row.labels[6], row.labels[7], row.labels[3], row.labels[2]))): row
        for row in state.time.rows
        if row.microseconds >= 500_000
    }
    return {name: round(row.microseconds / 1e6) for name, row in found.items()}


A, B = runs(1, in_pod(UID_A, "a")), runs(2, in_pod(UID_B, "b"))
SHOP = OwnerFacts(Pods([RANK]), names_pods=True)

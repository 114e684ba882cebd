"""A node with a ledger file, tick by tick, and what the file says that owners did on each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from builders import GIB, FakeClock, gpu, instance, reading
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.usage_rows import HostUsage, UsageRow
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.usage_history import read_host_usage, read_usage
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import CgroupUsage, Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import Run

# The begin of a full hour.
HOUR = 1_700_002_800.0
SECOND = 1_000_000
A, B = gpu(0, name="NVIDIA H100", sm_count=132), gpu(1, name="NVIDIA A100", sm_count=108)
CUT = (instance(B, 1, index=0, profile="4g.40gb"), instance(B, 2, index=1, profile="3g.40gb"))
ANN = Workload("slurm", job="7", user="ann", found_by="cgroup")
DAN = Workload("slurm", job="8", user="dan", found_by="cgroup")


class UsageNode(Run):
    """A node of which each tick says all that matters to what owners use."""

    def see(
        self,
        *processes: GpuProcess,
        devices: Sequence[Device] = (A,),
        seconds: float = 1.0,
        has: Sequence[Allocation] = (),
        busy: float | None = 0.5,
        values: Mapping[Quantity, float] | None = None,
        unread: Sequence[Device] = (),
        cgroups: Sequence[CgroupUsage] = (),
        step: float = 0.0,
    ) -> None:
        """Post one tick, `seconds` after the one before; the wall clock makes a further `step`."""
        self.clock.advance(seconds)
        self.clock.now_unix += step
        cut = {device.parent for device in devices if isinstance(device, Instance)}
        readings = []
        for device in devices:
            own: dict[Quantity, float] = {q.MEMORY_TOTAL: 80 * GIB, **(values or {})}
            if busy is not None:
                own[q.UTILIZATION if isinstance(device, Gpu) else q.ENGINE_ACTIVITY] = busy
            mine = [] if device in cut else [one for one in processes if one.device == device]
            readings.append(
                reading(device, *mine, failed=device in unread, values=own, mig_enabled=device in cut)
            )
        self.ledger.post(
            Snapshot(
                self.clock.now_unix,
                self.clock.now_elapsed,
                SourceInfo("test"),
                tuple(readings),
                tuple(has),
                boot_id=self.boot,
                cgroups=tuple(cgroups),
            )
        )

    @property
    def file(self) -> Path:
        """The file, with all that a clean stop would write."""
        journal, connection = self.store._journal, self.store._connection
        if journal is not None and connection is not None and journal.usage_cells:
            journal.is_usage_due = True
            self.store._write(connection, journal)
        return self.store.file

    def again(self, folder: Path, *, seconds: float = 5.0, kill: bool = False) -> UsageNode:
        """Start the program again, after a clean stop or a kill."""
        if kill:
            self.kill()
        else:
            self.store.close()
        self.clock.advance(seconds)
        return UsageNode(folder, clock=self.clock, limits=self.store.limits)


def usage_node(folder: Path, **options: Any) -> UsageNode:
    """A node at the begin of a full hour. Its first tick is of an empty GPU: what follows is no gap."""
    node = UsageNode(folder, clock=FakeClock(HOUR), **options)
    node.see(busy=0.0)
    return node


def usage_of(
    file: Path,
    by: str = "job",
    since: int = 0,
    until: int = 2**40,
    is_own: Callable[[Party], bool] = lambda _: True,
    bars: int = 60,
) -> dict[tuple[str, str], UsageRow]:
    """The rows by the last part of the key and the device."""
    with closing(History(file)) as history:
        grouping = find_grouping(by, history.devices)
        found = read_usage(history, grouping, since, until, is_own, bars)
    return {(row.key[-1], row.device): row for row in found}


def only_row(file: Path, by: str = "job", **range_: Any) -> UsageRow:
    """The only row of a file."""
    (row,) = usage_of(file, by, **range_).values()
    return row


def host_usage_of(file: Path, by: str = "job", until: int = 2**33) -> list[HostUsage]:
    """What cgroups used."""
    with closing(History(file)) as history:
        return read_host_usage(history, find_grouping(by, history.devices), 0, until)

"""Builders of small model objects for tests, with defaults for everything that a test does not depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.node_state import Health, NodeState
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart, ProcessType, Usage
from gpuledger.model.quantities import MEMORY_TOTAL, Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo, XidEvent
from gpuledger.model.workload import UNKNOWN, Workload

MIB = 1024 * 1024
GIB = 1024 * MIB
SOURCE = SourceInfo("test")


class FakeClock:
    """A clock that moves only by `advance`."""

    def __init__(self, unix: float = 1_700_000_000.0, elapsed: float = 1000.0) -> None:
        self.now_unix = unix
        self.now_elapsed = elapsed

    def unix(self) -> float:
        return self.now_unix

    def elapsed(self) -> float:
        return self.now_elapsed

    def advance(self, seconds: float) -> None:
        self.now_unix += seconds
        self.now_elapsed += seconds


def gpu(index: int = 0, **more: object) -> Gpu:
    return Gpu(f"GPU-{index}", index, **more)  # type: ignore[arg-type]  # free-form by design


def instance(parent: Gpu, gi: int, ci: int = 0, index: int = 0, **more: object) -> Instance:
    return Instance(f"MIG-{parent.index}-{gi}-{ci}", parent, gi, ci, index, **more)  # type: ignore[arg-type]


def process(
    device: Device,
    pid: int = 100,
    *,
    name: str = "python3",
    executable: str = "",
    types: str = "C",
    memory: int | None = 2 * GIB,
    sm: float | None = 0.5,
    ticks: int = 1,
    started: float | None = None,
    workload: Workload = UNKNOWN,
    missing: str = "",
) -> GpuProcess:
    """Creates a process; `started` is in seconds after unix 1,700,000,000, None for an old process."""
    unix = 1_699_999_000.0 + ticks if started is None else 1_700_000_000.0 + started
    return GpuProcess(
        device,
        pid,
        HostFacts(ProcessStart("boot", ticks, unix), executable=executable),
        name=name,
        types=frozenset(ProcessType(kind) for kind in types.split("+")),
        memory=memory,
        usage=Usage(sm=sm, memory=sm),
        workload=replace(workload, missing=missing or workload.missing),
    )


def reading(
    device: Device,
    *processes: GpuProcess,
    failed: bool = False,
    up: bool = True,
    values: Mapping[Quantity, float] | None = None,
    **more: object,
) -> Reading:
    return Reading(
        device,
        up=up,
        values={MEMORY_TOTAL: 80 * GIB} if values is None else values,
        processes=None if failed else processes,
        **more,  # type: ignore[arg-type]
    )


def snapshot(
    *readings: Reading,
    unix: float = 1_700_000_000.0,
    xids: tuple[XidEvent, ...] = (),
    invalid: int = 0,
    devices_failed: bool = False,
) -> Snapshot:
    return Snapshot(unix, unix, SOURCE, readings, xids=xids, invalid=invalid, devices_failed=devices_failed)


def node_state(
    seen: Snapshot | None, ledger: LedgerState | None = None, health: Health | None = None
) -> NodeState:
    return NodeState(
        unix=seen.unix if seen else 1_700_000_000.0,
        source=SOURCE,
        snapshot=seen,
        ledger=ledger or LedgerState(),
        health=health or Health(status="ok", healthy=True, attempted=True),
    )

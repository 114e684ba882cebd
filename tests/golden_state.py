"""A NodeState with every kind of row, for the golden files."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import isfinite
from zlib import crc32

from builders import GIB, MIB, gpu, instance, process, reading
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.family import Distribution
from gpuledger.model.node_state import CollectorHealth, Health, IndexHealth, NodeState
from gpuledger.model.session import AccountRow, EnergyRow, EnergyState, OwnerRow, TimeRow, TimeState
from gpuledger.model.snapshot import Snapshot, SourceInfo, XidEvent
from gpuledger.model.workload import Allocation, Workload

UNIX = 1_700_000_000.25
SOURCE = SourceInfo("nvml", False, "580.95.05", "13.580.95.05", "13.0")
HEALTH = Health(
    status="ok",
    healthy=True,
    attempted=True,
    ticks=42,
    collectors=(
        CollectorHealth("source", True, 0.0025, UNIX),
        CollectorHealth("events", False, 0.5, None, "NOT_SUPPORTED"),
    ),
    owner_indexes=(
        IndexHealth("pods", True, UNIX - 1, 110),
        IndexHealth("pod_resources", False, UNIX - 300, 8, "no socket"),
        IndexHealth("slurm", False, None, 0, "not read yet"),
    ),
)


def value_of_each_quantity() -> dict[q.Quantity, float]:
    """Returns a possible value of each quantity that does not change when other quantities are added."""
    shares = {quantity: crc32(key.encode()) % 1000 / 1000 for key, quantity in q.QUANTITIES.items()}
    spans = {each: each.highest if isfinite(each.highest) else 1e6 for each in shares}
    return {
        each: share if each.unit == "ratio" else int(share * spans[each]) for each, share in shares.items()
    }


def golden_snapshot() -> Snapshot:
    """Returns GPUs: used by two pods, idle, with two MIG instances, lost, and with a failed process list.

    The idle one has a value of each quantity.
    """
    shared = gpu(
        0,
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id="00000000:18:00.0",
        minor=0,
        serial="1650000000001",
        vbios="96.00.74.00.01",
        architecture="Hopper",
        compute_capability="9.0",
    )
    idle, cut, lost, blind = gpu(1, name="NVIDIA L4", minor=1), gpu(2), gpu(3), gpu(4, unified_memory=True)
    small = instance(cut, 9, 0, 0, profile="1g.10gb")
    large = instance(cut, 2, 0, 1, profile="3g.40gb")
    trainer = Workload(
        "pod",
        "ml",
        "train-0",
        "pytorch",
        "u-1",
        "c-1",
        "containerd",
        labels=(("app", "train"), ("team", "vision")),
        controller_kind="Job",
        controller="train",
    )
    notebook = Workload("pod", "lab", "notebook-0", "jupyter")
    hostile = 'say "hi"\\\nbye'
    return Snapshot(
        UNIX,
        500.0,
        SOURCE,
        (
            reading(
                shared,
                process(shared, 4242, name="/usr/bin/python3", memory=40 * GIB, sm=0.57, workload=trainer),
                process(
                    shared,
                    4243,
                    name="",
                    executable=hostile,
                    types="C+G",
                    memory=None,
                    sm=None,
                    missing="not_found",
                ),
                process(shared, 900, name="/usr/lib/xorg/Xorg", types="G", memory=120 * MIB, sm=0.01),
                values={
                    q.UTILIZATION: 0.97,
                    q.MEMORY_TOTAL: 80 * GIB,
                    q.MEMORY_USED: 41 * GIB,
                    q.POWER: 512.345,
                    q.TEMPERATURE: 61,
                    q.SM_CLOCK: 1.98e9,
                    q.MEMORY_CLOCK: 2.619e9,
                    q.PCIE_TX: 123_456_789_012,
                    q.ECC_CORRECTED: 0,
                    q.PERFORMANCE_STATE: 0,
                },
                supported={"fan_speed": False, "power": True},
            ),
            reading(idle, values=value_of_each_quantity()),
            reading(cut, mig_enabled=True),
            reading(small, values={q.MEMORY_TOTAL: 10 * GIB, q.MEMORY_USED: 0}),
            reading(large, process(large, 77, types="M", sm=None), values={q.MEMORY_TOTAL: 40 * GIB}),
            reading(lost, up=False, failed=True, values={}),
            reading(blind, failed=True, values={}),
        ),
        allocations=(
            Allocation(shared, trainer, "pod_resources", "nvidia.com/gpu"),
            Allocation(idle, notebook, "checkpoint", "nvidia.com/gpu", Fraction(1, 4)),
        ),
        xids=(XidEvent(shared, 31, UNIX - 10), XidEvent(shared, 31, UNIX - 5)),
        invalid=3,
    )


def golden_state() -> NodeState:
    """Returns the state of that snapshot, with a process that shares its GPU and one that has ended."""
    seen = golden_snapshot()
    trainer, hostile, _ = seen.readings[0].processes or ()
    gone = process(trainer.device, 4000, name="/usr/bin/python3")
    rows = (
        EnergyRow(trainer, 1_234_567, 1_000_000, active=True),
        EnergyRow(hostile, 0, 0, active=True),
        EnergyRow(gone, 500_001, 0, active=False),
        EnergyRow(trainer, 7_000, 0, active=True, other=True),
    )
    pod = ("process", "measured", "pod", "ml", "train-0", "pytorch", "", "")
    owners = (
        AccountRow(("GPU-0", *pod), 1_000_000),
        AccountRow(("GPU-0", "process", "activity", *pod[2:]), 234_567),
        AccountRow(("GPU-0", "idle", "measured", "", "", "", "", "", ""), 60_000),
        AccountRow(("GPU-0", "unobserved", "measured", "", "", "", "", "", ""), 12_000),
    )
    energy = EnergyState(
        rows,
        owners,
        totals={"GPU-0": 1_813_568},
        pending={"GPU-0": 7_000},
        closed={"GPU-0": 500_001},
        imbalance={"GPU-0": 0},
    )
    time = TimeState(
        rows=(
            TimeRow(("GPU-0", "", "owner", *pod[2:]), 45_000_000),
            TimeRow(("GPU-0", "", "idle", "", "", "", "", "", ""), 15_000_001),
            TimeRow(("GPU-2", "9_0", "owner", "slurm", "", "", "", "alice", "815"), 7_272_727),
            TimeRow(("GPU-3", "", "down", "", "", "", "", "", ""), 60_000_000),
        ),
        watched={"GPU-0": 75_000_001, "GPU-2": 7_272_727, "GPU-3": 60_000_000},
        pending={"GPU-0": 5_000_000, "GPU-2": 0, "GPU-3": 0},
        closed={"GPU-0": 10_000_000, "GPU-2": 0, "GPU-3": 0},
    )
    ledger = replace(
        Ledger(LedgerSettings()).post(seen),
        energy=energy,
        time=time,
        sessions_closed={"GPU-0": 3},
        session_durations={"GPU-0": Distribution((10.0, 3600.0), (1, 2), 3, 90_005.5)},
        state_seconds={("GPU-0", "", "active"): 12.5, ("GPU-2", "9_0", "idle"): 40.0},
        owners=_owners(seen),
        # After energy.zero_hold.
        new_xids=frozenset(),
        new_devices=frozenset(),
    )
    return NodeState(UNIX, SOURCE, seen, ledger, HEALTH)


def _owners(seen: Snapshot) -> tuple[OwnerRow, ...]:
    shared, idle = seen.allocations
    return (
        OwnerRow(shared.device, ("pod", "ml", "train-0", "pytorch", "", ""), True, 1, 90.0, 2.5, 88.0),
        OwnerRow(idle.device, ("pod", "lab", "notebook-0", "jupyter", "", ""), True, 0, 60.0, 60.0),
        OwnerRow(idle.device, ("slurm", "", "", "", "alice", "815"), False, None, 30.0, 0.0, 30.0),
    )


def stale_state() -> NodeState:
    """Returns the state of the same node while its driver hangs."""
    health = Health(status="no reading for 3.0 s", attempted=True, stalled=True, ticks=42)
    return NodeState(UNIX + 3, SOURCE, None, golden_state().ledger, health)

"""Which allocations and processes make their owners holders of a Device."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from builders import gpu, process, reading, snapshot
from gpuledger.ledger.device_states import ACTIVE, HELD, IDLE, DeviceStates
from gpuledger.ledger.holders import drawing_processes, holding_allocations, is_same_pod, may_be_pod
from gpuledger.model import quantities as q
from gpuledger.model.process import NO_USAGE, GpuProcess
from gpuledger.model.workload import Allocation, Workload

GPU = gpu(0)
POD = Workload("pod", "ml", "train-0", "main", "u1", "c1")
UNKNOWN_POD = Workload("pod", pod_uid="u2", container_id="c2", missing="pod_name")
XORG = process(GPU, 1, name="Xorg", types="G", sm=0.01, workload=Workload("unit", unit="gdm.service"))
GAME = process(GPU, 2, name="game", types="G", sm=0.4, workload=Workload("user", user="ann"))
IN_POD = replace(XORG, workload=POD)
TRAINER = process(GPU, 3, workload=POD)


def allocated(fraction: Fraction | None, owner: Workload = POD) -> Allocation:
    return Allocation(GPU, owner, "pod_resources", "nvidia.com/gpu", fraction)


def test_an_allocation_that_keeps_nothing_holds_nothing() -> None:
    other = replace(POD, pod="train-1")
    seen = replace(
        snapshot(), allocations=(allocated(None), allocated(Fraction(0), other), allocated(Fraction(1, 4)))
    )
    assert holding_allocations(seen) == {"GPU-0": [POD, POD]}


@pytest.mark.parametrize(
    ("what", "processes", "allocations", "drawing"),
    [
        ("a display server", [XORG], (), {1}),
        ("beside a pod", [XORG, TRAINER], (), {1}),
        ("a game on a free GPU", [XORG, GAME], (), {1}),
        ("a game on the GPU of a pod that runs nothing", [GAME], (allocated(Fraction(1)),), {2}),
        ("a game beside a pod", [GAME, TRAINER], (), {2}),
        ("the game of the pod", [replace(GAME, workload=POD), TRAINER], (), set()),
        ("an idle desktop in the pod that has the GPU", [IN_POD], (allocated(None),), set()),
        ("in a pod without an allocation", [IN_POD], (), {1}),
        ("a game beside a monitoring claim", [GAME], (allocated(Fraction(0)),), set()),
        ("nothing draws", [TRAINER], (), set()),
    ],
)
def test_what_only_draws_owns_nothing_unless_it_works_and_nobody_else_has_the_gpu(
    what: str, processes: list[GpuProcess], allocations: tuple[Allocation, ...], drawing: set[int]
) -> None:
    seen = replace(snapshot(reading(GPU, *processes)), allocations=allocations)
    assert {key[1] for key in drawing_processes(seen)} == drawing, what


@pytest.mark.parametrize(
    ("processes", "utilization", "expected"),
    [
        ([replace(XORG, usage=NO_USAGE)], 0.0, IDLE),
        ([XORG], 0.01, ACTIVE),
        ([], 0.0, IDLE),
    ],
)
def test_a_gpu_that_only_has_a_desktop_is_idle(
    processes: list[GpuProcess], utilization: float, expected: str
) -> None:
    states = DeviceStates()
    seen = snapshot(reading(GPU, *processes, values={q.UTILIZATION: utilization}))
    states.post(seen, drawing_processes(seen))
    assert states.now == {("GPU-0", ""): expected}
    states.post(replace(seen, allocations=(allocated(Fraction(1)),)), drawing_processes(seen))
    assert states.now == {("GPU-0", ""): HELD if expected == IDLE else ACTIVE}


@pytest.mark.parametrize(
    ("resident", "holder", "same", "may"),
    [
        (UNKNOWN_POD, replace(POD, pod_uid="u2"), True, False),
        (UNKNOWN_POD, POD, False, False),
        (UNKNOWN_POD, replace(POD, pod_uid=""), False, True),
        (replace(UNKNOWN_POD, pod_uid=""), POD, False, True),
        (Workload("container", container_id="c9", missing="container_unnamed"), POD, False, True),
        (Workload("container", container_id="c9", container="web"), POD, False, False),
        (UNKNOWN_POD, Workload("slurm", job="7"), False, False),
        (Workload("user", user="ann"), POD, False, False),
        (Workload(missing="pid_namespace"), POD, False, True),
        (Workload("user", user="ann", missing="exited"), Workload("slurm", job="7"), False, True),
        (Workload("user", user="ann", missing="unknown_cgroup"), POD, False, False),
    ],
)
def test_whether_an_unnamed_process_is_of_the_pod_that_has_the_device(
    resident: Workload, holder: Workload, same: bool, may: bool
) -> None:
    assert (is_same_pod(resident, holder), may_be_pod(resident, holder)) == (same, may)

"""Whether a Device can be taken: every reason why not, and for how long nobody has had it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from builders import GIB, MIB, gpu, instance, process, reading, snapshot
from gpuledger.ledger.device_conditions import QuietTimes, device_key, device_memory, judge_devices
from gpuledger.model import quantities as q
from gpuledger.model.availability import (
    ALLOCATED,
    DISPLAY,
    DOWN,
    FREE,
    IN_USE,
    NEEDS_REPAIR,
    RECENTLY_USED,
    UNKNOWN,
    UNUSABLE,
)
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import XidRow
from gpuledger.model.snapshot import Failure, Reading, Snapshot, VgpuInstance
from gpuledger.model.workload import Allocation, Workload

GPU = gpu(0, name="NVIDIA H100 80GB HBM3")
SLICE = instance(GPU, 2, profile="2g.20gb")
# What an empty GPU with a driver of today reports.
EMPTY = {
    q.UTILIZATION: 0.0,
    q.MEMORY_TOTAL: 80.0 * GIB,
    q.MEMORY_USED: 4.0 * MIB,
    q.MEMORY_FREE: 79.0 * GIB,
    q.MEMORY_RESERVED: 551.0 * MIB,
}
EMPTY_SLICE = {q.MEMORY_TOTAL: 20.0 * GIB, q.MEMORY_USED: 14.0 * MIB, q.MEMORY_RESERVED: 0.0}


def empty(device: Device = GPU, *processes: GpuProcess, **more: object) -> Reading:
    values = EMPTY if device is device.gpu else EMPTY_SLICE
    return reading(device, *processes, values=values, **more)  # type: ignore[arg-type]  # free-form by design


def with_values(changed: dict[Quantity, float | None], device: Device = GPU) -> Reading:
    """An empty Device with some values changed, or (None) absent."""
    values = {**(EMPTY if device is device.gpu else EMPTY_SLICE), **changed}
    return reading(device, values={key: value for key, value in values.items() if value is not None})


def condition(*readings: Reading, device: Device = GPU) -> tuple[str, str]:
    return tuple(judge_devices(snapshot(*readings))[device_key(device)])  # type: ignore[return-value]


def owned(pid: int, command: str, user: str, memory: int = 100 * MIB, types: str = "C") -> GpuProcess:
    one = process(GPU, pid, name=command, types=types, memory=memory, sm=0.0)
    return replace(one, host=replace(one.host, uid=0 if user == "root" else 1000, user=user))


def test_a_device_that_nobody_has_is_free() -> None:
    assert condition(empty()) == (FREE, "")


@pytest.mark.parametrize(
    ("seen", "state", "reason"),
    [
        (empty(up=False, down_reason="RESET_REQUIRED"), DOWN, "it requires a reset"),
        (empty(up=False, down_reason="GPU_IS_LOST"), DOWN, "it is lost: it has fallen off the bus"),
        (empty(mig_enabled=True), UNUSABLE, "it is in MIG mode and has no instances"),
        (empty(vgpus=(VgpuInstance("v"),)), UNUSABLE, "it serves virtual machines"),
        (with_values({q.VIRTUALIZATION_MODE: 3}), UNUSABLE, "it serves virtual machines"),
        # A virtual machine with the whole GPU uses it like any other machine.
        (with_values({q.VIRTUALIZATION_MODE: 1}), FREE, ""),
        (with_values({q.COMPUTE_MODE: 2}), UNUSABLE, "its compute mode prohibits all work"),
        (with_values({q.COMPUTE_MODE: 3}), FREE, ""),
        (reading(GPU, failed=True, values=EMPTY), UNKNOWN, "its processes cannot be listed"),
        (empty(GPU, process(GPU, 1)), IN_USE, "it has processes"),
        (empty(GPU, process(GPU, 1), process(GPU, 2)), IN_USE, "it has processes"),
        (with_values({q.UTILIZATION: 0.01}), IN_USE, "it is busy, with no process that can be seen"),
        (with_values({q.UTILIZATION: None}), UNKNOWN, "its utilization is not known"),
        (with_values({q.MEMORY_USED: None}), UNKNOWN, "its used memory is not known"),
        (
            with_values({q.MEMORY_USED: 500.0 * MIB}),
            UNKNOWN,
            "500 MiB of its memory are used by no process that can be seen",
        ),
        # A driver before 510 counts what it uses itself.
        (with_values({q.MEMORY_USED: 500.0 * MIB, q.MEMORY_RESERVED: None}), FREE, ""),
        (
            with_values({q.MEMORY_USED: 3.0 * GIB, q.MEMORY_RESERVED: None}),
            UNKNOWN,
            "3072 MiB of its memory are used by no process that can be seen",
        ),
        (
            with_values({q.RECOVERY_ACTION: 1}),
            NEEDS_REPAIR,
            "it needs recovery: the driver requests a GPU reset",
        ),
        (
            with_values({q.ROW_REMAP_PENDING: 1}),
            NEEDS_REPAIR,
            "it has a memory row with errors that is remapped at the next reset",
        ),
        # Slower, but it works.
        (with_values({q.PCIE_WIDTH: 4, q.PCIE_WIDTH_MAX: 16}), FREE, ""),
    ],
)
def test_every_reason_not_to_take_a_gpu(seen: Reading, state: str, reason: str) -> None:
    assert condition(seen) == (state, reason)


def test_the_reason_of_an_unreadable_process_list_is_the_drivers() -> None:
    seen = snapshot(reading(GPU, failed=True, values=EMPTY))
    seen = replace(seen, failures=(Failure("processes", "NO_PERMISSION", GPU),))
    assert judge_devices(seen)[device_key(GPU)].reason == "its processes cannot be listed: NO_PERMISSION"


def test_a_gpu_without_memory_of_its_machine_needs_no_memory_reading() -> None:
    shared = replace(GPU, unified_memory=True)
    assert condition(with_values({q.MEMORY_USED: None}, shared)) == (FREE, "")


def test_a_fresh_fatal_xid_counts_and_one_of_an_application_does_not() -> None:
    seen = snapshot(empty())

    def judged(xid: int, age: float) -> str:
        row = XidRow(1, GPU.uuid, "", xid, seen.unix - age, seen.unix - age)
        return judge_devices(seen, [row])[device_key(GPU)].state

    assert judged(79, 60) == NEEDS_REPAIR
    assert judged(79, 7200) == FREE
    assert judged(13, 60) == FREE


@pytest.mark.parametrize(
    ("workload", "fraction", "state", "reason"),
    [
        (Workload("pod", "ml", "train-0"), Fraction(1), ALLOCATED, "it is allocated to a pod"),
        (Workload("slurm", job="7"), Fraction(1), ALLOCATED, "it is allocated to a job"),
        # One of four replicas: the rest is the scheduler's to give.
        (Workload("pod", "ml", "train-0"), Fraction(1, 4), ALLOCATED, "it is allocated to a pod"),
        (Workload("pod", "ml", "train-0"), None, ALLOCATED, "it is allocated to a pod"),
        # A monitoring claim, or a pod that reserves it for others.
        (Workload("pod", "ml", "train-0"), Fraction(0), FREE, ""),
    ],
)
def test_what_is_allocated_is_not_free(
    workload: Workload, fraction: Fraction | None, state: str, reason: str
) -> None:
    seen = replace(snapshot(empty()), allocations=(Allocation(GPU, workload, fraction=fraction),))
    assert tuple(judge_devices(seen)[device_key(GPU)]) == (state, reason)


def test_while_a_scheduler_does_not_answer_nothing_is_free() -> None:
    seen = replace(snapshot(empty()), allocations_complete=False)
    assert judge_devices(seen)[device_key(GPU)].state == UNKNOWN


def test_an_idle_mps_server_has_a_gpu_only_in_exclusive_mode() -> None:
    server = owned(7, "nvidia-cuda-mps-server", "root")
    assert condition(empty(GPU, server)) == (FREE, "")
    exclusive = reading(GPU, server, values={**EMPTY, q.COMPUTE_MODE: 3})
    assert condition(exclusive) == (IN_USE, "an MPS server has it in exclusive compute mode")


@pytest.mark.parametrize(
    ("memory", "busy", "state"),
    [
        # Xorg opens every GPU of the machine.
        (4 * MIB, 0.0, FREE),
        (300 * MIB, 0.0, DISPLAY),
        (300 * MIB, 0.03, DISPLAY),
        (300 * MIB, 0.4, IN_USE),
    ],
)
def test_a_display_server_has_the_gpu_on_which_it_draws(memory: int, busy: float, state: str) -> None:
    xorg = owned(5, "Xorg", "root", memory, "G")
    values = {**EMPTY, q.UTILIZATION: busy, q.MEMORY_USED: float(memory)}
    assert condition(reading(GPU, xorg, values=values))[0] == state


class TestMig:
    """Instances are judged one by one; of their GPU counts what concerns all of it."""

    def test_a_gpu_with_instances_is_not_judged(self) -> None:
        judged = judge_devices(snapshot(empty(mig_enabled=True), empty(SLICE)))
        assert list(judged) == [device_key(SLICE)]

    def test_an_instance_is_free_without_an_activity_that_its_gpu_never_reports(self) -> None:
        assert condition(empty(), empty(SLICE), device=SLICE) == (FREE, "")

    def test_an_activity_that_is_missing_now_is_unknown(self) -> None:
        waiting = empty(SLICE, supported={q.ENGINE_ACTIVITY.key: True})
        assert condition(empty(), waiting, device=SLICE)[0] == UNKNOWN

    def test_the_state_of_the_gpu_counts_for_its_instances(self) -> None:
        broken = with_values({q.RECOVERY_ACTION: 1})
        assert condition(broken, empty(SLICE), device=SLICE)[0] == NEEDS_REPAIR
        lost = empty(up=False, down_reason="GPU_IS_LOST")
        assert condition(lost, empty(SLICE), device=SLICE)[0] == DOWN

    def test_an_allocation_of_the_whole_gpu_has_its_instances(self) -> None:
        seen = replace(
            snapshot(empty(), empty(SLICE)), allocations=(Allocation(GPU, Workload("slurm", job="7")),)
        )
        assert judge_devices(seen)[device_key(SLICE)].state == ALLOCATED

    def test_compute_instances_share_memory_and_its_users(self) -> None:
        sibling = instance(GPU, 2, 1, 1)
        working = process(sibling, 9, memory=3 * GIB)
        lowest = reading(SLICE, values={**EMPTY_SLICE, q.MEMORY_USED: 3.0 * GIB})
        other = reading(sibling, working, values={**EMPTY_SLICE, q.MEMORY_USED: 3.0 * GIB})
        judged = judge_devices(snapshot(empty(), lowest, other))
        assert judged[device_key(SLICE)].state == FREE
        assert judged[device_key(sibling)].state == IN_USE
        free = int(20 * GIB - 3 * GIB)
        assert device_memory(snapshot(empty(), lowest, other), other) == (free, 20 * GIB)


class Watch:
    """Ticks of one GPU, and its availability."""

    def __init__(self) -> None:
        self.times = QuietTimes()
        self.now = 1000.0
        self.last: Snapshot = snapshot()

    def tick(self, *processes: GpuProcess, after: float = 1.0, failed: bool = False) -> None:
        self.now += after
        seen = reading(GPU, failed=True, values=EMPTY) if failed else empty(GPU, *processes)
        self.last = replace(snapshot(seen), elapsed=self.now)
        self.times.post(self.last, judge_devices(self.last))

    def state(self, window: float = 60.0) -> tuple[str, str]:
        key = device_key(GPU)
        return self.times.availability(key, judge_devices(self.last)[key], window)[:2]


class TestWindow:
    """One reading is not enough: a GPU between two steps of a job looks free for a moment."""

    def test_free_after_the_window(self) -> None:
        watch = Watch()
        watch.tick()
        assert watch.state() == (UNKNOWN, "it has been watched for 0s only, not for 1m")
        watch.tick(after=59)
        assert watch.state() == (UNKNOWN, "it has been watched for 59s only, not for 1m")
        watch.tick(after=1)
        assert watch.state() == (FREE, "")
        assert watch.state(61)[0] == UNKNOWN

    def test_a_use_within_the_window_counts(self) -> None:
        watch = Watch()
        watch.tick(process(GPU, 1))
        assert watch.state() == (IN_USE, "it has processes")
        watch.tick()
        watch.tick(after=12)
        assert watch.state() == (RECENTLY_USED, "somebody had it until 12s ago")
        watch.tick(after=48)
        assert watch.state() == (FREE, "")

    def test_what_was_not_known_was_not_watched(self) -> None:
        watch = Watch()
        watch.tick()
        watch.tick(after=30, failed=True)
        watch.tick()
        watch.tick(after=40)
        assert watch.state() == (UNKNOWN, "it has been watched for 40s only, not for 1m")

    def test_after_a_gap_nothing_from_before_counts(self) -> None:
        watch = Watch()
        watch.tick()
        watch.tick(after=61)
        assert watch.state()[0] == UNKNOWN

    def test_after_an_interruption_nothing_from_before_counts(self) -> None:
        watch = Watch()
        watch.tick()
        watch.times.interrupt()
        watch.tick(after=60)
        assert watch.state()[0] == UNKNOWN

    def test_a_step_of_the_wall_clock_changes_nothing(self) -> None:
        watch = Watch()
        watch.tick()
        for _ in range(6):
            watch.tick(after=10)
        stepped = replace(watch.last, unix=watch.last.unix + 86_400)
        watch.times.post(stepped, judge_devices(stepped))
        assert watch.state() == (FREE, "")

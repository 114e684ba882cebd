"""Whether somebody has a Device, and for how long nobody has had it: the facts behind `gpuledger free`.

Stricter than the states of the ledger, which are about bills: what is not known is not free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from gpuledger.ledger.energy.evidence import DESKTOP_SHARE
from gpuledger.ledger.holders import drawing_processes, holding_allocations
from gpuledger.ledger.service_processes import is_service, serving_processes
from gpuledger.ledger.watched_time import observed_seconds
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
    Availability,
)
from gpuledger.model.devices import Device, Instance
from gpuledger.model.down_reasons import describe_down
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import XidRow
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.text import format_duration

# The quantities that the judgement needs.
CONDITION_QUANTITIES: Final[frozenset[Quantity]] = frozenset(
    {
        q.COMPUTE_MODE,
        q.VIRTUALIZATION_MODE,
        q.MEMORY_TOTAL,
        q.MEMORY_USED,
        q.MEMORY_FREE,
        q.MEMORY_RESERVED,
        q.UTILIZATION,
        q.ENGINE_ACTIVITY,
        q.RECOVERY_ACTION,
        q.ROW_REMAP_FAILURE,
        q.ROW_REMAP_PENDING,
        q.RETIRED_PAGES_PENDING,
    }
)
# Of these, the judgement of a GPU's health finds what keeps new work away from it.
_TROUBLE: Final = (
    q.RECOVERY_ACTION,
    q.ROW_REMAP_FAILURE,
    q.ROW_REMAP_PENDING,
    q.RETIRED_PAGES_PENDING,
)
# What is wrong with a GPU so that new work should not begin on it, beside all failures.
_REPAIRS: Final = frozenset({"recovery_action", "row_remap_pending", "retired_pages_pending"})
# nvmlComputeMode_t.
_PROHIBITED: Final = 2
_EXCLUSIVE: Final = frozenset({1, 3})
# nvmlGpuVirtualizationMode_t: the host of virtual GPUs.
_VGPU_HOST: Final = frozenset({3, 4})
# Bytes that may be used without a process: of a driver that counts its own memory apart (510 and later), and
# of an older one.
_UNEXPLAINED: Final = 200 << 20
_UNEXPLAINED_WITH_DRIVER: Final = 1 << 30
# Bytes of display servers: one opens every GPU of the machine, and uses this much only where it draws.
_DRAWING_MEMORY: Final = 64 << 20

DeviceKey = tuple[str, str]


class DeviceCondition(NamedTuple):
    """Who has a Device at one tick: FREE or DISPLAY if nobody has, else why it cannot be taken."""

    state: str
    reason: str = ""

    @property
    def is_quiet(self) -> bool:
        """Whether nobody has it."""
        return self.state in (FREE, DISPLAY)


def device_key(device: Device) -> DeviceKey:
    """The GPU's uuid and `GI_CI`, as in the labels of the native dialect."""
    return (device.gpu.uuid, device.instance)


def judge_devices(snapshot: Snapshot, xids: Collection[XidRow] = ()) -> dict[DeviceKey, DeviceCondition]:
    """The condition of every Device that processes can use: of a GPU with Instances only these."""
    judge = _Judge(snapshot, xids)
    return {device_key(one.device): judge.condition(one) for one in snapshot.process_readings}


class _Judge:
    """One Snapshot, and what several Devices of it have in common."""

    def __init__(self, snapshot: Snapshot, xids: Collection[XidRow]) -> None:
        self._snapshot = snapshot
        self._xids = list(xids)
        self._gpus = {one.device.uuid: one for one in snapshot.readings if one.device is one.device.gpu}
        self._allocated = holding_allocations(snapshot)

    @cached_property
    def _serving(self) -> frozenset[ProcessKey]:
        return serving_processes(self._snapshot.processes)

    @cached_property
    def _drawing(self) -> frozenset[ProcessKey]:
        return drawing_processes(self._snapshot)

    def condition(self, reading: Reading) -> DeviceCondition:
        """The first thing that keeps the Device from being taken."""
        checks = (
            self._down,
            self._unusable,
            self._allocation,
            self._processes,
            self._work,
            self._memory,
            # Last, because it takes the longest: few Devices of a busy machine come so far.
            self._broken,
        )
        for check in checks:
            found = check(reading)
            if found is not None:
                return found
        return self._nobody(reading)

    def _gpu_of(self, reading: Reading) -> Reading:
        return self._gpus.get(reading.device.gpu.uuid, reading)

    def _down(self, reading: Reading) -> DeviceCondition | None:
        for one in (self._gpu_of(reading), reading):
            if not one.up:
                return DeviceCondition(DOWN, f"it {describe_down(one.down_reason)}")
        return None

    def _unusable(self, reading: Reading) -> DeviceCondition | None:
        gpu = self._gpu_of(reading)
        if reading.mig_enabled and not isinstance(reading.device, Instance):
            return DeviceCondition(UNUSABLE, "it is in MIG mode and has no instances")
        if reading.vgpus or gpu.get(q.VIRTUALIZATION_MODE) in _VGPU_HOST:
            return DeviceCondition(UNUSABLE, "it serves virtual machines")
        if gpu.get(q.COMPUTE_MODE) == _PROHIBITED:
            return DeviceCondition(UNUSABLE, "its compute mode prohibits all work")
        return None

    def _broken(self, reading: Reading) -> DeviceCondition | None:
        gpu = self._gpu_of(reading)
        # Most GPUs are healthy, and the judgement of all that can be wrong takes long for each tick.
        has_trouble = any(gpu.get(one) for one in _TROUBLE)
        if not has_trouble and not self._xids:
            return None
        # Imported lazily, as most machines never have any of it.
        from gpuledger.model.gpu_problems import judge_gpu, xid_problems

        found = [one for one in judge_gpu(gpu).values() if one is not None] if has_trouble else []
        device = gpu.device.gpu
        found += xid_problems(device.uuid, device.pci_bus_id, self._xids, self._snapshot.unix)
        for problem in found:
            if problem.level == "failure" or problem.kind in _REPAIRS:
                return DeviceCondition(NEEDS_REPAIR, f"it {problem.summary}")
        return None

    def _allocation(self, reading: Reading) -> DeviceCondition | None:
        owners = self._allocated.get(reading.device.uuid) or self._allocated.get(reading.device.gpu.uuid)
        if owners:
            kind = {"pod": "a pod", "slurm": "a job", "job": "a job"}.get(owners[0].kind, "an owner")
            return DeviceCondition(ALLOCATED, f"it is allocated to {kind}")
        if not self._snapshot.allocations_complete:
            return DeviceCondition(UNKNOWN, "a source of allocations does not answer: see gpuledger doctor")
        return None

    def _processes(self, reading: Reading) -> DeviceCondition | None:
        if reading.processes is None:
            return DeviceCondition(UNKNOWN, f"its processes cannot be listed{self._list_failure(reading)}")
        # Without numbers: users may read it who may not count the processes of others.
        if not all(map(self._is_infrastructure, reading.processes)):
            return DeviceCondition(IN_USE, "it has processes")
        if self._gpu_of(reading).get(q.COMPUTE_MODE) in _EXCLUSIVE and self._has_server(reading):
            return DeviceCondition(IN_USE, "an MPS server has it in exclusive compute mode")
        return None

    def _list_failure(self, reading: Reading) -> str:
        failures = [one for one in self._snapshot.failures if one.device == reading.device]
        return f": {failures[0].reason}" if failures else ""

    def _is_infrastructure(self, process: GpuProcess) -> bool:
        if process.computes and not is_service(process.command):
            return False
        key: ProcessKey = process.key
        return key in self._serving or key in self._drawing

    def _has_server(self, reading: Reading) -> bool:
        return any(one.key in self._serving and one.computes for one in reading.processes or ())

    def _work(self, reading: Reading) -> DeviceCondition | None:
        """Whether an engine works although nobody is seen there."""
        is_instance = isinstance(reading.device, Instance)
        quantity = q.ENGINE_ACTIVITY if is_instance else q.UTILIZATION
        share = reading.get(quantity)
        if share is None:
            # GPUs before Hopper never report the activity of an Instance: its memory and processes decide.
            if is_instance and not reading.supported.get(quantity.key, False):
                return None
            return DeviceCondition(UNKNOWN, "its utilization is not known")
        if share >= DESKTOP_SHARE or (share and not self._draws(reading)):
            return DeviceCondition(IN_USE, "it is busy, with no process that can be seen")
        return None

    def _draws(self, reading: Reading) -> bool:
        return any(one.key in self._drawing for one in reading.processes or ())

    def _memory(self, reading: Reading) -> DeviceCondition | None:
        """Whether more memory is used than the processes that are seen there explain."""
        memory = _memory_reading(self._snapshot, reading)
        used = memory.get(q.MEMORY_USED)
        if used is None:
            if reading.device.gpu.unified_memory:
                return None
            return DeviceCondition(UNKNOWN, "its used memory is not known")
        known = [process.memory for process in self._memory_users(reading)]
        hidden = int(used) - sum(amount for amount in known if amount is not None)
        has_reserved = memory.get(q.MEMORY_RESERVED) is not None
        if None not in known and hidden > (_UNEXPLAINED if has_reserved else _UNEXPLAINED_WITH_DRIVER):
            return DeviceCondition(
                UNKNOWN, f"{hidden >> 20} MiB of its memory are used by no process that can be seen"
            )
        return None

    def _memory_users(self, reading: Reading) -> Iterator[GpuProcess]:
        """The processes that use the same memory."""
        device = reading.device
        if not isinstance(device, Instance):
            yield from reading.processes or ()
            return
        for one in self._snapshot.process_readings:
            other = one.device
            if isinstance(other, Instance) and (other.parent, other.gi) == (device.parent, device.gi):
                yield from one.processes or ()

    def _nobody(self, reading: Reading) -> DeviceCondition:
        drawing = [one for one in reading.processes or () if one.key in self._drawing]
        memory = [one.memory for one in drawing]
        if drawing and (None in memory or sum(one or 0 for one in memory) >= _DRAWING_MEMORY):
            return DeviceCondition(DISPLAY, "a display server draws on it")
        return DeviceCondition(FREE)


def device_memory(snapshot: Snapshot, reading: Reading) -> tuple[int | None, int | None]:
    """Free and total bytes of a Device; None if unknown."""
    memory = _memory_reading(snapshot, reading)
    total, used, free = (memory.get(one) for one in (q.MEMORY_TOTAL, q.MEMORY_USED, q.MEMORY_FREE))
    if free is None and total is not None and used is not None:
        free = total - used
    return (None if free is None else int(free), None if total is None else int(total))


def _memory_reading(snapshot: Snapshot, reading: Reading) -> Reading:
    """The reading with the memory of the Device: compute instances share that of the lowest one."""
    lowest = snapshot.memory_shared_with.get(reading.device)
    if lowest is None:
        return reading
    return next((one for one in snapshot.process_readings if one.device == lowest), reading)


class _Times(NamedTuple):
    """On the source's clock: since when a Device is watched, and since when nobody has it, None: somebody."""

    watched: float
    quiet: float | None


class QuietTimes:
    """Since when nobody has had each Device. Durations are on the source's clock, which never steps."""

    def __init__(self) -> None:
        self._times: dict[DeviceKey, _Times] = {}
        self._elapsed: float | None = None

    def post(self, snapshot: Snapshot, conditions: Mapping[DeviceKey, DeviceCondition]) -> None:
        """Add one tick. After a gap of more than a minute nothing from before counts."""
        now = snapshot.elapsed
        if not observed_seconds(self._elapsed, now) and now != self._elapsed:
            self._times = {}
        self._elapsed = now
        # What is not known is as if it were not watched.
        known = {key: one for key, one in conditions.items() if one.state != UNKNOWN}
        self._times = {key: self._next(key, one, now) for key, one in known.items()}

    def _next(self, key: DeviceKey, condition: DeviceCondition, now: float) -> _Times:
        before = self._times.get(key)
        if before is None:
            return _Times(now, now if condition.is_quiet else None)
        if not condition.is_quiet:
            return _Times(before.watched, None)
        return before if before.quiet is not None else _Times(before.watched, now)

    def interrupt(self) -> None:
        """Nothing is watched until the next tick."""
        self._times = {}
        self._elapsed = None

    def availability(self, key: DeviceKey, condition: DeviceCondition, window: float) -> Availability:
        """Whether the Device can be taken if nobody must have had it for `window` seconds."""
        times = self._times.get(key)
        if not condition.is_quiet or times is None or times.quiet is None or self._elapsed is None:
            return Availability(condition.state, condition.reason)
        free = self._elapsed - times.quiet
        if free >= window:
            return Availability(condition.state, condition.reason, free)
        ago = format_duration(round(free))
        if times.quiet > times.watched:
            return Availability(RECENTLY_USED, f"somebody had it until {ago} ago", free)
        reason = f"it has been watched for {ago} only, not for {format_duration(window)}"
        return Availability(UNKNOWN, reason, free)

"""What is remembered of each Device between ticks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ctypes import c_void_p
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.quantities import Level, Quantity
from gpuledger.sources.nvml.codes import NOTHING_YET, SUCCESS
from gpuledger.sources.nvml.facts import Facts
from gpuledger.sources.nvml.fields import Plan, make_plan
from gpuledger.sources.nvml.findings import Findings

_SECOND: Final = 1_000_000
# "Depending on the product, the sample period may be between 1 second and 1/6 second" (nvml.h); newer cards
# are quicker. Samples of one process that are closer than the second figure are not from two periods.
_LONGEST: Final = _SECOND
_SHORTEST: Final = 10_000


class SamplePeriods:
    """Sample periods of one Gpu, in the driver's microseconds.

    The driver keeps a sample of a process only for a period in which it used an engine, so a mean over its
    samples alone would tell a process that was busy for a sixth of the time as busy all the time. How long a
    period is NVML does not say: it is the least gap ever seen between two samples of a process.
    """

    def __init__(self) -> None:
        self._length = _LONGEST
        self._last: dict[int, int] = {}
        self._read_at: float | None = None

    @property
    def length(self) -> int:
        """The shortest period seen so far; nvml.h's longest until two samples of a process were seen."""
        return self._length

    def restart(self) -> None:
        """What is read next does not go on from what was read; how long a period is stays known."""
        self._last = {}
        self._read_at = None

    def learn(self, stamps: Iterable[tuple[int, Collection[int]]]) -> None:
        """Take in each pid with the timestamps of its samples, in any order."""
        last: dict[int, int] = {}
        for pid, told in stamps:
            before = self._last.get(pid)
            in_order = sorted(told if before is None else (before, *told))
            last[pid] = in_order[-1]
            for earlier, later in pairwise(in_order):
                if _SHORTEST <= later - earlier < self._length:
                    self._length = later - earlier
        self._last = last

    def count(self, stamps: Collection[int], now: float) -> int:
        """Periods since the last call, of which `stamps` had samples; of a second in the first one.

        `now` is seconds of our own clock. There are at least as many periods as different timestamps: a tick
        may see one more than its length has room for.
        """
        window = _SECOND if self._read_at is None else (now - self._read_at) * _SECOND
        self._read_at = now
        return max(self._distinct(stamps), round(window / self._length), 1)

    def _distinct(self, stamps: Collection[int]) -> int:
        # Samples of several processes in one period need not have the same microsecond.
        found, latest = 0, -_SECOND
        for stamp in sorted(set(stamps)):
            if stamp - latest >= self._length / 2:
                found, latest = found + 1, stamp
        return found


_MOST_PLANS = 8
# Slot index, handle, UUID and attributes of a MIG device: what tells one cut from another.
Slot = tuple[int, int, bytes, bytes]


@dataclass(slots=True, eq=False)
class DeviceState:
    """What is kept of one Device between ticks.

    `support` says per quantity whether the Device has it, once that is known; `no_field` holds field ids that
    it does not tell; at `doubt_at` what it lacks is asked for anew. `held` are the processes of the last list
    by pid, with type bits and bytes, None if it could not be read; `pids` are those of the last list that
    could. `slow_faults` are codes and calls of what failed when slow quantities were read last. `answered`
    and `fault` are of the running tick: whether anything was told, and the first error code met. `counters`
    holds of each counter what was told last, and a lower reading that is held back; `links` is what NVLinks
    had moved by the last tick and when that was, None where no rate can follow from it. `gpm` says whether
    there are metrics of the Device, None until that is known; `sampled_by` is the call that takes their
    samples.
    """

    device: Device
    handle: c_void_p
    facts: Facts
    memory_v1: bool = False
    support: dict[str, bool] = field(default_factory=dict)
    no_field: set[int] = field(default_factory=set)
    plans: dict[tuple[frozenset[Quantity], bool], Plan] = field(default_factory=dict)
    counters: dict[Quantity, tuple[float, float | None]] = field(default_factory=dict)
    links: tuple[float, float] | None = None
    gpm: bool | None = None
    sampled_by: str = ""
    slow_values: dict[Quantity, float] = field(default_factory=dict)
    slow_faults: list[tuple[int, str]] = field(default_factory=list)
    slow_at: float = 0.0
    slow_wanted: frozenset[Quantity] | None = None
    doubt_at: float | None = None
    held: dict[int, tuple[int, int | None]] | None = None
    pids: frozenset[int] = frozenset()
    up: bool = True
    answered: bool = False
    fault: int = SUCCESS

    @property
    def memory_total(self) -> int | None:
        """Bytes, of which no process can hold more; None while that is not known."""
        return self.facts.memory

    def plan(self, wanted: frozenset[Quantity], slow: bool) -> Plan:
        """What to ask for the wanted quantities, by what is known of the Device by now."""
        plan = self.plans.get((wanted, slow))
        if plan is None:
            if len(self.plans) > _MOST_PLANS:
                self.plans.clear()
            level = Level.INSTANCE if isinstance(self.device, Instance) else Level.GPU
            plan = make_plan(level, wanted, slow, self.support, self.no_field)
            self.plans[wanted, slow] = plan
        return plan

    def learn(self, quantity: Quantity, has: bool) -> None:
        """Remember whether the Device has the quantity; a plan that asks for a thing it lacks is void."""
        if self.support.get(quantity.key) is not has:
            self.support[quantity.key] = has
            self.plans.clear()

    def steady(self, quantity: Quantity, value: float) -> float:
        """What to tell of a cumulative counter that reads `value`.

        One low reading in between would make increase() invent all that was counted before it: it is held
        back, and what was told last goes on being told, until the next reading goes on from the low one.
        """
        told, low = self.counters.get(quantity, (value, None))
        if value < told and (low is None or value < low):
            self.counters[quantity] = (told, value)
            return told
        self.counters[quantity] = (value, None)
        return value

    def holds_back(self, quantity: Quantity) -> bool:
        """Whether the counter was read lower than what is told of it."""
        return quantity in self.counters and self.counters[quantity][1] is not None

    def doubt(self, quantities: Iterable[Quantity]) -> None:
        """What was known of whether the Device has these is not known any more."""
        for quantity in quantities:
            self.support.pop(quantity.key, None)
        self.plans.clear()

    def doubt_lacks(self) -> None:
        """Ask anew for all that the Device said it does not have: links come up late, profilers end."""
        self.support = {key: True for key, has in self.support.items() if has}
        self.no_field.clear()
        self.plans.clear()
        self.gpm = self.gpm or None
        self.memory_v1 = False

    def forget(self) -> None:
        """Ask everything anew: the card came back or was cut differently."""
        self.support.clear()
        self.links = self.gpm = None
        self.sampled_by = ""
        self.no_field.clear()
        self.plans.clear()
        self.slow_values = {}
        self.slow_faults.clear()
        self.slow_wanted = None
        self.memory_v1 = False

    def report_unread(self, part: str, findings: Findings) -> None:
        """A Failure for each static fact that did not answer."""
        for call, code in self.facts.unread.items():
            if code not in NOTHING_YET:
                findings.fail(part, code, call, self.device)


@dataclass(slots=True, eq=False)
class GpuState(DeviceState):
    """A Gpu, its Instances, and what only a Gpu has.

    `cut_known` is False until MIG mode and, where that is on, the Instances were read; before that it is not
    known on which Device the processes sit. `cut_read` is the same of the running tick, `cut_numbers` what it
    told of the quantities in CUT. `last_sample` is the newest utilization sample seen, in the driver's
    microseconds. `code` says why a Gpu that is not `up` is not; one that is `gone` is not even counted by the
    driver any more. `fresh` asks the owner of driver-side registrations to make them again, `watched` says
    whether its events come.
    """

    gpu: Gpu = field(kw_only=True)
    mig_capable: bool = True
    mig_enabled: bool = False
    cut_numbers: dict[Quantity, int] = field(default_factory=dict)
    cut_known: bool = False
    cut_read: bool = True
    instances: list[DeviceState] = field(default_factory=list)
    cut: list[Slot] = field(default_factory=list)
    last_sample: int | None = None
    periods: SamplePeriods = field(default_factory=SamplePeriods)
    samples_call: str | None = ""
    watched: bool = False
    code: int = SUCCESS
    gone: bool = False
    fresh: bool = True

    def doubt_lacks(self) -> None:
        """As of any Device, and also for MIG, utilization samples and events."""
        DeviceState.doubt_lacks(self)
        self.mig_capable = True
        self.samples_call = ""
        self.fresh = self.fresh or not self.watched

    @property
    def parts(self) -> list[DeviceState]:
        """The Devices that processes can sit on: the Instances if there are any, else the Gpu."""
        return list(self.instances) or [self]

    def describe(self, gpu: Gpu) -> None:
        """The same Gpu with other attributes."""
        self.gpu = self.device = gpu
        for part in self.instances:
            if isinstance(part.device, Instance):
                part.device = replace(part.device, parent=gpu)

    def lose(self, code: int, call: str, part: str, findings: Findings) -> None:
        """The whole Gpu is out of reach."""
        self.up = False
        self.code = code
        findings.fail(part, code, call, self.gpu)

    def revive(self, handle: c_void_p) -> None:
        """The Gpu has a handle again, perhaps after a reset: nothing learnt of it before counts."""
        self.handle = handle
        self.up = self.fresh = self.mig_capable = True
        self.gone = self.cut_known = False
        self.last_sample = None
        self.samples_call = ""
        for part in (self, *self.instances):
            part.held = None
            part.forget()
            part.facts.again()

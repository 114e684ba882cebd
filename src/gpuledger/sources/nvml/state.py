"""What is remembered of each Device between ticks."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import c_void_p
from dataclasses import dataclass, field, replace

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.quantities import Level, Quantity
from gpuledger.sources.nvml.codes import NOTHING_YET, SUCCESS
from gpuledger.sources.nvml.facts import Facts
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.periods import SamplePeriods
from gpuledger.sources.nvml.plan import Plan, make_plan

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

"""The sums of one owner's presence on one Device within a quarter of an hour, or within a folded hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.ledger.usage.usage_bars import UsageBars


@dataclass(slots=True)
class UsageCell:
    """What was seen of one presence. Times are microseconds, `begins` and `ends` the unix seconds of sights.

    `seen` is time in which the process list of the Device was read and the owner was there; `resident` the
    part with a process, `allocated` the part in which the Device was allocated to the owner, `shared` the
    part in which another owner was there. In `active`, an engine was certainly busy for the owner, in
    `inactive` certainly none.

    `sm` is the sum over time of the SM shares of all its processes, in ten-thousandths of a microsecond,
    over the `sm_known` of the resident time in which all were reported; `sm_peak` is the largest sum at one
    tick in ten-thousandths. `busy` and `busy_known` are the same of the Device's own utilization. `memory`
    is bytes times milliseconds over `memory_known` milliseconds; `memory_peak` is bytes of all its processes
    at one tick. `starts` counts presences in which the first activity was seen, `waited` the time until it.

    `throttled` is time with reduced clocks by reason, in `throttle_known`. The last four are bytes that the
    Gpu moved meanwhile. Peaks and bytes are None if the driver did not report them.
    """

    quarter: int
    begins: float
    ends: float
    seen: int = 0
    resident: int = 0
    allocated: int = 0
    shared: int = 0
    active: int = 0
    inactive: int = 0
    sm: int = 0
    sm_known: int = 0
    sm_peak: int | None = None
    busy: int = 0
    busy_known: int = 0
    memory: int = 0
    memory_known: int = 0
    memory_peak: int | None = None
    starts: int = 0
    waited: int = 0
    throttle_known: int = 0
    pcie_tx: int | None = None
    pcie_rx: int | None = None
    nvlink_tx: int | None = None
    nvlink_rx: int | None = None
    throttled: dict[str, int] = field(default_factory=dict)
    bars: UsageBars = field(default_factory=UsageBars)
    # Whether the cell has what the store had of it before this run, or before the clock was set back.
    is_loaded: bool = False

    def add_sums(self, other: UsageCell) -> None:
        """Add all sums of another cell of the same owner and Device, except the bars."""
        self.begins, self.ends = min(self.begins, other.begins), max(self.ends, other.ends)
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in PEAKS:
            setattr(self, name, larger(getattr(self, name), getattr(other, name)))
        for name in BYTES:
            setattr(self, name, added(getattr(self, name), getattr(other, name)))
        self.add_throttled(other.throttled)

    def add(self, other: UsageCell) -> None:
        """Add another cell of the same owner, Device and quarter."""
        self.add_sums(other)
        self.bars.add_encoded(other.bars.encoded())

    def add_throttled(self, seconds: Mapping[str, int]) -> None:
        """Add microseconds by reason."""
        for reason, microseconds in seconds.items():
            self.throttled[reason] = self.throttled.get(reason, 0) + microseconds


# Fields by how two cells are merged, in the order of the columns of the store.
SUMS: Final = (
    "seen",
    "resident",
    "allocated",
    "shared",
    "active",
    "inactive",
    "sm",
    "sm_known",
    "busy",
    "busy_known",
    "memory",
    "memory_known",
    "starts",
    "waited",
    "throttle_known",
)
PEAKS: Final = ("sm_peak", "memory_peak")
BYTES: Final = ("pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx")


def larger(one: int | None, other: int | None) -> int | None:
    """The larger of two values; None if neither is known."""
    return one if other is None else other if one is None else max(one, other)


def added(one: int | None, other: int | None) -> int | None:
    """The sum of the known ones of two values; None if neither is known."""
    return one if other is None else other if one is None else one + other

"""What an owner did on a Device in a range: the numbers of a receipt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpuledger.ledger.sessions import RATIO
from gpuledger.ledger.usage.usage_bars import HOUR_BAR_MINUTES, decoded_bars
from gpuledger.ledger.usage.usage_cell import BYTES, SUMS, UsageCell, larger
from gpuledger.ledger.watched_time import MICRO, MINUTE, QUARTER

# Amounts that are right for several presences together; the others count once what happens at the same time.
_ADDITIVE: Final = ("sm", "memory", "starts", "waited")
_PER_HUNDREDTH: Final = 10_000
MOST_BARS: Final = 60


class UsageBar(NamedTuple):
    """A stretch of the picture of utilization over time, from `begins` (unix seconds), `seconds` long.

    `ratio` is the mean utilization in the `seen` microseconds of it, None if nothing was seen.
    """

    begins: float
    seconds: int
    ratio: float | None
    seen: int


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one key of a grouping did on one Device.

    Times are whole microseconds, `begins` and `ends` the unix seconds of the first and the last sight in the
    range, memory is bytes, ratios are 0 to 1. What the driver did not report is None.

    - `seen`: it was there (had the Device allocated, or a process), and the process list was read. Means are
      over this time; what was not seen is not known. `resident`: with a process; `allocated`; `shared`: while
      another owner was there, too.
    - `active`, `inactive`: an engine was certainly busy for it, or certainly none. The rest is unknown.
    - `sm_mean`, `sm_peak`: SM share of its processes together, the mean over `sm_known` resident time.
    - `memory_mean`, `memory_peak`: of its processes together at one moment. If several owners of the key,
      such as two jobs of a user, were on the Device at the same time, `memory_peak` is the highest of one, or
      the mean of all together. `memory_size` is the Device's memory.
    - `starts`: presences of which the first activity was seen, `waited` the time from their allocations (or
      first processes) to it, summed.
    - `throttled`: time with reduced clocks by reason, of `throttle_known`.
    - `pcie_tx` to `nvlink_rx`: bytes of the whole Gpu while it was there: its own if `shared` is 0.
    - `is_merged`: owners of the key overlapped: times and bytes are those of the union, and estimates.
    """

    key: tuple[str, ...]
    device: str
    begins: float
    ends: float
    seen: int
    resident: int
    allocated: int
    shared: int
    active: int | None
    inactive: int | None
    sm_mean: float | None
    sm_peak: float | None
    sm_known: int
    memory_mean: float | None
    memory_peak: int | None
    memory_size: int | None
    starts: int
    waited: int
    throttled: Mapping[str, int]
    throttle_known: int
    pcie_tx: int | None
    pcie_rx: int | None
    nvlink_tx: int | None
    nvlink_rx: int | None
    is_merged: bool
    bars: tuple[UsageBar, ...]


@dataclass(frozen=True, slots=True)
class HostUsage:
    """What the cgroups of one owner used on the node, from `begins` to `ends` (unix seconds).

    `cpu` is microseconds since the cgroup was created, of a requeued job also of earlier ones; `memory_peak`
    and `memory_limit` are bytes. `cpus` is the number of CPUs that it may use. Without a limit, both are
    those of the machine; `is_limited` says whether memory has one. None is not known.
    """

    key: tuple[str, ...]
    begins: float
    ends: float
    cpu: int | None
    memory_peak: int | None
    memory_limit: int | None
    cpus: int | None
    is_limited: bool = False


class StoredCell(NamedTuple):
    """A cell of the ledger. `is_folded`: of an hour."""

    cell: UsageCell
    is_folded: bool


@dataclass(slots=True)
class UsageSums:
    """Sums the cells of one key on one Device. Add all cells of a quarter or hour in one call."""

    sums: UsageCell | None = None
    peak_high: int | None = None
    is_merged: bool = False
    # Begin (unix seconds), minutes, hundredths of a second busy and seen of each bar.
    bars: list[tuple[int, int, int, int]] = field(default_factory=list)

    def add(self, cells: Sequence[StoredCell]) -> None:
        """Add the cells of one quarter, or of one folded hour."""
        found = [one.cell for one in cells]
        numerator, denominator = _union(found)
        self.is_merged = self.is_merged or numerator < denominator
        self.peak_high = larger(self.peak_high, _highest_peak(found))
        for one in cells:
            self._add_cell(one, numerator, denominator)

    def _add_cell(self, one: StoredCell, numerator: int, denominator: int) -> None:
        cell = one.cell
        bars = cell.bars.encoded()
        minutes = HOUR_BAR_MINUTES if one.is_folded else 1
        for place, (busy, seen) in enumerate(decoded_bars(bars)):
            if seen:
                begins = cell.quarter * QUARTER + place * minutes * MINUTE
                self.bars.append((begins, minutes, busy, seen * numerator // denominator))
        if numerator < denominator:
            _scale(cell, numerator, denominator)
        if self.sums is None:
            self.sums = cell
        else:
            self.sums.add_sums(cell)

    def row(self, key: tuple[str, ...], device: str, size: int | None, *, bars: int = MOST_BARS) -> UsageRow:
        """The row; `size` is the memory of the Device in bytes. At least one cell must have been added."""
        cell = self.sums
        assert cell is not None
        is_known = bool(cell.active or cell.inactive)
        memory = cell.memory / cell.memory_known if cell.memory_known else None
        peak = cell.memory_peak
        if self.is_merged and peak is not None and memory is not None:
            # Of several owners, only their mean together is known.
            peak = max(peak, min(int(memory), self.peak_high or 0))
        return UsageRow(
            key,
            device,
            cell.begins,
            cell.ends,
            cell.seen,
            cell.resident,
            cell.allocated,
            cell.shared,
            cell.active if is_known else None,
            cell.inactive if is_known else None,
            _ratio(cell.sm, cell.sm_known),
            None if cell.sm_peak is None else cell.sm_peak / RATIO,
            cell.sm_known,
            memory,
            peak,
            size,
            cell.starts,
            cell.waited,
            dict(sorted(cell.throttled.items())),
            cell.throttle_known,
            cell.pcie_tx,
            cell.pcie_rx,
            cell.nvlink_tx,
            cell.nvlink_rx,
            self.is_merged,
            _picture(self.bars, bars),
        )


def _ratio(amount: int, known: int) -> float | None:
    return min(amount / (RATIO * known), 1.0) if known else None


def _union(cells: Sequence[UsageCell]) -> tuple[int, int]:
    """The part of the summed time of the cells that is their time together, as a fraction."""
    total = sum(cell.seen for cell in cells)
    if len(cells) < 2 or not total:
        return 1, 1
    length, end = 0.0, float("-inf")
    for cell in sorted(cells, key=lambda cell: cell.begins):
        length += max(cell.ends - max(cell.begins, end), 0.0)
        end = max(end, cell.ends)
    together = max(round(length * MICRO), *(cell.seen for cell in cells))
    # A tick of slack: cells that follow one another.
    return (together, total) if together < total * 0.99 else (1, 1)


def _scale(cell: UsageCell, numerator: int, denominator: int) -> None:
    for name in SUMS:
        if name not in _ADDITIVE:
            setattr(cell, name, getattr(cell, name) * numerator // denominator)
    for name in BYTES:
        if (value := getattr(cell, name)) is not None:
            setattr(cell, name, value * numerator // denominator)
    cell.throttled = {
        reason: microseconds * numerator // denominator for reason, microseconds in cell.throttled.items()
    }


def _highest_peak(cells: Iterable[UsageCell]) -> int | None:
    """The largest sum of the peaks of cells that overlap in time; None if none is known."""
    known = [(cell.begins, cell.ends, cell.memory_peak) for cell in cells if cell.memory_peak is not None]
    sums = [
        sum(peak for begins, ends, peak in known if begins <= start < ends or begins == start)
        for start, _, _ in known
    ]
    return max(sums, default=None)


def _picture(bars: Sequence[tuple[int, int, int, int]], most: int) -> tuple[UsageBar, ...]:
    """At most `most` bars of equal length, without gaps, from the first to the last one."""
    if not bars:
        return ()
    unit = max(minutes for _, minutes, _, _ in bars) * MINUTE
    first = min(begins for begins, *_ in bars) // unit * unit
    last = max(begins + minutes * MINUTE for begins, minutes, _, _ in bars)
    size = unit * -(-(last - first) // (unit * most))
    found = [[0, 0] for _ in range(-(-(last - first) // size))]
    for begins, _, busy, seen in bars:
        sums = found[(begins - first) // size]
        sums[0] += busy
        sums[1] += seen
    return tuple(
        UsageBar(first + place * size, size, min(busy / seen, 1.0) if seen else None, seen * _PER_HUNDREDTH)
        for place, (busy, seen) in enumerate(found)
    )

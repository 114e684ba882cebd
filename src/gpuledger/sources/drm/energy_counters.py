"""Energy counters of AMD and Intel GPUs: their units, which of them can be trusted, and how they wrap.

Facts: amdgpu's SMU code for each chip, i915_hwmon.c and xe_hwmon.c of Linux 6.12. A counter that the firmware
does not keep is absent, and the ledger integrates power instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gpuledger.sources.drm.cards import DrmCard
from gpuledger.sources.drm.gpu_metrics import GpuMetrics
from gpuledger.sources.drm.kfd import MI100, MI200
from gpuledger.sources.drm.sysfs import SysfsFolder

# Counts are 2^-16 J (15.259 µJ). AMD's libraries multiply with 15.3 µJ, which is 0.27 % more.
_COUNT_BITS: Final = 16
_TURN: Final = 1 << 32
# A turn of the 32-bit counter is believed if its energy is at most this many times power and time.
_HEADROOM: Final = 1.5
# Seconds for which a file that cannot be read may still be the one to choose.
_UNSURE: Final = 60.0


class AmdCounter(Enum):
    """How the energy field of `gpu_metrics` counts."""

    NONE = "none"
    FULL = "64 bits"
    SHORT = "32 bits"


def amd_counter(metrics: GpuMetrics, target: int) -> AmdCounter:
    """The counter of a chip, by the version of its table and its instruction set.

    Instinct MI200 and newer have one of 64 bits, MI100 one of 32 bits. RDNA 1 and 2 count in another, unknown
    unit, RDNA 3 and 4 and APUs report 0 or nothing.
    """
    format_revision, content = metrics.version
    if format_revision != 1:
        return AmdCounter.NONE
    if content >= 4 or target == MI200:
        return AmdCounter.FULL
    return AmdCounter.SHORT if target == MI100 else AmdCounter.NONE


def to_millijoules(counts: int) -> int:
    """Convert counts of 2^-16 J, rounded down."""
    return counts * 1000 >> _COUNT_BITS


@dataclass(slots=True)
class ShortCounter:
    """Extends a counter of 32 bits, which turns after 65,536 J: in 3.6 minutes at 300 W.

    Turns while nothing is read are lost, and nothing shows them.
    """

    turns: int = 0
    last: int | None = None
    last_at: float = 0.0
    last_watts: float = 0.0

    def extend(self, counts: int, at: float, watts: float | None) -> int:
        """The counts with the turns seen so far. A fall that power does not explain restarts the counter."""
        counts %= _TURN
        if self.last is not None and counts < self.last:
            joules = (counts + _TURN - self.last) >> _COUNT_BITS
            # Work may have ended, or begun, since the last reading.
            highest = max(watts or 0.0, self.last_watts)
            fits = joules <= _HEADROOM * highest * (at - self.last_at + 1)
            self.turns = self.turns + 1 if fits else 0
        self.last, self.last_at, self.last_watts = counts, at, watts or 0.0
        return self.turns * _TURN + counts


@dataclass(frozen=True, slots=True)
class DieReading:
    """What one die of an MI250 reported: counts of energy, growth of activity, share of time it was busy."""

    counts: int
    activity: int | None
    busy: float | None


@dataclass(slots=True)
class CardOfTwoDies:
    """Splits the energy of an MI250 between its dies: the first die's counter covers both, the second has 0.

    Each die gets a counter that begins at 0 with this program; their sum grows exactly as the card's counter.
    A fall of that counter is a new start only if the next reading goes on from there.
    """

    counters: list[int] = field(default_factory=lambda: [0, 0])
    _last: int | None = None
    _fallen: int | None = None
    _activity: tuple[int | None, int | None] = (None, None)

    def split(self, first: DieReading, second: DieReading) -> tuple[int, int]:
        """The millijoules of both dies, by their activity since the last call, else equally."""
        now = to_millijoules(first.counts)
        start = now if self._last is None else self._last
        if now < start:
            if self._fallen is None or now < self._fallen:
                self._fallen = now
                return self.counters[0], self.counters[1]
            start = self._fallen
        gained, self._fallen = now - start, None
        before, self._activity = self._activity, (first.activity, second.activity)
        weights = [
            _growth(die.activity, earlier, die.busy)
            for die, earlier in zip((first, second), before, strict=True)
        ]
        total = sum(weights)
        share = gained * weights[0] // total if total else gained // 2
        self.counters[0] += share
        self.counters[1] += gained - share
        self._last = now
        return self.counters[0], self.counters[1]


def _growth(activity: int | None, before: int | None, busy: float | None) -> int:
    if activity is not None and before is not None:
        return (activity - before) % _TURN
    return round((busy or 0.0) * 1000)


def pair_dies(
    cards: Sequence[DrmCard], reads_zero: Callable[[DrmCard], bool]
) -> Mapping[str, tuple[DrmCard, DrmCard]]:
    """The two dies of each MI250, the one with the counter first, by the address of either.

    Sysfs does not name the pairs: dies have the same serial number of the board, else they are neighbors on
    the PCI bus of which only the first has a counter.
    """
    dies = sorted((card for card in cards if card.has_two_dies), key=lambda card: card.address)
    found: dict[str, tuple[DrmCard, DrmCard]] = {}
    for position, first in enumerate(dies):
        for second in dies[position + 1 :]:
            if first.address in found or second.address in found:
                continue
            same_board = bool(first.board) and first.board == second.board
            neighbors = not first.board and not second.board and dies[position + 1] is second
            zeros = (reads_zero(first), reads_zero(second))
            if (same_board or neighbors) and zeros in ((False, True), (True, False)):
                pair = (second, first) if zeros[0] else (first, second)
                found[first.address] = found[second.address] = pair
    return found


@dataclass(slots=True)
class IntelEnergy:
    """The energy file of an Intel card in hwmon: that of the whole card if it counts, else the package's.

    On some kernels `card` is always 0 while `pkg` counts, and elsewhere `card` is below `pkg`, so the file is
    chosen once and named in the counter's epoch; for a minute not while one of them cannot be read. `watts`
    is the mean power since the last reading: the drivers report no power.
    """

    label: str = ""
    watts: float | None = None
    _file: str = ""
    _last: tuple[int, float] | None = None
    _began: float | None = None

    def read(self, hwmon: SysfsFolder, labels: Mapping[str, str], at: float) -> int | None:
        """The counter in millijoules; None if the card has none or it did not answer."""
        self.watts = None
        if not self._file and not self._choose(hwmon, labels, at):
            return None
        microjoules = hwmon.number(f"{self._file}_input")
        if microjoules is None:
            return None
        if self._last is not None and at > self._last[1] and microjoules >= self._last[0]:
            self.watts = (microjoules - self._last[0]) / 1e6 / (at - self._last[1])
        self._last = (microjoules, at)
        return microjoules // 1000

    def _choose(self, hwmon: SysfsFolder, labels: Mapping[str, str], at: float) -> bool:
        self._began = at if self._began is None else self._began
        for label in ("card", "pkg", "energy1"):
            prefix = labels.get(label)
            counts = prefix is not None and hwmon.number(f"{prefix}_input")
            is_unsure = any(path.startswith(f"{hwmon.path}/energy") for path in hwmon.errors)
            if is_unsure and at - self._began < _UNSURE:
                return False
            if prefix is not None and counts:
                self.label, self._file = label, prefix
                return True
        return False

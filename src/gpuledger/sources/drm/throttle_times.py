"""Times for which an MI300 or newer was throttled, from the residency counters of gpu_metrics 1.6 and later.

The firmware adds one to `accumulation_counter` in each of its periods, and one to a residency if the limit
was in force: the ratio of their growths is the throttled share of the time between two readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from gpuledger.sources.drm.gpu_metrics import GpuMetrics

_PERIODS: Final = "accumulation_counter"
_RESIDENCIES: Final[Mapping[Quantity, tuple[str, ...]]] = {
    q.POWER_VIOLATION: ("ppt_residency_acc",),
    q.THERMAL_VIOLATION: ("socket_thm_residency_acc", "vr_thm_residency_acc", "hbm_thm_residency_acc"),
    q.HARDWARE_THERMAL_TIME: ("prochot_residency_acc",),
}
THROTTLE_TIMES: Final = frozenset(_RESIDENCIES)
_TURN: Final = 1 << 32
_NANO: Final = 1_000_000_000


@dataclass(slots=True)
class ResidencyTimes:
    """Nanoseconds by reason since the first reading. Several sensors at once count as the longest of them."""

    _totals: dict[Quantity, int] = field(default_factory=dict)
    _last: Mapping[str, int] = field(default_factory=dict)
    _at: float = 0.0

    def read(self, metrics: GpuMetrics | None, now: float) -> Mapping[Quantity, float]:
        """The times at `now`, seconds of the boot clock; none for a table without these counters."""
        if metrics is None or metrics.scalar(_PERIODS) is None:
            return {}
        names = (_PERIODS, *(name for group in _RESIDENCIES.values() for name in group))
        values = {name: value for name in names if (value := metrics.scalar(name)) is not None}
        before, self._last = self._last, values
        seconds, self._at = now - self._at, now
        periods = (values[_PERIODS] - before.get(_PERIODS, values[_PERIODS])) % _TURN
        for quantity, group in _RESIDENCIES.items():
            known = [name for name in group if name in values]
            if not known:
                continue
            grown = max((values[name] - before.get(name, values[name])) % _TURN for name in known)
            # More than all periods: the counters have restarted.
            gained = round(seconds * _NANO * grown / periods) if 0 < grown <= periods else 0
            self._totals[quantity] = self._totals.get(quantity, 0) + gained
        return self._totals

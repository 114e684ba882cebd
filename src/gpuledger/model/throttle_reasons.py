"""Why a GPU's clocks are reduced: the driver's counters and bits of each reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import ThrottleRow


class ThrottleReason(NamedTuple):
    """A reason, its counters in nanoseconds (the first of these sets that is complete counts), its bits.

    Bits are those of nvmlClocksEventReasons.
    """

    name: str
    counters: tuple[tuple[Quantity, ...], ...]
    bits: int

    def is_active(self, bits: int) -> bool:
        """Whether the clocks are reduced for this reason, by the bits of CLOCK_EVENT_REASONS."""
        if self.bits == _SLOWDOWN and bits & _SLOWDOWN_CAUSES:
            return False
        return bool(bits & self.bits)


# A hardware slowdown is heat or the power brake; newer drivers set the bit of the cause as well.
_SLOWDOWN: Final = 0x8
_SLOWDOWN_CAUSES: Final = 0x40 | 0x80
# Little work (low utilization) is no throttling.
THROTTLE_REASONS: Final = (
    ThrottleReason(
        "thermal",
        ((q.THERMAL_VIOLATION,), (q.SOFTWARE_THERMAL_TIME, q.HARDWARE_THERMAL_TIME)),
        0x20 | 0x40,
    ),
    ThrottleReason("power_brake", ((q.POWER_BRAKE_TIME,),), 0x80),
    ThrottleReason("hardware_slowdown", (), _SLOWDOWN),
    ThrottleReason("reliability", ((q.RELIABILITY_VIOLATION,),), 0),
    ThrottleReason("board_limit", ((q.BOARD_LIMIT_VIOLATION,),), 0),
    ThrottleReason("power", ((q.POWER_VIOLATION,),), 0x4),
    ThrottleReason("sync_boost", ((q.SYNC_BOOST_VIOLATION,),), 0x10),
)
THROTTLE_QUANTITIES: Final = frozenset(
    quantity for reason in THROTTLE_REASONS for counters in reason.counters for quantity in counters
)


def throttling_now(values: Mapping[Quantity, float], unix: float) -> tuple[ThrottleRow, ...]:
    """What reduces the clocks at this moment, for a single reading: no time is observed."""
    bits = int(values.get(q.CLOCK_EVENT_REASONS, 0))
    return tuple(
        ThrottleRow(reason.name, unix, 0.0, 0.0, 1.0, is_estimate=True)
        for reason in THROTTLE_REASONS
        if reason.is_active(bits)
    )

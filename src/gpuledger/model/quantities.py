"""What can be read of a Device: key, unit, level and the range outside which a value is not believed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite


class Level(Enum):
    """The deepest Device on which a quantity exists: power of a MIG instance, for one, is not a thing."""

    GPU = "gpu"
    INSTANCE = "instance"


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """One measurable fact in base units. Compared by identity: the ones below are all there are.

    `highest` is a physical impossibility bound, not a plausibility guess: drivers were seen to answer
    4294967295 % and 1.4e16 % (DCGM issue 199); such a value is absent and counted, never clamped.
    """

    key: str
    unit: str
    level: Level
    highest: float = inf
    lowest: float = 0.0
    slow: bool = False

    def believes(self, value: float) -> bool:
        """Whether `value` (in base units) is finite and within the physically possible range."""
        return isfinite(value) and self.lowest <= value <= self.highest

    def __repr__(self) -> str:
        return f"<{self.key}>"


_TERA = 1e12

UTILIZATION = Quantity("utilization", "ratio", Level.GPU, highest=1.0)
MEMORY_UTILIZATION = Quantity("memory_utilization", "ratio", Level.GPU, highest=1.0)
ENCODER_UTILIZATION = Quantity("encoder_utilization", "ratio", Level.GPU, highest=1.0)
DECODER_UTILIZATION = Quantity("decoder_utilization", "ratio", Level.GPU, highest=1.0)
# Share of time in which the graphics or compute engine was busy (GPM metric 1, Hopper and newer).
ENGINE_ACTIVITY = Quantity("engine_activity", "ratio", Level.INSTANCE, highest=1.0)

MEMORY_TOTAL = Quantity("memory_total", "bytes", Level.INSTANCE, highest=1024 * _TERA)
MEMORY_USED = Quantity("memory_used", "bytes", Level.INSTANCE, highest=1024 * _TERA)
MEMORY_FREE = Quantity("memory_free", "bytes", Level.INSTANCE, highest=1024 * _TERA)
MEMORY_RESERVED = Quantity("memory_reserved", "bytes", Level.INSTANCE, highest=1024 * _TERA)

POWER = Quantity("power", "watts", Level.GPU, highest=100_000.0)
POWER_LIMIT = Quantity("power_limit", "watts", Level.GPU, highest=100_000.0, slow=True)
POWER_LIMIT_MAX = Quantity("power_limit_max", "watts", Level.GPU, highest=100_000.0, slow=True)
# Integer millijoules since the driver was loaded: the hardware counter that the books sum to.
ENERGY = Quantity("energy", "millijoules", Level.GPU)

TEMPERATURE = Quantity("temperature", "celsius", Level.GPU, highest=200.0, lowest=-60.0)
MEMORY_TEMPERATURE = Quantity("memory_temperature", "celsius", Level.GPU, highest=200.0, lowest=-60.0)
FAN_SPEED = Quantity("fan_speed", "ratio", Level.GPU, highest=2.0, slow=True)

GRAPHICS_CLOCK = Quantity("graphics_clock", "hertz", Level.GPU, highest=_TERA)
SM_CLOCK = Quantity("sm_clock", "hertz", Level.GPU, highest=_TERA)
MEMORY_CLOCK = Quantity("memory_clock", "hertz", Level.GPU, highest=_TERA)
VIDEO_CLOCK = Quantity("video_clock", "hertz", Level.GPU, highest=_TERA)
PERFORMANCE_STATE = Quantity("performance_state", "", Level.GPU, highest=15)

# Cumulative since driver load; the hardware says that they can wrap (nvml.h, fields 197 and 198).
PCIE_TX = Quantity("pcie_tx", "bytes", Level.GPU)
PCIE_RX = Quantity("pcie_rx", "bytes", Level.GPU)
PCIE_REPLAYS = Quantity("pcie_replays", "", Level.GPU, slow=True)
ECC_CORRECTED = Quantity("ecc_corrected", "", Level.GPU, slow=True)
ECC_UNCORRECTED = Quantity("ecc_uncorrected", "", Level.GPU, slow=True)

QUANTITIES: dict[str, Quantity] = {
    value.key: value for value in tuple(globals().values()) if isinstance(value, Quantity)
}

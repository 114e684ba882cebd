"""Which call or field id tells which quantity, in which unit, and on which architectures.

What a card does not have it says at run time (NOT_SUPPORTED); the notes are for the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.structs import BLANK_32, BLANK_64

NO_BLANK: Final = -1
_CLOCK: Final = "nvmlDeviceGetClockInfo"


@dataclass(frozen=True, slots=True)
class Number:
    """A call that answers with one number, worth `raw * multiply / divide` in the quantity's unit.

    `arguments` follow the handle. The call writes `outputs` unsigned ints of which number `take` is meant,
    or one unsigned long long if `wide`. `blank` is the value that means "not available".
    """

    quantity: Quantity
    call: str
    multiply: int = 1
    divide: int = 1
    arguments: tuple[int, ...] = ()
    outputs: int = 1
    take: int = 0
    wide: bool = False
    blank: int = BLANK_32


@dataclass(frozen=True, slots=True)
class Field:
    """A field id of nvmlDeviceGetFieldValues, in the quantity's unit, and the call for cards that lack it."""

    quantity: Quantity
    field_id: int
    fallback: Number | None = None


# nvmlDeviceGetUtilizationRates tells both in one call: whole GPU, not under MIG. All-ones is no documented
# blank there but a known driver fault, so it is left to be disbelieved and counted.
RATES_CALL: Final = "nvmlDeviceGetUtilizationRates"
RATES: Final = (q.UTILIZATION, q.MEMORY_UTILIZATION)

# nvmlDeviceGetMemoryInfo_v2 (driver 510) or, without RESERVED, nvmlDeviceGetMemoryInfo; also on Instances.
MEMORY_CALL: Final = "nvmlDeviceGetMemoryInfo_v2"
MEMORY: Final = (q.MEMORY_TOTAL, q.MEMORY_RESERVED, q.MEMORY_FREE, q.MEMORY_USED)

# GPM metric 1 (GRAPHICS_UTIL) from two samples; Hopper and later, also on Instances.
ACTIVITY_CALL: Final = "nvmlGpmMetricsGet"
ACTIVITY: Final = q.ENGINE_ACTIVITY

NUMBERS: Final = (
    # Not under MIG; Kepler and later. The second output is the sampling period.
    Number(q.ENCODER_UTILIZATION, "nvmlDeviceGetEncoderUtilization", divide=100, outputs=2, blank=NO_BLANK),
    Number(q.DECODER_UTILIZATION, "nvmlDeviceGetDecoderUtilization", divide=100, outputs=2, blank=NO_BLANK),
    # Milliwatts: mean of one second from Ampere on (GA100 excepted), instantaneous before.
    Number(q.POWER, "nvmlDeviceGetPowerUsage", divide=1000),
    # The limit in force: the lowest of what was requested, by whatever means, and what the board imposes.
    Number(q.POWER_LIMIT, "nvmlDeviceGetEnforcedPowerLimit", divide=1000),
    Number(q.POWER_LIMIT_MAX, "nvmlDeviceGetPowerManagementLimitConstraints", divide=1000, outputs=2, take=1),
    # Sensor 0 is the die (NVML_TEMPERATURE_GPU); whole degrees.
    Number(q.TEMPERATURE, "nvmlDeviceGetTemperature", arguments=(0,)),
    # Percent of the maximum, may exceed 100; cards with fans of their own only.
    Number(q.FAN_SPEED, "nvmlDeviceGetFanSpeed", divide=100),
    # Megahertz by nvmlClockType_t.
    Number(q.GRAPHICS_CLOCK, _CLOCK, multiply=1_000_000, arguments=(0,)),
    Number(q.SM_CLOCK, _CLOCK, multiply=1_000_000, arguments=(1,)),
    Number(q.MEMORY_CLOCK, _CLOCK, multiply=1_000_000, arguments=(2,)),
    Number(q.VIDEO_CLOCK, _CLOCK, multiply=1_000_000, arguments=(3,)),
    # 0 fastest to 15; 32 is NVML_PSTATE_UNKNOWN.
    Number(q.PERFORMANCE_STATE, "nvmlDeviceGetPerformanceState", blank=32),
    Number(q.PCIE_REPLAYS, "nvmlDeviceGetPcieReplayCounter"),
)

FIELDS: Final = (
    # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: millijoules since the driver was loaded; Volta and later.
    Field(q.ENERGY, 83, Number(q.ENERGY, "nvmlDeviceGetTotalEnergyConsumption", wide=True, blank=BLANK_64)),
    # NVML_FI_DEV_MEMORY_TEMP: cards with HBM.
    Field(q.MEMORY_TEMPERATURE, 82),
    # NVML_FI_DEV_PCIE_COUNT_TX_BYTES and RX: cumulative, "can be wrapped"; Ampere and later.
    Field(q.PCIE_TX, 197),
    Field(q.PCIE_RX, 198),
    # NVML_FI_DEV_ECC_SBE_AGG_TOTAL and DBE: over the card's life, with ECC on. The fallback's arguments are
    # the kind of error (corrected, uncorrected) and the counter (1 is aggregate).
    Field(
        q.ECC_CORRECTED,
        5,
        Number(q.ECC_CORRECTED, "nvmlDeviceGetTotalEccErrors", arguments=(0, 1), wide=True, blank=BLANK_64),
    ),
    Field(
        q.ECC_UNCORRECTED,
        6,
        Number(q.ECC_UNCORRECTED, "nvmlDeviceGetTotalEccErrors", arguments=(1, 1), wide=True, blank=BLANK_64),
    ),
)

# What a card counts up and never down, but for a reset of the card or of the driver, or a wrap.
CUMULATIVE: Final = frozenset({q.PCIE_TX, q.PCIE_RX, q.PCIE_REPLAYS, q.ECC_CORRECTED, q.ECC_UNCORRECTED})

# The call or field id that tells each quantity, as documentation names it.
SOURCES: Final[Mapping[Quantity, str]] = {
    **dict.fromkeys(RATES, RATES_CALL),
    **dict.fromkeys(MEMORY, MEMORY_CALL),
    ACTIVITY: ACTIVITY_CALL,
    **{number.quantity: number.call for number in NUMBERS},
    **{field.quantity: f"NVML field {field.field_id}" for field in FIELDS},
}

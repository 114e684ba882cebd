"""Which call, field id or GPM metric tells which quantity, in which unit, and on which architectures.

What a card does not have it says at run time (NOT_SUPPORTED); the notes are for the reader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Level, Quantity
from gpuledger.sources.nvml.codes import NOT_SUPPORTED
from gpuledger.sources.nvml.structs import BLANK_32, BLANK_64, FIELD, GPM_METRIC, UNSIGNED_INT

_NO_BLANK: Final = -1
_ALL_LINKS: Final = 0xFFFF_FFFF
_MHZ: Final = 1_000_000
_CLOCK: Final = "nvmlDeviceGetClockInfo"
_MAX_CLOCK: Final = "nvmlDeviceGetMaxClockInfo"
_APP_CLOCK: Final = "nvmlDeviceGetApplicationsClock"
_THRESHOLD: Final = "nvmlDeviceGetTemperatureThreshold"
_ERRORS: Final = "nvmlDeviceGetTotalEccErrors"
_LIMITS: Final = "nvmlDeviceGetPowerManagementLimitConstraints"


@dataclass(frozen=True, slots=True)
class Number:
    """A call that answers with one number, worth `raw * multiply / divide` in the quantity's unit.

    `arguments` follow the handle. The call writes `outputs` unsigned ints of which number `take` is meant,
    or one unsigned long long if `wide`. `blank` is the value that means "not available". `older` is the
    call's name in libraries that do not have it under this one.
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
    older: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A call that writes one structure with a number for each of `tells`, worth `raw / divide`."""

    call: str
    layout: Struct
    tells: tuple[Quantity, ...]
    divide: int = 1


@dataclass(frozen=True, slots=True)
class Field:
    """A field id of nvmlDeviceGetFieldValues, worth `raw * multiply / divide`, and the call for cards that
    lack it. `scope` is the scopeId asked; `value_type` is believed before what the driver says it is.
    """

    quantity: Quantity
    field_id: int
    fallback: Number | None = None
    multiply: int = 1
    divide: int = 1
    scope: int = 0
    value_type: int | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of nvmlGpmMetricsGet, worth `value * multiply / divide`.

    One `of_gpu_instance` is not known of the compute instances that share a GPU instance.
    """

    quantity: Quantity
    metric_id: int
    multiply: int = 1
    divide: int = 100
    of_gpu_instance: bool = False


GROUPS: Final = (
    # Whole GPU, not under MIG. All-ones is no documented blank there but a known driver fault, so it is left
    # to be disbelieved and counted.
    Group(
        "nvmlDeviceGetUtilizationRates",
        Struct("@II"),
        (q.UTILIZATION, q.MEMORY_UTILIZATION),
        divide=100,
    ),
    Group("nvmlDeviceGetBAR1MemoryInfo", Struct("@QQQ"), (q.BAR1_TOTAL, q.BAR1_FREE, q.BAR1_USED)),
    # Driver 525 and later. Before the state stand the cluster's UUID, an error code and the clique.
    Group("nvmlDeviceGetGpuFabricInfo", Struct("@24xB3x"), (q.FABRIC_STATE,)),
)

# nvmlDeviceGetMemoryInfo_v2 (driver 510) or, without RESERVED, nvmlDeviceGetMemoryInfo; also on Instances.
MEMORY_CALL: Final = "nvmlDeviceGetMemoryInfo_v2"
MEMORY: Final = (q.MEMORY_TOTAL, q.MEMORY_RESERVED, q.MEMORY_FREE, q.MEMORY_USED)

# Told by the look at how a card is cut, which every tick needs anyway (mig.py).
CUT: Final = (q.MIG_MODE, q.MIG_MAX_SLICES)

NUMBERS: Final = (
    # Not under MIG; Kepler and later. The second output is the sampling period.
    Number(q.ENCODER_UTILIZATION, "nvmlDeviceGetEncoderUtilization", divide=100, outputs=2, blank=_NO_BLANK),
    Number(q.DECODER_UTILIZATION, "nvmlDeviceGetDecoderUtilization", divide=100, outputs=2, blank=_NO_BLANK),
    # Milliwatts: mean of one second from Ampere on (GA100 excepted), instantaneous before.
    Number(q.POWER, "nvmlDeviceGetPowerUsage", divide=1000),
    # The limit in force: the lowest of what was requested, by whatever means, and what the board imposes.
    Number(q.POWER_LIMIT, "nvmlDeviceGetEnforcedPowerLimit", divide=1000),
    Number(q.POWER_LIMIT_MAX, _LIMITS, divide=1000, outputs=2, take=1),
    # Sensor 0 is the die (NVML_TEMPERATURE_GPU); whole degrees.
    Number(q.TEMPERATURE, "nvmlDeviceGetTemperature", arguments=(0,)),
    # nvmlTemperatureThresholds_t: at which the card switches itself off, and at which it slows down.
    Number(q.TEMPERATURE_SHUTDOWN, _THRESHOLD, arguments=(0,)),
    Number(q.TEMPERATURE_SLOWDOWN, _THRESHOLD, arguments=(1,)),
    # Percent of the maximum, may exceed 100; cards with fans of their own only.
    Number(q.FAN_SPEED, "nvmlDeviceGetFanSpeed", divide=100),
    # Megahertz by nvmlClockType_t.
    Number(q.GRAPHICS_CLOCK, _CLOCK, multiply=_MHZ, arguments=(0,)),
    Number(q.SM_CLOCK, _CLOCK, multiply=_MHZ, arguments=(1,)),
    Number(q.MEMORY_CLOCK, _CLOCK, multiply=_MHZ, arguments=(2,)),
    Number(q.VIDEO_CLOCK, _CLOCK, multiply=_MHZ, arguments=(3,)),
    Number(q.MAX_GRAPHICS_CLOCK, _MAX_CLOCK, multiply=_MHZ, arguments=(0,)),
    Number(q.MAX_SM_CLOCK, _MAX_CLOCK, multiply=_MHZ, arguments=(1,)),
    Number(q.MAX_MEMORY_CLOCK, _MAX_CLOCK, multiply=_MHZ, arguments=(2,)),
    Number(q.MAX_VIDEO_CLOCK, _MAX_CLOCK, multiply=_MHZ, arguments=(3,)),
    # Deprecated in CUDA 13 and to go with CUDA 14.
    Number(q.APP_SM_CLOCK, _APP_CLOCK, multiply=_MHZ, arguments=(1,)),
    Number(q.APP_MEMORY_CLOCK, _APP_CLOCK, multiply=_MHZ, arguments=(2,)),
    # 0 fastest to 15; 32 is NVML_PSTATE_UNKNOWN.
    Number(q.PERFORMANCE_STATE, "nvmlDeviceGetPerformanceState", blank=32),
    # Renamed with driver 535.
    Number(
        q.CLOCK_EVENT_REASONS,
        "nvmlDeviceGetCurrentClocksEventReasons",
        wide=True,
        blank=BLANK_64,
        older="nvmlDeviceGetCurrentClocksThrottleReasons",
    ),
    Number(q.PCIE_REPLAYS, "nvmlDeviceGetPcieReplayCounter"),
    # Under MIG a card tells it of its Instances alone.
    Number(q.COMPUTE_MODE, "nvmlDeviceGetComputeMode"),
    Number(q.PERSISTENCE_MODE, "nvmlDeviceGetPersistenceMode"),
    Number(q.VIRTUALIZATION_MODE, "nvmlDeviceGetVirtualizationMode"),
)


def _ecc(quantity: Quantity, field_id: int, kind: int, counter: int) -> Field:
    """`kind` 0 is corrected and 1 uncorrected errors; `counter` 0 is volatile and 1 aggregate."""
    call = Number(quantity, _ERRORS, arguments=(kind, counter), wide=True, blank=BLANK_64)
    return Field(quantity, field_id, call)


FIELDS: Final = (
    # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: millijoules since the driver was loaded; Volta and later.
    Field(q.ENERGY, 83, Number(q.ENERGY, "nvmlDeviceGetTotalEnergyConsumption", wide=True, blank=BLANK_64)),
    # NVML_FI_DEV_MEMORY_TEMP: cards with HBM. Drivers of branch 545 name a wrong type for it.
    Field(q.MEMORY_TEMPERATURE, 82, value_type=UNSIGNED_INT),
    # NVML_FI_DEV_POWER_INSTANT, milliwatts; scope 0 is the GPU, 1 the module that it sits on.
    Field(q.POWER_INSTANT, 186, divide=1000),
    # NVML_FI_DEV_POWER_MIN_LIMIT, _DEFAULT_LIMIT and _REQUESTED_LIMIT, milliwatts.
    Field(q.POWER_LIMIT_MIN, 187, Number(q.POWER_LIMIT_MIN, _LIMITS, divide=1000, outputs=2), divide=1000),
    Field(
        q.POWER_LIMIT_DEFAULT,
        189,
        Number(q.POWER_LIMIT_DEFAULT, "nvmlDeviceGetPowerManagementDefaultLimit", divide=1000),
        divide=1000,
    ),
    Field(
        q.POWER_LIMIT_MANAGEMENT,
        192,
        Number(q.POWER_LIMIT_MANAGEMENT, "nvmlDeviceGetPowerManagementLimit", divide=1000),
        divide=1000,
    ),
    # NVML_FI_DEV_PERF_POLICY_POWER and the five after it: nanoseconds.
    Field(q.POWER_VIOLATION, 74),
    Field(q.THERMAL_VIOLATION, 75),
    Field(q.SYNC_BOOST_VIOLATION, 76),
    Field(q.BOARD_LIMIT_VIOLATION, 77),
    Field(q.LOW_UTILIZATION_VIOLATION, 78),
    Field(q.RELIABILITY_VIOLATION, 79),
    # NVML_FI_DEV_PCIE_COUNT_TX_BYTES and RX: cumulative, "can be wrapped"; Ampere and later.
    Field(q.PCIE_TX, 197),
    Field(q.PCIE_RX, 198),
    # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and RX: KiB of payload, driver 450 and later.
    Field(q.NVLINK_TX, 138, multiply=1024, scope=_ALL_LINKS),
    Field(q.NVLINK_RX, 139, multiply=1024, scope=_ALL_LINKS),
    # NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, _CRC_DATA_, _REPLAY_ and _RECOVERY_.
    Field(q.NVLINK_CRC_FLIT_ERRORS, 38),
    Field(q.NVLINK_CRC_DATA_ERRORS, 45),
    Field(q.NVLINK_REPLAY_ERRORS, 52),
    Field(q.NVLINK_RECOVERY_ERRORS, 59),
    # NVML_FI_DEV_ECC_SBE_VOL_TOTAL, DBE_VOL, SBE_AGG and DBE_AGG: with ECC on.
    _ecc(q.ECC_CORRECTED_VOLATILE, 3, kind=0, counter=0),
    _ecc(q.ECC_UNCORRECTED_VOLATILE, 4, kind=1, counter=0),
    _ecc(q.ECC_CORRECTED, 5, kind=0, counter=1),
    _ecc(q.ECC_UNCORRECTED, 6, kind=1, counter=1),
    # NVML_FI_DEV_RETIRED_SBE, _DBE and _PENDING: before Ampere.
    Field(q.RETIRED_PAGES_CORRECTABLE, 29),
    Field(q.RETIRED_PAGES_UNCORRECTABLE, 30),
    Field(q.RETIRED_PAGES_PENDING, 31),
    # NVML_FI_DEV_REMAPPED_COR, _UNC, _PENDING and _FAILURE: Ampere and later.
    Field(q.REMAPPED_ROWS_CORRECTABLE, 142),
    Field(q.REMAPPED_ROWS_UNCORRECTABLE, 143),
    Field(q.ROW_REMAP_PENDING, 144),
    Field(q.ROW_REMAP_FAILURE, 145),
    # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: driver 560 and later.
    Field(q.RECOVERY_ACTION, 230),
)

# What is not read but worked out of two reads of these.
LINK_RATE: Final = q.NVLINK_RATE
LINKS: Final = (q.NVLINK_TX, q.NVLINK_RX)

# GPM, from two samples: Hopper and later, also on Instances. Percent, then MiB a second.
METRICS_CALL: Final = "nvmlGpmMetricsGet"
METRICS: Final = (
    Metric(q.ENGINE_ACTIVITY, 1),
    Metric(q.SM_ACTIVITY, 2),
    Metric(q.SM_OCCUPANCY, 3),
    Metric(q.TENSOR_ACTIVITY, 5),
    Metric(q.DRAM_ACTIVITY, 10, of_gpu_instance=True),
    Metric(q.FP64_ACTIVITY, 11),
    Metric(q.FP32_ACTIVITY, 12),
    Metric(q.FP16_ACTIVITY, 13),
    Metric(q.PCIE_TX_RATE, 20, multiply=1 << 20, divide=1),
    Metric(q.PCIE_RX_RATE, 21, multiply=1 << 20, divide=1),
    Metric(q.NVLINK_RX_RATE, 60, multiply=1 << 20, divide=1),
    Metric(q.NVLINK_TX_RATE, 61, multiply=1 << 20, divide=1),
)

# What a card counts up and never down, but for a reset of the card or of the driver, or a wrap. Energy is
# told as it reads: the books have rules of their own for one that steps back.
CUMULATIVE: Final = frozenset(
    {
        *LINKS,
        q.PCIE_TX,
        q.PCIE_RX,
        q.PCIE_REPLAYS,
        q.POWER_VIOLATION,
        q.THERMAL_VIOLATION,
        q.SYNC_BOOST_VIOLATION,
        q.BOARD_LIMIT_VIOLATION,
        q.LOW_UTILIZATION_VIOLATION,
        q.RELIABILITY_VIOLATION,
        q.NVLINK_CRC_FLIT_ERRORS,
        q.NVLINK_CRC_DATA_ERRORS,
        q.NVLINK_REPLAY_ERRORS,
        q.NVLINK_RECOVERY_ERRORS,
        q.ECC_CORRECTED,
        q.ECC_UNCORRECTED,
        q.ECC_CORRECTED_VOLATILE,
        q.ECC_UNCORRECTED_VOLATILE,
        q.RETIRED_PAGES_CORRECTABLE,
        q.RETIRED_PAGES_UNCORRECTABLE,
        q.REMAPPED_ROWS_CORRECTABLE,
        q.REMAPPED_ROWS_UNCORRECTABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls, field ids and metrics for the wanted quantities that the Device has, as far as that is known.

    `request` is the batch of fields as nvmlDeviceGetFieldValues takes it, `metrics_request` that of metrics
    for nvmlGpmMetricsGet. `unasked` are quantities that are read to work out another, and not told.
    `supported` says of the wanted quantities whether the Device has them; what is not known yet is not in it.
    """

    groups: tuple[tuple[Group, tuple[Quantity, ...]], ...]
    memory: tuple[Quantity, ...]
    cut: tuple[Quantity, ...]
    numbers: tuple[Number, ...]
    fields: tuple[Field, ...]
    request: bytes
    link_rate: bool
    unasked: tuple[Quantity, ...]
    metrics: tuple[Metric, ...]
    metrics_request: bytes
    supported: Mapping[str, bool]


def make_plan(
    level: Level,
    wanted: Collection[Quantity],
    slow: bool,
    support: Mapping[str, bool],
    no_field: Collection[int],
) -> Plan:
    """The Plan for a Device of the level; without `slow`, one for a tick between the slow ones.

    `support` says what the Device has, `no_field` which field ids it does not tell.
    """
    here = [quantity for quantity in wanted if level is Level.GPU or quantity.level is Level.INSTANCE]
    told_here = {
        quantity
        for quantity in here
        if support.get(quantity.key) is not False and (slow or not quantity.slow)
    }
    link_rate = LINK_RATE in told_here
    unasked = tuple(quantity for quantity in LINKS if link_rate and quantity not in told_here)
    asked = told_here.union(unasked)
    told = [each for each in FIELDS if each.quantity in asked]
    fields = tuple(each for each in told if each.field_id not in no_field)
    fallbacks = tuple(each.fallback for each in told if each.field_id in no_field and each.fallback)
    groups = ((group, tuple(each for each in group.tells if each in asked)) for group in GROUPS)
    metrics = tuple(metric for metric in METRICS if metric.quantity in asked)
    return Plan(
        groups=tuple((group, mine) for group, mine in groups if mine),
        memory=tuple(quantity for quantity in MEMORY if quantity in asked),
        cut=tuple(quantity for quantity in CUT if quantity in asked),
        numbers=tuple(number for number in NUMBERS if number.quantity in asked) + fallbacks,
        fields=fields,
        request=b"".join(
            FIELD.pack(each.field_id, each.scope, 0, 0, 0, NOT_SUPPORTED, b"") for each in fields
        ),
        link_rate=link_rate,
        unasked=unasked,
        metrics=metrics,
        metrics_request=b"".join(
            GPM_METRIC.pack(metric.metric_id, NOT_SUPPORTED, 0.0, 0, 0, 0) for metric in metrics
        ),
        supported={quantity.key: support[quantity.key] for quantity in here if quantity.key in support},
    )

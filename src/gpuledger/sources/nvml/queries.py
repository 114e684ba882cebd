"""Which call, field id or GPM metric reports which quantity, in which unit, and on which architectures.

Cards report at run time what they do not support (NOT_SUPPORTED); the notes on architectures are for readers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Level, Quantity
from gpuledger.sources.nvml.codes import Code
from gpuledger.sources.nvml.structs import BLANK_32, FIELD, GPM_METRIC, UNSIGNED_INT

_NO_BLANK: Final = -1
_ALL_LINKS: Final = 0xFFFF_FFFF
_MHZ: Final = 1_000_000
_CLOCK: Final = "nvmlDeviceGetClockInfo"
_MAX_CLOCK: Final = "nvmlDeviceGetMaxClockInfo"
_APP_CLOCK: Final = "nvmlDeviceGetApplicationsClock"
_THRESHOLD: Final = "nvmlDeviceGetTemperatureThreshold"
_ERRORS: Final = "nvmlDeviceGetTotalEccErrors"
_LIMITS: Final = "nvmlDeviceGetPowerManagementLimitConstraints"
_RECOVERY_FIELD: Final = 230


class NumberQuery(NamedTuple):
    """A call that returns one number, worth `raw * multiply / divide` in the quantity's unit.

    `arguments` follow the device handle. The call writes `outputs` unsigned ints, of which the one at
    `output_index` is used, or one unsigned long long if `is_64_bit`. `blank` is the value for "not
    available" in 32 bits. `older_call` is the name of the call in libraries that lack `call`. A `cumulative`
    counter only increases, except for a reset of the card or driver, or an overflow. Energy is reported as
    read: the ledger has its own rules for an energy counter that decreases.
    """

    quantity: Quantity
    call: str
    multiply: int = 1
    divide: int = 1
    arguments: tuple[int, ...] = ()
    outputs: int = 1
    output_index: int = 0
    is_64_bit: bool = False
    blank: int = BLANK_32
    older_call: str = ""
    cumulative: bool = False


class StructQuery(NamedTuple):
    """A call that writes one structure with a number for each of `quantities`, worth `raw / divide`."""

    call: str
    layout: Struct
    quantities: tuple[Quantity, ...]
    divide: int = 1


class FieldQuery(NamedTuple):
    """A field id of nvmlDeviceGetFieldValues, worth `raw * multiply / divide`.

    `fallback` is the call for cards that lack the field. `scope` is the scopeId. `value_type` overrides the
    type that the driver reports. `cumulative` is as in NumberQuery. `replaced_by` is the field id that later
    drivers have in its place.
    """

    quantity: Quantity
    field_id: int
    fallback: NumberQuery | None = None
    multiply: int = 1
    divide: int = 1
    scope: int = 0
    value_type: int | None = None
    cumulative: bool = False
    replaced_by: int | None = None


class GpmQuery(NamedTuple):
    """A metric of nvmlGpmMetricsGet, worth `value * multiply / divide`.

    A metric `of_gpu_instance` is unknown for compute instances that share a GPU instance.
    """

    quantity: Quantity
    metric_id: int
    multiply: int = 1
    divide: int = 100
    of_gpu_instance: bool = False


STRUCT_QUERIES: Final = (
    # Whole GPU, not under MIG. All-ones is not a documented blank of this call but a known driver fault, so
    # it counts as an invalid value.
    StructQuery(
        "nvmlDeviceGetUtilizationRates",
        Struct("@II"),
        (q.UTILIZATION, q.MEMORY_UTILIZATION),
        divide=100,
    ),
    StructQuery("nvmlDeviceGetBAR1MemoryInfo", Struct("@QQQ"), (q.BAR1_TOTAL, q.BAR1_FREE, q.BAR1_USED)),
    # Driver 525 and later. The state follows the cluster's UUID, an error code and the clique.
    StructQuery("nvmlDeviceGetGpuFabricInfo", Struct("@24xB3x"), (q.FABRIC_STATE,)),
)

# nvmlDeviceGetMemoryInfo_v2 (driver 510) or, without RESERVED, nvmlDeviceGetMemoryInfo; also on Instances.
MEMORY_CALL: Final = "nvmlDeviceGetMemoryInfo_v2"
MEMORY_QUANTITIES: Final = (q.MEMORY_TOTAL, q.MEMORY_RESERVED, q.MEMORY_FREE, q.MEMORY_USED)

# Read with the MIG layout, which every tick needs anyway (mig.py).
MIG_QUANTITIES: Final = (q.MIG_MODE, q.MIG_MAX_SLICES)

NUMBER_QUERIES: Final = (
    # Not under MIG; Kepler and later. The second output is the sampling period.
    NumberQuery(
        q.ENCODER_UTILIZATION, "nvmlDeviceGetEncoderUtilization", divide=100, outputs=2, blank=_NO_BLANK
    ),
    NumberQuery(
        q.DECODER_UTILIZATION, "nvmlDeviceGetDecoderUtilization", divide=100, outputs=2, blank=_NO_BLANK
    ),
    # Milliwatts: mean of one second from Ampere on (GA100 excepted), instantaneous before.
    NumberQuery(q.POWER, "nvmlDeviceGetPowerUsage", divide=1000),
    # The limit in force: the lowest of all requested limits and those of the board.
    NumberQuery(q.POWER_LIMIT, "nvmlDeviceGetEnforcedPowerLimit", divide=1000),
    # Sensor 0 is the die (NVML_TEMPERATURE_GPU); whole degrees.
    NumberQuery(q.TEMPERATURE, "nvmlDeviceGetTemperature", arguments=(0,)),
    # nvmlTemperatureThresholds_t: 0 shutdown, 1 slowdown.
    NumberQuery(q.TEMPERATURE_SHUTDOWN, _THRESHOLD, arguments=(0,)),
    NumberQuery(q.TEMPERATURE_SLOWDOWN, _THRESHOLD, arguments=(1,)),
    # Percent of the maximum, may exceed 100; only cards with their own fans.
    NumberQuery(q.FAN_SPEED, "nvmlDeviceGetFanSpeed", divide=100),
    # Megahertz by nvmlClockType_t.
    NumberQuery(q.GRAPHICS_CLOCK, _CLOCK, multiply=_MHZ, arguments=(0,)),
    NumberQuery(q.SM_CLOCK, _CLOCK, multiply=_MHZ, arguments=(1,)),
    NumberQuery(q.MEMORY_CLOCK, _CLOCK, multiply=_MHZ, arguments=(2,)),
    NumberQuery(q.VIDEO_CLOCK, _CLOCK, multiply=_MHZ, arguments=(3,)),
    NumberQuery(q.MAX_GRAPHICS_CLOCK, _MAX_CLOCK, multiply=_MHZ, arguments=(0,)),
    NumberQuery(q.MAX_SM_CLOCK, _MAX_CLOCK, multiply=_MHZ, arguments=(1,)),
    NumberQuery(q.MAX_MEMORY_CLOCK, _MAX_CLOCK, multiply=_MHZ, arguments=(2,)),
    NumberQuery(q.MAX_VIDEO_CLOCK, _MAX_CLOCK, multiply=_MHZ, arguments=(3,)),
    # Deprecated in CUDA 13, to be removed in CUDA 14.
    NumberQuery(q.APP_SM_CLOCK, _APP_CLOCK, multiply=_MHZ, arguments=(1,)),
    NumberQuery(q.APP_MEMORY_CLOCK, _APP_CLOCK, multiply=_MHZ, arguments=(2,)),
    # 0 fastest to 15; 32 is NVML_PSTATE_UNKNOWN.
    NumberQuery(q.PERFORMANCE_STATE, "nvmlDeviceGetPerformanceState", blank=32),
    # Renamed with driver 535.
    NumberQuery(
        q.CLOCK_EVENT_REASONS,
        "nvmlDeviceGetCurrentClocksEventReasons",
        is_64_bit=True,
        older_call="nvmlDeviceGetCurrentClocksThrottleReasons",
    ),
    # Generation and lanes of the link; the maxima are those of card and slot together. 0 on chips without
    # a link.
    NumberQuery(q.PCIE_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration", blank=0),
    NumberQuery(q.PCIE_GENERATION_MAX, "nvmlDeviceGetMaxPcieLinkGeneration", blank=0),
    # Driver 510 and later.
    NumberQuery(q.PCIE_GENERATION_GPU_MAX, "nvmlDeviceGetGpuMaxPcieLinkGeneration", blank=0),
    NumberQuery(q.PCIE_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth", blank=0),
    NumberQuery(q.PCIE_WIDTH_MAX, "nvmlDeviceGetMaxPcieLinkWidth", blank=0),
    # Under MIG supported only by Instances.
    NumberQuery(q.COMPUTE_MODE, "nvmlDeviceGetComputeMode"),
    NumberQuery(q.PERSISTENCE_MODE, "nvmlDeviceGetPersistenceMode"),
    NumberQuery(q.VIRTUALIZATION_MODE, "nvmlDeviceGetVirtualizationMode"),
)


def _with_fallback(
    quantity: Quantity, field_id: int, call: str, *, divide: int = 1, cumulative: bool = False, **details: Any
) -> FieldQuery:
    """Query a field, with a `call` for cards that lack it."""
    number = NumberQuery(quantity, call, divide=divide, **details)
    return FieldQuery(quantity, field_id, number, divide=divide, cumulative=cumulative)


def _ecc(quantity: Quantity, field_id: int, kind: int, counter: int) -> FieldQuery:
    """Query an ECC counter. `kind`: 0 corrected, 1 uncorrected; `counter`: 0 volatile, 1 aggregate."""
    arguments = (kind, counter)
    return _with_fallback(quantity, field_id, _ERRORS, arguments=arguments, is_64_bit=True, cumulative=True)


FIELD_QUERIES: Final = (
    # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: millijoules since the driver was loaded; Volta and later.
    _with_fallback(q.ENERGY, 83, "nvmlDeviceGetTotalEnergyConsumption", is_64_bit=True),
    # NVML_FI_DEV_MEMORY_TEMP: cards with HBM. Drivers of branch 545 report a wrong type.
    FieldQuery(q.MEMORY_TEMPERATURE, 82, value_type=UNSIGNED_INT),
    # NVML_FI_DEV_POWER_INSTANT, milliwatts; scope 0 is the GPU, 1 its module.
    FieldQuery(q.POWER_INSTANT, 186, divide=1000),
    # NVML_FI_DEV_POWER_MIN_LIMIT, _MAX_LIMIT, _DEFAULT_LIMIT and _REQUESTED_LIMIT, milliwatts.
    _with_fallback(q.POWER_LIMIT_MIN, 187, _LIMITS, divide=1000, outputs=2),
    _with_fallback(q.POWER_LIMIT_MAX, 188, _LIMITS, divide=1000, outputs=2, output_index=1),
    _with_fallback(q.POWER_LIMIT_DEFAULT, 189, "nvmlDeviceGetPowerManagementDefaultLimit", divide=1000),
    _with_fallback(q.POWER_LIMIT_MANAGEMENT, 192, "nvmlDeviceGetPowerManagementLimit", divide=1000),
    # NVML_FI_DEV_PERF_POLICY_POWER and the five after it: nanoseconds.
    FieldQuery(q.POWER_VIOLATION, 74, cumulative=True),
    FieldQuery(q.THERMAL_VIOLATION, 75, cumulative=True),
    FieldQuery(q.SYNC_BOOST_VIOLATION, 76, cumulative=True),
    FieldQuery(q.BOARD_LIMIT_VIOLATION, 77, cumulative=True),
    FieldQuery(q.LOW_UTILIZATION_VIOLATION, 78, cumulative=True),
    FieldQuery(q.RELIABILITY_VIOLATION, 79, cumulative=True),
    # NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, _HW_THERM_SLOWDOWN and _HW_POWER_BRAKE_SLOWDOWN.
    FieldQuery(q.SOFTWARE_THERMAL_TIME, 269, cumulative=True),
    FieldQuery(q.HARDWARE_THERMAL_TIME, 270, cumulative=True),
    FieldQuery(q.POWER_BRAKE_TIME, 271, cumulative=True),
    # NVML_FI_DEV_PCIE_REPLAY_COUNTER.
    _with_fallback(q.PCIE_REPLAYS, 94, "nvmlDeviceGetPcieReplayCounter", cumulative=True),
    # NVML_FI_DEV_PCIE_COUNT_TX_BYTES and RX: cumulative, "can be wrapped"; Ampere and later.
    FieldQuery(q.PCIE_TX, 197, cumulative=True),
    FieldQuery(q.PCIE_RX, 198, cumulative=True),
    # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and RX: KiB of payload, driver 450 and later.
    FieldQuery(q.NVLINK_TX, 138, multiply=1024, scope=_ALL_LINKS, cumulative=True),
    FieldQuery(q.NVLINK_RX, 139, multiply=1024, scope=_ALL_LINKS, cumulative=True),
    # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: megabytes a second of an active link.
    FieldQuery(q.NVLINK_SPEED, 90, multiply=1_000_000),
    # NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, _CRC_DATA_, _REPLAY_ and _RECOVERY_.
    FieldQuery(q.NVLINK_CRC_FLIT_ERRORS, 38, cumulative=True),
    FieldQuery(q.NVLINK_CRC_DATA_ERRORS, 45, cumulative=True),
    FieldQuery(q.NVLINK_REPLAY_ERRORS, 52, cumulative=True),
    FieldQuery(q.NVLINK_RECOVERY_ERRORS, 59, cumulative=True),
    # NVML_FI_DEV_ECC_SBE_VOL_TOTAL, DBE_VOL, SBE_AGG and DBE_AGG: with ECC on.
    _ecc(q.ECC_CORRECTED_VOLATILE, 3, kind=0, counter=0),
    _ecc(q.ECC_UNCORRECTED_VOLATILE, 4, kind=1, counter=0),
    _ecc(q.ECC_CORRECTED, 5, kind=0, counter=1),
    _ecc(q.ECC_UNCORRECTED, 6, kind=1, counter=1),
    # NVML_FI_DEV_RETIRED_SBE, _DBE and _PENDING: before Ampere.
    FieldQuery(q.RETIRED_PAGES_CORRECTABLE, 29, cumulative=True),
    FieldQuery(q.RETIRED_PAGES_UNCORRECTABLE, 30, cumulative=True),
    FieldQuery(q.RETIRED_PAGES_PENDING, 31),
    # NVML_FI_DEV_REMAPPED_COR, _UNC, _PENDING and _FAILURE: Ampere and later.
    FieldQuery(q.REMAPPED_ROWS_CORRECTABLE, 142, cumulative=True),
    FieldQuery(q.REMAPPED_ROWS_UNCORRECTABLE, 143, cumulative=True),
    FieldQuery(q.ROW_REMAP_PENDING, 144),
    FieldQuery(q.ROW_REMAP_FAILURE, 145),
    # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: driver 560 and later.
    FieldQuery(q.RECOVERY_ACTION, _RECOVERY_FIELD),
)
# NVML_FI_DEV_DRAIN_AND_RESET_STATUS and _RESET_STATUS, 0 or 1: driver 545 and later. A required reset comes
# last, because the last action counts. `multiply` is the recovery action.
OLDER_FIELD_QUERIES: Final = (
    FieldQuery(q.RECOVERY_ACTION, 227, multiply=4, replaced_by=_RECOVERY_FIELD),
    FieldQuery(q.RECOVERY_ACTION, 226, multiply=1, replaced_by=_RECOVERY_FIELD),
)
ALL_FIELD_QUERIES: Final = (*FIELD_QUERIES, *OLDER_FIELD_QUERIES)

# NVML_FI_DEV_NVLINK_GET_STATE, a field of each link: nvmlNvlinkState_t. Older drivers have only a call.
LINK_QUANTITIES: Final = (q.NVLINKS_UP, q.NVLINKS_DOWN)
LINK_STATE_FIELD: Final = 165
LINK_STATE_CALL: Final = "nvmlDeviceGetNvLinkState"
MAX_LINKS: Final = 36

# Computed from two readings of NVLINK_COUNTERS.
NVLINK_RATE: Final = q.NVLINK_RATE
NVLINK_COUNTERS: Final = (q.NVLINK_TX, q.NVLINK_RX)

# Where GPM has no such rate: computed from two readings of a counter.
RATE_COUNTERS: Final = {q.PCIE_TX_RATE: q.PCIE_TX, q.PCIE_RX_RATE: q.PCIE_RX}

# GPM, from two samples: Hopper and later, also on Instances. Percent, then MiB a second.
GPM_METRICS_CALL: Final = "nvmlGpmMetricsGet"
GPM_QUERIES: Final = (
    GpmQuery(q.ENGINE_ACTIVITY, 1),
    GpmQuery(q.SM_ACTIVITY, 2),
    GpmQuery(q.SM_OCCUPANCY, 3),
    GpmQuery(q.TENSOR_ACTIVITY, 5),
    GpmQuery(q.DRAM_ACTIVITY, 10, of_gpu_instance=True),
    GpmQuery(q.FP64_ACTIVITY, 11),
    GpmQuery(q.FP32_ACTIVITY, 12),
    GpmQuery(q.FP16_ACTIVITY, 13),
    GpmQuery(q.PCIE_TX_RATE, 20, multiply=1 << 20, divide=1),
    GpmQuery(q.PCIE_RX_RATE, 21, multiply=1 << 20, divide=1),
    GpmQuery(q.NVLINK_RX_RATE, 60, multiply=1 << 20, divide=1),
    GpmQuery(q.NVLINK_TX_RATE, 61, multiply=1 << 20, divide=1),
)

MOST_OUTPUTS: Final = max(
    query.outputs
    for query in (*NUMBER_QUERIES, *(field.fallback for field in FIELD_QUERIES))
    if query is not None
)

CUMULATIVE_COUNTERS: Final = frozenset(
    query.quantity for query in (*NUMBER_QUERIES, *FIELD_QUERIES) if query.cumulative
)


class Depth(IntEnum):
    """Which quantities a tick reads: the fast ones, also the slow ones, or also the constant ones."""

    FAST = 0
    SLOW = 1
    CONSTANT = 2

    @classmethod
    def of(cls, quantity: Quantity) -> Depth:
        """The least depth of a tick that reads this quantity."""
        if quantity.slow:
            return cls.CONSTANT if quantity.constant else cls.SLOW
        return cls.FAST


class QueryPlan(NamedTuple):
    """Queries for the wanted quantities that the Device is not known to lack.

    `structs` pairs each StructQuery with its wanted quantities. `request` is the batch of fields for
    nvmlDeviceGetFieldValues, followed by the state of each of `links` (None: not wanted), `metrics_request`
    that of metrics for nvmlGpmMetricsGet. `link_busy` requests PCIE_LINK_BUSY. `intermediate` are quantities
    that are read to compute others and not reported, `counted_rates` are computed from RATE_COUNTERS.
    `supported` says per wanted quantity whether
    the Device has it, if known.
    """

    structs: tuple[tuple[StructQuery, tuple[Quantity, ...]], ...]
    memory: tuple[Quantity, ...]
    mig: tuple[Quantity, ...]
    numbers: tuple[NumberQuery, ...]
    fields: tuple[FieldQuery, ...]
    request: bytes
    nvlink_rate: bool
    links: tuple[int, ...] | None
    link_busy: bool
    intermediate: tuple[Quantity, ...]
    counted_rates: tuple[Quantity, ...]
    metrics: tuple[GpmQuery, ...]
    metrics_request: bytes
    supported: Mapping[str, bool]


def make_query_plan(
    level: Level,
    wanted: Collection[Quantity],
    depth: Depth,
    support: Mapping[str, bool],
    missing_fields: Collection[int],
    links: tuple[int, ...],
) -> QueryPlan:
    """Build the QueryPlan of a Device for a tick of this `depth`.

    `support` says what the Device has, `missing_fields` which field ids it lacks, `links` the NVLinks to read
    as fields.
    """
    applicable = [quantity for quantity in wanted if level is Level.GPU or quantity.level is Level.INSTANCE]
    readable = {
        quantity
        for quantity in applicable
        if support.get(quantity.key) is not False and Depth.of(quantity) <= depth
    }
    nvlink_rate = NVLINK_RATE in readable
    rates = tuple(
        rate
        for rate, counter in RATE_COUNTERS.items()
        if level is Level.GPU
        and rate in applicable
        and support.get(rate.key) is not True
        and support.get(counter.key) is not False
    )
    busy = q.link_busy_needs(mig=False) if q.PCIE_LINK_BUSY in readable else ()
    needed = (
        *(NVLINK_COUNTERS if nvlink_rate else ()),
        *(RATE_COUNTERS[rate] for rate in rates),
        *(quantity for quantity in busy if support.get(quantity.key) is not False),
    )
    intermediate = tuple(quantity for quantity in needed if quantity not in readable)
    queried = readable.union(intermediate)
    field_queries = [each for each in ALL_FIELD_QUERIES if each.quantity in queried]
    fields = tuple(each for each in field_queries if each.field_id not in missing_fields)
    fallbacks = tuple(
        each.fallback for each in field_queries if each.field_id in missing_fields and each.fallback
    )
    structs = (
        (query, tuple(each for each in query.quantities if each in queried)) for query in STRUCT_QUERIES
    )
    metrics = tuple(metric for metric in GPM_QUERIES if metric.quantity in queried)
    read_links = None if queried.isdisjoint(LINK_QUANTITIES) else links
    return QueryPlan(
        structs=tuple((query, quantities) for query, quantities in structs if quantities),
        memory=tuple(quantity for quantity in MEMORY_QUANTITIES if quantity in queried),
        mig=tuple(quantity for quantity in MIG_QUANTITIES if quantity in queried),
        numbers=tuple(number for number in NUMBER_QUERIES if number.quantity in queried) + fallbacks,
        fields=fields,
        request=b"".join(
            FIELD.pack(field_id, scope, 0, 0, 0, Code.NOT_SUPPORTED, b"")
            for field_id, scope in (
                *((each.field_id, each.scope) for each in fields),
                *((LINK_STATE_FIELD, link) for link in read_links or ()),
            )
        ),
        nvlink_rate=nvlink_rate,
        links=read_links,
        link_busy=q.PCIE_LINK_BUSY in readable,
        intermediate=intermediate,
        counted_rates=rates,
        metrics=metrics,
        metrics_request=b"".join(
            GPM_METRIC.pack(metric.metric_id, Code.NOT_SUPPORTED, 0.0, 0, 0, 0) for metric in metrics
        ),
        supported={quantity.key: support[quantity.key] for quantity in applicable if quantity.key in support},
    )

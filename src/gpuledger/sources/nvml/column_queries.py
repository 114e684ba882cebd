"""Which call reports which column of nvidia-smi that is no quantity, and how nvidia-smi prints it.

Layouts and versions of structures are those of nvml.h; a test compares them with nvidia-ml-py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from gpuledger.model.enumeration_words import ABSENT
from gpuledger.model.text import clean_name, decode_utf8
from gpuledger.sources.nvml.queries import Depth
from gpuledger.sources.nvml.structs import BLANK_32, BLANK_64, MEMORY_V1

_MIB: Final = 1 << 20

# The members of a structure, or the numbers that a call writes.
Members = tuple[Any, ...]
Writer = Callable[[Members], str]


@dataclass(frozen=True, slots=True)
class PrintedColumn:
    """A column with the header that nvidia-smi prints; `write` returns the cell."""

    header: str
    write: Writer

    @property
    def field(self) -> str:
        """The name in `nvidia-smi --query-gpu`: the header without the unit."""
        return self.header.partition(" ")[0]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnCall:
    """A call that writes `layout`, of which `columns` are made.

    The call gets the device handle (unless it is `of_driver`), `arguments`, pointers to the `outputs`
    (offsets in the layout) and the arguments `after` them. `versions` are those of the structure at each
    output, the newest first. `older_call` is the name in libraries that lack `call`; the call is not made if
    the library has `replaced_by`.
    """

    call: str
    layout: Struct
    columns: tuple[PrintedColumn, ...]
    depth: Depth = Depth.SLOW
    arguments: tuple[int, ...] = ()
    outputs: tuple[int, ...] = (0,)
    after: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()
    older_call: str = ""
    replaced_by: str = ""
    of_driver: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ColumnField:
    """A field id of nvmlDeviceGetFieldValues, of which a column is made."""

    field_id: int
    column: PrintedColumn
    depth: Depth = Depth.SLOW


def _count(member: int = 0) -> Writer:
    return lambda members: ABSENT if members[member] == BLANK_32 else f"{members[member]}"


def _counter(member: int = 0) -> Writer:
    return lambda members: ABSENT if members[member] >= BLANK_64 else f"{members[member]}"


def _enabled(member: int = 0) -> Writer:
    return lambda members: "Enabled" if members[member] else "Disabled"


def _yes(member: int = 0) -> Writer:
    return lambda members: "Yes" if members[member] else "No"


def _hexadecimal(member: int, digits: int) -> Writer:
    return lambda members: f"0x{members[member]:0{digits}X}"


def _percent(members: Members) -> str:
    return ABSENT if members[0] > 100 else f"{members[0]} %"


def _mebibytes(member: int) -> Writer:
    return lambda members: ABSENT if members[member] >= BLANK_64 else f"{-(-members[member] // _MIB)} MiB"


def _text(member: int = 0) -> Writer:
    return lambda members: clean_name(decode_utf8(members[member].partition(b"\0")[0]))


_ONE: Final = Struct("@I")
_TWO: Final = Struct("@II")
_THREE: Final = Struct("@III")
_PAIR: Final = (0, 4)


def _pair(call: str, current: PrintedColumn, other: PrintedColumn, depth: Depth = Depth.SLOW) -> ColumnCall:
    """A call that writes two numbers, such as the current and the pending mode."""
    return ColumnCall(call, _TWO, (current, other), depth, outputs=_PAIR)


def _modes(call: str, name: str) -> ColumnCall:
    return _pair(
        call,
        PrintedColumn(f"{name}.mode.current", _enabled(0)),
        PrintedColumn(f"{name}.mode.pending", _enabled(1)),
    )


def _one(call: str, header: str, write: Writer, depth: Depth = Depth.SLOW) -> ColumnCall:
    return ColumnCall(call, _ONE, (PrintedColumn(header, write),), depth)


def _supported_reasons(call: str, column: str, replaced_by: str = "") -> ColumnCall:
    written = PrintedColumn(column, _hexadecimal(0, 16))
    return ColumnCall(call, Struct("@Q"), (written,), Depth.CONSTANT, replaced_by=replaced_by)


def _utilization(call: str, engine: str) -> ColumnCall:
    """A call of driver 525 and later, not under MIG. The second number is the sampling period."""
    column = PrintedColumn(f"utilization.{engine} [%]", _percent)
    return ColumnCall(call, _TWO, (column,), Depth.FAST, outputs=_PAIR)


def _sessions(call: str, kind: str, outputs: tuple[int, ...]) -> ColumnCall:
    names = ("sessionCount", "averageFps", "averageLatency")
    columns = tuple(
        PrintedColumn(f"{kind}.stats.{name}", _count(member)) for member, name in enumerate(names)
    )
    return ColumnCall(call, _THREE, columns, Depth.FAST, outputs=outputs)


# nvmlMemoryLocation_t. Two columns have the number of the device's memory: it is DRAM.
_PLACES: Final = (
    (2, ("device_memory", "dram")),
    (3, ("register_file",)),
    (0, ("l1_cache",)),
    (1, ("l2_cache",)),
    (4, ("texture_memory",)),
    (6, ("cbu",)),
    (7, ("sram",)),
)


def _errors_by_place() -> Iterator[ColumnCall]:
    """Errors by nvmlMemoryErrorType_t (0 corrected), nvmlEccCounterType_t (0 volatile) and place."""
    for error, kind in enumerate(("corrected", "uncorrected")):
        for counter, span in enumerate(("volatile", "aggregate")):
            for place, names in _PLACES:
                columns = tuple(
                    PrintedColumn(f"ecc.errors.{kind}.{span}.{name}", _counter()) for name in names
                )
                yield ColumnCall(
                    "nvmlDeviceGetMemoryErrorCounter",
                    Struct("@Q"),
                    columns,
                    arguments=(error, counter, place),
                )


_SRAM: Final = "ecc.errors.uncorrected"
# nvmlEccSramErrorStatus_v1_t: version, aggregate parity, SEC-DED and corrected, the same volatile, aggregate
# by unit (L2, SM, PCIe, microcontroller, other), whether a threshold is exceeded.
SRAM_STATUS: Final = Struct("@I11QI0Q")
# nvmlPciInfoExt_v1_t: version, domain, bus, device, two ids, base class, subclass, busId.
PCI_EXT: Final = Struct("@8I32s")
# nvmlPlatformInfo_v2_t: version, ibGuid, chassisSerialNumber, slotNumber, trayIndex, hostId, peerType,
# moduleId. v1 has other names for the slots.
PLATFORM: Final = Struct("@I16s16s5B0I")
# nvmlGpuFabricInfo_t: clusterUuid, status, cliqueId, state. In v3: version, the same, healthMask,
# healthSummary; v2 lacks the last.
FABRIC: Final = Struct("@16sIIB0I")
FABRIC_V3: Final = Struct("@I16sIIBIB0I")
_FABRIC_CALL: Final = "nvmlDeviceGetGpuFabricInfoV"
_SUPPORTED_REASONS: Final = "nvmlDeviceGetSupportedClocksEventReasons"


def _clique(clique: int, state: int) -> PrintedColumn:
    """Without a fabric (state 0) the number has no meaning."""
    return PrintedColumn(
        "fabric.cliqueId", lambda members: f"{members[clique]}" if members[state] else ABSENT
    )


COLUMN_CALLS: Final = (
    ColumnCall(
        "nvmlDeviceGetPciInfo_v3",
        Struct("@16sIIIII32s"),
        (
            PrintedColumn("pci.domain", _hexadecimal(1, 4)),
            PrintedColumn("pci.bus", _hexadecimal(2, 2)),
            PrintedColumn("pci.device", _hexadecimal(3, 2)),
            PrintedColumn("pci.device_id", _hexadecimal(4, 8)),
            PrintedColumn("pci.sub_device_id", _hexadecimal(5, 8)),
        ),
        Depth.CONSTANT,
        older_call="nvmlDeviceGetPciInfo_v2",
    ),
    # Driver 530 and later.
    ColumnCall(
        "nvmlDeviceGetPciInfoExt",
        PCI_EXT,
        (
            PrintedColumn("pci.baseClass", _hexadecimal(6, 1)),
            PrintedColumn("pci.subClass", _hexadecimal(7, 1)),
        ),
        Depth.CONSTANT,
        versions=(0x1000040,),
    ),
    _one("nvmlDeviceGetDisplayMode", "display_attached", _yes()),
    _one("nvmlDeviceGetDisplayActive", "display_active", _enabled()),
    _one("nvmlDeviceGetAccountingMode", "accounting.mode", _enabled()),
    _one("nvmlDeviceGetAccountingBufferSize", "accounting.buffer_size", _count(), Depth.CONSTANT),
    # nvmlInforomObject_t.
    *(
        ColumnCall(
            "nvmlDeviceGetInforomVersion",
            Struct("@16s"),
            (PrintedColumn(f"inforom.{name}", _text()),),
            Depth.CONSTANT,
            arguments=(number,),
            after=(16,),
        )
        for number, name in enumerate(("oem", "ecc", "pwr"))
    ),
    _supported_reasons(_SUPPORTED_REASONS, "clocks_event_reasons.supported"),
    # Before driver 535, like nvidia-smi's name of the column.
    _supported_reasons(
        "nvmlDeviceGetSupportedClocksThrottleReasons",
        "clocks_throttle_reasons.supported",
        replaced_by=_SUPPORTED_REASONS,
    ),
    _utilization("nvmlDeviceGetJpgUtilization", "jpeg"),
    _utilization("nvmlDeviceGetOfaUtilization", "ofa"),
    _sessions("nvmlDeviceGetEncoderStats", "encoder", outputs=(0, 4, 8)),
    # nvmlFBCStats_t. nvidia-smi prints it with -q only.
    _sessions("nvmlDeviceGetFBCStats", "fbc", outputs=(0,)),
    # Two of nvmlDramEncryptionInfo_v1_t: version and state.
    ColumnCall(
        "nvmlDeviceGetDramEncryptionMode",
        Struct("@IIII"),
        (
            PrintedColumn("dramEncryption.mode.current", _enabled(1)),
            PrintedColumn("dramEncryption.mode.pending", _enabled(3)),
        ),
        outputs=(0, 8),
        versions=(0x1000008,),
    ),
    _modes("nvmlDeviceGetEccMode", "ecc"),
    *_errors_by_place(),
    ColumnCall(
        "nvmlDeviceGetSramEccErrorStatus",
        SRAM_STATUS,
        (
            PrintedColumn(f"{_SRAM}.aggregate.sram.parity", _counter(1)),
            PrintedColumn(f"{_SRAM}.aggregate.sram.secded", _counter(2)),
            PrintedColumn(f"{_SRAM}.volatile.sram.parity", _counter(4)),
            PrintedColumn(f"{_SRAM}.volatile.sram.secded", _counter(5)),
            PrintedColumn(f"{_SRAM}.aggregate.sram.l2", _counter(7)),
            PrintedColumn(f"{_SRAM}.aggregate.sram.sm", _counter(8)),
            PrintedColumn(f"{_SRAM}.aggregate.sram.pcie", _counter(9)),
            PrintedColumn(f"{_SRAM}.aggregate.sram.mcu", _counter(10)),
            PrintedColumn(f"{_SRAM}.aggregate.sram.other", _counter(11)),
            PrintedColumn(f"{_SRAM}.aggregate.sram.thresholdExceeded", _yes(12)),
        ),
        versions=(0x1000068,),
    ),
    ColumnCall(
        "nvmlDeviceGetRowRemapperHistogram",
        Struct("@IIIII"),
        tuple(
            PrintedColumn(f"remapped_rows.histogram.{name}", _count(member))
            for member, name in enumerate(("max", "high", "partial", "low", "none"))
        ),
    ),
    # nvmlMarginTemperature_v1_t: degrees until the clocks are reduced, negative beyond; driver 550 and later.
    ColumnCall(
        "nvmlDeviceGetMarginTemperature",
        Struct("@Ii"),
        (PrintedColumn("temperature.gpu.tlimit", _count(1)),),
        Depth.FAST,
        versions=(0x1000008,),
    ),
    ColumnCall(
        "nvmlDeviceGetMigMode", _TWO, (PrintedColumn("mig.mode.pending", _enabled(1)),), outputs=_PAIR
    ),
    _pair(
        "nvmlDeviceGetGspFirmwareMode",
        PrintedColumn("gsp.mode.current", _enabled(0)),
        PrintedColumn("gsp.mode.default", _enabled(1)),
        Depth.CONSTANT,
    ),
    _one("nvmlDeviceGetC2cModeInfoV", "c2c.mode", _enabled(), Depth.CONSTANT),
    ColumnCall(
        "nvmlDeviceGetConfComputeProtectedMemoryUsage",
        MEMORY_V1,
        (
            PrintedColumn("protected_memory.total [MiB]", _mebibytes(0)),
            PrintedColumn("protected_memory.used [MiB]", _mebibytes(2)),
            PrintedColumn("protected_memory.free [MiB]", _mebibytes(1)),
        ),
    ),
    # nvmlConfComputeSystemState_t; nvidia-smi prints it with the command conf-compute only.
    ColumnCall(
        "nvmlSystemGetConfComputeState",
        _THREE,
        (
            PrintedColumn("conf_compute.environment", _count(0)),
            PrintedColumn("conf_compute.feature", _enabled(1)),
            PrintedColumn("conf_compute.devtools_mode", _enabled(2)),
        ),
        of_driver=True,
    ),
    ColumnCall(_FABRIC_CALL, FABRIC_V3, (_clique(3, 4),), versions=(0x3000028, 0x2000024)),
    ColumnCall("nvmlDeviceGetGpuFabricInfo", FABRIC, (_clique(2, 3),), replaced_by=_FABRIC_CALL),
    ColumnCall(
        "nvmlDeviceGetPlatformInfo",
        PLATFORM,
        (
            PrintedColumn("platform.chassis_serial_number", _text(2)),
            PrintedColumn("platform.slot_number", _count(3)),
            PrintedColumn("platform.tray_index", _count(4)),
            PrintedColumn("platform.host_id", _count(5)),
            PrintedColumn("platform.module_id", _count(7)),
            PrintedColumn(
                "platform.gpu_fabric_guid",
                lambda members: f"0x{int.from_bytes(members[1][:8], 'big'):016X}",
            ),
        ),
        Depth.CONSTANT,
        versions=(0x200002C, 0x100002C),
    ),
)

COLUMN_FIELDS: Final = (
    # NVML_FI_DEV_POWER_AVERAGE: milliwatts, the mean of a second.
    ColumnField(
        185, PrintedColumn("power.draw.average [W]", lambda members: f"{members[0] / 1000:.2f} W"), Depth.FAST
    ),
    # NVML_FI_DEV_EDPP_MULTIPLIER: percent.
    ColumnField(274, PrintedColumn("edpp_multiplier [%]", lambda members: f"{members[0]:.2f} %")),
    # NVML_FI_DEV_REMAPPED_ROWS_COR_INACTIVE and _UNC_INACTIVE.
    ColumnField(301, PrintedColumn("remapped_rows.correctable_inactive", _count())),
    ColumnField(302, PrintedColumn("remapped_rows.uncorrectable_inactive", _count())),
)

# The number of virtual GPUs on a host of vGPU; nvidia-smi prints it with the command vgpu only.
ACTIVE_VGPUS: Final = PrintedColumn("vgpu.active_instances", _count())
# From the PCI bus: the highest generation of the port to which the GPU is connected.
HOST_GENERATION: Final = PrintedColumn("pcie.link.gen.hostmax", _count())

COLUMNS_READ: Final = (
    *(column for call in COLUMN_CALLS for column in call.columns),
    *(each.column for each in COLUMN_FIELDS),
    ACTIVE_VGPUS,
    HOST_GENERATION,
)

"""Layouts and numbers equal NVIDIA's, as defined in nvidia-ml-py."""

import ctypes
import subprocess
import sys

import pynvml
import pytest

from gpuledger.model.quantities import PCIE_LINK_BUSY, QUANTITIES
from gpuledger.sources.nvml import codes, column_queries, queries, structs

# Without NVML_FI_DEV_, in the order of ALL_FIELD_QUERIES. 74 and 76 had other names before CUDA 13.
FIELD_NAMES = (
    "TOTAL_ENERGY_CONSUMPTION",
    "MEMORY_TEMP",
    "POWER_INSTANT",
    "POWER_MIN_LIMIT",
    "POWER_MAX_LIMIT",
    "POWER_DEFAULT_LIMIT",
    "POWER_REQUESTED_LIMIT",
    "CLOCKS_EVENT_REASON_SW_POWER_CAP",
    "PERF_POLICY_THERMAL",
    "CLOCKS_EVENT_REASON_SYNC_BOOST",
    "PERF_POLICY_BOARD_LIMIT",
    "PERF_POLICY_LOW_UTILIZATION",
    "PERF_POLICY_RELIABILITY",
    "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    "PCIE_REPLAY_COUNTER",
    "PCIE_COUNT_TX_BYTES",
    "PCIE_COUNT_RX_BYTES",
    "NVLINK_THROUGHPUT_DATA_TX",
    "NVLINK_THROUGHPUT_DATA_RX",
    "NVLINK_SPEED_MBPS_COMMON",
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "ECC_SBE_VOL_TOTAL",
    "ECC_DBE_VOL_TOTAL",
    "ECC_SBE_AGG_TOTAL",
    "ECC_DBE_AGG_TOTAL",
    "RETIRED_SBE",
    "RETIRED_DBE",
    "RETIRED_PENDING",
    "REMAPPED_COR",
    "REMAPPED_UNC",
    "REMAPPED_PENDING",
    "REMAPPED_FAILURE",
    "GET_GPU_RECOVERY_ACTION",
    "DRAIN_AND_RESET_STATUS",
    "RESET_STATUS",
)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (structs.PROCESS_V2, pynvml.c_nvmlProcessInfo_v2_t),
        (structs.PROCESS_R535, pynvml.c_nvmlProcessDetail_v1_t),
        (structs.SAMPLE, pynvml.c_nvmlProcessUtilizationSample_t),
        (structs.SAMPLE_INFO, pynvml.c_nvmlProcessUtilizationInfo_v1_t),
        (structs.SAMPLES_INFO, pynvml.c_nvmlProcessesUtilizationInfo_v1_t),
        (structs.MEMORY_V1, pynvml.c_nvmlMemory_t),
        (structs.MEMORY_V2, pynvml.c_nvmlMemory_v2_t),
        (structs.FIELD, pynvml.c_nvmlFieldValue_t),
        (structs.EVENT, pynvml.c_nvmlEventData_t),
        (structs.ATTRIBUTES, pynvml.c_nvmlDeviceAttributes),
        (structs.PCI, pynvml.nvmlPciInfo_t),
        (structs.ACCOUNTING_STATS, pynvml.c_nvmlAccountingStats_t),
        (structs.GPM_SUPPORT, pynvml.c_nvmlGpmSupport_t),
        (structs.GPM_METRIC, pynvml.c_nvmlGpmMetric_t),
    ],
)
def test_a_layout_has_the_size_of_nvidias(ours, theirs):
    assert ours.size == ctypes.sizeof(theirs)


def test_the_accounting_layout_matches_nvidias():
    theirs = pynvml.c_nvmlAccountingStats_t(time=1, startTime=2, isRunning=3)
    assert structs.ACCOUNTING_STATS.unpack(bytes(theirs)) == (1, 2, 3)


def test_the_fabric_layout_matches_nvidias():
    (layout,) = (
        group.layout for group in queries.STRUCT_QUERIES if group.call == "nvmlDeviceGetGpuFabricInfo"
    )
    theirs = pynvml.c_nvmlGpuFabricInfo_t(status=7, cliqueId=8, state=3)
    assert layout.unpack(bytes(theirs)) == (3,)


COLUMN_CALLS = {call.call: call for call in column_queries.COLUMN_CALLS}


@pytest.mark.parametrize(
    ("call", "theirs", "versions"),
    [
        ("nvmlDeviceGetPciInfo_v3", pynvml.nvmlPciInfo_t, ()),
        ("nvmlDeviceGetPciInfoExt", pynvml.nvmlPciInfoExt_v1_t, (pynvml.nvmlPciInfoExt_v1,)),
        ("nvmlDeviceGetFBCStats", pynvml.c_nvmlFBCStats_t, ()),
        (
            "nvmlDeviceGetSramEccErrorStatus",
            pynvml.c_nvmlEccSramErrorStatus_v1_t,
            (pynvml.nvmlEccSramErrorStatus_v1,),
        ),
        ("nvmlDeviceGetRowRemapperHistogram", pynvml.c_nvmlRowRemapperHistogramValues, ()),
        (
            "nvmlDeviceGetMarginTemperature",
            pynvml.c_nvmlMarginTemperature_v1_t,
            (pynvml.nvmlMarginTemperature_v1,),
        ),
        ("nvmlDeviceGetC2cModeInfoV", pynvml.c_nvmlC2cModeInfo_v1_t, ()),
        ("nvmlDeviceGetConfComputeProtectedMemoryUsage", pynvml.c_nvmlMemory_t, ()),
        ("nvmlSystemGetConfComputeState", pynvml.c_nvmlConfComputeSystemState_t, ()),
        (
            "nvmlDeviceGetGpuFabricInfoV",
            pynvml.c_nvmlGpuFabricInfo_v3_t,
            (pynvml.nvmlGpuFabricInfo_v3, pynvml.nvmlGpuFabricInfo_v2),
        ),
        ("nvmlDeviceGetGpuFabricInfo", pynvml.c_nvmlGpuFabricInfo_t, ()),
        (
            "nvmlDeviceGetPlatformInfo",
            pynvml.c_nvmlPlatformInfo_v2_t,
            (pynvml.nvmlPlatformInfo_v2, pynvml.nvmlPlatformInfo_v1),
        ),
    ],
)
def test_the_structure_of_a_column_equals_nvidias(call, theirs, versions):
    ours = COLUMN_CALLS[call]
    assert (ours.layout.size, ours.versions) == (ctypes.sizeof(theirs), versions)


def test_two_structures_of_encryption_have_nvidias_offsets_and_version():
    ours, theirs = COLUMN_CALLS["nvmlDeviceGetDramEncryptionMode"], pynvml.c_nvmlDramEncryptionInfo_t
    assert ours.outputs == (0, ctypes.sizeof(theirs))
    assert ours.versions == (pynvml.nvmlDramEncryptionInfo_v1,)


@pytest.mark.parametrize(
    ("call", "theirs", "header", "cell"),
    [
        (
            "nvmlDeviceGetPciInfoExt",
            pynvml.nvmlPciInfoExt_v1_t(baseClass=3, subClass=2),
            "pci.subClass",
            "0x2",
        ),
        (
            "nvmlDeviceGetSramEccErrorStatus",
            pynvml.c_nvmlEccSramErrorStatus_v1_t(),
            "ecc.errors.uncorrected.aggregate.sram.mcu",
            "77",
        ),
        (
            "nvmlDeviceGetGpuFabricInfoV",
            pynvml.c_nvmlGpuFabricInfo_v3_t(),
            "fabric.cliqueId",
            "9",
        ),
        (
            "nvmlDeviceGetGpuFabricInfo",
            pynvml.c_nvmlGpuFabricInfo_t(cliqueId=9, state=3),
            "fabric.cliqueId",
            "9",
        ),
    ],
)
def test_a_column_is_the_member_of_nvidias_structure(call, theirs, header, cell):
    given = {"aggregateUncBucketMcu": 77, "cliqueId": 9, "state": 3}
    for name, value in given.items():
        if hasattr(theirs, name):
            setattr(theirs, name, value)
    ours = COLUMN_CALLS[call]
    cells = {column.header: column.write(ours.layout.unpack(bytes(theirs))) for column in ours.columns}
    assert cells[header] == cell


@pytest.mark.parametrize(
    ("field", "name"),
    list(
        zip(
            column_queries.COLUMN_FIELDS,
            ("POWER_AVERAGE", "EDPP_MULTIPLIER", "REMAPPED_ROWS_COR_INACTIVE", "REMAPPED_ROWS_UNC_INACTIVE"),
            strict=True,
        )
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_field_id_of_a_column_equals_nvidias(field, name):
    assert field.field_id == getattr(pynvml, f"NVML_FI_DEV_{name}")


@pytest.mark.parametrize(
    "place", ["L1_CACHE", "L2_CACHE", "DRAM", "REGISTER_FILE", "TEXTURE_MEMORY", "CBU", "SRAM"]
)
def test_a_place_of_errors_equals_nvidias(place):
    number = getattr(pynvml, f"NVML_MEMORY_LOCATION_{place}")
    name = f"ecc.errors.uncorrected.aggregate.{place.lower()}"
    (call,) = (
        call for call in column_queries.COLUMN_CALLS if name in [column.header for column in call.columns]
    )
    uncorrected, aggregate = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC
    assert call.arguments == (uncorrected, aggregate, number)


def test_the_metrics_array_starts_at_nvidias_offset_with_room_for_growth():
    theirs = pynvml.c_nvmlGpmMetricsGet_t
    assert structs.GPM_METRICS.size == theirs.metrics.offset
    assert structs.GPM_MAX_METRICS > pynvml.NVML_GPM_METRIC_MAX


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (structs.GPM_SUPPORT_VERSION, pynvml.NVML_GPM_SUPPORT_VERSION),
        (structs.GPM_METRICS_VERSION, pynvml.NVML_GPM_METRICS_GET_VERSION),
        (structs.MEMORY_V2_VERSION, pynvml.nvmlMemory_v2),
        (structs.SAMPLES_INFO_VERSION, pynvml.ProcessesUtilizationInfo_v1),
        (structs.BLANK_32, pynvml.NVML_VALUE_NOT_AVAILABLE_uint.value),
        (structs.UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT),
        (set(structs.VALUE_TYPES), set(range(pynvml.NVML_VALUE_TYPE_COUNT))),
    ],
)
def test_a_constant_equals_nvidias(ours, theirs):
    assert ours == theirs


@pytest.mark.parametrize(
    ("field", "name"),
    list(zip(queries.ALL_FIELD_QUERIES, FIELD_NAMES, strict=True)),
    ids=lambda value: value if isinstance(value, str) else value.quantity.key,
)
def test_a_field_id_equals_nvidias(field, name):
    assert field.field_id == getattr(pynvml, f"NVML_FI_DEV_{name}")


def test_the_field_of_a_links_state_equals_nvidias():
    assert queries.LINK_STATE_FIELD == pynvml.NVML_FI_DEV_NVLINK_GET_STATE
    assert queries.MAX_LINKS == pynvml.NVML_NVLINK_MAX_LINKS


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("engine_activity", "GRAPHICS_UTIL"),
        ("sm_activity", "SM_UTIL"),
        ("sm_occupancy", "SM_OCCUPANCY"),
        ("tensor_activity", "ANY_TENSOR_UTIL"),
        ("dram_activity", "DRAM_BW_UTIL"),
        ("fp64_activity", "FP64_UTIL"),
        ("fp32_activity", "FP32_UTIL"),
        ("fp16_activity", "FP16_UTIL"),
        ("pcie_tx_rate", "PCIE_TX_PER_SEC"),
        ("pcie_rx_rate", "PCIE_RX_PER_SEC"),
        ("nvlink_rx_rate", "NVLINK_TOTAL_RX_PER_SEC"),
        ("nvlink_tx_rate", "NVLINK_TOTAL_TX_PER_SEC"),
    ],
)
def test_a_metric_id_equals_nvidias(key, name):
    ours = {metric.quantity.key: metric.metric_id for metric in queries.GPM_QUERIES}
    assert ours[key] == getattr(pynvml, f"NVML_GPM_METRIC_{name}")


@pytest.mark.parametrize(
    ("key", "argument"),
    [
        ("temperature", pynvml.NVML_TEMPERATURE_GPU),
        ("temperature_shutdown", pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        ("temperature_slowdown", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        ("graphics_clock", pynvml.NVML_CLOCK_GRAPHICS),
        ("sm_clock", pynvml.NVML_CLOCK_SM),
        ("memory_clock", pynvml.NVML_CLOCK_MEM),
        ("video_clock", pynvml.NVML_CLOCK_VIDEO),
        ("max_sm_clock", pynvml.NVML_CLOCK_SM),
        ("max_memory_clock", pynvml.NVML_CLOCK_MEM),
        ("max_video_clock", pynvml.NVML_CLOCK_VIDEO),
        ("app_sm_clock", pynvml.NVML_CLOCK_SM),
        ("app_memory_clock", pynvml.NVML_CLOCK_MEM),
    ],
)
def test_an_argument_equals_nvidias(key, argument):
    ours = {number.quantity.key: number.arguments for number in queries.NUMBER_QUERIES}
    assert ours[key] == (argument,)


def test_every_quantity_has_exactly_one_query():
    read = [quantity for group in queries.STRUCT_QUERIES for quantity in group.quantities]
    read += [*queries.MEMORY_QUANTITIES, *queries.MIG_QUANTITIES, queries.NVLINK_RATE]
    read += [*queries.LINK_QUANTITIES, PCIE_LINK_BUSY]
    read += [
        each.quantity for each in (*queries.NUMBER_QUERIES, *queries.FIELD_QUERIES, *queries.GPM_QUERIES)
    ]
    assert sorted(quantity.key for quantity in read) == sorted(QUANTITIES)


def test_every_call_exists_in_nvidia_ml_py():
    calls = {number.call for number in queries.NUMBER_QUERIES} | {
        group.call for group in queries.STRUCT_QUERIES
    }
    calls |= {number.older_call for number in queries.NUMBER_QUERIES if number.older_call}
    calls |= {field.fallback.call for field in queries.FIELD_QUERIES if field.fallback}
    assert calls <= set(dir(pynvml))


def test_the_return_codes_equal_nvidias():
    theirs = {
        value: name.removeprefix("NVML_ERROR_")
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_") and isinstance(value, int)
    }
    assert theirs.items() <= {code.value: code.name for code in codes.Code}.items()
    assert codes.Code.SUCCESS == pynvml.NVML_SUCCESS


def test_the_source_does_not_import_nvidia_ml_py():
    script = "import gpuledger.sources.nvml.source, sys; print('pynvml' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, check=True, text=True
    )
    assert done.stdout == "False\n"

"""The field tables: ids, names, types and scales in both schemas, and the quantities of each field."""

from __future__ import annotations

import re

import pytest

from gpuledger.dialects.dcgm import field_definition as scales
from gpuledger.dialects.dcgm.collectors import BY_ID, BY_NAME, UNSUPPORTED_FIELDS
from gpuledger.dialects.dcgm.field_definition import Field
from gpuledger.dialects.dcgm.field_tables import FIELDS
from gpuledger.dialects.dcgm.label_layout import TEXTS
from gpuledger.model import quantities as q
from gpuledger.model.quantities import QUANTITIES, Level

# Readings of a card by unit, in base units.
READINGS = {
    "": 1,
    "hertz": 1_980_000_000.0,
    "ratio": 0.57,
    "bytes": 81_559 * 1024 * 1024 + 1000,
    "watts": 512.345,
    "millijoules": 123_456_789,
    "celsius": 61.0,
    "nanoseconds": 5_000_000_001,
    "bytes per second": 20_480_000_000.0,
    "lanes": 16,
}

# Id, type, quantity, name and value in schema 4.8; new id, name and value in 4.9 if they differ.
TABLE = """
66 gauge persistence_mode DEV_PERSISTENCE_MODE 1 - DEV_GPU_PERSISTENCE_MODE
67 gauge mig_mode DEV_MIG_MODE 1
69 gauge mig_max_slices DEV_MIG_MAX_SLICES 1
500 gauge virtualization_mode DEV_VIRTUAL_MODE 1 - DEV_GPU_VIRTUAL_MODE
100 gauge sm_clock DEV_SM_CLOCK 1980 1603 DEV_SM_CLOCK_HERTZ 1980000000
101 gauge memory_clock DEV_MEM_CLOCK 1980 1604 DEV_MEMORY_CLOCK_HERTZ 1980000000
102 gauge video_clock DEV_VIDEO_CLOCK 1980
110 gauge app_sm_clock DEV_APP_SM_CLOCK 1980
111 gauge app_memory_clock DEV_APP_MEM_CLOCK 1980
112 gauge clock_event_reasons DEV_CLOCKS_EVENT_REASONS 1
113 gauge max_sm_clock DEV_MAX_SM_CLOCK 1980
114 gauge max_memory_clock DEV_MAX_MEM_CLOCK 1980
115 gauge max_video_clock DEV_MAX_VIDEO_CLOCK 1980
237 gauge pcie_generation DEV_PCIE_LINK_GEN 1
238 gauge pcie_width DEV_PCIE_LINK_WIDTH 16
190 gauge performance_state DEV_PSTATE 1 - DEV_GPU_PSTATE
155 gauge power DEV_POWER_USAGE 512.345 - DEV_BOARD_POWER_WATTS
157 gauge power_instant DEV_POWER_USAGE_INSTANT 512.345 - DEV_BOARD_POWER_RAW_WATTS
156 counter energy DEV_TOTAL_ENERGY_CONSUMPTION 123456789 1611 DEV_GPU_ENERGY_JOULES_TOTAL 123456
160 gauge power_limit_management DEV_POWER_MGMT_LIMIT 512.345 - DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS
161 gauge power_limit_min DEV_POWER_MGMT_LIMIT_MIN 512.345 - DEV_BOARD_POWER_LIMIT_MIN_WATTS
162 gauge power_limit_max DEV_POWER_MGMT_LIMIT_MAX 512.345 - DEV_BOARD_POWER_LIMIT_MAX_WATTS
163 gauge power_limit_default DEV_POWER_MGMT_LIMIT_DEF 512.345 - DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS
164 gauge power_limit DEV_ENFORCED_POWER_LIMIT 512.345 - DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS
140 gauge memory_temperature DEV_MEMORY_TEMP 61 - DEV_MEMORY_TEMP_CELSIUS
150 gauge temperature DEV_GPU_TEMP 61 - DEV_GPU_TEMP_CELSIUS
158 gauge temperature_slowdown DEV_SLOWDOWN_TEMP 61 - DEV_GPU_TEMP_SLOWDOWN_CELSIUS
159 gauge temperature_shutdown DEV_SHUTDOWN_TEMP 61 - DEV_GPU_TEMP_SHUTDOWN_CELSIUS
191 gauge fan_speed DEV_FAN_SPEED 57
203 gauge utilization DEV_GPU_UTIL 57 1613 DEV_GPU_UTIL_RATIO 0.57
204 gauge memory_utilization DEV_MEM_COPY_UTIL 57 1614 DEV_MEMORY_UTIL_RATIO 0.57
206 gauge encoder_utilization DEV_ENC_UTIL 57 1615 DEV_ENC_UTIL_RATIO 0.57
207 gauge decoder_utilization DEV_DEC_UTIL 57 1616 DEV_DEC_UTIL_RATIO 0.57
250 gauge memory_total DEV_FB_TOTAL 81559 1625 DEV_FB_CAPACITY_BYTES 85520810984
251 gauge memory_free DEV_FB_FREE 81559 1626 DEV_FB_FREE_BYTES 85520810984
252 gauge memory_used DEV_FB_USED 81559 1627 DEV_FB_USED_BYTES 85520810984
253 gauge memory_reserved DEV_FB_RESERVED 81559 1628 DEV_FB_RESERVED_BYTES 85520810984
90 gauge bar1_total DEV_BAR1_TOTAL 81559
92 gauge bar1_used DEV_BAR1_USED 81559
93 gauge bar1_free DEV_BAR1_FREE 81559
202 counter pcie_replays DEV_PCIE_REPLAY_COUNTER 1 - DEV_PCIE_REPLAY_TOTAL
310 counter ecc_corrected_volatile DEV_ECC_SBE_VOL_TOTAL 1
311 counter ecc_uncorrected_volatile DEV_ECC_DBE_VOL_TOTAL 1
312 counter ecc_corrected DEV_ECC_SBE_AGG_TOTAL 1
313 counter ecc_uncorrected DEV_ECC_DBE_AGG_TOTAL 1
390 counter retired_pages_correctable DEV_RETIRED_SBE 1 - DEV_PAGE_RETIRED_SBE_TOTAL
391 counter retired_pages_uncorrectable DEV_RETIRED_DBE 1 - DEV_PAGE_RETIRED_DBE_TOTAL
392 gauge retired_pages_pending DEV_RETIRED_PENDING 1 - DEV_PAGE_RETIRED_PENDING
393 counter remapped_rows_uncorrectable DEV_UNCORRECTABLE_REMAPPED_ROWS 1 - DEV_ROW_REMAP_UNCORRECTABLE_TOTAL
394 counter remapped_rows_correctable DEV_CORRECTABLE_REMAPPED_ROWS 1 - DEV_ROW_REMAP_CORRECTABLE_TOTAL
395 gauge row_remap_failure DEV_ROW_REMAP_FAILURE 1 - DEV_ROW_REMAP_FAILED
396 gauge row_remap_pending DEV_ROW_REMAP_PENDING 1
240 counter power_violation DEV_POWER_VIOLATION 5000000001
241 counter thermal_violation DEV_THERMAL_VIOLATION 5000000001
242 counter sync_boost_violation DEV_SYNC_BOOST_VIOLATION 5000000001
243 counter board_limit_violation DEV_BOARD_LIMIT_VIOLATION 5000000001
244 counter low_utilization_violation DEV_LOW_UTIL_VIOLATION 5000000001
245 counter reliability_violation DEV_RELIABILITY_VIOLATION 5000000001
409 counter nvlink_crc_flit_errors DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL 1 - DEV_NVLINK_CRC_FLIT_ERROR_TOTAL
419 counter nvlink_crc_data_errors DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL 1 - DEV_NVLINK_CRC_DATA_ERROR_TOTAL
429 counter nvlink_replay_errors DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL 1 - DEV_NVLINK_REPLAY_ERROR_TOTAL
439 counter nvlink_recovery_errors DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL 1 - DEV_NVLINK_RECOVERY_ERROR_TOTAL
449 gauge nvlink_rate DEV_NVLINK_BANDWIDTH_TOTAL 20000 1648 DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND 20480000000
1001 gauge engine_activity PROF_GR_ENGINE_ACTIVE 0.57 - PROF_GR_ENGINE_UTIL_RATIO
1002 gauge sm_activity PROF_SM_ACTIVE 0.57 - PROF_SM_UTIL_RATIO
1003 gauge sm_occupancy PROF_SM_OCCUPANCY 0.57 - PROF_SM_OCCUPANCY_RATIO
1004 gauge tensor_activity PROF_PIPE_TENSOR_ACTIVE 0.57 - PROF_TENSOR_UTIL_RATIO
1005 gauge dram_activity PROF_DRAM_ACTIVE 0.57 - PROF_DRAM_UTIL_RATIO
1006 gauge fp64_activity PROF_PIPE_FP64_ACTIVE 0.57 - PROF_FP64_UTIL_RATIO
1007 gauge fp32_activity PROF_PIPE_FP32_ACTIVE 0.57 - PROF_FP32_UTIL_RATIO
1008 gauge fp16_activity PROF_PIPE_FP16_ACTIVE 0.57 - PROF_FP16_UTIL_RATIO
1009 gauge pcie_tx_rate PROF_PCIE_TX_BYTES 20480000000
1010 gauge pcie_rx_rate PROF_PCIE_RX_BYTES 20480000000
1011 gauge nvlink_tx_rate PROF_NVLINK_TX_BYTES 20480000000
1012 gauge nvlink_rx_rate PROF_NVLINK_RX_BYTES 20480000000
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
# Computed from several quantities or from none, or mapped: each has a separate test.
OTHERS = {65, 254, 230}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[3])
def test_a_field_has_the_same_name_type_and_value_as_in_dcgm(row: list[str]) -> None:
    number, kind, key, old, old_value = row[:5]
    new_number, new, new_value = (*row[5:], *("-", old, old_value)[len(row) - 5 :])
    field = BY_ID[int(number)]
    assert field.type == kind
    assert field.quantities == (QUANTITIES[key],)
    values = {QUANTITIES[key]: READINGS[QUANTITIES[key].unit]}
    assert (field.name("4.8"), str(field.value(values, field.scale("4.8")))) == (f"DCGM_FI_{old}", old_value)
    assert (field.name("4.9"), str(field.value(values, field.scale("4.9")))) == (f"DCGM_FI_{new}", new_value)
    assert field.ids == ((int(number),) if new_number == "-" else (int(number), int(new_number)))


def test_every_field_is_in_the_table_or_has_a_separate_test() -> None:
    numbers = [field.id for field in FIELDS if field.id and field.type != "text"]
    assert len(numbers) == len(set(numbers))
    assert set(numbers) == {int(row[0]) for row in ROWS} | OTHERS


@pytest.mark.parametrize("field", [BY_ID[int(row[0])] for row in ROWS], ids=lambda field: field.old)
@pytest.mark.parametrize("schema", ["4.8", "4.9"])
def test_a_field_without_a_reading_has_no_value(field: Field, schema: str) -> None:
    assert field.value({}, field.scale("4.8" if schema == "4.8" else "4.9")) is None


@pytest.mark.parametrize(("nvml", "dcgm"), [(0, 0), (2, 1), (3, 2), (1, None)])
def test_compute_modes_are_those_of_dcgm_and_unknown_ones_are_absent(nvml: int, dcgm: int | None) -> None:
    field = BY_ID[65]
    assert field.names == ("DCGM_FI_DEV_COMPUTE_MODE", "DCGM_FI_DEV_GPU_COMPUTE_MODE")
    assert field.value({q.COMPUTE_MODE: nvml}, field.scale("4.8")) == dcgm


GIB = 1024**3


@pytest.mark.parametrize(
    ("used", "total", "reserved", "expected"),
    [
        (30 * GIB, 80 * GIB, 20 * GIB, 0.5),
        (0, 80 * GIB, 0, 0),
        (30 * GIB, 80 * GIB, None, None),
        (30 * GIB, None, 0, None),
        (None, 80 * GIB, 0, None),
        (0, 0, 0, None),
    ],
)
def test_fb_used_percent_is_a_ratio_of_unreserved_memory(
    used: int | None, total: int | None, reserved: int | None, expected: float | None
) -> None:
    field = BY_NAME["DCGM_FI_DEV_FB_USED_PERCENT"]
    assert field is BY_NAME["DCGM_FI_DEV_FB_USED_RATIO"] is BY_ID[254]
    given = {q.MEMORY_USED: used, q.MEMORY_TOTAL: total, q.MEMORY_RESERVED: reserved}
    values = {quantity: value for quantity, value in given.items() if value is not None}
    assert field.value(values, field.scale("4.8")) == field.value(values, field.scale("4.9")) == expected


def test_every_whole_percent_is_exported_exactly() -> None:
    assert [scales.PERCENT.convert(percent / 100) for percent in range(101)] == [*range(101)]


def test_counters_of_schema_48_are_exact() -> None:
    large = 2**63 - 17
    for scale in (scales.MILLIJOULES, scales.COUNT, scales.NANOSECONDS):
        assert scale.convert(large) == large


@pytest.mark.parametrize(
    ("number", "name"),
    [(203, "DEV_GPU_UTIL"), (1613, "DEV_GPU_UTIL"), (100, "DEV_SM_CLOCK"), (1603, "DEV_SM_CLOCK")],
)
def test_an_id_of_either_schema_is_the_same_field(number: int, name: str) -> None:
    assert BY_ID[number].old == name


def test_aliases_of_a_field_are_known() -> None:
    reasons = BY_ID[112]
    assert BY_NAME["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"] is reasons
    assert BY_NAME["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] is reasons
    assert BY_NAME["DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL"] is BY_ID[449]


def test_names_are_unique_and_not_listed_as_unsupported() -> None:
    names = [name for field in FIELDS for name in set(field.names)]
    assert len(names) == len(set(names))
    assert not set(names) & set(UNSUPPORTED_FIELDS)
    assert all(re.fullmatch(r"DCGM_(FI|EXP)_[A-Z0-9_]+", name) for name in names)


def test_every_text_field_has_a_function() -> None:
    assert {field.id for field in FIELDS if field.type == "text"} == set(TEXTS)


def test_every_field_is_computed_from_quantities_of_nvml() -> None:
    used = {quantity for field in FIELDS for quantity in field.quantities}
    assert used <= set(QUANTITIES.values())
    # DCGM has rates instead of the four counters, no graphics clock, and no field for the last two.
    others = {q.PCIE_TX, q.PCIE_RX, q.NVLINK_TX, q.NVLINK_RX, q.GRAPHICS_CLOCK, q.MAX_GRAPHICS_CLOCK}
    others |= {q.RECOVERY_ACTION, q.FABRIC_STATE}
    # Computed, or without a field that gpuledger exports.
    others |= {q.PCIE_LINK_BUSY, q.PCIE_GENERATION_MAX, q.PCIE_GENERATION_GPU_MAX, q.PCIE_WIDTH_MAX}
    others |= {q.SOFTWARE_THERMAL_TIME, q.HARDWARE_THERMAL_TIME, q.POWER_BRAKE_TIME}
    others |= {q.NVLINKS_UP, q.NVLINKS_DOWN, q.NVLINK_SPEED}
    assert set(QUANTITIES.values()) - used == others


def test_fields_of_instances_and_shared_fields() -> None:
    of_instances = {field.id for field in FIELDS if field.level is Level.INSTANCE}
    assert of_instances == {250, 251, 252, 253, 254, *range(1001, 1009)}
    assert {field.id for field in FIELDS if field.shared} == {250, 251, 252, 253, 254, 1005}


# Document 002, "수집되는 GPU 메트릭".
DOCUMENT = {1, 2, 50, 53, 54, 65, 66, 500, 67, 69, 76, 77, 100, 101, 155, 190, 150, 203, 1009, 1010}
DOCUMENT |= {250, 251, 252, 253, 254, 312, 313, 1001, 1002, 1003, 1004, 1005}


def test_all_fields_of_the_document_exist() -> None:
    assert len(DOCUMENT) == 32
    assert set(BY_ID) >= DOCUMENT

"""Columns that the smi dialect makes from quantities of another source, as nvidia-smi prints them."""

from __future__ import annotations

import pytest

from builders import GIB, MIB, process, reading
from gpuledger.dialects.smi.dialect import SmiDialect
from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import SourceInfo
from unit.dialects.smi.support import CARD, lines, state_of

QUANTITIES: list[tuple[Quantity, float, str, str]] = [
    (q.UTILIZATION, 0.57, "utilization_gpu_ratio", repr(57 * 0.01)),
    (q.MEMORY_UTILIZATION, 0.29, "utilization_memory_ratio", "0.29"),
    (q.ENCODER_UTILIZATION, 1.0, "utilization_encoder_ratio", "1"),
    (q.DECODER_UTILIZATION, 0.0, "utilization_decoder_ratio", "0"),
    # nvidia-smi rounds MiB up.
    (q.MEMORY_TOTAL, 80 * GIB, "memory_total_bytes", str(80 * GIB)),
    (q.MEMORY_RESERVED, 501_481_472, "memory_reserved_bytes", str(479 * MIB)),
    (q.MEMORY_USED, 1, "memory_used_bytes", str(MIB)),
    (q.MEMORY_FREE, 0, "memory_free_bytes", "0"),
    (q.POWER, 433.7849, "power_draw_watts", "433.78"),
    (q.POWER_INSTANT, 447.351, "power_draw_instant_watts", "447.35"),
    (q.POWER_LIMIT, 650.0, "enforced_power_limit_watts", "650"),
    (q.POWER_LIMIT_MANAGEMENT, 700.0, "power_limit_watts", "700"),
    (q.POWER_LIMIT_DEFAULT, 700.0, "power_default_limit_watts", "700"),
    (q.POWER_LIMIT_MIN, 200.0, "power_min_limit_watts", "200"),
    (q.POWER_LIMIT_MAX, 700.0, "power_max_limit_watts", "700"),
    (q.TEMPERATURE, 57, "temperature_gpu", "57"),
    (q.MEMORY_TEMPERATURE, 60, "temperature_memory", "60"),
    (q.FAN_SPEED, 1.05, "fan_speed_ratio", "1.05"),
    (q.GRAPHICS_CLOCK, 1.98e9, "clocks_current_graphics_clock_hz", "1980000000"),
    (q.SM_CLOCK, 1.98e9, "clocks_current_sm_clock_hz", "1980000000"),
    (q.MEMORY_CLOCK, 2.619e9, "clocks_current_memory_clock_hz", "2619000000"),
    (q.VIDEO_CLOCK, 1.545e9, "clocks_current_video_clock_hz", "1545000000"),
    (q.MAX_GRAPHICS_CLOCK, 1.98e9, "clocks_max_graphics_clock_hz", "1980000000"),
    (q.MAX_SM_CLOCK, 1.98e9, "clocks_max_sm_clock_hz", "1980000000"),
    (q.MAX_MEMORY_CLOCK, 2.619e9, "clocks_max_memory_clock_hz", "2619000000"),
    (q.PERFORMANCE_STATE, 8, "pstate", "8"),
    (q.PERSISTENCE_MODE, 1, "persistence_mode", "1"),
    (q.COMPUTE_MODE, 3, "compute_mode", "3"),
    (q.FABRIC_STATE, 3, "fabric_state", "3"),
    (q.RECOVERY_ACTION, 0, "gpu_recovery_action", "0"),
    (q.RECOVERY_ACTION, 7, "gpu_recovery_action", "7"),
    (q.MIG_MODE, 1, "mig_mode_current", "1"),
    (q.ECC_CORRECTED_VOLATILE, 1, "ecc_errors_corrected_volatile_total", "1"),
    (q.ECC_CORRECTED, 2, "ecc_errors_corrected_aggregate_total", "2"),
    (q.ECC_UNCORRECTED_VOLATILE, 3, "ecc_errors_uncorrected_volatile_total", "3"),
    (q.ECC_UNCORRECTED, 4, "ecc_errors_uncorrected_aggregate_total", "4"),
    (q.RETIRED_PAGES_CORRECTABLE, 5, "retired_pages_single_bit_ecc_count", "5"),
    (q.RETIRED_PAGES_UNCORRECTABLE, 6, "retired_pages_double_bit_count", "6"),
    (q.RETIRED_PAGES_PENDING, 1, "retired_pages_pending", "1"),
    (q.REMAPPED_ROWS_CORRECTABLE, 7, "remapped_rows_correctable", "7"),
    (q.REMAPPED_ROWS_UNCORRECTABLE, 8, "remapped_rows_uncorrectable", "8"),
    (q.ROW_REMAP_PENDING, 0, "remapped_rows_pending", "0"),
    (q.ROW_REMAP_FAILURE, 1, "remapped_rows_failure", "1"),
    (q.ENERGY, 1_234_567, "energy_joules_total", "1234.567"),
    (q.PCIE_TX_RATE, 1_500_000, "pcie_throughput_tx_bytes_per_second", "1500000"),
    (q.PCIE_RX_RATE, 2_500_000, "pcie_throughput_rx_bytes_per_second", "2500000"),
]


@pytest.mark.parametrize(("quantity", "value", "name", "expected"), QUANTITIES, ids=lambda item: str(item))
def test_a_quantity_is_exported_as_nvidia_smi_prints_it(
    quantity: Quantity, value: float, name: str, expected: str
) -> None:
    series = f'nvidia_smi_{name}{{uuid="0"}}'
    assert lines(state_of(reading(CARD, values={quantity: value})))[series] == expected
    assert series not in lines(state_of(reading(CARD, values={})))
    assert quantity in SmiDialect.required_quantities


# The families that the dashboards 14574 and 25547 query.
DASHBOARDS = [
    "gpu_info",
    "pstate",
    "gpu_recovery_action",
    "compute_mode",
    "fabric_state",
    "fan_speed_ratio",
    "temperature_gpu",
    "utilization_gpu_ratio",
    "utilization_memory_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_draw_watts",
    "power_default_limit_watts",
    "clocks_current_graphics_clock_hz",
    "clocks_current_sm_clock_hz",
    "clocks_current_memory_clock_hz",
    "clocks_current_video_clock_hz",
    "clocks_max_graphics_clock_hz",
    "clocks_max_memory_clock_hz",
    "clocks_event_reasons_active",
    "clocks_event_reasons_gpu_idle",
    "clocks_event_reasons_sw_power_cap",
    "clocks_event_reasons_hw_slowdown",
    "clocks_event_reasons_hw_thermal_slowdown",
    "clocks_event_reasons_sw_thermal_slowdown",
    "clocks_event_reasons_hw_power_brake_slowdown",
    "ecc_errors_corrected_volatile_total",
    "ecc_errors_uncorrected_volatile_total",
    "ecc_errors_corrected_aggregate_total",
    "ecc_errors_uncorrected_aggregate_total",
    "compute_app_info",
    "compute_app_used_memory_bytes",
    "compute_apps",
    "compute_apps_last_collect_success",
    "energy_joules_total",
    "pcie_throughput_tx_bytes_per_second",
    "pcie_throughput_rx_bytes_per_second",
    "last_collect_success",
    "failed_scrapes_total",
]


def test_families_of_the_public_dashboards_are_exported_with_nvml() -> None:
    values = {quantity: value for quantity, value, _, _ in QUANTITIES} | {q.CLOCK_EVENT_REASONS: 0}
    series = {key.partition("{")[0] for key in lines(state_of(reading(CARD, process(CARD), values=values)))}
    assert [name for name in DASHBOARDS if f"nvidia_smi_{name}" not in series] == []


@pytest.mark.parametrize(
    ("driver", "names"),
    [("470.256.02", "throttle"), ("530.41.03", "throttle"), ("535.54.03", "event"), ("", "event")],
)
def test_clock_reasons_are_named_as_in_the_driver_version(driver: str, names: str) -> None:
    seen = state_of(
        reading(CARD, values={q.CLOCK_EVENT_REASONS: 0x84}), source=SourceInfo("nvml", driver_version=driver)
    )
    start = f"nvidia_smi_clocks_{names}_reasons_"
    series = {key: value for key, value in lines(seen).items() if "_reasons_" in key}
    assert series == {
        f'{start}{name}{{uuid="0"}}': value
        for name, value in {
            "active": "132",
            "gpu_idle": "0",
            "applications_clocks_setting": "0",
            "sw_power_cap": "1",
            "hw_slowdown": "0",
            "hw_thermal_slowdown": "0",
            "hw_power_brake_slowdown": "1",
            "sw_thermal_slowdown": "0",
            "sync_boost": "0",
        }.items()
    }


@pytest.mark.parametrize(
    ("quantity", "name"),
    [
        (q.POWER_VIOLATION, "sw_power_cap"),
        (q.SYNC_BOOST_VIOLATION, "sync_boost"),
        (q.SOFTWARE_THERMAL_TIME, "sw_thermal_slowdown"),
        (q.HARDWARE_THERMAL_TIME, "hw_thermal_slowdown"),
        (q.POWER_BRAKE_TIME, "hw_power_brake_slowdown"),
    ],
)
def test_a_time_of_reduced_clocks_has_whole_microseconds(quantity: Quantity, name: str) -> None:
    series = lines(state_of(reading(CARD, values={quantity: 212_000_000_999})))
    assert series[f'nvidia_smi_clocks_event_reasons_counters_{name}_seconds{{uuid="0"}}'] == "212"


def test_gpu_info_is_exported_without_columns() -> None:
    source = SourceInfo("nvml", driver_version="580.95.05", cuda_version="13.0")
    (info,) = [
        key for key in lines(state_of(reading(CARD), source=source)) if key.startswith("nvidia_smi_gpu_info")
    ]
    assert info == (
        'nvidia_smi_gpu_info{compute_cap="9.0",cuda_version="13.0",driver_model_current="[N/A]",'
        'driver_model_pending="[N/A]",driver_version="580.95.05",index="0",name="NVIDIA H100 PCIe",'
        'pci_bus_id="00000000:C1:00.0",pci_sub_device_id="",serial="[N/A]",uuid="0",vbios_version="96.00"}'
    )

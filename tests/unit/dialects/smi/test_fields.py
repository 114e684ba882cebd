"""Columns of nvidia-smi as samples with nvidia_gpu_exporter's names, units and values."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.dialects.smi.columns import is_unknown_word, parse_cell
from gpuledger.dialects.smi.fields import column_family


def value(header: str, cell: str) -> float | None:
    column = column_family(header)
    return parse_cell(cell, column.field, column.factor)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("pstate", "pstate"),
        ("temperature.gpu", "temperature_gpu"),
        ("temperature.gpu.tlimit", "temperature_gpu_tlimit"),
        ("power.draw [W]", "power_draw_watts"),
        ("enforced.power.limit [W]", "enforced_power_limit_watts"),
        ("power_smoothing.ramp_up [W/s]", "power_smoothing_ramp_up_watts_per_second"),
        ("power_smoothing.window_multiplier [ms]", "power_smoothing_window_multiplier_seconds"),
        ("clocks.current.sm [MHz]", "clocks_current_sm_clock_hz"),
        ("memory.total [MiB]", "memory_total_bytes"),
        ("utilization.gpu [%]", "utilization_gpu_ratio"),
        ("clocks_event_reasons_counters.sync_boost [us]", "clocks_event_reasons_counters_sync_boost_seconds"),
        ("uptime [seconds]", "uptime_seconds"),
        ("encoder.stats.sessionCount", "encoder_stats_session_count"),
        ("pci.baseClass", "pci_base_class"),
        ("fabric.cliqueId", "fabric_clique_id"),
        ("vgpu_driver_capability.heterogenous_multivGPU", "vgpu_driver_capability_heterogenous_multiv_gpu"),
        ("vgpu_device_capability.fractional_multiVgpu", "vgpu_device_capability_fractional_multi_vgpu"),
        ("dramEncryption.mode.current", "dram_encryption_mode_current"),
        (
            "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
            "ecc_errors_uncorrected_aggregate_sram_threshold_exceeded",
        ),
        # The name of the driver version is kept: dashboards use both names.
        ("clocks_throttle_reasons.active", "clocks_throttle_reasons_active"),
        ("clocks_event_reasons.active", "clocks_event_reasons_active"),
        ("gpu-part:number", "gpu_part_number"),
    ],
)
def test_the_family_name_is_the_header_with_its_unit(header: str, name: str) -> None:
    assert column_family(header).name == f"nvidia_smi_{name}"
    assert column_family(header).unknown_unit == ""


@pytest.mark.parametrize(
    ("header", "name", "unit"),
    [
        ("brand.new [K]", "brand_new_k", "K"),
        ("brand.new [GB/s]", "brand_new_gb_s", "GB/s"),
        ("brand.new [°C]", "brand_new_c", "°C"),
        ("brand.new [%%]", "brand_new", "%%"),
    ],
)
def test_an_unknown_unit_is_sanitized(header: str, name: str, unit: str) -> None:
    column = column_family(header)
    assert (column.name, column.factor, column.unknown_unit) == (f"nvidia_smi_{name}", 1.0, unit)


@given(st.text(min_size=1, max_size=40))
def test_every_header_results_in_a_valid_metric_name(header: str) -> None:
    assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", column_family(header).name)


@pytest.mark.parametrize(
    ("header", "cell", "expected"),
    [
        ("power.draw [W]", "211.37 W", 211.37),
        ("clocks.current.sm [MHz]", "2520 MHz", 2_520_000_000),
        ("memory.total [MiB]", "24564 MiB", 24564 * 1024 * 1024),
        ("fan.speed [%]", "38 %", 0.38),
        ("fan.speed [%]", "105 %", 1.05),
        # The same floating-point result as in nvidia_gpu_exporter.
        ("utilization.gpu [%]", "57 %", 57 * 0.01),
        ("clocks_event_reasons_counters.sw_power_cap [us]", "212553937 us", 212.553937),
        ("power_smoothing.window_multiplier [ms]", "12 ms", 0.012),
        ("temperature.gpu", "57", 57),
        ("temperature.gpu", "-5", -5),
        ("pstate", "P8", 8),
        ("pci.bus", "0x0C", 12),
        ("clocks_event_reasons.supported", "0x00000000000001FF", 511),
        ("platform.gpu_fabric_guid", "0xFFFFFFFFFFFFFFFF", 2**64 - 1),
        ("display_active", "Enabled", 1),
        ("persistence_mode", "Disabled", 0),
        ("retired_pages.pending", "Yes", 1),
        ("remapped_rows.failure", "No", 0),
        ("clocks_event_reasons.gpu_idle", "Active", 1),
        ("clocks_event_reasons.gpu_idle", "Not Active", 0),
        ("compute_mode", "Default", 0),
        ("compute_mode", "Exclusive_Thread", 1),
        ("compute_mode", "Prohibited", 2),
        ("compute_mode", "Exclusive_Process", 3),
        ("gpu_recovery_action", "None", 0),
        ("gpu_recovery_action", "GPU Reset", 1),
        ("gpu_recovery_action", "Reset", 1),
        ("gpu_recovery_action", "Node Reboot", 2),
        ("gpu_recovery_action", "Drain P2P", 3),
        ("gpu_recovery_action", "Drain and Reset", 4),
        ("gpu_recovery_action", "System Reboot", 7),
        ("fabric.state", "Not Supported", 0),
        ("fabric.state", "Not Started", 1),
        ("fabric.state", "In Progress", 2),
        ("fabric.state", "Completed", 3),
        ("compute_cap", "8.9", 8.9),
        # A single number in a text is a value, as in nvidia_gpu_exporter, so that all its series exist.
        ("name", "NVIDIA GeForce RTX 2080 SUPER", 2080),
        ("driver_version", "595.80", 595.8),
        ("serial", "1650000000002", 1_650_000_000_002),
    ],
)
def test_a_cell_with_one_number_is_converted_to_the_base_unit(
    header: str, cell: str, expected: float
) -> None:
    assert value(header, cell) == pytest.approx(expected, rel=1e-15, abs=0)


@pytest.mark.parametrize("cell", ["0C", "0x0C", "0x0c"])
def test_hexadecimal_fields_are_parsed_without_a_prefix(cell: str) -> None:
    """nvidia_gpu_exporter reads `10` as decimal; nvidia-smi's help says `PCI bus number, in hex`."""
    assert value("pci.bus", cell) == 12
    assert value("pci.bus", "10") == 16
    assert value("count", "10") == 10


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "[N/A]",
        "N/A",
        "[Not Supported]",
        "[Unknown Error]",
        "[GPU is lost]",
        "[Insufficient Permissions]",
        "[Requested functionality has been deprecated]",
        "ERR!",
        "2026/01/02 03:04:05.678",
        "570.86.15",
        "96.00.74.00.01",
        "NVIDIA H100 80GB HBM3",
        "GPU-00000000-0000-0000-0000-000000000000",
        "0xZZ",
        "0x",
        "0x11112222333344445",
        "9" * 400,
        "HMM",
        "1-2",
    ],
)
def test_a_cell_with_no_number_or_several_has_no_value(cell: str) -> None:
    assert value("some.field", cell) is None


@pytest.mark.parametrize("cell", ["Drain P3P", "Unknown(7)", "Reset 2 times"])
def test_an_unknown_word_of_an_enumeration_has_no_value(cell: str) -> None:
    assert value("gpu_recovery_action", cell) is None
    assert is_unknown_word(cell, "gpu_recovery_action")


@pytest.mark.parametrize("cell", ["[N/A]", "N/A", "", "[Unknown Error]"])
def test_an_absent_enumeration_is_not_an_unknown_word(cell: str) -> None:
    assert value("fabric.state", cell) is None
    assert not is_unknown_word(cell, "fabric.state")

"""The smi dialect: columns of nvidia-smi, columns emulated from quantities, and additional families."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from builders import GIB, MIB, gpu, instance, node_state, process, reading, snapshot
from gpuledger.dialects.settings import SmiDialectSettings
from gpuledger.dialects.smi.dialect import SmiDialect
from gpuledger.exposition import text
from gpuledger.exposition.merging import check_family_specs
from gpuledger.model import quantities as q
from gpuledger.model.node_state import CollectorHealth, Health, NodeState, PauseHealth
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import CollectorRun, Reading, SourceInfo, VgpuInstance

CARD = gpu(0, name="NVIDIA H100 PCIe", pci_bus_id="00000000:C1:00.0", vbios="96.00", compute_capability="9.0")
OK = Health(
    attempted=True, healthy=True, collectors=(CollectorHealth("source", True, 0.25, 1_700_000_000.0, "", 3),)
)


def lines(state: NodeState, dialect: SmiDialect | None = None, **settings: bool) -> dict[str, str]:
    """Returns values by series."""
    made = dialect or SmiDialect(SmiDialectSettings(**settings), "1.2.3")
    body = text.encode_text(made.families(state)).decode()
    return dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))


def of(*readings: Reading, source: SourceInfo | None = None, ledger: LedgerState | None = None) -> NodeState:
    seen = snapshot(*readings)
    if any(reading.raw for reading in readings):
        seen = replace(seen, collected=(CollectorRun("columns", 0.1),))
    made = node_state(seen, ledger, OK)
    if source is None or made.snapshot is None:
        return made
    return replace(made, source=source, snapshot=replace(made.snapshot, source=source))


def columns(**cells: str) -> Reading:
    """Returns a Reading with columns; `__` in argument names stands for a dot."""
    return reading(
        CARD, raw={"uuid": CARD.uuid, **{name.replace("__", "."): cell for name, cell in cells.items()}}
    )


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
    assert lines(of(reading(CARD, values={quantity: value})))[series] == expected
    assert series not in lines(of(reading(CARD, values={})))
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
    series = {key.partition("{")[0] for key in lines(of(reading(CARD, process(CARD), values=values)))}
    assert [name for name in DASHBOARDS if f"nvidia_smi_{name}" not in series] == []


@pytest.mark.parametrize(
    ("driver", "names"),
    [("470.256.02", "throttle"), ("530.41.03", "throttle"), ("535.54.03", "event"), ("", "event")],
)
def test_clock_reasons_are_named_as_in_the_driver_version(driver: str, names: str) -> None:
    seen = of(
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


def test_columns_take_precedence_over_quantities() -> None:
    seen = replace(columns(pstate="P8"), values={q.PERFORMANCE_STATE: 2, q.TEMPERATURE: 50})
    series = lines(of(seen))
    assert series['nvidia_smi_pstate{uuid="0"}'] == "8"
    assert 'nvidia_smi_temperature_gpu{uuid="0"}' not in series


def test_columns_of_another_source_complete_the_emulated_row() -> None:
    seen = replace(
        columns(ecc__mode__current="Enabled", pci__sub_device_id="0x18BE10DE", c2c__mode="[N/A]"),
        values={q.TEMPERATURE: 50},
    )
    series = lines(node_state(snapshot(seen), health=OK))
    assert series['nvidia_smi_ecc_mode_current{uuid="0"}'] == "1"
    assert series['nvidia_smi_temperature_gpu{uuid="0"}'] == "50"
    assert 'nvidia_smi_c2c_mode{uuid="0"}' not in series
    assert [key for key in series if 'pci_sub_device_id="0x18BE10DE"' in key] != []


def test_virtual_gpus_are_exported_with_their_virtual_machine() -> None:
    vgpus = (VgpuInstance("AB-1", "vm-7", "NVIDIA A100-10C", GIB), VgpuInstance("AB-2"))
    series = lines(of(replace(reading(CARD), vgpus=vgpus), reading(gpu(1))))
    assert {key: value for key, value in series.items() if "vgpu" in key} == {
        'nvidia_smi_vgpu_info{uuid="0",vgpu_type="NVIDIA A100-10C",vgpu_uuid="ab-1",vm_id="vm-7"}': "1",
        'nvidia_smi_vgpu_info{uuid="0",vgpu_type="",vgpu_uuid="ab-2",vm_id=""}': "1",
        'nvidia_smi_vgpu_used_memory_bytes{uuid="0",vgpu_uuid="ab-1"}': str(GIB),
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
    series = lines(of(reading(CARD, values={quantity: 212_000_000_999})))
    assert series[f'nvidia_smi_clocks_event_reasons_counters_{name}_seconds{{uuid="0"}}'] == "212"


def test_a_queried_row_that_is_missing_is_not_emulated() -> None:
    seen = snapshot(reading(CARD, values={q.TEMPERATURE: 50}), replace(columns(pstate="P8"), device=gpu(1)))
    series = lines(
        node_state(replace(seen, collected=(CollectorRun("columns", 0.1, "a row is mangled"),)), health=OK)
    )
    assert [key for key in series if 'uuid="0"' in key and "compute_apps" not in key] == []
    assert series['nvidia_smi_pstate{uuid="1"}'] == "8"


def test_gpu_info_is_exported_without_columns() -> None:
    source = SourceInfo("nvml", driver_version="580.95.05", cuda_version="13.0")
    (info,) = [
        key for key in lines(of(reading(CARD), source=source)) if key.startswith("nvidia_smi_gpu_info")
    ]
    assert info == (
        'nvidia_smi_gpu_info{compute_cap="9.0",cuda_version="13.0",driver_model_current="[N/A]",'
        'driver_model_pending="[N/A]",driver_version="580.95.05",index="0",name="NVIDIA H100 PCIe",'
        'pci_bus_id="00000000:C1:00.0",pci_sub_device_id="",serial="[N/A]",uuid="0",vbios_version="96.00"}'
    )


def test_a_gpu_that_is_lost_has_no_row() -> None:
    series = lines(of(reading(CARD), reading(gpu(1), up=False, failed=True, values={})))
    assert [key for key in series if 'uuid="1"' in key] == []
    assert 'nvidia_smi_count{uuid="0"}' in series


@pytest.mark.parametrize(
    ("cells", "dropped", "warning"),
    [
        (
            {"brand__new [K]": "7 K"},
            set(),
            "unknown unit of the nvidia-smi column brand.new [K]: exported unscaled as nvidia_smi_brand_new",
        ),
        (
            {"fooBar": "1", "foo__bar": "2"},
            {"foo_bar"},
            "the nvidia-smi columns fooBar, foo.bar would all be named nvidia_smi_foo_bar: none is exported",
        ),
        (
            {"compute__apps": "3"},
            {"compute_apps"},
            "the nvidia-smi column compute.apps would be named nvidia_smi_compute_apps: not exported",
        ),
        (
            {"gpu_recovery_action": "Drain P3P"},
            {"gpu_recovery_action"},
            "unknown value 'Drain P3P' of nvidia-smi's gpu_recovery_action: not exported",
        ),
    ],
)
def test_a_problem_of_a_column_is_logged_once_and_others_are_exported(
    cells: dict[str, str], dropped: set[str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    dialect = SmiDialect(SmiDialectSettings(compute_apps=False), "1")
    for temperature in ("50", "51"):
        series = lines(of(columns(temperature__gpu=temperature, **cells)), dialect)
        assert series['nvidia_smi_temperature_gpu{uuid="0"}'] == temperature
        assert not any(f'nvidia_smi_{name}{{uuid="0"}}' in series for name in dropped)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(warning)


def test_an_unknown_unit_is_exported_unscaled() -> None:
    assert lines(of(columns(**{"brand__new [K]": "7 K"})))['nvidia_smi_brand_new_k{uuid="0"}'] == "7"


def test_compute_processes_have_name_and_memory_and_their_number() -> None:
    seen = of(
        reading(
            CARD,
            process(CARD, 42, name="/usr/bin/python3", memory=2 * GIB),
            process(CARD, 43, name="", executable="/opt/run", types="M", memory=None),
            process(CARD, 44, name="/usr/lib/xorg/Xorg", types="G"),
        ),
        reading(gpu(1)),
    )
    series = {key: value for key, value in lines(seen).items() if "compute_app" in key}
    assert series == {
        'nvidia_smi_compute_app_info{pid="42",process_name="/usr/bin/python3",uuid="0"}': "1",
        'nvidia_smi_compute_app_info{pid="43",process_name="run",uuid="0"}': "1",
        'nvidia_smi_compute_app_used_memory_bytes{pid="42",process_name="/usr/bin/python3",uuid="0"}': str(
            2 * GIB
        ),
        'nvidia_smi_compute_apps{uuid="0"}': "2",
        'nvidia_smi_compute_apps{uuid="1"}': "0",
        # The memory of one process on the first GPU is not known.
        'nvidia_smi_compute_apps_used_memory_bytes{uuid="1"}': "0",
        "nvidia_smi_compute_apps_last_collect_success": "1",
    }


def test_the_memory_of_all_compute_processes_of_a_gpu_is_their_exact_sum() -> None:
    card = gpu(2, unified_memory=True)
    large = 2**60
    parts = [instance(gpu(1), gi, 0) for gi in (1, 2)]
    series = lines(
        of(
            reading(
                card,
                process(card, 1, memory=large + 1),
                process(card, 2, memory=large),
                process(card, 3, types="G", memory=5),
            ),
            reading(gpu(1)),
            *(reading(part, process(part, 4, memory=GIB)) for part in parts),
            reading(gpu(3), failed=True),
        )
    )
    name = "nvidia_smi_compute_apps_used_memory_bytes"
    assert {key: value for key, value in series.items() if key.startswith(name)} == {
        f'{name}{{uuid="2"}}': str(2 * large + 1),
        f'{name}{{uuid="1"}}': str(2 * GIB),
    }


def test_a_failed_process_list_has_no_count_and_no_success() -> None:
    series = lines(of(reading(CARD, failed=True), reading(gpu(1))))
    assert 'nvidia_smi_compute_apps{uuid="0"}' not in series
    assert series['nvidia_smi_compute_apps{uuid="1"}'] == "0"
    assert series["nvidia_smi_compute_apps_last_collect_success"] == "0"


def test_processes_beyond_the_cap_are_only_in_the_count() -> None:
    first, second = process(CARD, 1), process(CARD, 2)
    ledger = LedgerState(omitted={CARD.uuid: frozenset({second.key})})
    series = lines(of(reading(CARD, first, second), ledger=ledger))
    assert [key for key in series if key.startswith("nvidia_smi_compute_app_info")] == [
        'nvidia_smi_compute_app_info{pid="1",process_name="python3",uuid="0"}'
    ]
    assert series['nvidia_smi_compute_apps{uuid="0"}'] == "2"


@pytest.mark.parametrize("requested", [False, True])
def test_pcie_rates_are_measured_only_on_request(requested: bool) -> None:
    dialect = SmiDialect(SmiDialectSettings(pcie_throughput=requested), "1.2.3")
    assert (q.PCIE_SAMPLES in dialect.required_quantities) is requested


def test_processes_can_be_disabled() -> None:
    assert not any(
        "compute_app" in key for key in lines(of(reading(CARD, process(CARD))), compute_apps=False)
    )


def test_under_mig_processes_and_memory_are_per_instance_and_counts_per_gpu() -> None:
    cut = gpu(2)
    first = instance(cut, 2, 0, profile="3g.40gb")
    twin = instance(cut, 9, 0, 1, profile="1c.2g.20gb")
    other = instance(cut, 9, 1, 2, profile="1c.2g.20gb")
    activity = {q.ENGINE_ACTIVITY: 0.5, q.SM_ACTIVITY: 0.25, q.SM_OCCUPANCY: 0.125, q.TENSOR_ACTIVITY: 0.0625}
    series = lines(
        of(
            reading(cut, mig_enabled=True, values={}),
            reading(
                first, process(first, 7), values={q.MEMORY_TOTAL: 40 * GIB, q.MEMORY_USED: GIB, **activity}
            ),
            reading(twin, process(twin, 8), values={q.MEMORY_TOTAL: 20 * GIB}),
            reading(other, process(other, 9), values={q.MEMORY_TOTAL: 20 * GIB}),
        )
    )
    where = 'gpu_instance_id="2",uuid="2"'
    assert series['nvidia_smi_compute_apps{uuid="2"}'] == "3"
    assert (
        series[
            'nvidia_smi_compute_app_info{compute_instance_id="1",gpu_instance_id="9",pid="9",process_name="python3",uuid="2"}'
        ]
        == "1"
    )
    assert (
        series[
            'nvidia_smi_mig_info{compute_instance_id="0",gpu_instance_id="2",mig_uuid="2-2-0",profile="3g.40gb",uuid="2"}'
        ]
        == "1"
    )
    assert {key: value for key, value in series.items() if "_mig_" in key and "mig_info" not in key} == {
        f"nvidia_smi_mig_memory_total_bytes{{{where}}}": str(40 * GIB),
        'nvidia_smi_mig_memory_total_bytes{gpu_instance_id="9",uuid="2"}': str(20 * GIB),
        f"nvidia_smi_mig_memory_used_bytes{{{where}}}": str(GIB),
        f"nvidia_smi_mig_graphics_activity_ratio{{{where}}}": "0.5",
        f"nvidia_smi_mig_sm_activity_ratio{{{where}}}": "0.25",
        f"nvidia_smi_mig_sm_occupancy_ratio{{{where}}}": "0.125",
        f"nvidia_smi_mig_tensor_activity_ratio{{{where}}}": "0.0625",
    }


XIDS = LedgerState(xids={("GPU-0", 31): 2}, xid_times={("GPU-0", 31): 1_699_999_990.5})


def health(series: dict[str, str]) -> dict[str, str]:
    keys = ("failed_scrapes_total", "command_exit_code", "last_collect_success")
    keys += ("last_collect_success_timestamp_seconds", "last_collect_duration_seconds")
    return {key: series[f"nvidia_smi_{key}"] for key in keys if f"nvidia_smi_{key}" in series}


def test_a_successful_reading_is_exported() -> None:
    series = lines(of(reading(CARD)))
    assert health(series) == {
        "failed_scrapes_total": "3",
        "command_exit_code": "0",
        "last_collect_success": "1",
        "last_collect_success_timestamp_seconds": "1700000000",
        "last_collect_duration_seconds": "0.25",
    }
    assert series['nvidia_gpu_exporter_build_info{version="1.2.3"}'] == "1"


@pytest.mark.parametrize(("code", "exported"), [(9, "9"), (None, "-1"), (0, "-1")])
def test_the_code_of_nvml_is_exported_only_with_nvml(code: int | None, exported: str) -> None:
    source = SourceInfo("nvml", return_code=code)
    dead = NodeState(1.0, source, None, health=Health(attempted=True))
    assert lines(dead)["nvidia_smi_nvml_return_code"] == exported
    assert lines(of(reading(CARD), source=source))["nvidia_smi_nvml_return_code"] == "0"
    assert "nvidia_smi_nvml_return_code" not in lines(
        of(reading(CARD), source=SourceInfo("smi", exit_code=0))
    )


@pytest.mark.parametrize(("code", "exported"), [(None, "-1"), (9, "9"), (-1, "-1"), (0, "-1")])
def test_without_a_snapshot_only_health_and_counters_are_exported(code: int | None, exported: str) -> None:
    source = CollectorHealth("source", False, None, 1_699_999_999.0, "no driver", 4)
    source_info = SourceInfo("smi", exit_code=code)
    dead = NodeState(1.0, source_info, None, XIDS, Health(attempted=True, collectors=(source,)))
    seen = lines(dead)
    assert health(seen) == {
        "failed_scrapes_total": "4",
        "command_exit_code": exported,
        "last_collect_success": "0",
        "last_collect_success_timestamp_seconds": "1699999999",
    }
    assert set(seen) - {f"nvidia_smi_{key}" for key in health(seen)} == {
        'nvidia_smi_xid_errors_total{uuid="0",xid="31"}',
        'nvidia_smi_xid_last_timestamp_seconds{uuid="0",xid="31"}',
        'nvidia_gpu_exporter_build_info{version="1.2.3"}',
    }


def test_failed_columns_are_a_failure_even_if_the_source_succeeds() -> None:
    parts = (*OK.collectors, CollectorHealth("columns", False, 0.1, 1_699_999_000.0, "exit 6", 2))
    seen = replace(
        of(reading(CARD)), source=SourceInfo("smi", exit_code=6), health=replace(OK, collectors=parts)
    )
    assert health(lines(seen)) == {
        "failed_scrapes_total": "5",
        "command_exit_code": "6",
        "last_collect_success": "0",
        "last_collect_success_timestamp_seconds": "1699999000",
        "last_collect_duration_seconds": "0.25",
    }


def test_before_the_first_reading_there_is_no_result() -> None:
    parts = (CollectorHealth("source", success=False),)
    assert health(lines(NodeState(1.0, SourceInfo("smi"), health=Health(collectors=parts)))) == {
        "failed_scrapes_total": "0"
    }


def test_a_paused_source_exports_no_result() -> None:
    """The count of failures is omitted too: a drop to 0 and back would look like an increase."""
    paused = Health(attempted=True, pause=PauseHealth(paused=True))
    assert health(lines(NodeState(1.0, SourceInfo("smi", exit_code=0), health=paused))) == {}


def test_the_page_parses_as_openmetrics() -> None:
    seen = of(columns(ecc__errors__corrected__volatile__total="0"), ledger=XIDS)
    dialect = SmiDialect(SmiDialectSettings(), "1")
    names = {
        family.name for family in read_openmetrics(text.encode_openmetrics(dialect.families(seen)).decode())
    }
    assert {"nvidia_smi_ecc_errors_corrected_volatile_total", "nvidia_smi_xid_errors"} <= names


def test_all_specs_can_share_one_page() -> None:
    check_family_specs(SmiDialect.specs)
    assert len({spec.name for spec in SmiDialect.specs}) == len(SmiDialect.specs)

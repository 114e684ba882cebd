"""The smi dialect: columns of nvidia-smi, columns emulated from quantities, and additional families."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from builders import GIB, gpu, node_state, reading, snapshot
from gpuledger.dialects.settings import SmiDialectSettings
from gpuledger.dialects.smi.dialect import SmiDialect
from gpuledger.exposition import text
from gpuledger.exposition.merging import check_family_specs
from gpuledger.model import quantities as q
from gpuledger.model.node_state import CollectorHealth, Health, NodeState, PauseHealth
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import CollectorRun, SourceInfo, VgpuInstance
from unit.dialects.smi.support import CARD, OK, columns, lines, state_of


def test_columns_take_precedence_over_quantities() -> None:
    seen = replace(columns(pstate="P8"), values={q.PERFORMANCE_STATE: 2, q.TEMPERATURE: 50})
    series = lines(state_of(seen))
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
    series = lines(state_of(replace(reading(CARD), vgpus=vgpus), reading(gpu(1))))
    assert {key: value for key, value in series.items() if "vgpu" in key} == {
        'nvidia_smi_vgpu_info{uuid="0",vgpu_type="NVIDIA A100-10C",vgpu_uuid="ab-1",vm_id="vm-7"}': "1",
        'nvidia_smi_vgpu_info{uuid="0",vgpu_type="",vgpu_uuid="ab-2",vm_id=""}': "1",
        'nvidia_smi_vgpu_used_memory_bytes{uuid="0",vgpu_uuid="ab-1"}': str(GIB),
    }


def test_a_queried_row_that_is_missing_is_not_emulated() -> None:
    seen = snapshot(reading(CARD, values={q.TEMPERATURE: 50}), replace(columns(pstate="P8"), device=gpu(1)))
    series = lines(
        node_state(replace(seen, collected=(CollectorRun("columns", 0.1, "a row is mangled"),)), health=OK)
    )
    assert [key for key in series if 'uuid="0"' in key and "compute_apps" not in key] == []
    assert series['nvidia_smi_pstate{uuid="1"}'] == "8"


def test_a_gpu_that_is_lost_has_no_row() -> None:
    series = lines(state_of(reading(CARD), reading(gpu(1), up=False, failed=True, values={})))
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
        series = lines(state_of(columns(temperature__gpu=temperature, **cells)), dialect)
        assert series['nvidia_smi_temperature_gpu{uuid="0"}'] == temperature
        assert not any(f'nvidia_smi_{name}{{uuid="0"}}' in series for name in dropped)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(warning)


def test_an_unknown_unit_is_exported_unscaled() -> None:
    assert lines(state_of(columns(**{"brand__new [K]": "7 K"})))['nvidia_smi_brand_new_k{uuid="0"}'] == "7"


@pytest.mark.parametrize("requested", [False, True])
def test_pcie_rates_are_measured_only_on_request(requested: bool) -> None:
    dialect = SmiDialect(SmiDialectSettings(pcie_throughput=requested), "1.2.3")
    assert (q.PCIE_SAMPLES in dialect.required_quantities) is requested


XIDS = LedgerState(xids={("GPU-0", 31): 2}, xid_times={("GPU-0", 31): 1_699_999_990.5})


def health(series: dict[str, str]) -> dict[str, str]:
    keys = ("failed_scrapes_total", "command_exit_code", "last_collect_success")
    keys += ("last_collect_success_timestamp_seconds", "last_collect_duration_seconds")
    return {key: series[f"nvidia_smi_{key}"] for key in keys if f"nvidia_smi_{key}" in series}


def test_a_successful_reading_is_exported() -> None:
    series = lines(state_of(reading(CARD)))
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
    assert lines(state_of(reading(CARD), source=source))["nvidia_smi_nvml_return_code"] == "0"
    assert "nvidia_smi_nvml_return_code" not in lines(
        state_of(reading(CARD), source=SourceInfo("smi", exit_code=0))
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
        state_of(reading(CARD)), source=SourceInfo("smi", exit_code=6), health=replace(OK, collectors=parts)
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
    seen = state_of(columns(ecc__errors__corrected__volatile__total="0"), ledger=XIDS)
    dialect = SmiDialect(SmiDialectSettings(), "1")
    names = {
        family.name for family in read_openmetrics(text.encode_openmetrics(dialect.families(seen)).decode())
    }
    assert {"nvidia_smi_ecc_errors_corrected_volatile_total", "nvidia_smi_xid_errors"} <= names


def test_all_specs_can_share_one_page() -> None:
    check_family_specs(SmiDialect.specs)
    assert len({spec.name for spec in SmiDialect.specs}) == len(SmiDialect.specs)

"""The energy dialect of document 003: energy per process, also after its end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import GIB, gpu, instance, node_state, process, reading, snapshot
from gpuledger.dialects.energy import EnergyDialect
from gpuledger.dialects.settings import DialectSettings, EnergyDialectSettings
from gpuledger.model.process import GpuProcess
from gpuledger.model.session import EnergyRow, EnergyState, LedgerState
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Workload

CARD = gpu(1)
POD = Workload("pod", "ml", "train-0", "main", "uid-0", "cafe")
RUNS = process(CARD, 12, workload=POD)
LABELS = ("12", "1", "python3", "train-0", "ml", "main", "uid-0", "cafe")

SamplesByFamily = Mapping[str, Mapping[tuple[str, ...], float]]


def samples_by_family(
    seen: Snapshot | None, *rows: EnergyRow, settings: DialectSettings | None = None
) -> SamplesByFamily:
    dialect = EnergyDialect(settings or DialectSettings())
    families = dialect.families(node_state(seen, LedgerState(energy=EnergyState(rows=rows))))
    return {family.spec.name.removeprefix("my_gpu_process_"): family.samples for family in families}


def row(one: GpuProcess, *, active: bool = True, other: bool = False) -> EnergyRow:
    return EnergyRow(one, 120_000, 80_000, active, other=other)


def test_a_running_process_has_energy_and_utilization() -> None:
    families = samples_by_family(snapshot(reading(CARD, RUNS)), row(RUNS))
    assert families == {
        "energy_joules": {LABELS: 120.0},
        "energy_measured_joules": {LABELS: 80.0},
        "sm_utilization_ratio": {LABELS: 0.5},
        "memory_utilization_ratio": {LABELS: 0.5},
        "memory_used_bytes": {LABELS: 2 * GIB},
        "start_time_seconds": {LABELS: RUNS.host.start.unix},
        "active": {LABELS: 1},
    }


def test_an_ended_process_keeps_energy_and_start_and_loses_utilization() -> None:
    families = samples_by_family(snapshot(reading(CARD)), row(RUNS, active=False))
    assert {name: list(samples.values()) for name, samples in families.items() if samples} == {
        "energy_joules": [120.0],
        "energy_measured_joules": [80.0],
        "start_time_seconds": [RUNS.host.start.unix],
        "active": [0],
    }


def test_without_a_snapshot_only_ended_processes_have_an_active_sample() -> None:
    ended = process(CARD, 13)
    families = samples_by_family(None, row(RUNS), row(ended, active=False))
    assert {values[0] for values in families["energy_joules"]} == {"12", "13"}
    assert {values[0]: value for values, value in families["active"].items()} == {"13": 0}
    assert not families["sm_utilization_ratio"]


def test_processes_beyond_the_cap_share_one_row_without_a_name() -> None:
    families = samples_by_family(snapshot(reading(CARD, RUNS)), row(RUNS, other=True))
    assert {name: samples for name, samples in families.items() if samples} == {
        "energy_joules": {("other", "1", "", "", "", "", "", ""): 120.0},
        "energy_measured_joules": {("other", "1", "", "", "", "", "", ""): 80.0},
    }


@pytest.mark.parametrize(("form", "label"), [("instance", "1_2_0"), ("device", "1_3_0")])
def test_an_instance_has_the_same_label_as_in_other_dialects(form: str, label: str) -> None:
    cut = instance(CARD, 2, index=3)
    runs = process(cut, 12)
    families = samples_by_family(
        snapshot(reading(CARD), reading(cut, runs)), row(runs), settings=DialectSettings(mig_label=form)
    )
    ((_, gpu_label, *_),) = families["energy_joules"]
    assert gpu_label == label


def test_the_suffix_of_the_code_of_my_gpu_exporter_is_that_of_counters_alone():
    dialect = EnergyDialect(DialectSettings(), EnergyDialectSettings(total_suffix=True))
    names = {spec.name.removeprefix("my_gpu_process_") for spec in dialect.specs}
    assert {"energy_joules_total", "energy_measured_joules_total", "active"} <= names
    assert not {"energy_joules", "active_total"} & names

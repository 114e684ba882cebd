"""The native dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from builders import GIB, SOURCE, gpu, instance, node_state, process, reading, snapshot
from gpuledger.dialects.native.dialect import NativeDialect
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.node_state import CollectorHealth, Health, IndexHealth, PauseHealth, ReloadHealth
from gpuledger.model.process import Usage
from gpuledger.model.session import LedgerState, OwnerRow
from gpuledger.model.snapshot import Snapshot, XidEvent
from gpuledger.model.workload import Allocation, Workload

SamplesByFamily = Mapping[str, Mapping[tuple[str, ...], float]]


def samples_by_family(
    seen: Snapshot | None, ledger: LedgerState | None = None, health: Health | None = None
) -> SamplesByFamily:
    families = NativeDialect("9.9").families(node_state(seen, ledger, health))
    return {family.spec.name.removeprefix("gpuledger_"): family.samples for family in families}


def test_every_family_is_declared_and_exported_once() -> None:
    dialect = NativeDialect("9.9")
    names = [family.spec.name for family in dialect.families(node_state(snapshot(reading(gpu(0)))))]
    assert sorted(names) == sorted(spec.name for spec in dialect.specs)
    assert len(set(names)) == len(names)


def test_quantities_of_a_gpu_are_exported_once_and_not_on_its_instances() -> None:
    card = gpu(0)
    cut = instance(card, 2, profile="3g.40gb")
    families = samples_by_family(
        snapshot(
            reading(card, values={q.POWER: 300.0, q.MEMORY_USED: 5 * GIB}),
            reading(cut, values={q.MEMORY_USED: 4 * GIB}),
        )
    )
    assert families["device_power_watts"] == {("GPU-0",): 300.0}
    assert families["device_memory_used_bytes"] == {("GPU-0", ""): 5 * GIB, ("GPU-0", "2_0"): 4 * GIB}
    assert {row[:2] for row in families["device_info"]} == {("GPU-0", ""), ("GPU-0", "2_0")}


def test_memory_of_a_gpu_instance_is_exported_once() -> None:
    card = gpu(0)
    cut = [instance(card, 1, 1), instance(card, 1, 0), instance(card, 2, 0)]
    values = {q.MEMORY_USED: 4 * GIB, q.MEMORY_FREE: GIB, q.MEMORY_TOTAL: 5 * GIB, q.MEMORY_RESERVED: GIB}
    families = samples_by_family(
        snapshot(reading(card, values={}), *(reading(each, values=values) for each in cut))
    )
    for name in ("used", "free", "size", "reserved"):
        assert set(families[f"device_memory_{name}_bytes"]) == {("GPU-0", "1_0"), ("GPU-0", "2_0")}
    assert len(families["device_info"]) == 4


def test_energy_of_a_whole_module_is_marked() -> None:
    cards = [gpu(0, name="NVIDIA GH200 480GB"), gpu(1, name="NVIDIA H200")]
    families = samples_by_family(snapshot(*(reading(card, values={q.ENERGY: 1.0}) for card in cards)))
    assert families["device_energy_of_module"] == {("GPU-0",): 1}


@pytest.mark.parametrize(
    ("quantity", "value", "family", "labels", "exported"),
    [
        (q.THERMAL_VIOLATION, 1_500_000_000, "device_throttled_seconds_total", ("thermal",), 1.5),
        (q.POWER_VIOLATION, 0, "device_throttled_seconds_total", ("power",), 0),
        (q.REMAPPED_ROWS_UNCORRECTABLE, 2, "device_remapped_rows_total", ("uncorrectable",), 2),
        (q.ROW_REMAP_PENDING, 1, "device_row_remap_pending", (), 1),
        (q.ROW_REMAP_FAILURE, 0, "device_row_remap_failed", (), 0),
        (q.ECC_UNCORRECTED_VOLATILE, 3, "device_ecc_volatile_errors_total", ("uncorrected",), 3),
        (q.RECOVERY_ACTION, 2, "device_recovery_action", (), 2),
    ],
)
def test_faults_of_a_gpu_are_exported(
    quantity: q.Quantity, value: float, family: str, labels: tuple[str, ...], exported: float
) -> None:
    families = samples_by_family(snapshot(reading(gpu(0), values={quantity: value})))
    assert families[family] == {("GPU-0", *labels): exported}


def test_each_xid_that_occurred_has_its_meaning_once() -> None:
    seen = {("GPU-0", 79): 1, ("GPU-1", 79): 2, ("GPU-0", 9999): 1}
    families = samples_by_family(None, LedgerState(xids=seen, xid_times=dict.fromkeys(seen, 1.0)))
    assert families["xid_info"] == {("79", "GPU has fallen off the bus"): 1, ("9999", ""): 1}


def test_pause_and_last_reload_are_exported_if_supported() -> None:
    health = Health(pause=PauseHealth(True, 1_700_000_600.0), reload=ReloadHealth(False, 1_700_000_000.0))
    families = samples_by_family(None, health=health)
    found = {
        name: list(families[name].values()) for name in families if name.startswith(("paused", "config"))
    }
    assert sorted(value for values in found.values() for value in values) == [
        0,
        1,
        1_700_000_000.0,
        1_700_000_600.0,
    ]
    assert not any(samples_by_family(None)[name] for name in found)


@pytest.mark.parametrize(("simulated", "word"), [(True, "true"), (False, "false")])
def test_the_source_info_marks_simulated_data(simulated: bool, word: str) -> None:
    shown = replace(node_state(None), source=replace(SOURCE, simulated=simulated))
    (info,) = (
        one for one in NativeDialect("9.9").families(shown) if one.spec.name == "gpuledger_source_info"
    )
    ((values, _),) = info.samples.items()
    assert dict(zip(info.spec.labels, values, strict=True))["simulated"] == word


def test_the_sm_ratio_of_an_instance_is_its_fraction_of_multiprocessors() -> None:
    card = gpu(0, sm_count=132)
    cut = replace(instance(card, 2, profile="3g.40gb"), sm_count=66)
    state = Ledger(LedgerSettings()).post(snapshot(reading(card), reading(cut)))
    families = samples_by_family(snapshot(reading(card), reading(cut)), state)
    assert families["device_sm_ratio"] == {("GPU-0", ""): 1.0, ("GPU-0", "2_0"): 0.5}


def test_absent_quantities_have_no_sample() -> None:
    families = samples_by_family(snapshot(reading(gpu(0), values={q.UTILIZATION: 0.0})))
    assert families["device_utilization_ratio"] == {("GPU-0",): 0.0}
    assert families["device_power_watts"] == {}


def test_a_lost_gpu_is_down_and_others_are_unaffected() -> None:
    lost, well = gpu(0), gpu(1)
    families = samples_by_family(
        snapshot(
            reading(lost, up=False, failed=True, values={}),
            reading(well, process(well), values={q.POWER: 99.0}),
        )
    )
    assert families["device_up"] == {("GPU-0", ""): 0, ("GPU-1", ""): 1}
    assert families["device_down"] == {("GPU-0", "", ""): 1}
    assert families["device_power_watts"] == {("GPU-1",): 99.0}
    assert {row[0] for row in families["processes"]} == {"GPU-1"}


def test_a_gpu_that_is_down_is_exported_with_the_reason_of_the_driver() -> None:
    down = reading(gpu(0), up=False, down_reason="RESET_REQUIRED", failed=True, values={})
    assert samples_by_family(snapshot(down))["device_down"] == {("GPU-0", "", "RESET_REQUIRED"): 1}


def test_unsupported_quantities_are_exported_with_a_reason() -> None:
    supported = {"fan_speed": False, "power": True, "sm_activity": False}
    families = samples_by_family(snapshot(reading(gpu(0), supported=supported)))
    assert families["field_supported"] == {
        ("GPU-0", "", "fan_speed", "driver"): 0,
        ("GPU-0", "", "power", ""): 1,
        ("GPU-0", "", "sm_activity", "profiling"): 0,
    }


def test_an_unsupported_column_is_exported_with_the_reason_in_its_cell() -> None:
    cells = {
        "c2c.mode": "[Function Not Found]",
        "power.draw.average [W]": "[Insufficient Permissions]",
        "display_mode": "[Requested functionality has been deprecated]",
        "ecc.mode.current": "[N/A]",
    }
    supported = {**dict.fromkeys((header.partition(" ")[0] for header in cells), False), "pci.bus": True}
    families = samples_by_family(snapshot(reading(gpu(0), supported=supported, raw=cells)))
    assert families["field_supported"] == {
        ("GPU-0", "", "c2c.mode", "function_not_found"): 0,
        ("GPU-0", "", "power.draw.average", "no_permission"): 0,
        ("GPU-0", "", "display_mode", "deprecated"): 0,
        ("GPU-0", "", "ecc.mode.current", "driver"): 0,
        ("GPU-0", "", "pci.bus", ""): 1,
    }


def test_only_the_info_series_of_a_process_has_its_owner() -> None:
    card = gpu(0)
    owner = Workload("pod", namespace="ml", pod="train-0", container="c", pod_uid="u", container_id="i")
    families = samples_by_family(snapshot(reading(card, process(card, 7, workload=owner))))
    (row,) = families["process_info"]
    assert row[:5] == ("GPU-0", "", "7", "python3", "C")
    assert row[5:9] == ("pod", "ml", "train-0", "c")
    assert families["process_memory_bytes"] == {("GPU-0", "", "7"): 2 * GIB}


def test_known_engine_utilizations_of_a_process_are_exported_by_name() -> None:
    card = gpu(0)
    usage = Usage(encoder=0.1, decoder=0.2, jpeg=0.3, ofa=None)
    families = samples_by_family(snapshot(reading(card, replace(process(card, 7), usage=usage))))
    labels = ("GPU-0", "", "7")
    assert families["process_engine_utilization_ratio"] == {
        (*labels, "encoder"): 0.1,
        (*labels, "decoder"): 0.2,
        (*labels, "jpeg"): 0.3,
    }


def test_processes_are_counted_by_kind() -> None:
    card = gpu(0)
    families = samples_by_family(snapshot(reading(card, process(card, 1), process(card, 2, types="G"))))
    assert families["processes"] == {("GPU-0", "", "compute"): 1, ("GPU-0", "", "graphics"): 1}


def test_processes_beyond_the_cap_are_counted_separately() -> None:
    card = gpu(0)
    seen = snapshot(reading(card, *(process(card, pid) for pid in range(1, 6))))
    families = samples_by_family(seen, Ledger(LedgerSettings(2)).post(seen))
    assert families["processes_untold"] == {("GPU-0", ""): 3}
    assert len(families["process_info"]) == len(families["process_memory_bytes"]) == 2


def test_unresolved_processes_are_counted_by_reason() -> None:
    card = gpu(0)
    crowd = [process(card, 1, missing="not_found"), process(card, 2, missing="not_found"), process(card, 3)]
    assert samples_by_family(snapshot(reading(card, *crowd)))["unresolved_processes"] == {("not_found",): 2}


def test_without_a_snapshot_counters_are_kept_and_gauges_omitted() -> None:
    card = gpu(0)
    ledger = Ledger(LedgerSettings(zero_hold=0.0))
    state = ledger.post(snapshot(reading(card), xids=(XidEvent(card, 79, 5.0),)))
    families = samples_by_family(None, state, Health(status="stale", stalled=True, attempted=True))
    assert families["device_xid_errors_total"] == {("GPU-0", "79"): 1}
    assert families["tick_stalled"] == {(): 1}
    assert families["snapshot_timestamp_seconds"] == {}
    assert "device_up" not in families


def test_collectors_export_success_duration_and_last_success() -> None:
    health = Health(
        collectors=(
            CollectorHealth("processes", False, 0.25, None, "x"),
            CollectorHealth("a", True, 0.5, 9.0),
        )
    )
    families = samples_by_family(snapshot(reading(gpu(0))), health=health)
    assert families["collector_success"] == {("processes",): 0, ("a",): 1}
    assert families["collector_duration_seconds"] == {("processes",): 0.25, ("a",): 0.5}
    assert families["collector_last_success_timestamp_seconds"] == {("a",): 9.0}


POD = Workload("pod", "ml", "train-0", "main", "uid", "cid", labels=(("team", "nlp"),))


def test_a_former_owner_keeps_its_seconds_and_loses_its_info() -> None:
    card = gpu(0)
    labels = ("pod", "ml", "train-0", "main", "", "")
    gone = OwnerRow(card, labels, present=False, processes=None, allocated=5.0, held=1.0, resident=4.0)
    families = samples_by_family(snapshot(reading(card)), LedgerState(owners=(gone,)))
    assert families["device_owner_info"] == families["device_owner_processes"] == {}
    assert families["owner_allocated_seconds_total"] == {("GPU-0", "", *labels): 5.0}
    assert families["owner_held_seconds_total"] == {("GPU-0", "", *labels): 1.0}
    assert families["owner_resident_seconds_total"] == {("GPU-0", "", *labels): 4.0}


def test_two_allocations_of_one_device_are_two_rows_and_duplicates_none() -> None:
    card = gpu(0)
    other = replace(POD, pod="train-1")
    allocations = tuple(
        Allocation(card, owner, "pod_resources", "nvidia.com/gpu") for owner in (POD, POD, other)
    )
    families = samples_by_family(replace(snapshot(reading(card)), allocations=allocations))
    assert [row[3] for row in families["device_allocation_info"]] == ["train-0", "train-1"]


def test_the_fraction_of_an_allocation_is_exported_once_for_all_containers_and_only_if_known() -> None:
    card, side = gpu(0), replace(POD, container="side")
    other = replace(POD, pod="train-1")
    allocations = (
        *(
            Allocation(card, owner, "pod_resources", "nvidia.com/gpu", Fraction(1, 4))
            for owner in (POD, side)
        ),
        Allocation(card, other, "pod_resources", "nvidia.com/gpu"),
    )
    families = samples_by_family(replace(snapshot(reading(card)), allocations=allocations))
    assert families["device_allocated_ratio"] == {
        ("GPU-0", "", "pod", "ml", "train-0", "", "nvidia.com/gpu"): 0.25
    }


def test_pod_labels_are_rows_and_not_label_names() -> None:
    card = gpu(0)
    families = samples_by_family(snapshot(reading(card, process(card, workload=POD))))
    assert families["pod_label_info"] == {("ml", "train-0", "uid", "team", "nlp"): 1}
    assert set(families["pod_info"]) == {("ml", "train-0", "uid", "", "", "")}


def test_the_last_success_of_an_owner_index_is_exported_only_if_known() -> None:
    maps = (IndexHealth("pods", True, 1000.0, 3), IndexHealth("slurm", False, None, 0, "not read yet"))
    families = samples_by_family(None, health=Health(owner_indexes=maps))
    assert families["map_success"] == {("pods",): 1, ("slurm",): 0}
    assert families["map_last_success_timestamp_seconds"] == {("pods",): 1000.0}
    assert families["map_entries"] == {("pods",): 3, ("slurm",): 0}

"""The native vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from builders import GIB, SOURCE, gpu, instance, page, process, reading, snapshot
from gpuledger.dialects.native.dialect import NativeDialect
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.node_state import CollectorHealth, Health, IndexHealth, PauseHealth, ReloadHealth
from gpuledger.model.process import Usage
from gpuledger.model.session import LedgerState, OwnerRow
from gpuledger.model.snapshot import Snapshot, XidEvent
from gpuledger.model.workload import Allocation, Workload

Told = Mapping[str, Mapping[tuple[str, ...], float]]


def told(seen: Snapshot | None, ledger: LedgerState | None = None, health: Health | None = None) -> Told:
    families = NativeDialect("9.9").families(page(seen, ledger, health))
    return {family.spec.name.removeprefix("gpuledger_"): family.samples for family in families}


def test_every_family_is_declared_and_told_once() -> None:
    dialect = NativeDialect("9.9")
    names = [family.spec.name for family in dialect.families(page(snapshot(reading(gpu(0)))))]
    assert sorted(names) == sorted(spec.name for spec in dialect.specs)
    assert len(set(names)) == len(names)


def test_quantities_of_a_gpu_are_told_once_and_never_on_its_instances() -> None:
    card = gpu(0)
    cut = instance(card, 2, profile="3g.40gb")
    families = told(
        snapshot(
            reading(card, values={q.POWER: 300.0, q.MEMORY_USED: 5 * GIB}),
            reading(cut, values={q.MEMORY_USED: 4 * GIB}),
        )
    )
    assert families["device_power_watts"] == {("GPU-0",): 300.0}
    assert families["device_memory_used_bytes"] == {("GPU-0", ""): 5 * GIB, ("GPU-0", "2_0"): 4 * GIB}
    assert {row[:2] for row in families["device_info"]} == {("GPU-0", ""), ("GPU-0", "2_0")}


def test_a_pause_and_the_last_reload_are_told_where_the_program_takes_them() -> None:
    health = Health(pause=PauseHealth(True, 1_700_000_600.0), reload=ReloadHealth(False, 1_700_000_000.0))
    families = told(None, health=health)
    found = {
        name: list(families[name].values()) for name in families if name.startswith(("paused", "config"))
    }
    assert sorted(value for values in found.values() for value in values) == [
        0,
        1,
        1_700_000_000.0,
        1_700_000_600.0,
    ]
    assert not any(told(None)[name] for name in found)


@pytest.mark.parametrize(("simulated", "word"), [(True, "true"), (False, "false")])
def test_made_up_numbers_say_so(simulated: bool, word: str) -> None:
    shown = replace(page(None), source=replace(SOURCE, simulated=simulated))
    (info,) = (
        one for one in NativeDialect("9.9").families(shown) if one.spec.name == "gpuledger_source_info"
    )
    ((values, _),) = info.samples.items()
    assert dict(zip(info.spec.labels, values, strict=True))["simulated"] == word


def test_an_instance_is_the_part_of_its_gpu_that_its_multiprocessors_are() -> None:
    card = gpu(0, sm_count=132)
    cut = replace(instance(card, 2, profile="3g.40gb"), sm_count=66)
    state = Ledger(LedgerSettings()).post(snapshot(reading(card), reading(cut)))
    families = told(snapshot(reading(card), reading(cut)), state)
    assert families["device_sm_ratio"] == {("GPU-0", ""): 1.0, ("GPU-0", "2_0"): 0.5}


def test_absent_quantities_have_no_sample() -> None:
    families = told(snapshot(reading(gpu(0), values={q.UTILIZATION: 0.0})))
    assert families["device_utilization_ratio"] == {("GPU-0",): 0.0}
    assert families["device_power_watts"] == {}


def test_a_lost_gpu_is_down_and_the_others_are_whole() -> None:
    lost, well = gpu(0), gpu(1)
    families = told(
        snapshot(
            reading(lost, up=False, failed=True, values={}),
            reading(well, process(well), values={q.POWER: 99.0}),
        )
    )
    assert families["device_up"] == {("GPU-0", ""): 0, ("GPU-1", ""): 1}
    assert families["device_power_watts"] == {("GPU-1",): 99.0}
    assert {row[0] for row in families["processes"]} == {"GPU-1"}


def test_what_a_device_does_not_have_is_told_as_unsupported_and_why() -> None:
    supported = {"fan_speed": False, "power": True, "sm_activity": False}
    families = told(snapshot(reading(gpu(0), supported=supported)))
    assert families["field_supported"] == {
        ("GPU-0", "", "fan_speed", "driver"): 0,
        ("GPU-0", "", "power", ""): 1,
        ("GPU-0", "", "sm_activity", "profiling"): 0,
    }


def test_a_process_is_told_with_its_owner_on_the_info_series_alone() -> None:
    card = gpu(0)
    owner = Workload("pod", namespace="ml", pod="train-0", container="c", pod_uid="u", container_id="i")
    families = told(snapshot(reading(card, process(card, 7, workload=owner))))
    (row,) = families["process_info"]
    assert row[:5] == ("GPU-0", "", "7", "python3", "C")
    assert row[5:9] == ("pod", "ml", "train-0", "c")
    assert families["process_memory_bytes"] == {("GPU-0", "", "7"): 2 * GIB}


def test_each_engine_of_a_process_is_told_by_its_name_and_what_is_not_known_is_not() -> None:
    card = gpu(0)
    usage = Usage(encoder=0.1, decoder=0.2, jpeg=0.3, ofa=None)
    families = told(snapshot(reading(card, replace(process(card, 7), usage=usage))))
    who = ("GPU-0", "", "7")
    assert families["process_engine_utilization_ratio"] == {
        (*who, "encoder"): 0.1,
        (*who, "decoder"): 0.2,
        (*who, "jpeg"): 0.3,
    }


def test_kinds_of_processes_are_counted_apart() -> None:
    card = gpu(0)
    families = told(snapshot(reading(card, process(card, 1), process(card, 2, types="G"))))
    assert families["processes"] == {("GPU-0", "", "compute"): 1, ("GPU-0", "", "graphics"): 1}


def test_processes_beyond_the_cap_are_counted_as_untold() -> None:
    card = gpu(0)
    seen = snapshot(reading(card, *(process(card, pid) for pid in range(1, 6))))
    families = told(seen, Ledger(LedgerSettings(2)).post(seen))
    assert families["processes_untold"] == {("GPU-0", ""): 3}
    assert len(families["process_info"]) == len(families["process_memory_bytes"]) == 2


def test_unresolved_processes_are_counted_by_reason() -> None:
    card = gpu(0)
    crowd = [process(card, 1, missing="not_found"), process(card, 2, missing="not_found"), process(card, 3)]
    assert told(snapshot(reading(card, *crowd)))["unresolved_processes"] == {("not_found",): 2}


def test_counters_stay_while_there_is_no_snapshot_and_gauges_go() -> None:
    card = gpu(0)
    state = Ledger(LedgerSettings()).post(snapshot(reading(card), xids=(XidEvent(card, 79, 5.0),)))
    families = told(None, state, Health(status="stale", stalled=True, tried=True))
    assert families["device_xid_errors_total"] == {("GPU-0", "79"): 1}
    assert families["tick_stalled"] == {(): 1}
    assert families["snapshot_timestamp_seconds"] == {}
    assert "device_up" not in families


def test_collectors_tell_success_duration_and_last_success() -> None:
    health = Health(
        collectors=(
            CollectorHealth("processes", False, 0.25, None, "x"),
            CollectorHealth("a", True, 0.5, 9.0),
        )
    )
    families = told(snapshot(reading(gpu(0))), health=health)
    assert families["collector_success"] == {("processes",): 0, ("a",): 1}
    assert families["collector_duration_seconds"] == {("processes",): 0.25, ("a",): 0.5}
    assert families["collector_last_success_timestamp_seconds"] == {("a",): 9.0}


POD = Workload("pod", "ml", "train-0", "main", "uid", "cid", labels=(("team", "nlp"),))


def test_an_owner_that_has_gone_keeps_its_seconds_and_loses_its_info() -> None:
    card = gpu(0)
    who = ("pod", "ml", "train-0", "main", "", "")
    gone = OwnerRow(card, who, present=False, processes=None, allocated=5.0, held=1.0, resident=4.0)
    families = told(snapshot(reading(card)), LedgerState(owners=(gone,)))
    assert families["device_owner_info"] == families["device_owner_processes"] == {}
    assert families["owner_allocated_seconds_total"] == {("GPU-0", "", *who): 5.0}
    assert families["owner_held_seconds_total"] == {("GPU-0", "", *who): 1.0}
    assert families["owner_resident_seconds_total"] == {("GPU-0", "", *who): 4.0}


def test_one_device_handed_out_twice_is_two_rows_and_a_replica_of_it_is_none() -> None:
    card = gpu(0)
    other = replace(POD, pod="train-1")
    handed = tuple(Allocation(card, one, "pod_resources", "nvidia.com/gpu") for one in (POD, POD, other))
    families = told(replace(snapshot(reading(card)), allocations=handed))
    assert [row[3] for row in families["device_allocation_info"]] == ["train-0", "train-1"]


def test_labels_of_pods_are_rows_not_names() -> None:
    card = gpu(0)
    families = told(snapshot(reading(card, process(card, workload=POD))))
    assert families["pod_label_info"] == {("ml", "train-0", "uid", "team", "nlp"): 1}
    assert set(families["pod_info"]) == {("ml", "train-0", "uid", "", "")}


def test_the_age_of_a_map_is_told_and_never_made_up() -> None:
    maps = (IndexHealth("pods", True, 1000.0, 3), IndexHealth("slurm", False, None, 0, "not read yet"))
    families = told(None, health=Health(maps=maps))
    assert families["map_success"] == {("pods",): 1, ("slurm",): 0}
    assert families["map_last_success_timestamp_seconds"] == {("pods",): 1000.0}
    assert families["map_entries"] == {("pods",): 3, ("slurm",): 0}

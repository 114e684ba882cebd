from __future__ import annotations

from itertools import pairwise

import pytest

from gpuledger.model import quantities as q
from gpuledger.model.devices import INTEL, Gpu, Instance
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.simulator.scenario_parser import load_scenario
from unit.sources.simulator.support import ALL, UNIX, Node, reading

NAMES = ["k8s-node", "workstation", "mixed-lab"]


@pytest.fixture(scope="module", params=NAMES)
def ten_minutes(request: pytest.FixtureRequest) -> list[Snapshot]:
    node = Node(load_scenario(request.param))
    return [node.at(second * 2.5) for second in range(241)]


def test_no_device_lists_a_pid_twice(ten_minutes: list[Snapshot]) -> None:
    for snapshot in ten_minutes:
        keys = [(process.device, process.pid) for process in snapshot.processes]
        assert len(keys) == len(set(keys))


def test_memory_adds_up(ten_minutes: list[Snapshot]) -> None:
    for snapshot in ten_minutes:
        for found in snapshot.readings:
            values = found.values
            if q.MEMORY_FREE not in values:
                # Intel's drivers have no size of the memory.
                assert found.device.gpu.vendor == INTEL
                continue
            # AMD's count reserved memory as used.
            parts = (values.get(key, 0) for key in (q.MEMORY_USED, q.MEMORY_FREE, q.MEMORY_RESERVED))
            assert sum(parts) == values[q.MEMORY_TOTAL]
            assert values[q.MEMORY_FREE] >= 0
            used = sum(process.memory or 0 for process in found.processes or ())
            assert used <= values[q.MEMORY_USED]


def test_every_value_is_possible_and_supported(ten_minutes: list[Snapshot]) -> None:
    for snapshot in ten_minutes:
        for found in snapshot.readings:
            assert all(quantity.is_possible(value) for quantity, value in found.values.items())
            reported = {quantity.key for quantity in found.values}
            assert reported <= {key for key, has in found.supported.items() if has}


def test_processes_of_a_gpu_with_mig_are_only_on_its_instances(ten_minutes: list[Snapshot]) -> None:
    for snapshot in ten_minutes:
        for found in snapshot.readings:
            if found.mig_enabled:
                assert found.processes == ()
                assert q.UTILIZATION not in found.values
                assert found.supported["utilization"] is False
            if found.mig_enabled or isinstance(found.device, Instance):
                assert found.samples is None
            assert all(process.device == found.device for process in found.processes or ())


def test_samples_of_one_period_add_up_to_at_most_the_engine(ten_minutes: list[Snapshot]) -> None:
    for snapshot in ten_minutes:
        for found in snapshot.readings:
            sums: dict[int, float] = {}
            for sample in found.samples or ():
                assert max(sample.sm, sample.encoder, sample.decoder) > 0
                sums[sample.at] = sums.get(sample.at, 0) + sample.sm
            # The share of each of a few processes is rounded to an integer percentage.
            assert all(total <= 1.03 for total in sums.values())


def test_each_gpu_is_listed_before_its_instances(ten_minutes: list[Snapshot]) -> None:
    for snapshot in ten_minutes:
        order = [(found.device.gpu.index, isinstance(found.device, Instance)) for found in snapshot.readings]
        assert order == sorted(order)


def test_energy_never_decreases(ten_minutes: list[Snapshot]) -> None:
    for before, after in pairwise(ten_minutes):
        for old, new in zip(before.readings, after.readings, strict=True):
            if q.ENERGY in old.values:
                assert isinstance(new.values[q.ENERGY], int)
                assert new.values[q.ENERGY] >= old.values[q.ENERGY]


@pytest.mark.parametrize("name", NAMES)
def test_only_wanted_quantities_are_read(name: str) -> None:
    for found in Node(load_scenario(name)).at(5, frozenset({q.POWER, q.MEMORY_USED})).readings:
        expected = {q.POWER, q.MEMORY_USED} if isinstance(found.device, Gpu) else {q.MEMORY_USED}
        assert set(found.values) == expected
        assert set(found.supported) == {quantity.key for quantity in expected}


def test_the_kubernetes_node_has_every_known_quantity() -> None:
    snapshot = Node(load_scenario("k8s-node")).at(30)
    reported = {quantity for found in snapshot.readings for quantity in found.values}
    # An H100 has no fan, and remaps rows where older GPUs retire pages.
    pages = {q.RETIRED_PAGES_CORRECTABLE, q.RETIRED_PAGES_UNCORRECTABLE, q.RETIRED_PAGES_PENDING}
    assert reported == ALL - pages - {q.FAN_SPEED}


def test_the_kubernetes_node_shows_its_documented_features() -> None:
    node = Node(load_scenario("k8s-node"))
    snapshots = [node.at(second) for second in range(0, 600, 5)]
    last = snapshots[-1]
    pods = {process.host.workload.pod for process in last.processes if process.host.workload}
    kinds = {process.host.workload.kind for process in last.processes if process.host.workload}
    sharing = {process.host.workload.pod for process in reading(last, 2).processes or ()}
    assert {"llama-pretrain-worker-0", "chat-small-0", "assistant-0"} <= pods
    assert kinds == {"pod", "unit", "user"}
    assert len(sharing - {""}) >= 3
    assert "M+C" in {process.type_text for process in reading(last, 3).processes or ()}
    used = {allocation.device for allocation in last.allocations}
    assert reading(last, 4).device in used
    assert reading(last, 4).processes == ()
    assert reading(last, 5).device not in used
    assert reading(last, 5).processes == ()
    jobs = {p.host.workload.pod for s in snapshots for p in s.processes if p.host.workload.namespace == "ci"}
    assert len(jobs - {""}) >= 9
    assert [event.xid for snapshot in snapshots for event in snapshot.xids] == [31]
    assert len({p.host.workload.namespace for s in snapshots for p in s.processes}) >= 8


def test_the_kubernetes_node_has_nvlink_traffic_between_the_gpus_of_one_pod() -> None:
    node = Node(load_scenario("k8s-node"))
    before, after = node.at(60), node.at(120)
    moved = [
        found.values[q.NVLINK_TX] - then.values[q.NVLINK_TX]
        for then, found in zip(before.readings, after.readings, strict=True)
        if isinstance(found.device, Gpu)
    ]
    assert [amount > 1e9 for amount in moved] == [True, True, *[False] * 6]
    assert all(amount == 0 for amount in moved[2:])


def test_the_kubernetes_node_reports_which_gpus_have_mig() -> None:
    gpus = [
        found for found in Node(load_scenario("k8s-node")).at(1).readings if isinstance(found.device, Gpu)
    ]
    assert [found.values[q.MIG_MODE] for found in gpus] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert [found.values[q.MIG_MAX_SLICES] for found in gpus] == [0, 0, 0, 0, 0, 0, 7, 7]


def test_a_row_remap_is_pending_after_an_uncorrectable_error() -> None:
    node = Node("{gpus: 1, faults: [{kind: xid, gpu: 0, xid: 94, at: 5}]}")
    pending = [reading(node.at(second)).values[q.ROW_REMAP_PENDING] for second in (1, 6)]
    assert pending == [0, 1]


def test_the_faulty_node_has_four_faulty_cards() -> None:
    node = Node(load_scenario("faulty-node"))
    xids = [event for at in (60, 180) for event in node.at(at).xids]
    snapshot = node.at(180)
    assert [found.down_reason for found in snapshot.readings] == [
        *("", "GPU_IS_LOST", "", "", "RESET_REQUIRED", "", "", "")
    ]
    hot = [found.get(q.CLOCK_EVENT_REASONS) in (0x48, 0x49) for found in snapshot.readings]
    assert hot == [False, False, False, True, False, False, False, False]
    assert [(event.gpu.index, event.xid) for event in xids] == [(1, 79), (4, 95), (5, 13)]


@pytest.mark.parametrize(
    ("architecture", "has", "lacks"),
    [
        (
            "Volta",
            {q.RETIRED_PAGES_PENDING},
            {q.ROW_REMAP_PENDING, q.SM_ACTIVITY, q.MIG_MODE, q.POWER_INSTANT},
        ),
        ("Ampere", {q.ROW_REMAP_PENDING, q.POWER_INSTANT}, {q.RETIRED_PAGES_PENDING, q.SM_ACTIVITY}),
        ("Hopper", {q.ROW_REMAP_PENDING, q.SM_ACTIVITY, q.MIG_MODE}, {q.RETIRED_PAGES_PENDING}),
    ],
)
def test_a_gpu_reports_the_quantities_of_its_architecture(
    architecture: str, has: set[Quantity], lacks: set[Quantity]
) -> None:
    found = reading(Node(f"gpus: [{{architecture: {architecture}}}]").at(5))
    assert has <= set(found.values) and not lacks & set(found.values)
    assert all(found.supported[quantity.key] is False for quantity in lacks)


def test_the_workstation_shows_its_documented_features() -> None:
    node = Node(load_scenario("workstation"))
    snapshots = [node.at(second) for second in range(0, 600, 5)]
    last = snapshots[-1]
    assert {"G", "C"} == {process.type_text for process in last.processes}
    assert {process.host.workload.kind for process in last.processes} == {"user", "container", "unit"}
    assert q.MEMORY_TEMPERATURE not in reading(last, 0).values
    assert q.MEMORY_TEMPERATURE in reading(last, 1).values
    assert not {q.NVLINK_TX, q.ROW_REMAP_PENDING, q.SM_ACTIVITY, q.MIG_MODE} & set(reading(last, 0).values)
    assert max(reading(s, 0).values[q.ENCODER_UTILIZATION] for s in snapshots) > 0.5


def test_info_states_that_the_source_is_simulated() -> None:
    info = Node(load_scenario("k8s-node")).source.info
    assert (info.name, info.simulated, info.detail) == ("simulator", True, "k8s-node")
    assert info.driver_version and info.cuda_version and info.library_version


def test_every_part_of_the_tick_is_reported() -> None:
    snapshot = Node(load_scenario("k8s-node")).at(1)
    names = [part.name for part in snapshot.collected]
    assert sorted(names) == ["devices", "events", "processes", "readings", "utilization"]
    assert all(part.success for part in snapshot.collected)
    assert snapshot.unix == UNIX + 1

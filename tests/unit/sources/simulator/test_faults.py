from __future__ import annotations

from threading import Thread

import pytest

from gpuledger.model import quantities as q
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Snapshot
from running import PATIENCE
from unit.sources.simulator.support import ALL, UNIX, Node, reading

BUSY = "{processes: [{name: a, load: 0.5}]}"


def node_with(fault: str, gpus: str = f"[{BUSY}, {BUSY}]") -> Node:
    return Node(f"{{gpus: {gpus}, faults: [{{at: 10, {fault}}}]}}")


def test_a_lost_gpu_does_not_affect_the_others() -> None:
    node = node_with("kind: gpu_lost, gpu: 0, for: 5")
    before = node.at(9)
    snapshot = node.at(12)
    lost, other = reading(snapshot, 0), reading(snapshot, 1)
    assert (lost.up, lost.values, lost.processes, lost.samples) == (False, {}, None, None)
    assert other.up and other.values and other.processes
    assert [(f.reason, f.device) for f in snapshot.failures] == [("GPU_IS_LOST", lost.device)]
    back = reading(node.at(15), 0)
    assert back.up
    assert back.values[q.ENERGY] > reading(before, 0).values[q.ENERGY]


def test_the_instances_of_a_lost_gpu_are_lost() -> None:
    gpus = "[{instances: [{gi: 1, profile: 1g.10gb, sm_count: 16, memory: 10GB}]}]"
    found = node_with("kind: gpu_lost", gpus).at(12).readings
    assert [(r.up, r.processes) for r in found] == [(False, None), (False, None)]


def test_a_gpu_that_requires_a_reset_is_down_and_says_how_to_recover() -> None:
    node = node_with("kind: reset_required, gpu: 0, for: 5")
    assert reading(node.at(9), 0).values[q.RECOVERY_ACTION] == 0
    snapshot = node.at(12)
    down = reading(snapshot, 0)
    assert (down.up, down.down_reason, down.values) == (False, "RESET_REQUIRED", {q.RECOVERY_ACTION: 1})
    assert down.processes is None
    assert [(f.reason, f.device) for f in snapshot.failures] == [("RESET_REQUIRED", down.device)]
    assert (reading(node.at(15), 0).up, reading(snapshot, 1).up) == (True, True)


@pytest.mark.parametrize(
    ("by", "bits", "temperature", "counter"),
    [
        ("hw_thermal", 0x48, 87, q.THERMAL_VIOLATION),
        ("sw_thermal", 0x20, 87, q.THERMAL_VIOLATION),
        ("sw_power_cap", 0x4, None, q.POWER_VIOLATION),
        ("power_brake", 0x88, None, None),
        ("hw_slowdown", 0x8, None, None),
    ],
)
def test_a_throttled_gpu_has_lower_clocks_and_the_reason(
    by: str, bits: int, temperature: int | None, counter: Quantity | None
) -> None:
    node = node_with(f"kind: throttle, gpu: 0, by: {by}, for: 5, every: 20")
    healthy = node.at(9)
    snapshot = node.at(33)
    before, slow, other = reading(healthy, 0), reading(snapshot, 0), reading(snapshot, 1)
    assert (before.values[q.CLOCK_EVENT_REASONS], slow.values[q.CLOCK_EVENT_REASONS]) == (0, bits)
    assert slow.values[q.SM_CLOCK] <= 0.85 * before.values[q.SM_CLOCK]
    assert temperature is None or slow.values[q.TEMPERATURE] == temperature
    for kind in (q.THERMAL_VIOLATION, q.POWER_VIOLATION):
        # The second time began 3 s ago, the first one lasted 5 s.
        more = slow.values[kind] - other.values[kind]
        assert more == (8_000_000_000 if kind is counter else 0)
    assert other.values[q.CLOCK_EVENT_REASONS] == 0


def test_an_idle_gpu_can_be_throttled() -> None:
    node = node_with("kind: throttle, by: power_brake", "1")
    assert reading(node.at(12)).values[q.CLOCK_EVENT_REASONS] == 0x89


def test_a_driver_reload_restarts_the_time_of_throttling() -> None:
    faults = "{kind: throttle, gpu: 0, at: 10, for: 8}, {kind: counter_reset, gpu: 0, at: 13}"
    node = Node(f"{{gpus: [{BUSY}], faults: [{faults}]}}")
    assert [reading(node.at(at)).values[q.THERMAL_VIOLATION] for at in (12, 15, 40)] == [2e9, 2e9, 5e9]


@pytest.mark.parametrize(
    ("remap", "expected"), [("pending", (1, 0)), ("failed", (0, 1))], ids=["pending", "failed"]
)
def test_a_row_remap_is_pending_or_failed(remap: str, expected: tuple[int, int]) -> None:
    snapshot = node_with(f"kind: row_remap, gpu: 0, remap: {remap}, xid: 63").at(12)
    both = [
        (found.values[q.ROW_REMAP_PENDING], found.values[q.ROW_REMAP_FAILURE]) for found in snapshot.readings
    ]
    assert both == [expected, (0, 0)]
    assert [(event.xid, event.gpu.index, event.at - UNIX) for event in snapshot.xids] == [(63, 0, 10)]


@pytest.mark.parametrize(
    ("fault", "width", "generation"),
    [("width: 4", 4, 5), ("generation: 1", 16, 1), ("width: 8, generation: 3", 8, 3)],
)
def test_a_pcie_link_is_below_what_card_and_slot_can_do(fault: str, width: int, generation: int) -> None:
    node = node_with(f"kind: pcie_link, gpu: 0, {fault}, for: 5")
    link = (q.PCIE_WIDTH, q.PCIE_GENERATION, q.PCIE_WIDTH_MAX, q.PCIE_GENERATION_MAX, q.PCIE_LINK_BUSY)
    values = [[found.values[key] for key in link] for found in node.at(12).readings]
    assert values == [[width, generation, 16, 5, 1], [16, 5, 16, 5, 1]]
    assert reading(node.at(15)).values[q.PCIE_WIDTH] == 16


def test_an_idle_gpu_with_a_low_performance_state_lowers_its_pcie_generation() -> None:
    values = reading(Node("gpus: [{idle_performance_state: 8, pcie_generation: 4}]").at(1)).values
    link = (q.PCIE_GENERATION, q.PCIE_GENERATION_MAX, q.PCIE_WIDTH, q.PCIE_LINK_BUSY)
    assert [values[key] for key in link] == [1, 4, 16, 0]


def test_some_nvlinks_are_down() -> None:
    snapshot = node_with("kind: nvlink_down, gpu: 0, links: 2").at(12)
    links = [(found.values[q.NVLINKS_UP], found.values[q.NVLINKS_DOWN]) for found in snapshot.readings]
    assert links == [(0xFFFF, 0x30000), (0x3FFFF, 0)]


@pytest.mark.parametrize("kind", ["gpu_lost", "reset_required", "nvlink_down"])
def test_a_fault_reports_its_xid_when_it_starts(kind: str) -> None:
    node = node_with(f"kind: {kind}, gpu: 1, xid: 79, for: 5, every: 20")
    events = [event for at in (9, 10, 12, 55) for event in node.at(at).xids]
    assert [(event.gpu.index, event.at - UNIX) for event in events] == [(1, 10), (1, 30), (1, 50)]


def test_a_failed_process_list_is_not_an_empty_list() -> None:
    snapshot = node_with("kind: process_list_fails, gpu: 1, for: 5").at(12)
    assert reading(snapshot, 1).processes is None
    assert reading(snapshot, 1).values
    assert reading(snapshot, 1).samples
    assert reading(snapshot, 0).processes
    assert [(f.part, f.device) for f in snapshot.failures] == [("processes", reading(snapshot, 1).device)]
    (part,) = [part for part in snapshot.collected if part.name == "processes"]
    assert not part.success


def test_the_process_list_of_a_single_instance_can_fail() -> None:
    instance = "{{gi: {}, profile: 1g.10gb, sm_count: 16, memory: 10GB}}"
    gpus = f"[{{instances: [{instance.format(1)}, {instance.format(2)}]}}]"
    snapshot = node_with("kind: process_list_fails, gpu: 0, gi: 2", gpus).at(12)
    assert reading(snapshot, instance="1_0").processes == ()
    assert reading(snapshot, instance="2_0").processes is None


def test_failed_samples_are_none_not_zero() -> None:
    node = node_with("kind: utilization_fails, gpu: 0, for: 5")
    snapshot = node.at(12)
    assert reading(snapshot, 0).samples is None
    assert (reading(snapshot, 0).processes or ())[0].usage.sm is None
    assert reading(snapshot, 1).samples
    assert reading(node.at(16), 0).samples


def test_an_xid_is_returned_once_with_its_time() -> None:
    node = node_with("kind: xid, gpu: 1, xid: 79, every: 20")
    events = [event for at in (5, 10, 11, 55) for event in node.at(at).xids]
    assert [(event.xid, event.gpu.index, event.at - UNIX) for event in events] == [
        (79, 1, 10),
        (79, 1, 30),
        (79, 1, 50),
    ]
    assert (events[0].gi, events[0].ci) == (None, None)


def test_an_uncorrectable_ecc_error_is_counted() -> None:
    node = node_with("kind: xid, gpu: 0, xid: 48")
    assert [reading(node.at(at), 0).values[q.ECC_UNCORRECTED] for at in (9, 11)] == [0, 1]
    assert reading(node.at(12), 1).values[q.ECC_UNCORRECTED] == 0


def test_a_sentinel_is_dropped_and_counted_as_invalid() -> None:
    node = node_with("kind: bad_value, gpu: 0, quantity: power, for: 5")
    snapshot = node.at(12)
    assert q.POWER not in reading(snapshot, 0).values
    assert reading(snapshot, 0).supported["power"] is True
    assert q.POWER in reading(snapshot, 1).values
    assert snapshot.invalid == 1
    assert node.at(12.5, frozenset({q.ENERGY})).invalid == 0
    assert node.at(15).invalid == 0


@pytest.mark.parametrize(("value", "expected", "invalid"), [("9005000", 9_005_000, 0), ("-1", None, 1)])
def test_a_wrong_but_possible_value_is_returned(value: str, expected: float | None, invalid: int) -> None:
    snapshot = node_with(f"kind: bad_value, gpu: 0, quantity: energy, value: {value}").at(12)
    assert (reading(snapshot, 0).get(q.ENERGY), snapshot.invalid) == (expected, invalid)


def test_a_failed_source_raises_and_recovers() -> None:
    node = node_with("kind: source_fails, reason: LIBRARY_NOT_FOUND, for: 5, every: 20")
    node.at(9)
    for at in (10, 14.9, 31):
        with pytest.raises(SourceUnavailable) as caught:
            node.at(at)
        assert caught.value.reason == "LIBRARY_NOT_FOUND"
    assert node.at(35).readings


def test_a_hang_blocks_the_read_until_it_ends() -> None:
    node = node_with("kind: hang, for: 5")
    node.clock.now = 11
    snapshots: list[Snapshot] = []
    reader = Thread(target=lambda: snapshots.append(node.source.read(ALL)))
    reader.start()
    reader.join(0.15)
    assert reader.is_alive()
    node.clock.now = 15
    reader.join(PATIENCE)
    assert [snapshot.elapsed for snapshot in snapshots] == [15]


def test_close_interrupts_a_blocked_read() -> None:
    node = node_with("kind: hang, for: 5")
    node.clock.now = 11
    raised: list[SourceUnavailable] = []

    def read() -> None:
        try:
            node.source.read(ALL)
        except SourceUnavailable as error:
            raised.append(error)

    reader = Thread(target=read)
    reader.start()
    node.source.close()
    node.source.close()
    reader.join(PATIENCE)
    assert [error.reason for error in raised] == ["closed"]

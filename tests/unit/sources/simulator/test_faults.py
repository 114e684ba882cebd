from __future__ import annotations

from threading import Thread

import pytest

from gpuledger.model import quantities as q
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.snapshot import Snapshot
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
    reader.join(10)
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
    reader.join(10)
    assert [error.reason for error in raised] == ["closed"]

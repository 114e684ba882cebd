"""Gpus that appear and disappear while the driver runs: compared with the driver's count and the PCI bus."""

import pytest

from gpuledger.host.pci import PciBus
from gpuledger.ledger.energy.energy_ledger import EnergyLedger
from gpuledger.ledger.energy.floor import Floors
from gpuledger.model.quantities import POWER
from nvml.library import NvmlGpu, NvmlProcess
from nvml.machine import Machine, pids, reading_of
from pci_tree import PciTree
from time_helpers import Books

UNKNOWN, LOST = 999, 15
COUNT = "nvmlDeviceGetCount_v2"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    made.new_source(slow_interval=10.0)
    made.state.gpus = [NvmlGpu(NvmlProcess(10 + n), uuid=f"GPU-{n}", bus=n + 1) for n in range(2)]
    return made


def shown(snapshot):
    return [(reading.device.uuid, reading.device.index, reading.up) for reading in snapshot.readings]


def test_a_gpu_that_appears_later_is_found(machine):
    machine.tick()
    machine.gpus.append(NvmlGpu(NvmlProcess(12), uuid="GPU-2"))
    assert len(machine.tick().readings) == 2
    snapshot = machine.tick(seconds=10)
    assert shown(snapshot) == [("GPU-0", 0, True), ("GPU-1", 1, True), ("GPU-2", 2, True)]
    assert pids(reading_of(snapshot, 2)) == [12] and reading_of(snapshot, 2).get(POWER) == 100.0


def test_the_count_is_queried_only_at_the_slow_interval(machine):
    for _ in range(21):
        machine.tick()
    assert machine.count(COUNT) == 1 + 2
    assert machine.count("nvmlDeviceGetUUID") == 2


def test_static_facts_of_remaining_gpus_are_not_read_again(machine):
    machine.tick()
    machine.gpus.append(NvmlGpu(uuid="GPU-2"))
    machine.tick(seconds=10)
    assert machine.count("nvmlDeviceGetName") == 3


def test_a_gpu_that_the_driver_no_longer_counts_is_down_and_not_forgotten(machine):
    machine.tick()
    fallen = machine.gpus.pop()
    for seconds in (10, 1, 10):
        snapshot = machine.tick(seconds=seconds)
        assert shown(snapshot) == [("GPU-0", 0, True), ("GPU-1", 1, False)]
        assert reading_of(snapshot, 1).processes is None and snapshot.devices_failed
        assert [(each.part, each.device.uuid) for each in snapshot.failures] == [("devices", "GPU-1")]
    machine.gpus.append(fallen)
    snapshot = machine.tick()
    assert shown(snapshot) == [("GPU-0", 0, True), ("GPU-1", 1, True)]
    assert pids(reading_of(snapshot, 1)) == [11] and not snapshot.devices_failed and not snapshot.failures


def test_gpus_keep_their_identity_when_they_are_renumbered(machine):
    machine.tick()
    machine.gpus.pop(0)
    snapshot = machine.tick(seconds=10)
    assert shown(snapshot) == [("GPU-1", 0, True), ("GPU-0", 0, False)]
    assert pids(reading_of(snapshot)) == [11]


def test_a_gpu_that_the_driver_no_longer_counts_costs_no_other_its_time_and_energy(machine):
    energy, time = EnergyLedger(Floors()), Books()
    posted = []
    for second in range(200):
        if second == 20:
            machine.gpus.pop()
        snapshot = machine.tick()
        time.post(snapshot)
        posted += energy.post(snapshot)
    assert snapshot.devices_failed
    assert time.seconds("residence", "GPU-0") == {"unknown": 199_000_000}
    assert time.seconds("residence", "GPU-1")["down"] > 0
    booked = sum(sum(one.booked.processes.values()) for one in posted if one.gpu.uuid == "GPU-0")
    assert booked == sum(one.millijoules for one in posted if one.gpu.uuid == "GPU-0") > 0


def test_a_gpu_missing_after_a_restart_of_the_driver_is_down_and_not_forgotten(machine):
    machine.tick()
    for gpu in machine.gpus:
        gpu.errors["*"] = LOST
    machine.tick()
    machine.gpus.pop().errors.clear()
    machine.gpus[0].errors.clear()
    snapshot = machine.tick(seconds=60)
    assert shown(snapshot) == [("GPU-0", 0, True), ("GPU-1", 1, False)] and snapshot.devices_failed


def test_a_gpu_selected_by_index_remains_selected_when_it_is_renumbered(machine):
    machine.new_source(slow_interval=10.0, devices=("1",))
    assert shown(machine.tick()) == [("GPU-1", 1, True)]
    machine.gpus.pop(0)
    assert shown(machine.tick(seconds=10)) == [("GPU-1", 0, True)]


def test_a_failed_count_leaves_the_list_incomplete_until_it_succeeds(machine):
    machine.tick()
    machine.state.errors[COUNT] = UNKNOWN
    snapshot = machine.tick(seconds=10)
    assert snapshot.devices_failed and [failure.part for failure in snapshot.failures] == ["devices"]
    assert [reading.up for reading in snapshot.readings] == [True, True]
    machine.state.errors.clear()
    snapshot = machine.tick()
    assert not snapshot.devices_failed and not snapshot.failures


@pytest.fixture
def bus(tmp_path):
    tree = PciTree(tmp_path)
    for n in range(2):
        tree.add(f"0000:0{n + 1}:00.0")
        tree.node(f"nvidia{n}")
    return tree


def with_bus(machine, bus, **settings):
    machine.new_source(PciBus(bus.sysfs, bus.dev), slow_interval=10.0, **settings)


def test_a_gpu_on_the_bus_that_the_driver_does_not_count_is_a_failure(machine, bus):
    with_bus(machine, bus)
    machine.gpus.pop()
    for _ in range(2):
        snapshot = machine.tick()
        (failure,) = snapshot.failures
        assert (failure.part, failure.reason, failure.device) == ("devices", "MISSING", None)
        assert "00000000:02:00.0" in failure.detail and "dmesg" in failure.detail
        assert snapshot.devices_failed and shown(snapshot) == [("GPU-0", 0, True)]


@pytest.mark.parametrize("driver", ["", "vfio-pci", "nouveau"])
def test_a_lost_gpu_is_a_failure_beside_one_that_the_driver_does_not_have(machine, bus, driver, caplog):
    bus.add("0000:03:00.0", driver=driver)
    with_bus(machine, bus)
    machine.gpus.pop()
    (failure,) = [failure for _ in range(2) for failure in machine.tick().failures][1:]
    assert failure.detail.startswith("00000000:02:00.0")
    warned = [record.message for record in caplog.records if "kernel driver" in record.message]
    assert warned == (
        [] if driver else ["00000000:03:00.0 has no kernel driver and is not read: run `gpuledger doctor`"]
    )


def test_an_old_device_node_does_not_make_a_gpu_without_a_driver_lost(machine, bus):
    bus.add("0000:03:00.0", driver="")
    bus.node("nvidia2")
    with_bus(machine, bus)
    snapshot = machine.tick()
    assert not snapshot.failures and not snapshot.devices_failed


def test_a_bus_that_matches_the_driver_is_not_a_failure(machine, bus):
    with_bus(machine, bus)
    snapshot = machine.tick()
    assert not snapshot.failures and not snapshot.devices_failed


def test_the_bus_is_read_only_at_the_slow_interval(machine, bus):
    with_bus(machine, bus)
    machine.tick()
    bus.add("0000:03:00.0")
    bus.node("nvidia2")
    assert not machine.tick().failures
    assert [failure.reason for failure in machine.tick(seconds=10).failures] == ["MISSING"]


def test_only_selected_gpus_are_expected(machine, bus):
    with_bus(machine, bus, devices=("0",))
    assert not machine.tick().failures


def test_gpus_without_access_are_not_expected(machine, bus):
    machine.gpus.pop()
    bus.remove_node("nvidia1")
    with_bus(machine, bus)
    assert not machine.tick().failures


def test_an_unreachable_gpu_is_not_also_missing(machine, bus):
    with_bus(machine, bus)
    machine.gpus[1].errors["*"] = LOST
    assert [failure.reason for failure in machine.tick().failures] == ["GPU_IS_LOST"]


def test_a_gpu_that_is_down_is_not_also_missing(machine, bus):
    with_bus(machine, bus)
    machine.tick()
    machine.gpus.pop()
    assert [failure.reason for failure in machine.tick(seconds=10).failures] == ["NOT_FOUND"]

"""Which Devices there are: static facts once, losses and returns, MIG cuts followed."""

import pytest

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import (
    MEMORY_FREE,
    MEMORY_RESERVED,
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    UTILIZATION,
    Level,
)
from nvml.library import NvmlGpu, NvmlInstance, NvmlProcess
from nvml.machine import ALL, Machine, pids, told, values

LOST, RESET, UNKNOWN, NOT_SUPPORTED, NO_PERMISSION, TIMEOUT = 15, 16, 999, 3, 4, 10


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_a_gpu_tells_its_static_facts(machine):
    gpu = told(machine.tick(), 1).device
    assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000000001"
    assert (gpu.index, gpu.minor, gpu.pci_bus_id) == (1, 1, "00000000:02:00.0")
    assert (gpu.name, gpu.serial, gpu.vbios) == ("NVIDIA H100 80GB HBM3", "1650000000001", "96.00.61.00.01")
    assert (gpu.architecture, gpu.compute_capability, gpu.sm_count) == ("Hopper", "9.0", 132)
    assert not gpu.unified_memory


def test_static_facts_are_read_once(machine):
    for _ in range(5):
        machine.tick()
    for call in ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetSerial"):
        assert machine.count(call) == 2, call


def test_what_a_card_does_not_tell_of_itself_is_absent(machine):
    machine.gpus[0].errors = {
        "nvmlDeviceGetSerial": NOT_SUPPORTED,
        "nvmlDeviceGetNumGpuCores": NOT_SUPPORTED,
        "nvmlDeviceGetMinorNumber": UNKNOWN,
    }
    gpu = told(machine.tick()).device
    assert (gpu.serial, gpu.sm_count, gpu.minor) == (None, None, None)


@pytest.mark.parametrize(
    ("call", "fact", "value"),
    [
        ("nvmlDeviceGetName", "name", "NVIDIA H100 80GB HBM3"),
        ("nvmlDeviceGetPciInfo_v3", "pci_bus_id", "00000000:01:00.0"),
        ("nvmlDeviceGetSerial", "serial", "1650000000000"),
        ("nvmlDeviceGetVbiosVersion", "vbios", "96.00.61.00.01"),
        ("nvmlDeviceGetMinorNumber", "minor", 0),
        ("nvmlDeviceGetArchitecture", "architecture", "Hopper"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability", "9.0"),
        ("nvmlDeviceGetNumGpuCores", "sm_count", 132),
    ],
)
def test_a_static_fact_that_failed_once_is_asked_again_alone(machine, call, fact, value):
    machine.gpus[0].errors[call] = TIMEOUT
    snapshot = machine.tick()
    assert getattr(told(snapshot).device, fact) in (None, "")
    assert getattr(told(snapshot, 1).device, fact) not in (None, "")
    assert [(failure.part, failure.device.index) for failure in snapshot.failures] == [("devices", 0)]
    assert call in snapshot.failures[0].detail and not snapshot.devices_failed
    machine.gpus[0].errors.clear()
    others = machine.count("nvmlDeviceGetUUID")
    snapshot = machine.tick()
    assert getattr(told(snapshot).device, fact) == value and not snapshot.failures
    asked = machine.count(call)
    machine.tick()
    assert (machine.count(call), machine.count("nvmlDeviceGetUUID")) == (asked, others)


def test_a_card_whose_memory_was_not_told_at_start_bounds_its_processes_later(machine):
    machine.gpus[0] = NvmlGpu(NvmlProcess(7, memory=90 << 40))
    machine.gpus[0].errors["nvmlDeviceGetMemoryInfo"] = TIMEOUT
    machine.tick()
    machine.gpus[0].errors.clear()
    snapshot = machine.tick()
    assert told(snapshot).processes[0].memory is None and snapshot.invalid == 1


def test_a_gpu_chosen_by_a_bus_id_that_it_did_not_tell_at_start_is_found(machine):
    machine.gpus[1].errors["nvmlDeviceGetPciInfo_v3"] = TIMEOUT
    machine.new_source(devices=("00000000:01:00.0", "00000000:02:00.0"))
    snapshot = machine.tick()
    assert [reading.device.index for reading in snapshot.readings] == [0] and snapshot.devices_failed
    machine.gpus[1].errors.clear()
    snapshot = machine.tick()
    assert [reading.device.index for reading in snapshot.readings] == [0, 1] and not snapshot.devices_failed


def test_the_driver_tells_its_versions(machine):
    assert machine.source.info.name == "nvml"
    source = machine.tick().source
    assert (source.driver_version, source.library_version, source.cuda_version) == (
        "570.86.15",
        "12.570.86.15",
        "12.8",
    )


@pytest.mark.parametrize(
    "choice",
    [
        "1",
        "GPU-00000000-0000-0000-0000-000000000001",
        "gpu-00000000-0000-0000-0000-000000000001",
        "00000000:02:00.0",
    ],
)
def test_only_chosen_gpus_are_read(machine, choice):
    machine.new_source(devices=(choice,))
    assert [reading.device.index for reading in machine.tick().readings] == [1]
    assert machine.count("nvmlDeviceGetPowerUsage") == 1


def test_a_choice_that_is_nowhere_names_what_is_there(machine):
    machine.new_source(devices=("7",))
    with pytest.raises(SourceUnavailable, match=r"none of 7 is here; there are GPU-0.*GPU-0") as caught:
        machine.tick()
    assert caught.value.reason == "NO_DEVICES"


def test_a_machine_without_gpus_is_unavailable(machine):
    machine.state.gpus = []
    with pytest.raises(SourceUnavailable, match="no GPU is visible"):
        machine.tick()


@pytest.mark.parametrize("code", [LOST, RESET])
def test_a_lost_gpu_loses_only_itself(machine, code):
    machine.gpus[0].processes = [NvmlProcess(11)]
    machine.gpus[1].processes = [NvmlProcess(22)]
    machine.tick()
    machine.gpus[0].errors["*"] = code
    snapshot = machine.tick()
    lost, healthy = snapshot.readings
    assert (lost.up, lost.processes, lost.samples, dict(lost.values)) == (False, None, None, {})
    assert healthy.up and pids(healthy) == [22] and healthy.get(POWER) == 100.0
    assert {failure.device for failure in snapshot.failures} == {lost.device}


def test_a_lost_gpu_is_tried_again_with_one_call_a_tick(machine):
    machine.tick()
    machine.gpus[0].errors["*"] = LOST
    machine.tick()
    before = machine.source.calls
    machine.tick()
    beside_a_lost_one = machine.source.calls - before
    machine.new_source(devices=("1",))
    machine.tick()
    before = machine.source.calls
    machine.tick()
    assert beside_a_lost_one == machine.source.calls - before + 1


def test_a_lost_gpu_comes_back_by_itself(machine):
    machine.tick()
    machine.gpus[0].errors["*"] = LOST
    assert not told(machine.tick()).up
    machine.gpus[0].errors.clear()
    machine.gpus[0].processes = [NvmlProcess(33)]
    back = told(machine.tick())
    assert back.up and back.get(POWER) == 100.0 and pids(back) == [33]


def test_a_gpu_that_answers_nothing_but_errors_is_down(machine):
    machine.tick()
    machine.gpus[0].errors["*"] = UNKNOWN
    first, second = machine.tick().readings
    assert not first.up and first.processes is None
    assert second.up


def test_a_gpu_without_a_handle_at_start_leaves_the_list_incomplete(machine):
    machine.gpus[0].errors["*"] = LOST
    snapshot = machine.tick()
    assert snapshot.devices_failed
    assert [reading.device.index for reading in snapshot.readings] == [1]
    assert [(failure.part, failure.reason) for failure in snapshot.failures] == [("devices", "GPU_IS_LOST")]
    machine.gpus[0].errors.clear()
    snapshot = machine.tick()
    assert not snapshot.devices_failed
    assert [reading.device.index for reading in snapshot.readings] == [0, 1]


def test_a_lost_gpu_that_was_not_chosen_is_nobodys_concern(machine):
    machine.gpus[0].errors["*"] = LOST
    machine.new_source(devices=("1",))
    snapshot = machine.tick()
    assert not snapshot.devices_failed and not snapshot.failures


@pytest.mark.parametrize("mode", [1, 2], ids=["not supported", "total of zero"])
def test_unified_memory_is_absent_but_processes_keep_theirs(machine, mode):
    machine.gpus[0] = NvmlGpu(NvmlProcess(5, memory=3 << 30), memory=mode)
    reading = told(machine.tick())
    assert reading.device.unified_memory
    assert not {MEMORY_TOTAL, MEMORY_USED, MEMORY_FREE, MEMORY_RESERVED} & set(reading.values)
    assert reading.supported["memory_total"] is False
    assert reading.processes[0].memory == 3 << 30


def cut_in_two(**first):
    gpu = NvmlGpu(mig=1)
    gpu.instances = [
        NvmlInstance(0, gi=1, **first),
        NvmlInstance(2, gi=5, profile="1c.4g.40gb", sms=64, total=39 << 30),
    ]
    return gpu


def test_mig_instances_follow_their_gpu_in_the_drivers_order(machine):
    machine.state.gpus = [cut_in_two(), NvmlGpu()]
    snapshot = machine.tick()
    gpu, first, second, other = (reading.device for reading in snapshot.readings)
    assert (gpu.index, other.index) == (0, 1)
    assert [(each.gi, each.ci, each.index, each.profile, each.sm_count) for each in (first, second)] == [
        (1, 0, 0, "3g.40gb", 60),
        (5, 0, 2, "1c.4g.40gb", 64),
    ]
    assert first.parent is gpu and first.uuid.startswith("MIG-")
    assert [reading.mig_enabled for reading in snapshot.readings] == [True, True, True, False]


def test_memory_is_told_per_instance_and_power_once(machine):
    machine.state.gpus = [cut_in_two(used=7 << 30)]
    gpu, first, second = machine.tick().readings
    assert (values(first)["memory_used"], values(second)["memory_total"]) == (7 << 30, 39 << 30)
    assert gpu.get(POWER) == 100.0
    assert set(values(first)) == {"memory_total", "memory_used", "memory_free", "memory_reserved"}


def test_of_an_instance_only_its_own_quantities_are_asked(machine):
    machine.state.gpus = [cut_in_two()]
    machine.tick()
    own = {quantity.key for quantity in ALL if quantity.level is Level.INSTANCE}
    assert set(told(machine.tick(), 1).supported) == own


def test_activity_of_a_cut_gpu_is_not_supported_not_zero(machine):
    machine.state.gpus = [cut_in_two()]
    gpu = told(machine.tick())
    assert gpu.get(UTILIZATION) is None and gpu.supported["utilization"] is False
    assert gpu.samples is None
    assert machine.count("nvmlDeviceGetProcessesUtilizationInfo") == 0


def test_a_new_cut_is_followed_while_running(machine):
    machine.state.gpus = [NvmlGpu(NvmlProcess(9))]
    assert len(machine.tick().readings) == 1
    machine.state.gpus = [cut_in_two()]
    machine.gpus[0].processes = [NvmlProcess(9, gi=1, ci=0)]
    gpu, first, second = machine.tick().readings
    assert (pids(gpu), pids(first), pids(second)) == ([], [9], [])
    machine.gpus[0].instances = [NvmlInstance(0, gi=0, profile="7g.80gb", sms=132)]
    machine.gpus[0].processes = [NvmlProcess(9, gi=0, ci=0)]
    assert [reading.device.profile for reading in machine.tick().readings[1:]] == ["7g.80gb"]
    machine.state.gpus = [NvmlGpu(NvmlProcess(9))]
    snapshot = machine.tick()
    assert len(snapshot.readings) == 1 and pids(told(snapshot)) == [9]
    assert told(snapshot).get(UTILIZATION) == 0.0
    assert machine.count("nvmlDeviceGetSerial") == 1


def test_an_instance_of_another_size_under_the_same_ids_is_noticed(machine):
    machine.state.gpus = [cut_in_two(profile="3g.40gb", sms=60)]
    machine.tick()
    machine.state.gpus = [cut_in_two(profile="1g.10gb", sms=16)]
    assert (told(machine.tick(), 1).device.profile, told(machine.tick(), 1).device.sm_count) == (
        "1g.10gb",
        16,
    )


def test_static_facts_of_instances_are_read_once(machine):
    machine.state.gpus = [cut_in_two()]
    for _ in range(4):
        machine.tick()
    assert machine.count("nvmlDeviceGetGpuInstanceId") == 2


def test_an_instance_that_stays_is_not_read_again(machine):
    machine.state.gpus = [cut_in_two()]
    first = told(machine.tick(), 1).device
    del machine.gpus[0].instances[1]
    machine.gpus[0].instances.append(NvmlInstance(3, gi=6))
    snapshot = machine.tick()
    assert told(snapshot, 1).device is first and told(snapshot, 2).device.gi == 6
    assert machine.count("nvmlDeviceGetGpuInstanceId") == 3


def test_an_instance_that_does_not_tell_its_ids_is_not_invented(machine):
    machine.state.gpus = [cut_in_two()]
    machine.gpus[0].errors["nvmlDeviceGetGpuInstanceId"] = UNKNOWN
    snapshot = machine.tick()
    assert snapshot.devices_failed and len(snapshot.readings) == 1
    machine.gpus[0].errors.clear()
    assert len(machine.tick().readings) == 3


def test_instances_that_cannot_be_listed_are_kept_and_the_list_is_incomplete(machine):
    machine.state.gpus = [cut_in_two()]
    machine.tick()
    machine.gpus[0].errors["nvmlDeviceGetMigDeviceHandleByIndex"] = UNKNOWN
    snapshot = machine.tick()
    assert snapshot.devices_failed and len(snapshot.readings) == 3


@pytest.mark.parametrize("code", [TIMEOUT, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"]
)
def test_a_cut_that_cannot_be_read_at_start_is_no_idle_gpu(machine, call, code):
    machine.state.gpus = [cut_in_two(), NvmlGpu()]
    machine.gpus[0].processes = [NvmlProcess(9, gi=1, ci=0)]
    machine.gpus[0].errors[call] = code
    for _ in range(2):
        snapshot = machine.tick()
        assert told(snapshot).up and told(snapshot).processes is None and told(snapshot).samples is None
        assert told(snapshot, 1).processes == ()
        assert [(each.part, each.device.index) for each in snapshot.failures] == [("devices", 0)]
        assert snapshot.devices_failed
    machine.gpus[0].errors.clear()
    snapshot = machine.tick()
    assert [pids(reading) for reading in snapshot.readings] == [[], [9], [], []]
    assert not snapshot.failures and not snapshot.devices_failed


def test_a_card_that_was_not_known_to_be_whole_tells_its_processes_once_it_is(machine):
    machine.new_source(process_scan_interval=60.0)
    machine.state.gpus = [NvmlGpu(NvmlProcess(9, sm=30), mig=0)]
    machine.gpus[0].errors["nvmlDeviceGetMigMode"] = TIMEOUT
    assert told(machine.tick()).processes is None
    machine.gpus[0].errors.clear()
    reading = told(machine.tick())
    assert pids(reading) == [9] and reading.processes[0].usage.sm > 0


@pytest.mark.parametrize("code", [NOT_SUPPORTED, 13, 25])
def test_a_card_that_cannot_be_cut_is_asked_once(machine, code):
    machine.state.gpus = [NvmlGpu(NvmlProcess(9))]
    machine.gpus[0].errors["nvmlDeviceGetMigMode"] = code
    for _ in range(3):
        snapshot = machine.tick()
        assert pids(told(snapshot)) == [9] and not snapshot.failures
    assert machine.count("nvmlDeviceGetMigMode") == 1


def test_a_passing_fault_of_a_known_cut_keeps_what_is_known(machine):
    machine.state.gpus = [cut_in_two()]
    machine.gpus[0].processes = [NvmlProcess(9, gi=1, ci=0)]
    machine.tick()
    machine.gpus[0].errors["nvmlDeviceGetMigMode"] = UNKNOWN
    snapshot = machine.tick()
    assert [pids(reading) for reading in snapshot.readings] == [[], [9], []] and snapshot.devices_failed


def test_a_profile_that_failed_once_is_asked_again(machine):
    machine.state.gpus = [cut_in_two()]
    machine.gpus[0].errors["mig.nvmlDeviceGetName"] = TIMEOUT
    snapshot = machine.tick()
    assert told(snapshot, 1).device.profile == "" and len(snapshot.failures) == 2
    machine.gpus[0].errors.clear()
    snapshot = machine.tick()
    assert [reading.device.profile for reading in snapshot.readings[1:]] == ["3g.40gb", "1c.4g.40gb"]
    assert not snapshot.failures


def test_instances_name_their_gpu_as_it_is_known_by_now(machine):
    machine.state.gpus = [cut_in_two()]
    machine.gpus[0].errors["nvmlDeviceGetSerial"] = TIMEOUT
    machine.tick()
    machine.gpus[0].errors.clear()
    assert told(machine.tick(), 1).device.parent.serial == "1650000000000"


def test_a_lost_gpu_takes_its_instances_along(machine):
    machine.state.gpus = [cut_in_two(), NvmlGpu()]
    machine.tick()
    machine.gpus[0].errors["*"] = LOST
    assert [reading.up for reading in machine.tick().readings] == [False, False, False, True]


def test_a_cut_gpu_comes_back_with_its_instances(machine):
    machine.state.gpus = [cut_in_two(), NvmlGpu()]
    machine.gpus[0].processes = [NvmlProcess(9, gi=1, ci=0)]
    machine.tick()
    machine.gpus[0].errors["*"] = LOST
    machine.tick()
    machine.gpus[0].errors.clear()
    snapshot = machine.tick()
    assert [reading.up for reading in snapshot.readings] == [True] * 4
    assert pids(told(snapshot, 1)) == [9]


def test_instances_that_fail_do_not_take_their_gpu_along(machine):
    machine.state.gpus = [cut_in_two()]
    machine.tick()
    machine.gpus[0].errors["mig.nvmlDeviceGetMemoryInfo_v2"] = UNKNOWN
    gpu, first, _ = machine.tick([MEMORY_TOTAL, POWER]).readings
    assert gpu.up and gpu.get(MEMORY_TOTAL) is not None
    assert first.up and first.get(MEMORY_TOTAL) is None and first.processes == ()


def test_an_instance_that_answers_nothing_but_errors_is_down(machine):
    machine.state.gpus = [cut_in_two(), NvmlGpu()]
    machine.tick()
    for call in ("MemoryInfo_v2", "ComputeRunningProcesses_v3"):
        machine.gpus[0].errors[f"mig.nvmlDeviceGet{call}"] = UNKNOWN
    machine.gpus[0].errors["nvmlDeviceGetGraphicsRunningProcesses_v3"] = UNKNOWN
    machine.gpus[0].errors["nvmlGpmMigSampleGet"] = UNKNOWN
    snapshot = machine.tick()
    assert [reading.up for reading in snapshot.readings] == [True, False, False, True]
    assert told(snapshot, 1).processes is None


def test_calls_per_tick_are_bounded(machine):
    machine.state.gpus = [
        NvmlGpu(*[NvmlProcess(100 * gpu + n, sm=5) for n in range(1, 9)], fan=30) for gpu in range(8)
    ]
    machine.tick()
    machine.tick()
    before = machine.source.calls
    machine.tick()
    # Per Gpu: MIG mode, rates, memory, encoder, decoder, power, temperature, 4 clocks, performance state, why
    # the clocks are so, the batch of fields, a GPM sample and its comparison with the last one, 3 lists,
    # samples. One more looks for Xid events.
    assert machine.source.calls - before == 8 * 20 + 1
    before = machine.source.calls
    machine.tick(seconds=10)
    # Every ten seconds also, per Gpu: two power limits, two temperatures, the fan, 4 highest clocks and 2 of
    # applications, BAR1, PCIe replays, 3 modes and the fabric; accounting mode, and once the number of Gpus.
    assert machine.source.calls - before == 8 * (20 + 17 + 1) + 2
    for gpu in machine.gpus:
        gpu.numbers["accounting"] = 1
    machine.tick(seconds=10)
    before = machine.source.calls
    machine.tick()
    # With accounting mode also the list of its pids.
    assert machine.source.calls - before == 8 * 21 + 1

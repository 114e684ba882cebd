"""MIG instances: their layout and its changes, what is read of them, and their losses."""

import pytest

from gpuledger.model.quantities import MEMORY_TOTAL, POWER, UTILIZATION, Level
from nvml.library import NvmlGpu, NvmlInstance, NvmlProcess
from nvml.machine import ALL, Machine, pids, reading_of, values

NOT_SUPPORTED, NO_PERMISSION, TIMEOUT, LOST, UNKNOWN = 3, 4, 10, 15, 999


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def gpu_with_two_instances(**first):
    gpu = NvmlGpu(mig=1)
    gpu.instances = [
        NvmlInstance(0, gi=1, **first),
        NvmlInstance(2, gi=5, profile="1c.4g.40gb", sms=64, total=39 << 30),
    ]
    return gpu


def test_mig_instances_follow_their_gpu_in_the_drivers_order(machine):
    machine.state.gpus = [gpu_with_two_instances(), NvmlGpu()]
    snapshot = machine.tick()
    gpu, first, second, other = (reading.device for reading in snapshot.readings)
    assert (gpu.index, other.index) == (0, 1)
    assert [(each.gi, each.ci, each.index, each.profile, each.sm_count) for each in (first, second)] == [
        (1, 0, 0, "3g.40gb", 60),
        (5, 0, 2, "1c.4g.40gb", 64),
    ]
    assert first.parent is gpu and first.uuid.startswith("MIG-")
    assert [reading.mig_enabled for reading in snapshot.readings] == [True, True, True, False]


def test_memory_is_reported_per_instance_and_power_per_gpu(machine):
    machine.state.gpus = [gpu_with_two_instances(used=7 << 30)]
    gpu, first, second = machine.tick().readings
    assert (values(first)["memory_used"], values(second)["memory_total"]) == (7 << 30, 39 << 30)
    assert gpu.get(POWER) == 100.0
    assert set(values(first)) == {"memory_total", "memory_used", "memory_free", "memory_reserved"}


def test_only_quantities_of_instances_are_queried_of_an_instance(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    machine.tick()
    own = {quantity.key for quantity in ALL if quantity.level is Level.INSTANCE}
    assert set(reading_of(machine.tick(), 1).supported) == own


def test_activity_of_a_gpu_with_mig_is_unsupported_not_zero(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    gpu = reading_of(machine.tick())
    assert gpu.get(UTILIZATION) is None and gpu.supported["utilization"] is False
    assert gpu.samples is None
    assert machine.count("nvmlDeviceGetProcessesUtilizationInfo") == 0


def test_a_new_mig_layout_is_detected_while_running(machine):
    machine.state.gpus = [NvmlGpu(NvmlProcess(9))]
    assert len(machine.tick().readings) == 1
    machine.state.gpus = [gpu_with_two_instances()]
    machine.gpus[0].processes = [NvmlProcess(9, gi=1, ci=0)]
    gpu, first, second = machine.tick().readings
    assert (pids(gpu), pids(first), pids(second)) == ([], [9], [])
    machine.gpus[0].instances = [NvmlInstance(0, gi=0, profile="7g.80gb", sms=132)]
    machine.gpus[0].processes = [NvmlProcess(9, gi=0, ci=0)]
    assert [reading.device.profile for reading in machine.tick().readings[1:]] == ["7g.80gb"]
    machine.state.gpus = [NvmlGpu(NvmlProcess(9))]
    snapshot = machine.tick()
    assert len(snapshot.readings) == 1 and pids(reading_of(snapshot)) == [9]
    assert reading_of(snapshot).get(UTILIZATION) == 0.0
    assert machine.count("nvmlDeviceGetSerial") == 1


def test_an_instance_of_another_size_under_the_same_ids_is_detected(machine):
    machine.state.gpus = [gpu_with_two_instances(profile="3g.40gb", sms=60)]
    machine.tick()
    machine.state.gpus = [gpu_with_two_instances(profile="1g.10gb", sms=16)]
    assert (reading_of(machine.tick(), 1).device.profile, reading_of(machine.tick(), 1).device.sm_count) == (
        "1g.10gb",
        16,
    )


def test_static_facts_of_instances_are_read_once(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    for _ in range(4):
        machine.tick()
    assert machine.count("nvmlDeviceGetGpuInstanceId") == 2


def test_an_unchanged_instance_is_not_read_again(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    first = reading_of(machine.tick(), 1).device
    del machine.gpus[0].instances[1]
    machine.gpus[0].instances.append(NvmlInstance(3, gi=6))
    snapshot = machine.tick()
    assert reading_of(snapshot, 1).device is first and reading_of(snapshot, 2).device.gi == 6
    assert machine.count("nvmlDeviceGetGpuInstanceId") == 3


def test_an_instance_without_ids_is_omitted(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    machine.gpus[0].errors["nvmlDeviceGetGpuInstanceId"] = UNKNOWN
    snapshot = machine.tick()
    assert snapshot.devices_failed and len(snapshot.readings) == 1
    machine.gpus[0].errors.clear()
    assert len(machine.tick().readings) == 3


def test_instances_that_cannot_be_listed_are_kept_and_the_list_is_incomplete(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    machine.tick()
    machine.gpus[0].errors["nvmlDeviceGetMigDeviceHandleByIndex"] = UNKNOWN
    snapshot = machine.tick()
    assert snapshot.devices_failed and len(snapshot.readings) == 3


@pytest.mark.parametrize("code", [TIMEOUT, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"]
)
def test_a_gpu_with_an_unknown_mig_layout_is_not_idle(machine, call, code):
    machine.state.gpus = [gpu_with_two_instances(), NvmlGpu()]
    machine.gpus[0].processes = [NvmlProcess(9, gi=1, ci=0)]
    machine.gpus[0].errors[call] = code
    for _ in range(2):
        snapshot = machine.tick()
        assert (
            reading_of(snapshot).up
            and reading_of(snapshot).processes is None
            and reading_of(snapshot).samples is None
        )
        assert reading_of(snapshot, 1).processes == ()
        assert [(each.part, each.device.index) for each in snapshot.failures] == [("devices", 0)]
        assert snapshot.devices_failed
    machine.gpus[0].errors.clear()
    snapshot = machine.tick()
    assert [pids(reading) for reading in snapshot.readings] == [[], [9], [], []]
    assert not snapshot.failures and not snapshot.devices_failed


def test_a_gpu_reports_processes_once_its_mig_mode_is_known(machine):
    machine.new_source(process_scan_interval=60.0)
    machine.state.gpus = [NvmlGpu(NvmlProcess(9, sm=30), mig=0)]
    machine.gpus[0].errors["nvmlDeviceGetMigMode"] = TIMEOUT
    assert reading_of(machine.tick()).processes is None
    machine.gpus[0].errors.clear()
    reading = reading_of(machine.tick())
    assert pids(reading) == [9] and reading.processes[0].usage.sm > 0


@pytest.mark.parametrize("code", [NOT_SUPPORTED, 13, 25])
def test_a_card_without_mig_support_is_queried_once(machine, code):
    machine.state.gpus = [NvmlGpu(NvmlProcess(9))]
    machine.gpus[0].errors["nvmlDeviceGetMigMode"] = code
    for _ in range(3):
        snapshot = machine.tick()
        assert pids(reading_of(snapshot)) == [9] and not snapshot.failures
    assert machine.count("nvmlDeviceGetMigMode") == 1


def test_a_transient_error_keeps_the_known_mig_layout(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    machine.gpus[0].processes = [NvmlProcess(9, gi=1, ci=0)]
    machine.tick()
    machine.gpus[0].errors["nvmlDeviceGetMigMode"] = UNKNOWN
    snapshot = machine.tick()
    assert [pids(reading) for reading in snapshot.readings] == [[], [9], []] and snapshot.devices_failed


def test_a_profile_that_failed_is_queried_again(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    machine.gpus[0].errors["mig.nvmlDeviceGetName"] = TIMEOUT
    snapshot = machine.tick()
    assert reading_of(snapshot, 1).device.profile == "" and len(snapshot.failures) == 2
    machine.gpus[0].errors.clear()
    snapshot = machine.tick()
    assert [reading.device.profile for reading in snapshot.readings[1:]] == ["3g.40gb", "1c.4g.40gb"]
    assert not snapshot.failures


def test_instances_refer_to_the_current_facts_of_their_gpu(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    machine.gpus[0].errors["nvmlDeviceGetSerial"] = TIMEOUT
    machine.tick()
    machine.gpus[0].errors.clear()
    assert reading_of(machine.tick(), 1).device.parent.serial == "1650000000000"


def test_instances_of_a_lost_gpu_are_down(machine):
    machine.state.gpus = [gpu_with_two_instances(), NvmlGpu()]
    machine.tick()
    machine.gpus[0].errors["*"] = LOST
    assert [reading.up for reading in machine.tick().readings] == [False, False, False, True]


def test_a_gpu_with_mig_returns_with_its_instances(machine):
    machine.state.gpus = [gpu_with_two_instances(), NvmlGpu()]
    machine.gpus[0].processes = [NvmlProcess(9, gi=1, ci=0)]
    machine.tick()
    machine.gpus[0].errors["*"] = LOST
    machine.tick()
    machine.gpus[0].errors.clear()
    snapshot = machine.tick()
    assert [reading.up for reading in snapshot.readings] == [True] * 4
    assert pids(reading_of(snapshot, 1)) == [9]


def test_errors_of_instances_do_not_affect_their_gpu(machine):
    machine.state.gpus = [gpu_with_two_instances()]
    machine.tick()
    machine.gpus[0].errors["mig.nvmlDeviceGetMemoryInfo_v2"] = UNKNOWN
    gpu, first, _ = machine.tick([MEMORY_TOTAL, POWER]).readings
    assert gpu.up and gpu.get(MEMORY_TOTAL) is not None
    assert first.up and first.get(MEMORY_TOTAL) is None and first.processes == ()


def test_an_instance_that_returns_only_errors_is_down(machine):
    machine.state.gpus = [gpu_with_two_instances(), NvmlGpu()]
    machine.tick()
    for call in ("MemoryInfo_v2", "ComputeRunningProcesses_v3"):
        machine.gpus[0].errors[f"mig.nvmlDeviceGet{call}"] = UNKNOWN
    machine.gpus[0].errors["nvmlDeviceGetGraphicsRunningProcesses_v3"] = UNKNOWN
    machine.gpus[0].errors["nvmlGpmMigSampleGet"] = UNKNOWN
    snapshot = machine.tick()
    assert [reading.up for reading in snapshot.readings] == [True, False, False, True]
    assert reading_of(snapshot, 1).processes is None

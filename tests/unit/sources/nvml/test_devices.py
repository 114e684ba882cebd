"""Gpus and Instances: static facts are read once, losses and returns, changes of the MIG layout."""

import pytest

from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DEFAULT_DIALECTS, DialectSettings
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
from nvml.machine import ALL, Machine, pids, reading_of, values

LOST, RESET, UNKNOWN, NOT_SUPPORTED, NO_PERMISSION, TIMEOUT = 15, 16, 999, 3, 4, 10


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_a_gpu_reports_its_static_facts(machine):
    gpu = reading_of(machine.tick(), 1).device
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


def test_unsupported_static_facts_are_absent(machine):
    machine.gpus[0].errors = {
        "nvmlDeviceGetSerial": NOT_SUPPORTED,
        "nvmlDeviceGetNumGpuCores": NOT_SUPPORTED,
        "nvmlDeviceGetMinorNumber": UNKNOWN,
    }
    gpu = reading_of(machine.tick()).device
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
def test_only_failed_static_facts_are_queried_again(machine, call, fact, value):
    machine.gpus[0].errors[call] = TIMEOUT
    snapshot = machine.tick()
    assert getattr(reading_of(snapshot).device, fact) in (None, "")
    assert getattr(reading_of(snapshot, 1).device, fact) not in (None, "")
    assert [(failure.part, failure.device.index) for failure in snapshot.failures] == [("devices", 0)]
    assert call in snapshot.failures[0].detail and not snapshot.devices_failed
    machine.gpus[0].errors.clear()
    others = machine.count("nvmlDeviceGetUUID")
    snapshot = machine.tick()
    assert getattr(reading_of(snapshot).device, fact) == value and not snapshot.failures
    calls = machine.count(call)
    machine.tick()
    assert (machine.count(call), machine.count("nvmlDeviceGetUUID")) == (calls, others)


def test_memory_that_is_known_late_bounds_the_memory_of_processes(machine):
    machine.gpus[0] = NvmlGpu(NvmlProcess(7, memory=90 << 40))
    machine.gpus[0].errors["nvmlDeviceGetMemoryInfo"] = TIMEOUT
    machine.tick()
    machine.gpus[0].errors.clear()
    snapshot = machine.tick()
    assert reading_of(snapshot).processes[0].memory is None and snapshot.invalid == 1


def test_a_gpu_selected_by_a_pci_bus_id_that_is_known_late_is_found(machine):
    machine.gpus[1].errors["nvmlDeviceGetPciInfo_v3"] = TIMEOUT
    machine.new_source(devices=("00000000:01:00.0", "00000000:02:00.0"))
    snapshot = machine.tick()
    assert [reading.device.index for reading in snapshot.readings] == [0] and snapshot.devices_failed
    machine.gpus[1].errors.clear()
    snapshot = machine.tick()
    assert [reading.device.index for reading in snapshot.readings] == [0, 1] and not snapshot.devices_failed


def test_the_driver_reports_its_versions(machine):
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
def test_only_selected_gpus_are_read(machine, choice):
    machine.new_source(devices=(choice,))
    assert [reading.device.index for reading in machine.tick().readings] == [1]
    assert machine.count("nvmlDeviceGetPowerUsage") == 1


def test_a_selection_without_a_match_names_the_available_gpus(machine):
    machine.new_source(devices=("7",))
    with pytest.raises(
        SourceUnavailable, match=r"--devices: 7 not found; available are GPU-0.*GPU-0"
    ) as caught:
        machine.tick()
    assert caught.value.reason == "NO_DEVICES"


def test_a_machine_without_gpus_is_unavailable(machine):
    machine.state.gpus = []
    with pytest.raises(SourceUnavailable, match="no GPU is visible"):
        machine.tick()


@pytest.mark.parametrize("code", [LOST, RESET])
def test_a_lost_gpu_does_not_affect_others(machine, code):
    machine.gpus[0].processes = [NvmlProcess(11)]
    machine.gpus[1].processes = [NvmlProcess(22)]
    machine.tick()
    machine.gpus[0].errors["*"] = code
    snapshot = machine.tick()
    lost, healthy = snapshot.readings
    assert (lost.up, lost.processes, lost.samples, dict(lost.values)) == (False, None, None, {})
    assert healthy.up and pids(healthy) == [22] and healthy.get(POWER) == 100.0
    assert {failure.device for failure in snapshot.failures} == {lost.device}


def test_a_lost_gpu_is_retried_with_one_call_per_tick(machine):
    machine.tick()
    machine.gpus[0].errors["*"] = LOST
    machine.tick()
    before = machine.calls
    machine.tick()
    beside_a_lost_one = machine.calls - before
    machine.new_source(devices=("1",))
    machine.tick()
    before = machine.calls
    machine.tick()
    assert beside_a_lost_one == machine.calls - before + 1


def test_a_lost_gpu_returns_automatically(machine):
    machine.tick()
    machine.gpus[0].errors["*"] = LOST
    assert not reading_of(machine.tick()).up
    machine.gpus[0].errors.clear()
    machine.gpus[0].processes = [NvmlProcess(33)]
    back = reading_of(machine.tick())
    assert back.up and back.get(POWER) == 100.0 and pids(back) == [33]


def test_a_gpu_that_returns_only_errors_is_down(machine):
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


def test_a_lost_gpu_that_is_not_selected_is_not_a_failure(machine):
    machine.gpus[0].errors["*"] = LOST
    machine.new_source(devices=("1",))
    snapshot = machine.tick()
    assert not snapshot.devices_failed and not snapshot.failures


@pytest.mark.parametrize("mode", [1, 2], ids=["not supported", "total of zero"])
def test_unified_memory_is_absent_but_process_memory_is_reported(machine, mode):
    machine.gpus[0] = NvmlGpu(NvmlProcess(5, memory=3 << 30), memory=mode)
    reading = reading_of(machine.tick())
    assert reading.device.unified_memory
    assert not {MEMORY_TOTAL, MEMORY_USED, MEMORY_FREE, MEMORY_RESERVED} & set(reading.values)
    assert reading.supported["memory_total"] is False
    assert reading.processes[0].memory == 3 << 30


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


def test_calls_per_tick_for_the_default_dialects_are_bounded(machine):
    dialects = create_dialects(DialectSettings(), "0")
    wanted = frozenset().union(*(dialects[name].required_quantities for name in DEFAULT_DIALECTS))
    machine.state.gpus = [NvmlGpu(NvmlProcess(100 * gpu + 1), fan=30) for gpu in range(8)]
    machine.tick(wanted)
    machine.tick(wanted)
    made = []
    for seconds in (1, 10):
        before = machine.calls
        machine.tick(wanted, seconds=seconds)
        made.append(machine.calls - before)
    # Faults (throttling, ECC, remapped rows, recovery) are in the batch of fields, which is one call.
    assert made == [8 * 19 + 1, 8 * (19 + 5) + 2]


def test_calls_per_tick_are_bounded(machine):
    machine.state.gpus = [
        NvmlGpu(*[NvmlProcess(100 * gpu + n, sm=5) for n in range(1, 9)], fan=30) for gpu in range(8)
    ]
    machine.tick()
    machine.tick()
    before = machine.calls
    machine.tick()
    # Per Gpu: MIG mode, utilization rates, memory, encoder, decoder, power, temperature, 4 clocks,
    # performance state, clock event reasons, the batch of fields, a GPM sample and its comparison with the
    # last one, 3 process lists, utilization samples. One more call reads Xid events.
    assert machine.calls - before == 8 * 20 + 1
    before = machine.calls
    machine.tick(seconds=10)
    # Also every ten seconds per Gpu: 2 power limits, 2 temperature thresholds, the fan, 4 maximum clocks,
    # 2 application clocks, BAR1, PCIe replays, 3 modes, the fabric and accounting mode; once the Gpu count.
    assert machine.calls - before == 8 * (20 + 17 + 1) + 2
    for gpu in machine.gpus:
        gpu.numbers["accounting"] = 1
    machine.tick(seconds=10)
    before = machine.calls
    machine.tick()
    # With accounting mode also its list of pids.
    assert machine.calls - before == 8 * 21 + 1

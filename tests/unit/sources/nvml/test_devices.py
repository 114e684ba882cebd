"""GPUs: static facts are read once, losses and returns, the number of calls of a tick."""

import pytest

from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DEFAULT_DIALECTS, DialectSettings
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import MEMORY_FREE, MEMORY_RESERVED, MEMORY_TOTAL, MEMORY_USED, POWER
from nvml.library import NvmlGpu, NvmlProcess
from nvml.machine import Machine, pids, reading_of

NOT_SUPPORTED, TIMEOUT, LOST, RESET, UNKNOWN = 3, 10, 15, 16, 999


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

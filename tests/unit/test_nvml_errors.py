"""Whatever one call, field or Gpu answers, no other Gpu loses anything."""

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuledger.model.quantities import POWER
from nvml.library import NvmlGpu, NvmlProcess
from nvml.machine import Machine, pids, told, values

CODES = sorted(
    {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and value != 7}
)
WHOLE_GPU = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
# A list for which no buffer is ever big enough would be a fault of the driver, but must not hang or raise.
CALLS = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTotalEnergyConsumption",
    "field.83",
    "field.82",
    "field.5",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID",
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    made.state.gpus = [NvmlGpu(NvmlProcess(10 + n, sm=20), power=(n + 1) * 100_000) for n in range(3)]
    return made


def is_whole(reading, index):
    return (
        reading.up
        and reading.device.index == index
        and len(reading.values) == 24
        and pids(reading) == [10 + index]
        and reading.processes[0].usage.sm == pytest.approx(0.2)
        and reading.get(POWER) == 100.0 * (index + 1)
    )


@pytest.mark.parametrize("code", [*CODES, 7, 77])
def test_one_gpu_answering_only_a_code_leaves_the_others_whole(machine, code):
    machine.tick()
    machine.gpus[1].errors["*"] = code
    for _ in range(2):
        first, second, third = machine.tick().readings
        assert is_whole(first, 0) and is_whole(third, 2)
        assert second.device.index == 1 and POWER not in second.values
        assert second.processes is None
    machine.gpus[1].errors.clear()
    machine.tick()
    assert pids(told(machine.tick(), 1)) == [11]


@pytest.mark.parametrize("code", [code for code in (*CODES, 7, 77) if code not in WHOLE_GPU])
def test_one_call_answering_a_code_loses_only_its_own_quantity(machine, code):
    complete = values(told(machine.tick(), 1))
    machine.gpus[1].errors["nvmlDeviceGetPowerUsage"] = code
    reading = told(machine.tick(), 1)
    assert reading.up and pids(reading) == [11]
    assert set(complete) - set(values(reading)) == {"power"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ticks=st.lists(
        st.dictionaries(st.sampled_from(CALLS), st.sampled_from([*CODES, 7, 77]), max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_no_errors_of_a_gpu_cost_another_gpu_anything(machine, ticks):
    """In whatever order they come, also before the first tick; nothing is ever raised."""
    machine.library.test_nvml_reset()
    machine.new_source()
    for errors in (*ticks, {}):
        machine.gpus[1].errors = errors
        snapshot = machine.tick()
        mine = [reading for reading in snapshot.readings if reading.device.index != 1]
        assert len(mine) == 2
        assert is_whole(mine[0], 0) and is_whole(mine[1], 2)
        assert all(failure.device is None or failure.device.index == 1 for failure in snapshot.failures)
    assert machine.gpus[1].errors == {}
    assert told(machine.tick(), 1).up

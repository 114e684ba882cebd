"""Errors of a call, a field or a Gpu do not affect other Gpus."""

import pynvml
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuledger.model.quantities import NVLINK_RATE, POWER
from gpuledger.sources.nvml.queries import GPM_QUERIES
from nvml.library import NvmlAccount, NvmlGpu, NvmlInstance, NvmlProcess
from nvml.machine import ALL, Machine, pids, reading_of, values

CODES = sorted(
    {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and value != 7}
)
WHOLE_GPU = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
# 7 (INSUFFICIENT_SIZE) for every buffer size is a driver fault, but must neither hang nor raise.
CALLS = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetAccountingMode",
    "nvmlDeviceGetAccountingPids",
    "nvmlDeviceGetAccountingStats",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet",
    "gpm.1",
    "gpm.20",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "field.138",
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


# Activity and rates need two ticks and are not checked; an H100 has no fan and no retired pages.
LATER = frozenset({NVLINK_RATE, *(metric.quantity for metric in GPM_QUERIES)})
LACKS = ("fan_speed", "retired_pages_correctable", "retired_pages_uncorrectable", "retired_pages_pending")
REPORTED = frozenset(quantity for quantity in ALL - LATER if quantity.key not in LACKS)


def is_complete(reading, index):
    return (
        reading.up
        and reading.device.index == index
        and set(reading.values) - LATER == REPORTED
        and pids(reading) == [10 + index]
        and reading.processes[0].usage.sm == pytest.approx(0.2)
        and reading.get(POWER) == 100.0 * (index + 1)
    )


@pytest.mark.parametrize("code", [*CODES, 7, 77])
def test_a_gpu_that_returns_only_an_error_does_not_affect_others(machine, code):
    machine.tick()
    machine.gpus[1].errors["*"] = code
    for _ in range(2):
        first, second, third = machine.tick().readings
        assert is_complete(first, 0) and is_complete(third, 2)
        assert second.device.index == 1 and POWER not in second.values
        assert second.processes is None
    machine.gpus[1].errors.clear()
    machine.tick()
    assert pids(reading_of(machine.tick(), 1)) == [11]


@pytest.mark.parametrize("code", [code for code in (*CODES, 7, 77) if code not in WHOLE_GPU])
def test_a_failing_call_loses_only_its_quantity(machine, code):
    complete = values(reading_of(machine.tick(), 1))
    machine.gpus[1].errors["nvmlDeviceGetPowerUsage"] = code
    reading = reading_of(machine.tick(), 1)
    assert reading.up and pids(reading) == [11]
    assert set(complete) - set(values(reading)) == {"power"}


# Codes that are answers, not failures: no MIG support, no name, an empty slot, no such list.
UNSUPPORTED = frozenset({3, 13, 22, 25, 26})
ANSWERS = {
    "nvmlDeviceGetMigMode": UNSUPPORTED,
    "nvmlDeviceGetMaxMigDeviceCount": UNSUPPORTED,
    "nvmlDeviceGetMigDeviceHandleByIndex": {2, 6},
    "nvmlDeviceGetName": UNSUPPORTED,
    **{call: {3, 13} for call in CALLS if "RunningProcesses" in call},
}
MIG_CALLS = (
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes_v2",
    "mig.nvmlDeviceGetMemoryInfo_v2",
    "mig.nvmlDeviceGetMemoryInfo",
)
FAULTS = st.lists(
    st.tuples(st.sampled_from((*CALLS, *MIG_CALLS)), st.sampled_from([*CODES, 7, 77])).filter(
        lambda fault: fault[1] not in ANSWERS.get(fault[0], ())
    ),
    max_size=8,
).map(dict)
LOST = {"*": pynvml.NVML_ERROR_GPU_IS_LOST}
# The driver does not count the card, MIG is off, or everything is normal.
EVENTS = ("uncounted", "mig off", "normal")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    mig=st.booleans(),
    steps=st.lists(st.one_of(FAULTS, st.just(LOST), st.sampled_from(EVENTS)), min_size=1, max_size=6),
)
@example(mig=True, steps=["normal", LOST, "normal", "uncounted", "uncounted", "normal"])
@example(mig=True, steps=[{"nvmlDeviceGetMigMode": pynvml.NVML_ERROR_TIMEOUT}])
@example(mig=True, steps=[{"nvmlDeviceGetMaxMigDeviceCount": pynvml.NVML_ERROR_UNKNOWN}])
@example(mig=False, steps=[{"nvmlDeviceGetName": pynvml.NVML_ERROR_UNKNOWN}, LOST])
def test_faults_of_a_gpu_neither_affect_other_gpus_nor_invent_values(machine, mig, steps):
    """In any order, also before the first tick; nothing is raised, and everything recovers."""
    machine.library.test_nvml_reset()
    machine.new_source(slow_interval=2.0)
    card = NvmlGpu(NvmlProcess(21, gi=1, ci=0), NvmlProcess(22, gi=2, ci=0), mig=1, accounting=1)
    card.accounts = [NvmlAccount(21, 1)]
    instances = [NvmlInstance(0, gi=1), NvmlInstance(1, gi=2)]
    healthy = machine.gpus[:2]
    for step in (*steps, "normal", "normal", "normal"):
        has_mig = mig and step != "mig off"
        card.numbers["mig"], card.instances = int(has_mig), instances if has_mig else []
        card.errors = step if isinstance(step, dict) else {}
        machine.state.gpus = healthy if step == "uncounted" else [*healthy, card]
        snapshot = machine.tick()
        others, mine = snapshot.readings[:2], snapshot.readings[2:]
        assert is_complete(others[0], 0) and is_complete(others[1], 1)
        assert all(each.device is None or each.device.gpu.index == 2 for each in snapshot.failures)
        assert_nothing_is_made_up(mine, has_mig)
    assert [pids(reading) for reading in mine] == ([[], [21], [22]] if mig else [[21, 22]])
    assert all(reading.up for reading in mine)
    assert mine[0].device.name == "NVIDIA H100 80GB HBM3"
    assert all(reading.device.profile == "3g.40gb" for reading in mine[1:])
    assert not snapshot.failures and not snapshot.devices_failed


def assert_nothing_is_made_up(readings, has_mig):
    """No Device with processes is reported without processes or with those of another Device."""
    found = [pids(reading) for reading in readings]
    if len(found) == 1:
        assert found[0] in (None, [21, 22])
    elif found:
        gpu, first, second = found
        assert gpu in (None, [])
        assert not has_mig or (first in (None, [21]) and second in (None, [22]))

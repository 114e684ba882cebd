"""GPM metrics: means between two ticks, of a Gpu and of an Instance."""

import pytest

from gpuledger.model.quantities import (
    DRAM_ACTIVITY,
    ENGINE_ACTIVITY,
    FP64_ACTIVITY,
    PCIE_TX_RATE,
    POWER,
    SM_ACTIVITY,
)
from gpuledger.sources.nvml.queries import GPM_QUERIES
from nvml.library import NvmlGpu, NvmlInstance
from nvml.machine import Machine, reading_of, values

ONLY = [ENGINE_ACTIVITY]
INVALID_ARGUMENT, NOT_SUPPORTED, UNKNOWN, LOST = 2, 3, 999, 15
CALLS = (
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet",
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    made.state.gpus = [NvmlGpu(activity=40.0)]
    return made


def mig_gpu(*instances):
    gpu = NvmlGpu(mig=1, activity=55.5)
    gpu.instances = list(instances)
    return gpu


def activity(machine, seconds=1.0, wanted=ONLY):
    return [reading.get(ENGINE_ACTIVITY) for reading in machine.tick(wanted, seconds).readings]


def test_the_first_tick_has_no_metrics(machine):
    reading = reading_of(machine.tick(ONLY))
    assert reading.values == {} and reading.supported == {}
    assert reading_of(machine.tick(ONLY)).supported == {"engine_activity": True}


def test_each_later_tick_reports_the_mean_of_its_own_time(machine):
    activity(machine)
    assert activity(machine) == [pytest.approx(0.4)]
    machine.gpus[0].activity = 100.0
    assert activity(machine, seconds=5) == [pytest.approx(1.0)]
    machine.gpus[0].activity = 0.0
    assert activity(machine) == [pytest.approx(0.0)]


def test_two_samples_per_device_are_reused(machine):
    for _ in range(10):
        activity(machine)
    assert [machine.count(call) for call in CALLS] == [1, 2, 10, 0, 9]


def test_all_metrics_of_a_device_cost_one_comparison(machine):
    machine.tick()
    machine.tick()
    assert [machine.count(call) for call in CALLS] == [1, 2, 2, 0, 1]


def test_each_metric_is_reported_in_its_unit(machine):
    machine.gpus[0].answers = {
        "gpm.1": 50.0,
        "gpm.2": 40.0,
        "gpm.3": 30.0,
        "gpm.5": 20.0,
        "gpm.10": 10.0,
        "gpm.11": 5.0,
        "gpm.12": 4.0,
        "gpm.13": 3.0,
        "gpm.20": 1.5,
        "gpm.21": 2.0,
        "gpm.60": 3.0,
        "gpm.61": 4.0,
    }
    wanted = [metric.quantity for metric in GPM_QUERIES]
    machine.tick(wanted)
    assert values(reading_of(machine.tick(wanted))) == {
        "engine_activity": 0.5,
        "sm_activity": 0.4,
        "sm_occupancy": 0.3,
        "tensor_activity": 0.2,
        "dram_activity": 0.1,
        "fp64_activity": 0.05,
        "fp32_activity": 0.04,
        "fp16_activity": 0.03,
        "pcie_tx_rate": 1_572_864,
        "pcie_rx_rate": 2_097_152,
        "nvlink_rx_rate": 3_145_728,
        "nvlink_tx_rate": 4_194_304,
    }


def test_an_unsupported_metric_does_not_affect_others(machine):
    machine.gpus[0].errors["gpm.11"] = NOT_SUPPORTED
    machine.tick([ENGINE_ACTIVITY, FP64_ACTIVITY])
    snapshot = machine.tick([ENGINE_ACTIVITY, FP64_ACTIVITY])
    assert set(reading_of(snapshot).values) == {ENGINE_ACTIVITY} and not snapshot.failures
    assert reading_of(snapshot).supported == {"engine_activity": True, "fp64_activity": False}


def test_no_gpm_call_is_made_without_wanted_metrics(machine):
    machine.tick([POWER])
    machine.tick([POWER])
    assert [machine.count(call) for call in CALLS] == [0] * 5


def test_a_mean_excludes_ticks_in_which_the_metric_was_not_wanted(machine):
    activity(machine)
    machine.gpus[0].activity = 100.0
    machine.tick([POWER], seconds=60)
    machine.gpus[0].activity = 0.0
    assert activity(machine) == [None]
    assert activity(machine) == [pytest.approx(0.0)]


def test_ticks_that_are_too_close_for_nvml_are_combined(machine):
    activity(machine)
    assert [activity(machine, seconds=0.0625), activity(machine, seconds=0.03125)] == [[None], [None]]
    assert activity(machine, seconds=0.0625) == [pytest.approx(0.4)]
    assert machine.count("nvmlGpmSampleGet") == 2


def test_a_gpu_before_hopper_has_no_metrics_and_is_queried_once(machine):
    machine.gpus[0].numbers["architecture"] = 8
    for _ in range(3):
        reading = reading_of(machine.tick(ONLY))
        assert reading.up and reading.values == {} and reading.supported == {"engine_activity": False}
    assert [machine.count(call) for call in CALLS] == [1, 0, 0, 0, 0]


def test_a_gpu_before_hopper_is_not_queried_for_other_metrics(machine):
    machine.gpus[0].numbers["architecture"] = 8
    machine.tick(ONLY)
    reading = reading_of(machine.tick([*ONLY, SM_ACTIVITY]))
    assert reading.supported == {"engine_activity": False, "sm_activity": False}
    assert [machine.count(call) for call in CALLS] == [1, 0, 0, 0, 0]


def test_an_old_library_has_no_metrics(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, "old")
    snapshot = machine.tick(ONLY)
    assert reading_of(snapshot).supported == {"engine_activity": False} and not snapshot.failures


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "gpm.1"])
def test_a_gpu_that_turns_out_unsupported_is_not_queried_again(machine, call):
    machine.gpus[0].errors[call] = NOT_SUPPORTED
    for _ in range(4):
        snapshot = machine.tick(ONLY)
    assert reading_of(snapshot).supported == {"engine_activity": False} and not snapshot.failures
    assert machine.count("nvmlGpmSampleGet") <= 2


@pytest.mark.parametrize(("percent", "invalid"), [("nan", 0), (100.5, 1), (-1.0, 1)])
def test_an_impossible_share_of_time_is_omitted(machine, percent, invalid):
    machine.gpus[0].activity = percent
    machine.tick(ONLY)
    snapshot = machine.tick(ONLY)
    assert reading_of(snapshot).values == {} and snapshot.invalid == invalid and not snapshot.failures


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "gpm.1"])
def test_an_error_loses_only_this_quantity_while_it_lasts(machine, call):
    machine.tick([ENGINE_ACTIVITY, POWER])
    machine.gpus[0].errors[call] = UNKNOWN
    snapshot = machine.tick([ENGINE_ACTIVITY, POWER])
    assert set(reading_of(snapshot).values) == {POWER} and reading_of(snapshot).up
    assert [(failure.part, failure.reason) for failure in snapshot.failures] == [("readings", "UNKNOWN")]
    assert "engine_activity" in snapshot.failures[0].detail
    machine.gpus[0].errors.clear()
    assert activity(machine) == [pytest.approx(0.4)]


def test_samples_are_allocated_again_after_a_minute_of_blanks(machine):
    machine.gpus[0].activity = "nan"
    for _ in range(1 + 59):
        activity(machine)
    assert machine.count("nvmlGpmSampleAlloc") == 2
    activity(machine)
    machine.gpus[0].activity = 40.0
    assert [activity(machine), activity(machine)] == [[None], [pytest.approx(0.4)]]
    assert machine.count("nvmlGpmSampleAlloc") == 4 and machine.count("nvmlGpmSampleFree") == 2


def test_samples_are_kept_if_only_some_metrics_are_blank(machine):
    machine.gpus[0].answers["gpm.2"] = "nan"
    for _ in range(70):
        machine.tick([ENGINE_ACTIVITY, SM_ACTIVITY])
    assert machine.count("nvmlGpmSampleAlloc") == 2


def test_a_failed_allocation_of_samples_is_retried(machine):
    machine.state.errors["nvmlGpmSampleAlloc"] = UNKNOWN
    assert machine.tick(ONLY).failures[0].reason == "UNKNOWN"
    machine.state.errors.clear()
    activity(machine)
    assert activity(machine) == [pytest.approx(0.4)]


def test_samples_from_before_a_loss_are_not_compared_with_later_ones(machine):
    machine.state.gpus.append(NvmlGpu(activity=20.0))
    activity(machine)
    machine.gpus[0].errors["*"] = LOST
    assert activity(machine) == [None, pytest.approx(0.2)]
    machine.gpus[0].errors.clear()
    assert activity(machine) == [None, pytest.approx(0.2)]
    assert activity(machine) == [pytest.approx(0.4), pytest.approx(0.2)]
    assert machine.count("nvmlGpmSampleAlloc") == 4


def test_each_instance_has_its_own_metrics(machine):
    machine.state.gpus = [mig_gpu(NvmlInstance(0, gi=1, activity=80.0), NvmlInstance(1, gi=2, activity=5.0))]
    activity(machine)
    assert activity(machine) == [pytest.approx(share) for share in (0.555, 0.8, 0.05)]
    assert machine.count("nvmlGpmMigSampleGet") == 4 and machine.count("nvmlGpmSampleGet") == 2


def test_each_compute_instance_of_a_gpu_instance_has_its_own_metrics(machine):
    machine.state.gpus = [
        mig_gpu(
            NvmlInstance(0, gi=1, ci=0, profile="1c.3g.40gb", sms=16, activity=90.0),
            NvmlInstance(1, gi=1, ci=1, profile="2c.3g.40gb", sms=32, activity=30.0),
            NvmlInstance(2, gi=2, activity=10.0),
        )
    ]
    activity(machine)
    assert activity(machine) == [pytest.approx(share) for share in (0.555, 0.9, 0.3, 0.1)]


def test_metrics_of_a_gpu_instance_or_gpu_are_not_reported_for_a_part_of_it(machine):
    machine.state.gpus = [
        mig_gpu(
            NvmlInstance(0, gi=1, ci=0, activity=50.0),
            NvmlInstance(1, gi=1, ci=1, activity=50.0),
            NvmlInstance(2, gi=2, activity=50.0),
        )
    ]
    wanted = [SM_ACTIVITY, DRAM_ACTIVITY, PCIE_TX_RATE]
    machine.tick(wanted)
    snapshot = machine.tick(wanted)
    shared, other, alone = ({quantity.key for quantity in reading_of(snapshot, n).values} for n in (1, 2, 3))
    assert shared == other == {"sm_activity"} and alone == {"sm_activity", "dram_activity"}
    assert reading_of(snapshot, 1).supported == {"sm_activity": True, "dram_activity": False}
    assert not snapshot.failures


def test_the_only_compute_instance_has_the_metrics_of_its_gpu_instance(machine):
    first, second = NvmlInstance(0, gi=1, ci=0, activity=50.0), NvmlInstance(1, gi=1, ci=1, activity=50.0)
    machine.state.gpus = [mig_gpu(first, second)]
    wanted = [SM_ACTIVITY, DRAM_ACTIVITY]
    machine.tick(wanted)
    machine.tick(wanted)
    machine.gpus[0].instances = [first]
    found = [{quantity.key for quantity in reading_of(machine.tick(wanted), 1).values} for _ in range(2)]
    assert found == [set(), {"sm_activity", "dram_activity"}]


def test_without_samples_of_mig_handles_a_shared_gpu_instance_is_not_split(machine):
    machine.state.gpus = [
        mig_gpu(
            NvmlInstance(0, gi=1, ci=0, activity=90.0),
            NvmlInstance(1, gi=1, ci=1, activity=30.0),
            NvmlInstance(2, gi=2, activity=10.0),
        )
    ]
    machine.gpus[0].errors["mig.nvmlGpmSampleGet"] = INVALID_ARGUMENT
    activity(machine)
    snapshot = machine.tick(ONLY)
    assert [reading.get(ENGINE_ACTIVITY) for reading in snapshot.readings] == [
        pytest.approx(0.555),
        None,
        None,
        pytest.approx(0.1),
    ]
    assert reading_of(snapshot, 1).supported == {"engine_activity": False} and not snapshot.failures


def test_samples_of_removed_instances_are_freed(machine):
    machine.state.gpus = [mig_gpu(NvmlInstance(0, gi=1), NvmlInstance(1, gi=2))]
    activity(machine)
    machine.gpus[0].instances = [NvmlInstance(0, gi=5, activity=70.0)]
    activity(machine)
    assert machine.count("nvmlGpmSampleAlloc") == 8 and machine.count("nvmlGpmSampleFree") == 4
    assert activity(machine)[1] == pytest.approx(0.7)


def test_close_frees_all_samples_before_it_releases_the_driver(machine):
    machine.state.gpus = [mig_gpu(NvmlInstance(0, gi=1)), NvmlGpu()]
    activity(machine)
    machine.source.close()
    assert machine.count("nvmlGpmSampleFree") == machine.count("nvmlGpmSampleAlloc") == 6
    assert activity(machine) == [None] * 3

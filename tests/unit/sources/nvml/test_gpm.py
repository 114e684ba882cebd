"""GPM: means between two ticks, of a Gpu and of an Instance."""

import pytest

from gpuledger.model.quantities import (
    DRAM_ACTIVITY,
    ENGINE_ACTIVITY,
    FP64_ACTIVITY,
    PCIE_TX_RATE,
    POWER,
    SM_ACTIVITY,
)
from gpuledger.sources.nvml.fields import METRICS
from nvml.library import NvmlGpu, NvmlInstance
from nvml.machine import Machine, told, values

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


def cut(*instances):
    gpu = NvmlGpu(mig=1, activity=55.5)
    gpu.instances = list(instances)
    return gpu


def activity(machine, seconds=1.0, wanted=ONLY):
    return [reading.get(ENGINE_ACTIVITY) for reading in machine.tick(wanted, seconds).readings]


def test_the_first_tick_has_nothing_to_compare_with(machine):
    reading = told(machine.tick(ONLY))
    assert reading.values == {} and reading.supported == {}
    assert told(machine.tick(ONLY)).supported == {"engine_activity": True}


def test_each_later_tick_tells_the_share_of_its_own_time(machine):
    activity(machine)
    assert activity(machine) == [pytest.approx(0.4)]
    machine.gpus[0].activity = 100.0
    assert activity(machine, seconds=5) == [pytest.approx(1.0)]
    machine.gpus[0].activity = 0.0
    assert activity(machine) == [pytest.approx(0.0)]


def test_two_samples_per_device_serve_for_ever(machine):
    for _ in range(10):
        activity(machine)
    assert [machine.count(call) for call in CALLS] == [1, 2, 10, 0, 9]


def test_all_metrics_of_a_device_cost_one_comparison(machine):
    machine.tick()
    machine.tick()
    assert [machine.count(call) for call in CALLS] == [1, 2, 2, 0, 1]


def test_each_metric_is_told_in_its_unit(machine):
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
    wanted = [metric.quantity for metric in METRICS]
    machine.tick(wanted)
    assert values(told(machine.tick(wanted))) == {
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


def test_a_metric_that_a_card_lacks_leaves_the_others(machine):
    machine.gpus[0].errors["gpm.11"] = NOT_SUPPORTED
    machine.tick([ENGINE_ACTIVITY, FP64_ACTIVITY])
    snapshot = machine.tick([ENGINE_ACTIVITY, FP64_ACTIVITY])
    assert set(told(snapshot).values) == {ENGINE_ACTIVITY} and not snapshot.failures
    assert told(snapshot).supported == {"engine_activity": True, "fp64_activity": False}


def test_nothing_is_asked_when_it_is_not_wanted(machine):
    machine.tick([POWER])
    machine.tick([POWER])
    assert [machine.count(call) for call in CALLS] == [0] * 5


def test_a_time_in_which_nobody_wanted_it_is_not_told_as_the_last_ticks(machine):
    activity(machine)
    machine.gpus[0].activity = 100.0
    machine.tick([POWER], seconds=60)
    machine.gpus[0].activity = 0.0
    assert activity(machine) == [None]
    assert activity(machine) == [pytest.approx(0.0)]


def test_ticks_closer_than_nvml_allows_are_taken_together(machine):
    activity(machine)
    assert [activity(machine, seconds=0.0625), activity(machine, seconds=0.03125)] == [[None], [None]]
    assert activity(machine, seconds=0.0625) == [pytest.approx(0.4)]
    assert machine.count("nvmlGpmSampleGet") == 2


def test_a_gpu_before_hopper_has_none_and_is_not_asked_again(machine):
    machine.gpus[0].numbers["architecture"] = 8
    for _ in range(3):
        reading = told(machine.tick(ONLY))
        assert reading.up and reading.values == {} and reading.supported == {"engine_activity": False}
    assert [machine.count(call) for call in CALLS] == [1, 0, 0, 0, 0]


def test_a_gpu_before_hopper_is_asked_no_more_for_other_metrics(machine):
    machine.gpus[0].numbers["architecture"] = 8
    machine.tick(ONLY)
    reading = told(machine.tick([*ONLY, SM_ACTIVITY]))
    assert reading.supported == {"engine_activity": False, "sm_activity": False}
    assert [machine.count(call) for call in CALLS] == [1, 0, 0, 0, 0]


def test_an_old_library_has_none(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, "old")
    snapshot = machine.tick(ONLY)
    assert told(snapshot).supported == {"engine_activity": False} and not snapshot.failures


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "gpm.1"])
def test_a_gpu_that_cannot_after_all_is_not_asked_again(machine, call):
    machine.gpus[0].errors[call] = NOT_SUPPORTED
    for _ in range(4):
        snapshot = machine.tick(ONLY)
    assert told(snapshot).supported == {"engine_activity": False} and not snapshot.failures
    assert machine.count("nvmlGpmSampleGet") <= 2


@pytest.mark.parametrize(("percent", "invalid"), [("nan", 0), (100.5, 1), (-1.0, 1)])
def test_what_is_no_share_of_time_is_absent(machine, percent, invalid):
    machine.gpus[0].activity = percent
    machine.tick(ONLY)
    snapshot = machine.tick(ONLY)
    assert told(snapshot).values == {} and snapshot.invalid == invalid and not snapshot.failures


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "gpm.1"])
def test_an_error_loses_this_quantity_only_and_only_as_long_as_it_lasts(machine, call):
    machine.tick([ENGINE_ACTIVITY, POWER])
    machine.gpus[0].errors[call] = UNKNOWN
    snapshot = machine.tick([ENGINE_ACTIVITY, POWER])
    assert set(told(snapshot).values) == {POWER} and told(snapshot).up
    assert [(failure.part, failure.reason) for failure in snapshot.failures] == [("readings", "UNKNOWN")]
    assert "engine_activity" in snapshot.failures[0].detail
    machine.gpus[0].errors.clear()
    assert activity(machine) == [pytest.approx(0.4)]


def test_samples_that_have_told_blanks_for_a_minute_are_made_anew(machine):
    machine.gpus[0].activity = "nan"
    for _ in range(1 + 59):
        activity(machine)
    assert machine.count("nvmlGpmSampleAlloc") == 2
    activity(machine)
    machine.gpus[0].activity = 40.0
    assert [activity(machine), activity(machine)] == [[None], [pytest.approx(0.4)]]
    assert machine.count("nvmlGpmSampleAlloc") == 4 and machine.count("nvmlGpmSampleFree") == 2


def test_blanks_of_some_metrics_are_no_reason_to_make_samples_anew(machine):
    machine.gpus[0].answers["gpm.2"] = "nan"
    for _ in range(70):
        machine.tick([ENGINE_ACTIVITY, SM_ACTIVITY])
    assert machine.count("nvmlGpmSampleAlloc") == 2


def test_samples_that_cannot_be_allocated_are_tried_for_again(machine):
    machine.state.errors["nvmlGpmSampleAlloc"] = UNKNOWN
    assert machine.tick(ONLY).failures[0].reason == "UNKNOWN"
    machine.state.errors.clear()
    activity(machine)
    assert activity(machine) == [pytest.approx(0.4)]


def test_what_was_before_a_card_was_lost_is_not_compared_with_what_is_after(machine):
    machine.state.gpus.append(NvmlGpu(activity=20.0))
    activity(machine)
    machine.gpus[0].errors["*"] = LOST
    assert activity(machine) == [None, pytest.approx(0.2)]
    machine.gpus[0].errors.clear()
    assert activity(machine) == [None, pytest.approx(0.2)]
    assert activity(machine) == [pytest.approx(0.4), pytest.approx(0.2)]
    assert machine.count("nvmlGpmSampleAlloc") == 4


def test_instances_are_each_told_their_own(machine):
    machine.state.gpus = [cut(NvmlInstance(0, gi=1, activity=80.0), NvmlInstance(1, gi=2, activity=5.0))]
    activity(machine)
    assert activity(machine) == [pytest.approx(share) for share in (0.555, 0.8, 0.05)]
    assert machine.count("nvmlGpmMigSampleGet") == 4 and machine.count("nvmlGpmSampleGet") == 2


def test_compute_instances_that_share_a_gpu_instance_are_each_told_their_own(machine):
    machine.state.gpus = [
        cut(
            NvmlInstance(0, gi=1, ci=0, profile="1c.3g.40gb", sms=16, activity=90.0),
            NvmlInstance(1, gi=1, ci=1, profile="2c.3g.40gb", sms=32, activity=30.0),
            NvmlInstance(2, gi=2, activity=10.0),
        )
    ]
    activity(machine)
    assert activity(machine) == [pytest.approx(share) for share in (0.555, 0.9, 0.3, 0.1)]


def test_what_is_of_a_gpu_instance_or_of_the_whole_gpu_is_not_told_of_a_part_of_it(machine):
    machine.state.gpus = [
        cut(
            NvmlInstance(0, gi=1, ci=0, activity=50.0),
            NvmlInstance(1, gi=1, ci=1, activity=50.0),
            NvmlInstance(2, gi=2, activity=50.0),
        )
    ]
    wanted = [SM_ACTIVITY, DRAM_ACTIVITY, PCIE_TX_RATE]
    machine.tick(wanted)
    snapshot = machine.tick(wanted)
    shared, other, alone = ({quantity.key for quantity in told(snapshot, n).values} for n in (1, 2, 3))
    assert shared == other == {"sm_activity"} and alone == {"sm_activity", "dram_activity"}
    assert told(snapshot, 1).supported == {"sm_activity": True, "dram_activity": False}
    assert not snapshot.failures


def test_an_instance_left_alone_in_its_gpu_instance_is_told_all_of_it(machine):
    first, second = NvmlInstance(0, gi=1, ci=0, activity=50.0), NvmlInstance(1, gi=1, ci=1, activity=50.0)
    machine.state.gpus = [cut(first, second)]
    wanted = [SM_ACTIVITY, DRAM_ACTIVITY]
    machine.tick(wanted)
    machine.tick(wanted)
    machine.gpus[0].instances = [first]
    found = [{quantity.key for quantity in told(machine.tick(wanted), 1).values} for _ in range(2)]
    assert found == [set(), {"sm_activity", "dram_activity"}]


def test_where_a_driver_samples_no_mig_handles_a_shared_gpu_instance_is_not_split_by_guess(machine):
    machine.state.gpus = [
        cut(
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
    assert told(snapshot, 1).supported == {"engine_activity": False} and not snapshot.failures


def test_a_card_cut_anew_gives_the_samples_of_its_old_instances_back(machine):
    machine.state.gpus = [cut(NvmlInstance(0, gi=1), NvmlInstance(1, gi=2))]
    activity(machine)
    machine.gpus[0].instances = [NvmlInstance(0, gi=5, activity=70.0)]
    activity(machine)
    assert machine.count("nvmlGpmSampleAlloc") == 8 and machine.count("nvmlGpmSampleFree") == 4
    assert activity(machine)[1] == pytest.approx(0.7)


def test_closing_gives_every_sample_back_before_the_driver_goes(machine):
    machine.state.gpus = [cut(NvmlInstance(0, gi=1)), NvmlGpu()]
    activity(machine)
    machine.source.close()
    assert machine.count("nvmlGpmSampleFree") == machine.count("nvmlGpmSampleAlloc") == 6
    assert activity(machine) == [None] * 3

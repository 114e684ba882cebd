"""Per-process samples: each once, the newest window, none at all told apart from idle."""

import pytest

from gpuledger.model.process import NO_USAGE, Usage
from nvml.library import NvmlGpu, NvmlProcess, NvmlSample
from nvml.machine import Machine, told

NEWER, OLDER = "nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"
IDLE = Usage(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
NOT_SUPPORTED, FUNCTION_NOT_FOUND, NO_PERMISSION, UNKNOWN = 3, 13, 4, 999
SECOND = 1_000_000


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def gpu(machine):
    machine.gpus[0] = NvmlGpu(NvmlProcess(7), NvmlProcess(8))
    return machine.gpus[0]


def usage_of(reading, pid):
    return next(process.usage for process in reading.processes if process.pid == pid)


def test_a_process_uses_the_mean_of_its_samples(machine, gpu):
    gpu.samples = [
        NvmlSample(7, 5 * SECOND, sm=20, mem=10, enc=4, dec=2, jpg=1, ofa=3),
        NvmlSample(7, 5 * SECOND + 1, sm=40, mem=30, enc=0, dec=2, jpg=1, ofa=3),
    ]
    reading = told(machine.tick())
    assert usage_of(reading, 7) == Usage(*map(pytest.approx, (0.3, 0.2, 0.02, 0.02, 0.01, 0.03)))
    assert [(sample.pid, sample.at, sample.sm) for sample in reading.samples] == [
        (7, 5 * SECOND, 0.2),
        (7, 5 * SECOND + 1, 0.4),
    ]


@pytest.mark.parametrize("how", ["not_found", "count_zero"])
def test_no_samples_mean_idle_not_unknown(machine, gpu, how):
    machine.state.no_samples = how
    snapshot = machine.tick()
    assert usage_of(told(snapshot), 7) == IDLE
    assert told(snapshot).samples == () and not snapshot.failures


def test_a_process_without_a_sample_beside_a_busy_one_is_idle(machine, gpu):
    gpu.samples = [NvmlSample(7, 5 * SECOND, sm=20)]
    reading = told(machine.tick())
    assert usage_of(reading, 8) == IDLE and usage_of(reading, 7).sm == 0.2


def test_samples_of_pids_in_no_list_are_handed_on(machine, gpu):
    gpu.samples = [NvmlSample(99, 5 * SECOND, sm=20)]
    assert [sample.pid for sample in told(machine.tick()).samples] == [99]


def test_of_the_first_answer_only_the_last_second_counts(machine, gpu):
    gpu.samples = [
        NvmlSample(7, 1 * SECOND, sm=90),
        NvmlSample(7, 9 * SECOND - 1, sm=90),
        NvmlSample(8, 10 * SECOND, sm=10),
        NvmlSample(7, 9 * SECOND + 1, sm=30),
    ]
    reading = told(machine.tick())
    assert usage_of(reading, 7).sm == pytest.approx(0.3)
    assert len(reading.samples) == 2


def test_a_sample_counts_once(machine, gpu):
    gpu.samples = [NvmlSample(7, 5 * SECOND, sm=20)]
    machine.tick()
    assert told(machine.tick()).samples == ()
    gpu.samples.append(NvmlSample(7, 6 * SECOND, sm=60))
    reading = told(machine.tick())
    assert [sample.at for sample in reading.samples] == [6 * SECOND]
    assert usage_of(reading, 7).sm == pytest.approx(0.6)


def test_each_gpu_has_its_own_newest_sample(machine, gpu):
    gpu.samples = [NvmlSample(7, 50 * SECOND, sm=20)]
    machine.gpus[1].samples = [NvmlSample(9, 5 * SECOND, sm=20)]
    machine.tick()
    machine.gpus[1].samples.append(NvmlSample(9, 6 * SECOND, sm=30))
    assert [sample.at for sample in told(machine.tick(), 1).samples] == [6 * SECOND]


@pytest.mark.parametrize("field", ["sm", "mem", "enc", "dec", "jpg", "ofa"])
@pytest.mark.parametrize("value", [101, 4_294_967_295])
def test_a_sample_beyond_100_percent_is_not_believed(machine, gpu, field, value):
    gpu.samples = [NvmlSample(7, 5 * SECOND, **{field: value}), NvmlSample(8, 5 * SECOND, sm=50)]
    snapshot = machine.tick()
    assert snapshot.invalid == 1
    assert [sample.pid for sample in told(snapshot).samples] == [8]
    assert usage_of(told(snapshot), 7) == NO_USAGE, "disbelieved is not idle"


def test_a_garbled_time_does_not_hide_all_later_samples(machine, gpu):
    gpu.samples = [NvmlSample(7, 2**64 - 1, sm=20), NvmlSample(7, 5 * SECOND, sm=20)]
    machine.tick()
    gpu.samples.append(NvmlSample(7, 6 * SECOND, sm=60))
    assert [sample.at for sample in told(machine.tick()).samples] == [6 * SECOND]


def test_samples_by_wall_time_go_on_after_the_clock_was_set_back(machine, gpu):
    gpu.samples = [NvmlSample(7, 5000 * SECOND, sm=20)]
    machine.tick()
    machine.clock.wall -= 3600
    gpu.samples = [NvmlSample(7, 1400 * SECOND, sm=30)]
    assert usage_of(told(machine.tick()), 7).sm == pytest.approx(0.3)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, 25])
def test_the_older_call_serves_where_the_newer_does_not(machine, gpu, code):
    gpu.errors[NEWER] = code
    gpu.samples = [NvmlSample(7, 5 * SECOND, sm=20, mem=6, enc=3, dec=2)]
    reading = told(machine.tick())
    assert usage_of(reading, 7) == Usage(0.2, 0.06, 0.03, 0.02)
    assert usage_of(reading, 8) == Usage(0.0, 0.0, 0.0, 0.0), "the older call does not tell jpeg and ofa"
    machine.tick()
    assert machine.count(NEWER) == 1 + 2


def test_samples_that_are_not_supported_are_unknown_and_not_asked_again(machine, gpu):
    gpu.errors = {NEWER: NOT_SUPPORTED, OLDER: NOT_SUPPORTED}
    for _ in range(3):
        snapshot = machine.tick()
        assert told(snapshot).samples is None and usage_of(told(snapshot), 7) == NO_USAGE
        assert not snapshot.failures
    assert machine.count(OLDER) == 1


@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN])
def test_samples_that_fail_are_unknown_and_the_rest_is_whole(machine, gpu, code):
    machine.tick()
    gpu.errors[NEWER] = code
    snapshot = machine.tick()
    reading = told(snapshot)
    assert reading.up and reading.samples is None and len(reading.processes) == 2
    assert usage_of(reading, 7) == NO_USAGE
    assert [failure.part for failure in snapshot.failures] == ["utilization"]
    gpu.errors.clear()
    assert usage_of(told(machine.tick()), 7) == IDLE


@pytest.mark.parametrize("call", [NEWER, OLDER])
def test_many_samples_grow_the_buffer(machine, gpu, call):
    gpu.errors = {} if call == NEWER else {NEWER: NOT_SUPPORTED}
    gpu.samples = [NvmlSample(pid, 5 * SECOND, sm=1) for pid in range(1, 1001)]
    assert len(told(machine.tick()).samples) == 1000


def test_the_drivers_own_samples_advance_with_its_time(machine):
    machine.gpus[0] = NvmlGpu(NvmlProcess(7, sm=30))
    machine.state.sample_period = 250_000
    machine.tick()
    assert len(told(machine.tick()).samples) == 4

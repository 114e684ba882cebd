"""Utilization samples: each counts once, as a share of the tick's periods; unreadable is not idle."""

import pytest

from gpuledger.model.process import NO_USAGE, Usage
from nvml.library import NvmlGpu, NvmlProcess, NvmlSample
from nvml.machine import Machine, reading_of
from unit.sources.simulator.support import Node, reading

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


def test_usage_is_the_mean_over_the_periods_of_the_tick(machine, gpu):
    gpu.samples = [
        NvmlSample(7, 5 * SECOND, sm=20, mem=10, enc=4, dec=2, jpg=1, ofa=3),
        NvmlSample(7, 5 * SECOND + SECOND // 2, sm=40, mem=30, enc=0, dec=2, jpg=1, ofa=3),
    ]
    reading = reading_of(machine.tick())
    assert usage_of(reading, 7) == Usage(*map(pytest.approx, (0.3, 0.2, 0.02, 0.02, 0.01, 0.03)))
    assert [(sample.pid, sample.at, sample.sm) for sample in reading.samples] == [
        (7, 5 * SECOND, 0.2),
        (7, 5 * SECOND + SECOND // 2, 0.4),
    ]


def sixths(pid, second, **engines_by_sixth):
    """Samples of the given sixths of a second, as the driver reports them."""
    return [
        NvmlSample(pid, second * SECOND + int(sixth[1:]) * SECOND // 6, sm=percent)
        for sixth, percent in engines_by_sixth.items()
    ]


def test_a_process_busy_in_one_of_six_periods_is_not_busy_in_all(machine, gpu):
    """The driver has no sample of a process for a period in which the process was idle."""
    gpu.samples = sixths(8, 5, _1=90, _2=90, _3=90, _4=90, _5=90, _6=90)
    machine.tick()
    gpu.samples += sixths(7, 6, _3=60)
    gpu.samples += sixths(8, 6, _1=90, _2=90, _3=90, _4=90, _5=90, _6=90)
    reading = reading_of(machine.tick())
    assert usage_of(reading, 7).sm == pytest.approx(0.10)
    assert usage_of(reading, 8).sm == pytest.approx(0.90)


def test_idle_periods_count(machine, gpu):
    gpu.samples = sixths(7, 5, _1=60, _2=60)
    assert usage_of(reading_of(machine.tick()), 7).sm == pytest.approx(0.20)
    gpu.samples += sixths(7, 6, _6=60)
    assert usage_of(reading_of(machine.tick()), 7).sm == pytest.approx(0.10)


def test_a_longer_tick_has_more_periods(machine, gpu):
    gpu.samples = sixths(7, 5, _1=60, _2=60)
    machine.tick()
    gpu.samples += sixths(7, 10, _3=60)
    assert usage_of(reading_of(machine.tick(seconds=5)), 7).sm == pytest.approx(0.02)


def test_samples_of_several_processes_in_one_period_are_one_period(machine, gpu):
    gpu.samples = sixths(7, 5, _1=60, _2=60)
    machine.tick()
    gpu.samples += [NvmlSample(7, 6 * SECOND, sm=60), NvmlSample(8, 6 * SECOND + 900, sm=30)]
    reading = reading_of(machine.tick())
    assert usage_of(reading, 7).sm == pytest.approx(0.10) and usage_of(reading, 8).sm == pytest.approx(0.05)


def test_a_tick_may_contain_one_period_more_than_its_length(machine, gpu):
    gpu.samples = sixths(7, 5, _1=70, _2=70)
    machine.tick()
    gpu.samples += sixths(7, 6, _0=70, _1=70, _2=70, _3=70, _4=70, _5=70, _6=70)
    assert usage_of(reading_of(machine.tick()), 7).sm == pytest.approx(0.70)


def test_ticks_with_failed_samples_count_with_the_next_tick(machine, gpu):
    gpu.samples = sixths(7, 5, _1=60, _2=60)
    machine.tick()
    gpu.errors[NEWER] = UNKNOWN
    machine.tick()
    gpu.errors.clear()
    gpu.samples += sixths(7, 7, _3=60)
    assert usage_of(reading_of(machine.tick()), 7).sm == pytest.approx(0.05)


def test_after_a_loss_only_one_second_counts(machine, gpu):
    gpu.samples = sixths(7, 5, _1=60, _2=60)
    machine.tick()
    gpu.errors["*"] = 15
    machine.tick(seconds=30)
    gpu.errors.clear()
    gpu.samples += sixths(7, 36, _3=60)
    assert usage_of(reading_of(machine.tick()), 7).sm == pytest.approx(0.10)


def test_a_period_with_an_invalid_sample_is_unknown_not_idle(machine, gpu):
    gpu.samples = sixths(7, 5, _1=60, _2=60)
    machine.tick()
    gpu.samples += sixths(7, 6, _1=50, _2=200)
    assert usage_of(reading_of(machine.tick()), 7).sm == pytest.approx(0.10)


@pytest.mark.parametrize("rate", [1, 4, 6, 10])
def test_both_sources_compute_the_same_usage_from_the_same_samples(machine, rate):
    """The simulator knows the sample periods; with the driver they must be estimated."""
    node = Node(f"""
gpus:
  - samples_per_second: {rate}
    processes:
      - {{name: steady, load: 0.4, noise: 0.1, memory_load: 0.2}}
      - {{name: bursts, load: 0.6, busy: 1s, quiet: 2s}}
      - {{name: flickers, load: 0.3, busy: 250ms, quiet: 400ms, encoder: 0.1}}
""")
    node.at(0)
    machine.gpus[0].processes = [NvmlProcess(process.pid) for process in node.at(0.5).processes]
    differing = 0
    for second in range(1, 25):
        theirs = reading(node.at(second))
        machine.gpus[0].samples += [
            NvmlSample(
                each.pid,
                each.at + 7 * SECOND,
                *(round(100 * engine) for engine in (each.sm, each.memory, each.encoder, each.decoder)),
            )
            for each in theirs.samples
        ]
        ours = reading_of(machine.tick())
        if second < 3:
            continue
        for process in theirs.processes:
            mine, known = usage_of(ours, process.pid), process.usage
            assert (mine.sm, mine.memory, mine.encoder, mine.decoder) == pytest.approx(
                (known.sm, known.memory, known.encoder, known.decoder)
            )
            own = [sample.sm for sample in theirs.samples if sample.pid == process.pid]
            differing += bool(own) and sum(own) / len(own) != pytest.approx(known.sm)
    assert differing or rate == 1, "a mean over a process's own samples alone would have passed too"


@pytest.mark.parametrize("how", ["not_found", "count_zero"])
def test_no_samples_mean_idle_not_unknown(machine, gpu, how):
    machine.state.no_samples = how
    snapshot = machine.tick()
    assert usage_of(reading_of(snapshot), 7) == IDLE
    assert reading_of(snapshot).samples == () and not snapshot.failures


def test_a_process_without_a_sample_is_idle_beside_a_busy_one(machine, gpu):
    gpu.samples = [NvmlSample(7, 5 * SECOND, sm=20)]
    reading = reading_of(machine.tick())
    assert usage_of(reading, 8) == IDLE and usage_of(reading, 7).sm == 0.2


def test_samples_of_unlisted_pids_are_reported(machine, gpu):
    gpu.samples = [NvmlSample(99, 5 * SECOND, sm=20)]
    assert [sample.pid for sample in reading_of(machine.tick()).samples] == [99]


def test_only_the_last_second_of_the_first_result_counts(machine, gpu):
    gpu.samples = [
        NvmlSample(7, 1 * SECOND, sm=90),
        NvmlSample(7, 9 * SECOND - 1, sm=90),
        NvmlSample(8, 10 * SECOND - SECOND // 6, sm=10),
        NvmlSample(8, 10 * SECOND, sm=10),
        NvmlSample(7, 9 * SECOND + 1, sm=30),
    ]
    reading = reading_of(machine.tick())
    assert usage_of(reading, 7).sm == pytest.approx(0.05)
    assert len(reading.samples) == 3


def test_a_sample_counts_once(machine, gpu):
    gpu.samples = [NvmlSample(7, 5 * SECOND, sm=20)]
    machine.tick()
    assert reading_of(machine.tick()).samples == ()
    gpu.samples.append(NvmlSample(7, 6 * SECOND, sm=60))
    reading = reading_of(machine.tick())
    assert [sample.at for sample in reading.samples] == [6 * SECOND]
    assert usage_of(reading, 7).sm == pytest.approx(0.6)


@pytest.mark.parametrize("call", [NEWER, OLDER])
def test_a_sample_that_is_listed_twice_is_one(machine, gpu, call):
    if call == OLDER:
        gpu.errors = {NEWER: NOT_SUPPORTED}
    gpu.samples = sixths(7, 5, _1=60, _2=60)
    machine.tick()
    gpu.samples += sixths(7, 6, _3=60) * 2 + sixths(8, 6, _3=30)
    reading = reading_of(machine.tick())
    assert usage_of(reading, 7).sm == pytest.approx(0.10)
    assert [(sample.pid, sample.sm) for sample in reading.samples] == [(7, 0.6), (8, 0.3)]


def test_each_gpu_has_its_own_newest_sample(machine, gpu):
    gpu.samples = [NvmlSample(7, 50 * SECOND, sm=20)]
    machine.gpus[1].samples = [NvmlSample(9, 5 * SECOND, sm=20)]
    machine.tick()
    machine.gpus[1].samples.append(NvmlSample(9, 6 * SECOND, sm=30))
    assert [sample.at for sample in reading_of(machine.tick(), 1).samples] == [6 * SECOND]


@pytest.mark.parametrize("field", ["sm", "mem", "enc", "dec", "jpg", "ofa"])
@pytest.mark.parametrize("value", [101, 4_294_967_295])
def test_a_sample_above_100_percent_is_invalid(machine, gpu, field, value):
    gpu.samples = [NvmlSample(7, 5 * SECOND, **{field: value}), NvmlSample(8, 5 * SECOND, sm=50)]
    snapshot = machine.tick()
    assert snapshot.invalid == 1
    assert [sample.pid for sample in reading_of(snapshot).samples] == [8]
    assert usage_of(reading_of(snapshot), 7) == NO_USAGE, "disbelieved is not idle"


def test_an_invalid_timestamp_does_not_hide_later_samples(machine, gpu):
    gpu.samples = [NvmlSample(7, 2**64 - 1, sm=20), NvmlSample(7, 5 * SECOND, sm=20)]
    machine.tick()
    gpu.samples.append(NvmlSample(7, 6 * SECOND, sm=60))
    assert [sample.at for sample in reading_of(machine.tick()).samples] == [6 * SECOND]


def test_wall_time_samples_continue_after_the_clock_is_set_back(machine, gpu):
    gpu.samples = [NvmlSample(7, 5000 * SECOND, sm=20)]
    machine.tick()
    machine.clock.now_unix -= 3600
    gpu.samples = [NvmlSample(7, 1400 * SECOND, sm=30)]
    assert usage_of(reading_of(machine.tick()), 7).sm == pytest.approx(0.3)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, 25])
def test_the_older_call_is_used_if_the_newer_is_unsupported(machine, gpu, code):
    gpu.errors[NEWER] = code
    gpu.samples = [NvmlSample(7, 5 * SECOND, sm=20, mem=6, enc=3, dec=2)]
    reading = reading_of(machine.tick())
    assert usage_of(reading, 7) == Usage(0.2, 0.06, 0.03, 0.02)
    assert usage_of(reading, 8) == Usage(0.0, 0.0, 0.0, 0.0), "the older call has no jpeg and ofa"
    machine.tick()
    assert machine.count(NEWER) == 1 + 2


def test_unsupported_samples_are_unknown_and_not_queried_again(machine, gpu):
    gpu.errors = {NEWER: NOT_SUPPORTED, OLDER: NOT_SUPPORTED}
    for _ in range(3):
        snapshot = machine.tick()
        assert reading_of(snapshot).samples is None and usage_of(reading_of(snapshot), 7) == NO_USAGE
        assert not snapshot.failures
    assert machine.count(OLDER) == 1


@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN])
def test_failed_samples_are_unknown_and_affect_nothing_else(machine, gpu, code):
    machine.tick()
    gpu.errors[NEWER] = code
    snapshot = machine.tick()
    reading = reading_of(snapshot)
    assert reading.up and reading.samples is None and len(reading.processes) == 2
    assert usage_of(reading, 7) == NO_USAGE
    assert [failure.part for failure in snapshot.failures] == ["utilization"]
    gpu.errors.clear()
    assert usage_of(reading_of(machine.tick()), 7) == IDLE


@pytest.mark.parametrize("call", [NEWER, OLDER])
def test_many_samples_grow_the_buffer(machine, gpu, call):
    gpu.errors = {} if call == NEWER else {NEWER: NOT_SUPPORTED}
    gpu.samples = [NvmlSample(pid, 5 * SECOND, sm=1) for pid in range(1, 1001)]
    assert len(reading_of(machine.tick()).samples) == 1000


def test_the_drivers_samples_follow_its_clock(machine):
    machine.gpus[0] = NvmlGpu(NvmlProcess(7, sm=30))
    machine.state.sample_period = 250_000
    machine.tick()
    assert len(reading_of(machine.tick()).samples) == 4

"""Accounting mode: records of processes that started or ended since the last tick."""

import logging

import pytest

from gpuledger.model.process import AccountingRecord
from nvml.library import NvmlAccount, NvmlGpu, NvmlInstance, NvmlProcess
from nvml.machine import Machine, pids, reading_of

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT, LOST, UNKNOWN = 3, 4, 6, 10, 15, 999
SET, STATS = "nvmlDeviceSetAccountingMode", "nvmlDeviceGetAccountingStats"
PIDS, MODE = "nvmlDeviceGetAccountingPids", "nvmlDeviceGetAccountingMode"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    made.state.gpus = [NvmlGpu(accounting=1)]
    made.gpus[0].accounts = [NvmlAccount(5, 1, 60_000)]
    made.tick([])
    return made


def ended(machine, pid, ago, lived):
    """A record of a process that started `ago` seconds before the next tick and ran for `lived` seconds."""
    return NvmlAccount(pid, microseconds(machine, ago), int(lived * 1000))


def running(machine, pid, ago):
    return NvmlAccount(pid, microseconds(machine, ago), running=True)


def microseconds(machine, ago):
    return round((machine.clock.now_unix + 1 - ago) * 1e6)


def records(machine, seconds=1.0, index=0):
    return reading_of(machine.tick([], seconds), index).accounting


def test_a_process_between_two_ticks_is_recorded_with_start_and_end_on_the_sources_clock(machine):
    machine.gpus[0].accounts.append(ended(machine, 7, ago=0.75, lived=0.5))
    (record,) = records(machine)
    now = machine.clock.now_elapsed
    assert record.pid == 7
    assert (record.began, record.ended) == (
        pytest.approx(now - 0.75, abs=1e-5),
        pytest.approx(now - 0.25, abs=1e-5),
    )


def test_each_record_is_returned_once(machine):
    machine.gpus[0].accounts.append(ended(machine, 7, 0.75, 0.5))
    assert len(records(machine)) == 1
    assert records(machine) == records(machine) == ()
    assert machine.count(STATS) == 1


def test_records_from_before_the_first_tick_are_ignored(machine):
    assert records(machine) == () and machine.count(STATS) == 0


def test_a_process_is_recorded_at_its_start_and_after_its_end(machine):
    gpu = machine.gpus[0]
    gpu.processes = [NvmlProcess(7)]
    gpu.accounts.append(running(machine, 7, ago=0.5))
    (came,) = records(machine)
    assert (came.pid, came.ended) == (7, None)
    assert came.began == pytest.approx(machine.clock.now_elapsed - 0.5, abs=1e-5)
    assert records(machine) == ()
    gpu.processes = []
    gpu.accounts[-1] = ended(machine, 7, ago=2.5, lived=2.25)
    (left,) = records(machine)
    assert (left.pid, left.began) == (7, pytest.approx(came.began, abs=1e-5))
    assert left.ended == pytest.approx(machine.clock.now_elapsed - 0.25, abs=1e-5)
    assert machine.count(STATS) == 2


def test_a_process_from_before_the_first_tick_is_recorded_after_its_end(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch)
    machine.state.gpus = [NvmlGpu(NvmlProcess(7), NvmlProcess(8), accounting=1)]
    machine.gpus[0].accounts = [running(machine, 7, ago=60)]
    assert records(machine) == ()
    machine.gpus[0].processes = []
    machine.gpus[0].accounts = [ended(machine, 7, ago=62, lived=61.5)]
    # Process 8 started before the mode was turned on, so it has no record.
    assert [record.pid for record in records(machine)] == [7]
    assert machine.count(STATS) == 1


def test_a_process_missing_from_the_lists_is_recorded_once_it_is_listed(machine):
    machine.gpus[0].accounts.append(running(machine, 7, ago=0.1))
    assert records(machine) == ()
    machine.gpus[0].processes = [NvmlProcess(7)]
    assert [record.pid for record in records(machine)] == [7]


def test_a_late_end_of_a_process_is_waited_for(machine):
    gpu = machine.gpus[0]
    gpu.processes, began = [NvmlProcess(7)], microseconds(machine, 0.5)
    gpu.accounts.append(NvmlAccount(7, began, running=True))
    records(machine)
    gpu.processes = []
    assert records(machine) == records(machine) == ()
    gpu.accounts[-1] = NvmlAccount(7, began, 900)
    assert [record.ended - record.began for record in records(machine)] == [pytest.approx(0.9, abs=1e-5)]


def test_a_process_that_is_never_listed_is_read_five_times(machine):
    machine.gpus[0].accounts.append(running(machine, 7, ago=0.1))
    for _ in range(20):
        assert records(machine) == ()
    assert machine.count(STATS) == 5


def test_reads_left_are_not_used_up_between_scans_of_the_lists(machine):
    machine.new_source(process_scan_interval=30.0)
    records(machine)
    before = machine.count(STATS)
    machine.gpus[0].accounts.append(running(machine, 7, ago=0.1))
    for _ in range(20):
        assert records(machine) == ()
    assert machine.count(STATS) - before == 1
    machine.gpus[0].processes = [NvmlProcess(7)]
    assert [record.pid for _ in range(11) for record in records(machine)] == [7]


def test_a_reused_pid_is_recorded_after_its_end(machine):
    gpu = machine.gpus[0]
    gpu.processes = [NvmlProcess(5)]
    gpu.accounts = [running(machine, 5, ago=0.5)]
    records(machine)
    gpu.processes = []
    gpu.accounts = [ended(machine, 5, ago=1.5, lived=1)]
    assert [record.pid for record in records(machine)] == [5]


def test_a_start_time_since_boot_is_supported(machine):
    start = round((machine.clock.now_elapsed + 0.25) * 1e6)
    machine.gpus[0].accounts.append(NvmlAccount(7, start, 500))
    began = machine.clock.now_elapsed + 0.25
    assert records(machine) == (AccountingRecord(7, began, began + 0.5),)


@pytest.mark.parametrize(
    ("start", "time"),
    [
        (0, 500),
        (2**64 - 1, 500),
        (1_700_000_005_000_000, 0),
        (1_000_500_000, 60_000),
        (1_699_990_000_000_000, 500),
    ],
    ids=["no start", "not available", "begins in the future", "ends in the future", "before boot"],
)
def test_an_impossible_record_is_dropped_and_counted_as_invalid(machine, start, time):
    machine.gpus[0].accounts += [NvmlAccount(7, start, time), ended(machine, 8, 0.5, 0.25)]
    snapshot = machine.tick([])
    assert [record.pid for record in reading_of(snapshot).accounting] == [8] and snapshot.invalid == 1


def test_only_new_records_of_a_long_list_are_read(machine):
    machine.gpus[0].accounts = [ended(machine, pid, 100, 1) for pid in range(1, 4001)]
    machine.tick([])
    machine.new_source()
    records(machine)
    machine.gpus[0].accounts[0] = ended(machine, 5_000, 0.5, 0.25)
    before = machine.count(STATS)
    assert [record.pid for record in records(machine)] == [5_000]
    assert machine.count(STATS) - before == 1


def test_a_burst_of_starts_is_read_completely_over_several_ticks(machine):
    machine.gpus[0].accounts = [ended(machine, pid, 0.5, 0.25) for pid in range(1_000, 1_600)]
    bursts = [records(machine) for _ in range(4)]
    assert [len(burst) for burst in bursts] == [256, 256, 88, 0]
    assert {record.pid for burst in bursts for record in burst} == set(range(1_000, 1_600))


def test_ten_thousand_processes_do_not_grow_the_state(machine):
    for first in range(1_000, 11_000, 250):
        machine.gpus[0].accounts = [ended(machine, pid, 0.5, 0.25) for pid in range(first, first + 250)]
        assert len(records(machine)) == 250
    watch = machine.source.discovery.states[0].accounting
    assert not watch.pending_reads and len(watch.pids) == 250 * 4


def test_while_the_mode_is_off_only_the_mode_is_queried_at_the_slow_interval(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch)
    for _ in range(20):
        machine.tick([])
    assert machine.count(PIDS) == machine.count(STATS) == machine.count(SET) == 0
    assert machine.count(MODE) == 2 * 2


def test_a_mode_that_is_turned_on_later_is_detected(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch)
    machine.tick([])
    machine.gpus[0].numbers["accounting"] = 1
    machine.tick([], seconds=10)
    machine.gpus[0].accounts = [ended(machine, 7, 0.5, 0.25)]
    assert [record.pid for record in records(machine)] == [7]


def test_a_mode_that_is_turned_off_is_detected_without_a_failure(machine):
    machine.gpus[0].numbers["accounting"] = 0
    for _ in range(3):
        snapshot = machine.tick([])
        assert reading_of(snapshot).accounting == () and not snapshot.failures
    assert machine.count(PIDS) == 2


def test_a_gpu_with_mig_has_no_records_and_is_not_queried(machine):
    queries = machine.count(MODE)
    machine.gpus[0].numbers["mig"] = 1
    machine.gpus[0].instances = [NvmlInstance(0, gi=1)]
    for _ in range(20):
        snapshot = machine.tick([])
        assert all(reading.accounting == () for reading in snapshot.readings) and not snapshot.failures
    assert machine.count(MODE) == queries
    machine.gpus[0].numbers["mig"], machine.gpus[0].instances = 0, []
    machine.tick([])
    machine.gpus[0].accounts.append(ended(machine, 7, 0.5, 0.25))
    assert [record.pid for record in records(machine)] == [7]


@pytest.mark.parametrize("code", [NO_PERMISSION, TIMEOUT, UNKNOWN])
@pytest.mark.parametrize("call", [PIDS, STATS, MODE])
def test_an_error_delays_records_and_affects_nothing_else(machine, call, code):
    machine.gpus[0].processes = [NvmlProcess(9)]
    machine.gpus[0].accounts.append(ended(machine, 7, 0.5, 0.25))
    machine.gpus[0].errors[call] = code
    snapshot = machine.tick([], seconds=10)
    assert pids(reading_of(snapshot)) == [9] and reading_of(snapshot).up
    assert [failure.part for failure in snapshot.failures] == ["accounting"]
    assert [part.name for part in snapshot.collected if not part.success] == ["accounting"]
    machine.gpus[0].errors.clear()
    seen = [record.pid for record in (*reading_of(snapshot).accounting, *records(machine))]
    assert seen == [7]


def test_a_record_overwritten_before_it_is_read_is_not_a_failure(machine):
    machine.gpus[0].accounts += [ended(machine, 7, 0.5, 0.25), ended(machine, 8, 0.5, 0.25)]
    machine.gpus[0].errors["account.7"] = NOT_FOUND
    snapshot = machine.tick([])
    assert [record.pid for record in reading_of(snapshot).accounting] == [8]
    assert not snapshot.failures and records(machine) == ()


def test_a_returned_gpu_starts_with_a_new_list(machine):
    machine.state.gpus.append(NvmlGpu())
    machine.tick([], seconds=10)
    machine.gpus[0].errors["*"] = LOST
    assert machine.tick([]).readings[0].accounting == ()
    machine.gpus[0].errors.clear()
    machine.gpus[0].accounts = [ended(machine, 7, 0.5, 0.25)]
    assert records(machine) == ()
    machine.gpus[0].accounts.append(ended(machine, 8, 0.5, 0.25))
    assert [record.pid for record in records(machine)] == [8]


def test_each_gpu_has_its_own_records(machine):
    machine.state.gpus.append(NvmlGpu(accounting=1))
    machine.tick([], seconds=10)
    machine.gpus[1].accounts.append(ended(machine, 7, 0.5, 0.25))
    snapshot = machine.tick([])
    assert [[record.pid for record in reading.accounting] for reading in snapshot.readings] == [[], [7]]


@pytest.fixture
def off(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    made.new_source(enable_accounting=True)
    return made


def test_enable_accounting_turns_the_mode_on_and_reads_at_once(off):
    off.tick([])
    assert off.count(SET) == 2
    off.gpus[1].accounts = [ended(off, 7, 0.5, 0.25)]
    assert [record.pid for record in records(off, index=1)] == [7]


def test_the_mode_is_not_turned_on_by_default(machine):
    machine.tick([], seconds=10)
    assert machine.count(SET) == 0


def test_a_mode_that_is_on_or_was_turned_off_later_is_not_changed(off):
    off.gpus[0].numbers["accounting"] = off.gpus[1].numbers["accounting"] = 1
    off.tick([])
    off.gpus[0].numbers["accounting"] = off.gpus[1].numbers["accounting"] = 0
    off.tick([], seconds=10)
    assert off.count(SET) == 0


def test_the_mode_is_turned_on_again_after_a_reload_of_the_driver(off):
    off.tick([])
    off.state.reload += 1
    with pytest.raises(Exception, match="UNINITIALIZED"):
        off.tick([])
    off.tick([], seconds=10)
    assert off.count(SET) == 4


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (NO_PERMISSION, "NO_PERMISSION: run as root, or once `nvidia-smi -am 1` as root"),
        (NOT_SUPPORTED, "NOT_SUPPORTED"),
    ],
)
def test_a_rejected_change_of_the_mode_is_logged_once(off, caplog, code, words):
    off.gpus[0].errors[SET] = code
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            snapshot = off.tick([])
            assert reading_of(snapshot).up and not snapshot.failures
    (line,) = [record for record in caplog.records if record.name == "gpuledger.nvml"]
    assert line.levelname == "WARNING" and "GPU 0: accounting mode" in line.getMessage()
    assert line.getMessage().endswith(words)


def test_a_card_without_accounting_mode_is_logged(off, caplog):
    off.gpus[0].errors[MODE] = NOT_SUPPORTED
    with caplog.at_level(logging.WARNING):
        off.tick([])
    assert [record.getMessage() for record in caplog.records] == [
        "GPU 0: accounting mode cannot be turned on: NOT_SUPPORTED"
    ]
    assert off.count(SET) == 1

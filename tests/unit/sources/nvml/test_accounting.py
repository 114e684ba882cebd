"""Accounting mode: records of processes that began or ended since the last tick."""

import logging

import pytest

from gpuledger.model.process import AccountingRecord
from nvml.library import NvmlAccount, NvmlGpu, NvmlInstance, NvmlProcess
from nvml.machine import Machine, pids, told

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
    """A record of a process that began `ago` seconds before the next tick and lived for `lived`."""
    return NvmlAccount(pid, microseconds(machine, ago), int(lived * 1000))


def running(machine, pid, ago):
    return NvmlAccount(pid, microseconds(machine, ago), running=True)


def microseconds(machine, ago):
    return round((machine.clock.now_unix + 1 - ago) * 1e6)


def records(machine, seconds=1.0, index=0):
    return told(machine.tick([], seconds), index).accounting


def test_a_process_between_two_ticks_is_told_with_begin_and_end_in_the_sources_seconds(machine):
    machine.gpus[0].accounts.append(ended(machine, 7, ago=0.75, lived=0.5))
    (record,) = records(machine)
    now = machine.clock.now_elapsed
    assert record.pid == 7
    assert (record.began, record.ended) == (
        pytest.approx(now - 0.75, abs=1e-5),
        pytest.approx(now - 0.25, abs=1e-5),
    )


def test_each_record_is_told_once(machine):
    machine.gpus[0].accounts.append(ended(machine, 7, 0.75, 0.5))
    assert len(records(machine)) == 1
    assert records(machine) == records(machine) == ()
    assert machine.count(STATS) == 1


def test_what_was_recorded_before_the_first_tick_is_no_news(machine):
    assert records(machine) == () and machine.count(STATS) == 0


def test_a_process_is_told_when_it_comes_and_when_it_has_left(machine):
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


def test_a_process_from_before_the_first_tick_is_told_when_it_has_left(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch)
    machine.state.gpus = [NvmlGpu(NvmlProcess(7), NvmlProcess(8), accounting=1)]
    machine.gpus[0].accounts = [running(machine, 7, ago=60)]
    assert records(machine) == ()
    machine.gpus[0].processes = []
    machine.gpus[0].accounts = [ended(machine, 7, ago=62, lived=61.5)]
    # 8 began before the mode was turned on, so there is none of it.
    assert [record.pid for record in records(machine)] == [7]
    assert machine.count(STATS) == 1


def test_a_process_that_came_after_the_lists_were_read_is_told_when_it_is_in_them(machine):
    machine.gpus[0].accounts.append(running(machine, 7, ago=0.1))
    assert records(machine) == ()
    machine.gpus[0].processes = [NvmlProcess(7)]
    assert [record.pid for record in records(machine)] == [7]


def test_an_end_that_is_noted_late_is_waited_for(machine):
    gpu = machine.gpus[0]
    gpu.processes, began = [NvmlProcess(7)], microseconds(machine, 0.5)
    gpu.accounts.append(NvmlAccount(7, began, running=True))
    records(machine)
    gpu.processes = []
    assert records(machine) == records(machine) == ()
    gpu.accounts[-1] = NvmlAccount(7, began, 900)
    assert [record.ended - record.began for record in records(machine)] == [pytest.approx(0.9, abs=1e-5)]


def test_a_process_that_stays_in_no_list_is_given_up(machine):
    machine.gpus[0].accounts.append(running(machine, 7, ago=0.1))
    for _ in range(20):
        assert records(machine) == ()
    assert machine.count(STATS) == 5


def test_between_scans_of_the_lists_a_process_is_not_given_up(machine):
    machine.new_source(process_scan_interval=30.0)
    records(machine)
    before = machine.count(STATS)
    machine.gpus[0].accounts.append(running(machine, 7, ago=0.1))
    for _ in range(20):
        assert records(machine) == ()
    assert machine.count(STATS) - before == 1
    machine.gpus[0].processes = [NvmlProcess(7)]
    assert [record.pid for _ in range(11) for record in records(machine)] == [7]


def test_a_pid_used_again_is_told_when_it_has_left(machine):
    gpu = machine.gpus[0]
    gpu.processes = [NvmlProcess(5)]
    gpu.accounts = [running(machine, 5, ago=0.5)]
    records(machine)
    gpu.processes = []
    gpu.accounts = [ended(machine, 5, ago=1.5, lived=1)]
    assert [record.pid for record in records(machine)] == [5]


def test_a_start_since_boot_is_understood_too(machine):
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
def test_a_record_that_cannot_be_true_is_disbelieved_and_counted(machine, start, time):
    machine.gpus[0].accounts += [NvmlAccount(7, start, time), ended(machine, 8, 0.5, 0.25)]
    snapshot = machine.tick([])
    assert [record.pid for record in told(snapshot).accounting] == [8] and snapshot.invalid == 1


def test_a_list_of_thousands_is_read_whole_and_only_what_is_new_is_asked(machine):
    machine.gpus[0].accounts = [ended(machine, pid, 100, 1) for pid in range(1, 4001)]
    machine.tick([])
    machine.new_source()
    records(machine)
    machine.gpus[0].accounts[0] = ended(machine, 5_000, 0.5, 0.25)
    before = machine.count(STATS)
    assert [record.pid for record in records(machine)] == [5_000]
    assert machine.count(STATS) - before == 1


def test_a_burst_of_starts_is_told_over_several_ticks_and_whole(machine):
    machine.gpus[0].accounts = [ended(machine, pid, 0.5, 0.25) for pid in range(1_000, 1_600)]
    bursts = [records(machine) for _ in range(4)]
    assert [len(burst) for burst in bursts] == [256, 256, 88, 0]
    assert {record.pid for burst in bursts for record in burst} == set(range(1_000, 1_600))


def test_ten_thousand_processes_leave_nothing_behind(machine):
    for first in range(1_000, 11_000, 250):
        machine.gpus[0].accounts = [ended(machine, pid, 0.5, 0.25) for pid in range(first, first + 250)]
        assert len(records(machine)) == 250
    (watch,) = machine.source._accounting._watched.values()
    assert not watch.due and len(watch.pids) == 250 * 4


def test_without_the_mode_nothing_but_the_mode_is_asked_and_seldom(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch)
    for _ in range(20):
        machine.tick([])
    assert machine.count(PIDS) == machine.count(STATS) == machine.count(SET) == 0
    assert machine.count(MODE) == 2 * 2


def test_a_mode_turned_on_later_is_noticed(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch)
    machine.tick([])
    machine.gpus[0].numbers["accounting"] = 1
    machine.tick([], seconds=10)
    machine.gpus[0].accounts = [ended(machine, 7, 0.5, 0.25)]
    assert [record.pid for record in records(machine)] == [7]


def test_a_mode_turned_off_is_noticed_and_no_failure(machine):
    machine.gpus[0].numbers["accounting"] = 0
    for _ in range(3):
        snapshot = machine.tick([])
        assert told(snapshot).accounting == () and not snapshot.failures
    assert machine.count(PIDS) == 2


def test_a_cut_card_has_no_records_and_is_not_asked(machine):
    asked = machine.count(MODE)
    machine.gpus[0].numbers["mig"] = 1
    machine.gpus[0].instances = [NvmlInstance(0, gi=1)]
    for _ in range(20):
        snapshot = machine.tick([])
        assert all(reading.accounting == () for reading in snapshot.readings) and not snapshot.failures
    assert machine.count(MODE) == asked
    machine.gpus[0].numbers["mig"], machine.gpus[0].instances = 0, []
    machine.tick([])
    machine.gpus[0].accounts.append(ended(machine, 7, 0.5, 0.25))
    assert [record.pid for record in records(machine)] == [7]


@pytest.mark.parametrize("code", [NO_PERMISSION, TIMEOUT, UNKNOWN])
@pytest.mark.parametrize("call", [PIDS, STATS, MODE])
def test_an_error_loses_records_only_and_none_for_good(machine, call, code):
    machine.gpus[0].processes = [NvmlProcess(9)]
    machine.gpus[0].accounts.append(ended(machine, 7, 0.5, 0.25))
    machine.gpus[0].errors[call] = code
    snapshot = machine.tick([], seconds=10)
    assert pids(told(snapshot)) == [9] and told(snapshot).up
    assert [failure.part for failure in snapshot.failures] == ["accounting"]
    assert [part.name for part in snapshot.collected if not part.success] == ["accounting"]
    machine.gpus[0].errors.clear()
    seen = [record.pid for record in (*told(snapshot).accounting, *records(machine))]
    assert seen == [7]


def test_a_record_that_is_overwritten_before_it_is_read_is_no_failure(machine):
    machine.gpus[0].accounts += [ended(machine, 7, 0.5, 0.25), ended(machine, 8, 0.5, 0.25)]
    machine.gpus[0].errors["account.7"] = NOT_FOUND
    snapshot = machine.tick([])
    assert [record.pid for record in told(snapshot).accounting] == [8]
    assert not snapshot.failures and records(machine) == ()


def test_a_card_that_came_back_begins_anew(machine):
    machine.state.gpus.append(NvmlGpu())
    machine.tick([], seconds=10)
    machine.gpus[0].errors["*"] = LOST
    assert machine.tick([]).readings[0].accounting == ()
    machine.gpus[0].errors.clear()
    machine.gpus[0].accounts = [ended(machine, 7, 0.5, 0.25)]
    assert records(machine) == ()
    machine.gpus[0].accounts.append(ended(machine, 8, 0.5, 0.25))
    assert [record.pid for record in records(machine)] == [8]


def test_each_gpu_tells_its_own(machine):
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


def test_when_asked_to_it_turns_the_mode_on_and_reads_at_once(off):
    off.tick([])
    assert off.count(SET) == 2
    off.gpus[1].accounts = [ended(off, 7, 0.5, 0.25)]
    assert [record.pid for record in records(off, index=1)] == [7]


def test_it_turns_nothing_on_unasked(machine):
    machine.tick([], seconds=10)
    assert machine.count(SET) == 0


def test_it_leaves_a_mode_alone_that_is_on_or_was_turned_off_by_somebody_later(off):
    off.gpus[0].numbers["accounting"] = off.gpus[1].numbers["accounting"] = 1
    off.tick([])
    off.gpus[0].numbers["accounting"] = off.gpus[1].numbers["accounting"] = 0
    off.tick([], seconds=10)
    assert off.count(SET) == 0


def test_a_driver_that_was_loaded_anew_is_told_again(off):
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
def test_where_it_may_not_it_warns_once_and_goes_on(off, caplog, code, words):
    off.gpus[0].errors[SET] = code
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            snapshot = off.tick([])
            assert told(snapshot).up and not snapshot.failures
    (line,) = [record for record in caplog.records if record.name == "gpuledger.nvml"]
    assert line.levelname == "WARNING" and "GPU 0: accounting mode" in line.getMessage()
    assert line.getMessage().endswith(words)


def test_a_card_without_the_mode_is_warned_of(off, caplog):
    off.gpus[0].errors[MODE] = NOT_SUPPORTED
    with caplog.at_level(logging.WARNING):
        off.tick([])
    assert [record.getMessage() for record in caplog.records] == [
        "GPU 0: accounting mode is not turned on: NOT_SUPPORTED"
    ]
    assert off.count(SET) == 1

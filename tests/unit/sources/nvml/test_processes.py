"""Process lists: merged, read with one call each in the driver's layout, None if they fail."""

import pytest

from gpuledger.model.process import ProcessType
from gpuledger.model.text import MAX_NAME_LENGTH
from nvml.library import NOT_AVAILABLE, NvmlGpu, NvmlInstance, NvmlProcess
from nvml.machine import Machine, pids, reading_of

COMPUTE, GRAPHICS, MPS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
NOT_SUPPORTED, NO_PERMISSION, UNKNOWN = 3, 4, 999


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def rows(reading):
    return {process.pid: process for process in reading.processes}


def test_processes_are_reported_with_their_memory(machine):
    machine.gpus[0].processes = [
        NvmlProcess(101, memory=5 << 30),
        NvmlProcess(102, memory=6 << 30),
        NvmlProcess(103),
    ]
    by_pid = rows(reading_of(machine.tick()))
    assert {pid: row.memory for pid, row in by_pid.items()} == {101: 5 << 30, 102: 6 << 30, 103: 1 << 30}
    assert by_pid[101].host.start.ticks == 101
    assert reading_of(machine.tick(), 1).processes == ()


def test_a_pid_in_several_lists_is_merged(machine):
    machine.gpus[0].processes = [
        NvmlProcess(7, memory=2 << 30, types="C"),
        NvmlProcess(7, memory=3 << 30, types="G"),
        NvmlProcess(8, memory=1 << 30, types="CM"),
        NvmlProcess(9, memory=6 << 30, types="C"),
        NvmlProcess(9, memory=5 << 30, types="G"),
    ]
    by_pid = rows(reading_of(machine.tick()))
    assert (by_pid[7].type_text, by_pid[7].memory) == ("C+G", 3 << 30)
    assert by_pid[9].memory == 6 << 30
    assert by_pid[8].types == {ProcessType.COMPUTE, ProcessType.MPS}


def test_memory_reported_in_only_one_list_is_kept(machine):
    machine.gpus[0].processes = [
        NvmlProcess(7, memory=2 << 30),
        NvmlProcess(7, memory=NOT_AVAILABLE, types="G"),
    ]
    assert rows(reading_of(machine.tick()))[7].memory == 2 << 30


def test_unavailable_memory_is_absent(machine):
    machine.gpus[0].processes = [NvmlProcess(7, memory=NOT_AVAILABLE), NvmlProcess(8)]
    snapshot = machine.tick()
    assert rows(reading_of(snapshot))[7].memory is None and snapshot.invalid == 0


def test_memory_above_the_cards_total_is_omitted_and_counted_as_invalid(machine):
    machine.gpus[0].processes = [NvmlProcess(7, memory=90 << 40), NvmlProcess(8)]
    snapshot = machine.tick()
    assert rows(reading_of(snapshot))[7].memory is None and snapshot.invalid == 1


def test_pid_0_is_skipped(machine):
    machine.gpus[0].processes = [NvmlProcess(0), NvmlProcess(8)]
    assert pids(reading_of(machine.tick())) == [8]


def test_a_long_list_grows_the_buffer_once(machine):
    machine.gpus[0].processes = [NvmlProcess(pid) for pid in range(1, 513)]
    assert pids(reading_of(machine.tick())) == list(range(1, 513))
    before = machine.count(COMPUTE)
    machine.tick()
    assert machine.count(COMPUTE) - before == 2


@pytest.mark.parametrize("call", [COMPUTE, GRAPHICS, MPS])
@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN])
def test_a_failed_list_is_not_empty(machine, call, code):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.gpus[1].processes = [NvmlProcess(8)]
    machine.gpus[0].errors[call] = code
    snapshot = machine.tick()
    assert reading_of(snapshot).up and reading_of(snapshot).processes is None
    assert pids(reading_of(snapshot, 1)) == [8]
    assert [(failure.part, failure.device) for failure in snapshot.failures] == [
        ("processes", reading_of(snapshot).device)
    ]


def test_an_unsupported_list_is_not_a_failure(machine):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.gpus[0].errors = {GRAPHICS: NOT_SUPPORTED, MPS: NOT_SUPPORTED}
    snapshot = machine.tick()
    assert pids(reading_of(snapshot)) == [7] and not snapshot.failures


def test_a_card_without_any_list_has_unknown_processes(machine):
    machine.gpus[0].errors = {COMPUTE: NOT_SUPPORTED, GRAPHICS: NOT_SUPPORTED, MPS: NOT_SUPPORTED}
    snapshot = machine.tick()
    assert reading_of(snapshot).processes is None
    assert [failure.reason for failure in snapshot.failures] == ["NOT_SUPPORTED"]


def test_pids_of_a_failed_list_remain_known_to_the_host(machine):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.tick()
    machine.gpus[0].errors[COMPUTE] = UNKNOWN
    machine.tick()
    assert machine.host.identified[-1] == {7}
    machine.gpus[0].errors.clear()
    machine.gpus[0].processes = []
    machine.tick()
    assert machine.host.identified[-1] == frozenset()


def test_the_host_identifies_all_pids_in_one_call_per_tick(machine):
    machine.gpus[0].processes = [NvmlProcess(7), NvmlProcess(8)]
    machine.gpus[1].processes = [NvmlProcess(8)]
    machine.tick()
    assert machine.host.identified == [{7, 8}]


@pytest.mark.parametrize("variant", ["", "r535"])
@pytest.mark.parametrize("longer", [True, False], ids=["longer structure", "normal structure"])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_the_layout_of_the_process_structure_is_detected(tmp_path, monkeypatch, variant, longer, number):
    """Also if the library's symbols suggest the other layout."""
    machine = Machine(tmp_path, monkeypatch, variant)
    machine.state.r535 = longer
    machine.gpus[0].processes = [NvmlProcess(1000 + n, memory=(n + 1) << 30) for n in range(number)]
    for _ in range(2):
        snapshot = machine.tick()
        assert {row.pid: row.memory for row in reading_of(snapshot).processes} == {
            1000 + n: (n + 1) << 30 for n in range(number)
        }
        assert snapshot.invalid == 0


def test_processes_are_read_with_the_calls_of_an_old_library(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, "old")
    machine.gpus[0].processes = [NvmlProcess(7, sm=40), NvmlProcess(8, types="CG")]
    by_pid = rows(reading_of(machine.tick()))
    assert sorted(by_pid) == [7, 8] and by_pid[8].type_text == "C+G"
    assert by_pid[7].usage.sm == pytest.approx(0.4) and by_pid[7].usage.jpeg is None


def test_a_name_is_queried_once_per_process(machine):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.gpus[1].processes = [NvmlProcess(7)]
    machine.state.names[7] = b"/usr/bin/python3"
    for _ in range(3):
        process = rows(reading_of(machine.tick()))[7]
        assert (process.name, process.command) == ("/usr/bin/python3", "python3")
    assert machine.count("nvmlSystemGetProcessName") == 1


def test_the_name_of_a_reused_pid_is_queried_again(machine):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.state.names[7] = b"first"
    machine.tick()
    machine.state.names[7] = b"second"
    machine.host.born[7] = 9_999
    assert rows(reading_of(machine.tick()))[7].name == "second"


def test_names_are_forgotten_with_their_processes(machine):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.tick()
    machine.gpus[0].processes = []
    machine.tick()
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.tick()
    assert machine.count("nvmlSystemGetProcessName") == 2


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"/opt/caf\xc3\xa9", "/opt/caf\u00e9"),
        (b"/opt/\xff\xfe", "/opt/\\xff\\xfe"),
        (b"a\x1bb\x01", "a\\x1bb\\x01"),
        (b"/" + b"d" * 600 + b"/train", "/" + "d" * 600 + "/train"),
        (b"", ""),
    ],
)
def test_any_bytes_may_be_a_name(machine, raw, name):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.state.names[7] = raw
    assert rows(reading_of(machine.tick()))[7].name == name


def test_the_base_name_of_a_deep_path_survives(machine):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.state.names[7] = b"/" + b"x" * MAX_NAME_LENGTH + b"/bin/serve"
    assert rows(reading_of(machine.tick()))[7].command == "serve"


def test_a_process_without_a_name_is_not_a_failure(machine):
    machine.gpus[0].processes = [NvmlProcess(7)]
    snapshot = machine.tick()
    assert rows(reading_of(snapshot))[7].name == "" and not snapshot.failures


def mig_gpu(*processes):
    gpu = NvmlGpu(*processes, mig=1)
    gpu.instances = [NvmlInstance(0, gi=1), NvmlInstance(1, gi=2, ci=0), NvmlInstance(2, gi=2, ci=1)]
    return gpu


def test_processes_of_a_gpu_with_mig_are_listed_only_on_its_instances(machine):
    machine.state.gpus = [mig_gpu(NvmlProcess(7, gi=1, ci=0), NvmlProcess(8, gi=2, ci=1))]
    snapshot = machine.tick()
    assert [pids(reading) for reading in snapshot.readings] == [[], [7], [], [8]]
    assert [process.pid for process in snapshot.processes] == [7, 8]
    assert rows(reading_of(snapshot, 1))[7].usage.sm is None


@pytest.mark.parametrize("code", [NOT_SUPPORTED, UNKNOWN])
def test_without_lists_per_instance_the_gpus_list_is_used(machine, code):
    machine.state.gpus = [mig_gpu(NvmlProcess(7, gi=1, ci=0), NvmlProcess(8, gi=2, ci=1))]
    machine.gpus[0].errors = {f"mig.{call}": code for call in (COMPUTE, GRAPHICS, MPS)}
    snapshot = machine.tick()
    assert [pids(reading) for reading in snapshot.readings] == [[], [7], [], [8]]
    assert all(reading.up for reading in snapshot.readings)
    assert not snapshot.failures
    assert machine.count(COMPUTE) == 3 + 1, "the Gpu's own list is read once for all its Instances"


def test_without_any_list_the_processes_of_instances_are_unknown(machine):
    machine.state.gpus = [mig_gpu(NvmlProcess(7, gi=1, ci=0))]
    machine.gpus[0].errors = {COMPUTE: NO_PERMISSION}
    snapshot = machine.tick()
    assert [reading.processes for reading in snapshot.readings[1:]] == [None, None, None]
    assert {failure.reason for failure in snapshot.failures} == {"NO_PERMISSION"}


def test_lists_are_read_at_the_scan_interval_and_reused_between(machine):
    machine.new_source(process_scan_interval=5.0)
    machine.gpus[0].processes = [NvmlProcess(7, sm=10)]
    machine.tick()
    machine.gpus[0].processes = [NvmlProcess(7, sm=50), NvmlProcess(8)]
    for _ in range(4):
        row = rows(reading_of(machine.tick()))
        assert list(row) == [7] and row[7].usage.sm == pytest.approx(0.5)
    assert machine.count(COMPUTE) == 2
    assert pids(reading_of(machine.tick())) == [7, 8]


def test_a_failed_list_does_not_wait_for_the_scan_interval(machine):
    machine.new_source(process_scan_interval=5.0)
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.gpus[0].errors[COMPUTE] = UNKNOWN
    assert reading_of(machine.tick()).processes is None
    machine.gpus[0].errors.clear()
    assert pids(reading_of(machine.tick())) == [7]


def test_a_new_mig_layout_does_not_wait_for_the_scan_interval(machine):
    machine.new_source(process_scan_interval=60.0)
    machine.state.gpus = [NvmlGpu(NvmlProcess(7))]
    machine.tick()
    machine.state.gpus = [mig_gpu()]
    machine.tick()
    machine.state.gpus = [NvmlGpu(NvmlProcess(8))]
    assert pids(reading_of(machine.tick())) == [8]


def test_a_returned_gpu_does_not_wait_for_the_scan_interval(machine):
    machine.new_source(process_scan_interval=60.0)
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.tick()
    machine.gpus[0].errors["*"] = 15
    assert reading_of(machine.tick()).processes is None
    machine.gpus[0].errors.clear()
    machine.gpus[0].processes = [NvmlProcess(8)]
    assert pids(reading_of(machine.tick())) == [8]

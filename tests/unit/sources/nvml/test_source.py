"""The driver as a whole: not there, gone, replaced, back."""

import threading
from itertools import pairwise

import pytest

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import POWER
from nvml.library import NvmlProcess
from nvml.machine import Machine, told

UNINITIALIZED, NOT_LOADED, MISMATCH, LOST, UNKNOWN = 1, 9, 18, 15, 999
INIT = "nvmlInitWithFlags"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def refused(machine, seconds=1.0):
    with pytest.raises(SourceUnavailable) as caught:
        machine.tick(seconds=seconds)
    return caught.value


def test_nothing_is_loaded_before_the_first_read(machine):
    assert machine.source.calls == 0 and machine.source.info.driver_version == ""


def test_a_missing_library_names_itself_and_the_remedy(machine, monkeypatch):
    def missing():
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    source = machine.new_source()
    monkeypatch.setattr(source._library, "_load", missing)
    error = refused(machine)
    assert error.reason == "LIBRARY_NOT_FOUND"
    assert "libnvidia-ml.so.1" in str(error) and "NVIDIA_DRIVER_CAPABILITIES=utility" in str(error)
    assert "\n" not in str(error)


def test_a_driver_installed_later_is_found(machine, monkeypatch):
    def missing():
        raise OSError("not yet")

    load = machine.source._library._load
    monkeypatch.setattr(machine.source._library, "_load", missing)
    refused(machine)
    monkeypatch.setattr(machine.source._library, "_load", load)
    assert told(machine.tick(seconds=2)).get(POWER) == 100.0


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        (NOT_LOADED, "DRIVER_NOT_LOADED", "modprobe nvidia"),
        (MISMATCH, "LIB_RM_VERSION_MISMATCH", "delete its pod"),
        (4, "NO_PERMISSION", "/dev/nvidiactl"),
        (UNKNOWN, "UNKNOWN", "daemon-reload"),
        (17, "OPERATING_SYSTEM", "dmesg"),
        (77, "NVML_77", "dmesg"),
    ],
)
def test_a_driver_that_does_not_start_names_its_reason_and_the_remedy(machine, code, reason, remedy):
    machine.state.errors[INIT] = code
    error = refused(machine)
    assert error.reason == reason and remedy in str(error) and "\n" not in str(error)


def test_a_driver_is_tried_again_with_growing_pauses(machine):
    machine.state.errors[INIT] = NOT_LOADED
    tried = []
    for second in range(400):
        before = machine.count(INIT)
        assert refused(machine).reason == "DRIVER_NOT_LOADED"
        if machine.count(INIT) > before:
            tried.append(second)
    assert [after - before for before, after in pairwise(tried)] == [
        1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60,
    ]  # fmt: skip


def test_a_driver_that_starts_again_is_read_again(machine):
    machine.state.errors[INIT] = NOT_LOADED
    refused(machine)
    machine.state.errors.clear()
    assert told(machine.tick(seconds=1)).get(POWER) == 100.0


def test_a_reloaded_driver_is_found_again_with_what_changed(machine):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.tick()
    machine.state.reload += 1
    machine.gpus[0].uuid = "GPU-another"
    assert refused(machine).reason == "UNINITIALIZED"
    snapshot = machine.tick(seconds=1)
    assert told(snapshot).device.uuid == "GPU-another"
    assert [process.pid for process in told(snapshot).processes] == [7]
    assert machine.count("nvmlShutdown") == 1 and machine.count(INIT) == 2


@pytest.mark.parametrize("code", [UNINITIALIZED, NOT_LOADED, MISMATCH])
def test_a_driver_gone_under_all_gpus_is_said_at_once_and_recovered(machine, code):
    machine.tick()
    machine.state.errors["*"] = code
    refused(machine)
    refused(machine)
    machine.state.errors.clear()
    assert told(machine.tick(seconds=10)).get(POWER) == 100.0


def test_a_tick_carries_the_boot_and_the_load_of_the_driver(machine):
    snapshot = machine.tick()
    assert (snapshot.boot_id, snapshot.driver_load) == ("boot", "100")
    machine.host.loaded = "of no interest until the driver is started anew"
    assert machine.tick().driver_load == "100"
    assert machine.host.epochs_asked == 1


@pytest.mark.parametrize("code", [UNINITIALIZED, NOT_LOADED])
def test_an_unload_that_was_seen_makes_another_load(machine, code):
    machine.tick()
    machine.state.errors["*"] = code
    refused(machine)
    machine.state.errors.clear()
    machine.host.loaded = "9000"
    assert machine.tick(seconds=10).driver_load == "9000"


def test_a_start_of_the_library_alone_makes_no_other_load(machine):
    machine.tick()
    machine.source.close()
    assert machine.tick().driver_load == "100"
    assert machine.count(INIT) == 2


def test_the_pause_is_short_again_after_a_good_tick(machine):
    machine.state.errors[INIT] = NOT_LOADED
    for _ in range(20):
        refused(machine)
    machine.state.errors.clear()
    machine.tick(seconds=60)
    machine.state.reload += 1
    refused(machine)
    assert told(machine.tick(seconds=1)).up


def test_with_all_gpus_lost_each_is_told_as_down_and_the_driver_is_started_anew(machine):
    machine.tick()
    for gpu in machine.gpus:
        gpu.errors["*"] = LOST
    for _ in range(5):
        snapshot = machine.tick()
        assert [reading.up for reading in snapshot.readings] == [False, False]
        assert not snapshot.devices_failed
    assert 2 <= machine.count(INIT) <= 4
    machine.gpus[1].errors.clear()
    assert [reading.up for reading in machine.tick().readings] == [False, True]


def test_gpus_that_were_renumbered_are_each_told_once(machine):
    machine.gpus[0].uuid, machine.gpus[1].uuid = "GPU-a", "GPU-b"
    machine.tick()
    machine.state.reload += 1
    machine.gpus[0].uuid, machine.gpus[1].uuid = "GPU-c", "GPU-a"
    machine.gpus[0].errors["*"] = LOST
    refused(machine)
    snapshot = machine.tick()
    assert [(reading.device.uuid, reading.device.index) for reading in snapshot.readings] == [("GPU-a", 1)]
    assert snapshot.devices_failed


def test_gpus_lost_before_the_first_tick_make_the_machine_unavailable(machine):
    for gpu in machine.gpus:
        gpu.errors["*"] = LOST
    assert refused(machine).reason == "GPU_IS_LOST"


def test_close_lets_the_driver_go_and_may_be_repeated(machine):
    machine.source.close()
    machine.tick()
    machine.source.close()
    machine.source.close()
    assert machine.count("nvmlShutdown") == machine.count("nvmlEventSetFree") == 1
    assert told(machine.tick()).up


def test_every_part_of_a_tick_is_accounted_for(machine):
    snapshot = machine.tick()
    assert [part.name for part in snapshot.collected] == [
        "devices",
        "readings",
        "processes",
        "utilization",
        "accounting",
        "events",
    ]
    assert all(part.success and part.seconds >= 0 for part in snapshot.collected)


def test_a_tick_carries_both_times(machine):
    snapshot = machine.tick()
    assert (snapshot.unix, snapshot.elapsed) == (machine.clock.now_unix, machine.clock.now_elapsed)


def test_a_hanging_call_goes_on_when_the_driver_does(machine):
    machine.tick()
    machine.state.hang = ("nvmlDeviceGetTemperature",)
    snapshots = []
    reader = threading.Thread(target=lambda: snapshots.append(machine.tick()))
    reader.start()
    while machine.count("nvmlDeviceGetTemperature") < 3:
        assert reader.is_alive()
    assert not snapshots
    machine.state.hang = ()
    machine.state.write()
    reader.join(10)
    assert told(snapshots[0]).up

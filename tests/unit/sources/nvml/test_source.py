"""The driver as a whole: missing, unloaded, replaced, returned."""

import threading
from itertools import pairwise

import pytest

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import POWER
from gpuledger.sources.nvml import library
from nvml.library import NvmlProcess
from nvml.machine import Machine, reading_of
from running import PATIENCE

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
    assert machine.calls == 0 and machine.source.info.driver_version == ""


def test_the_error_for_a_missing_library_names_the_remedy(machine, monkeypatch):
    def missing():
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    source = machine.new_source()
    monkeypatch.setattr(source._library, "_load", missing)
    error = refused(machine)
    assert (error.reason, source.info.return_code) == ("LIBRARY_NOT_FOUND", 12)
    assert "libnvidia-ml.so.1" in str(error) and "NVIDIA_DRIVER_CAPABILITIES=utility" in str(error)
    assert "\n" not in str(error)


def test_a_driver_installed_later_is_found(machine, monkeypatch):
    def missing():
        raise OSError("not yet")

    load = machine.source._library._load
    monkeypatch.setattr(machine.source._library, "_load", missing)
    refused(machine)
    monkeypatch.setattr(machine.source._library, "_load", load)
    assert reading_of(machine.tick(seconds=2)).get(POWER) == 100.0


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
def test_the_error_for_a_failed_start_names_reason_and_remedy(machine, code, reason, remedy):
    machine.state.errors[INIT] = code
    error = refused(machine)
    assert error.reason == reason and remedy in str(error) and "\n" not in str(error)
    assert machine.source.info.return_code == code
    machine.state.errors.clear()
    assert machine.tick(seconds=2).source.return_code == 0


def test_the_start_of_the_driver_is_retried_with_growing_delays(machine):
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


def test_a_driver_that_starts_at_a_retry_is_read(machine):
    machine.state.errors[INIT] = NOT_LOADED
    refused(machine)
    machine.state.errors.clear()
    assert reading_of(machine.tick(seconds=1)).get(POWER) == 100.0


def test_changed_gpus_are_found_after_a_reload_of_the_driver(machine):
    machine.gpus[0].processes = [NvmlProcess(7)]
    machine.tick()
    machine.state.reload += 1
    machine.gpus[0].uuid = "GPU-another"
    assert refused(machine).reason == "UNINITIALIZED"
    snapshot = machine.tick(seconds=1)
    assert reading_of(snapshot).device.uuid == "GPU-another"
    assert [process.pid for process in reading_of(snapshot).processes] == [7]
    assert machine.count("nvmlShutdown") == 1 and machine.count(INIT) == 2


@pytest.mark.parametrize("code", [UNINITIALIZED, NOT_LOADED, MISMATCH])
def test_an_unloaded_driver_is_reported_at_once_and_recovered(machine, code):
    machine.tick()
    machine.state.errors["*"] = code
    refused(machine)
    refused(machine)
    machine.state.errors.clear()
    assert reading_of(machine.tick(seconds=10)).get(POWER) == 100.0


def test_the_reason_of_the_system_is_named_where_a_loader_replaces_it(monkeypatch):
    def frozen(name):
        try:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        except OSError as error:
            raise OSError("not found when the application was frozen") from error

    monkeypatch.setattr(library, "CDLL", frozen)
    with pytest.raises(OSError, match="No such file"):
        library.load_library()


def test_a_snapshot_has_the_boot_id_and_the_driver_load(machine):
    snapshot = machine.tick()
    assert (snapshot.boot_id, snapshot.driver_load) == ("boot", "100")
    machine.host.loaded = "ignored until the driver is restarted"
    assert machine.tick().driver_load == "100"
    assert machine.host.epoch_calls == 1


@pytest.mark.parametrize("code", [UNINITIALIZED, NOT_LOADED])
def test_a_detected_unload_updates_the_driver_load(machine, code):
    machine.tick()
    machine.state.errors["*"] = code
    refused(machine)
    machine.state.errors.clear()
    machine.host.loaded = "9000"
    assert machine.tick(seconds=10).driver_load == "9000"


def test_a_restart_of_the_library_alone_keeps_the_driver_load(machine):
    machine.tick()
    machine.source.close()
    assert machine.tick().driver_load == "100"
    assert machine.count(INIT) == 2


def test_the_retry_delay_is_reset_by_a_successful_tick(machine):
    machine.state.errors[INIT] = NOT_LOADED
    for _ in range(20):
        refused(machine)
    machine.state.errors.clear()
    machine.tick(seconds=60)
    machine.state.reload += 1
    refused(machine)
    assert reading_of(machine.tick(seconds=1)).up


def test_with_all_gpus_lost_each_is_reported_down_and_the_driver_is_restarted(machine):
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


def test_renumbered_gpus_are_reported_once(machine):
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


def test_close_releases_the_driver_and_may_be_repeated(machine):
    machine.source.close()
    machine.tick()
    machine.source.close()
    machine.source.close()
    assert machine.count("nvmlShutdown") == machine.count("nvmlEventSetFree") == 1
    assert reading_of(machine.tick()).up


def test_a_snapshot_has_a_run_of_each_collector(machine):
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


def test_a_snapshot_has_both_times(machine):
    snapshot = machine.tick()
    assert (snapshot.unix, snapshot.elapsed) == (machine.clock.now_unix, machine.clock.now_elapsed)


def test_a_hanging_call_continues_when_the_driver_does(machine):
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
    reader.join(PATIENCE)
    assert reading_of(snapshots[0]).up

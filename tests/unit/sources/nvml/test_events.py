"""Xid errors are read without waiting, each once."""

import pytest

from nvml.machine import Machine, reading_of

NOT_SUPPORTED, LOST, UNKNOWN = 3, 15, 999
WAIT = "nvmlEventSetWait_v2"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_an_xid_is_reported_once_with_its_gpu(machine):
    machine.tick()
    machine.state.events = [(1, 31), (0, 79), (1, 31)]
    snapshot = machine.tick()
    assert [(event.gpu.index, event.xid, event.at) for event in snapshot.xids] == [
        (1, 31, machine.clock.now_unix),
        (0, 79, machine.clock.now_unix),
        (1, 31, machine.clock.now_unix),
    ]
    assert machine.tick().xids == ()


def test_an_xid_names_the_instance_if_the_driver_does(machine):
    machine.tick()
    machine.state.events = [(0, 94, 2, 1), (0, 95)]
    assert [(event.gi, event.ci) for event in machine.tick().xids] == [(2, 1), (None, None)]


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents", "nvmlEventSetCreate", WAIT]
)
def test_a_driver_without_events_is_not_a_failure(machine, call):
    machine.state.errors[call] = NOT_SUPPORTED
    machine.tick()
    snapshot = machine.tick()
    assert not snapshot.failures and snapshot.xids == ()


def test_a_failed_registration_does_not_affect_other_gpus(machine):
    machine.gpus[0].errors["nvmlDeviceRegisterEvents"] = UNKNOWN
    machine.tick()
    machine.state.events = [(1, 31)]
    snapshot = machine.tick()
    assert [event.gpu.index for event in snapshot.xids] == [1]
    assert [(failure.part, failure.device.index) for failure in snapshot.failures] == [("events", 0)]


@pytest.mark.parametrize("call", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
def test_a_failed_registration_is_retried(machine, call):
    machine.gpus[0].errors[call] = UNKNOWN
    machine.tick()
    machine.gpus[0].errors.clear()
    assert not machine.tick().failures and machine.count("nvmlEventSetCreate") == 1
    machine.state.events = [(0, 31), (1, 32)]
    assert [(event.gpu.index, event.xid) for event in machine.tick().xids] == [(0, 31), (1, 32)]


def test_events_recover_automatically_after_a_failure(machine):
    machine.tick()
    machine.state.errors[WAIT] = UNKNOWN
    assert [failure.part for failure in machine.tick().failures] == ["events"]
    machine.state.errors.clear()
    snapshot = machine.tick()
    assert not snapshot.failures and machine.count("nvmlEventSetCreate") == 2
    machine.state.events = [(0, 31)]
    assert [event.xid for event in machine.tick().xids] == [31]


def test_a_returned_gpu_is_registered_again(machine):
    machine.tick()
    machine.gpus[0].errors["*"] = LOST
    machine.tick()
    machine.gpus[0].errors.clear()
    machine.state.events = [(1, 31)]
    assert [event.xid for event in machine.tick().xids] == [31], "what waited for another Gpu is not lost"
    machine.state.events = [(1, 31), (0, 79)]
    assert [event.xid for event in machine.tick().xids] == [79]


def test_a_flood_of_events_does_not_block_the_tick(machine):
    machine.tick()
    machine.state.events = [(0, 31)] * 256
    machine.tick()
    assert machine.count(WAIT) <= 1 + 256
    assert reading_of(machine.tick()).up

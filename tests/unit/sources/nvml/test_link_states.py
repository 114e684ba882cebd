"""NVLinks: which a GPU has, which are up, by field or by call, and how often they are read."""

import pytest

from gpuledger.model.quantities import NVLINKS_DOWN, NVLINKS_UP
from gpuledger.model.snapshot import nvlinks
from nvml.library import NvmlGpu
from nvml.machine import Machine, reading_of

BOTH = (NVLINKS_UP, NVLINKS_DOWN)
CALL = "nvmlDeviceGetNvLinkState"
TIMEOUT, NOT_SUPPORTED, INVALID_ARGUMENT = 10, 3, 2


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def links(machine, index=0, seconds=10):
    reading = reading_of(machine.tick(BOTH, seconds=seconds), index)
    return [nvlinks(reading, each) for each in BOTH]


@pytest.mark.parametrize("count", [1, 6, 18, 36])
def test_the_number_of_links_differs_by_gpu(machine, count):
    machine.state.gpus = [NvmlGpu(nvlinks=count)]
    assert links(machine) == [tuple(range(count)), ()]


def test_a_link_that_goes_down_and_up_is_seen(machine):
    machine.state.gpus = [NvmlGpu(nvlinks=4)]
    links(machine)
    machine.gpus[0].numbers["nvlinks_down"] = 0b1010
    assert links(machine) == [(0, 2), (1, 3)]
    machine.gpus[0].numbers["nvlinks_down"] = 0
    assert links(machine) == [(0, 1, 2, 3), ()]


@pytest.mark.parametrize(("state", "is_up"), [(0, False), (1, True), (2, True), (3, True)])
def test_a_link_that_sleeps_or_has_no_traffic_is_up(machine, state, is_up):
    machine.state.gpus = [NvmlGpu(nvlinks=1)]
    machine.gpus[0].answers["field.165.0"] = state
    assert links(machine) == ([(0,), ()] if is_up else [(), (0,)])


def test_a_link_of_unknown_state_is_neither_up_nor_down(machine):
    machine.state.gpus = [NvmlGpu(nvlinks=3)]
    machine.gpus[0].answers["field.165.1"] = 77
    assert links(machine) == [(0, 2), ()]


def test_a_link_that_fails_does_not_affect_the_others_and_is_named(machine):
    machine.state.gpus = [NvmlGpu(nvlinks=3)]
    machine.gpus[0].errors["field.165.1"] = TIMEOUT
    snapshot = machine.tick(BOTH)
    assert nvlinks(reading_of(snapshot), NVLINKS_UP) == (0, 2)
    assert [each.reason for each in snapshot.failures] == ["TIMEOUT"]
    machine.gpus[0].errors.clear()
    assert links(machine) == [(0, 1, 2), ()]


def test_a_gpu_without_links_is_unsupported_and_costs_no_calls(machine):
    machine.state.gpus = [NvmlGpu(nvlinks=0), NvmlGpu(nvlinks=2)]
    snapshot = machine.tick(BOTH)
    assert reading_of(snapshot).supported == {"nvlinks_up": False, "nvlinks_down": False}
    assert nvlinks(reading_of(snapshot), NVLINKS_UP) is None and not snapshot.failures
    before = machine.count(CALL)
    assert links(machine, 1) == [(0, 1), ()]
    assert machine.count(CALL) == before


@pytest.mark.parametrize("code", [NOT_SUPPORTED, INVALID_ARGUMENT])
def test_a_driver_without_the_field_is_called_for_each_link(machine, code):
    machine.state.gpus = [NvmlGpu(nvlinks=2, nvlinks_down=1)]
    machine.gpus[0].errors["field.165"] = code
    assert links(machine) == [(1,), (0,)]
    before = machine.count(CALL)
    assert links(machine) == [(1,), (0,)]
    # Only those that it has, and only when slow quantities are due.
    assert machine.count(CALL) == before + 2
    links(machine, seconds=1)
    assert machine.count(CALL) == before + 2


def test_links_that_are_found_late_are_read_after_ten_minutes(machine):
    machine.state.gpus = [NvmlGpu(nvlinks=0)]
    links(machine)
    machine.gpus[0].numbers["nvlinks"] = 2
    assert links(machine, seconds=601) == [(0, 1), ()]

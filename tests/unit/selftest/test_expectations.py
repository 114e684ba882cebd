"""What the hardware test says if a known load is not seen as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.model.quantities import SM_ACTIVITY
from gpuledger.selftest.observation import Observation
from hardware.expectations import Expectation, judge_load, judge_power
from nvml.library import NvmlGpu, NvmlProcess
from nvml.machine import Machine
from observing import observe

WORKING = Expectation(2, 256, (0.9, 1.0), (SM_ACTIVITY, 0.7), working=2, equal=True)
BYTES = 512 << 20


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def load(*processes: NvmlProcess, activity: float = 100.0, power: int = 500_000) -> NvmlGpu:
    return NvmlGpu(*processes, activity=activity, utilization=round(activity), power=power)


def equal_processes() -> tuple[NvmlProcess, NvmlProcess]:
    return NvmlProcess(11, BYTES, sm=50), NvmlProcess(12, BYTES, sm=50)


def judge(machine: Machine, gpu: NvmlGpu, pids: tuple[int, ...] = (11, 12)) -> dict[str, str]:
    """The findings that do not say `works`, by check without the prefix."""
    idle = observe(machine, NvmlGpu())
    seen = observe(machine, gpu)
    device = seen.snapshots[-1].readings[0].device
    found = judge_load(seen, idle.snapshots[-1], device, pids, WORKING)
    return {
        one.check.removeprefix("hardware."): one.verdict.value
        for one in found
        if one.verdict.value != "works"
    }


def test_a_load_that_is_seen_as_it_is(machine: Machine) -> None:
    assert judge(machine, load(*equal_processes())) == {}


@pytest.mark.parametrize(
    ("gpu", "pids", "expected"),
    [
        # One process is not listed: its utilization and energy are another's.
        (
            load(NvmlProcess(11, BYTES, sm=50)),
            (11, 12),
            {"processes": "fails", "process_utilization": "warning"},
        ),
        # No process at all.
        (load(), (11, 12), {"processes": "fails", "process_utilization": "skipped", "split": "warning"}),
        # Less memory than was allocated.
        (
            load(NvmlProcess(11, BYTES, sm=50), NvmlProcess(12, 1 << 20, sm=50)),
            (11, 12),
            {"processes": "fails"},
        ),
        # The pids are those of another namespace.
        (load(*equal_processes()), (3, 4), {"processes": "warning"}),
        # The GPU seems to be half idle.
        (
            load(NvmlProcess(11, BYTES, sm=25), NvmlProcess(12, BYTES, sm=25), activity=50.0),
            (11, 12),
            {"utilization": "warning", "process_utilization": "warning", "activity": "warning"},
        ),
        # Equal work, and one has nearly all energy.
        (
            load(NvmlProcess(11, BYTES, sm=90), NvmlProcess(12, BYTES, sm=10)),
            (11, 12),
            {"split": "warning"},
        ),
    ],
)
def test_a_load_that_is_seen_otherwise(
    machine: Machine, gpu: NvmlGpu, pids: tuple[int, ...], expected: dict[str, str]
) -> None:
    assert judge(machine, gpu, pids) == expected


def test_processes_that_were_there_before_are_not_the_load(machine: Machine) -> None:
    other = NvmlProcess(99, BYTES)
    idle = observe(machine, NvmlGpu(other))
    seen = observe(machine, load(other, *equal_processes()))
    device = seen.snapshots[-1].readings[0].device
    found = list(judge_load(seen, idle.snapshots[-1], device, (11, 12), WORKING))
    assert found[0].why.startswith("2 of 2 listed")


@pytest.mark.parametrize(("watts", "expected"), [(500_000, "works"), (101_000, "warning")])
def test_work_must_cost_energy(machine: Machine, watts: int, expected: str) -> None:
    idle: Observation = observe(machine, NvmlGpu())
    seen = observe(machine, load(*equal_processes(), power=watts))
    assert judge_power(idle, seen, seen.snapshots[-1].readings[0].device).verdict.value == expected

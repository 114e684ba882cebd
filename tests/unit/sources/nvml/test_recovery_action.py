"""The recovery action: field 230, or the reset status of drivers that do not have it yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.model.quantities import RECOVERY_ACTION
from nvml.library import NvmlGpu
from nvml.machine import Machine, reading_of

NOT_SUPPORTED, INVALID_ARGUMENT, UNKNOWN = 3, 2, 999
BATCH = "nvmlDeviceGetFieldValues"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def actions(machine: Machine, seconds: int = 10) -> list[float | None]:
    return [
        reading.get(RECOVERY_ACTION) for reading in machine.tick([RECOVERY_ACTION], seconds=seconds).readings
    ]


def without(*fields: int, code: int = NOT_SUPPORTED, **numbers: int) -> NvmlGpu:
    gpu = NvmlGpu(**numbers)
    gpu.errors = {f"field.{each}": code for each in fields}
    return gpu


@pytest.mark.parametrize("code", [NOT_SUPPORTED, INVALID_ARGUMENT])
@pytest.mark.parametrize(
    ("missing", "numbers", "action"),
    [
        ((230,), {}, 0),
        ((230,), {"reset": 1}, 1),
        ((230,), {"drain_and_reset": 1}, 4),
        ((230,), {"reset": 1, "drain_and_reset": 1}, 1),
        ((230, 226), {"reset": 1}, 0),
        ((230, 226), {"drain_and_reset": 1}, 4),
        ((230, 227), {"reset": 1}, 1),
        ((230, 227), {"drain_and_reset": 1}, 0),
        ((230, 226, 227), {"reset": 1}, None),
        # A driver that has the newer field also has the deprecated ones.
        ((), {"reset": 1, "drain_and_reset": 1}, 0),
        ((), {"recovery": 2, "reset": 1}, 2),
        ((226, 227), {"recovery": 3}, 3),
    ],
)
def test_a_driver_without_a_recovery_action_has_a_reset_status(
    machine: Machine, missing: tuple[int, ...], numbers: dict[str, int], action: int | None, code: int
) -> None:
    machine.state.gpus = [without(*missing, code=code, **numbers)]
    # At once, later, and where the driver is queried again for all that it lacked.
    for seconds in (1, 10, 1, 601, 10):
        snapshot = machine.tick([RECOVERY_ACTION], seconds=seconds)
        reading = reading_of(snapshot)
        assert reading.get(RECOVERY_ACTION) == action
        assert reading.supported == {"recovery_action": action is not None}
        assert not snapshot.failures and not snapshot.invalid


def test_a_reset_status_changes(machine: Machine) -> None:
    machine.state.gpus = [without(230), without(230)]
    assert actions(machine) == [0, 0]
    machine.gpus[1].numbers["drain_and_reset"] = 1
    assert actions(machine) == [0, 4]
    machine.gpus[1].numbers["reset"] = 1
    assert actions(machine) == [0, 1]
    machine.gpus[1].numbers.update(reset=0, drain_and_reset=0)
    assert actions(machine) == [0, 0]


@pytest.mark.parametrize(("fields", "action"), [((226,), None), ((226, 227), None), ((230,), None)])
def test_a_field_that_fails_is_reported_and_read_again(
    machine: Machine, fields: tuple[int, ...], action: int | None
) -> None:
    machine.state.gpus = [without() if 230 in fields else without(230)]
    assert actions(machine) == [0]
    machine.gpus[0].errors.update({f"field.{each}": UNKNOWN for each in fields})
    snapshot = machine.tick([RECOVERY_ACTION], seconds=10)
    assert reading_of(snapshot).get(RECOVERY_ACTION) == action
    assert {each.reason for each in snapshot.failures} == {"UNKNOWN"}
    for each in fields:
        del machine.gpus[0].errors[f"field.{each}"]
    assert actions(machine) == [0]


@pytest.mark.parametrize("missing", [(), (230,), (230, 226, 227)])
def test_a_reset_status_costs_no_call(machine: Machine, missing: tuple[int, ...]) -> None:
    """All fields are in one batch; a Device that has none of them is queried again after ten minutes."""
    machine.state.gpus = [without(*missing)]
    batches = []
    for seconds in (1, 10, 10, 601):
        before = machine.count(BATCH)
        actions(machine, seconds)
        batches.append(machine.count(BATCH) - before)
    assert batches == ([1, 0, 0, 1] if 226 in missing else [1, 1, 1, 1])

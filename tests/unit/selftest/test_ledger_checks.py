"""Accounts that do not balance are found, and the cost of readings is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger.model.session import TimeState
from gpuledger.selftest.ledger_checks import check_cost, check_energy_accounts, check_time_accounts
from gpuledger.selftest.observation import Observation, TickCost, book
from nvml.library import NvmlGpu, NvmlProcess
from nvml.machine import Machine
from observing import observe


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Observation:
    return observe(Machine(tmp_path, monkeypatch), NvmlGpu(NvmlProcess(11, sm=30)))


def energy(observed: Observation) -> tuple[str, str]:
    (found,) = check_energy_accounts(observed)
    return found.verdict.value, found.why


def test_energy_in_no_account_is_found(observed: Observation) -> None:
    state = observed.booked.state
    (uuid,) = state.energy.totals
    wrong = replace(state, energy=replace(state.energy, imbalance={uuid: 7}))
    assert energy(replace(observed, booked=replace(observed.booked, state=wrong))) == (
        "fails",
        "GPU 0: 7 mJ of the total are in no account",
    )


def test_a_total_that_is_not_the_increase_of_the_counter_is_found(observed: Observation) -> None:
    state = observed.booked.state
    ((uuid, total),) = state.energy.totals.items()
    wrong = replace(state, energy=replace(state.energy, totals={uuid: total + 5}))
    assert energy(replace(observed, booked=replace(observed.booked, state=wrong))) == (
        "fails",
        f"GPU 0: the counter rose by {total} mJ, but {total + 5} mJ are booked",
    )


def test_a_reading_that_cannot_be_posted_is_found(
    observed: Observation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("nothing to divide")

    monkeypatch.setattr("gpuledger.ledger.ledger.Ledger.post", fail)
    broken = replace(observed, booked=book(observed.snapshots))
    assert energy(broken) == ("fails", "a reading cannot be posted: ZeroDivisionError: nothing to divide")
    assert [found.verdict.value for found in check_time_accounts(broken)] == ["skipped"]


def test_implausible_readings_of_a_counter_are_named(observed: Observation) -> None:
    assert energy(replace(observed, booked=replace(observed.booked, rejected=2)))[0] == "warning"


@pytest.mark.parametrize(
    ("watched", "pending", "expected"),
    [
        (3_000_000, 3_000_000, "works"),
        (3_000_000, 2_999_000, "fails"),
        (2_000_000, 3_000_000, "fails"),
        # More than the observation lasted.
        (4_000_000, 4_000_000, "fails"),
    ],
)
def test_each_second_is_in_one_account(
    observed: Observation, watched: int, pending: int, expected: str
) -> None:
    uuid = observed.snapshots[0].readings[0].device.uuid
    time = TimeState(watched={uuid: watched}, pending={uuid: pending})
    state = replace(observed.booked.state, time=time)
    found = check_time_accounts(replace(observed, booked=replace(observed.booked, state=state)))
    assert [one.verdict.value for one in found] == [expected]


@pytest.mark.parametrize(
    ("wall", "cpu", "expected"),
    [(0.01, 0.002, "works"), (0.4, 0.002, "warning"), (0.1, 0.09, "warning")],
)
def test_a_reading_that_takes_long_is_a_warning(
    observed: Observation, wall: float, cpu: float, expected: str
) -> None:
    (found,) = check_cost(replace(observed, costs=(TickCost(wall, cpu, 20),)))
    assert found.verdict.value == expected
    assert ("--interval" in found.remedy) is (expected == "warning")

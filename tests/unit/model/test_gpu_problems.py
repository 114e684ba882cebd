"""The judgement of what is wrong with a GPU: each kind, healthy, degraded, and unknown."""

from __future__ import annotations

import pytest

from builders import gpu, instance, reading
from gpuledger.model import quantities as q
from gpuledger.model.checks import Verdict
from gpuledger.model.gpu_problems import find_problems, health_findings, judge_gpu
from gpuledger.model.quantities import Quantity, is_link_busy
from gpuledger.model.session import ThrottleRow, XidRow
from gpuledger.model.throttle_reasons import throttling_now

CARD = gpu(0, pci_bus_id="00000000:18:00.0")
UNIX = 1_700_000_000.0
Values = dict[Quantity, float]


def pcie(width: int, width_max: int, generation: int, generation_max: int, busy: int | None) -> Values:
    found = {
        q.PCIE_WIDTH: width,
        q.PCIE_WIDTH_MAX: width_max,
        q.PCIE_GENERATION: generation,
        q.PCIE_GENERATION_MAX: generation_max,
    }
    return {**found, **({} if busy is None else {q.PCIE_LINK_BUSY: busy})}


def kinds(values: Values, *rows: ThrottleRow) -> dict[str, bool]:
    judged = judge_gpu(reading(CARD, values=values), rows)
    return {kind: problem is not None for kind, problem in judged.items() if kind != "down"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        (pcie(16, 16, 5, 5, 1), {"pcie_width": False, "pcie_generation": False}),
        # A x16 card in a x8 slot does what both can do.
        (pcie(8, 8, 4, 4, 1), {"pcie_width": False, "pcie_generation": False}),
        (pcie(4, 16, 4, 4, 0), {"pcie_width": True, "pcie_generation": False}),
        (pcie(16, 16, 3, 4, 1), {"pcie_width": False, "pcie_generation": True}),
        # An idle card lowers the generation; whether it could do better is not known then.
        (pcie(16, 16, 1, 4, 0), {"pcie_width": False}),
        (pcie(16, 16, 1, 4, None), {"pcie_width": False}),
        ({q.PCIE_WIDTH: 8}, {}),
        ({q.NVLINKS_UP: 0b1111, q.NVLINKS_DOWN: 0}, {"nvlink": False}),
        ({q.NVLINKS_UP: 0b1011, q.NVLINKS_DOWN: 0b0100}, {"nvlink": True}),
        # All down: no bridge, or no fabric.
        ({q.NVLINKS_UP: 0, q.NVLINKS_DOWN: 0b1111}, {"nvlink": False}),
        ({q.NVLINKS_UP: 0b1}, {}),
        ({q.ROW_REMAP_PENDING: 1}, {"row_remap_pending": True}),
        ({q.ROW_REMAP_FAILURE: 0}, {"row_remap_failure": False}),
        ({q.ROW_REMAP_FAILURE: 1}, {"row_remap_failure": True}),
        ({q.RETIRED_PAGES_PENDING: 1}, {"retired_pages_pending": True}),
        ({q.ECC_UNCORRECTED_VOLATILE: 2}, {"ecc_uncorrected": True}),
        # Errors of the card's whole life were repaired long ago.
        ({q.ECC_UNCORRECTED: 2, q.ECC_UNCORRECTED_VOLATILE: 0}, {"ecc_uncorrected": False}),
        ({q.ECC_CORRECTED_VOLATILE: 9}, {}),
        ({q.RECOVERY_ACTION: 0}, {"recovery_action": False}),
        ({q.RECOVERY_ACTION: 1}, {"recovery_action": True}),
        ({q.RECOVERY_ACTION: 200}, {"recovery_action": True}),
        ({q.THERMAL_VIOLATION: 5}, {"thermal_throttling": False}),
    ],
)  # fmt: skip
def test_a_fault_is_judged_only_from_what_the_driver_reports(
    values: Values, expected: dict[str, bool]
) -> None:
    assert kinds(values) == expected


@pytest.mark.parametrize(
    ("values", "mig", "busy"),
    [
        ({q.PERFORMANCE_STATE: 0, q.UTILIZATION: 0.4}, False, True),
        ({q.PERFORMANCE_STATE: 0, q.UTILIZATION: 0.0}, False, False),
        ({q.PERFORMANCE_STATE: 8, q.UTILIZATION: 0.4}, False, False),
        # One of them failed.
        ({q.PERFORMANCE_STATE: 0}, False, None),
        ({q.UTILIZATION: 0.4}, False, None),
        # In MIG mode there is no utilization.
        ({q.PERFORMANCE_STATE: 0}, True, True),
        ({q.PERFORMANCE_STATE: 5}, True, False),
        ({}, True, None),
    ],
)
def test_a_link_is_busy_at_the_highest_performance_state_with_work(
    values: Values, mig: bool, busy: bool | None
) -> None:
    assert is_link_busy(values, mig=mig) is busy


@pytest.mark.parametrize(
    ("row", "degraded"),
    [
        (ThrottleRow("thermal", UNIX, 60, 600, 0.5), True),
        (ThrottleRow("power_brake", UNIX, 60, 600, 0.5), True),
        (ThrottleRow("hardware_slowdown", UNIX, 60, 600, 0.5), True),
        (ThrottleRow("reliability", UNIX, 60, 600, 0.5), True),
        # A little, or no longer.
        (ThrottleRow("thermal", UNIX, 60, 600, 0.01), False),
        (ThrottleRow("thermal", None, 60, 600, 0.5), False),
    ],
)
def test_throttling_by_heat_or_power_supply_degrades_a_gpu(row: ThrottleRow, degraded: bool) -> None:
    assert kinds({}, row) == {f"{row.reason}_throttling": degraded}


@pytest.mark.parametrize("reason", ["power", "sync_boost", "board_limit"])
def test_a_gpu_at_its_power_limit_is_not_degraded(reason: str) -> None:
    assert kinds({}, ThrottleRow(reason, UNIX, 600, 600, 1.0)) == {}


def test_a_single_reading_does_not_say_for_how_long_a_gpu_throttles() -> None:
    now = throttling_now({q.CLOCK_EVENT_REASONS: 0x40}, UNIX)
    (problem,) = find_problems(reading(CARD, values={}), now, [], UNIX)
    assert str(problem) == "slows down because it is hot"


@pytest.mark.parametrize(("observed", "part"), [(3590.0, "hour"), (720.0, "12 min"), (20.0, "1 min")])
def test_the_share_names_the_observed_time(observed: float, part: str) -> None:
    row = ThrottleRow("thermal", UNIX, observed / 4, observed, 0.5)
    (problem,) = find_problems(reading(CARD, values={}), [row], [], UNIX)
    assert str(problem).endswith(f"since 2023-11-14T22:13:20Z, for 25% of the last {part}")


def test_the_remedy_names_the_gpu() -> None:
    (problem,) = find_problems(reading(CARD, values={q.ROW_REMAP_PENDING: 1}), [], [], UNIX)
    assert "nvidia-smi --gpu-reset -i 00000000:18:00.0" in problem.remedy


def test_the_worst_problem_is_first() -> None:
    values = {q.PCIE_WIDTH: 4, q.PCIE_WIDTH_MAX: 16, q.ROW_REMAP_FAILURE: 1}
    found = find_problems(reading(CARD, values=values), [], [], UNIX)
    assert [one.kind for one in found] == ["row_remap_failure", "pcie_width"]


@pytest.mark.parametrize(
    ("action", "level"), [(1, "failure"), (2, "failure"), (3, "failure"), (4, "warning"), (200, "failure")]
)
def test_only_a_gpu_that_works_until_its_reset_needs_recovery_later(action: int, level: str) -> None:
    (problem,) = find_problems(reading(CARD, values={q.RECOVERY_ACTION: action}), [], [], UNIX)
    assert (problem.kind, problem.level) == ("recovery_action", level)


def test_a_gpu_that_requires_a_reset_says_so_once() -> None:
    down = reading(CARD, up=False, down_reason="RESET_REQUIRED", values={q.RECOVERY_ACTION: 1})
    assert [one.kind for one in find_problems(down, [], [], UNIX)] == ["down"]


def test_an_instance_is_not_judged() -> None:
    part = reading(instance(CARD, 1), values={q.ROW_REMAP_FAILURE: 1})
    rows = [XidRow(1, CARD.uuid, "", 79, UNIX, UNIX)]
    assert find_problems(part, [], rows, UNIX) == [] and judge_gpu(part) == {}


@pytest.mark.parametrize(
    ("xid", "age", "levels"),
    [
        (79, 60, ["failure"]),
        (95, 60, ["failure"]),
        (31, 60, ["info"]),
        (154, 60, ["warning"]),
        # Unknown to gpuledger.
        (9999, 60, ["warning"]),
        # Nothing to do.
        (63, 60, []),
        (79, 7200, ["info"]),
        (79, 90_000, []),
    ],
)
def test_an_xid_is_as_serious_as_its_action_and_ages(xid: int, age: float, levels: list[str]) -> None:
    row = XidRow(1, CARD.uuid, "", xid, UNIX - age, UNIX - age)
    other = row._replace(uuid="GPU-9")
    found = find_problems(reading(CARD, values={}), [], [row, other], UNIX)
    assert [one.level for one in found] == levels


def test_equal_xids_are_one_problem_with_their_number() -> None:
    rows = [XidRow(n, CARD.uuid, "", 31, UNIX - 900 + n, UNIX - 900 + n, times=2) for n in (1, 2, 3)]
    (problem,) = find_problems(reading(CARD, values={}), [], rows, UNIX)
    assert (problem.times, problem.since) == (6, UNIX - 897)
    assert "at 2023-11-14T21:58:23Z, 6 times" in str(problem)


def test_doctor_fails_for_failures_only() -> None:
    values = {q.PCIE_WIDTH: 4, q.PCIE_WIDTH_MAX: 16, q.ROW_REMAP_FAILURE: 1}
    xids = [XidRow(1, CARD.uuid, "", 31, UNIX, UNIX)]
    found = find_problems(reading(CARD, values=values), [], xids, UNIX)
    verdicts = [one.verdict for one in health_findings(3, found)]
    assert verdicts == [Verdict.FAILS, Verdict.WARNING, Verdict.WORKS]

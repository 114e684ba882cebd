"""The worked examples of the time rules, T1 to T21 and T28 to T32: a table that is read like theirs.

60 watched seconds unless said; what runs, runs throughout. Each is played with several tick lengths.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from builders import gpu, instance
from gpuledger.ledger.time.account import TimeAccount
from gpuledger.model.session import ALLOCATION, BASES, RESIDENCE
from time_helpers import Has, Runs, Truth, in_seconds, job, play, pod, user

GPU = gpu(0, sm_count=132)
PARTS = [instance(GPU, gi, index=gi, sm_count=sms) for gi, sms in ((1, 60), (2, 32), (3, 16), (4, 16))]
A, B, C, D, P, Q = (pod(name) for name in "ABCDPQ")
P1, P2 = pod("P", "c1"), pod("P", "c2")
UA, UB = user("A"), user("B")
WHOLE, HALF, QUARTER = Fraction(1), Fraction(1, 2), Fraction(1, 4)
SIXTY = Fraction(3, 5)
UNKNOWN = None
NONE: list[Runs] = []


def case(
    name: str, has: list[Has], runs: list[Runs], allocation: str, residence: str, **more: object
) -> object:
    seconds = more.pop("seconds", 60)
    truth = Truth(GPU, has, runs, **more)  # type: ignore[arg-type]  # free-form by design
    return pytest.param(truth, seconds, allocation, residence, id=name)


EXAMPLES = [
    case("T1", [Has(A, WHOLE)], NONE, "A 60", "idle 60"),
    case(
        "T2",
        [Has(one, QUARTER) for one in (A, B, C, D)],
        [Runs(one) for one in (A, B, C, D)],
        "A 15, B 15, C 15, D 15",
        "A 15, B 15, C 15, D 15",
    ),
    case("T3", [Has(A, QUARTER)], [Runs(A)], "A 15, idle 45", "A 60"),
    case("T4", [Has(A, UNKNOWN)], [Runs(A)], "A 60", "A 60"),
    case("T5", [Has(A, WHOLE)], [Runs(A), Runs(B)], "A 60", "A 30, B 30"),
    case("T6", [], [Runs(UA), Runs(UB, 30)], "A 45, B 15", "A 45, B 15"),
    case(
        "T7",
        [Has(A, WHOLE, device=PARTS[0])],
        NONE,
        "A 27.272727, idle 32.727273",
        "idle 60",
        instances=PARTS,
    ),
    case(
        "T8",
        [Has(A, WHOLE, device=PARTS[0])],
        [Runs(A, device=PARTS[0]), Runs(B, device=PARTS[1])],
        "A 27.272727, B 14.545455, idle 18.181818",
        "A 27.272727, B 14.545455, idle 18.181818",
        instances=PARTS,
    ),
    case(
        "T9",
        [Has(A, QUARTER), Has(B, HALF)],
        [Runs(A), Runs(B)],
        "A 15, B 30, idle 15",
        "A 30, B 30",
    ),
    case("T10", [Has(A, SIXTY), Has(B, SIXTY)], [Runs(A), Runs(B)], "A 30, B 30", "A 30, B 30"),
    case("T11", [Has(job("A"), QUARTER)], [Runs(job("A"))], "A 15, idle 45", "A 60"),
    case(
        "T12",
        [Has(A, WHOLE, ends=20), Has(B, WHOLE, begins=20)],
        [Runs(A, ends=20), Runs(B, begins=20)],
        "A 20, B 40",
        "A 20, B 40",
    ),
    case("T13", [Has(A, WHOLE)], [Runs(A)], "A 60", "A 60", unlisted=[(10, 40)]),
    case("T14", [], [Runs(UA)], "A 60", "A 60", unlisted=[(10, 40)]),
    case("T15", [Has(A, WHOLE)], [Runs(A)], "A 50, down 10", "A 50, down 10", lost=[(20, 30)]),
    case(
        "T16",
        [],
        [
            Runs(user("root"), name="nvidia-cuda-mps-server"),
            Runs(user("root"), name="nvidia-cuda-mps-control"),
            Runs(UA, types="M+C"),
            Runs(UB, types="M+C"),
        ],
        "A 30, B 30",
        "A 30, B 30",
    ),
    case(
        "T17",
        [Has(pod("placeholder"), Fraction(0)), Has(A, HALF, resource="kai")],
        [Runs(A)],
        "A 30, idle 30",
        "A 60",
    ),
    case("T18", [Has(pod("monitoring"), Fraction(0), resource="claim")], NONE, "idle 60", "idle 60"),
    case(
        "T19",
        [Has(P, WHOLE)],
        [Runs(P), Runs(user("root"), name="Xorg", types="G", sm=0.2)],
        "P 60",
        "P 60",
    ),
    case("T20", [Has(A, WHOLE)], [Runs(A)], "A 40", "A 40", stopped=[(20, 40)]),
    case(
        "T21",
        [Has(A, HALF), Has(B, UNKNOWN), Has(C, UNKNOWN)],
        [Runs(A), Runs(B), Runs(C)],
        "A 30, B 15, C 15",
        "A 20, B 20, C 20",
    ),
    case("T28", [], NONE, "unattributed 60", "unattributed 60", busy=True),
    case("T29", [Has(P1, QUARTER)], [Runs(P2)], "P 15, idle 45", "P 60"),
    case(
        "T30",
        [Has(P1, WHOLE, resource="claim"), Has(P2, WHOLE, resource="claim"), Has(Q, WHOLE, resource="claim")],
        [Runs(P1), Runs(P2), Runs(Q)],
        "P 30, Q 30",
        "P 30, Q 30",
    ),
    case(
        "T31a",
        [Has(P, Fraction(2, 4)), Has(Q, QUARTER)],
        [Runs(P), Runs(Q)],
        "P 30, Q 15, idle 15",
        "P 30, Q 30",
    ),
    case(
        "T31b",
        [Has(A, SIXTY), Has(B, SIXTY), Has(C, UNKNOWN)],
        [Runs(A), Runs(B), Runs(C)],
        "A 20, B 20, C 20",
        "A 20, B 20, C 20",
    ),
    case(
        "T32",
        [Has(A, QUARTER)],
        [Runs(A)],
        "A 30, idle 22.5, unobserved 67.5",
        "A 30, unobserved 90",
        unlisted=[(20, 110)],
        seconds=120,
    ),
]


@pytest.mark.parametrize("every", [0.5, 1, 10])
@pytest.mark.parametrize(("truth", "seconds", "allocation", "residence"), EXAMPLES)
def test_worked_example(truth: Truth, seconds: int, allocation: str, residence: str, every: float) -> None:
    books = play(truth, [tick * every for tick in range(round(seconds / every) + 1)])
    assert books.seconds(ALLOCATION) == in_seconds(allocation)
    assert books.seconds(RESIDENCE) == in_seconds(residence)


def _by_container(truth: Truth, basis: str) -> dict[tuple[str, str], int]:
    accounts = play(truth, range(61)).accounts(basis)
    return {(one.owner[-1], one.container): amount for one, amount in accounts.items() if one.owner}


@pytest.mark.parametrize("basis", BASES)
def test_t29_the_time_of_a_pod_goes_to_its_container_with_a_process(basis: str) -> None:
    truth = Truth(GPU, [Has(P1, QUARTER)], [Runs(P2)])
    assert _by_container(truth, basis).keys() == {("P", "c2")}


@pytest.mark.parametrize("basis", BASES)
def test_t30_the_time_of_a_pod_goes_equally_to_its_containers(basis: str) -> None:
    has = [Has(one, WHOLE, resource="claim") for one in (P1, P2, Q)]
    found = _by_container(Truth(GPU, has, [Runs(P1), Runs(P2), Runs(Q)]), basis)
    assert found == {("P", "c1"): 15_000_000, ("P", "c2"): 15_000_000, ("Q", "main"): 30_000_000}


def test_t4_time_that_rests_on_an_unknown_fraction_says_so() -> None:
    found = play(Truth(GPU, [Has(A, UNKNOWN)], [Runs(A)]), range(61)).accounts(ALLOCATION)
    assert [one.is_estimate for one in found] == [True]


def test_t21_only_the_unknown_fractions_are_estimates() -> None:
    truth = Truth(GPU, [Has(A, HALF), Has(B, UNKNOWN), Has(C, UNKNOWN)], [Runs(A)])
    found = play(truth, range(61)).accounts(ALLOCATION)
    assert {one.owner[-1]: one.is_estimate for one in found} == {"A": False, "B": True, "C": True}


def test_t31b_a_sum_scaled_with_an_unknown_fraction_makes_all_estimates() -> None:
    truth = Truth(GPU, [Has(A, SIXTY), Has(B, SIXTY), Has(C, UNKNOWN)])
    assert all(one.is_estimate for one in play(truth, range(61)).accounts(ALLOCATION))


def test_t7_uncovered_multiprocessors_are_uncut() -> None:
    truth = Truth(GPU, [Has(A, WHOLE, device=PARTS[0])], instances=PARTS)
    assert play(truth, range(61)).accounts(RESIDENCE)[TimeAccount("uncut")] == 3_636_364

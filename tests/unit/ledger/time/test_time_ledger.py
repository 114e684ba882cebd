"""Time while something is wrong: failing lists, restarts, silent sources, changed layouts, bad input."""

from __future__ import annotations

import logging
from dataclasses import replace
from fractions import Fraction

import pytest

from builders import gpu, instance, process, reading
from gpuledger.ledger.time.time_ledger import TimeLedger
from gpuledger.model.session import ALLOCATION, RESIDENCE
from gpuledger.model.snapshot import LISTED_RULES, Snapshot, SourceInfo
from gpuledger.model.workload import UNKNOWN, Workload
from time_helpers import UNIX, Books, Has, Runs, Truth, in_seconds, play, pod, user

GPU = gpu(0, sm_count=132)
OTHER = gpu(1)
A, B = pod("A"), pod("B")
UA, UB = user("A"), user("B")
WHOLE, QUARTER = Fraction(1), Fraction(1, 4)


@pytest.mark.parametrize(
    ("truth", "seconds", "allocation", "residence"),
    [
        pytest.param(
            Truth(GPU, [Has(A, WHOLE, begins=20)], [], unlisted=[(10, 40)]),
            60,
            "idle 20, A 40",
            "idle 60",
            id="an Allocation that is found while the list fails counts from then",
        ),
        pytest.param(
            Truth(GPU, [], [Runs(UA)], unlisted=[(10, 70)]),
            80,
            "A 80",
            "A 80",
            id="a list that fails for a minute changes nothing",
        ),
        pytest.param(
            Truth(GPU, [], [Runs(UA)], unlisted=[(10, 71)]),
            80,
            "A 19, unobserved 61",
            "A 19, unobserved 61",
            id="a list that fails for longer leaves all of it unobserved",
        ),
        pytest.param(
            Truth(GPU, [], [Runs(UA)], unlisted=[(-1, 10)]),
            20,
            "A 10, unobserved 10",
            "A 10, unobserved 10",
            id="before the first list nobody is known",
        ),
        pytest.param(
            Truth(GPU, [Has(A, QUARTER)], [Runs(UB)], silent=[(9.5, 40)]),
            60,
            "A 15, B 22.5, unobserved 22.5",
            "B 60",
            id="while a source of Allocations is silent what they leave is unobserved",
        ),
        pytest.param(
            Truth(GPU, [Has(A, WHOLE)], [Runs(A)], lost=[(20, 50)], stopped=[(30, 40)]),
            60,
            "A 30, down 20",
            "A 30, down 20",
            id="a loss goes on after a restart; the stop is not watched",
        ),
        pytest.param(
            Truth(GPU, [Has(A, WHOLE)], [Runs(A)], unlisted=[(10, 60)], stopped=[(30, 40)]),
            60,
            "A 50",
            "A 10, unobserved 40",
            id="pending time is decided by a restart",
        ),
        pytest.param(
            Truth(GPU, [Has(A, WHOLE)], [Runs(A)], unlisted=[(10, 60)], paused=[(30, 40)]),
            60,
            "A 50",
            "A 10, unobserved 40",
            id="pending time is decided by a pause",
        ),
        pytest.param(
            Truth(GPU, [Has(A, Fraction(1, 2))], [Runs(A), Runs(UNKNOWN)]),
            60,
            "A 30, unknown 30",
            "A 30, unknown 30",
            id="unknown is an owner",
        ),
        pytest.param(
            Truth(GPU, [Has(A, Fraction(1, 2))], [Runs(UNKNOWN)]),
            60,
            "A 30, idle 30",
            "unknown 60",
            id="unknown takes nothing while an Allocation has no process known to be its",
        ),
        pytest.param(
            Truth(GPU, [Has(A, Fraction(0))], [Runs(A)]),
            60,
            "A 60",
            "A 60",
            id="who has an Allocation that keeps nothing from anyone is a guest like others",
        ),
        pytest.param(
            Truth(GPU, [Has(A, Fraction(0))], busy=True),
            60,
            "unattributed 60",
            "unattributed 60",
            id="an Allocation that keeps nothing from anyone is none",
        ),
        pytest.param(
            Truth(GPU, [], [Runs(UA, types="G", sm=0.3)]),
            60,
            "A 60",
            "A 60",
            id="graphics that work alone are an owner",
        ),
        pytest.param(
            Truth(GPU, [], [Runs(UA, types="G", sm=0.04)]),
            60,
            "idle 60",
            "idle 60",
            id="a desktop is no owner",
        ),
        pytest.param(
            Truth(GPU, [], [Runs(UA, types="G", sm=None)]),
            60,
            "idle 60",
            "idle 60",
            id="graphics of which no engine time is known are no owner",
        ),
        pytest.param(
            Truth(GPU, [Has(A, WHOLE)], [Runs(A, types="G", sm=0.3), Runs(UB, types="G", sm=0.3)]),
            60,
            "A 60",
            "A 60",
            id="graphics of the owner itself are nobody else",
        ),
        pytest.param(
            Truth(GPU, [], [Runs(UA, name="nvidia-cuda-mps-server")]),
            60,
            "A 60",
            "A 60",
            id="an MPS server without clients is an owner",
        ),
        pytest.param(
            Truth(GPU, [Has(A, WHOLE)], busy=True),
            60,
            "A 60",
            "idle 60",
            id="an allocated Gpu that is active without a process is idle by residence",
        ),
    ],
)
def test_what_is_not_seen(truth: Truth, seconds: int, allocation: str, residence: str) -> None:
    books = play(truth, range(seconds + 1))
    assert books.seconds(ALLOCATION) == in_seconds(allocation)
    assert books.seconds(RESIDENCE) == in_seconds(residence)


def _fractional(*fractions: Fraction | None) -> Truth:
    return Truth(GPU, [Has(pod(name), one) for name, one in zip("ABCD", fractions, strict=False)])


@pytest.mark.parametrize(
    ("fractions", "expected"),
    [
        ((Fraction(1), None), "A 30, B 30"),
        ((None, None, None), "A 20, B 20, C 20"),
        ((Fraction(1, 4), Fraction(1, 4), None), "A 15, B 15, C 30"),
        ((Fraction(3, 2), Fraction(1, 2)), "A 45, B 15"),
        ((Fraction(0), None), "B 60"),
        ((Fraction(0),), "idle 60"),
        ((Fraction(1, 7), Fraction(1, 7)), "A 8.571429, B 8.571428, idle 42.857143"),
    ],
)
def test_fractions(fractions: tuple[Fraction | None, ...], expected: str) -> None:
    assert play(_fractional(*fractions), range(61)).seconds(ALLOCATION) == in_seconds(expected)


def test_two_resources_of_one_pod_are_two_allocations() -> None:
    has = [Has(A, QUARTER, resource="one"), Has(A, QUARTER, resource="two")]
    assert play(Truth(GPU, has), range(61)).seconds(ALLOCATION) == in_seconds("A 30, idle 30")


def test_a_pod_known_by_id_is_joined_to_its_allocation() -> None:
    nameless = Workload(kind="pod", pod_uid="uid-A", container_id="c1", missing="pod_name")
    truth = Truth(GPU, [Has(A, WHOLE)], [Runs(nameless), Runs(B)])
    assert play(truth, range(61)).seconds(RESIDENCE) == in_seconds("A 30, B 30")


@pytest.mark.parametrize(
    ("allocated", "running"),
    [
        (Workload(kind="slurm", job="7"), Workload(kind="slurm", job="7", user="mira", step="0")),
        (Workload(kind="job", job="7"), Workload(kind="job", runtime="pbs", job="7", user="mira")),
    ],
    ids=["slurm", "job-mapping directory"],
)
def test_a_job_is_the_owner_of_its_processes(allocated: Workload, running: Workload) -> None:
    truth = Truth(GPU, [Has(allocated, QUARTER)], [Runs(running)])
    assert play(truth, range(61)).seconds(ALLOCATION) == {"7": 15_000_000, "idle": 45_000_000}


PARTS = (instance(GPU, 1, index=0, sm_count=66), instance(GPU, 2, index=1, sm_count=33))


@pytest.mark.parametrize(
    ("has", "runs", "allocation", "residence"),
    [
        ([Has(A, WHOLE)], [], "A 60", "idle 60"),
        ([Has(A, Fraction(1, 2))], [Runs(UB, device=PARTS[0])], "A 30, B 15, idle 15", "B 30, idle 30"),
        (
            [Has(A, WHOLE, device=PARTS[0]), Has(B, WHOLE, device=PARTS[1])],
            [],
            "A 30, B 15, idle 15",
            "idle 60",
        ),
    ],
    ids=["a whole Gpu that is cut", "half of it and a guest", "both Instances"],
)
def test_allocations_under_mig(has: list[Has], runs: list[Runs], allocation: str, residence: str) -> None:
    books = play(Truth(GPU, has, runs, PARTS), range(61))
    assert books.seconds(ALLOCATION) == in_seconds(allocation)
    assert books.seconds(RESIDENCE) == in_seconds(residence)


def test_who_came_to_an_instance_while_the_list_failed_counts_from_the_next_list() -> None:
    runs = [Runs(UA, ends=40, device=PARTS[0]), Runs(UB, 40, device=PARTS[0])]
    books = play(Truth(GPU, [], runs, PARTS, unlisted=[(10, 90)]), range(121))
    assert books.seconds(RESIDENCE) == in_seconds("A 5, B 15, idle 40, unobserved 60")


def test_a_layout_that_changes_is_split_by_the_one_at_its_beginning() -> None:
    books = Books()
    for at in range(61):
        parts = PARTS if at >= 30 else ()
        books.post(Truth(GPU, instances=parts).snapshot(at, at - 1))
    whole, cut = books.spans.values()
    assert (whole.microseconds, cut.microseconds) == (30_000_000, 30_000_000)
    assert sorted(one.account for one in cut.shares(RESIDENCE)) == ["idle", "idle", "uncut"]


def test_what_is_read_later_of_an_instance_counts_from_then() -> None:
    books = Books()
    nameless = tuple(replace(part, profile="", sm_count=None) for part in PARTS)
    for at in range(61):
        books.post(Truth(GPU, instances=PARTS if at >= 30 else nameless).snapshot(at, at - 1))
    before, after = books.spans.values()
    known = [(part.profile, part.sm_count) for part in PARTS]
    assert [part.profile for part in before.splits.parts[: len(PARTS)]] == ["" for _ in PARTS]
    assert [(part.profile, part.share * 132) for part in after.splits.parts[: len(PARTS)]] == known


def test_a_name_that_is_read_later_is_stored_with_the_next_quarter() -> None:
    books = Books()
    for at in range(1000):
        named = replace(GPU, name="H100" if at >= 30 else "")
        books.post(Truth(named, [], [Runs(UA)]).snapshot(at, at - 1))
    before, after = books.spans.values()
    # Other splits are stored again, with the name.
    assert (after.splits is before.splits, after.gpu.name) == (False, "H100")


def test_spans_are_cut_at_quarters_of_an_hour_and_closed_by_a_restart() -> None:
    truth = Truth(GPU, [], [Runs(UA)], stopped=[(1000, 1010)])
    spans = play(truth, range(890, 1101)).spans.values()
    zero = round(UNIX * 1_000_000)
    assert [((one.begins - zero) / 1e6, (one.ends - zero) / 1e6) for one in spans] == [
        (890, 900),
        (900, 1000),
        (1010, 1100),
    ]


def test_a_clock_that_is_set_moves_time_but_loses_none() -> None:
    truth, books = Truth(GPU, [], [Runs(UA)]), Books()
    for at in range(61):
        seen = truth.snapshot(at, at - 1)
        books.post(replace(seen, unix=seen.unix - 7200) if at >= 30 else seen)
    assert books.seconds(RESIDENCE) == in_seconds("A 60")
    assert len(books.spans) == 2


def test_a_small_step_of_the_clock_begins_a_span() -> None:
    truth, books = Truth(GPU, [], [Runs(UA)]), Books()
    for at in range(61):
        seen = truth.snapshot(at, at - 1)
        books.post(replace(seen, unix=seen.unix + 10) if at >= 30 else seen)
    assert [span.microseconds for span in books.spans.values()] == [29_000_000, 31_000_000]


def test_instances_that_could_not_be_listed_are_still_there() -> None:
    truth, books = Truth(GPU, [Has(A, WHOLE, device=PARTS[0])], [], PARTS), Books()
    for at in range(181):
        seen = truth.snapshot(at, at - 1)
        if 10 < at < 180:
            seen = replace(seen, readings=seen.readings[:1], devices_failed=True)
        books.post(seen)
    assert books.seconds(ALLOCATION) == in_seconds("A 90, idle 47.5, unobserved 42.5")


def test_a_destroyed_instance_has_no_time_while_another_gpu_is_missing() -> None:
    truth, books = Truth(GPU, [Has(A, WHOLE, device=PARTS[0])], [], PARTS), Books()
    for at in range(61):
        seen = truth.snapshot(at, at - 1)
        if at >= 20:
            left = (replace(seen.readings[0], rules=LISTED_RULES), *seen.readings[2:])
            seen = replace(seen, readings=left, allocations=(), devices_failed=True)
        books.post(seen)
    last = list(books.spans.values())[-1]
    assert {one.instance for one in last.splits.allocation.accounts} == {"", PARTS[1].instance}


def test_a_process_that_no_tick_saw_is_known_by_its_accounting_record() -> None:
    truth = Truth(GPU, [], [Runs(UA), Runs(UB, 20.25, 20.75)])
    assert play(truth, range(61)).seconds(RESIDENCE) == in_seconds("A 59.75, unknown 0.25")


def test_a_process_that_comes_and_goes_changes_only_its_seconds() -> None:
    truth = Truth(GPU, [], [Runs(UA), Runs(UB, 20.25, 30.5)])
    assert play(truth, range(61)).seconds(RESIDENCE) == in_seconds("A 54.875, B 5.125")


def test_a_failure_leaves_the_time_unobserved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    truth, ledger, posted = Truth(GPU, [], [Runs(UA)]), TimeLedger(), 0

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    for at in range(4):
        if at == 2:
            monkeypatch.setattr("gpuledger.ledger.time.decision._usual_interval", fail)
        for one in ledger.post(truth.snapshot(at, at - 1)):
            posted += one.microseconds
            account = next(iter(one.changes(RESIDENCE))).account
            assert account == ("owner" if at == 1 else "unobserved")
    assert posted == ledger.watched[GPU.uuid] == 3_000_000
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_the_same_process_on_two_devices_is_two_rows() -> None:
    one, other = process(GPU, 7, workload=UA), process(OTHER, 7, workload=UA)
    books = Books()
    for at in range(11):
        readings = (reading(GPU, one), reading(OTHER, other))
        books.post(Snapshot(UNIX + at, at, SourceInfo("test"), readings))
    assert books.seconds(RESIDENCE) == in_seconds("A 20")

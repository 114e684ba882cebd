"""Who holds Devices without use, out of a ledger: times, prices equal to the report's, and who never is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import gpu, process
from gpuledger.ledger.report.idle.digest import digest_json
from gpuledger.ledger.report.idle.holds import IdleHold, IdleReport, idle_json
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.report.usage_report import ReportLine
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.idle_query import IdleScope, find_idle_holds
from gpuledger.ledger.store.report_query import build_report
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import Run

GPU, OTHER = gpu(0, name="NVIDIA H100"), gpu(1, name="NVIDIA A100")
QUARTER = 900
# A full hour, so that the tests can count in quarters.
BEGIN = 1_700_002_800
ANN, BOB = (Workload("user", user=name) for name in ("ann", "bob"))
POD = Workload("pod", "ml", "train-0", "main", pod_uid="u1")
PRICES = Prices(gpu_hour=Decimal("3.60"), kwh=Decimal("0.30"), currency="EUR")
STEP = 30.0


def runs(owner: Workload, pid: int, device: object = GPU, **more: object) -> GpuProcess:
    return process(device, pid, workload=owner, **more)  # type: ignore[arg-type]


class Lab:
    """A machine with two GPUs: what happens on them, in a ledger."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)
        self.run.clock.now_unix = BEGIN - STEP
        self.joules = 0
        self.passes(STEP)

    def passes(
        self,
        seconds: float,
        *processes: GpuProcess,
        busy: Sequence[GpuProcess] = (),
        unread: bool = False,
        to: Sequence[Workload] = (),
    ) -> None:
        """Time in which these processes are there, those in `busy` at work, and GPU 0 is allocated `to`."""
        given = tuple(Allocation(GPU, owner, fraction=Fraction(1, len(to))) for owner in to)
        everything = [
            *(replace(one, usage=replace(one.usage, sm=None if unread else 0.0)) for one in processes),
            *busy,
        ]
        for _ in range(round(seconds / STEP)):
            self.joules += 10_000
            counters = {GPU: self.joules, OTHER: self.joules}
            self.run.tick(counters, everything, STEP, busy=None if unread else bool(busy), allocations=given)

    def holds(
        self, least: float = 1800.0, prices: Prices = PRICES, **scope: object
    ) -> tuple[IdleReport, History]:
        history = History(self.run.store.file)
        found = find_idle_holds(history, IdleScope(prices, least, zone=UTC, **scope))  # type: ignore[arg-type]
        return found, history


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def listed(lab: Lab, **more: object) -> list[tuple[str, str, int, int]]:
    """Owner, GPU, begin after BEGIN, and seconds of each hold."""
    found, history = lab.holds(**more)  # type: ignore[arg-type]
    with closing(history):
        return [(one.key[-1], one.device.uuid, one.begins - BEGIN, one.seconds) for one in found.holds]


def test_a_process_that_does_nothing_holds_its_gpu(lab: Lab) -> None:
    lab.passes(3600, runs(ANN, 7))
    ((owner, uuid, begins, seconds),) = listed(lab)
    assert (owner, uuid) == ("ann", "GPU-0")
    assert begins <= STEP
    assert seconds == 3600 - begins


def test_it_may_have_begun_before_the_ledger(lab: Lab) -> None:
    mine = runs(ANN, 7)
    lab.run.tick({GPU: 0, OTHER: 0}, [mine], STEP, busy=False)
    lab.passes(3600, mine, runs(BOB, 9, OTHER))
    found, history = lab.holds()
    with closing(history):
        begins = {one.key[-1]: (one.begins, one.begins_earlier) for one in found.holds}
    assert begins["bob"][1] is True
    lab.passes(60, busy=[mine])
    lab.passes(3600, mine)
    found, history = lab.holds()
    with closing(history):
        (one,) = found.holds
        assert (one.key[-1], one.begins_earlier) == ("ann", False)


def test_it_counts_from_the_last_use(lab: Lab) -> None:
    mine = runs(ANN, 7)
    lab.passes(3600, busy=[mine])
    lab.passes(2700, mine)
    ((_, _, begins, seconds),) = listed(lab)
    assert 3600 <= begins <= 3600 + STEP
    assert seconds == 6300 - begins
    assert listed(lab, least=2701.0) == []


def test_who_uses_it_now_is_not_listed(lab: Lab) -> None:
    mine = runs(ANN, 7)
    lab.passes(3600, mine)
    lab.passes(60, busy=[mine])
    assert listed(lab, least=0.0) == []


def test_who_has_left_is_not_listed(lab: Lab) -> None:
    lab.passes(3600, runs(ANN, 7))
    lab.passes(120)
    assert listed(lab, least=0.0) == []


def test_an_allocation_without_a_process_is_held(lab: Lab) -> None:
    lab.passes(3600, to=[POD])
    found, history = lab.holds()
    with closing(history):
        (one,) = found.holds
        assert (one.key, one.pids, one.commands) == (("pod", "ml", "train-0"), (), ())
        assert one.seconds >= 3600 - STEP


def test_a_second_process_that_works_is_use_by_the_same_owner(lab: Lab) -> None:
    lab.passes(3600, runs(ANN, 7), busy=[runs(ANN, 8)])
    assert listed(lab, least=0.0) == []


def test_a_process_of_somebody_else_is_no_use(lab: Lab) -> None:
    lab.passes(3600, runs(ANN, 7), busy=[runs(BOB, 8)])
    assert [owner for owner, *_ in listed(lab)] == ["ann"]


def test_unknown_use_is_never_listed_but_counted(lab: Lab) -> None:
    lab.passes(3600, runs(ANN, 7), unread=True)
    found, history = lab.holds(least=0.0)
    with closing(history):
        assert (list(found.holds), found.unjudged) == ([], 1)


def test_a_restart_of_gpuledger_does_not_end_it(lab: Lab) -> None:
    mine = runs(ANN, 7)
    lab.passes(3600, mine)
    lab.run.clock.advance(1200)
    lab.passes(600, mine)
    ((_, _, begins, seconds),) = listed(lab)
    assert begins <= STEP
    # Only what was watched counts.
    assert 4200 - 2 * STEP <= seconds <= 4200


INFRASTRUCTURE = {
    "a display server": [runs(ANN, 5, name="Xorg", types="G")],
    "an MPS server that waits": [
        replace(one, host=replace(one.host, uid=0, user="root"))
        for one in [runs(Workload("user", user="root"), 6, name="nvidia-cuda-mps-server")]
    ],
}


@pytest.mark.parametrize("what", INFRASTRUCTURE)
def test_infrastructure_is_never_accused(lab: Lab, what: str) -> None:
    lab.passes(7200, *INFRASTRUCTURE[what])
    assert listed(lab, least=0.0) == []


def test_placeholders_and_monitoring_claims_are_never_accused(lab: Lab) -> None:
    placeholder = Workload("pod", "kai-resource-reservation", "gpu-reservation-1", pod_uid="u2")
    lab.passes(7200, to=[placeholder])
    is_placeholder = lambda owner: owner.namespace == "kai-resource-reservation"  # noqa: E731
    assert listed(lab, least=0.0, is_infrastructure=is_placeholder) == []


def line_of(history: History, hold: IdleHold, prices: Prices) -> ReportLine:
    """The row of `gpuledger report --by owner,gpu` for the same time."""
    assert hold.priced_from is not None
    within = ReportRange(hold.priced_from // QUARTER, history.end_quarter, history.latest, UTC)
    report = build_report(history, "owner,gpu", prices, within)
    (line,) = [one for one in report.lines if one.key[:4] == (*hold.key, hold.device.gpu.uuid)]
    return line


@pytest.mark.parametrize("prices", [PRICES, replace(PRICES, basis="residence"), replace(PRICES, idle=SPREAD)])
def test_costs_are_those_of_the_report(lab: Lab, prices: Prices) -> None:
    mine, theirs = runs(ANN, 7), runs(BOB, 9, OTHER)
    lab.passes(1000, busy=[mine, theirs])
    lab.passes(5000, mine, theirs)
    lab.passes(3000, mine, theirs, runs(BOB, 8))
    found, history = lab.holds(prices=prices)
    with closing(history):
        assert {(one.key[-1], one.device.uuid) for one in found.holds} == {
            ("ann", "GPU-0"),
            ("bob", "GPU-0"),
            ("bob", "GPU-1"),
        }
        for one in found.holds:
            line = line_of(history, one, prices)
            assert one.line is not None
            assert one.priced_from is not None
            assert 0 <= one.priced_from - one.begins < (3600 if prices.idle == SPREAD else QUARTER)
            for name in ("gpu_microseconds", "millijoules", "time_cost", "energy_cost", "cost"):
                assert getattr(one.line, name) == getattr(line, name), name
            # All of the priced time is time without use.
            assert not line.active


def test_a_hold_that_has_not_reached_a_cut_has_no_cost_yet(lab: Lab) -> None:
    lab.passes(300)
    lab.passes(420, runs(ANN, 7))
    found, history = lab.holds(least=0.0)
    with closing(history):
        (one,) = found.holds
        assert one.begins > BEGIN
        assert (one.priced_from, one.line, one.cost) == (None, None, None)
        assert idle_json(found)["holds"][0]["cost"] is None
    lab.passes(420, runs(ANN, 7))
    found, history = lab.holds(least=0.0)
    with closing(history):
        (one,) = found.holds
        assert one.priced_from == BEGIN + QUARTER
        assert one.cost


def test_the_dearest_comes_first_and_files_add_up(lab: Lab) -> None:
    prices = replace(
        PRICES,
        gpu_hour=Decimal(1),
    )
    lab.passes(2000, runs(BOB, 8, OTHER))
    lab.passes(4000, runs(ANN, 7), runs(BOB, 8, OTHER))
    found, history = lab.holds(prices=prices)
    with closing(history):
        body = idle_json(found)
    assert [one["owner"] for one in body["holds"]] == ["bob", "ann"]
    assert sum(Decimal(one["cost"]) for one in body["holds"]) == Decimal(body["total_cost"])
    assert body["holds"][0]["release"] == "kill 8"
    assert body["holds"][0]["explain"] == "owner:user/bob"


def test_a_digest_has_the_hours_of_the_report(lab: Lab) -> None:
    mine = runs(ANN, 7)
    lab.passes(1800, busy=[mine])
    lab.passes(5400, mine, runs(BOB, 9, OTHER))
    lab.passes(3600, busy=[runs(BOB, 9, OTHER)])
    history = History(lab.run.store.file)
    with closing(history):
        within = ReportRange(BEGIN // QUARTER, history.end_quarter, history.latest, UTC)
        report = build_report(history, "user", PRICES, within)
        body = digest_json(report, find_idle_holds(history, IdleScope(PRICES, 0.0, zone=UTC)))
        lines = {line.key: line for line in report.lines}
    entries = {one["name"]: one for one in body["entries"]}
    assert entries.keys() == {"ann", "bob"}
    for name, entry in entries.items():
        line = lines[(name,)]
        assert line.held is not None
        assert entry["held_seconds"] == float(line.held)
        assert entry["gpu_microseconds"] == line.gpu_microseconds
        assert line.cost is not None
        assert abs(Fraction(entry["cost"]) - line.cost) < Fraction(1, 10**9)
        assert entry["unpriced_microseconds"] == line.unpriced_microseconds
        assert entry["unpriced_millijoules"] == line.unpriced_millijoules
    # Both have gone, or work: nothing is held now.
    assert [one["holds"] for one in body["entries"]] == [[], []]


def test_holds_have_the_team_of_their_owner(lab: Lab) -> None:
    lab.passes(3600, runs(ANN, 7))
    teams = (Team("vision", (("user", ("ann",)),)),)
    found, history = lab.holds(teams=teams)
    with closing(history):
        assert [one.team for one in found.holds] == ["vision"]


TIMELINE = st.lists(
    st.tuples(st.sampled_from(["idle", "busy", "gone", "unread"]), st.integers(1, 60)),
    min_size=1,
    max_size=6,
)


@given(TIMELINE)
@settings(max_examples=12, deadline=None)
def test_whatever_happened_nobody_is_accused_for_time_with_use(
    tmp_path_factory: pytest.TempPathFactory, timeline: list[tuple[str, int]]
) -> None:
    lab, mine = Lab(tmp_path_factory.mktemp("lab")), runs(ANN, 7)
    begun = lab.run.clock.now_unix
    for what, steps in timeline:
        lab.passes(
            steps * STEP,
            *([mine] if what in ("idle", "unread") else []),
            busy=[mine] if what == "busy" else [],
            unread=what == "unread",
        )
    found, history = lab.holds(least=0.0)
    with closing(history):
        spoiled = begun
        at = begun
        for what, steps in timeline:
            at += steps * STEP
            if what in ("busy", "unread"):
                spoiled = at
        is_idle, is_long = timeline[-1][0] == "idle", timeline[-1][1] > 2
        # Two steps pass until a reading sees a beginning and an interval after it.
        assert len(found.holds) == is_idle or (not is_long and not found.holds)
        for one in found.holds:
            # A second has the state in which it began: up to a step later than the truth, never earlier.
            assert spoiled <= one.begins <= at
            assert one.seconds <= at - spoiled
            if one.line is not None:
                assert one.line.gpu_microseconds == line_of(history, one, PRICES).gpu_microseconds
                assert not one.line.active
                assert not one.line.unknown

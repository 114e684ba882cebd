"""Exported counters of time: names that arrive late, new and ended series, the balance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, instance
from gpuledger.ledger.journal import StoredSeries
from gpuledger.ledger.time.account import OWNER, TimeAccount
from gpuledger.ledger.time.span import TimeSpan
from gpuledger.ledger.time.split import Split, Splits
from gpuledger.ledger.time_accounts import TimeAccounts
from gpuledger.model.session import BASES, RESIDENCE, TimeState
from gpuledger.model.workload import Workload
from time_helpers import Books, Has, Runs, Truth, job, pod, user

GPU = gpu(0, sm_count=132)
PARTS = (instance(GPU, 1, 0, index=0, sm_count=66), instance(GPU, 2, 0, index=1, sm_count=33))
NAMELESS = Workload(kind="pod", pod_uid="uid-A", container_id="c1", missing="pod_name", found_by="cgroup")
NAMED = Workload(kind="pod", namespace="ml", pod="A", container="main", pod_uid="uid-A", container_id="c1")


class Exporter:
    """The time ledger of a node, exported at each tick."""

    def __init__(self, hold: float = 0.0, retention: float = 5.0, basis: str = RESIDENCE) -> None:
        self.books = Books()
        self.accounts = TimeAccounts(hold, retention, basis)
        self.state = TimeState()

    def play(self, truth: Callable[[int], Truth] | Truth, seconds: range) -> None:
        for at in seconds:
            now = truth if isinstance(truth, Truth) else truth(at)
            self.accounts.post(self.books.post(now.snapshot(at, at - 1)), at)
            before, self.state = self.state, self.accounts.state(self.books.ledger.watched)
            assert_exports_all_time(before, self.state)

    def values(self) -> dict[str, float]:
        """Seconds by the names of an owner, or by the Gpu's own account."""
        return {
            "/".join(filter(None, row.labels[4:])) or (row.labels[3] or row.labels[2]): row.microseconds / 1e6
            for row in self.state.rows
        }


def assert_exports_all_time(before: TimeState, now: TimeState) -> None:
    """Assert that exported + pending + closed is watched, and that no counter falls."""
    for uuid, watched in now.watched.items():
        rows = [row for row in now.rows if row.labels[0] == uuid]
        exported = sum(row.microseconds for row in rows)
        difference = exported + now.pending[uuid] + now.closed[uuid] - watched
        assert 0 <= difference <= len(rows)
        assert now.pending[uuid] >= 0
    earlier = {row.labels: row.microseconds for row in before.rows}
    assert all(row.microseconds >= earlier.get(row.labels, 0) for row in now.rows)
    assert len(now.rows) == len({row.labels for row in now.rows})


def test_labels_are_those_of_the_owner_and_the_instance() -> None:
    exporter = Exporter(basis="allocation")
    truth = Truth(GPU, [Has(job("7"), Fraction(1), device=PARTS[0])], [], PARTS)
    exporter.play(truth, range(3))
    assert {row.labels: row.microseconds for row in exporter.state.rows} == {
        ("GPU-0", "1_0", "owner", "slurm", "", "", "", "mira", "7"): 1_000_000,
        ("GPU-0", "", "idle", "", "", "", "", "", ""): 1_000_000,
    }


def test_time_waits_for_the_name_of_its_pod() -> None:
    exporter = Exporter()
    exporter.play(lambda at: Truth(GPU, [], [Runs(NAMELESS if at < 10 else NAMED)]), range(10))
    assert (exporter.values(), exporter.state.pending) == ({}, {"GPU-0": 9_000_000})
    exporter.play(Truth(GPU, [], [Runs(NAMED)]), range(10, 12))
    assert (exporter.values(), exporter.state.pending) == ({"ml/A/main": 11.0}, {"GPU-0": 0})


@pytest.mark.parametrize("pod_uid", ["", "hash-of-a-static-pod"])
def test_time_finds_its_owner_by_the_container_although_the_uid_changes_with_the_name(pod_uid: str) -> None:
    exporter = Exporter()
    unnamed = replace(NAMELESS, pod_uid=pod_uid)
    exporter.play(lambda at: Truth(GPU, [], [Runs(unnamed if at < 10 else NAMED)]), range(50))
    assert (exporter.values(), exporter.state.pending) == ({"ml/A/main": 49.0}, {"GPU-0": 0})


@pytest.mark.parametrize("basis", ["allocation", "residence"])
def test_an_allocation_by_uid_alone_gets_its_time_when_the_pod_and_its_container_id_are_known(
    basis: str,
) -> None:
    """The kubelet's checkpoint has the UID, and is read before the API server's pods. Nothing runs."""
    exporter = Exporter(basis=basis)
    unnamed = Workload(kind="pod", container="main", pod_uid="uid-A", missing="pod_name")

    def truth(at: int) -> Truth:
        return Truth(GPU, [Has(unnamed if at < 2 else NAMED, Fraction(1))], [])

    exporter.play(truth, range(50))
    expected = {"ml/A/main": 49.0} if basis == "allocation" else {"idle": 49.0}
    assert (exporter.values(), exporter.state.pending) == (expected, {"GPU-0": 0})


def test_time_without_a_name_is_unknown_after_30_seconds_and_later_time_the_pods() -> None:
    exporter = Exporter(retention=100)
    exporter.play(lambda at: Truth(GPU, [], [Runs(NAMELESS if at < 40 else NAMED)]), range(51))
    assert exporter.values() == {"unknown": 39.0, "ml/A/main": 11.0}


def test_time_of_an_owner_that_leaves_without_a_name_is_unknown_after_30_seconds() -> None:
    exporter = Exporter()
    exporter.play(Truth(GPU, [], [Runs(NAMELESS, ends=5)]), range(30))
    assert (exporter.values(), exporter.state.pending) == ({"idle": 24.0}, {"GPU-0": 5_000_000})
    exporter.play(Truth(GPU, [], []), range(30, 33))
    assert exporter.values() == {"unknown": 5.0, "idle": 27.0}


def test_time_waits_for_a_name_while_the_allocation_has_the_gpu() -> None:
    """The kubelet's socket answers before the API server, and has no UIDs."""
    exporter = Exporter(basis="allocation")
    allocated = [Has(replace(NAMED, pod_uid="", container_id=""), Fraction(1))]

    def truth(at: int) -> Truth:
        return Truth(GPU, allocated if at >= 3 else [], [Runs(NAMED if at >= 6 else NAMELESS)])

    exporter.play(truth, range(10))
    assert (exporter.values(), exporter.state.pending) == ({"ml/A/main": 9.0}, {"GPU-0": 0})


# `Workload.ids` of a waiting owner: that of its container counts, if it has one.
@pytest.mark.parametrize("ids", [("", "c1"), ("uid-A", "c1"), ("uid-A", "")])
@pytest.mark.parametrize(("seen_at", "expected"), [(10, "ml/A/main"), (40, "unknown")])
def test_time_without_a_name_waits_after_a_restart_until_its_owner_is_seen(
    seen_at: int, expected: str, ids: tuple[str, str]
) -> None:
    """The first ticks may have neither process lists nor Allocations: the owner has not left."""
    exporter = Exporter(retention=100)
    labels = ("GPU-0", "", "waiting", *ids)
    waiting = StoredSeries(1, labels, None, age=5.0, lasting=False, amount=7_000_000, measured=7_000_000)
    exporter.accounts.resume("GPU-0", [waiting], 0, now=0.0)
    for at in range(seen_at + 3):
        truth = Truth(GPU, [], [Runs(NAMED, begins=seen_at)])
        exporter.accounts.post(exporter.books.post(truth.snapshot(at, at - 1)), at)
    exporter.state = exporter.accounts.state(exporter.books.ledger.watched)
    assert exporter.values()[expected] >= 7


def test_a_new_series_is_0_for_the_hold_and_its_time_pending() -> None:
    exporter = Exporter(hold=5.0)
    exporter.play(Truth(GPU, [], [Runs(user("mira"))]), range(4))
    assert (exporter.values(), exporter.state.pending) == ({"mira": 0.0}, {"GPU-0": 3_000_000})
    exporter.play(Truth(GPU, [], [Runs(user("mira"))]), range(4, 8))
    assert (exporter.values(), exporter.state.pending) == ({"mira": 7.0}, {"GPU-0": 0})


def test_a_series_ends_after_the_retention_and_own_accounts_never() -> None:
    exporter = Exporter()
    exporter.play(Truth(GPU, [], [Runs(user("mira"), 10, 20)]), range(61))
    assert exporter.values() == {"idle": 50.0}
    assert exporter.state.closed == {"GPU-0": 10_000_000}


def test_another_retention_counts_for_owners_that_have_left_already() -> None:
    exporter = Exporter(retention=100)
    truth = Truth(GPU, [], [Runs(user("mira"), 0, 10)])
    exporter.play(truth, range(20))
    assert exporter.values() == {"mira": 10.0, "idle": 9.0}
    exporter.accounts.set_retention(5.0)
    exporter.play(truth, range(20, 22))
    assert exporter.values() == {"idle": 11.0}


def test_a_series_begins_again_at_0_after_its_end() -> None:
    exporter = Exporter()
    exporter.play(Truth(GPU, [], [Runs(user("mira"), 0, 10), Runs(user("mira"), 30)]), range(36))
    assert exporter.values() == {"idle": 20.0, "mira": 5.0}


def test_a_list_that_fails_ends_no_series_and_no_wait_for_a_name() -> None:
    exporter = Exporter()
    exporter.play(
        lambda at: Truth(
            GPU, [], [Runs(user("mira")), Runs(NAMELESS if at < 25 else NAMED)], unlisted=[(5, 25)]
        ),
        range(31),
    )
    assert exporter.values() == {"mira": 15.0, "ml/A/main": 15.0}


def test_a_series_that_ended_in_a_pause_begins_again() -> None:
    exporter = Exporter()
    truth = Truth(GPU, [], [Runs(user("mira"))])
    exporter.play(truth, range(11))
    exporter.accounts.post([], 100)
    exporter.state = exporter.accounts.state(exporter.books.ledger.watched)
    assert exporter.values() == {}
    exporter.play(truth, range(11, 21))
    assert (exporter.values(), exporter.state.closed) == ({"mira": 10.0}, {"GPU-0": 10_000_000})


def test_a_counter_keeps_its_value_while_its_account_has_a_microsecond_less() -> None:
    owners = tuple(user(name) for name in "abc")
    rows = tuple(TimeAccount(OWNER, owner=("user", owner.user)) for owner in owners)
    split = Split(rows, (6, 6, 2), 14, owners)
    span, accounts = TimeSpan(1, GPU, Splits(split, split), 0, 0), TimeAccounts(0.0, 5.0)
    seen = []
    for at, microseconds in enumerate((10, 1, 10)):
        accounts.post([span.extend(0, microseconds)], float(at))
        state = accounts.state({"GPU-0": span.microseconds})
        seen.append([row.microseconds for row in state.rows])
    assert seen == [[4, 4, 2], [5, 5, 2], [9, 9, 3]]


def test_uncovered_multiprocessors_are_exported_as_idle() -> None:
    exporter = Exporter()
    exporter.play(Truth(GPU, instances=PARTS), range(5))
    assert exporter.values() == {"idle": 4.0}


OWNERS = [pod("a"), pod("b"), job("7"), NAMELESS, NAMED, Workload()]
runs = st.builds(
    lambda owner, begins, length: Runs(owner, float(begins), float(begins + length)),
    st.sampled_from(OWNERS),
    st.integers(0, 80),
    st.integers(1, 60),
)


@pytest.mark.parametrize("basis", BASES)
@given(st.lists(runs, max_size=5), st.sampled_from([0.0, 7.0]))
def test_exported_pending_and_closed_are_all_watched_time(basis: str, many: list[Runs], hold: float) -> None:
    has = [Has(one.owner, Fraction(1, 3), one.begins, one.ends + 5) for one in many[:2]]
    Exporter(hold, basis=basis).play(Truth(GPU, has, many), range(100))

"""The laws of the time books, for any sequence of ticks, losses, failing lists, gaps, pauses and restarts."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, instance
from gpuledger.ledger.time.account import OWNER, TimeAccount
from gpuledger.ledger.time.span import QUARTER_MICROSECONDS
from gpuledger.ledger.time.split import Split
from gpuledger.model.session import ALLOCATION, BASES
from gpuledger.model.workload import UNKNOWN, Workload
from gpuledger.sources.simulator.scenario_parser import load_scenario
from time_helpers import (
    Books,
    Has,
    Period,
    Runs,
    Truth,
    assert_time_balances,
    job,
    play,
    pod,
    user,
)
from unit.sources.simulator.support import Node

GPU = gpu(0, sm_count=132)
PARTS = (instance(GPU, 1, index=0, sm_count=60), instance(GPU, 2, index=1, sm_count=32))
OWNERS = [pod("a"), pod("a", "second"), pod("b"), job("7"), user("mira"), UNKNOWN]
FRACTIONS = [None, None, Fraction(0), Fraction(1, 4), Fraction(1, 3), Fraction(3, 5), Fraction(1)]
# Binary fractions of a second, so that the clocks of ticks and processes agree exactly.
STEP = Fraction(1, 8)
LENGTH = 240

moments = st.integers(0, LENGTH * 8).map(lambda steps: float(steps * STEP))
periods: st.SearchStrategy[Period] = st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair)))
owners: st.SearchStrategy[Workload] = st.sampled_from(OWNERS)


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    cut = draw(st.booleans())
    devices = st.sampled_from([None, *PARTS]) if cut else st.none()
    places = st.sampled_from(PARTS) if cut else st.none()

    def has() -> Has:
        begins, ends = draw(periods)
        return Has(draw(owners), draw(st.sampled_from(FRACTIONS)), begins, ends, draw(devices))

    def runs() -> Runs:
        begins, ends = draw(periods)
        kind = draw(st.sampled_from(["C", "C", "G", "M+C"]))
        return Runs(
            draw(owners), begins, ends, draw(places), types=kind, sm=draw(st.sampled_from([0.0, 0.5]))
        )

    return Truth(
        GPU,
        [has() for _ in range(draw(st.integers(0, 4)))],
        [runs() for _ in range(draw(st.integers(0, 4)))],
        PARTS if cut else (),
        unlisted=draw(st.lists(periods, max_size=2)),
        lost=draw(st.lists(periods, max_size=1)),
        silent=draw(st.lists(periods, max_size=1)),
        stopped=draw(st.lists(periods, max_size=1)),
        paused=draw(st.lists(periods, max_size=1)),
        busy=draw(st.booleans()),
    )


ticks = st.lists(moments, min_size=2, max_size=60, unique=True).map(sorted)


@given(truths(), ticks)
def test_watched_time_is_the_sum_of_accounts(truth: Truth, times: list[float]) -> None:
    # `play` checks the law.
    play(truth, times)


@given(truths(), ticks)
def test_watched_time_is_the_time_between_ticks_at_most_a_minute_apart(
    truth: Truth, times: list[float]
) -> None:
    truth = Truth(truth.gpu, truth.has, truth.runs, truth.instances, truth.unlisted, truth.lost)
    books = play(truth, times)
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert books.ledger.watched == {GPU.uuid: round(sum(gap for gap in gaps if gap <= 60) * 1_000_000)}


def _moments_of(truth: Truth) -> set[float]:
    """Every time at which a tick must look, or the books know it later than another tick would."""
    found = {0.0, float(LENGTH)}
    for one in truth.has:
        found |= {one.begins, one.ends}
    for period in (*truth.unlisted, *truth.lost, *truth.silent, *truth.stopped, *truth.paused):
        found |= set(period)
        found |= {period[0] + float(STEP), period[1] - float(STEP)}
    return {at for at in found if 0 <= at <= LENGTH}


def _closed(books: Books) -> Counter[tuple[int, str, TimeAccount]]:
    """Microseconds by quarter of an hour, basis and account, from the spans."""
    total: Counter[tuple[int, str, TimeAccount]] = Counter()
    for span in books.spans.values():
        for basis in BASES:
            for account, amount in span.shares(basis).items():
                total[span.begins // QUARTER_MICROSECONDS, basis, account] += amount
    return +total


@given(truths(), ticks, ticks)
def test_the_books_do_not_depend_on_the_ticks(truth: Truth, some: list[float], others: list[float]) -> None:
    """As long as every change is seen at the same time: closed spans are their split exactly."""
    # No gap is longer than a minute. A tick sees each process, else it has no name, and its end: nobody knows
    # when it ended if the GPU was lost since, or under MIG, where there are no records.
    ends = {one.ends for one in truth.runs}
    regular = {float(at) for at in range(0, LENGTH + 1, 15)} | _moments_of(truth)
    regular |= {one.begins for one in truth.runs} | ends | {at - float(STEP) for at in ends if at}
    first = play(truth, sorted(regular | set(some)))
    second = play(truth, sorted(regular | set(others)))
    assert _closed(first) == _closed(second)


@given(truths(), ticks)
def test_an_exported_counter_never_falls_and_is_within_a_microsecond(
    truth: Truth, times: list[float]
) -> None:
    books = play(truth, times)
    exact: Counter[TimeAccount] = Counter()
    exported: Counter[TimeAccount] = Counter()
    for one in books.posted:
        exact.update(one.changes(ALLOCATION))
        for account in one.span.split(ALLOCATION).accounts:
            exported[account] = max(exported[account], exact[account])
            assert exported[account] - exact[account] <= 1


@given(truths(), ticks)
def test_own_accounts_have_no_owner_and_owners_have_one(truth: Truth, times: list[float]) -> None:
    for basis in BASES:
        for account in play(truth, times).accounts(basis):
            assert bool(account.owner) == (account.account == OWNER)
            if account.account != OWNER:
                assert account == TimeAccount(account.account, account.instance)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=12), st.integers(0, 10**12))
def test_shares_are_the_largest_remainders(weights: list[int], microseconds: int) -> None:
    accounts = tuple(TimeAccount(OWNER, owner=("user", f"{rank:02}")) for rank in range(len(weights)))
    split = Split(accounts, tuple(weights), sum(weights), (None,) * len(weights))
    found = split.shares(microseconds)
    assert sum(found) == microseconds
    exact = [Fraction(microseconds * weight, sum(weights)) for weight in weights]
    up = [rank for rank, amount in enumerate(found) if amount > exact[rank]]
    assert all(abs(amount - exact[rank]) < 1 for rank, amount in enumerate(found))
    # Nobody who was rounded down has a larger remainder, or the same one and an earlier name.
    for rank in set(range(len(weights))) - set(up):
        for other in up:
            assert (-(exact[rank] % 1), rank) > (-(exact[other] % 1), other)


@given(st.lists(st.integers(1, 59_000_000), min_size=1, max_size=40), st.integers(2, 7))
def test_a_closed_span_is_its_split_whatever_the_ticks_were(gaps: list[int], count: int) -> None:
    """Times that are no whole fractions of anything, too."""
    gaps = gaps[: max(1, sum(1 for _ in gaps) // 2)]
    truth = Truth(GPU, runs=[Runs(user(f"u{number}")) for number in range(count)])
    books, at = Books(), 0
    for gap in [0, *gaps]:
        at += gap
        books.post(truth.snapshot(at / 1_000_000, (at - gap) / 1_000_000))
    assert_time_balances(books)
    by_quarter: Counter[int] = Counter()
    begins = 0
    for span in books.spans.values():
        assert span.ends - span.begins == span.microseconds
        assert span.begins // QUARTER_MICROSECONDS == (span.ends - 1) // QUARTER_MICROSECONDS
        by_quarter[span.begins // QUARTER_MICROSECONDS] += 1
        begins += span.microseconds
    assert begins == sum(gaps)
    # One span for each quarter: the same owners, whatever the ticks.
    assert set(by_quarter.values()) <= {1}


def test_a_difference_can_be_negative_but_their_sum_is_exact() -> None:
    """The Alabama paradox: one more microsecond, and an owner has one less."""
    accounts = tuple(TimeAccount(OWNER, owner=("user", name)) for name in "abc")
    split = Split(accounts, (6, 6, 2), 14, (None,) * 3)
    assert (split.shares(10), split.shares(11)) == ([4, 4, 2], [5, 5, 1])


@pytest.mark.parametrize("name", ["k8s-node", "workstation", "mixed-lab"])
def test_ten_minutes_of_a_node_balance_to_the_microsecond(name: str) -> None:
    node, books = Node(load_scenario(name)), Books()
    for second in range(600):
        books.post(node.at(float(second)))
    assert_time_balances(books)
    assert set(books.ledger.watched.values()) == {599_000_000}
    assert any(one.account == OWNER for one in books.accounts(ALLOCATION))

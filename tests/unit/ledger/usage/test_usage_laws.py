"""Laws of what owners use: sums are those of the GPU and of the sessions; folding and restarts keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from builders import FakeClock, process
from fuzzing import costly
from gpuledger.ledger.report.usage_rows import UsageRow
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Workload
from ledger_helpers import rows
from report_helpers import folded
from usage_helpers import ANN, DAN, HOUR, A, UsageNode, usage_of

OWNERS = (ANN, DAN, Workload("user", user="eve", found_by="uid"))
PAGE = 4096


class Look(NamedTuple):
    """One tick: its length, the processes (owner, pages, percent of the SMs) by pid, if the list is read."""

    seconds: float
    processes: dict[int, tuple[int, int, int]]
    is_read: bool = True


LOOKS = st.lists(
    st.builds(
        Look,
        st.sampled_from((0.5, 1.0, 7.0, 59.0, 600.0)),
        st.dictionaries(
            st.integers(1, 4),
            st.tuples(st.integers(0, 2), st.integers(0, 4000), st.integers(0, 100)),
            max_size=4,
        ),
        st.sampled_from((True, True, True, False)),
    ),
    min_size=2,
    max_size=12,
)


def processes(look: Look) -> list[GpuProcess]:
    # The owner is part of the identity: a pid of another owner is another process.
    return [
        process(A, pid, ticks=owner, workload=OWNERS[owner], memory=memory * PAGE, sm=percent / 100)
        for pid, (owner, memory, percent) in look.processes.items()
    ]


def post(node: UsageNode, looks: Sequence[Look]) -> None:
    for look in looks:
        busy = max((percent for _, _, percent in look.processes.values()), default=0) / 100
        node.see(*processes(look), seconds=look.seconds, busy=busy, unread=[] if look.is_read else [A])


def expected(looks: Sequence[Look]) -> Counter[tuple[str, str]]:
    """Microseconds by owner, counted from the ticks alone: seen, and the sums of memory and of SM shares."""
    found: Counter[tuple[str, str]] = Counter()
    before: set[tuple[int, int]] | None = None
    present: set[int] = set()
    for number, look in enumerate(looks):
        if not look.is_read:
            continue
        here = {(pid, owner) for pid, (owner, _, _) in look.processes.items()}
        length = round(look.seconds * 1000) if number and look.seconds <= 60 else 0
        for pid, (owner, memory, percent) in look.processes.items():
            if before is not None and (pid, owner) in before:
                name = OWNERS[owner].job
                found[name, "memory"] += memory * length
                found[name, "sm"] += percent * 100 * length * 1000
        for owner in {owner for _, owner in here} & present:
            found[OWNERS[owner].job, "seen"] += length * 1000
        before, present = here, {owner for _, owner in here}
    return +found


def stored(file: Path) -> Counter[tuple[str, str]]:
    query = """
        SELECT owner, sum(seen), sum(memory), sum(sm)
            FROM usage_quarters JOIN usage_periods ON number = period GROUP BY owner
    """
    found: Counter[tuple[str, str]] = Counter()
    for text, *sums in rows(file, query):
        job = next(one.job for one in OWNERS if f'"user":"{one.user}"' in str(text))
        for name, amount in zip(("seen", "memory", "sm"), sums, strict=True):
            found[job, name] += int(str(amount))
    return +found


@costly
@given(LOOKS)
def test_owners_have_what_was_seen_and_sessions_sum_to_them(looks: list[Look]) -> None:
    with TemporaryDirectory() as folder:
        node = UsageNode(Path(folder), clock=FakeClock(HOUR))
        post(node, looks)
        assert stored(node.file) == expected(looks)
        ((memory,),) = rows(node.file, "SELECT sum(memory) FROM usage_quarters")
        # Sessions that are open have the rest of their sums with the next store of the cells.
        ((sessions,),) = rows(node.file, "SELECT sum(memory_pages) FROM usage")
        assert (sessions or 0) == (memory or 0)


def comparable(row: UsageRow) -> UsageRow:
    return replace(row, bars=())


@costly
@given(LOOKS, LOOKS)
def test_folding_changes_no_sum_and_no_peak(looks: list[Look], later: list[Look]) -> None:
    with TemporaryDirectory() as folder:
        node = UsageNode(Path(folder), clock=FakeClock(HOUR))
        post(node, looks)
        node.clock.advance(5000.0)
        post(node, later)
        unix = node.clock.now_unix
        # Once at the end, and in two steps.
        whole = folded(node.file, unix + 7200, Path(folder) / "whole.db")
        half = folded(node.file, unix - 3600, Path(folder) / "half.db")
        steps = folded(half, unix + 7200, Path(folder) / "steps.db")
        assert rows(whole, "SELECT count(*) FROM usage_quarters") == [(0,)]
        for by in ("owner", "job"):
            detailed = {key: comparable(row) for key, row in usage_of(node.file, by).items()}
            for file in (whole, half, steps):
                found = {key: comparable(row) for key, row in usage_of(file, by).items()}
                if by == "owner":
                    assert found == detailed
                assert {key: row.sm_known for key, row in found.items() if not row.is_merged} == {
                    key: detailed[key].sm_known for key, row in found.items() if not row.is_merged
                }
        assert bar_time(whole) == bar_time(node.file)


def bar_time(file: Path) -> dict[tuple[str, str], int]:
    return {key: sum(bar.seen for bar in row.bars) for key, row in usage_of(file, "owner").items()}


@costly
@given(LOOKS, LOOKS)
def test_a_restart_in_a_gap_changes_nothing(before: list[Look], after: list[Look]) -> None:
    found: list[dict[Any, UsageRow]] = []
    # After a restart, time counts from the first reading of the list on.
    after = [after[0]._replace(is_read=True), *after[1:]]
    for restarts in (False, True):
        with TemporaryDirectory() as folder:
            node = UsageNode(Path(folder), clock=FakeClock(HOUR))
            post(node, before)
            if restarts:
                node = node.again(Path(folder), seconds=100.0)
            else:
                node.clock.advance(100.0)
            post(node, after)
            found.append(dict(usage_of(node.file, "owner")))
            node.store.close()
    assert found[0] == found[1]


@costly
@given(LOOKS, st.integers(1, 6))
def test_parts_of_a_range_add_up(looks: list[Look], cut: int) -> None:
    with TemporaryDirectory() as folder:
        node = UsageNode(Path(folder), clock=FakeClock(HOUR))
        post(node, looks)
        at = int(HOUR // 900) + cut
        whole = usage_of(node.file, "owner")
        parts = [usage_of(node.file, "owner", until=at), usage_of(node.file, "owner", since=at)]
        for name in ("seen", "resident", "shared", "sm_known", "starts", "waited"):
            sums: Counter[tuple[str, str]] = Counter()
            for part in parts:
                sums.update({key: getattr(row, name) for key, row in part.items()})
            assert +sums == +Counter({key: getattr(row, name) for key, row in whole.items()})
        for key, row in whole.items():
            peaks = [part[key].memory_peak for part in parts if key in part]
            assert row.memory_peak == max((peak for peak in peaks if peak is not None), default=None)

"""The journal: contains all changes, and nothing that is stored already."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from builders import FakeClock, gpu, instance, process
from gpuledger.ledger import journal as journals
from gpuledger.ledger.journal import Journal
from gpuledger.ledger.sessions import OpenSession
from gpuledger.ledger.spans import SessionShare, Span
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
from gpuledger.model.devices import Device
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import UNIX, Run, exported_values, rows

A = gpu(0, sm_count=132)
POD = Workload("pod", "ml", "train-0", "main", "uid-0")
P = process(A, 1, workload=POD)
J = 1000
QUARTER = 900.0


def test_a_session_is_stored_again_only_when_it_changed() -> None:
    """Nothing changes while its Device has no readable list."""
    one = OpenSession(P, 0.0, 1.0, number=7)
    nothing: Callable[[], None] = lambda: None  # noqa: E731  (one of a list)
    taken = []
    for happens in (nothing, nothing, one.end, nothing):
        journal = Journal()
        happens()
        journal.add_sessions([one])
        taken.append(list(journal.sessions))
    assert taken == [[7], [], [7], []]


def span(number: int, quarter: int, second: float, method: str = "measured", *residents: int) -> Span:
    """A span of one second with 1 J per account and 10 J per resident."""
    begins = quarter * QUARTER + second
    one = Span(number, A.uuid, 0, method, begins, begins + 1, residents)
    one.idle, one.unattributed, one.unobserved = J, J, J
    one.shares = {resident: SessionShare(10 * J, 1_000_000, 500) for resident in residents}
    return one


def test_too_many_unsaved_spans_are_summed_by_quarter_residents_and_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "_MAX_SPANS", 11)
    journal = Journal()
    spans = [
        *(span(number, 0, number, "measured", 7) for number in range(3)),
        *(span(number, 0, number, "activity", 7, 8) for number in range(3, 6)),
        *(span(number, 1, number, "measured", 7) for number in range(6, 12)),
    ]
    before = sum(one.millijoules for one in spans)
    for one in spans:
        journal.add_span(one)
    measured, split, *later = journal.spans.values()
    assert [one.number for one in later] == list(range(6, 12))
    assert (measured.number, measured.begins, measured.ends) == (0, 0.0, 3.0)
    assert measured.shares == {7: SessionShare(30 * J, 3_000_000, 1500)}
    assert (split.number, split.begins, split.ends) == (3, 3.0, 6.0)
    assert split.shares == {
        7: SessionShare(30 * J, 3_000_000, 1500),
        8: SessionShare(30 * J, 3_000_000, 1500),
    }
    for one in (measured, split):
        assert (one.idle, one.unattributed, one.unobserved) == (3 * J, 3 * J, 3 * J)
    assert sum(one.millijoules for one in journal.spans.values()) == before


def test_if_that_is_not_enough_each_quarter_becomes_one_unattributed_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each second had other residents; the books still balance."""
    monkeypatch.setattr(journals, "_MAX_SPANS", 7)
    journal = Journal()
    spans = [span(number, 0, number, "activity", number) for number in range(8)]
    before = sum(one.millijoules for one in spans)
    for one in spans:
        journal.add_span(one)
    folded, *later = journal.spans.values()
    assert [one.number for one in later] == [4, 5, 6, 7]
    assert (folded.begins, folded.ends, folded.method, folded.residents) == (0.0, 4.0, "folded", ())
    assert (folded.unattributed, folded.idle, folded.unobserved, folded.shares) == (4 * 13 * J, 0, 0, {})
    assert sum(one.millijoules for one in journal.spans.values()) == before


def test_an_allocation_is_stored_from_its_first_to_its_last_tick(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    allocations = (Allocation(A, POD, "pod_resources"),)
    for number in range(3):
        run.tick({A: number * 100 * J}, allocations=allocations)
        now = run.clock.now_unix
        assert rows(run.store.file, "SELECT begins, ends, over FROM handovers") == [(now - number, now, 0)]
    run.tick({A: 300 * J})
    assert rows(run.store.file, "SELECT begins, ends, over FROM handovers") == [(now - 2, now, 1)]


@pytest.mark.parametrize("device", [A, instance(A, 3, 1)], ids=["Gpu", "Instance"])
def test_a_session_on_a_device_missing_from_the_file_keeps_its_place(device: Device, tmp_path: Path) -> None:
    """A file that replaced a damaged one has no row of Devices that were already gone."""
    with closing(Store(tmp_path, "books", "boot", FakeClock(UNIX), RetentionLimits())) as store:
        journal = Journal()
        journal.add_sessions([OpenSession(process(device, 1), UNIX, UNIX, number=1)])
        store.save(journal)
    with closing(Store(tmp_path, "books", "boot", FakeClock(UNIX), RetentionLimits())) as store:
        (one,) = store.stored_ledger.sessions
    assert (one.process.device.uuid, one.process.device.gpu.uuid) == (device.uuid, A.uuid)
    assert (one.process.device.gpu.index, one.process.device.instance) == (0, device.instance)


def test_an_exported_counter_keeps_its_row_over_restarts(tmp_path: Path) -> None:
    """Otherwise energy booked after the first restart would be lost with the second."""
    clock, number = FakeClock(UNIX), 0
    before: dict[tuple[str, ...], int] = {}
    known: set[tuple[object, ...]] = set()
    for _ in range(3):
        run = Run(tmp_path, clock=clock)
        for _ in range(5):
            number += 1
            now = exported_values(run.tick({A: number * 100 * J}, [P]))
            assert {name: joules for name, joules in before.items() if now.get(name, -1) < joules} == {}
            before = now
        series = set(rows(run.store.file, "SELECT number, labels FROM series"))
        assert known <= series
        known = series
        run.store.close()
    assert len({labels for _, labels in known}) == len(known)

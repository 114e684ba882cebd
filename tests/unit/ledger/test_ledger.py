"""Sessions in memory, and the exported processes of a crowded device."""

from __future__ import annotations

import pytest

from builders import GIB, gpu, instance, process, reading, snapshot
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.quantities import ENERGY, POWER_LIMIT
from gpuledger.model.snapshot import LISTED_RULES, NVIDIA_RULES, XidEvent

A = gpu(0)
B = gpu(1)


def ledger(most: int = 256) -> Ledger:
    return Ledger(LedgerSettings(max_per_device=most))


def test_a_session_extends_from_first_to_last_sight_and_keeps_its_peak_memory() -> None:
    book = ledger()
    book.post(snapshot(reading(A, process(A, memory=1 * GIB)), unix=100))
    book.post(snapshot(reading(A, process(A, memory=3 * GIB)), unix=110))
    book.post(snapshot(reading(A, process(A, memory=None)), unix=120))
    (session,) = book.sessions.open()
    assert (session.first_seen, session.last_seen, session.peak_memory) == (100, 120, 3 * GIB)


def test_unreported_memory_has_no_peak() -> None:
    book = ledger()
    for unix in (100, 110):
        book.post(snapshot(reading(A, process(A, memory=None)), unix=unix))
    (session,) = book.sessions.open()
    assert session.peak_memory is None


def test_a_reused_pid_is_another_session() -> None:
    book = ledger()
    book.post(snapshot(reading(A, process(A, 7, ticks=1)), unix=100))
    book.post(snapshot(reading(A, process(A, 7, ticks=2)), unix=110))
    (session,) = book.sessions.open()
    assert session.first_seen == 110


def test_a_process_on_two_gpus_has_two_sessions() -> None:
    state = ledger().post(snapshot(reading(A, process(A, 7)), reading(B, process(B, 7))))
    assert state.compute_sessions == {"GPU-0": 1, "GPU-1": 1}


def test_a_failed_list_ends_no_session_and_has_no_count() -> None:
    book = ledger()
    book.post(snapshot(reading(A, process(A)), unix=100))
    state = book.post(snapshot(reading(A, failed=True), unix=110))
    assert "GPU-0" not in state.compute_sessions
    book.post(snapshot(reading(A, process(A)), unix=120))
    (session,) = book.sessions.open()
    assert session.first_seen == 100


def test_a_failed_device_list_ends_no_session() -> None:
    book = ledger()
    book.post(snapshot(reading(A, process(A)), reading(B, process(B)), unix=100))
    book.post(snapshot(reading(A, process(A)), unix=110, devices_failed=True))
    assert len(list(book.sessions.open())) == 2


def test_destroying_an_instance_ends_its_sessions() -> None:
    book, cut = ledger(), instance(A, 2)
    book.post(snapshot(reading(A), reading(cut, process(cut))))
    assert len(list(book.sessions.open())) == 1
    book.post(snapshot(reading(A)))
    assert list(book.sessions.open()) == []


@pytest.mark.parametrize("is_read", [True, False])
def test_sessions_end_with_their_instance_also_while_another_gpu_is_missing(is_read: bool) -> None:
    book, cut = ledger(), instance(A, 2)
    book.post(snapshot(reading(A), reading(cut, process(cut, 1)), reading(B, process(B, 2))))
    rules = LISTED_RULES if is_read else NVIDIA_RULES
    book.post(snapshot(reading(A, rules=rules), devices_failed=True))
    assert [one.process.pid for one in book.sessions.open()] == ([2] if is_read else [1, 2])


def test_graphics_sessions_are_counted_separately() -> None:
    state = ledger().post(
        snapshot(reading(A, process(A, 1), process(A, 2, types="G"), process(A, 3, types="C+G")))
    )
    assert (state.compute_sessions["GPU-0"], state.graphics_sessions["GPU-0"]) == (2, 1)


def test_an_idle_device_counts_zero_sessions() -> None:
    assert ledger().post(snapshot(reading(A))).compute_sessions == {"GPU-0": 0}


def test_xids_are_counted_per_gpu_and_xid_with_the_time_of_the_last() -> None:
    book = ledger()
    book.post(snapshot(reading(A), xids=(XidEvent(A, 31, 100.0), XidEvent(A, 31, 101.0))))
    state = book.post(snapshot(reading(A), xids=(XidEvent(A, 79, 105.0),)))
    assert state.xids == {("GPU-0", 31): 2, ("GPU-0", 79): 1}
    assert state.xid_times == {("GPU-0", 31): 101.0, ("GPU-0", 79): 105.0}


def test_simultaneous_xids_are_in_order_of_arrival() -> None:
    """NVML reports no time: all events of a tick have the same."""
    book = ledger()
    book.post(snapshot(reading(A), xids=(XidEvent(A, 31, 100.0), XidEvent(A, 79, 100.0))))
    state = book.post(snapshot(reading(A), xids=(XidEvent(A, 48, 105.0), XidEvent(A, 31, 105.0))))
    assert list(state.xid_times) == [("GPU-0", 79), ("GPU-0", 48), ("GPU-0", 31)]


def test_rejected_values_add_up() -> None:
    book = ledger()
    book.post(snapshot(reading(A), invalid=2))
    assert book.post(snapshot(reading(A), invalid=3)).invalid == 5


def test_a_rejected_counter_reading_is_counted_with_them() -> None:
    """A value that no limit of power allows, and from which the counter does not continue."""
    book = ledger()
    for second, joules in enumerate([0, 700, 9_005_000, 2100, 2800]):
        values = {ENERGY: joules * 1000, POWER_LIMIT: 700}
        state = book.post(snapshot(reading(A, values=values), unix=100 + second, invalid=1))
    assert state.invalid == 5 + 1


def omitted_pids(book: Ledger, *processes: object) -> set[int]:
    state = book.post(snapshot(reading(A, *processes)))  # type: ignore[arg-type]
    return {key[1] for key in state.omitted.get("GPU-0", frozenset())}


def test_beyond_the_cap_the_largest_by_memory_then_sm_are_exported() -> None:
    crowd = [
        process(A, 1, memory=1 * GIB, sm=0.9),
        process(A, 2, memory=2 * GIB, sm=0.1),
        process(A, 3, memory=1 * GIB, sm=0.5),
    ]
    assert omitted_pids(ledger(2), *crowd) == {3}


def test_an_exported_process_remains_exported_until_exit() -> None:
    book = ledger(2)
    small, other = process(A, 1, memory=1 * GIB), process(A, 2, memory=1 * GIB)
    assert omitted_pids(book, small, other) == set()
    giant = process(A, 3, memory=70 * GIB)
    assert omitted_pids(book, small, other, giant) == {3}
    assert omitted_pids(book, small, giant) == set()
    assert omitted_pids(book, small, giant, other) == {2}


def test_many_new_processes_displace_none() -> None:
    book = ledger(4)
    first = [process(A, pid, memory=1 * GIB) for pid in (1, 2)]
    omitted_pids(book, *first)
    rush = [process(A, pid, memory=9 * GIB) for pid in (3, 4, 5, 6)]
    assert omitted_pids(book, *first, *rush) == {5, 6}


def test_graphics_processes_displace_no_compute_processes() -> None:
    drawing = process(A, 1, memory=9 * GIB, types="G")
    assert omitted_pids(ledger(1), drawing, process(A, 2, memory=1 * GIB)) == {1}


def test_a_failed_list_keeps_the_selection() -> None:
    book = ledger(1)
    first, second = process(A, 1, memory=1 * GIB), process(A, 2, memory=9 * GIB)
    omitted_pids(book, first)
    book.post(snapshot(reading(A, failed=True)))
    assert omitted_pids(book, first, second) == {2}


def test_durations_of_ended_sessions_are_counted_per_bucket() -> None:
    book = ledger()
    for pid, lasted in ((1, 5), (2, 10), (3, 700)):
        book.post(snapshot(reading(A, process(A, pid)), unix=1000))
        book.post(snapshot(reading(A, process(A, pid)), unix=1000 + lasted))
        state = book.post(snapshot(reading(A), unix=2000))
    durations = state.session_durations["GPU-0"]
    counts = dict(zip(durations.bounds, durations.counts, strict=True))
    assert (counts[10.0], counts[60.0], counts[300.0], counts[1800.0]) == (2, 2, 2, 3)
    assert (durations.count, durations.sum) == (3, 715)
    assert state.sessions_closed == {"GPU-0": 3}


def test_gpu_time_is_posted_for_a_gpu_without_a_meter() -> None:
    book = Ledger(LedgerSettings(zero_hold=0.0))
    for unix in (100, 110):
        time = book.post(snapshot(reading(A, process(A)), reading(B), unix=unix)).time
    assert [(row.labels[0], row.labels[2], row.microseconds) for row in time.rows] == [
        (A.uuid, "owner", 10_000_000),
        (B.uuid, "idle", 10_000_000),
    ]


def test_gpu_time_of_a_posting_that_failed_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Ledger(LedgerSettings(zero_hold=0.0))
    book.post(snapshot(reading(A), unix=100))
    with monkeypatch.context() as patch:
        patch.setattr(book.sessions, "post", None)
        with pytest.raises(TypeError):
            book.post(snapshot(reading(A), unix=110))
    time = book.post(snapshot(reading(A), unix=120)).time
    assert (time.watched, [row.microseconds for row in time.rows]) == ({A.uuid: 20_000_000}, [20_000_000])


def test_a_pause_is_not_watched() -> None:
    book = Ledger(LedgerSettings(zero_hold=0.0))
    book.post(snapshot(reading(A), unix=100))
    book.interrupt()
    book.post(snapshot(reading(A), unix=105))
    assert book.post(snapshot(reading(A), unix=110)).time.watched == {A.uuid: 5_000_000}


def test_ended_sessions_are_counted_from_0() -> None:
    """A counter that begins with 1 loses that 1 in increase()."""
    ledger = Ledger(LedgerSettings())
    state = ledger.post(snapshot(reading(gpu(0)), reading(gpu(1))))
    assert state.sessions_closed == {"GPU-0": 0, "GPU-1": 0}
    assert state.session_durations["GPU-1"].sum == 0

"""Everything stored is restored unchanged."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import FakeClock, gpu, instance
from builders import process as make_process
from gpuledger.ledger.energy.counter import EnergyCounter, Epoch
from gpuledger.ledger.exported_counters import ExportedCounter
from gpuledger.ledger.journal import OWNERS, ROWS, GpuEntry, Journal, StoredLedger
from gpuledger.ledger.ownership import Ownership
from gpuledger.ledger.sessions import OpenSession
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart, ProcessType
from gpuledger.model.text import clean_name
from gpuledger.model.workload import FACTS, UNKNOWN, Workload
from ledger_helpers import open_store, rows

CARD = gpu(0, name="NVIDIA H100", pci_bus_id="00000000:01:00.0", sm_count=132)
PART = instance(CARD, 2, 1, index=3, profile="1g.10gb", sm_count=16)
DEVICES = {device.uuid: device for device in (CARD, PART)}

# Names from hosts and drivers: cleaned, but with spaces, slashes and any script.
words = st.text(max_size=12).map(clean_name)
whole = st.integers(0, 2**60)
real = st.floats(0, 1e12, allow_nan=False)
seen = st.floats(0, 1e6, allow_nan=False)
maybe_real = st.none() | real
workloads = st.just(UNKNOWN) | st.builds(Workload, *[words] * 13, **dict.fromkeys(FACTS, words))
starts = st.builds(ProcessStart, words, st.none() | whole, real, st.none() | seen)
hosts = st.builds(
    HostFacts, starts, executable=words, comm=words, uid=st.none() | st.integers(0, 2**32 - 1), user=words
)
processes = st.builds(
    GpuProcess,
    st.sampled_from([CARD, PART]),
    st.integers(1, 2**31),
    hosts,
    name=words,
    types=st.sets(st.sampled_from(list(ProcessType)), min_size=1).map(frozenset),
    workload=workloads,
)
sessions = st.builds(
    OpenSession,
    processes,
    real,
    real,
    st.none() | whole,
    real,
    real,
    maybe_real,
    real,
    whole,
    whole,
    whole,
)
amounts = st.dictionaries(st.sampled_from(["measured", "activity", "equal"]), whole, max_size=3)


@st.composite
def ownerships(draw: st.DrawFn) -> Ownership:
    process = draw(processes)
    owner = draw(st.none() | workloads)
    return Ownership(
        process,
        draw(seen),
        owner,
        None if owner is None else process,
        draw(st.booleans()),
        Counter(draw(amounts)),
        set(draw(amounts)),
    )


def stored(journal: Journal) -> StoredLedger:
    """The ledger that a new run finds after a run that wrote this and was killed."""
    with tempfile.TemporaryDirectory() as name:
        clock = FakeClock()
        first = open_store(Path(name), "boot", clock)
        part, shown = first.save(journal)
        assert part.success, part.error
        assert shown
        first.close()
        second = open_store(Path(name), "boot", clock)
        second.close()
        return second.stored_ledger


def same_process(one: GpuProcess, other: GpuProcess) -> bool:
    """Equal in everything that labels and bills use."""
    assert one.key == other.key
    assert one.host.start.unix == other.host.start.unix
    assert (one.device.uuid, one.command, one.type_text) == (
        other.device.uuid,
        other.command,
        other.type_text,
    )
    assert one.workload == other.workload
    first, second = one.host, other.host
    return (first.executable, first.comm, first.uid, first.user) == (
        second.executable,
        second.comm,
        second.uid,
        second.user,
    )


@given(st.lists(sessions, max_size=4))
def test_open_sessions_round_trip(drawn: list[OpenSession]) -> None:
    numbered = {number: replace(one, number=number) for number, one in enumerate(drawn, 1)}
    kept = stored(Journal(devices=dict(DEVICES), sessions=dict(numbered)))
    assert kept.next_session == len(drawn) + 1
    assert len(kept.sessions) == len(drawn)
    for one in kept.sessions:
        before = numbered[one.number]
        assert same_process(one.process, before.process)
        assert one.row() == before.row()._replace(process=one.process, watts=None)
        assert not one.watched


@given(st.lists(ownerships(), max_size=4, unique_by=lambda one: one.process.key), real)
def test_owners_round_trip_with_their_waiting_energy(drawn: list[Ownership], elapsed: float) -> None:
    journal = Journal(elapsed=elapsed, devices=dict(DEVICES), owners={one.process.key: one for one in drawn})
    journal.gpus[CARD.uuid] = GpuEntry(CARD.uuid, EnergyCounter(Epoch()), None, 0, 0, 0)
    kept = {one.process.key: one for one in stored(journal).gpus[CARD.uuid].owners}
    assert kept.keys() == {one.process.key for one in drawn}
    for before in drawn:
        after = kept[before.process.key]
        assert same_process(after.process, before.process)
        assert (after.owner, after.resolved) == (before.owner, before.resolved)
        assert (dict(after.waiting), set(after.methods)) == (dict(before.waiting), before.methods)
        assert math.isclose(after.age, elapsed - before.since, abs_tol=1e-3)


@pytest.mark.parametrize("name", ["A:\b", "play, now.exe", "job=a/b", "'a'", "/opt/a:\\b"])
def test_a_command_that_looks_like_a_path_or_title_is_kept(name: str) -> None:
    owner = Ownership(make_process(CARD, name=name), 0.0)
    journal = Journal(elapsed=1.0, devices=dict(DEVICES), owners={owner.process.key: owner})
    journal.gpus[CARD.uuid] = GpuEntry(CARD.uuid, EnergyCounter(Epoch()), None, 0, 0, 0)
    (after,) = stored(journal).gpus[CARD.uuid].owners
    assert after.process.command == owner.process.command != ""


@given(st.lists(st.tuples(words, whole, whole, seen, st.booleans(), processes | st.none()), max_size=5))
def test_exported_counters_round_trip(
    drawn: list[tuple[str, int, int, float, bool, GpuProcess | None]],
) -> None:
    journal = Journal(elapsed=1e6, devices=dict(DEVICES))
    journal.gpus[CARD.uuid] = GpuEntry(CARD.uuid, EnergyCounter(Epoch()), None, 0, 0, 0)
    for word, millijoules, measured, born, lasting, process in drawn:
        held = ExportedCounter(born, math.inf if lasting else born, millijoules, measured)
        book = OWNERS if process is None else ROWS
        journal.add_series(book, (CARD.uuid, word), held, process)
    kept = stored(journal)
    assert kept.next_series == len(drawn) + 1
    # They are loaded book by book.
    series = sorted(kept.gpus[CARD.uuid].series, key=lambda one: one.number)
    for one, before in zip(series, drawn, strict=True):
        word, millijoules, measured, born, lasting, process = before
        assert (one.labels, one.amount, one.measured) == ((CARD.uuid, word), millijoules, measured)
        assert (one.lasting, one.age) == (lasting, 1e6 - born)
        assert one.process is process or same_process(one.process, process)  # type: ignore[arg-type]


counters = st.builds(
    EnergyCounter,
    st.builds(Epoch, words, words),
    opening=st.none() | whole,
    booked=whole,
    last=st.none() | whole,
    last_at=real,
    refresh=maybe_real,
    epoch_number=st.integers(0, 1000),
)


@given(counters, maybe_real, whole, whole, whole)
def test_energy_counters_round_trip(
    counter: EnergyCounter, last_unix: float | None, total: int, base: int, closed: int
) -> None:
    entry = GpuEntry(CARD.uuid, counter, last_unix, total, base, closed)
    assert stored(Journal(gpus={CARD.uuid: entry})).gpus[CARD.uuid].entry == entry


@given(
    st.dictionaries(
        st.tuples(
            st.just(CARD.uuid),
            st.sampled_from(["", "580.95.05"]),
            st.booleans(),
            st.integers(0, 30_000),
            st.integers(0, 9000),
        ),
        st.floats(0.1, 1e5),
        max_size=20,
    )
)
@settings(max_examples=15)
def test_floors_round_trip_with_their_data(
    drawn: dict[tuple[str, str, bool, int, int], float],
) -> None:
    entry = GpuEntry(CARD.uuid, EnergyCounter(Epoch()), None, 0, 0, 0)
    # Newer than a week, or it would be discarded: the journal's clock is at 0.
    kept = stored(Journal(gpus={CARD.uuid: entry}, floors=dict(drawn))).gpus[CARD.uuid]
    exported = {
        (CARD.uuid, driver, resident, day, step): seconds
        for driver, pair in kept.floors.items()
        for resident, quiet in zip((False, True), pair, strict=True)
        for day, steps in quiet.days.items()
        for step, seconds in steps.items()
    }
    assert exported == drawn


def test_the_name_of_the_node_is_stored(tmp_path: Path) -> None:
    for name in ("node-1", "node-2", ""):
        store = Store(tmp_path, "books", "boot", FakeClock(), RetentionLimits(), name)
        store.save(Journal())
        store.close()
        with closing(History(store.file)) as history:
            assert history.node == (name or "node-2")
    store = Store(tmp_path, "books", "boot", FakeClock(), RetentionLimits(), "node-3")
    store.save(Journal())
    store.node = "node-4"
    store.save(Journal())
    store.close()
    with closing(History(store.file)) as history:
        assert history.node == "node-4"


def test_an_instance_round_trips_with_its_gpu() -> None:
    session = OpenSession(GpuProcess(PART, 7, HostFacts(ProcessStart("b", 1, 5.0))), 1.0, 2.0, number=1)
    (kept,) = stored(Journal(devices=dict(DEVICES), sessions={1: session})).sessions
    device = kept.process.device
    assert device == PART
    assert (device.index, device.sm_count, device.gpu.name) == (3, 16, "NVIDIA H100")


@pytest.mark.parametrize("known", [16, None])
def test_a_tick_without_the_size_of_an_instance_keeps_the_known_one(
    known: int | None, tmp_path: Path
) -> None:
    """It prices the history of the instance."""
    store = open_store(tmp_path, "boot", FakeClock())
    device = replace(PART, sm_count=known)
    for seen in (device, replace(device, sm_count=None, profile="3g.40gb")):
        store.save(Journal(devices={seen.uuid: seen}))
    store.close()
    assert rows(store.file, "SELECT sm_count, profile FROM devices") == [(known, "3g.40gb")]

"""The on-disk queue: everything comes out in order, once, whatever happens to process, disk and time."""

from __future__ import annotations

import errno
import os
import resource
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.agent.deliver.queue import Item, Queue
from gpuledger.agent.deliver.records import Record, record_of
from gpuledger.agent.deliver.settings import DiskQueue
from gpuledger.agent.deliver.state import Sayings
from write_helpers import HandClock, block

LIMITS = DiskQueue(max_bytes=1 << 20, max_age=3600.0, memory_bytes=4096)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def opened(folder: Path, clock: HandClock, limits: DiskQueue = LIMITS) -> Queue:
    return Queue(folder, limits, clock, Sayings("test", clock))


def record(target: int, number: int, clock: HandClock, padding: int = 0) -> Record:
    return record_of(block(target, number, padding=padding), int(clock.unix() * 1000))


def rest(queue: Queue) -> Iterator[Item]:
    while (item := queue.next()) is not None:
        yield item


def number(item: Item) -> int:
    return item.record.newest - 1_795_000_000_000


def kill(queue: Queue) -> None:
    """What the kernel does for a process that is killed: files are closed, and nothing is written."""
    queue._reader.close()
    for handle in (queue._positions._handle, queue._segments._handle, *queue._segments._unsynced):
        if handle >= 0:
            os.close(handle)


class Shards:
    """A sender of some shards that delivers when it is told to."""

    def __init__(self, queue: Queue, shards: int) -> None:
        self.queue = queue
        self.pending: list[list[Item]] = [[] for _ in range(shards)]

    def take(self, item: Item | None) -> bool:
        if item is not None:
            self.pending[item.record.shard % len(self.pending)].append(item)
        return item is not None

    def deliver(self, shard: int, count: int) -> list[Item]:
        lane = self.pending[shard % len(self.pending)]
        done, lane[:] = lane[:count], lane[count:]
        if done:
            self.queue.delivered(done)
            read_to = self.queue.read_to
            self.queue.save(tuple(one[0].place if one else read_to for one in self.pending))
        return done


actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 2000)),
        st.tuples(st.just("put through"), st.integers(0, 5), st.integers(0, 2000)),
        st.tuples(st.just("take"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("deliver"), st.integers(0, 6), st.integers(1, 4)),
        # With another number of shards; a clean end, or none.
        st.tuples(st.sampled_from(["restart", "kill"]), st.integers(1, 7), st.just(0)),
    ),
    max_size=60,
)


@given(actions)
@settings(deadline=None, max_examples=120)
def test_nothing_is_lost_or_out_of_order_whatever_is_killed_and_resharded(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[str, int, int]]
) -> None:
    clock, folder = HandClock(), tmp_path_factory.mktemp("queue")
    # Segments of 16 KiB, and a bound that is never reached.
    limits = replace(LIMITS, max_bytes=100 << 10)
    queue = opened(folder, clock, limits)
    shards = Shards(queue, 2)
    sent: dict[int, list[int]] = defaultdict(list)
    delivered: dict[int, list[int]] = defaultdict(list)
    done = 0

    def deliver(shard: int, count: int) -> None:
        nonlocal done
        for item in shards.deliver(shard, count):
            delivered[item.record.shard].append(number(item))
            done += 1

    for count, (what, one, other) in enumerate(given):
        if what.startswith("put"):
            through = what.endswith("through")
            shards.take(queue.put(record(one, count, clock, other % 900), through=through))
            sent[one].append(count)
        elif what == "take":
            for _ in range(one):
                shards.take(queue.next())
        elif what == "deliver":
            deliver(one, other)
        else:
            if what == "restart":
                queue.close()
            else:
                kill(queue)
            queue = opened(folder, clock, limits)
            shards = Shards(queue, one)
        # Nothing that was told to be done comes back, so the queue knows what is in it.
        assert queue.blocks == sum(map(len, sent.values())) - done, what
    while shards.take(queue.next()):
        pass
    for shard in range(len(shards.pending)):
        deliver(shard, 1000)
    assert delivered == sent
    assert (queue.blocks, queue.samples, queue.bytes) == (0, 0, 0)
    queue.close()


def test_a_record_in_flight_at_the_end_comes_again_and_one_that_was_delivered_does_not(
    tmp_path: Path, clock: HandClock
) -> None:
    queue = opened(tmp_path, clock)
    shards = Shards(queue, 1)
    for count in range(4):
        shards.take(queue.put(record(0, count, clock), through=True))
    shards.deliver(0, 2)
    again = opened(tmp_path, clock)
    assert [number(item) for item in rest(again)] == [2, 3]


def test_the_oldest_go_when_the_bound_of_bytes_is_reached_and_are_counted(
    tmp_path: Path, clock: HandClock
) -> None:
    limits = replace(LIMITS, max_bytes=256 << 10)
    queue = opened(tmp_path, clock, limits)
    for count in range(1000):
        queue.put(record(count % 3, count, clock, 1000), through=False)
        assert queue.disk_bytes <= limits.max_bytes
    left = [number(item) for item in rest(queue)]
    assert left == list(range(1000 - len(left), 1000))
    # What is dropped at once is an eighth of the bound at most.
    assert queue.disk_bytes > limits.max_bytes * 3 // 4
    assert queue.dropped["queue_bytes"] == 1000 - len(left)
    assert queue.samples == len(left)


def test_the_oldest_go_when_they_have_waited_too_long(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock)
    for count in range(300):
        clock.now = count * 20.0
        queue.put(record(0, count, clock, 1000), through=False)
    queue.tend()
    left = list(rest(queue))
    young = [number(item) for item in left if queue.unwanted(item) != "queue_age"]
    assert young == list(range(300 - 181, 300))
    # Whole segments go on their own; what shares one with younger records is told to be expired.
    assert queue.dropped["queue_age"] == 300 - len(left) > 0


def test_a_tail_that_a_crash_cut_is_cut_off_and_counted(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock)
    for count in range(3):
        queue.put(record(0, count, clock), through=False)
    (file,) = tmp_path.glob("*.blocks")
    file.write_bytes(file.read_bytes()[:-5])
    again = opened(tmp_path, clock)
    assert (again.torn_tails, again.blocks) == (1, 2)
    again.put(record(0, 3, clock), through=False)
    assert [number(item) for item in rest(again)] == [0, 1, 3]


def test_a_tail_of_zeros_as_a_power_cut_leaves_it_is_cut_off(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock)
    queue.put(record(0, 0, clock), through=False)
    (file,) = tmp_path.glob("*.blocks")
    file.write_bytes(file.read_bytes() + bytes(5000))
    again = opened(tmp_path, clock)
    assert again.torn_tails == 1
    assert [number(item) for item in rest(again)] == [0]


def test_a_place_that_was_told_is_never_that_of_another_record_after_a_crash_took_the_first(
    tmp_path: Path, clock: HandClock
) -> None:
    queue = opened(tmp_path, clock)
    shards = Shards(queue, 1)
    for count in range(3):
        shards.take(queue.put(record(0, count, clock), through=True))
    shards.deliver(0, 3)
    # The position was on the disk, what it is about was not.
    (file,) = tmp_path.glob("*.blocks")
    file.unlink()
    again = opened(tmp_path, clock)
    again.put(record(0, 3, clock), through=False)
    once_more = opened(tmp_path, clock)
    assert [number(item) for item in rest(once_more)] == [3]


def test_a_damaged_record_is_passed_over_and_counted(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock)
    for count in range(3):
        queue.put(record(0, count, clock, 500), through=False)
    queue.close()
    (file,) = tmp_path.glob("*.blocks")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    again = opened(tmp_path, clock)
    again.put(record(0, 3, clock), through=False)
    assert [number(item) for item in rest(again)] == [0, 2, 3]
    assert again.corrupt_records == 1
    assert again.dropped["corrupt"] == 1
    assert again.samples == 3


def test_a_segment_that_somebody_took_away_costs_what_was_in_it(tmp_path: Path, clock: HandClock) -> None:
    limits = replace(LIMITS, max_bytes=100 << 10)
    queue = opened(tmp_path, clock, limits)
    for count in range(60):
        queue.put(record(0, count, clock, 1000), through=False)
    first, *_ = sorted(tmp_path.glob("*.blocks"))
    first.unlink()
    left = [number(item) for item in rest(queue)]
    assert left == list(range(60 - len(left), 60))
    assert queue.dropped["corrupt"] == 60 - len(left) > 0


@pytest.mark.parametrize(("damage", "said"), [(b"", False), (b"\0" * 70000, False), (b"x" * 131072, True)])
def test_a_damaged_position_sends_all_again_and_loses_nothing(
    tmp_path: Path, clock: HandClock, damage: bytes, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue = opened(tmp_path, clock)
    shards = Shards(queue, 1)
    for count in range(3):
        shards.take(queue.put(record(0, count, clock), through=True))
    shards.deliver(0, 2)
    (tmp_path / "position").write_bytes(damage)
    assert [number(item) for item in rest(opened(tmp_path, clock))] == [0, 1, 2]
    assert ("all that is queued is sent again" in caplog.text) is said


def test_half_a_position_that_a_crash_tore_is_the_one_before(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock)
    shards = Shards(queue, 1)
    for count in range(4):
        shards.take(queue.put(record(0, count, clock), through=True))
    shards.deliver(0, 2)
    file = tmp_path / "position"
    before = file.read_bytes()
    shards.deliver(0, 1)
    after = bytearray(file.read_bytes())
    changed = [at for at in range(len(after)) if before[at : at + 1] != after[at : at + 1]]
    after[changed[-1]] ^= 1
    file.write_bytes(after)
    assert [number(item) for item in rest(opened(tmp_path, clock))] == [2, 3]


def test_opening_a_long_queue_reads_the_ends_of_its_files_alone(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock, replace(LIMITS, max_bytes=100 << 10))
    for count in range(40):
        queue.put(record(0, count, clock, 1000), through=False)
    queue.close()
    first = min(tmp_path.glob("*.blocks"))
    # Damage in the middle is found when it is read, not before.
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    again = opened(tmp_path, clock)
    assert (again.blocks, again.torn_tails, again.corrupt_records) == (40, 0, 0)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more."""
    taken: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for handle in taken:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_without_a_descriptor_nothing_that_is_queued_is_lost(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be read, and is not passed over for that; what comes meanwhile waits behind it in memory."""
    limits = replace(LIMITS, max_bytes=128 << 10, memory_bytes=64 << 10)
    queue = opened(tmp_path, clock, limits)
    for count in range(10):
        queue.put(record(0, count, clock, 1000), through=False)
    with no_descriptors():
        assert queue.next() is None
        with pytest.raises(OSError, match="Too many open files"):
            queue.sync_job()
        # A segment is full after sixteen: the next one cannot be made.
        for count in range(10, 40):
            queue.put(record(0, count, clock, 1000), through=False)
        assert queue.memory_bytes > 0
        assert queue.next() is None
    assert "cannot be read now (Too many open files)" in caplog.text
    assert "see that files can be made there" in caplog.text
    clock.now = 2.0
    queue.tend()
    assert queue.memory_bytes == 0
    assert [number(item) for item in rest(queue)] == list(range(40))
    assert (queue.corrupt_records, sum(queue.dropped.values())) == (0, 0)
    assert "can be read again" in caplog.text
    job = queue.sync_job()
    assert job is not None
    job()


@pytest.fixture
def no_disk(tmp_path: Path, clock: HandClock) -> Queue:
    """A queue whose folder somebody has taken away: no file can be made in it."""
    queue = opened(tmp_path / "queue", clock)
    (tmp_path / "queue" / "position").unlink()
    (tmp_path / "queue").rmdir()
    return queue


def test_what_the_disk_does_not_take_waits_in_memory_and_comes_out_in_order(
    no_disk: Queue, clock: HandClock
) -> None:
    for count in range(5):
        assert no_disk.put(record(0, count, clock), through=True) is None
    assert (no_disk.blocks, no_disk.disk_bytes) == (5, 0)
    assert no_disk.memory_bytes > 0
    assert [(number(item), item.volatile) for item in rest(no_disk)] == [(count, True) for count in range(5)]
    assert no_disk.memory_bytes == 0


def test_of_what_waits_in_memory_the_oldest_go_when_there_is_too_much(
    no_disk: Queue, clock: HandClock
) -> None:
    for count in range(20):
        no_disk.put(record(0, count, clock, 500), through=False)
        assert no_disk.memory_bytes <= LIMITS.memory_bytes
    left = [number(item) for item in rest(no_disk)]
    assert left == list(range(20 - len(left), 20))
    assert no_disk.dropped["disk_full"] == 20 - len(left) > 0


def test_a_disk_that_takes_something_again_gets_what_waited_first(
    no_disk: Queue, tmp_path: Path, clock: HandClock
) -> None:
    for count in range(3):
        no_disk.put(record(0, count, clock), through=False)
    (tmp_path / "queue").mkdir()
    clock.now = 2.0
    no_disk.put(record(0, 3, clock), through=False)
    assert no_disk.memory_bytes == 0
    assert [(number(item), item.volatile) for item in rest(no_disk)] == [(count, False) for count in range(4)]


def test_what_still_waits_in_memory_at_the_end_is_counted_as_lost(
    no_disk: Queue, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    for count in range(3):
        no_disk.put(record(0, count, clock), through=False)
    first = no_disk.next()
    assert first is not None
    no_disk.close([first])
    assert (no_disk.blocks, no_disk.dropped["stopped"]) == (0, 3)
    assert "3 samples that the disk did not take are lost with this stop" in caplog.text


def test_what_waited_in_memory_is_written_at_the_end_if_the_disk_takes_it_then(
    no_disk: Queue, tmp_path: Path, clock: HandClock
) -> None:
    for count in range(3):
        no_disk.put(record(0, count, clock), through=False)
    first = no_disk.next()
    assert first is not None
    (tmp_path / "queue").mkdir()
    no_disk.close([first])
    assert [number(item) for item in rest(opened(tmp_path / "queue", clock))] == [0, 1, 2]


def test_what_came_out_of_a_dropped_segment_is_not_wanted_any_more(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock, replace(LIMITS, max_bytes=100 << 10))
    items = [queue.put(record(0, count, clock, 1000), through=True) for count in range(200)]
    wanted = [number(item) for item in items if item is not None and not queue.unwanted(item)]
    gone = {queue.unwanted(item) for item in items if item is not None} - {""}
    assert wanted == list(range(200 - len(wanted), 200))
    assert 60 < len(wanted) < 120
    assert gone == {"queue_bytes"}


def test_what_was_written_is_brought_to_the_disk_once(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock, replace(LIMITS, max_bytes=100 << 10))
    assert queue.sync_job() is None
    for count in range(60):
        queue.put(record(0, count, clock, 1000), through=False)
    job = queue.sync_job()
    assert job is not None
    job()
    assert queue.sync_job() is None


def test_a_file_system_that_cannot_sync_a_directory_as_such_is_no_failure(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    queue = opened(tmp_path, clock)
    queue.put(record(0, 1, clock), through=False)
    job = queue.sync_job()
    assert job is not None
    monkeypatch.setattr(os, "fsync", fsync)
    job()


def test_with_no_interval_the_kernel_decides_when_and_no_file_stays_open(
    tmp_path: Path, clock: HandClock
) -> None:
    queue = opened(tmp_path, clock, replace(LIMITS, max_bytes=100 << 10, sync_interval=0.0))
    for count in range(200):
        queue.put(record(0, count, clock, 1000), through=False)
    assert queue.sync_job() is None
    names = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert sorted(Path(name).suffix for name in names if name.startswith(str(tmp_path))) == ["", ".blocks"]

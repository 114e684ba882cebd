"""The disk queue dequeues every record in order and once, despite process kills, disk errors and age."""

from __future__ import annotations

import errno
import os
import resource
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.deliver.queue import QueuedRecord, ReceiverQueue
from gpuledger.agent.deliver.records import Record, compress_block
from gpuledger.agent.deliver.settings import DiskQueueLimits
from gpuledger.agent.deliver.state import ThrottledLog
from write_helpers import HandClock, block

LIMITS = DiskQueueLimits(max_bytes=1 << 20, max_age=3600.0, memory_bytes=4096)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def opened(folder: Path, clock: HandClock, limits: DiskQueueLimits = LIMITS) -> ReceiverQueue:
    return ReceiverQueue(folder, limits, clock, ThrottledLog("test", clock))


def record(target: int, number: int, clock: HandClock, padding: int = 0) -> Record:
    return compress_block(block(target, number, padding=padding), int(clock.unix() * 1000))


def dequeue_all(queue: ReceiverQueue) -> Iterator[QueuedRecord]:
    while (item := queue.next_record()) is not None:
        yield item


def number_of(item: QueuedRecord) -> int:
    return item.record.newest - 1_795_000_000_000


def append_all(queue: ReceiverQueue, numbers: Iterable[int], clock: HandClock, padding: int = 0) -> None:
    for number in numbers:
        queue.append(record(0, number, clock, padding), dequeue=False)


def numbers_in(queue: ReceiverQueue) -> list[int]:
    """The numbers of the records that are left, which are dequeued."""
    return [number_of(item) for item in dequeue_all(queue)]


def kill(queue: ReceiverQueue) -> None:
    """Simulate a killed process: files are closed and nothing more is written."""
    queue.reader.close()
    for handle in (queue._positions._handle, queue.segments._handle, *queue.segments._unsynced):
        if handle >= 0:
            os.close(handle)


class Shards:
    """A sender with several shards that delivers on demand."""

    def __init__(self, queue: ReceiverQueue, shards: int) -> None:
        self.queue = queue
        self.pending: list[list[QueuedRecord]] = [[] for _ in range(shards)]

    def take(self, item: QueuedRecord | None) -> bool:
        if item is not None:
            self.pending[item.record.shard % len(self.pending)].append(item)
        return item is not None

    def deliver(self, shard: int, count: int) -> list[QueuedRecord]:
        pending = self.pending[shard % len(self.pending)]
        done, pending[:] = pending[:count], pending[count:]
        if done:
            self.queue.finish(done)
            read_to = self.queue.reader.position
            self.queue.save_positions(tuple(one[0].position if one else read_to for one in self.pending))
        return done


def deliver_some(folder: Path, clock: HandClock, count: int, done: int) -> Shards:
    """A queue of so many records, with the first `done` of them delivered."""
    queue = opened(folder, clock)
    shards = Shards(queue, 1)
    for number in range(count):
        shards.take(queue.append(record(0, number, clock), dequeue=True))
    shards.deliver(0, done)
    return shards


actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 2000)),
        st.tuples(st.just("put through"), st.integers(0, 5), st.integers(0, 2000)),
        st.tuples(st.just("take"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("deliver"), st.integers(0, 6), st.integers(1, 4)),
        # A clean or unclean end; then another number of shards.
        st.tuples(st.sampled_from(["restart", "kill"]), st.integers(1, 7), st.just(0)),
    ),
    max_size=60,
)


@given(actions)
def test_nothing_is_lost_or_reordered_by_kills_and_resharding(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[str, int, int]]
) -> None:
    clock, folder = HandClock(), tmp_path_factory.mktemp("queue")
    # Segments of 16 KiB; the bound is never reached.
    limits = replace(LIMITS, max_bytes=100 << 10)
    queue = opened(folder, clock, limits)
    shards = Shards(queue, 2)
    sent: dict[int, list[int]] = defaultdict(list)
    delivered: dict[int, list[int]] = defaultdict(list)
    done = 0

    def deliver(shard: int, count: int) -> None:
        nonlocal done
        for item in shards.deliver(shard, count):
            delivered[item.record.shard].append(number_of(item))
            done += 1

    for count, (what, one, other) in enumerate(given):
        if what.startswith("put"):
            through = what.endswith("through")
            shards.take(queue.append(record(one, count, clock, other % 900), dequeue=through))
            sent[one].append(count)
        elif what == "take":
            for _ in range(one):
                shards.take(queue.next_record())
        elif what == "deliver":
            deliver(one, other)
        else:
            if what == "restart":
                queue.close()
            else:
                kill(queue)
            queue = opened(folder, clock, limits)
            shards = Shards(queue, one)
        # Delivered records never come back, so the queue's count is exact.
        assert queue.blocks == sum(map(len, sent.values())) - done, what
    while shards.take(queue.next_record()):
        pass
    for shard in range(len(shards.pending)):
        deliver(shard, 1000)
    assert delivered == sent
    assert (queue.blocks, queue.samples, queue.bytes) == (0, 0, 0)
    queue.close()


def test_after_a_restart_only_undelivered_records_are_dequeued_again(
    tmp_path: Path, clock: HandClock
) -> None:
    deliver_some(tmp_path, clock, 4, 2)
    again = opened(tmp_path, clock)
    assert numbers_in(again) == [2, 3]


def test_above_max_bytes_the_oldest_records_are_dropped_and_counted(tmp_path: Path, clock: HandClock) -> None:
    limits = replace(LIMITS, max_bytes=256 << 10)
    queue = opened(tmp_path, clock, limits)
    for count in range(1000):
        queue.append(record(count % 3, count, clock, 1000), dequeue=False)
        assert queue.segments.file_bytes <= limits.max_bytes
    left = numbers_in(queue)
    assert left == list(range(1000 - len(left), 1000))
    # At most an eighth of the bound is dropped at once.
    assert queue.segments.file_bytes > limits.max_bytes * 3 // 4
    assert queue.dropped["queue_bytes"] == 1000 - len(left)
    assert queue.samples == len(left)


def test_records_older_than_max_age_are_dropped(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock)
    for count in range(300):
        clock.now = count * 20.0
        queue.append(record(0, count, clock, 1000), dequeue=False)
    queue.run_maintenance()
    left = list(dequeue_all(queue))
    young = [number_of(item) for item in left if queue.drop_reason(item) != "queue_age"]
    assert young == list(range(300 - 181, 300))
    # Maintenance drops whole segments; expired records in mixed segments are dropped after dequeuing.
    assert queue.dropped["queue_age"] == 300 - len(left) > 0


def test_a_torn_tail_is_truncated_and_counted(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock)
    append_all(queue, range(3), clock)
    (file,) = tmp_path.glob("*.blocks")
    file.write_bytes(file.read_bytes()[:-5])
    again = opened(tmp_path, clock)
    assert (again.segments.torn_tails, again.blocks) == (1, 2)
    again.append(record(0, 3, clock), dequeue=False)
    assert numbers_in(again) == [0, 1, 3]


def test_a_tail_of_zeros_after_a_power_cut_is_truncated(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock)
    queue.append(record(0, 0, clock), dequeue=False)
    (file,) = tmp_path.glob("*.blocks")
    file.write_bytes(file.read_bytes() + bytes(5000))
    again = opened(tmp_path, clock)
    assert again.segments.torn_tails == 1
    assert numbers_in(again) == [0]


def test_a_saved_position_is_never_reused_after_a_crash_lost_its_record(
    tmp_path: Path, clock: HandClock
) -> None:
    deliver_some(tmp_path, clock, 3, 3)
    # The position was on the disk, the record was not.
    (file,) = tmp_path.glob("*.blocks")
    file.unlink()
    again = opened(tmp_path, clock)
    again.append(record(0, 3, clock), dequeue=False)
    once_more = opened(tmp_path, clock)
    assert numbers_in(once_more) == [3]


def test_a_damaged_record_is_skipped_and_counted(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock)
    append_all(queue, range(3), clock, 500)
    queue.close()
    (file,) = tmp_path.glob("*.blocks")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    again = opened(tmp_path, clock)
    again.append(record(0, 3, clock), dequeue=False)
    assert numbers_in(again) == [0, 2, 3]
    assert again.corrupt_records == 1
    assert again.dropped["corrupt"] == 1
    assert again.samples == 3


def test_a_deleted_segment_loses_only_its_records(tmp_path: Path, clock: HandClock) -> None:
    limits = replace(LIMITS, max_bytes=100 << 10)
    queue = opened(tmp_path, clock, limits)
    append_all(queue, range(60), clock, 1000)
    first, *_ = sorted(tmp_path.glob("*.blocks"))
    first.unlink()
    left = numbers_in(queue)
    assert left == list(range(60 - len(left), 60))
    assert queue.dropped["corrupt"] == 60 - len(left) > 0


@pytest.mark.parametrize(("damage", "logged"), [(b"", False), (b"\0" * 70000, False), (b"x" * 131072, True)])
def test_a_damaged_position_file_resends_everything_and_loses_nothing(
    tmp_path: Path, clock: HandClock, damage: bytes, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    deliver_some(tmp_path, clock, 3, 2)
    (tmp_path / "position").write_bytes(damage)
    assert numbers_in(opened(tmp_path, clock)) == [0, 1, 2]
    assert ("all queued samples are sent again" in caplog.text) is logged


def test_a_torn_position_falls_back_to_the_previous_one(tmp_path: Path, clock: HandClock) -> None:
    shards = deliver_some(tmp_path, clock, 4, 2)
    file = tmp_path / "position"
    before = file.read_bytes()
    shards.deliver(0, 1)
    after = bytearray(file.read_bytes())
    changed = [at for at in range(len(after)) if before[at : at + 1] != after[at : at + 1]]
    after[changed[-1]] ^= 1
    file.write_bytes(after)
    assert numbers_in(opened(tmp_path, clock)) == [2, 3]


def test_opening_a_long_queue_reads_only_the_ends_of_its_files(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock, replace(LIMITS, max_bytes=100 << 10))
    append_all(queue, range(40), clock, 1000)
    queue.close()
    first = min(tmp_path.glob("*.blocks"))
    # Damage in the middle is found only when it is read.
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    again = opened(tmp_path, clock)
    assert (again.blocks, again.segments.torn_tails, again.corrupt_records) == (40, 0, 0)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Exhaust the file descriptors of this process."""
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


def test_without_file_descriptors_no_queued_record_is_lost(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable record is not skipped for that reason; new records wait behind it in memory."""
    limits = replace(LIMITS, max_bytes=128 << 10, memory_bytes=64 << 10)
    queue = opened(tmp_path, clock, limits)
    append_all(queue, range(10), clock, 1000)
    with no_descriptors():
        assert queue.next_record() is None
        with pytest.raises(OSError, match="Too many open files"):
            queue.segments.sync_job()
        # A segment is full after sixteen records: the next one cannot be created.
        for count in range(10, 40):
            queue.append(record(0, count, clock, 1000), dequeue=False)
        assert queue.memory_bytes > 0
        assert queue.next_record() is None
    assert "cannot read the queue in" in caplog.text
    assert "(Too many open files); retrying" in caplog.text
    assert "make the directory writable" in caplog.text
    clock.now = 2.0
    queue.run_maintenance()
    assert queue.memory_bytes == 0
    assert numbers_in(queue) == list(range(40))
    assert (queue.corrupt_records, sum(queue.dropped.values())) == (0, 0)
    assert "is readable again" in caplog.text
    job = queue.segments.sync_job()
    assert job is not None
    job()


@pytest.fixture
def no_disk(tmp_path: Path, clock: HandClock) -> ReceiverQueue:
    """A queue with a deleted folder: no file can be created in it."""
    queue = opened(tmp_path / "queue", clock)
    (tmp_path / "queue" / "position").unlink()
    (tmp_path / "queue").rmdir()
    return queue


def test_records_queue_in_memory_while_the_disk_fails_and_keep_their_order(
    no_disk: ReceiverQueue, clock: HandClock
) -> None:
    for count in range(5):
        assert no_disk.append(record(0, count, clock), dequeue=True) is None
    assert (no_disk.blocks, no_disk.segments.file_bytes) == (5, 0)
    assert no_disk.memory_bytes > 0
    assert [(number_of(item), item.in_memory) for item in dequeue_all(no_disk)] == [
        (count, True) for count in range(5)
    ]
    assert no_disk.memory_bytes == 0


def test_above_memory_bytes_the_oldest_records_in_memory_are_dropped(
    no_disk: ReceiverQueue, clock: HandClock
) -> None:
    for count in range(20):
        no_disk.append(record(0, count, clock, 500), dequeue=False)
        assert no_disk.memory_bytes <= LIMITS.memory_bytes
    left = numbers_in(no_disk)
    assert left == list(range(20 - len(left), 20))
    assert no_disk.dropped["disk_full"] == 20 - len(left) > 0


def test_a_recovered_disk_first_gets_the_records_from_memory(
    no_disk: ReceiverQueue, tmp_path: Path, clock: HandClock
) -> None:
    append_all(no_disk, range(3), clock)
    (tmp_path / "queue").mkdir()
    clock.now = 2.0
    no_disk.append(record(0, 3, clock), dequeue=False)
    assert no_disk.memory_bytes == 0
    assert [(number_of(item), item.in_memory) for item in dequeue_all(no_disk)] == [
        (count, False) for count in range(4)
    ]


def test_records_still_in_memory_at_the_stop_are_counted_as_dropped(
    no_disk: ReceiverQueue, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    append_all(no_disk, range(3), clock)
    first = no_disk.next_record()
    assert first is not None
    no_disk.close([first])
    assert (no_disk.blocks, no_disk.dropped["stopped"]) == (0, 3)
    assert "3 samples are lost: they could not be written to the disk before the stop" in caplog.text


def test_records_in_memory_are_written_at_the_stop_if_the_disk_has_recovered(
    no_disk: ReceiverQueue, tmp_path: Path, clock: HandClock
) -> None:
    append_all(no_disk, range(3), clock)
    first = no_disk.next_record()
    assert first is not None
    (tmp_path / "queue").mkdir()
    no_disk.close([first])
    assert numbers_in(opened(tmp_path / "queue", clock)) == [0, 1, 2]


def test_dequeued_records_of_a_dropped_segment_are_dropped_too(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock, replace(LIMITS, max_bytes=100 << 10))
    items = [queue.append(record(0, count, clock, 1000), dequeue=True) for count in range(200)]
    wanted = [number_of(item) for item in items if item is not None and not queue.drop_reason(item)]
    gone = {queue.drop_reason(item) for item in items if item is not None} - {""}
    assert wanted == list(range(200 - len(wanted), 200))
    assert 60 < len(wanted) < 120
    assert gone == {"queue_bytes"}


def test_writes_are_synced_once(tmp_path: Path, clock: HandClock) -> None:
    queue = opened(tmp_path, clock, replace(LIMITS, max_bytes=100 << 10))
    assert queue.segments.sync_job() is None
    append_all(queue, range(60), clock, 1000)
    job = queue.segments.sync_job()
    assert job is not None
    job()
    assert queue.segments.sync_job() is None


def test_a_file_system_that_cannot_sync_directories_is_accepted(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    queue = opened(tmp_path, clock)
    queue.append(record(0, 1, clock), dequeue=False)
    job = queue.segments.sync_job()
    assert job is not None
    monkeypatch.setattr(os, "fsync", fsync)
    job()


def test_without_sync_interval_nothing_is_synced_and_no_extra_file_stays_open(
    tmp_path: Path, clock: HandClock
) -> None:
    queue = opened(tmp_path, clock, replace(LIMITS, max_bytes=100 << 10, sync_interval=0.0))
    append_all(queue, range(200), clock, 1000)
    assert queue.segments.sync_job() is None
    names = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert sorted(Path(name).suffix for name in names if name.startswith(str(tmp_path))) == ["", ".blocks"]

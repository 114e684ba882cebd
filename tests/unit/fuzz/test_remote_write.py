"""Laws of what lies on disk for receivers: whatever became of it, it is opened, read and closed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import bounded, fuzzed, kept, mutated, named
from gpuledger.agent.deliver.queue import Queue
from gpuledger.agent.deliver.records import Block, Sums, cut, record_of, seal_of
from gpuledger.agent.deliver.settings import DiskQueue
from gpuledger.agent.deliver.state import Sayings
from write_helpers import HandClock, block

LIMITS = DiskQueue(max_bytes=1 << 20, max_age=3600.0, memory_bytes=4096)
SEGMENT = "000000000001.blocks"
WORDS = (
    b"gLr1",
    b"gLs1",
    b"gLp1",
    b"\xff\xff\xff\xff",
    b"\0" * 8,
    seal_of(Sums(9**9, 9**9, 9**9, -5, 2**62)),
)


def check_queue(folder: Path, segment: bytes | None, positions: bytes | None) -> None:
    """Opened twice, each time with a record put behind all: that one comes out last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if segment is not None:
        (folder / SEGMENT).write_bytes(segment)
    if positions is not None:
        (folder / "position").write_bytes(positions)
    clock = HandClock()
    new = record_of(block(1, 77), int(clock.unix() * 1000))
    for _ in range(2):
        queue = Queue(folder, LIMITS, clock, Sayings("test", clock))
        assert queue.disk_bytes >= 0
        queue.put(new, through=False)
        bodies = []
        while (item := queue.next()) is not None:
            bodies.append(item.record.body)
            assert len(bodies) < 10_000
            queue.delivered([item])
        assert bodies[-1] == new.body
        queue.save((queue.read_to,))
        queue.close()


@pytest.mark.parametrize("path", kept("remote-write-segment"), ids=named)
def test_a_kept_segment_is_read_to_its_end(path: Path, tmp_path: Path) -> None:
    with bounded():
        check_queue(tmp_path / "queue", path.read_bytes(), None)


@fuzzed
@given(raw=mutated("remote-write-segment", *WORDS))
def test_any_segment_is_read_to_its_end(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        check_queue(tmp_path_factory.getbasetemp() / "fuzzed", raw, None)


def test_a_segment_of_a_number_that_none_has_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    folder.mkdir()
    (folder / "999999999999.blocks").write_bytes(kept("remote-write-segment")[0].read_bytes())
    clock = HandClock()
    queue = Queue(folder, LIMITS, clock, Sayings("test", clock))
    assert queue.next() is None
    queue.put(record_of(block(1, 77), int(clock.unix() * 1000)), through=False)
    queue.save((queue.read_to,))
    queue.close()
    assert (folder / "999999999999.blocks").exists()


@pytest.mark.parametrize("path", kept("remote-write-positions"), ids=named)
def test_a_kept_file_of_positions_is_read(path: Path, tmp_path: Path) -> None:
    segment = kept("remote-write-segment")[0].read_bytes()
    with bounded():
        check_queue(tmp_path / "queue", segment, path.read_bytes())


@fuzzed
@given(raw=mutated("remote-write-positions", *WORDS))
def test_any_file_of_positions_is_read(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        check_queue(
            tmp_path_factory.getbasetemp() / "fuzzed", kept("remote-write-segment")[0].read_bytes(), raw
        )


@fuzzed
@given(st.binary(max_size=300), st.integers(0, 50), st.integers(1, 5))
def test_any_body_is_cut_into_all_of_its_parts_or_refused(payload: bytes, samples: int, most: int) -> None:
    with bounded():
        try:
            parts = list(cut(Block(0, payload, samples, 0, 0), most))
        except ValueError:
            return
    assert b"".join(part.payload for part in parts) == payload
    assert sum(part.samples for part in parts) == samples

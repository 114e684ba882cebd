"""Fuzz tests of the remote-write queue on disk: any content is opened, read and closed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import bounded, corpus_files, file_name, fuzzed, mutated_files
from gpuledger.agent.deliver.queue import ReceiverQueue
from gpuledger.agent.deliver.records import Block, RecordTotals, compress_block, encode_seal, split_block
from gpuledger.agent.deliver.settings import DiskQueueLimits
from gpuledger.agent.deliver.state import ThrottledLog
from write_helpers import HandClock, block

LIMITS = DiskQueueLimits(max_bytes=1 << 20, max_age=3600.0, memory_bytes=4096)
SEGMENT = "000000000001.blocks"
WORDS = (
    b"gLr1",
    b"gLs1",
    b"gLp1",
    b"\xff\xff\xff\xff",
    b"\0" * 8,
    encode_seal(RecordTotals(9**9, 9**9, 9**9, -5, 2**62)),
)


def check_queue(folder: Path, segment: bytes | None, positions: bytes | None) -> None:
    """Open the queue twice, and append a record each time: it must come out last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if segment is not None:
        (folder / SEGMENT).write_bytes(segment)
    if positions is not None:
        (folder / "position").write_bytes(positions)
    clock = HandClock()
    new = compress_block(block(1, 77), int(clock.unix() * 1000))
    for _ in range(2):
        queue = ReceiverQueue(folder, LIMITS, clock, ThrottledLog("test", clock))
        assert queue.segments.file_bytes >= 0
        queue.append(new, dequeue=False)
        bodies = []
        while (item := queue.next_record()) is not None:
            bodies.append(item.record.body)
            assert len(bodies) < 10_000
            queue.finish([item])
        assert bodies[-1] == new.body
        queue.save_positions((queue.reader.position,))
        queue.close()


@pytest.mark.parametrize("path", corpus_files("remote-write-segment"), ids=file_name)
def test_a_corpus_segment_is_read_to_its_end(path: Path, tmp_path: Path) -> None:
    with bounded():
        check_queue(tmp_path / "queue", path.read_bytes(), None)


@fuzzed
@given(raw=mutated_files("remote-write-segment", *WORDS))
def test_a_mutated_segment_is_read_to_its_end(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        check_queue(tmp_path_factory.getbasetemp() / "fuzzed", raw, None)


def test_a_segment_with_an_impossible_number_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    folder.mkdir()
    (folder / "999999999999.blocks").write_bytes(corpus_files("remote-write-segment")[0].read_bytes())
    clock = HandClock()
    queue = ReceiverQueue(folder, LIMITS, clock, ThrottledLog("test", clock))
    assert queue.next_record() is None
    queue.append(compress_block(block(1, 77), int(clock.unix() * 1000)), dequeue=False)
    queue.save_positions((queue.reader.position,))
    queue.close()
    assert (folder / "999999999999.blocks").exists()


@pytest.mark.parametrize("path", corpus_files("remote-write-positions"), ids=file_name)
def test_a_corpus_position_file_is_read(path: Path, tmp_path: Path) -> None:
    segment = corpus_files("remote-write-segment")[0].read_bytes()
    with bounded():
        check_queue(tmp_path / "queue", segment, path.read_bytes())


@fuzzed
@given(raw=mutated_files("remote-write-positions", *WORDS))
def test_a_mutated_position_file_is_read(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        check_queue(
            tmp_path_factory.getbasetemp() / "fuzzed",
            corpus_files("remote-write-segment")[0].read_bytes(),
            raw,
        )


@fuzzed
@given(st.binary(max_size=300), st.integers(0, 50), st.integers(1, 5))
def test_any_block_is_split_without_loss_or_rejected(payload: bytes, samples: int, most: int) -> None:
    with bounded():
        try:
            parts = list(split_block(Block(0, payload, samples, 0, 0), most))
        except ValueError:
            return
    assert b"".join(part.payload for part in parts) == payload
    assert sum(part.samples for part in parts) == samples

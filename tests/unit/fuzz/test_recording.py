"""Laws of recordings: any bytes are refused in one line, or told as Snapshots that the model admits."""

from __future__ import annotations

import gzip
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import given

from fuzzing import bounded, check_line, check_snapshot, fuzzed, held_below, kept, mutated, named
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.replay.recording import Reader
from gpuledger.sources.replay.source import Replay
from gpuledger.sources.settings import SourceSettings
from unit.sources.simulator.support import ALL, HandClock

WORDS = (
    b"NaN",
    b"-Infinity",
    b"1e308",
    b"-5",
    b"[0,",
    b'"new":',
    b'"snapshot":',
    b'"Gpu"',
    b"null",
    b"[[",
    b'"energy"',
)


def check_entries(file: Path) -> None:
    reader = Reader(file)
    before = -1e300
    for entry in reader:
        assert isfinite(entry.unix)
        assert entry.elapsed >= before
        before = entry.elapsed
        if isinstance(entry, Snapshot):
            check_snapshot(entry)
            for reading in entry.readings:
                for sample in reading.samples or ():
                    assert 0 <= sample.sm <= 1
    reader.close()


def law(file: Path) -> None:
    try:
        check_entries(file)
        clock = HandClock()
        source = Replay(file, SourceSettings(), clock)
        for _ in range(4):
            try:
                check_snapshot(source.read(ALL))
            except SourceUnavailable as error:
                check_line(error)
            clock.now += 1.0
        source.close()
    except GpuledgerError as error:
        check_line(error)


@pytest.mark.parametrize("path", kept("recording"), ids=named)
def test_a_kept_recording_is_told_or_refused(path: Path) -> None:
    with bounded():
        law(path)


@fuzzed
@given(raw=mutated("recording", *WORDS))
def test_any_recording_is_told_or_refused(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    file.write_bytes(raw)
    with bounded():
        law(file)


@fuzzed
@given(raw=mutated("recording", *WORDS))
def test_any_packed_recording_is_told_or_refused(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.jsonl.gz"
    file.write_bytes(gzip.compress(raw, mtime=0)[: max(30, len(raw) // 2)])
    with bounded():
        law(file)


def test_a_line_that_unpacks_to_more_than_any_is_not_held(tmp_path: Path) -> None:
    header = kept("recording")[0].read_bytes().split(b"\n")[0]
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(header + b'\n{"snapshot":["' + bytes(400 << 20), 1))
    with held_below(300 << 20), bounded():
        law(file)

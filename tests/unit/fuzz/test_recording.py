"""Fuzz tests of recordings: any bytes give valid Snapshots or an error of one line."""

from __future__ import annotations

import gzip
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import given

from fuzzing import (
    bounded,
    check_line,
    check_snapshot,
    corpus_files,
    file_name,
    fuzzed,
    memory_below,
    mutated_files,
)
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.replay import recording
from gpuledger.sources.replay.recording import RecordingReader
from gpuledger.sources.replay.source import ReplaySource
from gpuledger.sources.settings import SourceSettings
from unit.sources.simulator.support import ALL, ManualClock

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
    reader = RecordingReader(file)
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


def check_recording(file: Path) -> None:
    try:
        check_entries(file)
        clock = ManualClock()
        source = ReplaySource(file, SourceSettings(), clock)
        for _ in range(4):
            try:
                check_snapshot(source.read(ALL))
            except SourceUnavailable as error:
                check_line(error)
            clock.now += 1.0
        source.close()
    except GpuledgerError as error:
        check_line(error)


@pytest.mark.parametrize("path", corpus_files("recording"), ids=file_name)
def test_a_corpus_recording_is_replayed_or_rejected(path: Path) -> None:
    with bounded():
        check_recording(path)


@fuzzed
@given(raw=mutated_files("recording", *WORDS))
def test_a_mutated_recording_is_replayed_or_rejected(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    file.write_bytes(raw)
    with bounded():
        check_recording(file)


@fuzzed
@given(raw=mutated_files("recording", *WORDS))
def test_a_mutated_compressed_recording_is_replayed_or_rejected(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.jsonl.gz"
    file.write_bytes(gzip.compress(raw, mtime=0)[: max(30, len(raw) // 2)])
    with bounded():
        check_recording(file)


def test_decompression_of_a_recording_line_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A line may have 64 MiB and takes five times as much memory. Tested with less, to save time.
    assert recording._MAX_LINE_BYTES == 64 << 20
    monkeypatch.setattr(recording, "_MAX_LINE_BYTES", 4 << 20)
    header = corpus_files("recording")[0].read_bytes().split(b"\n")[0]
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(header + b'\n{"snapshot":["' + bytes(40 << 20), 1))
    with memory_below(20 << 20), bounded():
        check_recording(file)

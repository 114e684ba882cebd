"""Recordings that are truncated, damaged or invalid."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path

import pytest

from builders import gpu, process, reading, snapshot
from gpuledger.model.errors import UsageError
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.replay.recording import RecordingEntry, RecordingReader, RecordingWriter
from unit.sources.replay.support import at, deep, read, write

CARD = gpu(0)
TICKS: list[RecordingEntry] = [
    at(snapshot(reading(CARD, process(CARD, pid=100 + n))), float(n)) for n in range(4)
]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_recording_keeps_the_ticks_before_the_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, compressed: bool
) -> None:
    complete = write(tmp_path / "complete", TICKS, compressed=compressed).read_bytes()
    truncated = tmp_path / "truncated"
    lengths = []
    for size in range(len(complete) // 4, len(complete)):
        truncated.write_bytes(complete[:size])
        caplog.clear()
        try:
            found = read(truncated)
        except UsageError:
            assert not lengths
            continue
        assert [deep(entry) for entry in found] == [deep(entry) for entry in TICKS[: len(found)]]
        assert len(caplog.records) <= 1
        lengths.append(len(found))
    assert lengths == sorted(lengths)
    assert set(lengths) == {0, 1, 2, 3, 4}


def test_a_truncated_last_line_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "r.jsonl", TICKS)
    path.write_bytes(path.read_bytes()[:-20])
    assert len(read(path)) == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"recording {path} is truncated in line 5: only the lines before it are replayed"
    ]


@pytest.mark.parametrize(
    "damage",
    [
        '{"snapshot":[',
        "[]",
        "null",
        '{"snapshot":[1,2,-1]}',
        '{"new":[["Gpu",[0]]]}',
        '{"new":7}',
        "[" * 9999,
    ],
)
def test_a_damaged_line_ends_the_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = write(tmp_path / "r.jsonl", TICKS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], damage, *lines[3:]]) + "\n")
    assert len(read(path)) == 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "damaged in line 4" in caplog.text


@pytest.mark.parametrize("compressed", [False, True])
def test_each_tick_is_readable_as_soon_as_it_is_written(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "r"
    with path.open("wb") as stream:
        writer = RecordingWriter(stream, compressed=compressed, masked=True, program="test")
        for number, tick in enumerate(TICKS, 1):
            writer.write(tick)
            assert len(read(path)) == number
            assert writer.size == path.stat().st_size
        writer.write_trailer()
    assert writer.snapshots == len(TICKS)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"# HELP gpu_process_count\n",
        b'{"format":"another"}\n',
        b"[1]\n",
        b"\x1f\x8bnot gzip at all",
        gzip.compress(b"gpus: 2\n", mtime=0),
        b'{"format":"gpuledger-recording","version":1}\n',
        bytes(range(256)),
    ],
)
def test_a_file_that_is_not_a_recording_is_rejected_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "page.prom"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"^\S+ is not a recording; create one with: gpuledger record FILE$"):
        RecordingReader(path)


def test_another_version_is_rejected_with_the_program_that_created_it(tmp_path: Path) -> None:
    path = tmp_path / "r"
    header = {"format": "gpuledger-recording", "version": 2, "program": "gpuledger 9.1"}
    path.write_text(json.dumps(header) + "\n")
    with pytest.raises(UsageError, match=r"recording of version 2.* reads version 1; .* gpuledger 9.1$"):
        RecordingReader(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the recording .*gone.jsonl: No such file"):
        RecordingReader(tmp_path / "gone.jsonl")
    with pytest.raises(UsageError, match=r"cannot read the recording .*: Is a directory"):
        RecordingReader(tmp_path)


def test_the_header_states_the_format_and_whether_identifiers_are_masked(tmp_path: Path) -> None:
    header = json.loads(write(tmp_path / "r", [], masked=True).read_text())
    assert {key: header[key] for key in ("format", "version", "program", "masked")} == {
        "format": "gpuledger-recording",
        "version": 1,
        "program": "test",
        "masked": True,
    }


def test_compression_is_detected_from_the_first_bytes_not_from_the_name(tmp_path: Path) -> None:
    found = read(write(tmp_path / "renamed.txt", TICKS, compressed=True))
    assert len(found) == 4
    assert all(isinstance(entry, Snapshot) for entry in found)

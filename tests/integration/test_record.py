"""`gpuledger record` and `--source replay:FILE` as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuledger.dialects.settings import DEFAULT_DIALECTS
from gpuledger.model.snapshot import Snapshot
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import PATIENCE, gpuledger, serving_prepared, wait_until
from unit.sources.replay.support import Pages, deep, read

# Metrics of a node about itself, not about the machine.
LIVE = re.compile(r"# |gpuledger_(source_info|build_info|ticks_total|tick_|collector_|paused|config_)")


def data_lines(page: str) -> list[str]:
    """The lines of a page with data of the Snapshot."""
    return [line for line in page.splitlines() if not LIVE.match(line)]


def snapshots(path: Path) -> list[Snapshot]:
    found = read(path)
    assert all(isinstance(entry, Snapshot) for entry in found)
    return [entry for entry in found if isinstance(entry, Snapshot)]


def environment(state: NvmlState) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}


@pytest.mark.parametrize("name", ["node.jsonl", "node.jsonl.gz"])
def test_a_recording_is_replayed_with_the_metrics_of_each_reading(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    done = gpuledger(
        "record", str(path), "--source", "simulator", "--every", "100ms", "--for", "1s", "--unmask"
    )
    assert (done.returncode, done.stderr) == (0, "")
    recorded = snapshots(path)
    assert len(recorded) > 1
    assert done.stdout == (
        f"{path}: {len(recorded)} snapshots, {path.stat().st_size} bytes, "
        "identifiers NOT masked: the file shows who works on what\n"
    )
    expected = data_lines(Pages(DEFAULT_DIALECTS).of(recorded[0]).decode())
    with serving_prepared("--source", f"replay:{path}", "--speed", "0.01", "--interval", "100ms") as server:
        server.wait_ticks(2)
        page = server.get().text
        assert data_lines(page) == expected
        assert 'gpuledger_source_info{source="replay",simulated="true"' in page
        assert f"{name}: simulator" in page


def test_the_end_of_a_recording_is_reported_without_invented_data(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    gpuledger("record", str(path), "--source", "simulator", "--every", "100ms", "--for", "300ms")
    with serving_prepared("--source", f"replay:{path}", "--speed", "100", "--interval", "100ms") as server:
        wait_until(lambda: "recording short.jsonl ended" in server.get("/health").text, "the end")
        assert "gpuledger_device_up{" not in server.get("/metrics/native").text
        server.wait_line("restart gpuledger to replay it again")


def test_a_recording_of_the_driver_is_masked(tmp_path: Path) -> None:
    state = NvmlState(tmp_path / "state", [NvmlGpu(NvmlProcess(os.getpid(), sm=40))]).write()
    plain, hidden = tmp_path / "plain.jsonl", tmp_path / "hidden.jsonl"
    for path, flags in ((plain, ["--unmask"]), (hidden, [])):
        flags = [*flags, "--source", "nvml", "--every", "100ms", "--for", "200ms"]
        done = gpuledger("record", str(path), *flags, env=environment(state))
        assert done.returncode == 0, done.stderr
    (before,), (after,) = (list(snapshots(path)[0].processes) for path in (plain, hidden))
    assert before.pid == after.pid == os.getpid()
    text = hidden.read_text()
    for secret in (before.device.uuid, before.host.start.boot_id):
        assert secret
        assert secret not in text
    assert '"masked":true' in text


def test_a_signal_ends_a_complete_recording(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    for number in (signal.SIGTERM, signal.SIGINT):
        command = [sys.executable, "-m", "gpuledger", "record", str(path), "--force", "--for", "0"]
        with subprocess.Popen(
            [*command, "--source", "simulator", "--every", "50ms"], stdout=subprocess.PIPE, text=True
        ) as program:
            try:
                wait_until(lambda: path.exists() and path.stat().st_size > 2000, "a few readings")
                program.send_signal(number)
                output, _ = program.communicate(timeout=PATIENCE)
            finally:
                program.kill()
        assert program.returncode == 0
        assert f"{len(snapshots(path))} snapshots" in output
        path.unlink()


def test_a_kill_loses_at_most_the_line_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl.gz"
    command = [
        sys.executable,
        "-m",
        "gpuledger",
        "record",
        str(path),
        "--source",
        "simulator",
        "--every",
        "50ms",
    ]
    with subprocess.Popen(command) as program:
        try:
            wait_until(lambda: path.exists() and path.stat().st_size > 9000, "a few readings")
        finally:
            program.kill()
    assert len(read(path)) >= 3
    assert all("truncated" in record.getMessage() for record in caplog.records)


def test_an_empty_name_is_an_error() -> None:
    done = gpuledger("record", "", "--source", "simulator", "--for", "50ms", "--force")
    assert (done.returncode, "FILE is empty" in done.stderr) == (2, True)


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("precious\n")
    flags = ("record", str(path), "--source", "simulator", "--for", "50ms")
    done = gpuledger(*flags)
    assert (done.returncode, path.read_text()) == (1, "precious\n")
    assert done.stderr == f"gpuledger: {path} already exists; choose another name, or --force to replace it\n"
    assert gpuledger(*flags, "--force").returncode == 0
    assert len(snapshots(path)) == 1


def test_recording_without_a_driver_names_the_remedy_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    done = gpuledger("record", str(path), "--source", "nvml", env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "install the NVIDIA driver" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("record",), 2, "record needs one FILE"),
        (("record", "a", "b"), 2, "record needs one FILE"),
        (
            ("record", "/nowhere/r.jsonl", "--source", "simulator"),
            1,
            "cannot write /nowhere/r.jsonl: No such file",
        ),
        (
            ("record", "/dev/full", "--force", "--source", "simulator"),
            1,
            "cannot write /dev/full: No space left",
        ),
        (("record", "r", "--every", "0"), 2, "--every: expected a duration of at least 0.05 s"),
        (("serve", "--source", "replay:/nowhere/r.jsonl"), 2, "cannot read the recording /nowhere/r.jsonl"),
        (("serve", "--source", "replay"), 2, "--source replay:FILE"),
    ],
)
def test_invalid_input_is_one_line(arguments: tuple[str, ...], code: int, text: str) -> None:
    done = gpuledger(*arguments)
    assert done.returncode == code
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_dash_records_to_stdout_and_messages_go_to_stderr(tmp_path: Path) -> None:
    done = gpuledger("record", "-", "--source", "simulator", "--for", "50ms")
    path = tmp_path / "r.jsonl"
    path.write_text(done.stdout)
    assert len(snapshots(path)) == 1
    assert done.stderr.startswith("-: 1 snapshots, ")


def test_a_recording_of_a_recording_differs_only_in_its_source(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    gpuledger("record", str(first), "--source", "simulator", "--for", "50ms")
    gpuledger("record", str(second), "--source", f"replay:{first}", "--for", "50ms", "--unmask")
    (one,), (two,) = snapshots(first), snapshots(second)
    assert deep(one)[1]["readings"] != []
    assert Pages().of(one).decode().count("\n") == Pages().of(two).decode().count("\n")
    assert two.source.name == "replay"


def test_help_explains_how_to_report_a_bug() -> None:
    done = gpuledger("record", "--help")
    assert done.returncode == 0
    assert "gpuledger record bug.jsonl.gz" in done.stdout
    assert "--source replay:bug.jsonl.gz" in done.stdout

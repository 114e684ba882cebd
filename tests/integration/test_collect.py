"""`gpuledger collect` with cron, as a service, and with node_exporter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from collecting import NAME, OLD, QUICK, collecting, names
from node_exporter import node_exporter, samples
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import PATIENCE, gpuledger, one_line, promtool_check, wait_until


def environment(state: NvmlState) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}


@pytest.fixture
def nvml(tmp_path: Path) -> NvmlState:
    processes = (NvmlProcess(os.getpid(), sm=40), NvmlProcess(os.getppid(), sm=10))
    return NvmlState(tmp_path / "state", [NvmlGpu(*processes), NvmlGpu()]).write()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "textfile"
    made.mkdir()
    return made


def test_a_single_run_writes_one_file_and_exits(directory: Path) -> None:
    done = gpuledger("collect", "--source", "simulator", "--textfile-dir", str(directory))
    assert done.returncode == 0
    assert done.stdout == ""
    assert "simulated data" in done.stderr
    assert names(directory) == {NAME}
    text = (directory / NAME).read_text()
    assert promtool_check(text)[0] in (0, 3)
    found = samples(text)
    assert {"gpu_process_count", "gpu_session_count", "gpu_process_info"} <= found.keys()
    assert found["gpu_total_processes"] == found["gpu_total_sessions"]
    assert not any(name.startswith("gpuledger_") for name in found)


def test_the_first_reading_has_the_samples_of_the_driver(nvml: NvmlState) -> None:
    done = gpuledger("collect", "--source", "nvml", "--stdout", env=environment(nvml))
    assert (done.returncode, done.stderr) == (0, "")
    used = {
        dict(labels)["pid"]: value
        for labels, value in samples(done.stdout)["gpu_process_utilization"].items()
    }
    assert used == {str(os.getpid()): 40, str(os.getppid()): 10}


def test_the_umask_of_cron_does_not_hide_the_file(directory: Path) -> None:
    command = [sys.executable, "-m", "gpuledger", "collect", "--source", "simulator"]
    subprocess.run([*command, "--textfile-dir", str(directory)], check=True, umask=0o077, capture_output=True)
    assert (directory / NAME).stat().st_mode & 0o777 == 0o644


def test_node_exporter_exports_the_metrics_of_a_running_collect_until_it_exits(directory: Path) -> None:
    source = ("--source", "simulator", "--dialect", "process,session,native")
    with (
        node_exporter(directory) as real,
        collecting(*source, *QUICK, "--textfile-dir", str(directory)) as run,
    ):
        ticks = [0.0]

        def new_tick() -> bool:
            found = real.scrape()
            assert found["node_textfile_scrape_error"] == {(): 0.0}
            if "gpuledger_ticks_total" in found:
                assert "gpu_total_sessions" in found
                ticks.append(found["gpuledger_ticks_total"][()])
            return ticks[-1] > ticks[-2] if len(ticks) > 1 else False

        for _ in range(3):
            wait_until(new_tick, "a newer page")
        assert run.stop() == 0
        assert names(directory) == set()
        assert not any(name.startswith("gpu") for name in real.scrape())


def mounted(directory: Path, options: str, then: str) -> subprocess.CompletedProcess[str]:
    """Run `collect` with a small separate file system at `directory`, which is copied to `directory.copy`.

    Uses a mount namespace; without root also a user namespace.
    """
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = f"""\
set -e
mount -t tmpfs -o {options} none "$1"
printf '{OLD}' > "$1/{NAME}"
{then}
rc=0
"$2" -m gpuledger collect --source simulator --textfile-dir "$1" || rc=$?
mkdir "$1.copy"
cp -a "$1/." "$1.copy"
exit $rc
"""
    return subprocess.run(
        ["unshare", *as_root, "--mount", "sh", "-c", script, "sh", str(directory), sys.executable],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


FILL = 'head -c 1M /dev/zero > "$1/filler" 2>/dev/null || true'
MOUNTS = [
    ("size=64k", FILL, "No space left on device; free some space on it"),
    ("size=64k,nr_inodes=3", 'touch "$1/filler"', "No space left on device; free some space on it"),
    ("size=64k", 'mount -o remount,ro "$1"', "Read-only file system; mount it writable"),
]


@pytest.mark.parametrize(("options", "then", "line"), MOUNTS, ids=["disk full", "no inode left", "read-only"])
def test_a_directory_that_cannot_be_written_is_one_line_and_keeps_the_old_file(
    directory: Path, options: str, then: str, line: str
) -> None:
    found = one_line(mounted(directory, options, then), 1)
    assert line in found
    assert str(directory) in found
    copy = directory.with_name(directory.name + ".copy")
    assert (copy / NAME).read_text() == OLD
    assert names(copy) - {"filler"} == {NAME}


def test_a_missing_directory_is_one_line_and_is_not_created(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    found = one_line(gpuledger("collect", "--source", "simulator", "--textfile-dir", str(missing)), 1)
    assert str(missing) in found
    assert "No such file or directory; create it" in found
    assert not missing.exists()


def test_a_file_in_place_of_the_directory_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    found = one_line(gpuledger("collect", "--source", "simulator", "--textfile-dir", str(file)), 1)
    assert f"{file}: Not a directory; create it" in found


def test_a_second_writer_is_one_line_and_the_first_continues(directory: Path) -> None:
    where = ("--source", "simulator", "--textfile-dir", str(directory))
    with collecting(*where, *QUICK):
        file = directory / NAME
        wait_until(file.exists, "the first page")
        found = one_line(gpuledger("collect", *where), 1)
        assert str(file) in found
        assert "is in use by another gpuledger collect" in found
        written = file.stat().st_mtime_ns
        wait_until(lambda: file.stat().st_mtime_ns != written, "the first writer to go on")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_collect_with_exit_code_zero_and_removes_the_file(
    directory: Path, number: signal.Signals
) -> None:
    with collecting("--source", "simulator", "--every", "1h", "--textfile-dir", str(directory)) as run:
        wait_until((directory / NAME).exists, "the first page")
        run.process.send_signal(number)
        assert run.process.wait(PATIENCE) == 0
    assert names(directory) == set()


def test_a_removed_directory_is_logged_once_and_written_again_when_it_returns(
    directory: Path, tmp_path: Path
) -> None:
    books = ("--state-dir", str(tmp_path / "books"))
    with collecting("--source", "simulator", *QUICK, "--textfile-dir", str(directory), *books) as run:
        wait_until((directory / NAME).exists, "the first page")
        moved = directory.rename(directory.with_name("moved"))
        line = run.wait_line(f"cannot write {NAME} in {directory}: No such file or directory").string
        assert "will retry; the ledger is not affected" in line
        directory.mkdir()
        wait_until((directory / NAME).exists, "a page in the new directory")
        run.wait_line(f"writing {directory / NAME} again")
        # It holds the lock in the new directory, too.
        second = gpuledger("collect", "--source", "simulator", "--textfile-dir", str(directory))
        assert "is in use by another gpuledger collect" in one_line(second, 1)
        assert run.stop() == 0
    assert len([line for line in run.lines if "cannot write" in line]) == 1
    assert names(directory) == set()
    assert (moved / NAME).exists()


def test_another_file_with_the_same_families_is_named_in_a_warning(directory: Path) -> None:
    (directory / "gpu_sessions.prom").write_text(OLD)
    done = gpuledger("collect", "--source", "simulator", "--textfile-dir", str(directory))
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "gpu_sessions.prom" in line]
    assert "gpu_process_count, gpu_total_processes too" in line
    assert "remove it" in line
    assert names(directory) == {NAME, "gpu_sessions.prom"}


def test_a_single_run_without_a_driver_is_one_line_and_removes_old_readings(
    directory: Path, tmp_path: Path
) -> None:
    missing = {"LD_LIBRARY_PATH": str(tmp_path)}
    found = one_line(gpuledger("collect", "--textfile-dir", str(directory), env=missing), 1)
    assert "libnvidia-ml.so.1 not found: install the NVIDIA driver" in found
    (directory / NAME).write_text(OLD)
    found = one_line(gpuledger("collect", "--textfile-dir", str(directory), env=missing), 1)
    assert f"removed {directory / NAME}, which had older readings" in found
    assert names(directory) == set()


def test_a_repeated_run_without_a_driver_logs_once_and_retries(directory: Path, tmp_path: Path) -> None:
    (directory / NAME).write_text(OLD)
    where = ("--textfile-dir", str(directory), "--dialect", "process,session,native")
    # A shorter interval ends in a stall on a busy machine, which is logged as well.
    with collecting(
        *where, "--every", "1s", "--interval", "1s", env={"LD_LIBRARY_PATH": str(tmp_path)}
    ) as run:

        def ticks() -> float:
            return samples((directory / NAME).read_text()).get("gpuledger_ticks_total", {}).get((), 0)

        wait_until(lambda: ticks() > 2, "some ticks")
        found = samples((directory / NAME).read_text())
        assert found["gpuledger_collector_success"] == {(("collector", "source"),): 0.0}
        assert "gpu_process_count" not in found
        (error,) = [line for line in run.lines if "level=error" in line]
        assert "libnvidia-ml.so.1 not found" in error
        assert run.stop() == 0


def test_while_the_driver_hangs_there_is_no_file(directory: Path, nvml: NvmlState) -> None:
    where = ("--source", "nvml", "--textfile-dir", str(directory), "--dialect", "process,session")
    # With --every 1h: a lost or returned source is written immediately.
    with collecting(*where, "--interval", "100ms", "--every", "1h", env=environment(nvml)) as run:
        file = directory / NAME
        wait_until(file.exists, "the first page")
        nvml.hang = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2")
        nvml.write()
        wait_until(lambda: not file.exists(), "the file to go")
        run.wait_line("no reading for .* nvml does not answer")
        nvml.hang = ()
        nvml.write()
        wait_until(file.exists, "the file to come back")


def test_a_closed_stdout_is_not_an_error() -> None:
    command = f"{sys.executable} -m gpuledger collect --source simulator --stdout --log-level error | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_stdout_is_a_one_line_error() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpuledger", "collect", "--source", "simulator", "--stdout"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "cannot write to stdout: No space left on device" in line


def test_one_configuration_file_serves_every_command(directory: Path, tmp_path: Path) -> None:
    config = tmp_path / "gpuledger.yaml"
    config.write_text(
        f"source: simulator:workstation\nlisten_address: ':9400'\nweb: {{page: off}}\n"
        f"textfile: {{dir: {directory}, file: gpu_sessions.prom}}\n"
    )
    assert gpuledger("collect", "--config", str(config)).returncode == 0
    assert names(directory) == {"gpu_sessions.prom"}
    assert gpuledger("metrics", "--config", str(config)).returncode == 0


BAD_INPUT = [
    (["--file", "../x.prom"], "--file: expected a file name ending in .prom"),
    (["--file", "gpu.txt"], "--file: expected a file name ending in .prom"),
    (["--file", ".prom"], "--file: expected a file name ending in .prom"),
    (["--every", "soon"], "--every: expected a duration such as"),
    (["--every", "100ms"], "--every 0.1s is shorter than --interval 1s"),
    (["--every", "60s", "--stdout"], "--stdout prints one page; drop --every"),
    (["--dialect", "native"], "dialect native needs a program that keeps running"),
    (["--dialect", "proces"], "unknown dialect 'proces'; did you mean 'process'?"),
    (
        ["--dialect", "energy,native", "--metric-prefix", "gpuledger_process"],
        "two different declarations; a page can contain only one of them; choose fewer dialects, or another",
    ),
    (["--source", "nvm"], "unknown source 'nvm'; did you mean 'nvml'?"),
    (["--listen-address", ":9400"], "unknown flag '--listen-address'"),
    (["now"], "collect takes no argument 'now'"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD_INPUT)
def test_invalid_input_is_one_line_and_exit_code_two(
    directory: Path, arguments: list[str], line: str
) -> None:
    found = one_line(gpuledger("collect", "--textfile-dir", str(directory), *arguments), 2)
    assert line in found
    assert names(directory) == set()


def test_stdout_accepts_any_dialect() -> None:
    done = gpuledger("collect", "--source", "simulator", "--stdout", "--dialect", "native")
    assert done.returncode == 0
    assert re.search(r"^gpuledger_ticks_total 1$", done.stdout, re.MULTILINE)


def test_help_has_examples() -> None:
    done = gpuledger("collect", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("* * * * * root gpuledger collect", "OnCalendar=minutely", "--every 60s", "--stdout"):
        assert text in done.stdout


def test_a_single_run_logs_what_it_wrote(directory: Path) -> None:
    """The manuals check the log of the CronJob."""
    done = gpuledger("collect", "--source", "simulator", "--textfile-dir", str(directory))
    (line,) = [line for line in done.stderr.splitlines() if "level=info" in line]
    assert f"wrote {directory / NAME}: 8 GPUs, 7 MIG instances, 13 processes, 11 of them in pods" in line

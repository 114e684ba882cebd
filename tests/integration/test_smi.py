"""The source nvidia-smi in the real program: a local command, and another machine over a real sshd."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from running import PATIENCE, free_port, gpuledger, serving_prepared, wait_until
from smi.captures import check_page

HERE = Path(__file__).parent.parent
STAND_IN = HERE / "smi" / "nvidia_smi.py"
ANSWERS = HERE / "fixtures" / "smi"


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """An executable called nvidia-smi that prints recorded outputs."""
    path = tmp_path / "nvidia-smi"
    words = [sys.executable, str(STAND_IN), "--answers", str(ANSWERS / "mig"), "--"]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)
    return path


def pids(page: str) -> set[tuple[str, str]]:
    """Return the labels gpu and pid of all exported processes."""
    rows = re.findall(r'^gpu_process_info\{gpu="([^"]+)",pid="(\d+)"', page, re.MULTILINE)
    return set(rows)


def printed_pids() -> set[str]:
    return set(re.findall(r"<pid>(\d+)</pid>", (ANSWERS / "mig" / "xml").read_text()))


def test_collect_exports_the_pids_that_nvidia_smi_prints(command: Path) -> None:
    done = gpuledger("collect", "--source", "smi", "--nvidia-smi-command", str(command), "--stdout")
    assert done.returncode == 0, done.stderr
    assert {pid for _, pid in pids(done.stdout)} == printed_pids() != set()


def test_the_command_flag_selects_the_source(command: Path) -> None:
    done = gpuledger("collect", "--nvidia-smi-command", str(command), "--stdout")
    assert {pid for _, pid in pids(done.stdout)} == printed_pids()


def test_a_missing_command_is_an_error_in_one_line() -> None:
    done = gpuledger("collect", "--source", "smi", "--nvidia-smi-command", "/none/nvidia-smi", "--stdout")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "/none/nvidia-smi" in done.stderr


def test_serve_exports_nvidia_smi_as_its_source(command: Path) -> None:
    with serving_prepared("--source", "smi", "--nvidia-smi-command", str(command)) as server:
        text = server.wait_ticks(2)
        assert 'gpuledger_source_info{source="smi",simulated="false"' in text
        assert {pid for _, pid in pids(server.get().text)} == printed_pids()


def test_serve_exports_every_column_on_the_page_that_replaces_nvidia_gpu_exporter() -> None:
    (capture,) = (ANSWERS / "captures").glob("linux*.txt")
    replays = shlex.join([sys.executable, str(STAND_IN), "--capture", str(capture), "--"])
    flags = ("--nvidia-smi-command", replays, "--web.telemetry-path", "/gpus")
    with serving_prepared(*flags, "--query-field-names-exclude", "power_smoothing.*,hostname") as server:
        server.wait_ticks(2)
        text = server.get("/gpus").text
    verdict = check_page(capture, "load", text)
    assert [line for line in verdict.wrong if not line.startswith("power_smoothing.")] == []
    assert verdict.samples == 57
    assert 'nvidia_smi_compute_app_info{pid="4711",process_name="/opt/run, fast"' in text
    assert "power_smoothing" not in text


def test_serve_exports_the_exit_code_of_a_failing_command() -> None:
    with serving_prepared("--nvidia-smi-command", "/none/nvidia-smi", "--dialect", "smi") as server:
        text = wait_until(lambda: page_with_failure(server.get().text), "a failed reading")
    assert "nvidia_smi_command_exit_code -1" in text
    assert "nvidia_smi_last_collect_success 0" in text
    assert "nvidia_smi_gpu_info" not in text


def page_with_failure(text: str) -> str | None:
    return text if re.search(r"^nvidia_smi_failed_scrapes_total [1-9]", text, re.MULTILINE) else None


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Port of a real sshd on loopback, and the key that it accepts."""
    for name in ("host", "user"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(keygen, check=True)
    port = free_port()
    config = tmp_path / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path / 'host'}\nPidFile none\n"
        f"AuthorizedKeysFile {tmp_path / 'user.pub'}\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin yes\nPasswordAuthentication no\n"
    )
    # sshd needs this directory for privilege separation; usually an init script creates it.
    Path("/run/sshd").mkdir(exist_ok=True)
    log = tmp_path / "sshd.log"
    daemon = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", str(config), "-E", str(log)])
    try:
        wait_until(lambda: log.exists() and "listening" in log.read_text(), "sshd to listen")
        yield port, tmp_path / "user"
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE)


def test_pids_of_another_machine_read_through_ssh_are_not_resolved_here(
    sshd: tuple[int, Path], command: Path
) -> None:
    port, key = sshd
    user = os.environ.get("USER", "root")
    remote = (
        f"ssh -p {port} -i {key} -o BatchMode=yes -o StrictHostKeyChecking=no "
        f"-o UserKnownHostsFile=/dev/null {user}@127.0.0.1 {command}"
    )
    done = gpuledger("collect", "--nvidia-smi-command", remote, "--stdout", "--dialect", "process,native")
    assert done.returncode == 0, done.stderr
    assert {pid for _, pid in pids(done.stdout)} == printed_pids()
    assert f'gpuledger_unresolved_processes{{reason="remote"}} {len(printed_pids())}' in done.stdout

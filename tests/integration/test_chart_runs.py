"""Runs the chart's containers locally, with their arguments and files, and paths below a test's folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from certificates import Certificates
from chart import main_container, of_kind, render
from running import PATIENCE, Program, free_port, wait_until

SIMULATED = {"source": "simulator"}


def local_command(words: list[str], folder: Path) -> list[str]:
    """Return the command line of a container with its paths below the folder."""
    for path in ("/etc/gpuledger/config", "/etc/gpuledger/web", "/var/lib/node_exporter/textfile_collector"):
        words = [word.replace(path, str(folder)) for word in words]
    return [sys.executable, "-m", "gpuledger", *words]


def put_files(values: dict[str, Any], folder: Path) -> None:
    """Write the files of the ConfigMap and the Secret."""
    for one in render(values):
        for name, text in (one.get("data") or one.get("stringData") or {}).items():
            (folder / name).write_text(text, encoding="utf-8")


@contextmanager
def exporter(values: dict[str, Any], folder: Path) -> Iterator[Program]:
    put_files(values, folder)
    running = Program(local_command(main_container(values)["args"], folder))
    try:
        running.wait_line("listening on")
        yield running
    finally:
        assert running.stop() == 0


def helm_test(values: dict[str, Any], host: str) -> subprocess.CompletedProcess[str]:
    """Run the program of the chart's test pod against this machine."""
    (pod,) = of_kind("Pod", values)
    (container,) = pod["spec"]["containers"]
    flag, script, _, port, scheme = ["-c", *container["args"]]
    return subprocess.run(
        [sys.executable, flag, script, host, port, scheme],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_the_exporter_runs_and_helm_test_succeeds(tmp_path: Path) -> None:
    values = {**SIMULATED, "port": free_port()}
    assert helm_test(values, "127.0.0.1").returncode != 0
    with exporter(values, tmp_path):
        done = wait_until(lambda: ready(values), "the exporter to be ready")
        assert "/-/ready 200" in done.stdout


def ready(values: dict[str, Any]) -> subprocess.CompletedProcess[str] | None:
    done = helm_test(values, "127.0.0.1")
    return done if done.returncode == 0 else None


@pytest.mark.parametrize("client", ["NoClientCert", "RequireAndVerifyClientCert"])
def test_helm_test_works_with_tls_a_password_and_client_certificates(client: str, tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    tls: dict[str, Any] = {
        "cert_file": str(made.crt("server")),
        "key_file": str(made.key("server")),
        "client_auth_type": client,
    }
    if client != "NoClientCert":
        tls["client_ca_file"] = str(made.crt("ca"))
    users = {"prometheus": "$2b$04$abcdefghijklmnopqrstuuC3JQhOHSdCLz8bQGgdY1oHzAj7FSzK6"}
    values = {
        **SIMULATED,
        "port": free_port(),
        "web": {"config": {"tls_server_config": tls, "basic_auth_users": users}},
    }
    with exporter(values, tmp_path):
        wait_until(lambda: ready(values), "the exporter to be ready")


def test_the_pod_of_the_cronjob_writes_its_file_and_exits(tmp_path: Path) -> None:
    values = {**SIMULATED, "gpu-session-monitoring": {"enabled": True}, "cronjob": {"nodeCount": 1}}
    put_files(values, tmp_path)
    done = subprocess.run(
        local_command(main_container(values)["args"], tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "gpu_total_sessions " in (tmp_path / "gpu_sessions.prom").read_text()


def test_the_collecting_daemonset_writes_repeatedly(tmp_path: Path) -> None:
    values = {**SIMULATED, "mode": "collect", "textfile": {"every": "1s"}}
    put_files(values, tmp_path)
    file = tmp_path / "gpu_processes.prom"
    running = Program(local_command(main_container(values)["args"], tmp_path))
    try:
        first = wait_until(lambda: file.is_file() and file.stat().st_mtime_ns, "the file")
        wait_until(lambda: file.stat().st_mtime_ns > first, "the file to be written again")
        assert "my_gpu_process_energy_joules{" in file.read_text()
    finally:
        assert running.stop() == 0


def test_helm_test_of_the_collecting_daemonset_prints_and_writes_no_file(tmp_path: Path) -> None:
    values = {**SIMULATED, "mode": "collect"}
    put_files(values, tmp_path)
    (pod,) = of_kind("Pod", values)
    words = local_command(pod["spec"]["containers"][0]["args"], tmp_path)
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "gpu_process_info{" in done.stdout
    assert list(tmp_path.glob("*.prom")) == []


def test_an_edited_config_reaches_the_running_exporter(tmp_path: Path) -> None:
    values = {**SIMULATED, "port": free_port(), "config": {"reload.interval": "50ms"}}
    with exporter(values, tmp_path) as running:
        edited = yaml.safe_load((tmp_path / "gpuledger.yaml").read_text())
        # As `helm upgrade --set dialect={smi}` changes the ConfigMap.
        edited["dialect"] = ["smi"]
        (tmp_path / "gpuledger.yaml").write_text(yaml.safe_dump(edited))
        running.wait_line("dialect")

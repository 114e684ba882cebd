"""The checks of doctor for ports, web config and textfile directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.app.diagnosis import run_checks
from gpuledger.http.settings import HttpSettings, parse_listen_addresses
from gpuledger.model.checks import Finding, Verdict
from gpuledger.outputs.checks import find_listener, output_checks
from gpuledger.outputs.textfile_neighbours import NeighbourFiles


def findings_for(
    address: str = "127.0.0.1:0", textfile: str = "", procfs: Path = Path("/proc"), **usual: Path
) -> list[Finding]:
    settings = HttpSettings(listen_address=parse_listen_addresses(address))
    return run_checks(output_checks(settings, textfile, procfs=procfs, usual=usual.values()))


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("content", "verdict", "why"),
    [
        ("rate_limit: {interval: 1s, burst: 9}", Verdict.WORKS, "no TLS, no passwords"),
        (
            "basic_auth_users: {alice: secret}",
            Verdict.FAILS,
            "basic_auth_users.alice: expected a bcrypt hash",
        ),
    ],
)
def test_a_web_config_is_loaded_as_by_serve(tmp_path: Path, content: str, verdict: Verdict, why: str) -> None:
    file = tmp_path / "web.yml"
    file.write_text(content)
    settings = HttpSettings(listen_address=(), web_config=str(file))
    finding = run_checks(output_checks(settings, usual=()))[0]
    assert (finding.check, finding.verdict) == ("output.web_config", verdict)
    assert why in finding.why
    assert "secret" not in finding.why


def test_a_free_port_works_and_is_free_afterwards() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        assert findings_for(f"127.0.0.1:{port}")[0].verdict is Verdict.WORKS


def test_a_port_in_use_names_the_listening_process(taken: int) -> None:
    finding = findings_for(f"127.0.0.1:{taken}")[0]
    assert finding.verdict is Verdict.FAILS
    assert f"in use by pid {os.getpid()} (" in finding.why
    assert f"kill {os.getpid()}" in finding.remedy
    assert "--listen-address" in finding.remedy


def fake_procfs(folder: Path, port: int, command: bytes) -> Path:
    """Creates a procfs in which pid 42 listens on the port."""
    (folder / "self/net").mkdir(parents=True)
    row = "0: 0100007F:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000 0 0 {} 1 0\n"
    (folder / "self/net/tcp").write_text("head\n" + row.format(port, "0A", 555) + row.format(port, "01", 556))
    for pid, inode in ((41, 556), (42, 555)):
        (folder / f"{pid}/fd").mkdir(parents=True)
        (folder / f"{pid}/fd/3").symlink_to(f"socket:[{inode}]")
        (folder / f"{pid}/cmdline").write_bytes(command)
    return folder


@pytest.mark.parametrize(
    ("command", "verdict", "words"),
    [
        (b"/usr/bin/dcgm-exporter\0-f\0x\0", Verdict.FAILS, "pid 42 (/usr/bin/dcgm-exporter -f x)"),
        (b"python3\0-m\0gpuledger\0serve\0", Verdict.WORKS, "gpuledger is already listening here (pid 42)"),
        (b"/opt/bin/gpuledger\0", Verdict.WORKS, "already listening here (pid 42)"),
        (b"vi\0/etc/gpuledger.yaml\0", Verdict.FAILS, "pid 42 (vi"),
        (b"", Verdict.FAILS, "command not readable"),
    ],
)
def test_the_listener_is_the_process_with_the_listening_socket(
    tmp_path: Path, taken: int, command: bytes, verdict: Verdict, words: str
) -> None:
    finding = findings_for(f"127.0.0.1:{taken}", procfs=fake_procfs(tmp_path, taken, command))[0]
    assert finding.verdict is verdict
    assert words in finding.why


def test_a_hidden_listener_is_reported_as_such(tmp_path: Path, taken: int) -> None:
    assert find_listener(tmp_path, taken) is None
    finding = findings_for(f"127.0.0.1:{taken}", procfs=tmp_path)[0]
    assert finding.verdict is Verdict.FAILS
    assert "ss -ltnp" in finding.remedy


@pytest.mark.parametrize("address", ["203.0.113.7:9400", "host.invalid:9400"])
def test_an_address_of_another_machine_fails_with_the_remedy(address: str) -> None:
    finding = findings_for(address)[0]
    assert finding.verdict is Verdict.FAILS
    assert finding.remedy == "choose another with --listen-address"


def test_every_address_is_checked(taken: int) -> None:
    findings = findings_for(f"127.0.0.1:0 127.0.0.1:{taken}=native")
    assert [finding.verdict for finding in findings[:2]] == [Verdict.WORKS, Verdict.FAILS]


def textfile(given: Path | str = "", **usual: Path) -> list[Finding]:
    return [
        finding
        for finding in findings_for(textfile=str(given), **usual)
        if finding.check == "output.textfile"
    ]


def test_missing_default_directories_are_skipped(tmp_path: Path) -> None:
    assert [finding.verdict for finding in textfile(a=tmp_path / "none")] == [Verdict.SKIPPED]


def test_a_writable_directory_works(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert [finding.verdict for finding in textfile(tmp_path)] == [Verdict.WORKS]
    assert [finding.verdict for finding in textfile(a=tmp_path)] == [Verdict.WORKS]


def test_a_missing_configured_directory_fails_with_the_command_to_create_it(tmp_path: Path) -> None:
    (finding,) = textfile(tmp_path / "none")
    assert finding.verdict is Verdict.FAILS
    assert f"mkdir -p {tmp_path / 'none'}" in finding.remedy


def test_a_file_instead_of_a_directory_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (finding,) = textfile(tmp_path / "file")
    assert finding.verdict is Verdict.FAILS


@pytest.mark.parametrize(("configured", "verdict"), [(True, Verdict.FAILS), (False, Verdict.WARNING)])
def test_a_directory_that_is_not_writable_fails_only_if_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: bool, verdict: Verdict
) -> None:
    # Root can write anywhere, so access(2) is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    tmp_path.chmod(0o500)
    (finding,) = textfile(tmp_path) if configured else textfile(a=tmp_path)
    assert finding.verdict is verdict
    assert "chown" in finding.remedy


def test_the_remedy_is_another_if_the_mode_allows_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (finding,) = textfile(tmp_path)
    assert "SELinux" in finding.remedy and "chown" not in finding.remedy


def test_conflicts_of_a_configured_directory_are_warnings(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "old.prom").write_text("gpu_process_count 1\n")
    neighbours = NeighbourFiles(tmp_path / "gpu_processes.prom", ("gpu_process_count",))
    checks = output_checks(HttpSettings(), str(tmp_path), lambda: neighbours)
    works, clash = [finding for finding in run_checks(checks) if finding.check == "output.textfile"]
    assert works.verdict is Verdict.WORKS and clash.verdict is Verdict.WARNING
    assert "old.prom exports gpu_process_count too" in clash.why


@pytest.mark.parametrize("is_written", [True, False])
def test_conflicts_of_the_usual_directory_are_warnings_if_collect_writes_there(
    tmp_path: Path, *, is_written: bool
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "old.prom").write_text("gpu_process_count 1\n")
    if is_written:
        (tmp_path / "gpu_processes.prom").write_text("gpu_process_count 2\n")
    neighbours = NeighbourFiles(tmp_path / "gpu_processes.prom", ("gpu_process_count",))
    checks = output_checks(HttpSettings(), "", lambda: neighbours, usual=[tmp_path])
    _, *clashes = [finding for finding in run_checks(checks) if finding.check == "output.textfile"]
    assert [clash.verdict for clash in clashes] == [Verdict.WARNING] * is_written


def test_a_directory_that_other_users_cannot_read_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (finding,) = textfile(tmp_path)
    assert finding.verdict is Verdict.WARNING
    assert "chmod o+rx" in finding.remedy

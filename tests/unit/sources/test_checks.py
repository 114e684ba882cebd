"""The check of the nvidia-smi command: present or missing, working or failing, never run by a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.host.commands import CommandResult
from gpuledger.model.checks import Finding, Verdict
from gpuledger.sources.checks import source_checks
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.checks import find_smi_problems
from gpuledger.sources.smi.settings import SmiSettings
from running import wait_until


def command(folder: Path, body: str) -> Path:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def run_check(
    text: str, kernel_version: str = "", limit: float = 20.0, *, is_only_source: bool = False
) -> Finding:
    (finding,) = find_smi_problems(SmiSettings(text, limit), kernel_version, is_only_source=is_only_source)
    return finding


@pytest.mark.parametrize(
    ("body", "kernel_version", "verdict", "expected"),
    [
        ("echo 570.86.15; echo 570.86.15", "", Verdict.WORKS, "driver 570.86.15"),
        ("echo 570.86.15", "570.86.15", Verdict.WORKS, "driver 570.86.15"),
        ("echo 570.86.15", "550.54.15", Verdict.WARNING, "the kernel has loaded 550.54.15"),
        (
            "echo 'Unable to determine the device handle'; exit 15",
            "",
            Verdict.FAILS,
            "exit 15",
        ),
        ("exit 9", "", Verdict.FAILS, "the NVIDIA driver is not loaded"),
        ("echo No devices were found", "", Verdict.UNKNOWN, "did not report a driver version: No devices"),
        ("printf '\\377\\n'", "", Verdict.UNKNOWN, "\\xff"),
        ('[ "$LC_ALL" = C ] && echo 1.2', "", Verdict.WORKS, "driver 1.2"),
        (
            '[ "$1 $2" = "--query-gpu=driver_version --format=csv,noheader" ] && echo 1.2',
            "",
            Verdict.WORKS,
            "1.2",
        ),
    ],
)
def test_the_output_of_the_command_determines_the_verdict(
    tmp_path: Path, body: str, kernel_version: str, verdict: Verdict, expected: str
) -> None:
    finding = run_check(str(command(tmp_path, body)), kernel_version)
    assert finding.verdict is verdict
    assert expected in finding.why


def test_a_missing_command_is_a_warning_if_nvml_is_read(tmp_path: Path) -> None:
    finding = run_check(str(tmp_path / "nvidia-smi"))
    assert finding.verdict is Verdict.WARNING
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in finding.remedy


def test_a_missing_command_fails_if_it_is_the_only_source(tmp_path: Path) -> None:
    finding = run_check(str(tmp_path / "nvidia-smi"), is_only_source=True)
    assert finding.verdict is Verdict.FAILS
    assert finding.remedy


def test_a_hanging_command_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    path = command(tmp_path, f"sleep 1000 & echo $! > {pid}.new; mv {pid}.new {pid}; wait")
    finding = run_check(str(path), limit=1.0)
    assert finding.verdict is Verdict.FAILS
    assert "1 s" in finding.why
    if pid.exists():
        wait_until(lambda: has_ended(int(pid.read_text())), "the end of its child")


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_the_command_runs_without_a_shell(tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []

    def run(words: tuple[str, ...], limit: float) -> CommandResult:
        calls.append(words)
        return CommandResult(b"1.2\n")

    path = command(tmp_path, "")
    list(find_smi_problems(SmiSettings(f"{path} '$(reboot);' --id=0"), "", is_only_source=False, run=run))
    assert calls == [
        (str(path), "$(reboot);", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader")
    ]


def test_a_simulated_node_has_no_driver_to_check() -> None:
    (check,) = source_checks(SourceSettings(source="simulator:workstation"), SmiSettings(), {})
    (finding,) = check.run()
    assert finding.verdict is Verdict.WORKS
    assert "no driver to check" in finding.why


def test_the_nvidia_smi_check_needs_the_driver_checks() -> None:
    _, smi = source_checks(SourceSettings(source="nvml"), SmiSettings(), {})
    assert {"driver.library", "driver.kernel", "driver.answers"} <= set(smi.needs)


def test_with_nvidia_smi_as_source_the_library_is_not_checked() -> None:
    (smi,) = source_checks(SourceSettings(source="smi"), SmiSettings(), {})
    assert not smi.needs

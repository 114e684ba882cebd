"""The nvidia-smi command looked at: there or not, answering or not, never by a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.model.checks import Finding, Verdict
from gpuledger.sources.checks import look_at_smi, source_checks
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.command import Ran
from gpuledger.sources.smi.settings import SmiSettings
from running import wait_until


def command(folder: Path, body: str) -> Path:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def look(text: str, loaded: str = "", limit: float = 20.0, *, sole: bool = False) -> Finding:
    (finding,) = look_at_smi(SmiSettings(text, limit), loaded, sole=sole)
    return finding


@pytest.mark.parametrize(
    ("body", "loaded", "verdict", "words"),
    [
        ("echo 570.86.15; echo 570.86.15", "", Verdict.WORKS, "driver 570.86.15"),
        ("echo 570.86.15", "570.86.15", Verdict.WORKS, "driver 570.86.15"),
        ("echo 570.86.15", "550.54.15", Verdict.WARNING, "the kernel has 550.54.15"),
        (
            "echo 'Unable to determine the device handle'; exit 15",
            "",
            Verdict.FAILS,
            "exit 15",
        ),
        ("exit 9", "", Verdict.FAILS, "the NVIDIA driver is not loaded"),
        ("echo No devices were found", "", Verdict.UNKNOWN, "no driver version: No devices"),
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
def test_what_the_command_says_is_judged(
    tmp_path: Path, body: str, loaded: str, verdict: Verdict, words: str
) -> None:
    finding = look(str(command(tmp_path, body)), loaded)
    assert finding.verdict is verdict
    assert words in finding.why


def test_a_command_that_is_not_there_is_a_warning_while_the_driver_can_be_read(tmp_path: Path) -> None:
    finding = look(str(tmp_path / "nvidia-smi"))
    assert finding.verdict is Verdict.WARNING
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in finding.remedy


def test_a_command_that_is_not_there_fails_where_it_is_the_only_source(tmp_path: Path) -> None:
    finding = look(str(tmp_path / "nvidia-smi"), sole=True)
    assert finding.verdict is Verdict.FAILS
    assert finding.remedy


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    path = command(tmp_path, f"sleep 1000 & echo $! > {pid}.new; mv {pid}.new {pid}; wait")
    finding = look(str(path), limit=1.0)
    assert finding.verdict is Verdict.FAILS
    assert "1 s" in finding.why
    if pid.exists():
        wait_until(lambda: ended(int(pid.read_text())), "the end of what it started")


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_no_shell_sees_the_words(tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def run(words: tuple[str, ...], limit: float) -> Ran:
        asked.append(words)
        return Ran(b"1.2\n")

    path = command(tmp_path, "")
    list(look_at_smi(SmiSettings(f"{path} '$(reboot);' --id=0"), "", sole=False, run=run))
    assert asked == [
        (str(path), "$(reboot);", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader")
    ]


def test_a_simulated_node_has_nothing_of_a_driver_to_check() -> None:
    (check,) = source_checks(SourceSettings(source="simulator:workstation"), SmiSettings(), {})
    (finding,) = check.look()
    assert finding.verdict is Verdict.WORKS
    assert "nothing to check of a driver" in finding.why


def test_nvidia_smi_is_not_asked_where_the_driver_is_the_cause() -> None:
    _, smi = source_checks(SourceSettings(source="nvml"), SmiSettings(), {})
    assert {"driver.library", "driver.kernel", "driver.answers"} <= set(smi.needs)


def test_where_nvidia_smi_is_the_source_the_library_is_not_looked_for() -> None:
    (smi,) = source_checks(SourceSettings(source="smi"), SmiSettings(), {})
    assert not smi.needs

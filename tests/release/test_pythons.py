"""gpuledger on each Python that it supports: as a user installs it, and with all unit tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from release.pythons import PROJECT, VERSIONS, PythonEnvironment, checkout, development, install
from running import Program, get, wait_until

UNIT_TESTED = ("3.13", "3.14")
# Resident memory of `serve` on a simulated node of 8 GPUs. docs/performance.md has exact figures.
MOST_MIB = 42


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder in /tmp, which Debian roots share with this machine."""
    made = Path(tempfile.mkdtemp(prefix="gpuledger-pythons-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    return checkout(folder / "checkout")


@pytest.fixture(scope="module", params=VERSIONS)
def installed(request: pytest.FixtureRequest, folder: Path, source: Path) -> PythonEnvironment:
    """gpuledger and the extras that exist for this Python, in a root with nothing but Python."""
    return install(VERSIONS[request.param], source, folder / request.param)


def test_the_versions_are_those_of_the_project() -> None:
    """No suite of Debian has 3.12, which is between two that are tested. Python 3.15 is not released yet."""
    classifiers = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = {text.rpartition(" ")[2] for text in classifiers if text.startswith("Programming Language")}
    assert named == {"3.11", "3.12", *UNIT_TESTED}
    assert set(VERSIONS) == named - {"3.12"} | {"3.15"}


def test_the_program_prints_its_version_and_its_metrics(installed: PythonEnvironment) -> None:
    shown = re.fullmatch(
        r"gpuledger \d+\.\d+\.\d+ \(Python ([\d.]+)\)\n", installed.run("gpuledger", "--version")
    )
    assert shown is not None
    assert shown[1].startswith(f"{installed.folder.name}.")
    assert "gpuledger_device_power_watts" in installed.run("gpuledger", "metrics")


def test_the_agent_and_the_operator_start_where_their_packages_exist(installed: PythonEnvironment) -> None:
    for command in VERSIONS[installed.folder.name].extras and ("agent", "operator"):
        assert f"gpuledger {command}" in installed.run("gpuledger", command, "--help")
        installed.run("python", "-c", f"import gpuledger.cli.{command}")


def test_serve_exports_metrics_in_little_memory(
    installed: PythonEnvironment, record_testsuite_property: Callable[[str, object], None]
) -> None:
    version = installed.run("python", "-c", "import platform; print(platform.python_version())").strip()
    flags = ("--source", "simulator", "--listen-address", "127.0.0.1:0", "--state-dir", "none")
    # This machine's working directory does not exist in the root.
    program = Program(["env", "--chdir=/", *installed.command("gpuledger", "serve", *flags)])
    try:
        port = program.wait_line(r"listening on \S+ port (\d+)")[1]

        def page() -> str | None:
            text = get(f"http://127.0.0.1:{port}/metrics/native").text
            ticks = re.search(r"^gpuledger_ticks_total (\d+)$", text, re.MULTILINE)
            return text if ticks and int(ticks[1]) >= 5 else None

        text = wait_until(page, "five ticks")
        assert text.count("\ngpuledger_device_power_watts{") == 8
        status = Path(f"/proc/{program.process.pid}/status").read_text()
        resident = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert resident is not None
        mib = int(resident[1]) / 1024
        record_testsuite_property(
            f"Python {installed.folder.name}", f"{version}; memory of `serve`: {mib:.1f} MiB"
        )
        assert mib < MOST_MIB
    finally:
        assert program.stop() == 0


@pytest.mark.parametrize("name", UNIT_TESTED)
def test_all_unit_tests_pass(name: str, source: Path) -> None:
    environment = development(VERSIONS[name])
    command = environment.command(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--workers", "2", "tests/unit"
    )
    done = subprocess.run(
        ["nice", *command],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source / "src"), "HOME": "/tmp"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 10_000

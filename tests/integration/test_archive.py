"""The executable file of `make build`, run in an empty folder with a clean environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger import __version__
from running import Program, get

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("archive")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of `make build`."""
    folder = tmp_path_factory.mktemp("built")
    # Use the virtual environment that runs this test, without changing it.
    settings = (f"OUT={folder}", f"VENV={sys.prefix}", f"--assume-old={sys.prefix}/.dev")
    done = subprocess.run(
        ["make", "--silent", "build", *settings], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the archive unpacks itself on its first run."""
    return tmp_path_factory.mktemp("unpacked")


@pytest.fixture
def clean(unpacked: Path, tmp_path: Path) -> list[str]:
    """A command prefix: run in an empty folder, with only the variables PATH and PEX_ROOT."""
    (tmp_path / "empty").mkdir()
    variables = (f"PATH={Path(sys.executable).parent}:{os.defpath}", f"PEX_ROOT={unpacked}")
    return ["env", "-i", "-C", str(tmp_path / "empty"), *variables]


@pytest.fixture
def served(archive: Path, clean: list[str]) -> Iterator[Program]:
    """The command of document 003, on a machine without a GPU."""
    flags = ("--log-level=info", "--source=simulator", "--state-dir=none", "--listen-address=127.0.0.1:0")
    program = Program([*clean, str(archive / "my-gpu-exporter"), *flags])
    yield program
    program.stop()


def test_the_build_is_one_file_and_a_link_with_the_old_name(archive: Path) -> None:
    assert {file.name for file in archive.iterdir()} == {"gpuledger", "my-gpu-exporter"}
    assert (archive / "my-gpu-exporter").readlink() == Path("gpuledger")


def test_version_works_and_leaves_no_file_in_the_working_directory(
    archive: Path, clean: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [*clean, archive / "gpuledger", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"gpuledger {__version__} ")
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_archive_serves_metrics(served: Program) -> None:
    port = served.wait_line(r"listening on \S+ port (\d+)")[1]
    page = get(f"http://127.0.0.1:{port}/metrics").text
    assert "\nmy_gpu_process_energy_joules{" in page


def test_the_archive_contains_the_c_extensions(archive: Path, clean: list[str]) -> None:
    """Protobuf, PyYAML and bcrypt are wheels for this Python; without C they are slow or missing."""
    imports = "import bcrypt, yaml; from google.protobuf.internal import api_implementation as protobuf; "
    program = imports + "print(yaml.__with_libyaml__, protobuf.Type(), bool(bcrypt.gensalt()))"
    done = subprocess.run(
        [*clean, "PEX_INTERPRETER=1", archive / "gpuledger", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "upb", "True"]


def test_without_the_right_python_the_error_names_it(archive: Path, clean: list[str], tmp_path: Path) -> None:
    nothing = tmp_path / "no-python"
    nothing.mkdir()
    for tool in ("sh", "env", "uname"):
        (nothing / tool).symlink_to(Path("/usr/bin") / tool)
    alone = ["env", "-i", f"PATH={nothing}", f"PEX_ROOT={tmp_path / 'unpacked'}"]
    done = subprocess.run(
        [*alone, archive / "gpuledger", "version"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"python3.{sys.version_info[1]}" in done.stderr.lower()

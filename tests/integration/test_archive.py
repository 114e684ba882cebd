"""`make build`: one executable file, run in an empty folder with a clean environment."""

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
    """The folder that `make build` filled."""
    folder = tmp_path_factory.mktemp("built")
    # The virtual environment that runs this test is there already, and is not to be touched.
    settings = (f"OUT={folder}", f"VENV={sys.prefix}", f"--assume-old={sys.prefix}/.dev")
    done = subprocess.run(
        ["make", "--silent", "build", *settings], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the archive unpacks itself when it is called first."""
    return tmp_path_factory.mktemp("unpacked")


@pytest.fixture
def clean(unpacked: Path, tmp_path: Path) -> list[str]:
    """Runs a command in an empty folder, with no variable but the search path and where to unpack."""
    (tmp_path / "empty").mkdir()
    variables = (f"PATH={Path(sys.executable).parent}:{os.defpath}", f"PEX_ROOT={unpacked}")
    return ["env", "-i", "-C", str(tmp_path / "empty"), *variables]


@pytest.fixture
def served(archive: Path, clean: list[str]) -> Iterator[Program]:
    """Document 003's command, on a machine without a GPU."""
    flags = ("--log-level=info", "--source=simulator", "--state-dir=none", "--listen-address=127.0.0.1:0")
    program = Program([*clean, str(archive / "my-gpu-exporter"), *flags])
    yield program
    program.stop()


def test_it_is_one_file_and_a_link_of_the_old_name(archive: Path) -> None:
    assert {file.name for file in archive.iterdir()} == {"gpuledger", "my-gpu-exporter"}
    assert (archive / "my-gpu-exporter").readlink() == Path("gpuledger")


def test_it_says_its_version_and_leaves_nothing_where_it_was_called(
    archive: Path, clean: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [*clean, archive / "gpuledger", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"gpuledger {__version__} ")
    assert list((tmp_path / "empty").iterdir()) == []


def test_it_serves(served: Program) -> None:
    port = served.wait_line(r"listening on \S+ port (\d+)")[1]
    page = get(f"http://127.0.0.1:{port}/metrics", timeout=20).text
    assert "\nmy_gpu_process_energy_joules{" in page


def test_what_is_partly_in_c_is_in_it(archive: Path, clean: list[str]) -> None:
    """Protobuf, PyYAML and bcrypt come as wheels for this Python; without they are slow, or not there."""
    imports = "import bcrypt, yaml; from google.protobuf.internal import api_implementation as protobuf; "
    program = imports + "print(yaml.__with_libyaml__, protobuf.Type(), bool(bcrypt.gensalt()))"
    done = subprocess.run(
        [*clean, "PEX_INTERPRETER=1", archive / "gpuledger", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "upb", "True"]


def test_another_python_is_refused_by_name(archive: Path, clean: list[str], tmp_path: Path) -> None:
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

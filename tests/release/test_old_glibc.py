"""The executables of a release, made for machines with an old glibc."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from debian_root import DebianRoot, debian_root
from packages.artifacts import executables

OLDEST = (2, 30)


@pytest.fixture(scope="module")
def built() -> Path:
    return executables(old_glibc=True)


@pytest.fixture(params=["bullseye", "bookworm", "trixie"])
def root(request: pytest.FixtureRequest, built: Path) -> DebianRoot:
    """A root without Python. It shares /tmp with this machine."""
    return debian_root(request.param)


def test_no_file_needs_a_newer_glibc(built: Path) -> None:
    needed = {
        file.name: max(tuple(map(int, found.split(b"."))) for found in versions)
        for file in (built / "gpuledger").rglob("*")
        if file.is_file() and (versions := re.findall(rb"GLIBC_(\d+\.\d+)", file.read_bytes()))
    }
    assert "gpuledger" in needed
    assert {name: version for name, version in needed.items() if version > OLDEST} == {}


def test_its_openssl_is_supported(built: Path) -> None:
    (library,) = (built / "gpuledger").rglob("libcrypto.so.*")
    assert re.search(rb"OpenSSL 3\.\d+\.\d+", library.read_bytes())


def test_it_runs_where_no_python_is(root: DebianRoot, built: Path) -> None:
    assert not list(root.path.glob("usr/bin/python3*"))
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = shutil.copytree(built / "gpuledger", f"{place}/gpuledger")
        one_file = shutil.copy(built / "gpuledger-onefile", place)
        for program in (f"{folder}/gpuledger", one_file):
            assert "GPU" in root.run(program, "top", "--once", "--source", "simulator")

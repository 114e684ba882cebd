"""The executables and packages, made once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages.artifacts import executables, packages


@pytest.fixture(scope="session")
def built() -> Path:
    """Folder with the executables for this machine's glibc."""
    return executables()


@pytest.fixture(scope="session")
def made(built: Path) -> dict[str, Path]:
    """The `deb` and the `rpm`."""
    return packages(built)

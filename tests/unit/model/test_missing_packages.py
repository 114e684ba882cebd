"""The error about a package that is not installed: a command for the Python that lacks it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

import pytest

from gpuledger.model import errors


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        (ModuleSpec("pip", None), f"{sys.executable} -m pip install 'gpuledger[cluster]'"),
        # An executable of a package, the image, and an environment of uv have no pip.
        (None, "pipx install 'gpuledger[cluster]'"),
    ],
)
def test_the_remedy_is_a_command_for_the_python_that_lacks_the_package(
    spec: ModuleSpec | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: spec)
    error = errors.missing_package_error("agent", "re2", "cluster", "without it")
    assert str(error) == f"agent needs the package re2, not installed here: {command}; without it"
    assert error.exit_code == 2

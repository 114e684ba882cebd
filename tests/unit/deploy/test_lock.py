"""requirements*.lock: the pinned packages of image and archive, consistent with pyproject.toml."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpuledger import __version__

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {
    # With the packages that single commands need: image and executables run all commands.
    "requirements.lock": [
        *PYPROJECT["project"]["dependencies"],
        *PYPROJECT["project"]["optional-dependencies"]["cluster"],
        *PYPROJECT["project"]["optional-dependencies"]["migrate"],
    ],
    "requirements-build.lock": PYPROJECT["build-system"]["requires"],
}


def pinned(lock: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package."""
    found = {}
    joined = (ROOT / lock).read_text().replace("\\\n", " ")
    for line in joined.splitlines():
        if match := re.match(r"([\w.-]+)==(\S+)", line):
            found[canonicalize_name(match[1])] = (match[2], line.count("--hash=sha256:"))
    return found


def all_requirements(direct: list[str]) -> list[Requirement]:
    """Direct and transitive requirements on any machine, according to the packages installed here."""
    found: dict[str, list[Requirement]] = {}
    done = set()
    waiting = [Requirement(one) for one in direct]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        found.setdefault(name, []).append(requirement)
        for extra in {"", *requirement.extras} - {had for of, had in done if of == name}:
            done.add((name, extra))
            required = [Requirement(one) for one in importlib.metadata.requires(name) or ()]
            waiting += [
                one
                for one in required
                if one.marker is None
                or (
                    one.marker.evaluate({"extra": extra})
                    and (not extra or not one.marker.evaluate({"extra": ""}))
                )
            ]
    return [one for requirements in found.values() for one in requirements]


@pytest.mark.parametrize("lock", LOCKS)
def test_all_requirements_are_pinned_to_an_allowed_version(lock: str) -> None:
    pins = pinned(lock)
    for requirement in all_requirements(LOCKS[lock]):
        version, _ = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}, but {version}: run `make lock`"


@pytest.mark.parametrize("lock", LOCKS)
def test_nothing_else_is_pinned(lock: str) -> None:
    assert set(pinned(lock)) == {canonicalize_name(one.name) for one in all_requirements(LOCKS[lock])}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_pins_one_version_with_hashes(lock: str) -> None:
    lines = (ROOT / lock).read_text().replace("\\\n", " ").splitlines()
    pattern = re.compile(r"[\w.-]+==[\w.]+( *;[^-]*)?( +--hash=sha256:[0-9a-f]{64})+ *")
    entries = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert entries
    assert [line for line in entries if not pattern.fullmatch(line)] == []


def test_the_image_installs_nothing_without_hashes() -> None:
    steps = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip [^&\n]*install[^&\n]*", steps)
    assert len(installs) == 3
    # The last one installs the wheel of this repository.
    assert all("--require-hashes" in one or "--no-index --no-deps /wheels" in one for one in installs)


def test_the_image_has_the_version_of_the_program() -> None:
    assert f"\nARG VERSION={__version__}\n" in (ROOT / "Dockerfile").read_text()

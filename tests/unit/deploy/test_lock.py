"""requirements*.lock: what image and archive are made of, pinned, and still what pyproject.toml asks for."""

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
    # The agent's packages, too: the image runs every command.
    "requirements.lock": [
        *PYPROJECT["project"]["dependencies"],
        *PYPROJECT["project"]["optional-dependencies"]["cluster"],
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


def needed(wanted: list[str]) -> list[Requirement]:
    """These requirements and all that their packages, as installed here, require on any machine."""
    found: dict[str, list[Requirement]] = {}
    done = set()
    waiting = [Requirement(one) for one in wanted]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        found.setdefault(name, []).append(requirement)
        for extra in {"", *requirement.extras} - {had for of, had in done if of == name}:
            done.add((name, extra))
            asked = [Requirement(one) for one in importlib.metadata.requires(name) or ()]
            waiting += [
                one
                for one in asked
                if one.marker is None
                or (
                    one.marker.evaluate({"extra": extra})
                    and (not extra or not one.marker.evaluate({"extra": ""}))
                )
            ]
    return [one for every in found.values() for one in every]


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_asked_for_is_pinned_to_a_version_that_will_do(lock: str) -> None:
    pins = pinned(lock)
    for requirement in needed(LOCKS[lock]):
        version, _ = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}, but {version}: run `make lock`"


@pytest.mark.parametrize("lock", LOCKS)
def test_nothing_else_is_pinned(lock: str) -> None:
    assert set(pinned(lock)) == {canonicalize_name(one.name) for one in needed(LOCKS[lock])}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_is_a_package_of_one_version_with_its_hashes(lock: str) -> None:
    lines = (ROOT / lock).read_text().replace("\\\n", " ").splitlines()
    wanted = re.compile(r"[\w.-]+==[\w.]+( *;[^-]*)?( +--hash=sha256:[0-9a-f]{64})+ *")
    said = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert said
    assert [line for line in said if not wanted.fullmatch(line)] == []


def test_the_image_installs_nothing_that_has_no_hash() -> None:
    steps = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip [^&\n]*install[^&\n]*", steps)
    assert len(installs) == 3
    # The last one is of the wheel that was made of this repository.
    assert all("--require-hashes" in one or "--no-index --no-deps /wheels" in one for one in installs)


def test_the_image_bears_the_version_of_the_program() -> None:
    assert f"\nARG VERSION={__version__}\n" in (ROOT / "Dockerfile").read_text()

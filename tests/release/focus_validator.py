"""The published validator of FOCUS, `focus-validator` of PyPI, in a Debian root with a newer Python.

Needs root. Without the network it knows version 1.2. It is installed without its requirements, because it
pins a numpy that has no wheel for this Python; its packages are named here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from debian_root import CACHE, DebianRoot, debian_root
from release.pythons import DOWNLOADS, VERSIONS

VERSION = "2.2.1"
_REQUIREMENTS = (
    "pandas<3",
    "pandera==0.26.1",
    "multimethod<2.1",
    "sqlglot<28",
    *("tabulate", "pyarrow", "pydantic", "pyyaml", "requests", "jsonschema", "numpy", "pytz", "pandasql"),
    *("polars", "ddt", "duckdb", "graphviz"),
)
_FOLDER = CACHE.parent / "focus-validator"
_PYTHON = VERSIONS["3.13"]


class Validation(NamedTuple):
    """The number of rules that passed, and those that failed by id, with the validator's text."""

    passed: int
    failed: dict[str, str]


def validate(file: Path, *criteria: str) -> Validation:
    """The result for a CSV file below /tmp. `criteria` are what the provider supports."""
    root, folder = _install()
    (packages,) = folder.glob("lib/python*/site-packages")
    flags = ["--validate-version", "1.2", "--block-download", "--show-violations"]
    if criteria:
        flags += ["--applicability-criteria", ",".join(criteria)]
    command = [folder / "bin/focus-validator", "--data-file", file, *flags]
    # It opens its list of currencies relative to the working directory, and fails if a rule is broken.
    script = f"cd {packages} && {' '.join(map(str, command))} || true"
    return _parse(root.run("sh", "-c", script))


def _parse(text: str) -> Validation:
    """The outcome of each rule is a line such as `✅ SkuId-C-001-M: PASS (...)`; most rules are skipped."""
    outcomes = re.findall(r"^\S+ ([\w.-]+): (PASS|FAIL)\b(.*)$", text, re.MULTILINE)
    assert outcomes, text[-4000:]
    failed = {rule: rest.strip() for rule, outcome, rest in outcomes if outcome == "FAIL"}
    return Validation(len(outcomes) - len(failed), failed)


def _install() -> tuple[DebianRoot, Path]:
    """The root and the environment in it, which is kept; takes a minute, once."""
    root = debian_root(_PYTHON.suite, _PYTHON.packages, binds=[_FOLDER, DOWNLOADS])
    identity = hashlib.sha256(json.dumps([root.path.name, VERSION, _REQUIREMENTS]).encode()).hexdigest()[:12]
    folder = _FOLDER / f"{VERSION}-{identity}"
    for needed in (_FOLDER, DOWNLOADS):
        needed.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "complete"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            root.run(_PYTHON.command, "-m", "venv", folder)
            for packages in (("--no-deps", f"focus-validator=={VERSION}"), _REQUIREMENTS):
                _pip(root, folder, *packages)
            done.touch()
    return root, folder


def _pip(root: DebianRoot, folder: Path, *packages: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--root-user-action=ignore")
    environment = {"PIP_CACHE_DIR": str(DOWNLOADS), "PIP_NO_INPUT": "1"}
    root.run("nice", folder / "bin/pip", "install", *quiet, *packages, env=environment, timeout=1800)

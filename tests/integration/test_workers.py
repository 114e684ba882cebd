"""`pytest --workers` reports every result, also of a worker that crashes, and runs a group in one worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from running import PATIENCE

TESTS = Path(__file__).parents[1]
SUITE = """
import os
import pytest

@pytest.fixture(scope="session")
def shared(request):
    yield os.getpid()
    with open(os.environ["COUNTED"], "w") as file:
        file.write(str(request.session.testsfailed))
    if os.environ.get("FAIL_AT_END"):
        raise RuntimeError("the fixture of the session failed")

@pytest.fixture(scope="module")
def first(shared):
    return []

@pytest.mark.group("g")
@pytest.mark.parametrize("number", range(5))
def test_grouped(number, first, shared):
    print("printed", number)
    first.append(os.getpid())
    assert len(first) == number + 1 and set(first) == {shared}
    assert number != 3

@pytest.mark.parametrize("number", range(20))
def test_single(number, tmp_path):
    (tmp_path / "file").write_text(str(number))

def test_crashing():
    os._exit(7)

@pytest.mark.skip(reason="it is skipped")
def test_skipped():
    raise AssertionError
"""


def run(folder: Path, *options: str, **env: str) -> tuple[int, str]:
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "pytest.ini").touch()
    plugins = ("workers", "no:cacheprovider", "no:schemathesis", "no:anyio", "no:hypothesispytest")
    command = [sys.executable, "-m", "pytest", *(f"-p{plugin}" for plugin in plugins), "--workers=3", "-ra"]
    done = subprocess.run(
        [*command, f"--basetemp={folder}/tmp", *options, str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "COLUMNS": "300",
            "COUNTED": str(folder / "counted"),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def failed(output: str) -> list[tuple[str, str]]:
    return re.findall(r"^FAILED .*::(\S+) - (.*)$", output, re.MULTILINE)


def test_results_of_all_workers_are_reported(tmp_path: Path) -> None:
    code, output = run(tmp_path)
    assert code == 1, output
    assert sorted(failed(output)) == [
        ("test_crashing", "the worker ended with 7 during or after this test"),
        ("test_grouped[3]", "assert 3 != 3"),
    ]
    assert re.search(r"Captured stdout call -+\nprinted 3\n", output), output
    assert " 2 failed, 24 passed, 1 skipped in " in output


def test_a_fixture_of_the_session_that_fails_at_the_end_fails_the_run(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--deselect=test_suite.py::test_crashing", FAIL_AT_END="1")
    assert code == 1, output
    assert "the worker ended with 1 during or after this test" in dict(failed(output)).values()
    assert "RuntimeError: the fixture of the session failed" in output
    assert (tmp_path / "counted").read_text() == "1"


def test_the_first_failure_ends_all_workers(tmp_path: Path) -> None:
    code, output = run(tmp_path, "-x", "--deselect=test_suite.py::test_crashing")
    assert code == 1, output
    assert [name for name, _ in failed(output)] == ["test_grouped[3]"]
    assert "stopping after 1 failures" in output

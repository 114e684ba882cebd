"""`gpuledger demo` and the first lines of `serve`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time

from running import MODULE, PATIENCE, Program, get, gpuledger, one_line, wait_until

# The history is short, so that the test is.
DEMO = """
import sys
from gpuledger.cli import demo
demo.HISTORY = 900.0
from gpuledger.cli.main import main
sys.exit(main(["demo", *sys.argv[1:]]))
"""


@contextmanager
def started(*command: str) -> Iterator[tuple[Program, list[str]]]:
    """A program that has logged its page, and the lines before that."""
    program = Program(command, {"GPULEDGER_STATE_DIR": "", "GPULEDGER_CONTROL_SOCKET": ""}, prepared=True)
    try:
        program.wait_line("page: http://")
        before = [line for line in program.lines if "page: http://" not in line]
        yield program, before
    finally:
        program.stop()


def url(program: Program) -> str:
    return program.wait_line(r"page: (http://\S+/)")[1]


def test_a_demo_shows_page_books_and_money_after_five_lines(tmp_path: Path) -> None:
    script = tmp_path / "demo.py"
    script.write_text(DEMO)
    with started(MODULE[0], str(script), "--listen-address", ":0") as (program, before):
        assert len(before) <= 5
        assert "MIG" not in "".join(before)
        file = Path(program.wait_line(r"demo prices.*gpuledger report --config (\S+)\"")[1])
        assert program.wait_line(r"listening on all addresses port (\d+).*--listen-address 127\.0\.0\.1:\1")
        assert "demo prices" in get(f"{url(program)}api/v1/energy?by=namespace").text
        assert get(url(program)).is_success
        done = gpuledger("report", "--config", str(file), env={"GPULEDGER_STATE_DIR": ""})
        assert done.returncode == 0, done.stderr
        assert re.search(r"^total .* [1-9]\d*\.\d\d$", done.stdout, re.MULTILINE)
        assert "demo prices" in done.stdout
        words = ("free", "--config", str(file), "--anyway", "--json")
        free = gpuledger(*words, env={"GPULEDGER_STATE_DIR": "", "GPULEDGER_CONTROL_SOCKET": ""})
        # Reservations are only of the running demo.
        assert json.loads(free.stdout)["reservations"] is True, free.stderr
    assert not file.parent.exists()


def test_books_of_an_earlier_demo_are_continued(tmp_path: Path) -> None:
    script = tmp_path / "demo.py"
    script.write_text(DEMO)
    listen, books = ("--listen-address", "127.0.0.1:0"), ("--state-dir", str(tmp_path / "books"))
    words = (MODULE[0], str(script), *listen, *books)
    with started(*words):
        pass
    with started(*words) as (program, before):
        assert any("books of an earlier demo" in line for line in before)
        # Less than the history: the simulated node is in the present.
        first = get(f"{url(program)}api/v1/snapshot").json()["unix"]
        assert time() - first < PATIENCE
        wait_until(lambda: get(f"{url(program)}api/v1/snapshot").json()["unix"] > first, "the next reading")
        # Neither a source that hangs nor energy counters that went back.
        faults = [line for line in program.lines if "level=warn" in line or "level=error" in line]
        assert [line for line in faults if "simulated data" not in line] == []
    checked = gpuledger("books", "check", *books)
    assert checked.returncode == 0, checked.stdout


def test_a_demo_that_is_stopped_while_it_makes_books_names_no_page(tmp_path: Path) -> None:
    script = tmp_path / "demo.py"
    # A month takes minutes.
    script.write_text(DEMO.replace("900.0", "2_592_000.0"))
    program = Program(
        (MODULE[0], str(script), "--listen-address", "127.0.0.1:0"),
        {"GPULEDGER_STATE_DIR": ""},
        prepared=True,
    )
    try:
        folder = Path(program.wait_line(r"ledger in (\S+)/")[1])
        program.wait_line("listening on")
    finally:
        assert program.stop() == 0
    assert not [line for line in program.lines if "page: http" in line or "a simulated day" in line]
    assert not [line for line in program.lines if "level=error" in line]
    assert not folder.exists()


def test_a_demo_stops_while_its_driver_is_simulated_to_hang(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("{gpus: 1, faults: [{kind: hang, at: 30s, for: 1d}]}")
    words = (*MODULE, "demo", "--source", f"simulator:{tmp_path / 'node.yaml'}", "--state-dir", str(tmp_path))
    program = Program((*words, "--listen-address", "127.0.0.1:0"), {"GPULEDGER_STATE_DIR": ""}, prepared=True)
    try:
        program.wait_line("listening on")
    finally:
        assert program.stop() == 0


def test_a_demo_without_a_ledger_on_disk_names_no_report(tmp_path: Path) -> None:
    (tmp_path / "simulator-demo.db").mkdir()
    (script := tmp_path / "demo.py").write_text(DEMO)
    words = (MODULE[0], str(script), "--listen-address", "127.0.0.1:0", "--state-dir", str(tmp_path))
    with started(*words) as (_, before):
        assert [line for line in before if "the ledger is kept in memory" in line]
        assert [line for line in before if "a simulated day" in line and "gpuledger report" not in line]


def test_serve_ends_its_start_with_the_page() -> None:
    words = (*MODULE, "serve", "--source", "simulator", "--state-dir", "none", "--listen-address")
    with started(*words, "127.0.0.1:0") as (program, before):
        assert len(before) <= 5
        assert "MIG" not in "".join(before)
        assert "without a password" not in "".join(before)
        assert get(url(program)).is_success


def test_a_demo_never_reads_real_gpus() -> None:
    line = one_line(gpuledger("demo", "--source", "nvml", env={"GPULEDGER_STATE_DIR": ""}), 2)
    assert line.endswith("run gpuledger serve --source nvml")


def test_a_demo_without_books_is_refused() -> None:
    assert "--state-dir none" in one_line(gpuledger("demo", "--state-dir", "none"), 2)

"""SIGTERM in every phase of a start and a tick: exit code 0, a complete ledger, the next start continues."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from integration.sigterm_in_phase import PHASES
from ledger_helpers import assert_books_balance, rows
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from prepared import run_prepared
from running import PATIENCE, serving, serving_prepared

PROGRAM = Path(__file__).with_name("sigterm_in_phase.py")
STARTING = ("assembling", "opening-the-ledger", "listening", "logging-addresses", "starting-the-node")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    state = NvmlState(tmp_path / "state", [NvmlGpu(NvmlProcess(os.getpid(), sm=40)), NvmlGpu()]).write()
    return {
        "LD_LIBRARY_PATH": str(build().parent),
        "TEST_NVML_STATE": str(state.path),
    }


def flags(tmp_path: Path) -> tuple[str, ...]:
    return ("--source", "nvml", "--interval", "100ms", "--state-dir", str(tmp_path / "books"))


@pytest.mark.parametrize(
    ("phase", "times"),
    [(phase, times) for phase in PHASES["serve"] for times in ((1,) if phase in STARTING else (1, 4))],
)
def test_sigterm_in_any_phase_is_a_clean_exit(
    tmp_path: Path, env: dict[str, str], phase: str, times: int
) -> None:
    command = [sys.executable, str(PROGRAM), f"serve/{phase}", str(times), "serve", *flags(tmp_path)]
    done = run_prepared([*command, "--listen-address", "127.0.0.1:0"], {**os.environ, **env}, PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "stopping" in done.stderr
    books = tmp_path / "books" / "gpuledger.db"
    assert not books.with_name("gpuledger.db-wal").exists()
    before = assert_books_balance(books)
    if phase not in STARTING:
        assert rows(books, "SELECT value FROM meta WHERE key = 'clean'") == [(1,)]
    with serving_prepared(*flags(tmp_path), env=env) as restarted:
        restarted.wait_ticks(3)
    assert "uncleanly" not in "\n".join(restarted.lines)
    assert assert_books_balance(books) >= before


def test_a_hanging_driver_does_not_prevent_the_exit(tmp_path: Path, env: dict[str, str]) -> None:
    state = NvmlState(Path(env["TEST_NVML_STATE"]), [NvmlGpu(NvmlProcess(os.getpid(), sm=40))]).write()
    with serving(*flags(tmp_path), env=env) as server:
        server.wait_ticks(5)
        state.hang = ("nvmlDeviceGetTemperature",)
        state.write()
        server.wait_line("does not answer")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    assert assert_books_balance(tmp_path / "books" / "gpuledger.db") > 0

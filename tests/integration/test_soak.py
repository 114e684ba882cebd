"""A short soak: after thousands of processes nothing is held that was not held after hundreds."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from threading import active_count

import pytest

from books_helpers import assert_books_balance, rows
from builders import FakeClock
from gpuledger.app.wiring import assemble_node
from gpuledger.http.routes import Request
from nvml.library import build, load
from running import serving
from soaking import PATHS, Churn, ask, look

# Three rounds of them, five seconds a step, are a hundred minutes of a node: five at twenty times the speed.
STEPS = 400


def test_a_node_holds_no_more_after_many_ticks_than_after_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in this process: live objects, blocks of memory, descriptors, threads."""
    churn = Churn(tmp_path / "state")
    monkeypatch.setenv("TEST_NVML_STATE", str(churn.state.path))
    library = load()
    monkeypatch.setattr("gpuledger.sources.nvml.library.CDLL", lambda _: library)
    # What is kept for some minutes is let go of within a round of five seconds a step.
    clock = FakeClock()
    monkeypatch.setattr("gpuledger.app.wiring.SystemClock", lambda: clock)
    values = {
        "source": "nvml",
        "state_dir": str(tmp_path / "books"),
        "control.socket": str(tmp_path / "control"),
    }
    made = assemble_node(values)
    pages = [made.parts.pages.handler((name,)) for name in ("native", "energy", "process", "dcgm", "smi")]

    def live() -> tuple[int, int, int, int]:
        for step in range(STEPS):
            clock.advance(5.0)
            churn.state.time = clock.elapsed()
            churn.step()
            made.parts.node.tick()
            for page in pages if step % 10 == 0 else ():
                page(Request("GET", "/metrics", "", {"accept-encoding": "gzip"}))
        gc.collect()
        descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
        return len(gc.get_objects()), sys.getallocatedblocks(), descriptors, active_count()

    try:
        live()
        before, after = live(), live()
    finally:
        made.parts.stop()
    assert after[2:] == before[2:]
    # Less than what one in ten of the processes that came and went in between would take.
    assert after[0] <= before[0] + STEPS
    assert after[1] <= before[1] + 10 * STEPS
    (sessions,) = rows(tmp_path / "books" / "gpuledger.db", "SELECT count(*) FROM sessions")[0]
    assert sessions > STEPS * 10  # type: ignore[operator]  # an integer
    assert_books_balance(tmp_path / "books" / "gpuledger.db")


@pytest.mark.parametrize("source", ["nvml", "simulator"])
def test_a_server_under_clients_keeps_its_descriptors_and_threads(tmp_path: Path, source: str) -> None:
    churn = Churn(tmp_path / "state")
    env = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(churn.state.path)}
    speed = ("--speed", "200") if source == "simulator" else ()
    books = ("--state-dir", str(tmp_path / "books"))
    with serving("--source", source, *speed, "--interval", "50ms", *books, env=env) as server:
        answers: set[int] = set()
        for _ in range(2):
            # Reading the books takes a thread each at most: all there will be are there after two rounds.
            answers |= {ask(server, number) for number in range(2 * len(PATHS))}
        before = look(server, 0)
        for number in range(20 * len(PATHS)):
            churn.step()
            answers.add(ask(server, number))
        after = look(server, 1)
        assert answers == {200, 404}
        assert (after.descriptors, after.threads) <= (before.descriptors + 2, before.threads + 1)
        assert after.resident < 80 * 1024

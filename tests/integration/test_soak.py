"""A short soak test: a node needs no more memory after thousands of processes than after hundreds."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from threading import active_count

import pytest

from builders import FakeClock
from gpuledger.app.node_assembly import assemble_node
from gpuledger.http.routes import Request
from ledger_helpers import assert_books_balance, rows
from nvml.library import build, load
from running import serving
from soaking import PATHS, Churn, request_page, sample_program

# A round is an hour of a node: what is kept for an hour has its full size after the first round.
STEPS = 120
SECONDS = 30.0


def test_objects_memory_descriptors_and_threads_of_a_node_do_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node runs in this process, so that live objects and allocated blocks can be counted."""
    churn = Churn(tmp_path / "state")
    monkeypatch.setenv("TEST_NVML_STATE", str(churn.state.path))
    library = load()
    monkeypatch.setattr("gpuledger.sources.nvml.library.CDLL", lambda _: library)
    clock = FakeClock()
    monkeypatch.setattr("gpuledger.app.node_parts.SystemClock", lambda: clock)
    values = {
        "source": "nvml",
        "state_dir": str(tmp_path / "books"),
        "control.socket": str(tmp_path / "control"),
    }
    made = assemble_node(values)
    pages = [made.parts.pages.handler((name,)) for name in ("native", "energy", "process", "dcgm", "smi")]

    def live() -> tuple[int, int, int, int]:
        for step in range(STEPS):
            clock.advance(SECONDS)
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
    # The limits are below the need of one in ten of the processes that came and went in between.
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
        statuses: set[int] = set()
        for _ in range(2):
            # Reading the ledger starts threads: after two rounds all of them exist.
            statuses |= {request_page(server, number) for number in range(2 * len(PATHS))}
        before = sample_program(server, 0)
        for number in range(20 * len(PATHS)):
            churn.step()
            statuses.add(request_page(server, number))
        after = sample_program(server, 1)
        assert statuses == {200, 404}
        assert (after.descriptors, after.threads) <= (before.descriptors + 2, before.threads + 1)
        assert after.resident < 80 * 1024

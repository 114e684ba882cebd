"""Running out of disk, file descriptors or memory loses no booked energy, and only memory can end serve."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from ledger_helpers import assert_books_balance
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import PATIENCE, Server, get, serving, wait_until


@contextmanager
def serve(tmp_path: Path) -> Iterator[Server]:
    state = NvmlState(tmp_path / "state", [NvmlGpu(NvmlProcess(os.getpid(), sm=40)), NvmlGpu()]).write()
    env = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
    flags = ("--source", "nvml", "--interval", "50ms", "--state-dir", str(tmp_path / "books"))
    with serving(*flags, env=env) as running:
        running.wait_ticks(10)
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        yield running
    assert_books_balance(tmp_path / "books" / "gpuledger.db")
    assert not [line for line in running.lines if "internal error" in line]


@contextmanager
def limited(server: Server, which: int, limit: int) -> Iterator[None]:
    pid = server.process.pid
    before = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, which, before)


def joules(page: str) -> float:
    return sum(
        float(value)
        for value in re.findall(r"^gpuledger_device_energy_joules_total\{.*\} (\S+)$", page, re.MULTILINE)
    )


def number(page: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    assert found, name
    return float(found[1])


def test_a_full_disk_loses_no_booked_energy(server: Server, tmp_path: Path) -> None:
    before = joules(server.get("/metrics/native").text)
    with limited(server, resource.RLIMIT_FSIZE, 8192):
        wait_until(lambda: "store" in server.get("/health").text, "health to report the store")
        page = server.get("/metrics/native").text
        assert number(page, 'gpuledger_collector_success{collector="store"}') == 0
        assert joules(page) >= before
        before = joules(page)
    wait_until(lambda: server.get("/health").text.startswith("OK"), "the store to be written again")
    assert joules(server.get("/metrics/native").text) >= before


def test_running_out_of_file_descriptors_does_not_stop_the_ticks(server: Server) -> None:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=PATIENCE) as open_before:
        ticks = number(open_before.get("/metrics/native").text, "gpuledger_ticks_total")
        in_use = sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())
        with limited(server, resource.RLIMIT_NOFILE, in_use):
            with pytest.raises(httpx.HTTPError):
                get(server.url + "/metrics", timeout=1)
            server.wait_line("Too many open files")
            page = open_before.get("/metrics/native").text
            wait_until(
                lambda: number(open_before.get("/metrics/native").text, "gpuledger_ticks_total") > ticks + 20,
                "ticks to go on",
            )
            assert number(page, 'gpuledger_collector_success{collector="source"}') == 1
    wait_until(lambda: server.get("/health").text.startswith("OK"), "a tick in time")


def test_running_out_of_memory_loses_no_booked_energy(server: Server, tmp_path: Path) -> None:
    page = server.get("/metrics/native").text
    before, ticks = joules(page), number(page, "gpuledger_ticks_total")
    size = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    with suppress(ProcessLookupError), limited(server, resource.RLIMIT_AS, size):
        for path in ("/metrics/native", "/metrics/dcgm", "/api/v1/snapshot", "/api/v1/sessions", "/") * 20:
            with suppress(httpx.HTTPError):
                # 408: the event loop had no memory to begin reading the request. Some get no answer at all.
                assert get(server.url + path, timeout=10).status_code in (200, 408, 500, 503)
    if recovers(server):
        server.wait_ticks(int(ticks) + 20)
        assert joules(server.get("/metrics/native").text) >= before
    else:
        # Python's own C code does not survive each failed allocation ("SystemError: error return without
        # exception set"). Then a supervisor starts serve again.
        with serve(tmp_path) as restarted:
            assert joules(restarted.get("/metrics/native").text) >= before


def recovers(server: Server) -> bool:
    """Wait until the server is healthy or has ended; return whether it is healthy."""

    def is_healthy() -> bool:
        with suppress(httpx.HTTPError):
            return get(f"{server.url}/health", timeout=10).text.startswith("OK")
        return False

    wait_until(lambda: server.process.poll() is not None or is_healthy(), "health or the end of serve")
    return server.process.poll() is None

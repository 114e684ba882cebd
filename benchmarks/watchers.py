"""Measures memory, CPU and latency with twenty open web pages: each fetches the snapshot after every tick.

    python benchmarks/watchers.py [--seconds 20]

A scraper also sends one request per second. Times are those of a client on the same machine; all pages send
their requests at once. `--write` writes the table to a file.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

import httpx
import psutil

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from node import BUDGET, MIB, nvml_state, running  # noqa: E402  (after the path is set)
from nvml.library import build  # noqa: E402
from running import free_port  # noqa: E402

PAGES = 20
MARKS = ("<!-- watchers: begin -->", "<!-- watchers: end -->")


async def page(url: str, ticks: int, waits: list[float]) -> None:
    """Act as an open page for this many ticks; append the latency of each snapshot in seconds to `waits`."""
    async with (
        httpx.AsyncClient(trust_env=False, timeout=30) as client,
        client.stream("GET", f"{url}/api/v1/events?limit={ticks}") as events,
    ):
        async for line in events.aiter_lines():
            if line == "event: tick":
                began = time.perf_counter()
                (await client.get(f"{url}/api/v1/snapshot")).raise_for_status()
                waits.append(time.perf_counter() - began)


async def watch(url: str, ticks: int, pages: int, waits: list[float]) -> None:
    """Run all pages and a scraper."""

    async def scrape() -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for _ in range(ticks):
                (await client.get(f"{url}/metrics")).raise_for_status()
                await asyncio.sleep(1)

    await asyncio.gather(scrape(), *(page(url, ticks, waits) for _ in range(pages)))


def spent(program: psutil.Process) -> float:
    """Return the CPU seconds of the program so far."""
    times = program.cpu_times()
    return float(times.user + times.system)


def watchers(seconds: int) -> Iterator[str]:
    """Yield the lines of the table."""
    with tempfile.TemporaryDirectory() as name:
        state = nvml_state(Path(name), *BUDGET)
        env = {**os.environ, "LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
        env["GPULEDGER_STATE_DIR"] = str(state.path.parent / "books")
        url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "gpuledger", "serve", "--source", "nvml"]
        command += ["--listen-address", url.removeprefix("http://")]
        with running(command, env, f"{url}/-/healthy") as serving:
            yield "| open pages | CPU ms per second | snapshots | p99 ms | resident MiB |"
            yield "|---|---|---|---|---|"
            for pages in (0, PAGES):
                waits: list[float] = []
                cpu, began = spent(serving), time.monotonic()
                asyncio.run(watch(url, seconds, pages, waits))
                each = (spent(serving) - cpu) / (time.monotonic() - began) * 1000
                slowest = f"{quantiles(waits, n=100)[98] * 1000:.1f}" if waits else ""
                resident = serving.memory_info().rss / MIB
                yield f"| {pages} | {each:.1f} | {len(waits)} | {slowest} | {resident:.1f} |"


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--seconds", type=int, default=20, help="how long the pages are open")
    given = flags.parse_args()
    print_table(watchers(given.seconds), given.write, MARKS)


if __name__ == "__main__":
    main()

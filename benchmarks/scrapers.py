"""Measures the latency of fifty scrapers, each with one scrape per second and gzip, and memory under churn.

    python benchmarks/scrapers.py [--seconds 30]

Times are those of a client on the same machine, an upper bound of the server's part. Scrapes are spread
evenly over the second, as Prometheus does. `--write` writes the table to a file.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

import psutil

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from node import BUDGET, MIB, nvml_state, running  # noqa: E402  (after the path is set)
from nvml.library import build  # noqa: E402
from running import free_port  # noqa: E402

CLIENTS = 50
MARKS = ("<!-- scrapers: begin -->", "<!-- scrapers: end -->")
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"


async def client(port: int, offset: float, seconds: float, waits: list[float]) -> int:
    """Run one scraper over a keep-alive connection; return the decompressed size of the last body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    loop = asyncio.get_running_loop()
    begin, size = loop.time() + offset, 0
    for second in range(int(seconds)):
        await asyncio.sleep(max(0.0, begin + second - loop.time()))
        began = time.perf_counter()
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None
        body = await reader.readexactly(int(length[1]))
        waits.append(time.perf_counter() - began)
        size = len(gzip.decompress(body))
    writer.close()
    return size


async def scrape(port: int, seconds: float) -> tuple[list[float], int]:
    """Run all clients; return the latency of each scrape in seconds, and the size of a page."""
    waits: list[float] = []
    tasks = [client(port, number / CLIENTS, seconds, waits) for number in range(CLIENTS)]
    sizes = await asyncio.gather(*tasks)
    return waits, max(sizes)


def scrapers(seconds: float) -> Iterator[str]:
    """Yield the lines of the table of scrape latencies."""
    with tempfile.TemporaryDirectory() as name:
        state = nvml_state(Path(name), *BUDGET)
        env = {**os.environ, "LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
        env["GPULEDGER_STATE_DIR"] = str(state.path.parent / "books")
        port = free_port()
        address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "gpuledger", "serve", "--source", "nvml"]
        with running([*command, "--listen-address", address], env, f"http://{address}/-/healthy") as serving:
            waits, size = asyncio.run(scrape(port, seconds))
            resident = serving.memory_info().rss / MIB
    milliseconds = [wait * 1000 for wait in waits]
    yield "| clients | scrapes | page KiB | p50 ms | p99 ms | highest ms | resident MiB |"
    yield "|---|---|---|---|---|---|---|"
    yield (
        f"| {CLIENTS} | {len(waits)} | {size / 1024:.0f} | {median(milliseconds):.2f} "
        f"| {quantiles(milliseconds, n=100)[98]:.2f} | {max(milliseconds):.1f} | {resident:.1f} |"
    )


def churn(starts: int = 10_000) -> str:
    """Return by how much resident memory grows with `starts` process starts and exits, seventy at a time."""
    from builders import gpu, process, reading, snapshot
    from gpuledger.dialects.catalogue import create_dialects
    from gpuledger.dialects.settings import DialectSettings
    from gpuledger.exposition import text
    from gpuledger.ledger.ledger import Ledger
    from gpuledger.ledger.settings import LedgerSettings
    from gpuledger.model.node_state import NodeState
    from gpuledger.workloads.owner_lookup import OwnerLookup

    ledger, owner_lookup = Ledger(LedgerSettings()), OwnerLookup()
    dialects = create_dialects(DialectSettings(), "0")
    card, at_once = gpu(0), 70
    here = psutil.Process()

    def tick(first: int) -> None:
        crowd = [process(card, pid, ticks=pid) for pid in range(first, first + at_once)]
        seen = owner_lookup.assign_owners(snapshot(reading(card, *crowd), unix=1_700_000_000.0 + first))
        state = NodeState(seen.unix, seen.source, seen, ledger.post(seen))
        for dialect in dialects.values():
            text.encode_text(dialect.families(state))

    for first in range(0, starts, at_once):
        tick(first)
    before = here.memory_info().rss
    for first in range(starts, 2 * starts, at_once):
        tick(first)
    grown = (here.memory_info().rss - before) / 1024
    return f"{starts} process starts and exits, page rendered at every tick: {grown:+.0f} KiB resident."


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--seconds", type=float, default=30.0, help="how long the clients scrape")
    given = flags.parse_args()
    print_table([*scrapers(given.seconds), "", churn()], given.write, MARKS)


if __name__ == "__main__":
    main()

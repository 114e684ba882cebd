"""Measures remote write: CPU per sample from `accept` to the response, and memory with a long queue.

    python benchmarks/remote_write.py [--write docs/remote-write.md] [--gib 1]

Blocks are scrapes of a DCGM-style page with 500 series, of which a fifth changes its value. The receiver is a
separate process on this machine that reads requests and returns 204.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from tables import create_parser, describe_machine, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from gpuledger.agent.deliver.receivers import Receivers  # noqa: E402
from gpuledger.agent.deliver.records import Block  # noqa: E402
from gpuledger.agent.deliver.settings import DiskQueueLimits, QueueConfig, ReceiverSettings  # noqa: E402
from gpuledger.agent.deliver.state import ReceiverState  # noqa: E402
from gpuledger.exposition.remote_write import (  # noqa: E402  (after the path is set)
    encode_label_fields,
    encode_series_prefix,
    encode_timestamp,
    encode_value,
)
from gpuledger.host.clock import SystemClock  # noqa: E402

SAMPLES, TARGETS, BLOCKS = 500, 50, 6000
MIB = 2**20
MARKS = ("<!-- remote-write: begin -->", "<!-- remote-write: end -->")
PAGE = os.sysconf("SC_PAGE_SIZE")


def scrapes() -> list[bytes]:
    """Return one payload per target."""
    chance = random.Random(3)
    tail = encode_timestamp(int(time.time() * 1000))
    found = []
    for target in range(TARGETS):
        entries = []
        for number in range(SAMPLES):
            card, metric = divmod(number, 60)
            labels = {
                "__name__": f"DCGM_FI_DEV_METRIC_{metric}",
                "UUID": f"GPU-{target:08x}-1111-2222-3333-{card:012x}",
                "device": f"nvidia{card}",
                "gpu": str(card),
                "instance": f"10.0.{target}.5:9400",
                "job": "gpu",
                "namespace": "research",
                "pod": f"trainer-{target}-{card}",
            }
            value = chance.random() * 100 if chance.random() < 0.2 else float(chance.randrange(100))
            entries.append(encode_series_prefix(encode_label_fields(labels.items())) + encode_value(value))
        found.append(tail.join(entries) + tail)
    return found


async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept every request of a connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            match = re.search(rb"(?i)content-length: (\d+)", head)
            assert match is not None
            await reader.readexactly(int(match[1]))
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve_receiver(pipe: Connection) -> None:
    """Run the receiver and send its port through the pipe."""

    async def serve() -> None:
        server = await asyncio.start_server(handle_connection, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / MIB


async def feed(receivers: Receivers, payloads: list[bytes], blocks: int) -> None:
    """Queue this many blocks."""
    for number in range(blocks):
        moment = int(time.time() * 1000)
        receivers.accept(Block(number % TARGETS, payloads[number % TARGETS], SAMPLES, moment, moment))
        if number % 10 == 9:
            await asyncio.sleep(0)


async def cost(url: str, directory: Path, payloads: list[bytes], most: int) -> tuple[float, float]:
    """Return CPU microseconds per sample: of `accept`, and in total."""
    config = QueueConfig(max_samples_per_send=most, batch_send_deadline=1.0)
    receivers = Receivers([ReceiverSettings("x", url, queue_config=config)], directory, SystemClock())
    receivers.start()
    before, accepting = time.process_time(), 0.0
    for number in range(BLOCKS):
        began = time.process_time()
        receivers.accept(Block(number % TARGETS, payloads[number % TARGETS], SAMPLES, 0, 1))
        accepting += time.process_time() - began
        if number % 10 == 9:
            await asyncio.sleep(0)
    while receivers.state()[0].queued_blocks:
        await asyncio.sleep(0.01)
    total = time.process_time() - before
    await receivers.stop()
    return accepting / BLOCKS / SAMPLES * 1e6, total / BLOCKS / SAMPLES * 1e6


async def backlog(url: str, directory: Path, payloads: list[bytes], gib: float) -> list[str]:
    """Return table rows about a queue of this size and about draining it."""
    there = ReceiverSettings(
        "x", "http://127.0.0.1:9/", queue=DiskQueueLimits(max_bytes=int((gib + 1) * 1024 * MIB))
    )
    receivers = Receivers([there], directory, SystemClock())
    receivers.start()

    def state() -> ReceiverState:
        return receivers.state()[0]

    await feed(receivers, payloads, 1000)
    rows = [f"| resident memory, {state().disk_bytes / MIB:.0f} MiB queued | {resident():.0f} MiB |"]
    while state().disk_bytes < gib * 1024 * MIB:
        await feed(receivers, payloads, 1000)
    rows.append(f"| resident memory, {state().disk_bytes / MIB:.0f} MiB queued | {resident():.0f} MiB |")
    queued = state().queued_samples
    await receivers.stop(0)
    began = time.perf_counter()
    receivers = Receivers([replace(there, url=url)], directory, SystemClock())
    receivers.start()
    rows.append(f"| reopening the queue | {(time.perf_counter() - began) * 1000:.0f} ms |")
    began, cpu = time.perf_counter(), time.process_time()
    highest = 0.0
    while state().queued_blocks:
        await asyncio.sleep(0.1)
        highest = max(highest, resident())
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    rows.append(f"| draining the queue: samples per second, on one core | {queued / seconds:,.0f} |")
    rows.append(f"| CPU per sample while draining | {cpu / queued * 1e6:.2f} µs |")
    rows.append(f"| peak resident memory while draining | {highest:.0f} MiB |")
    await receivers.stop()
    return rows


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--gib", type=float, default=1.0, help="size of the long queue in GiB")
    given = flags.parse_args()
    mine, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_receiver, args=(other,), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{mine.recv()}/api/v1/write"
    payloads = scrapes()
    rows = ["| measurement | value |", "|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for most in (500, 2000):
            accepting, total = asyncio.run(cost(url, Path(folder, str(most)), payloads, most))
            rows.append(f"| CPU per sample, {most} samples a request: total | {total:.2f} µs |")
            rows.append(f"| of that, `accept` (snappy, checksum, write) | {accepting:.2f} µs |")
        rows += asyncio.run(backlog(url, Path(folder, "long"), payloads, given.gib))
    process.terminate()
    rows += ["", f"{describe_machine()}."]
    print_table(rows, given.write, MARKS)


if __name__ == "__main__":
    main()

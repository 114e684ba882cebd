"""Measures `gpuledger fleet` with 200 nodes of 8 GPUs: memory, and CPU time as a share of one core.

    python benchmarks/fleet.py [--nodes 200] [--seconds 60] [--interval 5]

The nodes are one separate process, which answers on as many addresses of 127.0.0.0/8 with snapshots of
simulated nodes (8 GPUs, 64 processes); utilization, memory and power differ in each answer, and each node
sends an event once a second. Three open pages fetch what has changed, and one terminal fetches everything.
Measured after the first two intervals.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
import zlib
from multiprocessing import Event, Process
from multiprocessing.synchronize import Event as EventType
from pathlib import Path
from typing import Any

import psutil

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from running import MODULE, Program, free_port, get  # noqa: E402  (after the path is set)

MIB = 1 << 20
MARKS = ("<!-- fleet-bench: begin -->", "<!-- fleet-bench: end -->")
_VARIANTS = 20
_PAGES = 3
_EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_TICK = b'id: 7\nevent: tick\ndata: {"tick":7,"unix":1.0,"now":1.0,"healthy":true,"readings":true}\n\n'


def snapshot(node: int, variant: int) -> bytes:
    """A response with the snapshot of a node, compressed as a node does it."""
    chance = random.Random(1000 * node + variant)
    owner = {"owner_kind": "pod", "container": "main", "job": "", "user": ""}

    def place(gpu: int) -> dict[str, Any]:
        return {"uuid": f"GPU-{node:04}-{gpu}", "gpu": str(gpu), "instance": ""}

    devices = [
        {
            **place(gpu),
            "name": "NVIDIA H100 80GB HBM3",
            "profile": "",
            "pci_bus_id": f"00000000:{gpu:02X}:00.0",
            "up": True,
            "down_reason": "",
            "holds_processes": True,
            "state": ("active", "active", "held", "idle")[gpu % 4],
            "utilization_ratio": chance.random(),
            "power_watts": chance.uniform(60, 700),
            "power_limit_watts": 700.0,
            "temperature_celsius": chance.randrange(30, 80),
            "processes": 8,
            "memory_used_bytes": chance.randrange(80 << 30),
            "memory_total_bytes": 80 << 30,
            "owners": [
                {
                    **owner,
                    "namespace": f"team-{node % 9}",
                    "pod": f"train-{node}-{gpu}",
                    "present": True,
                    "processes": 8,
                    "held_seconds": 60.0 * variant,
                    "allocated_seconds": 3600.0,
                }
            ],
            "problems": [],
            "xids": [],
        }
        for gpu in range(8)
    ]
    processes = [
        {
            **place(number % 8),
            **owner,
            "namespace": f"team-{node % 9}",
            "pod": f"train-{node}-{number % 8}",
            "pid": 1000 + number,
            "count": None,
            "command": "python3",
            "types": ["C"],
            "memory_bytes": chance.randrange(10 << 30),
            "sm_ratio": chance.random(),
            "memory_bandwidth_ratio": chance.random(),
            "start_unix": 1.0,
            "start_exact": True,
            "unresolved": "",
            "power_watts": chance.uniform(0, 90),
            "joules": chance.randrange(10**6),
            "measured_joules": 0,
        }
        for number in range(64)
    ]
    body = {
        "version": "v1",
        "gpuledger": "0.2.0",
        "node": f"gpu-{node:03}",
        "unix": time.time(),
        "tick": variant,
        "source": {"name": "nvml", "simulated": False, "detail": ""},
        "status": {"text": "ok", "healthy": True, "readings": True, "paused": False},
        "devices_complete": True,
        "devices": devices,
        "processes": processes,
    }
    packed = zlib.compress(json.dumps(body, separators=(",", ":")).encode(), 1, 31)
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
        f'ETag: W/"{node:x}-{variant}"\r\nContent-Length: {len(packed)}\r\n\r\n'
    )
    return head.encode() + packed


def address(node: int) -> str:
    """The loopback address of a node."""
    return f"127.{1 + node // 200}.0.{1 + node % 200}"


def serve_nodes(count: int, port: int, ready: EventType) -> None:
    """Answer as these nodes until the process ends; each answer of a node differs from the last one."""
    answers = [[snapshot(node, variant) for variant in range(_VARIANTS)] for node in range(count)]

    class Node(asyncio.Protocol):
        def __init__(self, own: list[bytes]) -> None:
            self._own, self._turn, self._received = own, 0, b""

        def connection_made(self, transport: Any) -> None:
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            self._received += data
            while b"\r\n\r\n" in self._received:
                request, _, self._received = self._received.partition(b"\r\n\r\n")
                if b"/api/v1/snapshot" in request:
                    self._turn += 1
                    self._transport.write(self._own[self._turn % _VARIANTS])
                elif b"/api/v1/events" in request:
                    self._transport.write(_EVENTS)
                    self._tick()
                else:
                    self._transport.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

        def _tick(self) -> None:
            if not self._transport.is_closing():
                self._transport.write(b"%x\r\n%b\r\n" % (len(_TICK), _TICK))
                asyncio.get_running_loop().call_later(1.0, self._tick)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        for node in range(count):
            await loop.create_server(lambda own=answers[node]: Node(own), address(node), port)
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(serve())


def measure(program: Program, url: str, seconds: float, interval: float) -> tuple[float, float, int]:
    """Share of one core, peak memory in MiB, and GPUs of the last answer."""
    process = psutil.Process(program.process.pid)
    revisions, tags = [""] * _PAGES, [""] * _PAGES
    time.sleep(2 * interval)
    began, used, peak, gpus = time.monotonic(), sum(process.cpu_times()[:2]), 0, 0
    while time.monotonic() < began + seconds:
        for page in range(_PAGES):
            headers = {"If-None-Match": tags[page]} if tags[page] else {}
            answer = get(f"{url}/api/v1/fleet?since={revisions[page]}", headers=headers)
            if answer.status_code == 200:
                revisions[page], tags[page] = answer.json()["revision"], answer.headers["etag"]
        gpus = sum(len(node["gpus"]) for node in get(f"{url}/api/v1/fleet").json()["nodes"])
        peak = max(peak, process.memory_info().rss)
        time.sleep(interval)
    spent = sum(process.cpu_times()[:2]) - used
    return spent / (time.monotonic() - began), peak / MIB, gpus


def main() -> None:
    """Run the benchmark and print its table."""
    parser = create_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--interval", type=float, default=5.0)
    given = parser.parse_args()
    port, ready = free_port(), Event()
    nodes = Process(target=serve_nodes, args=(given.nodes, port, ready), daemon=True)
    nodes.start()
    ready.wait()
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "nodes")
        listed.write_text("\n".join(f"{address(node)}:{port}" for node in range(given.nodes)))
        flags = ("--listen-address", "127.0.0.1:0", "--interval", f"{given.interval}s")
        program = Program([*MODULE, "fleet", "--nodes-file", str(listed), *flags])
        try:
            own = program.wait_line(r"listening on 127\.0\.0\.1 port (\d+)")[1]
            share, peak, gpus = measure(program, f"http://127.0.0.1:{own}", given.seconds, given.interval)
        finally:
            program.stop()
            nodes.terminate()
    print_table([f"{peak:.0f} MiB and {100 * share:.0f} % of one core ({gpus:,} GPUs)"], given.write, MARKS)


if __name__ == "__main__":
    main()

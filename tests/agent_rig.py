"""`gpuledger agent` between targets that count and a receiver that remembers: what of the told arrives."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from string import ascii_letters

import httpx
import yaml

from running import Program
from scripted_target import Answer
from write_helpers import Deed, Post, ScriptedReceiver, until
from write_request import series_of, unpacked

TARGETS = ("/0", "/1", "/2", "/3")
OURS = (sys.executable, "-m", "gpuledger", "agent")


class Counting:
    """Targets that tell how often they were asked, with a label that compresses badly."""

    def __init__(self, padding: int = 0) -> None:
        self.told: Counter[str] = Counter()
        self._noise = "".join(Random(padding).choices(ascii_letters, k=padding))

    def answer(self, path: str) -> Answer:
        self.told[path] += 1
        return Answer(f'm{{noise="{self._noise}",path="{path}"}} {self.told[path]}\n')


@dataclass
class Receiver(ScriptedReceiver):
    """Keeps what it took: path and value."""

    well: bool = True
    arrived: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.script = self.take

    def take(self, post: Post) -> str | Deed:
        if not self.well:
            return "500 Internal Server Error"
        for labels, ((value, _),) in series_of(unpacked(post.body)):
            (number,) = struct.unpack("<d", value)
            # What ends is told by a NaN.
            if number == number:
                self.arrived.append((dict(labels)["path"], int(number)))
        return _taken


async def _taken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    await writer.drain()


class Agents:
    """One after the other on the same queue, begun by `program`. `disk` are bounds of the queue.

    `in_flight` is what the targets had told last at each end of an agent, `failed` how many answers came too
    late for one: neither was accepted.
    """

    def __init__(
        self,
        folder: Path,
        targets_port: int,
        url: str,
        program: Sequence[str] = OURS,
        env: Mapping[str, str] | None = None,
        disk: Mapping[str, str] | None = None,
        interval: str = "100ms",
    ) -> None:
        endpoints = [{"address": f"127.0.0.1:{targets_port}", "path": path} for path in TARGETS]
        target = {"targetName": "t", "type": "StaticEndpoints", "endpoints": endpoints}
        receiver = {
            "url": url,
            "name": "one",
            "queue_config": {"batch_send_deadline": "50ms", "max_backoff": "100ms"},
            "queue": dict(disk or {}),
            "write_relabel_configs": [{"source_labels": ["__name__"], "regex": "m", "action": "keep"}],
        }
        self.file = folder / "agent.yaml"
        self.file.write_text(
            yaml.safe_dump(
                {
                    "features": {"openAgent": {"globalInterval": interval, "targets": [target]}},
                    "remote_write": [receiver],
                }
            )
        )
        self.queue = folder / "queue"
        self.in_flight: set[tuple[str, int]] = set()
        self.failed = 0.0
        self._flags = (
            *("--config", str(self.file), "--queue-directory", str(self.queue)),
            *("--listen-address", "127.0.0.1:0", "--look-interval", "50ms"),
        )
        self._env = env
        self.start(program)

    def start(self, program: Sequence[str]) -> None:
        """The first, or the next one."""
        self._begun_by = program
        self.program = Program([*program, *self._flags], self._env)
        self._client: httpx.Client | None = None

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels, over one connection that stays open."""
        if self._client is None:
            port = self.program.wait_line(r"listening on \S+ port (\d+)")[1]
            self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20)
        lines = self._client.get("/metrics").text.splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"gpuledger_agent_{name}{{") and all(one in line for one in wanted)
        ]
        assert found, f"{name} is not told"
        return sum(found)

    def stop(self) -> int:
        """Have it end."""
        if self.program.process.poll() is None:
            self.failed += self.metric("scrape_failures_total", reason="request")
        if self._client is not None:
            self._client.close()
            self._client = None
        return self.program.stop()

    def kill(self, targets: Counting) -> None:
        """Have it end at once, and the next one begin."""
        self.failed += self.metric("scrape_failures_total", reason="request")
        self.program.process.kill()
        self.program.process.wait()
        self.stop()
        self.start(self._begun_by)
        # It has not begun to scrape.
        self.in_flight |= set(targets.told.items())


async def asked(targets: Counting, times: int) -> None:
    before = targets.told.copy()
    await until(
        lambda: all(targets.told[path] >= before[path] + times for path in TARGETS), f"{times} scrapes"
    )


def missing(targets: Counting, receiver: Receiver) -> set[tuple[str, int]]:
    told = {(path, number) for path in TARGETS for number in range(1, targets.told[path] + 1)}
    return told - set(receiver.arrived)


def goes_back(arrived: Sequence[tuple[str, int]]) -> int:
    """How often a target's samples went back in time."""
    last: dict[str, int] = {}
    found = 0
    for path, number in arrived:
        found += number < last.get(path, 0)
        last[path] = number
    return found


def fill(file: Path) -> None:
    """Take what is left of the disk."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while True:
            os.write(handle, bytes(512))
    os.close(handle)


async def eventually(condition: Callable[[], bool]) -> None:
    """The like of `until` for what is asked over HTTP."""
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)

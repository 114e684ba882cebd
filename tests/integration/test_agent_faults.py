"""`gpuledger agent` as a program under faults: what it accepted arrives, in order."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import yaml

from running import Program, free_port
from scripted_target import Answer, scripted
from write_helpers import Deed, Post, ScriptedReceiver, receiving, until
from write_request import series_of, unpacked

TARGETS = ("/0", "/1", "/2", "/3")
# Ten minutes, were it every 15 s.
TEN_MINUTES = 40


class Counting:
    """Targets that tell how often they were asked."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()

    def answer(self, path: str) -> Answer:
        self.told[path] += 1
        return Answer(f'm{{path="{path}"}} {self.told[path]}\n')


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
    """One after the other on the same queue. `in_flight` is what the targets had told last at each kill."""

    def __init__(self, folder: Path, targets_port: int, url: str, before: Sequence[str] = ()) -> None:
        endpoints = [{"address": f"127.0.0.1:{targets_port}", "path": path} for path in TARGETS]
        target = {"targetName": "t", "type": "StaticEndpoints", "endpoints": endpoints}
        keep = {"source_labels": ["__name__"], "regex": "m", "action": "keep"}
        queue = {"batch_send_deadline": "50ms", "max_backoff": "100ms"}
        file = folder / "agent.yaml"
        file.write_text(
            yaml.safe_dump(
                {
                    "features": {"openAgent": {"globalInterval": "100ms", "targets": [target]}},
                    "remote_write": [
                        {"url": url, "queue_config": queue, "write_relabel_configs": [keep]},
                    ],
                }
            )
        )
        self.queue = folder / "queue"
        self._command = [
            *before,
            *(sys.executable, "-m", "gpuledger", "agent", "--config", str(file)),
            *("--queue-directory", str(self.queue), "--listen-address", "127.0.0.1:0"),
        ]
        self.program = Program(self._command)
        self.in_flight: set[tuple[str, int]] = set()

    def metric(self, name: str) -> float:
        port = self.program.wait_line(r"listening on \S+ port (\d+)")[1]
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=20).text
        (line,) = [line for line in text.splitlines() if line.startswith(f"gpuledger_agent_{name}{{")]
        return float(line.rpartition(" ")[2])

    def kill(self, targets: Counting) -> None:
        self.program.process.kill()
        self.program.stop()
        self.program = Program(self._command)
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


def report(what: str, targets: Counting, receiver: Receiver, lost: set[tuple[str, int]]) -> None:
    print(  # noqa: T201  (the figure is what the issue asks for)
        f"{what}: {targets.told.total()} samples told, {len(set(receiver.arrived))} arrived, {len(lost)} not"
    )


def test_a_receiver_that_is_down_or_fails_and_kill_dash_nine_lose_nothing_accepted(tmp_path: Path) -> None:
    targets, receiver = Counting(), Receiver(port=free_port())

    async def run(agents: Agents) -> None:
        await asked(targets, TEN_MINUTES)
        agents.kill(targets)
        await asked(targets, 5)
        async with receiving(receiver):
            await until(lambda: len(receiver.arrived) > TEN_MINUTES, "the queue to be worked off")
            receiver.well = False
            await asked(targets, 5)
            agents.kill(targets)
            await asked(targets, 5)
            receiver.well = True
            agents.kill(targets)
            await asked(targets, 5)
            await asyncio.to_thread(agents.program.stop)

    with scripted(targets.answer) as target:
        agents = Agents(tmp_path, target.port, receiver.url)
        try:
            asyncio.run(run(agents))
        finally:
            agents.program.stop()
    lost = missing(targets, receiver) - set(targets.told.items())
    report("receiver down, failing, three kill -9", targets, receiver, lost)
    assert lost <= agents.in_flight
    # What was on its way at a kill is sent again, from its beginning.
    assert goes_back(receiver.arrived) <= 3 * len(TARGETS)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_loses_nothing_that_memory_holds(tmp_path: Path) -> None:
    targets, receiver = Counting(), Receiver(port=free_port())
    (tmp_path / "queue").mkdir()
    mount = f'mount -t tmpfs -o size=1m tmpfs "{tmp_path}/queue" && exec "$@"'

    async def run(agents: Agents) -> None:
        await asked(targets, 5)
        # The same folder in the agent's own mounts.
        ballast = Path(f"/proc/{agents.program.process.pid}/root{agents.queue}/ballast")
        fill(ballast)
        await asked(targets, TEN_MINUTES)
        await eventually(lambda: agents.metric("queue_memory_bytes") > 0)
        ballast.unlink()
        await eventually(lambda: agents.metric("queue_memory_bytes") == 0)
        async with receiving(receiver):
            await until(lambda: len(receiver.arrived) > TEN_MINUTES, "the queue to be worked off")
            await asyncio.to_thread(agents.program.stop)

    with scripted(targets.answer) as target:
        agents = Agents(tmp_path, target.port, receiver.url, ("unshare", "--mount", "sh", "-c", mount, "sh"))
        try:
            asyncio.run(run(agents))
        finally:
            agents.program.stop()
    lost = missing(targets, receiver) - set(targets.told.items())
    report("disk full", targets, receiver, lost)
    assert lost == set()
    assert goes_back(receiver.arrived) == 0


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

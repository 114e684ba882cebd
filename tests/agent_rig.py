"""Test rig: `gpuledger agent` between counting targets and a recording receiver, to find lost samples."""

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

from running import PATIENCE, Program
from scripted_target import Answer, Target
from write_helpers import Action, Post, ScriptedReceiver, until
from write_request import series_of, unpacked

TARGETS = ("/0", "/1", "/2", "/3")
OURS = (sys.executable, "-m", "gpuledger", "agent")


class CountingTargets:
    """Targets that export how often each was scraped, with an incompressible label of `padding` bytes."""

    def __init__(self, padding: int = 0) -> None:
        self.exported: Counter[str] = Counter()
        self._noise = "".join(Random(padding).choices(ascii_letters, k=padding))

    def answer(self, path: str) -> Answer:
        self.exported[path] += 1
        return Answer(f'm{{noise="{self._noise}",path="{path}"}} {self.exported[path]}\n')


@dataclass
class RecordingReceiver(ScriptedReceiver):
    """Records path and value of each accepted sample; while not `healthy` it returns status 500."""

    healthy: bool = True
    arrived: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.script = self.respond

    def respond(self, post: Post) -> str | Action:
        if not self.healthy:
            return "500 Internal Server Error"
        for labels, ((value, _),) in series_of(unpacked(post.body)):
            (number,) = struct.unpack("<d", value)
            # Staleness markers are NaN.
            if number == number:
                self.arrived.append((dict(labels)["path"], int(number)))
        return _accept


async def _accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    await writer.drain()


class Agents:
    """Successive agent processes on the same queue, started with `program`. Without a `target` nothing
    responds; `disk`: limits of the queue; `prepared`: see prepared.py.

    Samples that an agent may not have accepted: `in_flight`, the targets' last samples at each end of an
    agent, and `failed`, the number of responses that came after the scrape timeout.
    """

    def __init__(
        self,
        folder: Path,
        target: Target | None,
        url: str,
        program: Sequence[str] = OURS,
        env: Mapping[str, str] | None = None,
        disk: Mapping[str, str] | None = None,
        interval: str = "100ms",
        *,
        prepared: bool = False,
    ) -> None:
        self._target = target
        address = f"127.0.0.1:{target.port if target else 1}"
        endpoints = [{"address": address, "path": path} for path in TARGETS]
        job = {"targetName": "t", "type": "StaticEndpoints", "endpoints": endpoints}
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
                    "features": {"openAgent": {"globalInterval": interval, "targets": [job]}},
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
        self._prepared = prepared
        self.start(program)

    def start(self, program: Sequence[str]) -> None:
        """Start the first or next agent."""
        self._start_command = program
        self.program = Program([*program, *self._flags], self._env, prepared=self._prepared)
        self._client: httpx.Client | None = None

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's series with these labels. Uses one keep-alive connection."""
        if self._client is None:
            port = self.program.wait_line(r"listening on \S+ port (\d+)")[1]
            self._client = httpx.Client(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE
            )
        lines = self._client.get("/metrics").text.splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"gpuledger_agent_{name}{{") and all(one in line for one in wanted)
        ]
        assert found, f"{name} is not exported"
        return sum(found)

    def stop(self) -> int:
        """Stop the agent and return its exit code."""
        if self.program.process.poll() is None:
            self.failed += self.metric("scrape_failures_total", reason="request")
        if self._client is not None:
            self._client.close()
            self._client = None
        return self.program.stop()

    def kill(self, targets: CountingTargets) -> None:
        """Kill the agent with SIGKILL and start the next one."""
        self.failed += self.metric("scrape_failures_total", reason="request")
        self.program.process.kill()
        self.program.process.wait()
        self.stop()
        self.add_in_flight(targets)
        self.start(self._start_command)

    def add_in_flight(self, targets: CountingTargets) -> None:
        """Add the last samples after the end of an agent: the target can answer its last requests later."""
        if self._target is not None:
            self._target.wait_until_idle()
        self.in_flight |= set(targets.exported.items())


async def wait_for_scrapes(targets: CountingTargets, times: int) -> None:
    before = targets.exported.copy()
    await until(
        lambda: all(targets.exported[path] >= before[path] + times for path in TARGETS), f"{times} scrapes"
    )


def missing(targets: CountingTargets, receiver: RecordingReceiver) -> set[tuple[str, int]]:
    exported = {(path, number) for path in TARGETS for number in range(1, targets.exported[path] + 1)}
    return exported - set(receiver.arrived)


def count_reorderings(arrived: Sequence[tuple[str, int]]) -> int:
    """Return how often a target's samples went back in time.

    A sample that arrives again does not count: a batch is sent again if its answer was not read, as at the
    end of an agent, or if it came too late, as on a busy machine.
    """
    last: dict[str, int] = {}
    found = 0
    for path, number in dict.fromkeys(arrived):
        found += number < last.get(path, 0)
        last[path] = number
    return found


def fill_disk(file: Path) -> None:
    """Fill the remaining disk space with this file."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while True:
            os.write(handle, bytes(512))
    os.close(handle)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a blocking condition, such as one that is queried over HTTP."""
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)

"""Blocks, queues and receivers for tests of remote write."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_letters
from typing import Any

from gpuledger.agent.deliver.receivers import Receivers
from gpuledger.agent.deliver.records import Block
from gpuledger.agent.deliver.settings import DiskQueue, QueueConfig, ReceiverSettings
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.exposition.remote_write import labels_bytes, series_bytes, value_bytes
from running import PATIENCE
from write_request import series_of, unpacked

NOW = 1_795_000_000.0
# A request at once, and as good as no wait between two tries.
EAGER = QueueConfig(batch_send_deadline=0.0, min_backoff=0.001, max_backoff=0.01, max_samples_per_send=100)


class HandClock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def unix(self) -> float:
        return NOW + self.now

    def elapsed(self) -> float:
        return self.now


def block(target: int, number: int, samples: int = 1, padding: int = 0) -> Block:
    """Samples of one target, of value and millisecond `number`; `padding` bytes that compress badly."""
    moment = int(NOW * 1000) + number
    noise = "".join(random.Random(number).choices(ascii_letters, k=padding))
    names = [("__name__", "m"), ("noise", noise), ("target", str(target))]
    payload = b"".join(
        series_bytes(labels_bytes([*names, ("series", str(each))]), value_bytes(number), moment)
        for each in range(samples)
    )
    return Block(target, payload, samples, moment, moment)


def told(payload: bytes) -> list[tuple[int, int]]:
    """Target and number of each sample of a payload."""
    found = []
    for labels, samples in series_of(payload):
        names = dict(labels)
        found += [(int(names["target"]), moment - int(NOW * 1000)) for _, moment in samples]
    return found


@dataclass
class Post:
    """One request as it came."""

    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def samples(self) -> list[tuple[int, int]]:
        return told(unpacked(self.body))


# What a scripted receiver does with a request: a status line with headers, or a deed of its own.
Deed = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Script = Callable[[Post], "str | Deed"]


@dataclass
class ScriptedReceiver:
    """Answers what its script says, and remembers what it took: bodies that were answered with 2xx."""

    script: Script = lambda post: "204 No Content"
    posts: list[Post] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    scheme: str = "http"
    body: str = ""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/api/v1/write"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = [line.partition(": ") for line in head.split("\r\n")[:-2]]
                headers = {name.lower(): value for name, _, value in lines[1:]} | {
                    "": head.partition("\r\n")[0]
                }
                body = await reader.readexactly(int(headers["content-length"]))
                post = Post(headers, body, number)
                self.posts.append(post)
                deed = self.script(post)
                if not isinstance(deed, str):
                    await deed(reader, writer)
                    continue
                if deed.startswith("2"):
                    self.taken += post.samples
                status, *more = deed.split("\n")
                length = "" if status.startswith("204") else f"Content-Length: {len(self.body)}\r\n"
                extra = "".join(f"{line}\r\n" for line in more)
                text = self.body if length else ""
                writer.write(f"HTTP/1.1 {status}\r\n{extra}{length}\r\n{text}".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except RuntimeError:
            # A script has closed our half: nothing is answered.
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(
    receiver: ScriptedReceiver, context: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedReceiver]:
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", receiver.port, ssl=context)
    receiver.scheme = "https" if context else "http"
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


async def until(condition: Callable[[], object], what: str) -> None:
    """Let the loop run until the condition is true."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE} s in vain for {what}") from None


def settings(url: str, name: str = "one", queue: DiskQueue | None = None, **more: object) -> ReceiverSettings:
    config = more.pop("queue_config", EAGER)
    return ReceiverSettings(
        name=name,
        url=url,
        queue=queue or DiskQueue(),
        queue_config=config,
        **more,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def sending(directory: Path, *to: ReceiverSettings, clock: object = None) -> AsyncIterator[Receivers]:
    """Receivers that are stopped at the end without sending more."""
    from gpuledger.host.clock import SystemClock

    receivers = Receivers(to, directory, clock or SystemClock())  # type: ignore[arg-type]
    receivers.start()
    try:
        yield receivers
    finally:
        await receivers.stop(0)


def in_order(taken: list[tuple[int, int]]) -> bool:
    """Whether no target's samples went back in time, but for whole repetitions."""
    last: dict[int, int] = {}
    for target, number in taken:
        if number < last.get(target, -1):
            return False
        last[target] = number
    return True


def lines_of(text: str) -> list[str]:
    return [line for line in re.split(r"\r?\n", text) if line]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A test in an event loop of its own."""
    asyncio.run(test())


def one(receivers: Receivers) -> ReceiverState:
    (state,) = receivers.state()
    return state


async def emptied(receivers: Receivers) -> None:
    await until(lambda: not sum(state.queued_blocks for state in receivers.state()), "the queue to be empty")


def everything(targets: int, numbers: int) -> list[tuple[int, int]]:
    return [(target, number) for target in range(targets) for number in range(numbers)]


def feed(receivers: Receivers, targets: int, numbers: range) -> None:
    for number in numbers:
        for target in range(targets):
            receivers.accept(block(target, number))

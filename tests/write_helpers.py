"""Helpers for remote-write tests: blocks, clocks and scripted receivers."""

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
from gpuledger.agent.deliver.settings import DiskQueueLimits, QueueConfig, ReceiverSettings
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.exposition.remote_write import encode_label_fields, encode_series, encode_value
from running import PATIENCE
from write_request import series_of, series_of_version_2, unpacked

NOW = 1_795_000_000.0
# Sends at once, with almost no backoff.
EAGER = QueueConfig(batch_send_deadline=0.0, min_backoff=0.001, max_backoff=0.01, max_samples_per_send=100)


class HandClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def unix(self) -> float:
        return NOW + self.now

    def elapsed(self) -> float:
        return self.now


def block(target: int, number: int, samples: int = 1, padding: int = 0) -> Block:
    """A block of one target with value and timestamp `number` (ms); `padding` is incompressible bytes."""
    moment = int(NOW * 1000) + number
    noise = "".join(random.Random(number).choices(ascii_letters, k=padding))
    names = [("__name__", "m"), ("noise", noise), ("target", str(target))]
    payload = b"".join(
        encode_series(encode_label_fields([*names, ("series", str(each))]), encode_value(number), moment)
        for each in range(samples)
    )
    return Block(target, payload, samples, moment, moment)


def samples_in(payload: bytes, version: str = "1.0") -> list[tuple[int, int]]:
    """Return target and number of each sample of a payload."""
    found = []
    series = [one for one, _ in series_of_version_2(payload)] if version == "2.0" else series_of(payload)
    for labels, samples in series:
        names = dict(labels)
        found += [(int(names["target"]), moment - int(NOW * 1000)) for _, moment in samples]
    return found


@dataclass
class Post:
    """One received request."""

    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def version(self) -> str:
        """The version of remote write, by the headers."""
        headers = self.headers["content-type"], self.headers["x-prometheus-remote-write-version"]
        return {
            ("application/x-protobuf", "0.1.0"): "1.0",
            ("application/x-protobuf;proto=io.prometheus.write.v2.Request", "2.0.0"): "2.0",
        }[headers]

    @property
    def samples(self) -> list[tuple[int, int]]:
        return samples_in(unpacked(self.body), self.version)


# Reaction of a scripted receiver to a request: a status line with headers, or a coroutine function.
Action = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Script = Callable[[Post], "str | Action"]


@dataclass
class ScriptedReceiver:
    """Responds as its script says. `received` holds the samples of requests with a 2xx response."""

    script: Script = lambda post: "204 No Content"
    posts: list[Post] = field(default_factory=list)
    received: list[tuple[int, int]] = field(default_factory=list)
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
                action = self.script(post)
                if not isinstance(action, str):
                    await action(reader, writer)
                    continue
                if action.startswith("2"):
                    self.received += post.samples
                status, *more = action.split("\n")
                length = "" if status.startswith("204") else f"Content-Length: {len(self.body)}\r\n"
                extra = "".join(f"{line}\r\n" for line in more)
                text = self.body if length else ""
                writer.write(f"HTTP/1.1 {status}\r\n{extra}{length}\r\n{text}".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except RuntimeError:
            # The script closed our half: no response.
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
    """Run the event loop until the condition is true."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"timed out after {PATIENCE} s waiting for {what}") from None


def settings(
    url: str, name: str = "one", queue: DiskQueueLimits | None = None, **more: object
) -> ReceiverSettings:
    config = more.pop("queue_config", EAGER)
    return ReceiverSettings(
        name=name,
        url=url,
        queue=queue or DiskQueueLimits(),
        queue_config=config,
        **more,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def sending(directory: Path, *to: ReceiverSettings, clock: object = None) -> AsyncIterator[Receivers]:
    """Started receivers, stopped at the end without draining."""
    from gpuledger.host.clock import SystemClock

    receivers = Receivers(to, directory, clock or SystemClock())  # type: ignore[arg-type]
    receivers.start()
    try:
        yield receivers
    finally:
        await receivers.stop(0)


def in_order(received: list[tuple[int, int]]) -> bool:
    """Return whether no target's samples went back in time."""
    last: dict[int, int] = {}
    for target, number in received:
        if number < last.get(target, -1):
            return False
        last[target] = number
    return True


def lines_of(text: str) -> list[str]:
    return [line for line in re.split(r"\r?\n", text) if line]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in a new event loop."""
    asyncio.run(test())


def only_state(receivers: Receivers) -> ReceiverState:
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

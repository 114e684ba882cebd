"""Events of a node: a session that begins or ends hurries the next reading; nothing else does."""

from __future__ import annotations

import asyncio

import pytest

from gpuledger.fleet.node_address import NodeAddress
from gpuledger.fleet.node_client import NodeClient, NodeRequestFailed
from gpuledger.fleet.node_events import follow_sessions
from unit.fleet.test_node_client import OPEN, Speak, _with_server, response, sends

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TICK = b'id: 7\nevent: tick\ndata: {"tick": 7}\n\n'
SESSION = b'event: session\ndata: {"opened": 1, "closed": 0}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def follow(speak: Speak) -> tuple[int, NodeRequestFailed]:
    """How often sessions were seen, and why the stream ended."""
    seen: list[None] = []

    async def use(address: NodeAddress) -> NodeRequestFailed:
        with pytest.raises(NodeRequestFailed) as ended:
            await follow_sessions(NodeClient(address, OPEN, 5.0), lambda: seen.append(None))
        return ended.value

    ended = asyncio.run(_with_server(speak, use))
    return len(seen), ended


def test_only_sessions_count_however_the_stream_is_cut() -> None:
    stream = b"retry: 2000\n\n" + TICK + SESSION + b": still here\n\n" + TICK + SESSION
    for size in (1, 7, len(stream)):
        pieces = [chunk(stream[at : at + size]) for at in range(0, len(stream), size)]
        seen, ended = follow(sends(HEAD, *pieces, b"0\r\n\r\n"))
        # Events that arrive together count once.
        assert 1 <= seen <= 2, size
        assert ended.kind == "ended"
    assert follow(sends(HEAD, chunk(TICK * 50), b"0\r\n\r\n"))[0] == 0


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (response(b"", "404 Not Found"), "old"),
        (response(b"", "401 Unauthorized"), "login"),
        (response(b"", "503 Busy"), "refused"),
        (HEAD, "ended"),
        (b"SSH-2.0\r\n\r\n", "broken"),
    ],
)
def test_a_node_without_events_is_no_problem_of_its_readings(sent: bytes, kind: str) -> None:
    assert follow(sends(sent))[1].kind == kind


def test_an_event_without_an_end_is_bounded() -> None:
    assert follow(sends(HEAD, forever=chunk(b"x" * 8192)))[1].kind == "ended"


def test_a_node_that_is_gone_has_no_events() -> None:
    async def use() -> None:
        client = NodeClient(NodeAddress("http", "127.0.0.1", 1), OPEN, 5.0)
        await follow_sessions(client, lambda: None)

    with pytest.raises(NodeRequestFailed):
        asyncio.run(use())

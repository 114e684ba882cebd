"""Follows the events of a node: a session that begins or ends is seen at once, not with the next reading.

A node without events is read as usual.
"""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from collections.abc import Callable
from time import monotonic
from typing import Final

from gpuledger.fleet.node_client import NodeClient, NodeRequestFailed, describe_refusal
from gpuledger.http.client_messages import HttpRequestFailed, ResponseParser

EVENTS: Final = "/api/v1/events"
# Seconds: to connect, to be answered, and without a whole event or comment, of which a node sends one at
# least every 15 s. A node that drips bytes sends none.
_ANSWER: Final = 10.0
_SILENCE: Final = 60.0
# Seconds between two reads: a node that sends events without pause must not occupy the fleet.
_PAUSE: Final = 0.05
# Bytes of one event.
_LONGEST: Final = 64 * 1024
_SESSION: Final = b"event: session"

# By default, asyncio keeps 256 KiB for each encrypted connection. Events are shorter than one record of TLS.
sslproto.SSLProtocol.max_size = 16 * 1024


async def follow_sessions(client: NodeClient, changed: Callable[[], None]) -> None:
    """Call `changed` for each event of sessions, until the stream ends. Always raises NodeRequestFailed."""
    try:
        async with asyncio.timeout(_ANSWER):
            reader, writer = await client.open_stream(_LONGEST)
    except (OSError, UnicodeError) as error:
        raise NodeRequestFailed(f"no events: {error}", "connect") from None
    try:
        writer.write(client.encode_request(EVENTS, {"Accept": "text/event-stream"}))
        await _follow(reader, changed)
    finally:
        writer.close()


async def _follow(reader: asyncio.StreamReader, changed: Callable[[], None]) -> None:
    parser, pending = ResponseParser(), b""
    until = monotonic() + _ANSWER
    while True:
        try:
            if (left := until - monotonic()) <= 0:
                # Bytes that have arrived are read before `timeout` can expire.
                raise TimeoutError
            async with asyncio.timeout(left):
                data = await reader.read(_LONGEST)
            if not data:
                raise NodeRequestFailed("the stream of events ended", "ended")
            is_over = parser.feed(data)
        except TimeoutError:
            raise NodeRequestFailed("no events: the node did not send one in time", "broken") from None
        except (OSError, HttpRequestFailed) as error:
            raise NodeRequestFailed(f"no events: {error}", "broken") from None
        if parser.response is None:
            continue
        if parser.response.status != 200:
            raise NodeRequestFailed(*describe_refusal(parser.response))
        *events, pending = (pending + parser.take_body()).split(b"\n\n")
        if events:
            until = monotonic() + _SILENCE
        if any(event.startswith(_SESSION) for event in events):
            changed()
        if is_over or len(pending) > _LONGEST:
            raise NodeRequestFailed("the stream of events ended", "ended")
        await asyncio.sleep(_PAUSE)

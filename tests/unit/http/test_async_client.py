"""The asynchronous HTTP client: reuse of connections, retries, TLS, and one-line errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from certificates import Certificates
from gpuledger.http.async_client import HttpClient, HttpClientConnection
from gpuledger.http.client_messages import (
    HttpRequestFailed,
    HttpResponse,
    encode_request,
    request_target,
)
from running import PATIENCE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = encode_request("GET", "/", [("Host", "h")])
DROP = b""


class ScriptedServer:
    """A server with one response per request; an empty one closes the connection."""

    def __init__(self, responses: list[bytes]) -> None:
        self._responses = responses
        self.connections = 0
        self.bodies: list[bytes] = []
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
                self.bodies.append(await reader.readexactly(int(length or 0)))
                response = self._responses.pop(0)
                if response == DROP:
                    break
                writer.write(response)
        except (asyncio.IncompleteReadError, OSError):
            pass
        writer.transport.abort()


@asynccontextmanager
async def serving(
    responses: list[bytes], context: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(responses)
    server = await asyncio.start_server(scripted.serve_connection, "127.0.0.1", 0, ssl=context)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()
        await asyncio.gather(*scripted.tasks)
        await asyncio.sleep(0)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


def test_parallel_requests_use_a_connection_each_and_later_ones_reuse_them() -> None:
    async def test() -> None:
        async with serving([OK] * 6) as server:
            client = HttpClient("127.0.0.1", server.port)
            for _ in range(2):
                found = await asyncio.gather(*(client.exchange(GET) for _ in range(3)))
                assert [response.body for response in found] == [b"ok"] * 3
            assert server.connections == 3
            client.close()

    run(test)


def test_a_reused_connection_that_the_server_drops_is_replaced_only_if_a_retry_is_allowed() -> None:
    async def test() -> None:
        async with serving([OK, DROP, OK, DROP]) as server:
            client = HttpClient("127.0.0.1", server.port)
            assert (await client.exchange(GET)).body == b"ok"
            assert (await client.exchange(GET)).body == b"ok"
            assert (server.connections, len(server.bodies)) == (2, 3)
            with pytest.raises(HttpRequestFailed, match="closed the connection without a response"):
                await client.exchange(GET, retry=False)
            assert len(server.bodies) == 4
            client.close()

    run(test)


def test_a_request_on_a_new_connection_is_not_repeated() -> None:
    async def test() -> None:
        async with serving([DROP, OK]) as server:
            with pytest.raises(HttpRequestFailed, match="without a response"):
                await HttpClient("127.0.0.1", server.port).exchange(GET)
            assert len(server.bodies) == 1

    run(test)


def test_a_connection_that_was_idle_too_long_is_not_reused() -> None:
    async def test() -> None:
        async with serving([OK, OK]) as server:
            client = HttpClient("127.0.0.1", server.port, max_idle=0.0)
            await client.exchange(GET)
            await client.exchange(GET)
            assert server.connections == 2
            client.close()

    run(test)


def test_a_closed_client_keeps_no_connection_of_a_request_in_progress() -> None:
    async def test() -> None:
        async with serving([OK, OK]) as server:
            client = HttpClient("127.0.0.1", server.port)
            request = asyncio.create_task(client.exchange(GET))
            await asyncio.sleep(0)
            client.close()
            assert (await request).body == b"ok"
            await client.exchange(GET)
            assert server.connections == 2
            client.close()

    run(test)


def test_a_connection_is_closed_after_its_tls_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    send = HttpClientConnection.send_request

    async def send_and_end(
        connection: HttpClientConnection, request: bytes, limit: int, *, truncate: bool = False
    ) -> HttpResponse:
        response = await send(connection, request, limit, truncate=truncate)
        connection.usable = False
        return response

    monkeypatch.setattr(HttpClientConnection, "send_request", send_and_end)

    async def test() -> None:
        async with serving([OK]) as server:
            await HttpClient("127.0.0.1", server.port).exchange(GET)
            await asyncio.wait_for(asyncio.gather(*server.tasks), PATIENCE)

    run(test)


def test_a_large_request_is_sent_over_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
    context = certificates.client_context()
    body = bytes(range(256)) * 32768

    async def test() -> None:
        async with serving([OK, OK], server_context) as server:
            client = HttpClient("127.0.0.1", server.port, context)
            for _ in range(2):
                assert (await client.exchange(encode_request("POST", "/", [], body))).status == 200
            assert server.bodies == [body, body]
            assert server.connections == 1
            client.close()

    run(test)


def test_a_connection_that_is_not_accepted_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async def never(*_: object, **__: object) -> None:
            await asyncio.sleep(60)

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
        with pytest.raises(HttpRequestFailed, match="cannot connect: timed out") as caught:
            await HttpClient("127.0.0.1", 1, connect_timeout=0.01).exchange(GET)
        assert caught.value.kind == "connect"

    run(test)


def test_a_request_has_a_quoted_target_and_the_length_of_its_body() -> None:
    target = request_target(urlsplit("http://h/a b/%20\N{LATIN SMALL LETTER E WITH ACUTE}?q=a b&c=%41"))
    assert target == "/a%20b/%20%C3%A9?q=a%20b&c=%41"
    assert encode_request("GET", "/", [("Host", "h")]) == b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    assert encode_request("PUT", "/", [], b"ab") == b"PUT / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab"

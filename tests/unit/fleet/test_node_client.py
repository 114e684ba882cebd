"""Requests to real sockets: slow, huge, redirecting and refusing nodes, and where the login goes."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from certificates import Certificates
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.fleet.node_client import MOST_SENT, NodeClient, NodeCredentials, NodeRequestFailed
from gpuledger.fleet.node_download import open_download
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.http.routes import Response
from gpuledger.model.errors import UsageError
from running import PATIENCE

Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OPEN = NodeCredentials(ClientAccessSettings())


async def _with_server(speak: Speak, use: Callable[[NodeAddress], Awaitable[Any]]) -> Any:
    tasks = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with suppress(OSError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await speak(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(PATIENCE):
            return await use(NodeAddress("http", "127.0.0.1", server.sockets[0].getsockname()[1]))
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def request(speak: Speak, timeout: float = PATIENCE) -> Any:
    async def use(address: NodeAddress) -> Any:
        client = NodeClient(address, OPEN, timeout)
        try:
            return await client.request_json("/api/v1/snapshot")
        finally:
            client.close()

    return asyncio.run(_with_server(speak, use))


def sends(*parts: bytes, forever: bytes = b"") -> Speak:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
        while forever:
            writer.write(forever)
            await writer.drain()
            await asyncio.sleep(0)

    return speak


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def _silent(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(PATIENCE)


async def _dripping(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.001)


def test_an_answer_is_decoded() -> None:
    assert request(sends(response(b'{"a": 1}'))) == {"a": 1}


@pytest.mark.parametrize("speak", [_silent, _dripping])
def test_a_slow_answer_ends_at_the_time_limit_of_the_whole(speak: Speak) -> None:
    with pytest.raises(NodeRequestFailed, match=r"no complete answer within 0\.2 s") as failed:
        request(speak, 0.2)
    assert failed.value.kind == "slow"


@pytest.mark.parametrize(
    "speak",
    [
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MOST_SENT * 9), forever=b"x" * 65536),
        sends(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            forever=b"2000\r\n" + b"x" * 8192 + b"\r\n",
        ),
    ],
)
def test_a_huge_answer_is_bounded(speak: Speak) -> None:
    with pytest.raises(NodeRequestFailed, match="body size limit"):
        request(speak)


@pytest.mark.parametrize(
    ("sent", "kind", "text"),
    [
        (response(b"", "401 Unauthorized"), "login", "requires a login"),
        (
            response(b"", "302 Found", "Location: https://gw/x/api/v1/snapshot"),
            "redirect",
            "redirects to https://gw/x: list that",
        ),
        (response(b"", "404 Not Found"), "old", "older than this API"),
        (
            response(b'{"error": {"message": "web.page is landing"}}', "404 Not Found"),
            "old",
            "web.page is landing",
        ),
        (response(b"", "503 Busy"), "refused", "answered 503"),
        (response(b"<html>"), "foreign", "not JSON"),
        (response(b"\xff\xfe"), "foreign", "not JSON"),
        (response(b"[" * 100_000), "foreign", "not JSON"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "broken", "does not speak HTTP"),
        (response(b"x", "200 OK", "Content-Encoding: br"), "coding", "only gzip"),
    ],
)
def test_other_answers_say_why_and_what_to_do(sent: bytes, kind: str, text: str) -> None:
    with pytest.raises(NodeRequestFailed, match=text) as failed:
        request(sends(sent))
    assert failed.value.kind == kind


def test_the_login_of_a_url_wins_over_the_one_of_all_nodes(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("all\n")
    shared = NodeCredentials(ClientAccessSettings(user="fleet", password_file=str(tmp_path / "password")))
    logins = [
        dict(shared.login_header(NodeAddress("http", "a", 1, login=login)))["Authorization"]
        for login in ("", "ann:own")
    ]
    assert logins == ["Basic ZmxlZXQ6YWxs", "Basic YW5uOm93bg=="]


def test_changed_files_are_read_again_and_wrong_ones_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("old")
    shared = NodeCredentials(ClientAccessSettings(user="fleet", password_file=str(file)))
    where = NodeAddress("http", "a", 1)
    old = shared.login_header(where)
    file.unlink()
    shared.reload()
    assert (shared.login_header(where), shared.generation) == (old, 0)
    assert "--password-file" in shared.error
    file.write_text("newer")
    shared.reload()
    assert shared.login_header(where) != old
    assert (shared.generation, shared.error) == (1, "")


@pytest.mark.parametrize(
    "settings",
    [
        ClientAccessSettings(user="x"),
        ClientAccessSettings(password_file="/x"),
        ClientAccessSettings(ca_file="/not/there"),
        ClientAccessSettings(key_file="/x"),
    ],
)
def test_files_that_cannot_be_used_are_refused_at_the_start(settings: ClientAccessSettings) -> None:
    with pytest.raises(UsageError):
        NodeCredentials(settings)


def download(speak: Speak) -> tuple[Response, bytes]:
    """The response of the fleet, and all bytes of its stream."""

    async def use(address: NodeAddress) -> tuple[Response, bytes]:
        found = await open_download(NodeClient(address, OPEN, 5.0), "/api/v1/books?since=1")
        if found.stream is None:
            return found, found.body
        stream, woken, received = found.stream(), asyncio.Event(), bytearray()
        stream.begin(woken.set)
        try:
            while (piece := stream.take()) is not None:
                received += piece
                if not piece:
                    woken.clear()
                    await woken.wait()
        finally:
            stream.end()
        return found, bytes(received)

    return asyncio.run(_with_server(speak, use))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_answer_is_passed_through_unchanged(chunked: bool) -> None:
    content = os.urandom(300_000)
    sent = response(content, "200 OK", "Content-Type: application/gzip")
    if chunked:
        pieces = [content[at : at + 10_000] for at in range(0, len(content), 10_000)]
        sent = b"HTTP/1.1 200 OK\r\nContent-Type: application/gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        sent += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    found, received = download(sends(sent))
    assert (found.status, found.content_type, received) == (200, "application/gzip", content)


def test_an_answer_that_is_cut_off_ends_early_and_is_noticed_by_the_archive() -> None:
    found, received = download(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc"))
    assert (found.status, received) == (200, b"abc")


def test_the_error_of_a_node_is_the_error_of_the_fleet() -> None:
    words = b'{"error": {"code": "not_watched", "message": "nothing was watched"}}'
    found, body = download(sends(response(words, "404 Not Found")))
    error = json.loads(body)["error"]
    assert (found.status, error["code"]) == (502, "not_watched")
    assert "nothing was watched" in error["message"]


def test_a_node_that_is_gone_is_an_error_of_the_fleet() -> None:
    async def use() -> Response:
        return await open_download(NodeClient(NodeAddress("http", "127.0.0.1", 1), OPEN, 5.0), "/x")

    found = asyncio.run(use())
    error = json.loads(found.body)["error"]
    assert (found.status, error["code"]) == (502, "connect")
    assert error["message"] == "http://127.0.0.1:1: cannot connect: connection refused"


def test_a_node_with_tls_and_a_client_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
    context.load_verify_locations(certificates.crt("ca"))
    context.verify_mode = ssl.CERT_REQUIRED
    ca, own = str(certificates.crt("ca")), str(certificates.crt("client"))
    files = ClientAccessSettings(ca_file=ca, cert_file=own, key_file=str(certificates.key("client")))

    async def fetch(settings: ClientAccessSettings, port: int) -> Any:
        client = NodeClient(NodeAddress("https", "localhost", port), NodeCredentials(settings), PATIENCE)
        try:
            return await client.request_json("/")
        finally:
            client.close()

    async def run() -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(response(b"{}"))
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        try:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(NodeRequestFailed, match="cannot verify"):
                await fetch(ClientAccessSettings(), port)
            with pytest.raises(NodeRequestFailed):
                await fetch(ClientAccessSettings(ca_file=ca), port)
            return await fetch(files, port)
        finally:
            server.close()

    assert asyncio.run(run()) == {}

"""The operator's client of the API server over HTTP: what it sends, and its one-line errors."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.object_client import HttpApiTransport, ObjectClient, WriteUnreachable

Handler = Callable[[bytes], bytes]


def response(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def with_server(handler: Handler, test: Callable[[str], Coroutine[None, None, None]]) -> None:
    """Run a test with the URL of an API server."""

    tasks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
                writer.write(handler(head + await reader.readexactly(int(length or 0))))
        except (asyncio.IncompleteReadError, OSError):
            writer.transport.abort()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            await test(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prefix")
        finally:
            server.close()
            await asyncio.gather(*filter(None, tasks))
            await asyncio.sleep(0)

    asyncio.run(run())


def test_a_request_has_path_query_type_and_the_current_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    seen: list[str] = []

    def handler(request: bytes) -> bytes:
        seen.append(request.decode())
        return response(gzip.compress(b'{"a": 1}'), more="Content-Encoding: gzip\r\n")

    async def test(url: str) -> None:
        client = ObjectClient(HttpApiTransport(ApiServerAccess(url, token_file=token)))
        token.write_text("first")
        assert await client.apply("/apis/x/y", {"b": 2}, dry=True) == {"a": 1}
        token.write_text("second")
        assert await client.get("/api/v1/pods", labelSelector="a=b,c in (d)") == {"a": 1}
        await client.close()

    with_server(handler, test)
    assert seen[0].startswith(
        "PATCH /prefix/apis/x/y?fieldManager=gpuledger-operator&force=true&dryRun=All HTTP/1.1\r\nHost: 127."
    )
    assert "Content-Type: application/apply-patch+yaml\r\n" in seen[0]
    assert "Authorization: Bearer first\r\n" in seen[0]
    assert seen[0].endswith('\r\n\r\n{"b":2}')
    assert seen[1].startswith("GET /prefix/api/v1/pods?labelSelector=a%3Db%2Cc+in+%28d%29 HTTP/1.1\r\n")
    assert "Authorization: Bearer second\r\n" in seen[1]


def test_a_server_that_does_not_respond_in_time_is_a_one_line_error() -> None:
    async def test(url: str) -> None:
        client = ObjectClient(HttpApiTransport(ApiServerAccess(url), timeout=0.1))
        with pytest.raises(WriteUnreachable, match=r"no response \(TimeoutError\); retrying"):
            await client.get("/api")
        await client.close()

    with_server(lambda _: b"", test)


def test_an_unreachable_server_is_a_one_line_error() -> None:
    async def test() -> None:
        client = ObjectClient(HttpApiTransport(ApiServerAccess("http://127.0.0.1:1")))
        with pytest.raises(WriteUnreachable, match=r"no response \(cannot connect: connection refused\)"):
            await client.get("/api")

    asyncio.run(test())


WARNINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "none": ("", ()),
    "one": ('Warning: 299 - "v1 X is deprecated"\r\n', ("v1 X is deprecated",)),
    "several headers": ('Warning: 299 - "a"\r\nwarning: 299 - "b, c"\r\n', ("a", "b, c")),
    "several in one header": ('Warning: 299 - "a", 299 - "b"\r\n', ("a", "b")),
    "quotes": (
        'Warning: 299 - "would violate PodSecurity \\"baseline:latest\\": hostPID"\r\n',
        ('would violate PodSecurity "baseline:latest": hostPID',),
    ),
    "another code": ('Warning: 199 - "a"\r\n', ()),
    "nonsense": ('Warning: 299 - "a\r\n', ()),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_the_warnings_about_the_last_write_are_kept_by_path(case: str) -> None:
    header, expected = WARNINGS[case]

    async def run(url: str) -> None:
        api = ObjectClient(HttpApiTransport(ApiServerAccess(url)))
        api.warnings = {"/api/v1/a": ("earlier",), "/api/v1/b": ("other",)}
        await api.apply("/api/v1/a", {})
        assert api.warnings.get("/api/v1/a", ()) == expected
        assert api.warnings["/api/v1/b"] == ("other",)
        await api.close()

    with_server(lambda _: response(b"{}", more=header), run)


def test_a_read_or_a_dry_run_has_no_warnings() -> None:
    async def run(url: str) -> None:
        api = ObjectClient(HttpApiTransport(ApiServerAccess(url)))
        await api.get("/api/v1/a")
        await api.apply("/api/v1/a", {}, dry=True)
        assert api.warnings == {}
        await api.close()

    with_server(lambda _: response(b"{}", more='Warning: 299 - "a"\r\n'), run)

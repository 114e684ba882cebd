"""The server with well-behaved clients on real sockets."""

from __future__ import annotations

import asyncio
import gzip

import httpx
import pytest

from builders import FakeClock
from gpuledger.http.addresses import Address
from gpuledger.http.routes import Routes
from gpuledger.http.server import HttpServer
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.outputs.metrics_pages import MetricsPages
from running import PATIENCE
from unit.http.support import BIG, GET_HELLO, LOCAL, Client, FakeDialect, a_page, serve, some_routes, until


def test_one_connection_serves_one_request_after_the_other():
    async def scenario(server):
        async with Client(server) as client:
            answers = [await client.ask("/hello") for _ in range(3)]
            return [answer.body for answer in answers], server.connections

    assert serve(scenario) == ([b"hello\n"] * 3, 1)


def test_a_response_has_length_type_and_nosniff():
    async def scenario(server):
        async with Client(server) as client:
            return (await client.ask("/hello")).headers

    assert serve(scenario) == {
        "content-type": "text/plain; charset=utf-8",
        "content-length": "6",
        "x-content-type-options": "nosniff",
    }


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /hello HTTP/1.0\r\n\r\n",
    ],
)
def test_a_connection_without_keep_alive_is_closed_after_its_response(request_bytes):
    async def scenario(server):
        async with Client(server) as client:
            await client.send(request_bytes)
            answer = await client.answer()
            return answer.body, answer.headers["connection"], await client.closed()

    assert serve(scenario) == (b"hello\n", "close", b"")


def test_head_has_the_headers_of_get_and_no_body():
    async def scenario(server):
        async with Client(server) as client:
            head = await client.ask("/hello", method="HEAD")
            # The next bytes are the next response: HEAD had no body.
            get = await client.ask("/hello")
            return head, get

    head, get = serve(scenario)
    assert (head.status, head.headers, head.body) == (200, get.headers, b"")
    assert get.body == b"hello\n"


def test_pipelined_requests_are_answered_in_order():
    async def scenario(server):
        async with Client(server) as client:
            paths = [f"/echo?{n}" for n in range(200)]
            await client.send(b"".join(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode() for path in paths))
            return [(await client.answer()).body for _ in paths]

    assert serve(scenario) == [f"GET /echo {n}\n".encode() for n in range(200)]


def test_pipelined_requests_wait_for_a_large_response():
    async def scenario(server):
        async with Client(server) as client:
            await client.send(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n" + GET_HELLO)
            return await client.answer(), await client.answer()

    big, hello = serve(scenario)
    assert (big.body == BIG, hello.body) == (True, b"hello\n")


@pytest.mark.parametrize("path", ["/hello", "/big"])
def test_a_half_closed_client_still_gets_its_response(path):
    async def scenario(server):
        async with Client(server) as client:
            await client.send(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            client.writer.write_eof()
            answer = await client.answer()
            return len(answer.body), await client.closed()

    assert serve(scenario) == (len(BIG) if path == "/big" else 6, b"")


def test_a_request_may_arrive_byte_by_byte():
    async def scenario(server):
        async with Client(server) as client:
            for byte in GET_HELLO:
                await client.send(bytes([byte]))
                await asyncio.sleep(0)
            return (await client.answer()).status

    assert serve(scenario) == 200


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        ("/echo?a=1&b=%20", b"GET /echo a=1&b=%20\n"),
        ("/ech%6f", b"GET /echo \n"),
        ("http://host:9400/echo?x", b"GET /echo x\n"),
        ("/echo?", b"GET /echo \n"),
    ],
)
def test_the_target_is_split_into_path_and_query(target, seen):
    async def scenario(server):
        async with Client(server) as client:
            return (await client.ask(target)).body

    assert serve(scenario) == seen


def test_a_handler_that_raises_affects_only_its_own_response(caplog):
    async def scenario(server):
        async with Client(server) as client:
            return await client.ask("/broken"), await client.ask("/hello")

    broken, hello = serve(scenario)
    assert (broken.status, broken.body.count(b"\n"), hello.status) == (500, 1, 200)
    assert "a page has a bug" in caplog.text
    assert b"bug" not in broken.body


def test_fifty_concurrent_clients_get_the_page():
    async def scenario(server):
        address = f"http://{server.addresses[0]}"
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(limits=limits, timeout=PATIENCE) as client:
            answers = await asyncio.gather(*(client.get(f"{address}/page") for _ in range(75)))
            return {(answer.status_code, answer.text) for answer in answers}, server.connections

    answers, connections = serve(scenario, routes=some_routes(page="x" * 40_000))
    assert answers == {(200, "x" * 40_000 + "\n")}
    assert connections <= 50


def test_gzip_and_both_formats_are_complete():
    store = MetricsPages({"process": FakeDialect()}, FakeClock(), a_page())

    async def scenario(server):
        async with Client(server) as client:
            plain = await client.ask("/metrics")
            zipped = await client.ask("/metrics", "Accept-Encoding: gzip")
            openmetrics = await client.ask("/metrics", "Accept: application/openmetrics-text")
            return plain, zipped, openmetrics

    plain, zipped, openmetrics = serve(scenario, routes=Routes(store.routes("/metrics", ("process",))))
    assert zipped.headers["content-encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == plain.body
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert openmetrics.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert openmetrics.body.endswith(b"# EOF\n")


def test_each_address_has_its_own_routes():
    async def scenario(server):
        async with Client(server, 0) as first, Client(server, 1) as second:
            return [(await client.ask("/page")).body for client in (first, second)]

    listeners = [(LOCAL, some_routes(page="one")), (LOCAL, some_routes(page="two"))]
    assert serve(scenario, listeners=listeners) == [b"one\n", b"two\n"]


def test_an_address_with_port_0_reports_its_real_port():
    async def scenario(server):
        return server.addresses

    (address,) = serve(scenario)
    assert address.host == "127.0.0.1"
    assert address.port > 0


def test_a_port_in_use_is_one_line_with_a_remedy():
    async def scenario(server):
        taken = server.addresses[0]
        with pytest.raises(GpuledgerError) as raised:
            await HttpServer([(taken, some_routes())]).start()
        return taken, raised.value

    taken, error = serve(scenario)
    assert str(error) == (
        f"cannot listen on {taken}: port in use (by another exporter?); choose another with --listen-address"
    )
    assert error.exit_code == 1


def test_when_one_address_fails_the_others_are_closed():
    async def scenario(server):
        taken = server.addresses[0]
        failing = HttpServer([(LOCAL, some_routes()), (taken, some_routes())])
        with pytest.raises(GpuledgerError):
            await failing.start()
        return failing.addresses

    # An unclosed socket would be a ResourceWarning, which is an error here.
    assert serve(scenario) == ()


def test_an_address_given_twice_is_a_usage_error():
    server = HttpServer([(Address("127.0.0.1", 9400), some_routes())] * 2)
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:9400 is given twice"):
        asyncio.run(server.start())


def test_stop_closes_idle_connections_at_once():
    async def scenario(server):
        async with Client(server) as idle, Client(server) as silent:
            await idle.ask("/hello")
            await until(lambda: server.connections == 2)
            await server.stop()
            return await idle.closed(), await silent.closed(), server.connections

    assert serve(scenario) == (b"", b"", 0)


def test_stop_lets_a_running_response_end():
    async def scenario(server):
        async with Client(server) as client:
            await client.send(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
            await client.reader.readexactly(1)
            stopping = asyncio.ensure_future(server.stop())
            await asyncio.sleep(0)
            still_open = not stopping.done()
            rest = await client.closed()
            await stopping
            return still_open, rest.endswith(BIG)

    assert serve(scenario) == (True, True)


def test_stop_cuts_off_a_client_that_does_not_read():
    async def scenario(server):
        async with Client(server) as client:
            await client.send(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
            await client.reader.readexactly(1)
            await server.stop()
            return server.connections

    assert serve(scenario, grace=0.05) == 0


def test_stop_may_be_called_twice_at_once():
    async def scenario(server):
        async with Client(server) as client:
            await client.send(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
            await client.reader.readexactly(1)
            stops = asyncio.gather(server.stop(), server.stop())
            await client.closed()
            await stops
            return server.connections

    assert serve(scenario) == 0


def test_after_stop_connections_are_refused():
    async def scenario(server):
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await Client(server).__aenter__()

    serve(scenario)

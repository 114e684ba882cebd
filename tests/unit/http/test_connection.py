"""Responses that are computed outside the event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from gpuledger.http.connection import ClientConnection
from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Response, Routes, text_response
from unit.http.support import GET_HELLO, Client, serve, until

GET_LATER = b"GET /later HTTP/1.1\r\nHost: h\r\n\r\n"


class PendingRoutes:
    """Returns futures for `/later` that the test completes; `/hello` responds immediately."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Response]] = []
        self.routes = Routes({"/later": self._later, "/hello": lambda request: text_response("hello")})

    def _later(self, request):
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    def number(self, count):
        return until(lambda: len(self.futures) >= count)


def test_other_clients_are_served_while_a_response_is_computed():
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as patient, Client(server) as other:
            await patient.send(GET_LATER)
            await pending.number(1)
            others = [(await other.ask("/hello")).body for _ in range(3)]
            pending.futures[0].set_result(text_response("at last"))
            return others, (await patient.answer()).body, (await patient.ask("/hello")).body

    assert serve(scenario, routes=pending.routes) == ([b"hello\n"] * 3, b"at last\n", b"hello\n")


def test_a_request_has_the_address_and_the_port_of_its_client():
    routes = Routes({"/who": lambda request: text_response(request.client)})

    async def scenario(server):
        async with Client(server) as one, Client(server) as other:
            return [(await client.ask("/who")).body.decode().split() for client in (one, one, other)]

    first, again, other = serve(scenario, routes=routes)
    assert first == again
    assert first[0] == other[0] == "127.0.0.1"
    assert first[1] != other[1]


def test_a_closed_connection_is_freed_without_the_garbage_collector():
    """Memory would depend on how many clients came since the last full collection."""
    made = []

    def connection(registry, routes):
        one = ClientConnection(registry, routes)
        made.append(weakref.ref(one))
        return one

    async def scenario(server):
        async with Client(server) as client:
            await client.ask("/hello")
        await until(lambda: made[0]() is None)

    gc.disable()
    try:
        serve(scenario, protocol_factory=connection)
    finally:
        gc.enable()


def test_pipelined_requests_keep_their_order():
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER + GET_HELLO + GET_LATER + GET_HELLO)
            await pending.number(1)
            pending.futures[0].set_result(text_response("first"))
            await pending.number(2)
            pending.futures[1].set_result(text_response("second"))
            return [(await client.answer()).body for _ in range(4)]

    assert serve(scenario, routes=pending.routes) == [b"first\n", b"hello\n", b"second\n", b"hello\n"]


def test_a_completed_future_is_sent_immediately():
    def ready(request):
        future = asyncio.get_running_loop().create_future()
        future.set_result(text_response("ready"))
        return future

    async def scenario(server):
        async with Client(server) as client:
            return [(await client.ask("/ready")).body for _ in range(3)]

    assert serve(scenario, routes=Routes({"/ready": ready})) == [b"ready\n"] * 3


def test_head_waits_for_the_computed_response_and_has_no_body():
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as client:
            request = asyncio.ensure_future(client.ask("/later", method="HEAD"))
            await pending.number(1)
            pending.futures[0].set_result(text_response("at last"))
            return (await request).headers["content-length"], (await client.ask("/hello")).body

    assert serve(scenario, routes=pending.routes) == ("8", b"hello\n")


def test_a_failed_computation_affects_only_its_own_response(caplog):
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER * 2 + GET_HELLO)
            await pending.number(1)
            pending.futures[0].set_exception(RuntimeError("a report has a bug"))
            await pending.number(2)
            pending.futures[1].cancel()
            return [await client.answer() for _ in range(3)]

    *failed, hello = serve(scenario, routes=pending.routes)
    assert [answer.status for answer in failed] == [500, 500]
    assert (hello.status, b"bug" in failed[0].body, "a report has a bug" in caplog.text) == (200, False, True)


def test_the_response_to_a_closed_connection_is_dropped():
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as gone:
            await gone.send(GET_LATER)
            await pending.number(1)
            gone.writer.transport.abort()
        pending.futures[0].set_result(Response(body=b"x" * 10_000_000))
        await until(lambda: server.connections == 0)
        async with Client(server) as other:
            return (await other.ask("/hello")).body

    assert serve(scenario, routes=pending.routes) == b"hello\n"


def test_a_half_closed_client_still_gets_a_computed_response():
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER)
            client.writer.write_eof()
            await pending.number(1)
            pending.futures[0].set_result(text_response("at last"))
            return (await client.answer()).body, await client.closed()

    assert serve(scenario, routes=pending.routes) == (b"at last\n", b"")


def test_a_computation_that_takes_too_long_gets_503_and_its_result_is_dropped():
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER + GET_HELLO)
            answer = await client.answer()
            pending.futures[0].set_result(text_response("at last"))
            found = (answer.status, answer.headers["connection"], answer.headers["retry-after"])
            return found, await client.closed()

    found = serve(scenario, routes=pending.routes, limits=HttpLimits(answer_seconds=0.05))
    assert found == ((503, "close", "10"), b"")


def test_the_response_timeout_does_not_limit_computing():
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as client, Client(server) as silent:
            await client.send(GET_LATER)
            # When it is closed, the shorter limits have passed.
            await silent.closed()
            pending.futures[0].set_result(text_response("at last"))
            return (await client.answer()).body

    limits = HttpLimits(request_seconds=1.0, response_seconds=0.5)
    assert serve(scenario, routes=pending.routes, limits=limits) == b"at last\n"


def test_stop_waits_for_a_response_that_is_being_computed():
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER)
            await pending.number(1)
            stopping = asyncio.ensure_future(server.stop())
            await asyncio.sleep(0)
            still_open = not stopping.done()
            pending.futures[0].set_result(text_response("at last"))
            answer = await client.answer()
            await stopping
            return still_open, answer.body, answer.headers["connection"]

    assert serve(scenario, routes=pending.routes) == (True, b"at last\n", "close")


def test_stop_does_not_wait_longer_than_grace():
    pending = PendingRoutes()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER)
            await pending.number(1)
            await server.stop()
            return await client.closed()

    assert serve(scenario, routes=pending.routes, grace=0.02) == b""


class SlowGate:
    """A gate that decides later and adds a header to every response."""

    generation = 0
    rejection = text_response("no", 401)

    def __init__(self) -> None:
        self.verdicts: list[asyncio.Future[bool]] = []

    def decide(self, request):
        self.verdicts.append(asyncio.get_running_loop().create_future())
        return self.verdicts[-1]

    def identify(self, request, certificate_name):
        return request

    def add_headers(self, response):
        return Response(response.status, response.body, headers=(("X-Gate", "seen"),))


@pytest.mark.parametrize("allowed", [True, False])
def test_nothing_is_computed_before_the_gate_has_decided(allowed):
    pending, gate = PendingRoutes(), SlowGate()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER)
            await until(lambda: gate.verdicts)
            before = len(pending.futures)
            gate.verdicts[0].set_result(allowed)
            if allowed:
                await pending.number(1)
                pending.futures[0].set_result(text_response("at last"))
            answer = await client.answer()
            return before, answer.status, answer.headers["x-gate"], len(pending.futures)

    found = serve(
        scenario,
        routes=pending.routes,
        protocol_factory=lambda registry, routes: ClientConnection(registry, routes, gate),
    )
    assert found == (0, 200 if allowed else 401, "seen", int(allowed))

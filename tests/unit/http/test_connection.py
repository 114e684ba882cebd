"""Answers that are computed elsewhere and come later."""

from __future__ import annotations

import asyncio

import pytest

from gpuledger.http.connection import Connection
from gpuledger.http.limits import Limits
from gpuledger.http.routes import Response, Routes, plain
from unit.http.support import GET_HELLO, Client, serve, until

GET_LATER = b"GET /later HTTP/1.1\r\nHost: h\r\n\r\n"


class Kitchen:
    """Hands out futures for `/later`, to be settled by the test; `/hello` answers at once."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Response]] = []
        self.routes = Routes({"/later": self._later, "/hello": lambda request: plain("hello")})

    def _later(self, request):
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]

    def number(self, count):
        return until(lambda: len(self.asked) >= count)


def test_other_clients_go_on_while_an_answer_is_computed():
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as patient, Client(server) as other:
            await patient.send(GET_LATER)
            await kitchen.number(1)
            others = [(await other.ask("/hello")).body for _ in range(3)]
            kitchen.asked[0].set_result(plain("at last"))
            return others, (await patient.answer()).body, (await patient.ask("/hello")).body

    assert serve(scenario, routes=kitchen.routes) == ([b"hello\n"] * 3, b"at last\n", b"hello\n")


def test_pipelined_requests_keep_their_order():
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER + GET_HELLO + GET_LATER + GET_HELLO)
            await kitchen.number(1)
            kitchen.asked[0].set_result(plain("first"))
            await kitchen.number(2)
            kitchen.asked[1].set_result(plain("second"))
            return [(await client.answer()).body for _ in range(4)]

    assert serve(scenario, routes=kitchen.routes) == [b"first\n", b"hello\n", b"second\n", b"hello\n"]


def test_an_answer_that_is_there_already_is_given_at_once():
    def ready(request):
        future = asyncio.get_running_loop().create_future()
        future.set_result(plain("ready"))
        return future

    async def scenario(server):
        async with Client(server) as client:
            return [(await client.ask("/ready")).body for _ in range(3)]

    assert serve(scenario, routes=Routes({"/ready": ready})) == [b"ready\n"] * 3


def test_head_waits_as_get_does_and_has_no_body():
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as client:
            asked = asyncio.ensure_future(client.ask("/later", method="HEAD"))
            await kitchen.number(1)
            kitchen.asked[0].set_result(plain("at last"))
            return (await asked).headers["content-length"], (await client.ask("/hello")).body

    assert serve(scenario, routes=kitchen.routes) == ("8", b"hello\n")


def test_a_computation_that_fails_costs_its_own_answer_alone(caplog):
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER * 2 + GET_HELLO)
            await kitchen.number(1)
            kitchen.asked[0].set_exception(RuntimeError("a report has a bug"))
            await kitchen.number(2)
            kitchen.asked[1].cancel()
            return [await client.answer() for _ in range(3)]

    *failed, hello = serve(scenario, routes=kitchen.routes)
    assert [answer.status for answer in failed] == [500, 500]
    assert (hello.status, b"bug" in failed[0].body, "a report has a bug" in caplog.text) == (200, False, True)


def test_the_answer_to_a_client_that_has_gone_is_dropped():
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as gone:
            await gone.send(GET_LATER)
            await kitchen.number(1)
            gone.writer.transport.abort()
        kitchen.asked[0].set_result(Response(body=b"x" * 10_000_000))
        await until(lambda: server.connections == 0)
        async with Client(server) as other:
            return (await other.ask("/hello")).body

    assert serve(scenario, routes=kitchen.routes) == b"hello\n"


def test_a_client_that_has_said_all_still_gets_an_answer_that_comes_later():
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER)
            client.writer.write_eof()
            await kitchen.number(1)
            kitchen.asked[0].set_result(plain("at last"))
            return (await client.answer()).body, await client.closed()

    assert serve(scenario, routes=kitchen.routes) == (b"at last\n", b"")


def test_an_answer_that_takes_too_long_is_given_up_with_503_and_what_comes_then_is_dropped():
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER + GET_HELLO)
            answer = await client.answer()
            kitchen.asked[0].set_result(plain("at last"))
            told = (answer.status, answer.headers["connection"], answer.headers["retry-after"])
            return told, await client.closed()

    told = serve(scenario, routes=kitchen.routes, limits=Limits(answer_seconds=0.05))
    assert told == ((503, "close", "10"), b"")


def test_computing_is_not_limited_by_the_time_to_take_an_answer():
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as client, Client(server) as silent:
            await client.send(GET_LATER)
            # By its end the shorter limits have passed.
            await silent.closed()
            kitchen.asked[0].set_result(plain("at last"))
            return (await client.answer()).body

    limits = Limits(request_seconds=0.1, response_seconds=0.05)
    assert serve(scenario, routes=kitchen.routes, limits=limits) == b"at last\n"


def test_stop_waits_for_an_answer_that_is_being_computed():
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER)
            await kitchen.number(1)
            stopping = asyncio.ensure_future(server.stop())
            await asyncio.sleep(0)
            still_open = not stopping.done()
            kitchen.asked[0].set_result(plain("at last"))
            answer = await client.answer()
            await stopping
            return still_open, answer.body, answer.headers["connection"]

    assert serve(scenario, routes=kitchen.routes) == (True, b"at last\n", "close")


def test_stop_does_not_wait_for_ever():
    kitchen = Kitchen()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER)
            await kitchen.number(1)
            await server.stop()
            return await client.closed()

    assert serve(scenario, routes=kitchen.routes, grace=0.02) == b""


class Slow:
    """A gate that decides later, and marks every answer."""

    era = 0
    refused = plain("no", 401)

    def __init__(self) -> None:
        self.verdicts: list[asyncio.Future[bool]] = []

    def decide(self, request):
        self.verdicts.append(asyncio.get_running_loop().create_future())
        return self.verdicts[-1]

    def dress(self, response):
        return Response(response.status, response.body, headers=(("X-Gate", "seen"),))


@pytest.mark.parametrize("allowed", [True, False])
def test_nothing_is_computed_before_the_gate_has_decided(allowed):
    kitchen, gate = Kitchen(), Slow()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_LATER)
            await until(lambda: gate.verdicts)
            before = len(kitchen.asked)
            gate.verdicts[0].set_result(allowed)
            if allowed:
                await kitchen.number(1)
                kitchen.asked[0].set_result(plain("at last"))
            answer = await client.answer()
            return before, answer.status, answer.headers["x-gate"], len(kitchen.asked)

    found = serve(
        scenario, routes=kitchen.routes, speaker=lambda registry, routes: Connection(registry, routes, gate)
    )
    assert found == (0, 200 if allowed else 401, "seen", int(allowed))

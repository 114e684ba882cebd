"""Basic auth, rate limit and headers of a web config without TLS."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import replace
from threading import Event

import pytest

from builders import FakeClock
from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Routes, text_response
from gpuledger.http.web_config.gate import parse_basic_auth
from gpuledger.http.web_config.passwords import PasswordChecker
from running import PATIENCE
from unit.http.streams import GET_STREAM, Station, chunk, head_of
from unit.http.support import GET_HELLO, Client, some_routes, until
from unit.http.web_config.support import CountingCheck, hash_of, serve_under

HEALTH = ("/-/healthy", "/-/ready", "/health")


def basic(name, password):
    return "Authorization: Basic " + b64encode(f"{name}:{password}".encode()).decode()


ALICE = basic("alice", "secret")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: {hash_of('secret').decode()}}}")
    return path


def routes():
    hello = some_routes()

    def hello_handler(request):
        return hello.respond(replace(request, path="/hello"))

    return Routes(dict.fromkeys(("/hello", *HEALTH), hello_handler))


def test_missing_or_wrong_credentials_get_401_and_a_challenge(file):
    offers = [(), (basic("alice", "x"),), (basic("bob", "secret"),), ("Authorization: Bearer x",)]

    async def scenario(server):
        async with Client(server) as client:
            return [await client.ask("/hello", *offer) for offer in offers]

    for answer in serve_under(file, scenario, passwords=PasswordChecker(CountingCheck())):
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == 'Basic realm="gpuledger", charset="UTF-8"'
        assert b"hello" not in answer.body


def test_a_correct_password_is_checked_once_for_all_pages(file):
    check = CountingCheck()

    async def scenario(server):
        async with Client(server) as client:
            return [(await client.ask(path, ALICE)).status for path in ("/hello", "/hello", "/echo", "/no")]

    assert serve_under(file, scenario, passwords=PasswordChecker(check)) == [200, 200, 200, 404]
    assert len(check.calls) == 1


def test_without_a_password_no_path_or_method_is_disclosed(file):
    async def scenario(server):
        async with Client(server) as client:
            return [(await client.ask("/no")).status, (await client.ask("/hello", method="DELETE")).status]

    assert serve_under(file, scenario, passwords=PasswordChecker(CountingCheck())) == [401, 401]


def test_health_needs_no_password(file):
    check = CountingCheck()

    async def scenario(server):
        async with Client(server) as client:
            return [
                (await client.ask(path, *offer)).status
                for path in HEALTH
                for offer in ((), (basic("x", "y"),))
            ]

    assert serve_under(file, scenario, passwords=PasswordChecker(check), routes=routes()) == [200] * 6
    assert not check.calls


def test_a_password_check_does_not_block_other_clients(file):
    go_on = Event()

    def slow(password, stored):
        assert go_on.wait(PATIENCE)
        return True

    async def scenario(server):
        async with Client(server) as waiting, Client(server) as probe:
            answered = asyncio.ensure_future(waiting.ask("/hello", ALICE))
            status = (await probe.ask("/health")).status
            early = answered.done()
            go_on.set()
            return status, early, (await answered).status, (await waiting.ask("/hello", ALICE)).status

    found = serve_under(file, scenario, passwords=PasswordChecker(slow), routes=routes())
    assert found == (200, False, 200, 200)


def test_pipelined_requests_wait_for_the_password_check(file):
    with_password = GET_HELLO.replace(b"\r\n\r\n", f"\r\n{ALICE}\r\n\r\n".encode())

    async def scenario(server):
        async with Client(server) as client:
            await client.send(with_password + GET_HELLO + with_password)
            return [(await client.answer()).status for _ in range(3)]

    assert serve_under(file, scenario, passwords=PasswordChecker(CountingCheck())) == [200, 401, 200]


def test_a_client_that_closes_during_its_password_check_leaves_nothing_behind(file):
    go_on = Event()

    def slow(password, stored):
        assert go_on.wait(PATIENCE)
        return True

    async def scenario(server):
        async with Client(server) as client:
            await client.send(f"GET /hello HTTP/1.1\r\nHost: h\r\n{ALICE}\r\n\r\n".encode())
            await until(lambda: server.connections == 1)
            client.writer.transport.abort()
        go_on.set()
        async with Client(server) as other:
            status = (await other.ask("/hello", ALICE)).status
        await until(lambda: server.connections == 0)
        return status

    assert serve_under(file, scenario, passwords=PasswordChecker(slow)) == 200


def test_a_password_check_that_hangs_closes_its_connection(file):
    go_on = Event()

    def stuck(password, stored):
        return go_on.wait(PATIENCE)

    async def scenario(server):
        async with Client(server) as client:
            await client.send(f"GET /hello HTTP/1.1\r\nHost: h\r\n{ALICE}\r\n\r\n".encode())
            ended = await client.closed()
        go_on.set()
        return ended

    limits = HttpLimits(response_seconds=0.05)
    assert serve_under(file, scenario, passwords=PasswordChecker(stuck), limits=limits) == b""


def test_too_many_waiting_passwords_get_503(file):
    go_on = Event()

    def slow(password, stored):
        go_on.wait(PATIENCE)
        return False

    async def scenario(server):
        async with Client(server) as first, Client(server) as second:
            waiting = asyncio.ensure_future(first.ask("/hello", basic("alice", "1")))
            await until(lambda: passwords._running)
            refused = await second.ask("/hello", basic("alice", "2"))
            go_on.set()
            return refused.status, refused.headers["retry-after"], (await waiting).status

    passwords = PasswordChecker(slow, waiting=1)
    assert serve_under(file, scenario, passwords=passwords) == (503, "1", 401)


def test_users_are_added_and_removed_without_a_restart(file):
    clock = FakeClock()

    async def scenario(server):
        async with Client(server) as client:
            before = [(await client.ask("/hello", offer)).status for offer in (ALICE, basic("bob", "b"))]
            file.write_text(f"basic_auth_users: {{bob: {hash_of('b').decode()}}}")
            clock.advance(2)
            return before, [
                (await client.ask("/hello", offer)).status for offer in (ALICE, basic("bob", "b"))
            ]

    assert serve_under(file, scenario, clock=clock, passwords=PasswordChecker(CountingCheck())) == (
        [200, 401],
        [401, 200],
    )


def test_requests_above_the_rate_limit_get_429_and_health_is_exempt(file):
    file.write_text("rate_limit: {interval: 10s, burst: 2}")
    clock = FakeClock()

    async def scenario(server):
        async with Client(server) as client:
            first = [await client.ask("/hello") for _ in range(3)]
            health = [(await client.ask(path)).status for path in HEALTH]
            clock.advance(10)
            later = [(await client.ask("/hello")).status for _ in range(2)]
            clock.advance(100)
            much_later = [(await client.ask("/hello")).status for _ in range(3)]
            return (
                [answer.status for answer in first],
                first[2].headers["retry-after"],
                health,
                later,
                much_later,
            )

    found = serve_under(file, scenario, clock=clock, routes=routes())
    assert found == ([200, 200, 429], "10", [200] * 3, [200, 429], [200, 200, 429])


def test_headers_of_the_file_are_on_every_response_once(file):
    file.write_text(
        "http_server_config: {headers: {X-Frame-Options: deny, X-Content-Type-Options: nosniff}}\n"
        + file.read_text()
    )

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_HELLO)
            refused = (await client.reader.readuntil(b"\r\n\r\n")).lower()
            await client.reader.readuntil(b"required\n")
            return refused, (await client.ask("/hello", ALICE)).headers

    refused, headers = serve_under(file, scenario, passwords=PasswordChecker(CountingCheck()))
    assert headers["x-frame-options"] == "deny"
    assert (refused.count(b"x-content-type-options"), refused.count(b"x-frame-options")) == (1, 1)


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ("basic_auth_users: {bob: '" + hash_of("other").decode() + "'}", True),
        ("", True),
        ("http_server_config: {headers: {X-Frame-Options: deny}}\n", False),
    ],
)
def test_a_stream_and_its_connection_end_when_the_users_change(file, change, ends):
    station, clock = Station(b"first"), FakeClock()

    async def scenario(server):
        async with Client(server) as client:
            await client.send(GET_STREAM.replace(b"\r\n\r\n", f"\r\n{ALICE}\r\n\r\n".encode()))
            await head_of(client)
            first = await chunk(client)
            file.write_text(change + (file.read_text() if not ends else ""))
            clock.advance(1.0)
            station.channels[0].say(b"second")
            if not ends:
                return first, await chunk(client)
            return first, await client.closed()

    passwords = PasswordChecker(CountingCheck())
    found = serve_under(file, scenario, clock=clock, passwords=passwords, routes=station.routes)
    assert found == (b"first", b"0\r\n\r\n" if ends else b"second")
    assert station.channels[0].ended == 1


def test_a_stream_without_a_password_ends_when_users_are_added(file):
    users, station, clock = file.read_text(), Station(b"first"), FakeClock()
    file.write_text("")

    async def scenario(server):
        async with Client(server) as client, Client(server) as second:
            await client.send(GET_STREAM)
            await head_of(client)
            first = await chunk(client)
            file.write_text(users)
            clock.advance(1.0)
            station.channels[0].say(b"second")
            return first, await client.closed(), (await second.ask("/stream")).status

    passwords = PasswordChecker(CountingCheck())
    found = serve_under(file, scenario, clock=clock, passwords=passwords, routes=station.routes)
    assert found == (b"first", b"0\r\n\r\n", 401)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Basic YTpi", ("a", b"b")),
        ("basic YTpi", ("a", b"b")),
        ("Basic YTpiOmM=", ("a", b"b:c")),
        ("Basic Og==", ("", b"")),
        ("Basic /zr/", ("\udcff", b"\xff")),
        ("", None),
        ("Basic", None),
        ("Basic YQ==", None),
        ("Basic YTpi YTpi", None),
        ("Basic YTp", None),
        ("Basic é", None),
        ("Digest YTpi", None),
    ],
)
def test_credentials_are_parsed_as_in_rfc_7617(header, found):
    assert parse_basic_auth(header) == found


def identities():
    """Routes that answer with the name that a request proved."""
    return Routes(
        dict.fromkeys(("/hello", *HEALTH), lambda request: text_response(f"name {request.identity!r}"))
    )


@pytest.mark.parametrize(
    ("path", "offer", "said"),
    [
        ("/hello", (ALICE,), b"name 'alice'\n"),
        # Health is accepted without a check: whatever name is sent, it is not proved.
        ("/health", (), b"name ''\n"),
        ("/health", (ALICE,), b"name ''\n"),
        ("/health", (basic("alice", "guess"),), b"name ''\n"),
    ],
)
def test_a_request_has_the_name_that_its_password_proved(file, path, offer, said):
    async def scenario(server):
        async with Client(server) as client:
            first = (await client.ask(path, *offer)).body
            # The second time the password is remembered.
            return first, (await client.ask(path, *offer)).body

    checker = PasswordChecker(CountingCheck())
    assert serve_under(file, scenario, routes=identities(), passwords=checker) == (said, said)


def test_a_name_of_one_request_is_not_that_of_the_next(file):
    file.write_text(
        f"basic_auth_users: {{alice: {hash_of('secret').decode()}, bob: {hash_of('other').decode()}}}"
    )

    async def scenario(server):
        async with Client(server) as client:
            offers = (ALICE, basic("bob", "other"), ALICE)
            return [(await client.ask("/hello", offer)).body for offer in offers]

    checker = PasswordChecker(CountingCheck())
    said = serve_under(file, scenario, routes=identities(), passwords=checker)
    assert said == [b"name 'alice'\n", b"name 'bob'\n", b"name 'alice'\n"]


def test_without_users_a_password_proves_no_name(tmp_path):
    file = tmp_path / "web.yml"
    file.write_text("http_server_config: {headers: {X-Frame-Options: deny}}")

    async def scenario(server):
        async with Client(server) as client:
            return (await client.ask("/hello", ALICE)).body

    assert serve_under(file, scenario, routes=identities()) == b"name ''\n"

"""Allowed host names: a foreign web page must not read responses by DNS rebinding."""

from __future__ import annotations

import pytest

from gpuledger.http.addresses import Address
from gpuledger.http.hosts import HostNameSettings, allowed_hosts
from gpuledger.http.routes import Routes, text_response
from gpuledger.model.settings import build_settings, declared_settings
from unit.http.support import Client, serve

EVERYWHERE, LOOPBACK = Address("", 9400), Address("127.0.0.1", 9400)

# web.hosts, the listen address, the Host header, whether it is served.
CASES = [
    ((), EVERYWHERE, "evil.example", True),
    ((), LOOPBACK, "evil.example", False),
    ((), Address("localhost", 1), "evil.example", False),
    ((), Address("::1", 1), "evil.example", False),
    ((), Address("127.1.2.3", 1), "evil.example", False),
    ((), Address("10.0.0.1", 1), "evil.example", True),
    ((), Address("127.example", 1), "evil.example", True),
    (("*",), LOOPBACK, "evil.example", True),
    (("gpu-1.lab",), EVERYWHERE, "evil.example", False),
    (("gpu-1.lab",), EVERYWHERE, "gpu-1.lab", True),
    (("gpu-1.lab",), EVERYWHERE, "GPU-1.Lab.:9400", True),
    (("gpu-1.lab",), EVERYWHERE, "gpu-1.lab:", True),
    (("gpu-1.lab",), EVERYWHERE, "gpu-1.lab.evil.example", False),
    (("gpu-1.lab",), EVERYWHERE, "evil-gpu-1.lab", False),
    (("gpu-1.lab",), EVERYWHERE, "evil.example, gpu-1.lab", False),
    (("gpu-1.lab",), EVERYWHERE, "gpu-1.lab@evil.example", False),
    (("gpu-1.lab",), EVERYWHERE, "gpu-1.lab:80:80", False),
    (("*.lab",), EVERYWHERE, "gpu-1.lab", True),
    (("*.lab",), EVERYWHERE, "a.gpu-1.lab", True),
    (("*.lab",), EVERYWHERE, "lab", False),
    (("*.lab",), EVERYWHERE, "evillab", False),
    # Hosts that no attacker can use, with any setting.
    (("gpu-1.lab",), EVERYWHERE, "", True),
    (("gpu-1.lab",), EVERYWHERE, "localhost:9400", True),
    (("gpu-1.lab",), EVERYWHERE, "a.localhost", True),
    (("gpu-1.lab",), EVERYWHERE, "notlocalhost", False),
    (("gpu-1.lab",), EVERYWHERE, "10.1.2.3:9400", True),
    (("gpu-1.lab",), EVERYWHERE, "[2001:db8::1]:9400", True),
    (("gpu-1.lab",), EVERYWHERE, "2001:db8::1", False),
    (("gpu-1.lab",), EVERYWHERE, "10.1.2.3.evil.example", False),
    (("gpu-1.lab",), EVERYWHERE, "10.1.2", False),
    (("gpu-1.lab",), EVERYWHERE, "[gpu-1.lab]", False),
    (("gpu-1.lab",), EVERYWHERE, "[10.1.2.3]", False),
]


@pytest.mark.parametrize(("names", "listening", "sent", "served"), CASES)
def test_a_host_name_is_served_only_if_allowed(names, listening, sent, served):
    allowed = allowed_hosts(names, listening)
    assert (allowed is None or allowed.allow(sent)) is served


def parsed(written):
    parse = {setting.key: setting.parse for _, setting, _ in declared_settings(HostNameSettings)}["web.hosts"]
    return build_settings(HostNameSettings, {"web.hosts": parse(written)}).names


def test_host_names_are_normalized():
    assert parsed("GPU-1.lab., *.example.com,*") == ("gpu-1.lab", "*.example.com", "*")
    assert parsed(["a", "b"]) == ("a", "b")


@pytest.mark.parametrize("written", ["gpu-1:9400", "http://gpu-1", "*.", "a.*.b", "a b", "", "[::1]"])
def test_a_malformed_host_name_is_rejected(written):
    with pytest.raises(ValueError, match="expected"):
        parsed(written)


def requests():
    return {
        "another name": (b"GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        "an unknown path under another name": (b"GET /none HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        "an address": (b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 200),
        "no name": (b"GET /hello HTTP/1.0\r\n\r\n", 200),
        "another name in the target": (b"GET http://evil.example/hello HTTP/1.1\r\nHost: gpu\r\n\r\n", 421),
        "our name in the target": (b"GET http://gpu:9400/hello HTTP/1.1\r\nHost: evil.example\r\n\r\n", 200),
        "a query directly after the name": (b"GET http://gpu?/hello HTTP/1.1\r\nHost: gpu\r\n\r\n", 404),
        "another name before a query": (
            b"GET http://evil.example?gpu/hello HTTP/1.1\r\nHost: gpu\r\n\r\n",
            421,
        ),
    }


@pytest.mark.parametrize(("sent", "status"), requests().values(), ids=requests())
def test_a_request_for_another_host_name_gets_421(sent, status):
    routes = Routes(
        {"/hello": lambda request: text_response("hello")}, hosts=allowed_hosts(("gpu",), EVERYWHERE)
    )

    async def scenario(server):
        async with Client(server) as client:
            await client.send(sent)
            answer = await client.answer()
            return answer.status, b"evil" in answer.body

    assert serve(scenario, routes=routes) == (status, False)


def test_allowed_names_change_at_runtime():
    before = Routes({"/hello": lambda request: text_response("hello")})
    after = Routes(
        {"/hello": lambda request: text_response("hello")}, hosts=allowed_hosts(("gpu",), EVERYWHERE)
    )

    async def scenario(server):
        async with Client(server) as client:
            first = (await client.ask("/hello")).status
            before.replace_with(after)
            return first, (await client.ask("/hello")).status

    assert serve(scenario, routes=before) == (200, 421)

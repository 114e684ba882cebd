"""The scrape client respects its limits and sends credentials only to the target's origin."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from certificates import Certificates
from gpuledger.agent.deliver.credentials import ReloadedCredentials
from gpuledger.agent.deliver.settings import ClientTls, Login, Secret
from gpuledger.agent.scrape.client import ScrapeClient, ScrapeTimeout
from gpuledger.agent.scrape.settings import AdaptiveTimeout, ScrapeSettings, Target
from gpuledger.host.clock import SystemClock
from gpuledger.http.client_messages import HttpRequestFailed, HttpResponse
from scripted_target import Answer, scripted

LOGIN = Login("Bearer", Secret("s3cret"))


def to_scrape(url: str, timeout: float, *, credentials_over_http: bool = False) -> Target:
    settings = ScrapeSettings(timeout=timeout, credentials_over_http=credentials_over_http)
    return Target("gpu-nodes", url, (), settings)


def fetched(target: Target, access: ReloadedCredentials | None = None, times: int = 1) -> list[HttpResponse]:
    async def run() -> list[HttpResponse]:
        client = ScrapeClient(target, access)
        try:
            return [await client.fetch() for _ in range(times)]
        finally:
            client.close()
            await asyncio.sleep(0)

    return asyncio.run(run())


def access(
    tls: ClientTls | None = None, login: Login | None = None, *, encrypted: bool = False
) -> ReloadedCredentials:
    return ReloadedCredentials(tls or ClientTls(), login, SystemClock(), encrypted=encrypted)


def test_scrapes_reuse_one_connection() -> None:
    with scripted(lambda path: Answer(f"a{path}")) as target:
        found = fetched(to_scrape(f"http://127.0.0.1:{target.port}/m", 5.0), times=3)
        assert [answer.decoded_body() for answer in found] == [b"a/m"] * 3
        assert target.seen["/m"]["x-prometheus-scrape-timeout-seconds"] == "5"


def test_a_closed_connection_is_replaced_by_a_new_one() -> None:
    with scripted(lambda path: Answer("a", headers=(("Connection", "close"),))) as target:
        assert len(fetched(to_scrape(f"http://127.0.0.1:{target.port}/m", 5.0), times=2)) == 2


def test_a_slow_target_fails_with_a_scrape_timeout() -> None:
    with (
        scripted(lambda path: Answer("a", delay=1.0)) as target,
        pytest.raises(HttpRequestFailed, match=r"did not respond within the scrape timeout of 0.2 s"),
    ):
        fetched(to_scrape(f"http://127.0.0.1:{target.port}/m", 0.2))


def test_a_status_other_than_200_is_a_failure() -> None:
    with (
        scripted(lambda path: Answer("a", status=503)) as target,
        pytest.raises(HttpRequestFailed, match="status 503"),
    ):
        fetched(to_scrape(f"http://127.0.0.1:{target.port}/m", 5.0))


def test_a_refused_connection_is_reported_in_plain_words() -> None:
    with pytest.raises(HttpRequestFailed, match="cannot connect: connection refused"):
        fetched(to_scrape("http://127.0.0.1:1/m", 5.0))


def test_credentials_are_sent_to_the_target_and_not_to_a_redirects_origin() -> None:
    with scripted(lambda path: Answer("there")) as other:
        moved = Answer("", status=302, headers=(("Location", f"http://127.0.0.1:{other.port}/there"),))
        here = Answer("", status=302, headers=(("Location", "/here"),))

        def answer(path: str) -> Answer:
            return {"/away": moved, "/same": here}.get(path, Answer("here"))

        with scripted(answer) as target:
            for path, body in (("/away", b"there"), ("/same", b"here")):
                request = to_scrape(f"http://127.0.0.1:{target.port}{path}", 5.0, credentials_over_http=True)
                assert fetched(request, access(login=LOGIN))[0].body == body
            assert target.seen["/away"]["authorization"] == "Bearer s3cret"
            assert target.seen["/here"]["authorization"] == "Bearer s3cret"
            assert "authorization" not in other.seen["/there"]


def test_credentials_are_not_sent_over_plain_http_by_default() -> None:
    with scripted(lambda path: Answer("a")) as target:
        with pytest.raises(HttpRequestFailed, match="credentials are not sent over plain http"):
            fetched(to_scrape(f"http://127.0.0.1:{target.port}/m", 5.0), access(login=LOGIN))
        assert target.seen == {}


NOWHERE = ["http://h:99999/", "http://h:x/", "http://h:0/", "http://[::1/", "ftp://h/"]


@pytest.mark.parametrize("place", NOWHERE)
def test_a_redirect_to_an_invalid_url_is_a_failure_in_one_line(place: str) -> None:
    with (
        scripted(lambda path: Answer("", status=302, headers=(("Location", place),))) as target,
        pytest.raises(HttpRequestFailed, match="redirects to an invalid http or https URL"),
    ):
        fetched(to_scrape(f"http://127.0.0.1:{target.port}/m", 5.0))


@pytest.mark.parametrize("host", ["gpu..node", "a" * 64, "\N{CJK UNIFIED IDEOGRAPH-4E2D}..node"])
def test_a_host_name_that_dns_cannot_encode_does_not_resolve(host: str) -> None:
    with pytest.raises(HttpRequestFailed, match=f"cannot resolve the host {host}"):
        fetched(to_scrape(f"http://{host}:9400/m", 5.0))


def test_a_unicode_host_name_is_sent_in_its_dns_form() -> None:
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in "localhost")
    with scripted(lambda path: Answer("a")) as target:
        fetched(to_scrape(f"http://{wide}:{target.port}/m", 5.0))
        assert target.seen["/m"]["host"] == f"localhost:{target.port}"


def test_an_unresponsive_address_does_not_delay_the_hosts_other_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted(lambda path: Answer("a")) as target, silent_address() as silent:
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", where)
            for where in (silent, ("127.0.0.1", target.port))
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        (answer,) = fetched(to_scrape("http://gpu-node:9400/m", 30.0))
        assert answer.body == b"a"


@contextmanager
def silent_address() -> Iterator[tuple[str, int]]:
    """An address that neither accepts nor refuses connections: its backlog is full."""
    with socket.socket() as listening, ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            pending = waiting.enter_context(socket.socket())
            pending.setblocking(False)
            pending.connect_ex(listening.getsockname())
        yield listening.getsockname()


def test_a_redirect_loop_ends() -> None:
    with (
        scripted(lambda path: Answer("", status=302, headers=(("Location", path),))) as target,
        pytest.raises(HttpRequestFailed, match="more than 10 times"),
    ):
        fetched(to_scrape(f"http://127.0.0.1:{target.port}/m", 5.0))


def test_certificates_are_verified_and_the_client_certificate_is_sent(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
    context.load_verify_locations(certificates.crt("ca"))
    context.verify_mode = ssl.CERT_REQUIRED
    ca = Secret(file=certificates.crt("ca"))
    shown = ClientTls(
        ca=ca,
        certificate=Secret(file=certificates.crt("client")),
        key=Secret(file=certificates.key("client")),
    )
    stranger = ClientTls(ca=Secret(file=certificates.crt("stranger")))
    with scripted(lambda path: Answer("a" * 200_000), context) as target:
        request = to_scrape(f"https://127.0.0.1:{target.port}/m", 5.0)
        found = fetched(request, access(shown, encrypted=True), times=2)
        assert [len(answer.body) for answer in found] == [200_000] * 2
        with pytest.raises(HttpRequestFailed, match="cannot verify the server's certificate"):
            fetched(request, access(stranger, encrypted=True))
        with pytest.raises(HttpRequestFailed):
            fetched(request, access(ClientTls(ca=ca), encrypted=True))


@pytest.mark.parametrize("demanded", [False, True])
def test_a_client_certificate_is_not_sent_to_a_redirects_origin(demanded: bool, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)

    def server(mode: ssl.VerifyMode) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
        context.load_verify_locations(certificates.crt("ca"))
        context.verify_mode = mode
        return context

    shown = ClientTls(
        ca=Secret(file=certificates.crt("ca")),
        certificate=Secret(file=certificates.crt("client")),
        key=Secret(file=certificates.key("client")),
    )
    there = server(ssl.CERT_REQUIRED if demanded else ssl.CERT_NONE)
    with scripted(lambda path: Answer("there"), there) as other:
        place = (("Location", f"https://127.0.0.1:{other.port}/there"),)
        moved = Answer("", status=302, headers=place)
        with scripted(lambda path: moved, server(ssl.CERT_REQUIRED)) as target:
            request = to_scrape(f"https://127.0.0.1:{target.port}/m", 5.0)
            if demanded:
                with pytest.raises(HttpRequestFailed):
                    fetched(request, access(shown, encrypted=True))
            else:
                assert fetched(request, access(shown, encrypted=True))[0].body == b"there"


def test_a_token_is_reloaded_when_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")

    class Clock:
        now = 0.0

        def unix(self) -> float:
            return self.now

        def elapsed(self) -> float:
            return self.now

    clock = Clock()
    login = ReloadedCredentials(ClientTls(), Login("Bearer", Secret(file=file)), clock, encrypted=False)

    async def run(port: int) -> None:
        client = ScrapeClient(to_scrape(f"http://127.0.0.1:{port}/m", 5.0, credentials_over_http=True), login)
        await client.fetch()
        file.write_text("second, and longer")
        clock.now = 10.0
        await client.fetch()
        client.close()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a")) as target:
        asyncio.run(run(target.port))
        assert target.seen["/m"]["authorization"] == "Bearer second, and longer"


# `-`: a timeout; `+`: a success.
@pytest.mark.parametrize(
    ("interval", "timeout", "adaptive", "scrapes", "seconds"),
    [
        (60, 10, AdaptiveTimeout(), "-", 10),
        (60, 10, AdaptiveTimeout(), "--", 20),
        (60, 10, AdaptiveTimeout(), "---", 20),
        (60, 10, AdaptiveTimeout(), "----", 40),
        (60, 10, AdaptiveTimeout(), "------", 50),
        (60, 10, AdaptiveTimeout(), "-+-", 10),
        (60, 10, AdaptiveTimeout(), "----+", 10),
        (60, 10, AdaptiveTimeout(1, 1.5), "--", 22.5),
        (60, 20, AdaptiveTimeout(), "------", 55),
        (15, 10, AdaptiveTimeout(), "----", 10),
        (15, 30, AdaptiveTimeout(), "----", 30),
        (5, 2, AdaptiveTimeout(), "------", 10),
        (60, 10, None, "------", 10),
    ],
)
def test_an_adaptive_timeout_grows_with_timeouts_until_a_success(
    interval: float, timeout: float, adaptive: AdaptiveTimeout | None, scrapes: str, seconds: float
) -> None:
    settings = ScrapeSettings(interval=interval, timeout=timeout, adaptive_timeout=adaptive)
    found = ScrapeTimeout(settings)
    for result in scrapes:
        if result == "-":
            found.add_timeout()
        else:
            found.add_success()
    assert found.seconds == seconds


def test_the_target_learns_the_adapted_timeout() -> None:
    settings = ScrapeSettings(timeout=5.0, adaptive_timeout=AdaptiveTimeout(1))

    async def run(url: str) -> None:
        client = ScrapeClient(Target("gpu-nodes", url, (), settings), None)
        await client.fetch()
        client.timeout.add_timeout()
        await client.fetch()
        assert target.seen["/m"]["x-prometheus-scrape-timeout-seconds"] == "10"
        await client.fetch()
        assert target.seen["/m"]["x-prometheus-scrape-timeout-seconds"] == "5"
        client.close()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a")) as target:
        asyncio.run(run(f"http://127.0.0.1:{target.port}/m"))


def test_only_timeouts_count_for_the_adaptive_timeout() -> None:
    settings = ScrapeSettings(timeout=0.2, adaptive_timeout=AdaptiveTimeout(1))

    async def run() -> list[float]:
        # The operating system accepts the connection, and nothing answers.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = ScrapeClient(
                Target("gpu-nodes", f"http://127.0.0.1:{silent.getsockname()[1]}/", (), settings), None
            )
            found = []
            with pytest.raises(HttpRequestFailed, match=r"scrape timeout of 0\.2 s"):
                await client.fetch()
            found.append(client.timeout.seconds)
        with pytest.raises(HttpRequestFailed, match="connect"):
            await client.fetch()
        client.close()
        return [*found, client.timeout.seconds]

    assert asyncio.run(run()) == [0.4, 0.4]

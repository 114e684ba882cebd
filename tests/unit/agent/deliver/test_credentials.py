"""Credentials and TLS of requests, also with files that change."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from certificates import Certificates
from gpuledger.agent.deliver.credentials import ReloadedCredentials
from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.deliver.receiver import Receiver
from gpuledger.agent.deliver.settings import ClientTls, Login, ReceiverSettings, Secret
from gpuledger.http.client_messages import HttpRequestFailed
from write_helpers import HandClock, ScriptedReceiver, block, receiving, run, sending, settings, until


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def server_context(certificates: Certificates, *, require_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
    if require_client:
        context.load_verify_locations(certificates.crt("ca"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def delivered_to(directory: Path, there: ReceiverSettings) -> tuple[int, str]:
    """Return the number of delivered samples and the error, once either is known."""
    async with sending(directory, there) as here:
        here.accept(block(1, 1))
        await until(lambda: here.state()[0].sent_samples or here.state()[0].failing, "an answer or a failure")
        state = here.state()[0]
        return state.sent_samples, state.last_error


@pytest.mark.parametrize(
    ("login", "header"),
    [
        (Login("Basic", Secret("päss"), Secret("me")), "Basic bWU6cMOkc3M="),
        (Login("Bearer", Secret("abc")), "Bearer abc"),
        (Login("Token", Secret("abc")), "Token abc"),
    ],
)
def test_credentials_are_in_every_request(tmp_path: Path, login: Login, header: str) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there:
            own = (("X-Scope-OrgID", Secret("team")),)
            assert await delivered_to(tmp_path, settings(there.url, login=login, headers=own)) == (1, "")
        (post,) = there.posts
        assert (post.headers["authorization"], post.headers["x-scope-orgid"]) == (header, "team")

    run(test)


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://receiver.example/write", True),
        ("http://127.receiver.example/write", True),
        ("http://127.0.0.1:9090/write", False),
        ("http://[::1]:9090/write", False),
        ("http://localhost:9090/write", False),
        ("https://receiver.example/write", False),
    ],
)
def test_unencrypted_credentials_to_another_machine_log_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str, warned: bool
) -> None:
    to = settings(url, login=Login("Bearer", Secret("abc")))
    Receiver(to, tmp_path, HandClock(), float, asyncio.sleep, MetadataStore()).close()
    assert ("credentials are sent unencrypted" in caplog.text) is warned


def test_a_changed_password_file_is_reloaded_and_nothing_is_sent_without_it(tmp_path: Path) -> None:
    clock = HandClock()
    file = tmp_path / "token"
    file.write_text("first\n")

    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there:
            target = settings(there.url, login=Login("Bearer", Secret(file=file)))
            async with sending(tmp_path / "queues", target, clock=clock) as here:

                async def send(number: int) -> None:
                    here.accept(block(1, number))
                    await until(lambda: not here.state()[0].queued_blocks, "delivery")

                await send(1)
                file.write_text("second\n")
                clock.now += 1
                await send(2)
                file.unlink()
                clock.now += 1
                here.accept(block(1, 3))
                await until(lambda: here.state()[0].failing, "a failure")
                assert here.state()[0].last_error == (
                    f"cannot read the credentials file {file}: No such file or directory"
                )
                file.write_text("third\n")
                clock.now += 1
                await until(lambda: not here.state()[0].queued_blocks, "delivery")
        assert [post.headers["authorization"] for post in there.posts] == [
            "Bearer first",
            "Bearer second",
            "Bearer third",
        ]

    run(test)


def test_a_secret_that_stays_unreadable_costs_no_more_memory(tmp_path: Path) -> None:
    missing = Login("Bearer", Secret(file=tmp_path / "missing"))
    credentials = ReloadedCredentials(ClientTls(), missing, HandClock(), encrypted=False)
    depths = []
    for _ in range(3):
        with pytest.raises(HttpRequestFailed) as failure:
            credentials.reload()
        depths.append(len(failure.traceback))
    assert depths[0] == depths[-1]


def test_secrets_are_not_in_the_log_or_the_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        there = ScriptedReceiver(
            lambda post: "401 No", body="refused: Basic bWU6aHVudGVyMg== (me:hunter2), X-Key: hunter2"
        )
        async with receiving(there):
            login = Login("Basic", Secret("hunter2"), Secret("me"))
            target = settings(
                there.url + "?key=hunter2", login=login, headers=(("X-Key", Secret("hunter2")),)
            )
            async with sending(tmp_path, target) as here:
                here.accept(block(1, 1))
                await until(lambda: here.state()[0].dropped["rejected"], "a rejection")
                assert here.state()[0].last_error == (
                    "the receiver returned HTTP status 401: refused: <hidden> (me:<hidden>), X-Key: <hidden>"
                )
                assert "hunter2" not in repr(here.state()) + repr(target.login) + caplog.text

    run(test)


def test_mutual_tls(tmp_path: Path, certificates: Certificates) -> None:
    tls = ClientTls(
        ca=Secret(file=certificates.crt("ca")),
        certificate=Secret(file=certificates.crt("client")),
        key=Secret(certificates.key("client").read_text()),
    )

    async def test() -> None:
        async with receiving(ScriptedReceiver(), server_context(certificates, require_client=True)) as there:
            assert await delivered_to(tmp_path, settings(there.url, tls=tls)) == (1, "")

    run(test)


@pytest.mark.parametrize(
    ("tls", "error"),
    [
        (lambda c: ClientTls(), "cannot verify the server's certificate: "),
        (
            lambda c: ClientTls(ca=Secret(file=c.crt("stranger"))),
            "cannot verify the server's certificate: ",
        ),
        (lambda c: ClientTls(ca=Secret(file=c.crt("ca")), server_name="other"), "Hostname mismatch"),
        (
            lambda c: ClientTls(ca=Secret(file=c.crt("broken"))),
            "broken.crt contains no PEM certificates",
        ),
        (lambda c: ClientTls(ca=Secret("x")), "the inline ca contains no PEM certificates"),
        (lambda c: ClientTls(ca=Secret(file=c.folder / "gone")), "gone: No such file"),
        (
            lambda c: ClientTls(
                ca=Secret(file=c.crt("ca")),
                certificate=Secret(file=c.crt("client")),
                key=Secret(file=c.key("server")),
            ),
            "cannot be used as client certificate and key: key values mismatch",
        ),
        (
            lambda c: ClientTls(
                ca=Secret(file=c.crt("ca")),
                certificate=Secret(file=c.crt("server")),
                key=Secret(file=c.folder / "encrypted.key"),
            ),
            "cannot be used as client certificate and key: ",
        ),
    ],
)
def test_a_tls_failure_sends_nothing_and_is_reported_in_one_line(
    tmp_path: Path, certificates: Certificates, tls: Callable[[Certificates], ClientTls], error: str
) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver(), server_context(certificates)) as there:
            sent, why = await delivered_to(tmp_path, settings(there.url, tls=tls(certificates)))
            assert (sent, there.posts) == (0, [])
            assert error in why
            assert "\n" not in why

    run(test)


def test_a_receiver_without_tls_gives_an_error_that_suggests_http(tmp_path: Path) -> None:
    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as there:
            port = there.sockets[0].getsockname()[1]
            _, why = await delivered_to(tmp_path, settings(f"https://127.0.0.1:{port}/"))
        assert why == (
            "TLS with the server failed: the server does not speak TLS (wrong version number); "
            "does it use http?"
        )

    run(test)


@pytest.mark.parametrize(
    "tls",
    [
        lambda c: ClientTls(verify=False),
        lambda c: ClientTls(ca=Secret(file=c.crt("ca")), server_name="localhost"),
        lambda c: ClientTls(ca=Secret(file=c.crt("ca")), min_version=13),
    ],
)
def test_tls_settings_that_accept_the_server(
    tmp_path: Path, certificates: Certificates, tls: Callable[[Certificates], ClientTls]
) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver(), server_context(certificates)) as there:
            assert await delivered_to(tmp_path, settings(there.url, tls=tls(certificates))) == (1, "")

    run(test)


def test_a_server_that_requires_a_client_certificate_gets_nothing_without_one(
    tmp_path: Path, certificates: Certificates
) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver(), server_context(certificates, require_client=True)) as there:
            tls = ClientTls(ca=Secret(file=certificates.crt("ca")))
            sent, why = await delivered_to(tmp_path, settings(there.url, tls=tls))
            assert sent == 0
            assert why

    run(test)

"""Who we say we are, whom we believe, and files that change under us."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from certificates import Certificates
from gpuledger.agent.deliver.receiver import Receiver
from gpuledger.agent.deliver.settings import ClientTls, Login, ReceiverSettings, Secret
from write_helpers import HandClock, ScriptedReceiver, block, receiving, run, sending, settings, until


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def server_context(certificates: Certificates, *, ask: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
    if ask:
        context.load_verify_locations(certificates.crt("ca"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def delivered_to(directory: Path, there: ReceiverSettings) -> tuple[int, str]:
    """How many samples arrived and what went wrong, once either is known."""
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
def test_the_login_is_in_every_request(tmp_path: Path, login: Login, header: str) -> None:
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
def test_credentials_that_leave_the_machine_unencrypted_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str, warned: bool
) -> None:
    Receiver(
        settings(url, login=Login("Bearer", Secret("abc"))), tmp_path, HandClock(), float, asyncio.sleep
    ).close()
    assert ("credentials go unencrypted" in caplog.text) is warned


def test_a_password_file_that_changes_is_read_anew_and_one_that_is_gone_sends_nothing(tmp_path: Path) -> None:
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
                    f"the credentials file {file} cannot be read: No such file or directory"
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


def test_no_secret_is_in_the_log_or_the_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
                await until(lambda: here.state()[0].dropped["rejected"], "a refusal")
                assert here.state()[0].last_error == (
                    "it answers 401: refused: <hidden> (me:<hidden>), X-Key: <hidden>"
                )
                assert "hunter2" not in repr(here.state()) + repr(target.login) + caplog.text

    run(test)


def test_tls_with_certificates_of_both_sides(tmp_path: Path, certificates: Certificates) -> None:
    tls = ClientTls(
        ca=Secret(file=certificates.crt("ca")),
        certificate=Secret(file=certificates.crt("client")),
        key=Secret(certificates.key("client").read_text()),
    )

    async def test() -> None:
        async with receiving(ScriptedReceiver(), server_context(certificates, ask=True)) as there:
            assert await delivered_to(tmp_path, settings(there.url, tls=tls)) == (1, "")

    run(test)


@pytest.mark.parametrize(
    ("tls", "error"),
    [
        (lambda c: ClientTls(), "its certificate is not believed: "),
        (lambda c: ClientTls(ca=Secret(file=c.crt("stranger"))), "its certificate is not believed: "),
        (lambda c: ClientTls(ca=Secret(file=c.crt("ca")), server_name="other"), "Hostname mismatch"),
        (
            lambda c: ClientTls(ca=Secret(file=c.crt("broken"))),
            "broken.crt holds no certificates in PEM form",
        ),
        (lambda c: ClientTls(ca=Secret("x")), "the inline ca holds no certificates in PEM form"),
        (lambda c: ClientTls(ca=Secret(file=c.folder / "gone")), "gone cannot be read: No such file"),
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
def test_who_is_not_believed_gets_nothing_and_one_line_says_why(
    tmp_path: Path, certificates: Certificates, tls: Callable[[Certificates], ClientTls], error: str
) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver(), server_context(certificates)) as there:
            sent, why = await delivered_to(tmp_path, settings(there.url, tls=tls(certificates)))
            assert (sent, there.posts) == (0, [])
            assert error in why
            assert "\n" not in why

    run(test)


def test_a_receiver_without_tls_is_suspected_to_be_one(tmp_path: Path) -> None:
    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as there:
            port = there.sockets[0].getsockname()[1]
            _, why = await delivered_to(tmp_path, settings(f"https://127.0.0.1:{port}/"))
        assert why == "no TLS connection: it does not speak TLS there (wrong version number); is it http?"

    run(test)


@pytest.mark.parametrize(
    "tls",
    [
        lambda c: ClientTls(verify=False),
        lambda c: ClientTls(ca=Secret(file=c.crt("ca")), server_name="localhost"),
        lambda c: ClientTls(ca=Secret(file=c.crt("ca")), min_version=13),
    ],
)
def test_a_server_is_believed_in_each_of_these_ways(
    tmp_path: Path, certificates: Certificates, tls: Callable[[Certificates], ClientTls]
) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver(), server_context(certificates)) as there:
            assert await delivered_to(tmp_path, settings(there.url, tls=tls(certificates))) == (1, "")

    run(test)


def test_a_server_that_wants_a_certificate_and_gets_none_takes_nothing(
    tmp_path: Path, certificates: Certificates
) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver(), server_context(certificates, ask=True)) as there:
            tls = ClientTls(ca=Secret(file=certificates.crt("ca")))
            sent, why = await delivered_to(tmp_path, settings(there.url, tls=tls))
            assert sent == 0
            assert why

    run(test)

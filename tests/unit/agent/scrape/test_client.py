"""Targets are asked within limits, and a login goes to its target alone."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certificates import Certificates
from gpuledger.agent.deliver.settings import ClientTls, Login, Secret
from gpuledger.agent.scrape.answer import Answer as Got
from gpuledger.agent.scrape.answer import AnswerReader, ScrapeFailed
from gpuledger.agent.scrape.client import Client, Request, TargetAccess
from gpuledger.host.clock import SystemClock
from scripted_target import Answer, scripted

LOGIN = Login("Bearer", Secret("s3cret"))


def fetched(request: Request, access: TargetAccess | None = None, times: int = 1) -> list[Got]:
    async def run() -> list[Got]:
        client = Client(request, access)
        try:
            return [await client.fetch() for _ in range(times)]
        finally:
            client.close()
            await asyncio.sleep(0)

    return asyncio.run(run())


def access(
    tls: ClientTls | None = None, login: Login | None = None, *, encrypted: bool = False
) -> TargetAccess:
    return TargetAccess(tls or ClientTls(), login, SystemClock(), encrypted=encrypted)


def test_a_page_comes_over_one_connection_again_and_again() -> None:
    with scripted(lambda path: Answer(f"a{path}")) as target:
        found = fetched(Request(f"http://127.0.0.1:{target.port}/m", 5.0), times=3)
        assert [answer.page() for answer in found] == [b"a/m"] * 3
        assert target.seen["/m"]["x-prometheus-scrape-timeout-seconds"] == "5"


def test_a_connection_that_was_closed_meanwhile_is_made_anew() -> None:
    with scripted(lambda path: Answer("a", headers=(("Connection", "close"),))) as target:
        assert len(fetched(Request(f"http://127.0.0.1:{target.port}/m", 5.0), times=2)) == 2


def test_a_slow_target_is_given_up() -> None:
    with (
        scripted(lambda path: Answer("a", delay=1.0)) as target,
        pytest.raises(ScrapeFailed, match=r"did not answer within 0.2 s"),
    ):
        fetched(Request(f"http://127.0.0.1:{target.port}/m", 0.2))


def test_another_status_is_a_failure() -> None:
    with (
        scripted(lambda path: Answer("a", status=503)) as target,
        pytest.raises(ScrapeFailed, match="status 503"),
    ):
        fetched(Request(f"http://127.0.0.1:{target.port}/m", 5.0))


def test_nobody_there_is_told_in_plain_words() -> None:
    with pytest.raises(ScrapeFailed, match="cannot connect: connection refused"):
        fetched(Request("http://127.0.0.1:1/m", 5.0))


def test_a_login_goes_to_its_target_and_not_where_that_leads() -> None:
    with scripted(lambda path: Answer("there")) as other:
        moved = Answer("", status=302, headers=(("Location", f"http://127.0.0.1:{other.port}/there"),))
        here = Answer("", status=302, headers=(("Location", "/here"),))

        def answer(path: str) -> Answer:
            return {"/away": moved, "/same": here}.get(path, Answer("here"))

        with scripted(answer) as target:
            for path, body in (("/away", b"there"), ("/same", b"here")):
                request = Request(f"http://127.0.0.1:{target.port}{path}", 5.0, cleartext_credentials=True)
                assert fetched(request, access(login=LOGIN))[0].body == body
            assert target.seen["/away"]["authorization"] == "Bearer s3cret"
            assert target.seen["/here"]["authorization"] == "Bearer s3cret"
            assert "authorization" not in other.seen["/there"]


def test_a_login_does_not_go_over_plain_http_unasked() -> None:
    with scripted(lambda path: Answer("a")) as target:
        with pytest.raises(ScrapeFailed, match="a login is not sent over plain http"):
            fetched(Request(f"http://127.0.0.1:{target.port}/m", 5.0), access(login=LOGIN))
        assert target.seen == {}


NOWHERE = ["http://h:99999/", "http://h:x/", "http://h:0/", "http://[::1/", "ftp://h/"]


@pytest.mark.parametrize("place", NOWHERE)
def test_a_redirect_to_nowhere_is_a_failure_in_one_line(place: str) -> None:
    with (
        scripted(lambda path: Answer("", status=302, headers=(("Location", place),))) as target,
        pytest.raises(ScrapeFailed, match="redirects to what is no http address"),
    ):
        fetched(Request(f"http://127.0.0.1:{target.port}/m", 5.0))


@pytest.mark.parametrize("host", ["gpu..node", "a" * 64, "\N{CJK UNIFIED IDEOGRAPH-4E2D}..node"])
def test_a_host_that_no_name_server_can_be_asked_for_is_not_known(host: str) -> None:
    with pytest.raises(ScrapeFailed, match=f"the host {host} is not known"):
        fetched(Request(f"http://{host}:9400/m", 5.0))


def test_a_name_beyond_ascii_is_asked_for_as_it_is_in_the_dns() -> None:
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in "localhost")
    with scripted(lambda path: Answer("a")) as target:
        fetched(Request(f"http://{wide}:{target.port}/m", 5.0))
        assert target.seen["/m"]["host"] == f"localhost:{target.port}"


def test_an_address_that_does_not_answer_holds_up_no_other_of_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted(lambda path: Answer("a")) as target, silent_address() as silent:
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", where)
            for where in (silent, ("127.0.0.1", target.port))
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        (answer,) = fetched(Request("http://gpu-node:9400/m", 30.0))
        assert answer.body == b"a"


@contextmanager
def silent_address() -> Iterator[tuple[str, int]]:
    """One at which nobody is refused and nobody is let in: its queue is full."""
    with socket.socket() as listening, ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
        yield listening.getsockname()


def test_redirects_that_go_round_end() -> None:
    with (
        scripted(lambda path: Answer("", status=302, headers=(("Location", path),))) as target,
        pytest.raises(ScrapeFailed, match="more than 10 times"),
    ):
        fetched(Request(f"http://127.0.0.1:{target.port}/m", 5.0))


def test_certificates_are_verified_and_shown(tmp_path: Path) -> None:
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
        request = Request(f"https://127.0.0.1:{target.port}/m", 5.0)
        found = fetched(request, access(shown, encrypted=True), times=2)
        assert [len(answer.body) for answer in found] == [200_000] * 2
        with pytest.raises(ScrapeFailed, match="certificate is not accepted"):
            fetched(request, access(stranger, encrypted=True))
        with pytest.raises(ScrapeFailed):
            fetched(request, access(ClientTls(ca=ca), encrypted=True))


@pytest.mark.parametrize("demanded", [False, True])
def test_a_client_certificate_is_not_shown_where_a_redirect_leads(demanded: bool, tmp_path: Path) -> None:
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
            request = Request(f"https://127.0.0.1:{target.port}/m", 5.0)
            if demanded:
                with pytest.raises(ScrapeFailed):
                    fetched(request, access(shown, encrypted=True))
            else:
                assert fetched(request, access(shown, encrypted=True))[0].body == b"there"


def test_a_token_is_read_anew_when_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")

    class Clock:
        now = 0.0

        def unix(self) -> float:
            return self.now

        def elapsed(self) -> float:
            return self.now

    clock = Clock()
    login = TargetAccess(ClientTls(), Login("Bearer", Secret(file=file)), clock, encrypted=False)

    async def run(port: int) -> None:
        client = Client(Request(f"http://127.0.0.1:{port}/m", 5.0, cleartext_credentials=True), login)
        await client.fetch()
        file.write_text("second, and longer")
        clock.now = 10.0
        await client.fetch()
        client.close()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a")) as target:
        asyncio.run(run(target.port))
        assert target.seen["/m"]["authorization"] == "Bearer second, and longer"


def test_a_page_that_unpacks_beyond_the_limit_is_refused() -> None:
    packed = gzip.compress(b"a" * 1_000_000)
    answer = Got(200, {"content-encoding": "gzip"}, packed)
    assert len(answer.page(1_000_000)) == 1_000_000
    with pytest.raises(ScrapeFailed, match="body size limit") as caught:
        answer.page(999_999)
    assert caught.value.oversized


@pytest.mark.parametrize(
    "body",
    [gzip.compress(b"a")[:-3], b"no gzip", gzip.compress(b"a") + b"rest"],
    ids=["cut", "no gzip", "more behind it"],
)
def test_a_broken_gzip_body_is_a_failure(body: bytes) -> None:
    with pytest.raises(ScrapeFailed, match="gzip body"):
        Got(200, {"content-encoding": "gzip"}, body).page()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 70))
def test_members_of_a_gzip_body_are_one_page_wherever_they_end(texts: list[bytes], piece: int) -> None:
    body = b"".join(map(gzip.compress, texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuledger.agent.scrape.answer._GZIP_PIECE", piece)
        assert Got(200, {"content-encoding": "gzip"}, body).page(4000) == b"".join(texts)


def test_a_gzip_body_of_ever_so_many_members_is_refused() -> None:
    """Each costs a look at what is behind it: with a megabyte of empty ones all waited for seconds."""
    with pytest.raises(ScrapeFailed, match="more than 1000 parts"):
        Got(200, {"content-encoding": "gzip"}, gzip.compress(b"") * 1001).page()


def test_chunks_of_a_byte_or_two_take_no_more_memory_than_they_are_counted_as() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    try:
        for _ in range(20):
            reader.feed(b"2\r\nab\r\n" * 1000)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 40_000 < taken < 80_000


def chunked(body: bytes, sizes: list[int]) -> bytes:
    parts, at = [], 0
    for size in sizes:
        piece = body[at : at + size]
        if piece:
            parts.append(b"%x;x=y\r\n%b\r\n" % (len(piece), piece))
        at += size
    if body[at:]:
        parts.append(b"%x\r\n%b\r\n" % (len(body[at:]), body[at:]))
    return b"".join(parts) + b"0\r\nTrailer: x\r\n\r\n"


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=50), st.lists(st.integers(1, 9), max_size=5), st.integers(1, 40), st.booleans())
def test_an_answer_is_the_same_however_it_is_cut(
    body: bytes, sizes: list[int], step: int, by_length: bool
) -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\n"
    if by_length:
        sent = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        sent = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, sizes)
    reader = AnswerReader()
    done = [reader.feed(sent[at : at + step]) for at in range(0, len(sent), step)]
    assert done == [False] * (len(done) - 1) + [True]
    assert reader.answer is not None
    assert (reader.answer.body, reader.answer.headers["a"], reader.keeps_open) == (body, "b", True)


BROKEN = [
    b"SSH-2.0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000,
]


@pytest.mark.parametrize("sent", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_answer_is_a_failure(sent: bytes) -> None:
    with pytest.raises(ScrapeFailed):
        AnswerReader().feed(sent)

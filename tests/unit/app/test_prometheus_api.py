"""Asking a Prometheus: what is sent, and what each way to fail says in one line."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import pytest

from gpuledger.app.prometheus_api import Prometheus
from gpuledger.cli.main import main
from gpuledger.model.errors import GpuledgerError, UsageError

VECTOR = {
    "status": "success",
    "data": {"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [1, "2.5"]}]},
}
MATRIX = {"status": "success", "data": {"result": [{"metric": {}, "values": [[1.5, "0"], [2.5, "0"]]}]}}
EMPTY = {"status": "success", "data": {"result": []}}
ODD_HEADERS = ["X:→", "→: x", "X: a\0b", "X: \udcff", "X: \x7f", "(X): a", "Content-Length: 3"]


class Answering:
    """A server that gives one answer to everything, and what it was asked."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer.asked.append((self.path, dict(self.headers), form))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}"


@contextmanager
def answering(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Iterator[Answering]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    one = Answering(status, raw, headers or {})
    thread = Thread(target=one.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()
        thread.join()


def test_a_query_is_posted_with_its_moment() -> None:
    with answering(VECTOR) as real:
        assert Prometheus(real.url + "/").vector("up", 12.3456) == [({"a": "b"}, 2.5)]
    ((path, _, form),) = real.asked
    assert (path, form["query"], form["time"]) == ("/api/v1/query", ["up"], ["12.346"])


def test_of_a_range_the_moments_are_told() -> None:
    with answering(MATRIX) as real:
        assert Prometheus(real.url).matrix("up[1m]", 3) == [({}, [1.5, 2.5])]


def test_a_prefix_and_what_follows_the_question_mark_are_kept() -> None:
    with answering(EMPTY) as real:
        Prometheus(real.host + "/prometheus/?tenant=a").vector("up", 0)
    assert real.asked[0][0] == "/prometheus/api/v1/query?tenant=a"


def test_compressed_answers_are_read() -> None:
    with answering(gzip.compress(json.dumps(VECTOR).encode()), headers={"Content-Encoding": "gzip"}) as real:
        assert Prometheus(real.url).vector("up", 0)


def test_who_asks_is_in_the_url_or_in_a_header_and_never_in_an_error() -> None:
    with answering(EMPTY, status=401) as real:
        client = Prometheus(f"http://ada:s%40cret@{real.host}", ["X-Scope-OrgID: team"])
        with pytest.raises(GpuledgerError, match="refuses \\(401\\)") as refused:
            client.vector("up", 0)
    sent = real.asked[0][1]
    assert sent["Authorization"] == "Basic " + base64.b64encode(b"ada:s@cret").decode()
    assert {name.lower(): value for name, value in sent.items()}["x-scope-orgid"] == "team"
    assert "cret" not in str(refused.value) + client.url


@pytest.mark.parametrize(
    ("body", "status", "headers", "words"),
    [
        (b"<html>hello</html>", 200, {}, "is not a Prometheus: it answers 200"),
        (b"not found", 404, {}, "is not a Prometheus: it answers 404"),
        (b"[]", 200, {}, "is not a Prometheus"),
        (b"\x1f\x8b broken", 200, {"Content-Encoding": "gzip"}, "is not a Prometheus"),
        (
            {"status": "error", "errorType": "timeout", "error": "query\ntimed out"},
            503,
            {},
            "timeout: query timed out",
        ),
        ({"status": "error", "error": "x" * 5000}, 400, {}, "answers error: xxx"),
        (b"", 302, {"Location": "https://elsewhere/"}, "sends elsewhere, to https://elsewhere/"),
        (b"", 403, {}, "refuses (403)"),
        (b"", 302, {"Location": "http://[::1"}, "sends elsewhere, to http://[::1: name that"),
        (b"", 307, {"Location": "http://h/" + "x" * 5000}, "sends elsewhere, to http://h/xxx"),
        (b"", 302, {"Location": "ftp://h/\x1b[2J"}, "sends elsewhere, to ftp://h/ [2J: name that"),
        (b"", 304, {}, "is not a Prometheus: it answers 304"),
        pytest.param(b"[" * 100_000, 200, {}, "is not a Prometheus", id="deep"),
        (b"\xff\xfe", 200, {}, "is not a Prometheus"),
        (gzip.compress(b"{}", mtime=0)[:-9], 200, {"Content-Encoding": "gzip"}, "is not a Prometheus"),
        ({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}, 200, {}, "is not a"),
        ({"status": "success", "data": {"resultType": "string", "result": "up"}}, 200, {}, "is not a"),
        ({"status": "success", "data": {"result": None}}, 200, {}, "is not a Prometheus"),
        (
            {"status": "success", "data": {"result": [{"metric": {"a": 1}, "value": [1, "2"]}]}},
            200,
            {},
            "is not",
        ),
        ({"status": "success", "data": {"result": [{"metric": [], "value": [1, "2"]}]}}, 200, {}, "is not a"),
        ({"status": "success", "data": {"result": [{"metric": {}, "value": [1, "x"]}]}}, 200, {}, "is not a"),
        ({"status": "success", "data": {"result": [{"metric": {}, "value": [1]}]}}, 200, {}, "is not a"),
        ({"status": "error", "error": "a\x1b[31mb\0c"}, 400, {}, "answers error: a [31mb c"),
    ],
)
def test_what_is_wrong_is_one_line(body: Any, status: int, headers: Mapping[str, str], words: str) -> None:
    with answering(body, status, headers) as real, pytest.raises(GpuledgerError) as failed:
        Prometheus(real.url).vector("up", 0)
    assert words in str(failed.value)
    assert "\n" not in str(failed.value)
    assert len(str(failed.value)) < 500


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e300"])
def test_what_is_no_number_is_absent(value: str) -> None:
    result = [{"metric": {"a": value}, "value": [1, value]}, {"metric": {}, "value": [1, "0"]}]
    with answering({"status": "success", "data": {"result": result}}) as real:
        assert Prometheus(real.url).vector("up", 0) == [({}, 0.0)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_end_is_not_read_to_it(packed: bool, status: int) -> None:
    body = b" " * (3 << 20)
    headers = {"Content-Encoding": "gzip"} if packed else {}
    with answering(gzip.compress(body) if packed else body, status, headers) as real:
        client = Prometheus(real.url, most=1 << 20)
        with pytest.raises(GpuledgerError, match=r"more than 1 MiB to one query.*--prometheus\.match"):
            client.vector("up", 0)


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_breaks_off_is_one_line(status: int) -> None:
    longer = {"Content-Length": "2000", "Connection": "close"}
    with answering(b"{}", status, longer) as real, pytest.raises(GpuledgerError, match="broke off"):
        Prometheus(real.url, timeout=1).vector("up", 0)


@pytest.mark.parametrize(
    ("url", "query"), [("http://a..b", "up"), (f"http://{'a' * 70}.b", "up"), ("http://h", "\udcff")]
)
def test_what_cannot_be_sent_is_one_line(url: str, query: str) -> None:
    with pytest.raises(GpuledgerError, match=r"cannot be (asked|reached)") as failed:
        Prometheus(url).vector(query, 0)
    assert "\n" not in str(failed.value)


def test_a_path_of_any_letters_is_quoted() -> None:
    with answering(EMPTY) as real:
        Prometheus(real.url + "/é%20x?t=ü").vector("up", 0)
    assert real.asked[0][0] == "/%C3%A9%20x/api/v1/query?t=%C3%BC"


def test_nobody_there_is_one_line() -> None:
    with answering(EMPTY) as gone:
        pass
    with pytest.raises(
        GpuledgerError, match=f"Prometheus at {gone.url} cannot be reached: Connection refused"
    ):
        Prometheus(gone.url).vector("up", 0)


@pytest.mark.parametrize(
    "url",
    [
        *("", "ftp://host", "http://", "http:///path", "file:///etc/passwd", "http://[::1", "http://::1]"),
        *(
            "http://h:x",
            "http://h:99999",
            "http://h:-1",
            "http://h:0",
            "h:9090x",
            "http://a b",
            "http://h/a b",
        ),
        *(
            "http://h\n",
            "http://h/\x1b",
            "http://h/\x7f",
            "http://h/\udcff",
            "http://h\u2100c",
            "http://[v1.x",
        ),
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="a URL such as") as refused:
        Prometheus(url)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://u:s3cret@h:x", "http://u:s3cret/w@h", "http://u:s3cret@[::1", "ftp://s3cret@h"]
)
def test_a_password_in_what_is_no_url_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        Prometheus(url)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "header", ["Authorization", "Authorization:", ": x", "A b: c", "A: b\r\nC: d", *ODD_HEADERS]
)
def test_what_is_no_header_is_refused_and_not_repeated(header: str) -> None:
    with pytest.raises(UsageError) as refused:
        Prometheus("http://host", [header])
    assert str(refused.value).endswith("is wanted")


# Through the command.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prometheus", "http://h", "--state-dir", "/x"], "which of them is to be asked?"),
        (["--prometheus", "http://h", "--by", "command"], "series of owners bear no command"),
        (["--prometheus", "http://h", "--by", "namespaces"], "did you mean 'namespace'?"),
        (["--prometheus", "http://h", "--since", "2099-01-01", "--until", "2099-02-01"], "not in the past"),
        (["--by", "node"], "--by node wants --prometheus"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anybody_is(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_prometheus_without_gpuledger_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(EMPTY) as real:
        assert main(["report", "--prometheus", real.url, "--since", "2d"]) == 1
    assert "has no gpuledger_device_energy_joules_total" in capsys.readouterr().err
    assert all(form["query"][0].startswith(("gpuledger_ticks_total[", "count(")) for _, _, form in real.asked)

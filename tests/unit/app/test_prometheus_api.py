"""The Prometheus API client: what it sends, and the one-line error of each failure."""

from __future__ import annotations

import base64
import gzip
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import pytest

from certificates import Certificates
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.cli.main import main
from gpuledger.model.checks import split_remedy
from gpuledger.model.errors import GpuledgerError, UsageError
from scripted_target import Answer, scripted

VECTOR = {
    "status": "success",
    "data": {"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [1, "2.5"]}]},
}
MATRIX = {"status": "success", "data": {"result": [{"metric": {}, "values": [[1.5, "0"], [2.5, "0"]]}]}}
EMPTY = {"status": "success", "data": {"result": []}}
ODD_HEADERS = ["X:→", "→: x", "X: a\0b", "X: \udcff", "X: \x7f", "(X): a", "Content-Length: 3"]


class ScriptedServer:
    """A server with one response to everything, and the received requests."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.requests: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer.requests.append((self.path, dict(self.headers), form))
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
def serving(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Iterator[ScriptedServer]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    server = ScriptedServer(status, raw, headers or {})
    thread = Thread(target=server.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.server.shutdown()
        server.server.server_close()
        thread.join()


def test_a_query_is_posted_with_its_evaluation_time() -> None:
    with serving(VECTOR) as real:
        assert PrometheusClient(real.url + "/").query_vector("up", 12.3456) == [({"a": "b"}, 2.5)]
    ((path, _, form),) = real.requests
    assert (path, form["query"], form["time"]) == ("/api/v1/query", ["up"], ["12.346"])


def test_answers_share_equal_texts_because_a_report_holds_many_answers() -> None:
    row = {"metric": {"uuid": "GPU-1 of node 7"}, "value": [0, "1"]}
    with serving({"status": "success", "data": {"result": [row, row]}}) as real:
        client = PrometheusClient(real.url)
        found = [labels["uuid"] for _ in range(2) for labels, _ in client.query_vector("up", 0)]
    assert found == ["GPU-1 of node 7"] * 4 and len(set(map(id, found))) == 1


def test_a_range_query_returns_the_sample_times() -> None:
    with serving(MATRIX) as real:
        assert PrometheusClient(real.url).query_sample_times("up[1m]", 3) == [({}, [1.5, 2.5])]


def test_path_prefix_and_query_of_the_url_are_kept() -> None:
    with serving(EMPTY) as real:
        PrometheusClient(real.host + "/prometheus/?tenant=a").query_vector("up", 0)
    assert real.requests[0][0] == "/prometheus/api/v1/query?tenant=a"


def test_compressed_responses_are_read() -> None:
    with serving(gzip.compress(json.dumps(VECTOR).encode()), headers={"Content-Encoding": "gzip"}) as real:
        assert PrometheusClient(real.url).query_vector("up", 0)


def test_credentials_from_url_or_header_are_sent_but_in_no_error() -> None:
    with serving(EMPTY, status=401) as real:
        client = PrometheusClient(f"http://ada:s%40cret@{real.host}", ["X-Scope-OrgID: team"])
        with pytest.raises(GpuledgerError, match=r"denies access \(401\)") as caught:
            client.query_vector("up", 0)
    sent = real.requests[0][1]
    assert sent["Authorization"] == "Basic " + base64.b64encode(b"ada:s@cret").decode()
    assert {name.lower(): value for name, value in sent.items()}["x-scope-orgid"] == "team"
    assert "cret" not in str(caught.value) + client.url


@pytest.mark.parametrize(
    ("body", "status", "headers", "words"),
    [
        (b"<html>hello</html>", 200, {}, "is not a Prometheus: its answer (200)"),
        (b"not found", 404, {}, "is not a Prometheus: its answer (404)"),
        # Prometheus while it starts, and proxies without one.
        (b"Service Unavailable", 503, {}, "answers 503; try again later"),
        (b"<html>Bad Gateway</html>", 502, {}, "answers 502; try again later"),
        (b"", 429, {}, "answers 429; try again later"),
        (b"{}", 500, {}, "answers 500; try again later"),
        (b"[]", 200, {}, "is not a Prometheus"),
        (b"\x1f\x8b broken", 200, {"Content-Encoding": "gzip"}, "is not a Prometheus"),
        (
            {"status": "error", "errorType": "timeout", "error": "query\ntimed out"},
            503,
            {},
            "timeout: query timed out",
        ),
        ({"status": "error", "error": "x" * 5000}, 400, {}, "rejects the query: error: xxx"),
        (b"", 302, {"Location": "https://elsewhere/"}, "redirects to https://elsewhere/"),
        (b"", 302, {"Location": "https://h/prom/api/v1/query"}, "redirects to https://h/prom; give that URL"),
        (b"", 302, {"Location": "https://h/in?to=/api/v1/query"}, "to https://h/in?to=/api/v1/query; give"),
        (b"", 403, {}, "denies access (403)"),
        (b"", 302, {"Location": "http://[::1"}, "redirects to http://[::1; give that"),
        (b"", 307, {"Location": "http://h/" + "x" * 5000}, "redirects to http://h/xxx"),
        (b"", 302, {"Location": "ftp://h/\x1b[2J"}, "redirects to ftp://h/ [2J; give that"),
        (b"", 304, {}, "is not a Prometheus: its answer (304)"),
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
        ({"status": "error", "error": "a\x1b[31mb\0c"}, 400, {}, "rejects the query: error: a [31mb c"),
    ],
)
def test_every_invalid_response_is_a_one_line_error(
    body: Any, status: int, headers: Mapping[str, str], words: str
) -> None:
    with serving(body, status, headers) as real, pytest.raises(GpuledgerError) as failed:
        PrometheusClient(real.url).query_vector("up", 0)
    assert words in str(failed.value)
    # What `doctor` shows as the remedy.
    assert split_remedy(failed.value)[1]
    assert "\n" not in str(failed.value)
    assert len(str(failed.value)) < 500


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"isPartial": True}, "isPartial"),
        (
            {"warnings": ["receive series from Addr: 10.0.0.1\nrpc error"]},
            "receive series from Addr: 10.0.0.1",
        ),
        (
            {"warnings": ["PromQL info: metric might not be a counter", "remote_read: 503"]},
            "remote_read: 503",
        ),
    ],
)
def test_an_answer_with_a_part_of_the_data_is_an_error(more: dict[str, Any], words: str) -> None:
    """Thanos, VictoriaMetrics and remote read answer so while a store is away: a bill would be too low."""
    with serving({**VECTOR, **more}) as real, pytest.raises(GpuledgerError) as failed:
        PrometheusClient(real.url).query_vector("up", 0)
    assert f"has only a part of the data: {words}" in str(failed.value)
    assert "\n" not in str(failed.value)
    assert split_remedy(failed.value)[1]


@pytest.mark.parametrize(
    "more",
    [
        {"isPartial": False},
        {"warnings": None},
        {"warnings": []},
        {"warnings": ["PromQL info: metric might not be a counter: tgi_request_success"]},
        {"warnings": ["No StoreAPIs matched for this query"]},
        {"infos": ["PromQL info: metric might not be a counter"]},
    ],
)
def test_remarks_on_a_query_are_no_lack_of_data(more: dict[str, Any]) -> None:
    with serving({**VECTOR, **more}) as real:
        assert PrometheusClient(real.url).query_vector("up", 0) == [({"a": "b"}, 2.5)]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e300"])
def test_infinite_and_nan_samples_are_omitted(value: str) -> None:
    result = [{"metric": {"a": value}, "value": [1, value]}, {"metric": {}, "value": [1, "0"]}]
    with serving({"status": "success", "data": {"result": result}}) as real:
        assert PrometheusClient(real.url).query_vector("up", 0) == [({}, 0.0)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("status", [200, 500])
def test_a_response_that_is_too_large_is_an_error(packed: bool, status: int) -> None:
    body = b" " * (3 << 20)
    headers = {"Content-Encoding": "gzip"} if packed else {}
    with serving(gzip.compress(body) if packed else body, status, headers) as real:
        client = PrometheusClient(real.url, max_body=1 << 20)
        with pytest.raises(GpuledgerError, match=r"one query with more than 1 MiB.*--prometheus\.match"):
            client.query_vector("up", 0)


@pytest.mark.parametrize("status", [200, 500])
def test_a_truncated_response_is_a_one_line_error(status: int) -> None:
    longer = {"Content-Length": "2000", "Connection": "close"}
    with (
        serving(b"{}", status, longer) as real,
        pytest.raises(GpuledgerError, match=r"broke the connection"),
    ):
        PrometheusClient(real.url, timeout=60).query_vector("up", 0)


@pytest.mark.parametrize(
    ("url", "query"), [("http://a..b", "up"), (f"http://{'a' * 70}.b", "up"), ("http://h", "\udcff")]
)
def test_a_query_that_cannot_be_sent_is_a_one_line_error(url: str, query: str) -> None:
    with pytest.raises(GpuledgerError, match=r"cannot be (queried|reached) ") as failed:
        PrometheusClient(url).query_vector(query, 0)
    assert "\n" not in str(failed.value)


def test_a_path_with_non_ascii_characters_is_quoted() -> None:
    with serving(EMPTY) as real:
        PrometheusClient(real.url + "/é%20x?t=ü").query_vector("up", 0)
    assert real.requests[0][0] == "/%C3%A9%20x/api/v1/query?t=%C3%BC"


def test_an_unreachable_server_is_a_one_line_error() -> None:
    with serving(EMPTY) as gone:
        pass
    with pytest.raises(
        GpuledgerError,
        match=rf"Prometheus at {gone.url} cannot be reached \(Connection refused\); start it there, or",
    ):
        PrometheusClient(gone.url).query_vector("up", 0)


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
def test_a_malformed_url_is_rejected(url: str) -> None:
    with pytest.raises(UsageError, match="a URL such as") as caught:
        PrometheusClient(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://u:s3cret@h:x", "http://u:s3cret/w@h", "http://u:s3cret@[::1", "ftp://s3cret@h"]
)
def test_the_error_for_a_malformed_url_does_not_repeat_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        PrometheusClient(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "header", ["Authorization", "Authorization:", ": x", "A b: c", "A: b\r\nC: d", *ODD_HEADERS]
)
def test_a_malformed_header_is_rejected_and_not_repeated(header: str) -> None:
    with pytest.raises(UsageError) as caught:
        PrometheusClient("http://host", [header])
    assert str(caught.value).endswith("expected a header such as 'Authorization: Bearer TOKEN'")


# Through the command.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prometheus", "http://h", "--state-dir", "/x"], "exclude each other"),
        (["--prometheus", "http://h", "--by", "command"], "owner series have no command label"),
        (["--prometheus", "http://h", "--by", "namespaces"], "did you mean 'namespace'?"),
        (
            ["--prometheus", "http://h", "--since", "2099-01-01", "--until", "2099-02-01"],
            "must be in the past",
        ),
        (["--prometheus", "http://h", "--by", "team,unit"], "owner series have no unit label"),
    ],
)
def test_invalid_arguments_are_rejected_before_the_first_query(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_prometheus_without_gpuledger_metrics_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(EMPTY) as real:
        assert main(["report", "--prometheus", real.url, "--since", "2d"]) == 1
    assert "has no gpuledger_device_energy_joules_total" in capsys.readouterr().err
    assert all(
        form["query"][0].startswith(("gpuledger_ticks_total[", "count(")) for _, _, form in real.requests
    )


def test_the_certificate_of_a_prometheus_has_a_remedy(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.crt("server"), certificates.key("server"))
    with scripted(lambda _: Answer("{}", "application/json"), context) as server:
        client = PrometheusClient(f"https://localhost:{server.port}")
        with pytest.raises(GpuledgerError, match=r"that is not trusted \(.*\); set SSL_CERT_FILE to"):
            client.query_vector("up", 1.0)


def test_the_wrong_scheme_of_a_url_is_named_with_the_right_one() -> None:
    with serving(b"Client sent an HTTP request to an HTTPS server.\n", 400) as real:
        for url, words in (
            (real.url, "its answer (400) to /api/v1/query is malformed; try https:// in --prometheus"),
            (real.url.replace("http:", "https:"), "does not speak TLS; try http:// in --prometheus"),
        ):
            with pytest.raises(GpuledgerError, match=re.escape(words)):
                PrometheusClient(url).query_vector("up", 0)


def test_a_proxy_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(
        GpuledgerError, match=r"through a proxy \(.*\); correct http_proxy in the environment, or"
    ):
        PrometheusClient("http://prometheus.example:9090").query_vector("up", 1.0)

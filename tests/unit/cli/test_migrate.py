"""`gpuledger migrate check`: exit codes, formats, pages from URLs and files, and one line for each error."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gpuledger.cli.main import main

OLD = b'# TYPE a gauge\na{gpu="0"} 1\nb 2\n'
NEW = b'# TYPE a gauge\na{gpu="0"} 1\n'


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    for name, content in (("old.txt", OLD), ("new.txt", NEW), ("old.txt.gz", gzip.compress(OLD))):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "a.yml").write_text("groups: [{name: g, rules: [{alert: A, expr: a > 1}]}]\n")
    (tmp_path / "b.yml").write_text(
        "groups: [{name: g, rules: [{alert: B, expr: 'b | 1'}, {alert: C, expr: b}]}]\n"
    )
    return tmp_path


def check(pages: Path, *flags: str, old: str = "old.txt", new: str = "new.txt") -> int:
    return main(["migrate", "check", "--old", str(pages / old), "--new", str(pages / new), *flags])


def test_the_exit_code_says_whether_something_changes(
    pages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(pages) == 1
    assert check(pages, old="old.txt.gz") == 1
    assert check(pages, old="new.txt") == 0
    assert capsys.readouterr().out.endswith("the pages agree\n")
    # With rules, only what they use counts.
    assert check(pages, "--rules", str(pages / "a.yml")) == 0
    assert check(pages, "--rules", str(pages / "b.yml")) == 1
    assert check(pages, "--rules", str(pages)) == 1
    assert capsys.readouterr().out.endswith("2 of 3 queries change\n")


def test_the_configuration_file_of_all_commands_is_accepted(
    pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pages / "c.yaml").write_text("source: simulator\nprice: {gpu_hour: 2}\n")
    monkeypatch.setenv("GPULEDGER_CONFIG", str(pages / "c.yaml"))
    assert check(pages, old="new.txt") == 0


def test_json_and_markdown(pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(pages, "--format", "json", "--rules", str(pages / "b.yml")) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["changes"], found["checked"]) == (1, True, 2)
    assert [one["kind"] for one in found["queries"]] == ["unread", "empty"]
    assert check(pages, "--format", "markdown", "--rules", str(pages / "b.yml")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# Migration check"
    table = [line for line in lines if line.startswith("| unread")]
    assert r"`b \| 1`" in table[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["migrate"], "migrate needs the command check; see gpuledger migrate --help"),
        (["migrate", "chek"], "unknown migrate command"),
        (["migrate", "check", "--old", "x"], "migrate check needs --new with a URL or a file of metrics"),
        (["migrate", "check", "more", "--old", "x", "--new", "x"], "takes no argument 'more'"),
        (["migrate", "check", "--old", "/none", "--new", "/none"], "--old: cannot read /none: No such file"),
        (["migrate", "check", "--old", "x", "--new", "x", "--format", "xml"], "table, json, markdown"),
        (["migrate", "check", "--old", "x", "--new", "x", "--old-target", "job"], "labels such as job="),
        (
            ["migrate", "check", "--old", "x", "--new", "x", "--rules", "/none"],
            "/none cannot be read: No such file",
        ),
    ],
)
def test_wrong_use_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_the_parser_only_queries_are_refused(
    pages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "promql_parser", None)
    assert check(pages) == 1
    capsys.readouterr()
    assert check(pages, "--rules", str(pages / "a.yml")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'gpuledger[migrate]'" in line


class _Exporter(BaseHTTPRequestHandler):
    """An exporter with a password, which answers with gzip."""

    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == "Basic YW5uOnNlY3JldA=="
        known = self.path == "/metrics"
        self.send_response(200 if allowed and known else 404 if allowed else 401)
        body = gzip.compress(OLD) if allowed and known else b""
        if body:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def exporter() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Exporter)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_behind_a_password(pages: Path, exporter: str, capsys: pytest.CaptureFixture[str]) -> None:
    (pages / "secret").write_text("secret\n")
    new = ["--new", str(pages / "old.txt")]
    login = ["--user", "ann", "--password-file", str(pages / "secret")]
    for url, more in ((f"http://ann:secret@{exporter}", []), (f"http://{exporter}/metrics", login)):
        assert main(["migrate", "check", "--old", url, *new, *more]) == 0
    capsys.readouterr()
    for url, message in (
        (
            f"http://{exporter}/metrics",
            "requires a login (401): give --user and --password-file, or user:password@ in --old",
        ),
        (f"http://ann:secret@{exporter}/other", "has no such page (404)"),
    ):
        assert main(["migrate", "check", "--old", url, *new]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
        assert "secret" not in line

"""Receipts from the API of nodes, and from files of their epilogs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuledger.app.slurm_receipts.node_receipts import KEEP_FILES, NodeReceipts
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.terminal.settings import NodeAccessSettings
from receipt_helpers import BEGIN, receipt
from slurm_jobs import job_row

NO_ACCESS = NodeAccessSettings()
Answers = dict[str, tuple[int, object]]


class Nodes:
    """Several nodes on one address: a node is the first part of the path."""

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.queries: list[tuple[str, dict[str, list[str]]]] = []
        nodes = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                node, _, path = parts.path.removeprefix("/").partition("/")
                nodes.queries.append((f"{node}/{path}", parse_qs(parts.query)))
                status, content = nodes.answers.get(node, (404, "no such node"))
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"http://127.0.0.1:{self.server.server_address[1]}/{{node}}"


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    thread = Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_each_node_of_the_job_is_read(nodes: Nodes) -> None:
    nodes.answers = {name: (200, receipt(f"{name}.cluster.local")) for name in ("n1", "n2")}
    found = NodeReceipts(nodes.place, NO_ACCESS, 5.0).read(job_row(nodes=("n1", "n2"), start=BEGIN + 100))
    assert [one["nodes"] for one in found] == [["n1"], ["n2"]]
    # Slurm's names of the nodes are those that people know.
    assert {one["gpus"][0]["node"] for one in found} | {one["hosts"][0]["node"] for one in found} == {
        "n1",
        "n2",
    }
    query = {"of": ["job:4711"], "since": [f"{BEGIN:.0f}"]}
    assert sorted(nodes.queries, key=repr) == [
        ("n1/api/v1/receipt", query),
        ("n2/api/v1/receipt", query),
    ]


def test_a_node_that_has_not_seen_the_job_has_no_receipt(nodes: Nodes) -> None:
    unknown = {"error": {"code": "unknown_owner", "message": "'job:4711' is not in the ledger"}}
    nodes.answers = {"n1": (200, receipt()), "n2": (404, unknown)}
    found = NodeReceipts(nodes.place, NO_ACCESS, 5.0).read(job_row(nodes=("n1", "n2")))
    assert [one["nodes"] for one in found] == [["n1"]]


FAILURES: dict[str, tuple[int, object, str]] = {
    "another program": (404, b"not found", "there is no gpuledger at"),
    "no such endpoint": (404, {"error": {"code": "not_found", "message": "no such endpoint"}}, "127.0.0.1"),
    "the API is off": (404, {"error": {"code": "not_served", "message": "off"}}, "127.0.0.1"),
    "a password": (401, b"", "requires a login"),
    "no permission": (403, b"", "denies access"),
    "a busy ledger": (503, {"error": {"code": "no_books", "message": "locked"}}, "locked"),
    "no JSON": (200, b"hello", "not a JSON object"),
    "no object": (200, [1], "not a JSON object"),
    "no receipt": (200, {}, "not a receipt"),
    "another version": (200, {"version": 99}, "version 99"),
    "an incomplete receipt": (200, {"version": 1, "nodes": []}, "incomplete"),
}


@pytest.mark.parametrize(("status", "body", "message"), FAILURES.values(), ids=FAILURES)
def test_without_all_nodes_there_is_no_sum(nodes: Nodes, status: int, body: object, message: str) -> None:
    nodes.answers = {"n1": (200, receipt()), "n2": (status, body)}
    with pytest.raises(GpuledgerError, match=message) as raised:
        NodeReceipts(nodes.place, NO_ACCESS, 5.0).read(job_row(nodes=("n1", "n2")))
    assert "\n" not in str(raised.value)


def test_a_node_that_failed_is_not_waited_for_again(nodes: Nodes) -> None:
    nodes.answers = {"n1": (503, b"")}
    source = NodeReceipts(nodes.place, NO_ACCESS, 5.0)
    for number in ("1", "2", "3"):
        with pytest.raises(GpuledgerError):
            source.read(job_row(number))
    assert len(nodes.queries) == 1


def test_a_url_without_the_node_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected a URL with \{node\}"):
        NodeReceipts("http://gpu1:9400", NO_ACCESS, 5.0)


def write(folder: Path, name: str, content: object) -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_files_of_epilogs(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        write(tmp_path, f"4711.{node}.json", receipt(f"{node}.local"))
    found = NodeReceipts(str(tmp_path), NO_ACCESS, 5.0).read(job_row(nodes=("n1", "n2")))
    assert [one["nodes"] for one in found] == [["n1"], ["n2"]]


@pytest.mark.parametrize("late", [[], ["n1"], ["n2"], ["n1", "n2"]])
def test_a_file_of_the_run_before_is_not_taken_for_that_of_a_requeued_job(
    tmp_path: Path, late: list[str]
) -> None:
    for node in ("n1", "n2"):
        made = BEGIN + 60 if node in late else BEGIN + 7200
        write(tmp_path, f"4711.{node}.json", receipt(node, made=made))
    job = job_row(nodes=("n1", "n2"), start=BEGIN + 3600, end=BEGIN + 7100)
    receipts = NodeReceipts(str(tmp_path), NO_ACCESS, 5.0)
    if not late:
        assert len(receipts.read(job)) == 2
        return
    with pytest.raises(GpuledgerError, match=f"the receipt of {late[0]} is of an earlier run of job 4711"):
        receipts.read(job)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda folder: None, r"4711\.n1\.json is missing: set Epilog="),
    "cut": (lambda folder: write(folder, "4711.n1.json", '{"version": 1'), "not a receipt in JSON"),
    "a directory": (lambda folder: (folder / "4711.n1.json").mkdir(), "cannot read"),
    "a pipe": (lambda folder: os.mkfifo(folder / "4711.n1.json"), "cannot read"),
    "deep": (lambda folder: write(folder, "4711.n1.json", "[" * 100_000), "not a receipt in JSON"),
}


@pytest.mark.parametrize(("make", "message"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_cannot_be_used(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path)
    with pytest.raises(GpuledgerError, match=message):
        NodeReceipts(str(tmp_path), NO_ACCESS, 5.0).read(job_row())


def test_old_files_of_epilogs_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("1.n1.json", "2.n1.json", "notes.json", "1.txt"):
        write(tmp_path, name, "{}")
    for name in ("1.n1.json", "notes.json", "1.txt"):
        old = (tmp_path / name).stat().st_mtime - KEEP_FILES - 60
        os.utime(tmp_path / name, (old, old))
    NodeReceipts(str(tmp_path), NO_ACCESS, 5.0).remove_old_files()
    assert {file.name for file in tmp_path.iterdir()} == {"2.n1.json", "notes.json", "1.txt"}

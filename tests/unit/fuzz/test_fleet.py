"""Fuzz tests of what `gpuledger fleet` and its clients read: lists, DNS, answers of nodes and fleets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from math import isfinite
from pathlib import Path
from typing import Any, cast
from unicodedata import category

import pytest
from hypothesis import given

from fuzzing import bounded, check_line, check_text, corpus_files, fuzzed, mutated_files, mutated_values
from gpuledger.app.node_ledgers import terms_of_fleet
from gpuledger.fleet.gpu_cells import parse_node_report
from gpuledger.fleet.lists.dns_nodes import MalformedAnswer, parse_answer
from gpuledger.fleet.lists.node_list import AddressDefaults, parse_node_lines, parse_target_groups
from gpuledger.fleet.lists.scheduler_nodes import PodNodes, parse_sinfo
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.fleet.node_client import decode_json
from gpuledger.http.client_messages import HttpResponse
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.statement.terms import StatementTerms
from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.fleet_picture import parse_fleet
from gpuledger.terminal.fleet_table import fleet_lines
from gpuledger.terminal.layout import glyphs_for, plain_text
from gpuledger.terminal.snapshot import parse_snapshot
from unit.fleet.support import body
from unit.fleet.test_fleet_api import Lab
from unit.terminal.support import device, holder, problem, process

DEFAULTS = AddressDefaults()
POD = {
    "metadata": {"name": "gpuledger-x"},
    "spec": {"nodeName": "gpu-1"},
    "status": {"phase": "Running", "podIP": "10.0.0.1"},
}
PODS = {"items": [POD, {**POD, "status": {"phase": "Pending"}}], "metadata": {"continue": ""}}
SNAPSHOT = body(
    "gpu-1",
    device("0", owners=[holder(user="ann"), holder(pod="p", namespace="n")], problems=[problem("xid")]),
    device("1", "1_0", state="idle", availability="free"),
    processes=[process()],
)
FLEET = Lab().json()
TERMS = Lab().json("/api/v1/fleet/terms")


def one_line(read: Callable[[], Any]) -> Any:
    """What is read; None if it is refused in one line."""
    with bounded():
        try:
            return read()
        except GpuledgerError as error:
            check_line(error)
            return None


def check_addresses(found: Sequence[NodeAddress] | None) -> None:
    for one in found or ():
        assert 0 < one.port < 65536
        assert one.scheme in ("http", "https")
        assert one.url.isprintable()
        assert not {category(sign) for sign in one.name} & {"Cc", "Cs", "Zl", "Zp"}
        assert not one.page or one.page.startswith(("http://", "https://"))
        check_text(one.url, one.host, one.name, one.page)


def read_list(content: bytes) -> None:
    text = content.decode("utf-8", "replace")
    for parse in (parse_node_lines, parse_target_groups):
        check_addresses(one_line(lambda parse=parse: parse(text, "nodes", DEFAULTS)))


def read_sinfo(content: bytes) -> None:
    check_addresses(one_line(lambda: parse_sinfo(content.decode("utf-8", "replace"), DEFAULTS)))


def read_dns(content: bytes) -> None:
    with bounded():
        try:
            found = parse_answer(content, 7)
        except MalformedAnswer:
            return
    for one in found.records:
        assert len(one.target) < 256
        place = f"{one.target}:{one.port}"
        check_addresses(one_line(lambda place=place: [DEFAULTS.parse_address(place, "DNS")]))


READERS: dict[str, Callable[[bytes], None]] = {
    "fleet-nodes": read_list,
    "fleet-sinfo": read_sinfo,
    "fleet-dns": read_dns,
}
FILES = [
    pytest.param(reader, path, id=f"{reader}-{path.name}")
    for reader in READERS
    for path in corpus_files(reader)
]


@pytest.mark.parametrize(("reader", "path"), FILES)
def test_each_file_of_the_corpus_is_read(reader: str, path: Path) -> None:
    READERS[reader](path.read_bytes())


@fuzzed
@given(mutated_files("fleet-nodes", b"targets", b"http://", b"@", b"[::1]", b":0", b":99999", b"__scheme__"))
def test_no_list_raises_another_error(content: bytes) -> None:
    read_list(content)


@fuzzed
@given(mutated_files("fleet-sinfo", b"|", b"gpu:", b"shard:", b"(null)", b"[1-9]"))
def test_no_output_of_sinfo_raises_another_error(content: bytes) -> None:
    read_sinfo(content)


@fuzzed
@given(mutated_files("fleet-dns", b"\xc0\x0c", b"\xff\xff", b"\x00\x21\x00\x01", b"\x3f"))
def test_no_answer_of_a_name_server_raises_another_error(content: bytes) -> None:
    read_dns(content)


def test_a_dns_answer_of_64_kib_is_read_in_time() -> None:
    """Thousands of records with names that point to one chain of labels, longer than a name can be."""
    labels = b"\x01a" * 16_000 + b"\0"
    record = b"\xc0\x0c" + b"\0\x21\0\x01\0\0\0\x3c\0\x08" + b"\0\0\0\0\0\x01" + b"\xc0\x0c"
    head = b"\0\x07\x84\x00\0\0\x05\xdc" + b"\0" * 4
    with pytest.raises(MalformedAnswer):
        parse_answer(head + labels + b"\0\x21\0\x01\0\0\0\x3c\0\x00" + record * 1499, 7)


class Pods:
    """An API server with one answer, also to the request for the rest of a list."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def send(self, _: object) -> tuple[int, bytes]:
        return 200, self.content


@fuzzed
@given(mutated_values(PODS))
def test_no_list_of_pods_raises_another_error(content: Any) -> None:
    access = ApiServerAccess("http://10.0.0.1:443")
    nodes = PodNodes("app=x", DEFAULTS, access, cast("Any", Pods(json.dumps(content).encode())))
    check_addresses(one_line(lambda: asyncio.run(nodes.read_nodes())))


def test_a_list_of_pods_without_end_is_refused() -> None:
    content = json.dumps({"items": [POD] * 500, "metadata": {"continue": "more"}}).encode()
    access = ApiServerAccess("http://10.0.0.1:443")
    nodes = PodNodes("app=x", DEFAULTS, access, cast("Any", Pods(content)))
    with pytest.raises(GpuledgerError, match="at most 10,000"):
        asyncio.run(nodes.read_nodes())


def check_lines(lines: Iterable[str]) -> None:
    for line in lines:
        check_text(line)
        assert line.isprintable(), repr(line)


@fuzzed
@given(mutated_values(SNAPSHOT))
def test_no_snapshot_of_a_node_raises_another_error(content: Any) -> None:
    response = HttpResponse(200, body=json.dumps(content).encode())
    report = one_line(lambda: parse_node_report(decode_json(response)))
    if report is None:
        return
    for cell in report.cells:
        for number in (cell.utilization, cell.memory_used, cell.memory_total, cell.power, cell.processes):
            assert number is None or (isfinite(number) and number >= 0)
    check_lines([report.node, report.program, report.trouble])
    check_lines(text for cell in report.cells for text in (cell.uuid, cell.gpu, cell.model, cell.problem))
    check_lines(owner.name for cell in report.cells for owner in cell.owners)


@fuzzed
@given(mutated_values(SNAPSHOT))
def test_top_reads_or_refuses_every_snapshot(content: Any) -> None:
    one_line(lambda: parse_snapshot(json.loads(json.dumps(content))))


class Terms:
    """A fleet with these terms."""

    url = "http://fleet:9410"

    def __init__(self, content: Any) -> None:
        self._content = content

    def terms(self) -> Any:
        return json.loads(json.dumps(self._content))


@fuzzed
@given(mutated_values(TERMS))
def test_no_prices_of_a_fleet_raise_another_error(content: Any) -> None:
    here = StatementTerms("owner", "", Prices(), (), UTC)
    one_line(lambda: terms_of_fleet(cast("Any", Terms(content)), here, {}))


@fuzzed
@given(mutated_values(FLEET))
def test_top_shows_or_refuses_every_answer_of_a_fleet(content: Any) -> None:
    picture = one_line(lambda: parse_fleet(json.loads(json.dumps(content))))
    if picture is not None:
        with bounded():
            lines = fleet_lines(picture, [], "http://fleet:9410", 120, glyphs_for("utf-8"))
        check_lines(map(plain_text, lines))

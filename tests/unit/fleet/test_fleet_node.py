"""One node that is up, slow, gone, restarted or of another version: it costs only itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.fleet.fleet_node import FleetNode
from gpuledger.fleet.node_client import NodeCredentials, NodeRequestFailed
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.http.client_messages import HttpResponse
from gpuledger.web.api.responses import run_of_etag
from unit.fleet.support import ScriptedNodes, address, answer, body
from unit.terminal.support import NOW, device

URL = "http://gpu-1:9400"
GONE = NodeRequestFailed("cannot connect: connection refused", "connect")
SLOW = NodeRequestFailed("no complete answer within 5 s", "slow")


class OneNode:
    """A node of which a test chooses the answers."""

    def __init__(self) -> None:
        self.nodes, self.clock, self.changes = ScriptedNodes(), FakeClock(NOW), 0
        where = address("gpu-1")
        client = self.nodes.client(where, NodeCredentials(ClientAccessSettings()), 5.0)
        self.node = FleetNode(where, client, self.clock, 5.0, self._count)

    def _count(self, _: FleetNode) -> None:
        self.changes += 1

    def read(self, found: Any) -> FleetNode:
        self.nodes.answers[URL] = found
        asyncio.run(self.node.read_once())
        self.clock.advance(10.0)
        return self.node


@pytest.fixture
def one() -> OneNode:
    return OneNode()


def test_a_node_that_answers_is_up_and_has_its_own_name(one: OneNode) -> None:
    node = one.read(answer(body("node-a")))
    assert (node.is_up, node.name, node.read_at, node.run) == (True, "node-a", NOW, "18c")


def test_a_node_that_is_gone_keeps_its_last_report_and_says_since_when(one: OneNode) -> None:
    one.read(answer(body()))
    one.read(GONE)
    node = one.read(GONE)
    assert (node.status.kind, node.status.since, node.read_at) == ("connect", NOW + 10, NOW)
    assert node.report is not None


def test_another_reason_does_not_begin_the_outage_again(one: OneNode) -> None:
    one.read(answer(body()))
    one.read(SLOW)
    assert one.read(GONE).status.since == NOW + 10
    assert one.read(answer(body())).is_up
    assert one.read(GONE).status.since == NOW + 40


def test_a_node_that_never_answered_says_since_its_first_failure(one: OneNode) -> None:
    assert one.read(GONE).status.since == NOW


def test_a_node_that_fails_is_read_less_often_and_then_as_before(one: OneNode) -> None:
    pauses = [one.read(GONE).pause for _ in range(6)]
    assert pauses == [10, 20, 40, 60, 60, 60]
    assert one.read(answer(body())).pause == 5


def test_an_unchanged_snapshot_is_not_sent_again(one: OneNode) -> None:
    one.read(answer(body()))
    node = one.read(HttpResponse(304))
    assert one.nodes.requests[-1][2] == {"If-None-Match": 'W/"18c-7"'}
    assert (node.is_up, node.read_at) == (True, NOW + 10)


def test_a_304_without_a_snapshot_is_an_error_of_the_node(one: OneNode) -> None:
    assert not one.read(HttpResponse(304)).is_up


@pytest.mark.parametrize("found", [{"version": "v9"}, {}, [], "text", body(devices=None)])
def test_an_answer_that_is_no_snapshot_is_a_status(one: OneNode, found: object) -> None:
    node = one.read(HttpResponse(200, {}, b"\xff") if found == "text" else answer(found))
    assert node.status.kind in ("version", "foreign")


def test_a_paused_node_is_up_to_date_but_not_up(one: OneNode) -> None:
    one.read(answer(body()))
    paused = body(status={"text": "paused until 12:00", "readings": False, "paused": True})
    one.read(answer(paused))
    node = one.read(answer(paused))
    assert (node.is_up, node.status.text, node.status.since) == (False, "paused until 12:00", NOW + 10)


def test_a_restart_replaces_what_was_known(one: OneNode) -> None:
    one.read(answer(body("gpu-1", device("0"))))
    node = one.read(answer(body("gpu-1", device("3"), device("4")), 'W/"18d-1"'))
    assert node.run == "18d"
    assert node.report is not None
    assert [cell.gpu for cell in node.report.cells] == ["3", "4"]


@pytest.mark.parametrize(("ahead", "shown"), [(0, None), (30, None), (-30, None), (300, 300), (-3600, -3600)])
def test_a_wrong_clock_is_known_and_changes_no_times_of_the_fleet(
    one: OneNode, ahead: float, shown: float | None
) -> None:
    node = one.read(answer(body(unix=NOW + ahead)))
    assert (node.skew, node.read_at) == (shown, NOW)


OLD = {
    "unchanged": ({}, [HttpResponse(304)] * 20),
    "paused": ({"status": {"text": "paused", "readings": False, "paused": True}}, [HttpResponse(304)] * 20),
    "paused before the fleet began": ({"unix": NOW - 3600, "status": {"text": "paused", "paused": True}}, []),
}


@pytest.mark.parametrize(("changes", "later"), OLD.values(), ids=OLD)
def test_an_old_report_is_no_wrong_clock(
    one: OneNode, changes: dict[str, Any], later: list[HttpResponse]
) -> None:
    node = one.read(answer(body(**{"unix": NOW, **changes})))
    for found in later:
        one.read(found)
    assert node.skew is None


def test_simulated_time_is_no_wrong_clock(one: OneNode) -> None:
    assert one.read(answer(body(unix=5.0, source={"simulated": True}))).skew is None


def test_a_surprise_is_a_status_too(one: OneNode) -> None:
    assert one.read(ZeroDivisionError()).status.kind == "broken"


@pytest.mark.parametrize(
    ("etag", "run"), [('W/"18c-7"', "18c"), ('"18c-7"', "18c"), ("", ""), ('"abc"', ""), ('W/"a-b"', "")]
)
def test_the_run_is_in_the_etag(etag: str, run: str) -> None:
    assert run_of_etag(etag) == run

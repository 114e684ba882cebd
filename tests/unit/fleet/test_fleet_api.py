"""The API and the page of the fleet."""

from __future__ import annotations

import asyncio
import gzip
import json
from datetime import UTC
from itertools import pairwise
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.fleet.fleet import NodeFleet
from gpuledger.fleet.fleet_api import BOOKS_PATH, FLEET_PATH, TERMS_PATH, FleetApi, fleet_routes
from gpuledger.fleet.idle_week import IdleWeek
from gpuledger.fleet.lists.node_list import InvalidEntries, UnreadableList
from gpuledger.fleet.page.page_files import FLEET_PAGE
from gpuledger.http.routes import Request, Response, Routes
from gpuledger.ledger.report.price_entries import GPU_HOUR, price_parser
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.statement.terms import StatementTerms, parse_terms
from gpuledger.ledger.report.teams import parse_teams
from gpuledger.model.errors import GpuledgerError, UsageError
from unit.fleet.support import ListedNodes, ScriptedNodes, a_fleet, address, body, read_all
from unit.terminal.support import NOW, device, holder

PRICES = Prices(gpu_hour=price_parser(GPU_HOUR)("2.50"), currency="EUR")
TEAMS = parse_teams([{"team": "vision", "namespace": "vision-*"}])


def routes_of(fleet: NodeFleet, clock: FakeClock) -> Routes:
    week = IdleWeek(lambda: fleet.nodes, PRICES, UTC, clock)
    api = FleetApi(fleet, week, lambda: StatementTerms("owner", "", PRICES, TEAMS, UTC))
    return fleet_routes(api, lambda: fleet.unready_reason)


class Lab:
    """A fleet of two nodes, one of which is gone."""

    def __init__(self) -> None:
        self.nodes = ScriptedNodes({"http://a:9400": body("a", device("0", owners=[holder(user="ann")]))})
        self.listed = ListedNodes(address("a"), address("b"))
        self.fleet, self.clock = a_fleet(self.nodes, self.listed)
        self.routes = routes_of(self.fleet, self.clock)
        self.read()

    def read(self) -> None:
        asyncio.run(read_all(self.fleet))

    def get(self, path: str, **headers: str) -> Response:
        bare, _, query = path.partition("?")
        found = self.routes.respond(Request("GET", bare, query, headers))
        assert isinstance(found, Response)
        return found

    def json(self, path: str = FLEET_PATH) -> Any:
        return json.loads(self.get(path).body)


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_the_answer_has_all_nodes_in_the_order_of_the_lists(lab: Lab) -> None:
    found = lab.json()
    assert (found["version"], found["now"]) == ("v1", NOW)
    assert [node["name"] for node in found["nodes"]] == ["a", "b"]
    assert found["keys"] == ["http://a:9400", "http://b:9400"]
    assert found["nodes"][0]["gpus"][0]["owners"][0]["group"] == "ann"


def test_a_client_that_has_the_state_gets_304_and_one_with_a_part_gets_the_rest(lab: Lab) -> None:
    first = lab.get(FLEET_PATH)
    tag = dict(first.headers)["ETag"]
    assert lab.get(FLEET_PATH, **{"if-none-match": tag}).status == 304
    revision = json.loads(first.body)["revision"]
    lab.nodes.answers["http://b:9400"] = body("b", device("5"))
    lab.read()
    found = lab.json(f"{FLEET_PATH}?since={revision}")
    assert ([node["key"] for node in found["nodes"]], found["complete"]) == (["http://b:9400"], False)


@pytest.mark.parametrize(
    "revision", ["18c-1", "1", "-1", "x", "{run}-999999999", "{run}-x", "{run}-" + "9" * 40, ""]
)
def test_a_revision_of_another_run_gets_everything(lab: Lab, revision: str) -> None:
    found = lab.json(f"{FLEET_PATH}?since={revision.format(run=lab.fleet.run)}")
    assert (len(found["nodes"]), found["complete"]) == (2, True)


def test_answers_are_compressed_on_request(lab: Lab) -> None:
    plain = lab.get(FLEET_PATH)
    packed = lab.get(FLEET_PATH, **{"accept-encoding": "gzip"})
    assert json.loads(gzip.decompress(packed.body))["nodes"] == json.loads(plain.body)["nodes"]


def test_lists_that_cannot_be_read_are_named(lab: Lab) -> None:
    lab.listed.error = GpuledgerError("no such file")
    lab.read()
    (state,) = lab.json()["lists"]
    assert (state["error"], state["nodes"], state["since"]) == ("no such file", 2, NOW)


LISTS: dict[str, list[Exception | None]] = {
    "fails": [None, UnreadableList("no answer")],
    "recovers": [UnreadableList("no answer"), None],
    "fails in another way": [UnreadableList("no answer"), UnreadableList("refused")],
    "has a wrong entry": [None, InvalidEntries([address("a"), address("b")], [UsageError("line 3")])],
    "fails for some time": [UnreadableList("no answer")] * 3,
    "does not change": [None] * 3,
}


@pytest.mark.parametrize("errors", LISTS.values(), ids=LISTS)
def test_a_client_gets_304_only_for_what_it_has(lab: Lab, errors: list[Exception | None]) -> None:
    answers = []
    for error in errors:
        lab.listed.error = error
        lab.clock.advance(30)
        lab.read()
        shown = {key: value for key, value in lab.json().items() if key not in ("now", "revision")}
        answers.append((dict(lab.get(FLEET_PATH).headers)["ETag"], shown))
    for (tag, shown), (next_tag, next_shown) in pairwise(answers):
        assert (tag == next_tag) == (shown == next_shown)


def test_names_cannot_become_markup(lab: Lab) -> None:
    evil = '<script>alert("x")</script>'
    lab.nodes.answers["http://a:9400"] = body(evil, device("0", name=evil, owners=[holder(user=evil)]))
    lab.read()
    answer = lab.get(FLEET_PATH)
    assert answer.content_type.startswith("application/json")
    assert json.loads(answer.body)["nodes"][0]["name"] == evil


def test_the_terms_are_those_that_reports_read(lab: Lab) -> None:
    terms = parse_terms(lab.json(TERMS_PATH))
    assert (terms.prices, terms.teams, terms.zone) == (PRICES, TEAMS, UTC)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{FLEET_PATH}?x=1", "bad_request"),
        (f"{BOOKS_PATH}?node=nobody", "not_found"),
        ("/api/v1/nothing", "not_found"),
    ],
)
def test_wrong_requests_are_errors_of_the_api(lab: Lab, path: str, code: str) -> None:
    assert lab.json(path)["error"]["code"] == code


def test_the_page_names_only_its_files_and_shares_those_of_a_node(lab: Lab) -> None:
    document = lab.get("/")
    assert b"<!--" not in document.body
    assert b'id="i-held"' in document.body
    assert "script-src 'self'" in dict(document.headers)["Content-Security-Policy"]
    assert {"fleet.js", "fleet.css", "gpu_cells.js", "dom.js", "names.js", "style.css"} <= set(
        FLEET_PAGE.names
    )
    for name in FLEET_PAGE.names:
        assert lab.get(f"/page/{name}").status == 200, name
    assert lab.get("/page/app.js").status == 404
    assert lab.get("/page/../page_files.py").status == 404


def test_probes_say_whether_the_lists_were_read() -> None:
    fleet, clock = a_fleet(ScriptedNodes(), ListedNodes())
    routes = routes_of(fleet, clock)
    ready = Request("GET", "/-/ready")
    assert routes.respond(ready).status == 503  # type: ignore[union-attr]
    asyncio.run(fleet.refresh())
    assert routes.respond(ready).status == 200  # type: ignore[union-attr]

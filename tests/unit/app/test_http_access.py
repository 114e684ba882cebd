"""With access.mode own, a name over HTTP reads own rows and nothing of others: by guesses and by caches."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builders import FakeClock, gpu, node_state, process, reading, snapshot
from gpuledger.app.http_access import guard_routes
from gpuledger.app.ledger_requests import LedgerRequests
from gpuledger.app.readers import Readers
from gpuledger.config.access import AccessSettings
from gpuledger.host.users import PasswdUsers
from gpuledger.http.routes import PROBES, Request, Response, Routes, text_response
from gpuledger.ledger.store.history import History
from gpuledger.model.session import LedgerState, SessionRow
from gpuledger.outputs.responses import health_routes
from gpuledger.web.api.api import Api, ApiOptions
from gpuledger.web.api.endpoints import ENDPOINTS
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.routes import API_PREFIX, RECEIPT_PREFIX, api_handler, receipt_handler
from ledger_helpers import UNIX
from people_books import assert_no_secret as assert_no_secret_text
from people_books import record_people
from running import PATIENCE

SETTINGS = AccessSettings("own", (("dan", "dan"), ("ann", "annsecret"), ("eve", "eve")), ("boss",))
# Of the commands, in the forms of their flags.
DATES = "since=2023-11-13&until=2023-11-17"
RANGE = f"since={UNIX - 3600:.0f}&until={UNIX + 86_400:.0f}"


@dataclass
class Node:
    """The routes of a node, in one event loop."""

    routes: Routes
    loop: asyncio.AbstractEventLoop
    api: Api

    def get(self, target: str, user: str, method: str = "GET", **headers: str) -> Response:
        path, _, query = target.partition("?")
        given = {name.replace("_", "-"): text for name, text in headers.items()}

        async def within() -> Response:
            answer = self.routes.respond(Request(method, path, query, given, "", user))
            return answer if isinstance(answer, Response) else await asyncio.wait_for(answer, PATIENCE)

        return self.loop.run_until_complete(within())

    def json(self, target: str, user: str) -> Any:
        return json.loads(self.get(target, user).body)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_people(tmp_path_factory.mktemp("http"))


@pytest.fixture
def node(file: Path, tmp_path: Path) -> Iterator[Node]:
    with node_of(file, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def lonely_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a machine that dan has alone."""
    return record_people(tmp_path_factory.mktemp("lonely"), alone=True)


@contextmanager
def node_of(file: Path, tmp_path: Path) -> Iterator[Node]:
    clock = FakeClock(UNIX + 10_000)
    access = LedgerAccess(clock, lambda: History(file))
    state = node_state(None)
    passwd = tmp_path / "passwd"
    passwd.write_text("dan:x:1001:100::/:/bin/sh\n")
    readers = Readers(SETTINGS, PasswdUsers(str(passwd)))
    commands = LedgerRequests(dict, lambda: state, access, lambda: readers, {"NODE_NAME": "node-1"})
    api, options = Api(state, access, clock), ApiOptions("node-1", run_command=commands.answer)
    exact = {
        "/": lambda _: text_response("the page"),
        "/plain": lambda _: text_response("annsecret"),
        "/metrics": lambda _: text_response("annsecret"),
        **health_routes(lambda: state),
    }
    below = {
        API_PREFIX: api_handler(api, options),
        RECEIPT_PREFIX: receipt_handler(api, options),
        "/page/": lambda _: text_response("a picture"),
    }
    loop = asyncio.new_event_loop()
    yield Node(Routes(guard_routes(exact, readers), guard_routes(below, readers)), loop, api)
    loop.close()


def assert_no_secret(response: Response) -> None:
    assert_no_secret_text(response.body.decode() + repr(response.headers))


@pytest.mark.parametrize(
    ("path", "dan", "boss"),
    [
        ("/", 200, 200),
        ("/page/logo.svg", 200, 200),
        ("/plain", 403, 200),
        ("/metrics", 403, 200),
        ("/api/v1/snapshot", 200, 200),
        (f"/api/v1/energy?{RANGE}", 200, 200),
        (f"/api/v1/sessions?{RANGE}", 200, 200),
        (f"/api/v1/report?{DATES}", 200, 200),
        (f"/api/v1/explain?of=user:dan&{DATES}", 200, 200),
        ("/api/v1/openapi.json", 200, 200),
        ("/api/v1/recent", 403, 200),
        ("/api/v1/xids", 403, 200),
        ("/api/v1/health", 403, 200),
    ],
)
def test_a_name_in_the_settings_is_needed(node: Node, path: str, dan: int, boss: int) -> None:
    for nobody in ("", "mallory", "root", "annsecret"):
        refused = node.get(path, nobody)
        assert refused.status == 403
        assert_no_secret(refused)
    assert (node.get(path, "dan").status, node.get(path, "boss").status) == (dan, boss)


@pytest.mark.parametrize("path", sorted(PROBES))
def test_health_needs_no_name(node: Node, path: str) -> None:
    assert node.get(path, "").status in (200, 503)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: one.name)
def test_each_endpoint_is_filtered_or_for_administrators(node: Node, endpoint: Any) -> None:
    """Whatever a user requests, no name of others is in the response."""
    if endpoint.name == "events":
        pytest.skip("a stream: see test_streams_have_no_numbers_of_sessions")
    query = {"sessions": f"?{RANGE}", "energy": f"?{RANGE}", "explain": f"?of=user:dan&{DATES}"}
    found = node.get(endpoint.path + query.get(endpoint.name, ""), "dan")
    assert found.status in (200, 400, 404) if endpoint.own else found.status == 403
    assert_no_secret(found)


FILTERS = [
    "user=annsecret",
    "user=",
    "user=dan",
    "pod=secretpod",
    "namespace=secretspace",
    "gpu=0",
    "gpu=1",
    "state=open",
    "state=closed",
]


@pytest.mark.parametrize("query", FILTERS)
def test_filters_select_among_own_sessions(node: Node, query: str) -> None:
    found = node.json(f"/api/v1/sessions?{RANGE}&limit=1000&{query}", "dan")
    assert {one["user"] for one in found["sessions"]} <= {"dan", "1001"}
    assert {one["pid"] // 1000 for one in found["sessions"]} <= {4}
    assert_no_secret(node.get(f"/api/v1/sessions?{RANGE}&{query}", "dan"))


@pytest.mark.parametrize("by", ["owner", "user", "gpu", "namespace", "command", "auto", "label:team", "job"])
def test_totals_are_sums_of_own_rows(node: Node, by: str) -> None:
    mine = node.json(f"/api/v1/energy?{RANGE}&by={by}&limit=1000", "dan")
    assert mine["own"] == mine["not_billed"] == []
    assert mine["total"]["millijoules"] == sum(row["millijoules"] for row in mine["rows"])
    assert mine["total"]["gpu_microseconds"] == sum(row["gpu_microseconds"] for row in mine["rows"])
    assert_no_secret(node.get(f"/api/v1/energy?{RANGE}&by={by}&limit=1000", "dan"))
    everything = node.json(f"/api/v1/energy?{RANGE}&by={by}&limit=1000", "boss")
    assert everything["total"]["millijoules"] > mine["total"]["millijoules"]


def test_rows_equal_those_of_an_administrator(node: Node) -> None:
    mine, full = (
        {
            tuple(row["key"]): row
            for row in node.json(f"/api/v1/energy?{RANGE}&by=owner&limit=1000", who)["rows"]
        }
        for who in ("dan", "boss")
    )
    for key, row in mine.items():
        exact = ("millijoules", "gpu_microseconds", "measured_joules", "high_joules", "held_gpu_seconds")
        assert {name: row[name] for name in exact} == {name: full[key][name] for name in exact}


def test_equal_requests_of_two_users_share_nothing(node: Node) -> None:
    """The same path and query, at once and one after the other, cached or not."""
    for target in (
        f"/api/v1/energy?{RANGE}&by=user",
        f"/api/v1/sessions?{RANGE}",
        f"/api/v1/report?{DATES}&by=user",
    ):

        async def both(target: str = target) -> list[Response]:
            path, _, query = target.partition("?")
            answers = [
                node.routes.respond(Request("GET", path, query, {}, "", who))
                for who in ("ann", "dan", "boss", "eve")
            ]
            return [one if isinstance(one, Response) else await one for one in answers]

        ann, dan, boss, eve = node.loop.run_until_complete(both())
        again = [node.get(target, who) for who in ("ann", "dan", "boss", "eve")]
        assert len({ann.body, dan.body, boss.body, eve.body}) == 4
        for first, second in zip((ann, dan, boss, eve), again, strict=True):
            assert first.status == second.status == 200
        assert b"annsecret" in ann.body
        assert_no_secret(dan)
        assert_no_secret(eve)
        assert_no_secret(again[1])


def test_no_response_to_a_user_has_a_tag_or_may_be_kept(node: Node) -> None:
    full = dict(node.get("/api/v1/snapshot", "boss").headers)
    tag = full["ETag"]
    for headers in ({}, {"if_none_match": tag}, {"if_none_match": "*"}, {"accept_encoding": "gzip"}):
        found = node.get("/api/v1/snapshot", "dan", **headers)
        assert found.status == 200
        assert "ETag" not in dict(found.headers)
        assert dict(found.headers)["Cache-Control"] == "no-store"


def test_head_and_ranges_are_answered_as_get(node: Node) -> None:
    whole = node.get(f"/api/v1/sessions?{RANGE}", "dan")
    for method, headers in (("HEAD", {}), ("GET", {"range": "bytes=0-10"})):
        found = node.get(f"/api/v1/sessions?{RANGE}", "dan", method, **headers)
        assert (found.status, len(found.body)) == (200, len(whole.body))
    assert node.get("/metrics", "dan", "HEAD").status == 403


def test_a_cursor_of_another_user_is_as_if_expired(node: Node) -> None:
    theirs = node.json(f"/api/v1/energy?{RANGE}&by=command&limit=1", "boss")["next"]
    assert theirs
    assert node.json(f"/api/v1/energy?cursor={theirs}&limit=1", "boss")["rows"]
    stolen = node.get(f"/api/v1/energy?cursor={theirs}&limit=1", "dan")
    assert (stolen.status, json.loads(stolen.body)["error"]["code"]) == (404, "cursor_expired")
    listed = node.json(f"/api/v1/sessions?{RANGE}&limit=1", "boss")["next"]
    found = node.json(f"/api/v1/sessions?cursor={listed}&limit=1000", "dan")
    assert {one["user"] for one in found["sessions"]} <= {"dan", "1001"}


def test_pages_of_sessions_are_those_of_one_long_list(node: Node) -> None:
    whole = node.json(f"/api/v1/sessions?{RANGE}&limit=1000", "dan")["sessions"]
    found, cursor = [], ""
    while True:
        page = node.json(f"/api/v1/sessions?{cursor or RANGE}&limit=7", "dan")
        found += page["sessions"]
        if page["next"] is None:
            break
        cursor = f"cursor={page['next']}"
    assert found == whole
    assert len({one["id"] for one in found}) == len(found)


def test_numbers_of_sessions_do_not_count_those_of_others(node: Node) -> None:
    """A user's sessions have gaps in the ledger, for those of others: not in what is shown."""
    mine, full = (
        node.json(f"/api/v1/sessions?{RANGE}&limit=1000", who)["sessions"] for who in ("dan", "boss")
    )
    real = {(one["pid"], one["first_seen"]): int(one["id"]) for one in full}
    shown = {(one["pid"], one["first_seen"]): int(one["id"]) for one in mine}
    assert not [key for key, number in shown.items() if number == real[key]]
    cursor = node.json(f"/api/v1/sessions?{RANGE}&limit=1", "dan")["next"]
    text = json.loads(b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_"))
    assert text[3] == shown[mine[0]["pid"], mine[0]["first_seen"]]


GUESSES = [
    *(
        "user:annsecret",
        "job:771001",
        "771001",
        "pid:771100",
        "771100",
        "pod:secretspace/secretpod",
        "idle",
    ),
    *("owner:unknown", "label:team=secretteam", "slurm_account:secretlab"),
]


@pytest.mark.parametrize("path", ["/api/v1/explain", "/api/v1/receipt"])
def test_a_request_without_an_owner_says_what_is_expected(node: Node, path: str) -> None:
    refused = node.get(path, "boss")
    assert refused.status == 400
    assert "KIND:NAME" in bytes(refused.body).decode()


@pytest.mark.parametrize(("path", "within"), [("/api/v1/explain", DATES), ("/api/v1/receipt", RANGE)])
@pytest.mark.parametrize("guess", GUESSES)
def test_what_is_not_yours_is_as_if_absent(
    node: Node, file: Path, lonely_file: Path, tmp_path: Path, path: str, within: str, guess: str
) -> None:
    """The whole response is that of a machine which the user has alone."""
    target = f"{path}?of={guess}&{within}"
    # A number alone is a job for a receipt, where there are jobs.
    assert node.get(target, "boss").status in (200, 400) or guess == "771100"
    said = node.get(target, "dan")
    with node_of(lonely_file, tmp_path) as lonely:
        other = lonely.get(target, "dan")
    assert said.status == other.status == 404
    assert said.body.replace(str(file).encode(), b"") == other.body.replace(str(lonely_file).encode(), b"")
    assert said.headers == other.headers


def test_a_receipt_page_of_others_is_as_if_absent(node: Node) -> None:
    said = [node.get(f"{RECEIPT_PREFIX}user:{name}?{RANGE}", "dan") for name in ("annsecret", "absentone")]
    assert said[0].status == said[1].status == 404
    assert said[0].body.replace(b"annsecret", b"X") == said[1].body.replace(b"absentone", b"X")


def test_the_receipt_of_a_user_names_no_others(node: Node) -> None:
    for path in (f"/api/v1/receipt?of=user:dan&{RANGE}", f"{RECEIPT_PREFIX}user:dan?{RANGE}"):
        found = node.get(path, "dan")
        assert found.status == 200, found.body
        assert_no_secret(found)
    mine = node.get(f"/api/v1/receipt?mine=true&{RANGE}", "dan")
    assert mine.status == 200
    assert_no_secret(mine)


@pytest.mark.parametrize(
    "parameters",
    [
        {"by": "user", "format": "csv"},
        {"by": "owner", "format": "json"},
        {"by": "gpu", "format": "focus"},
        {"by": "team"},
        {"format": "html"},
        {"format": "/etc/passwd"},
        {"by": "node", "top": "0"},
    ],
    ids=str,
)
def test_reports_in_each_format_have_own_rows(node: Node, parameters: Mapping[str, str]) -> None:
    query = "&".join(f"{name}={text}" for name, text in parameters.items())
    assert_no_secret(node.get(f"/api/v1/report?{DATES}&{query}", "dan"))


@pytest.mark.parametrize(
    "name", ["statement", "books", "config", "state_dir", "prometheus", "url", "teams", "price.kwh"]
)
def test_a_request_sets_no_other_setting_of_the_node(node: Node, name: str) -> None:
    assert node.get(f"/api/v1/report?{name}=/tmp/x", "dan").status == 400


def test_streams_have_no_numbers_of_sessions(node: Node) -> None:
    """Counts of sessions are counts of others."""
    for user, has_sessions in (("dan", False), ("boss", True)):
        response = node.get("/api/v1/events", user)
        assert response.stream is not None
        stream = response.stream()
        stream.take()
        card = gpu(0)
        rows = (SessionRow(1, process(card), 0.0, 0.0),)
        node.api.publish(node_state(snapshot(reading(card)), LedgerState(sessions=rows)))
        said = stream.take() or b""
        assert b"event: tick" in said
        assert (b"event: session" in said) is has_sessions
        node.api.publish(node_state(None))

"""Requests below /api/: parameters, errors, caching, and agreement with the OpenAPI description."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from api_examples import build_examples
from builders import FakeClock, gpu, node_state, process, reading, snapshot
from golden_state import golden_state, stale_state
from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Handler, Request, Response
from gpuledger.model.checks import Finding, fails, works
from gpuledger.model.node_state import NodeState
from gpuledger.web.api.api import Api, ApiOptions
from gpuledger.web.api.endpoints import ENDPOINTS
from gpuledger.web.api.health import DIAGNOSIS_INTERVAL
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.openapi import example_responses, openapi_document
from gpuledger.web.api.parameters import read_query
from gpuledger.web.api.schemas import SCHEMAS
from gpuledger.web.routes import api_handler, disabled_api_handler
from running import PATIENCE


def make_api(seen: NodeState | None = None, clock: FakeClock | None = None) -> Api:
    clock = clock or FakeClock()
    return Api(seen or golden_state(), LedgerAccess(clock), clock)


def request(handler: Handler, target: str, **headers: str) -> Response:
    """The response to one request, waiting for a pending one."""
    path, _, query = target.partition("?")
    given = {name.replace("_", "-"): value for name, value in headers.items()}

    async def within() -> Response:
        answer = handler(Request("GET", path, query, given))
        return answer if isinstance(answer, Response) else await asyncio.wait_for(answer, PATIENCE)

    return asyncio.run(within())


def json_of(response: Response) -> Any:
    body = (
        gzip.decompress(response.body) if ("Content-Encoding", "gzip") in response.headers else response.body
    )
    return json.loads(body)


@pytest.fixture
def api() -> Handler:
    return api_handler(make_api(), ApiOptions("node-1"))


def header(response: Response, name: str) -> str | None:
    return dict(response.headers).get(name)


@pytest.mark.parametrize(
    ("target", "status", "parameter"),
    [
        ("/api/v1/snapshot?", 200, None),
        ("/api/v1/snapshot?x=1", 400, "x"),
        ("/api/v1/sessions?limit=0", 400, "limit"),
        ("/api/v1/sessions?limit=1001", 400, "limit"),
        ("/api/v1/sessions?limit=", 400, "limit"),
        ("/api/v1/sessions?limit=1.5", 400, "limit"),
        ("/api/v1/sessions?limit=%D9%A1", 400, "limit"),
        ("/api/v1/sessions?limit=1&limit=2", 400, "limit"),
        ("/api/v1/sessions?state=gone", 400, "state"),
        ("/api/v1/sessions?since=", 400, "since"),
        ("/api/v1/sessions?since=nan", 400, "since"),
        ("/api/v1/sessions?since=-1", 400, "since"),
        ("/api/v1/sessions?since=9999999999999", 400, "since"),
        ("/api/v1/sessions?until=0001-01-01T00:00:00Z", 400, "until"),
        ("/api/v1/sessions?since=2026-13-01", 400, "since"),
        ("/api/v1/sessions?since=0", 200, None),
        ("/api/v1/sessions?since=2e8", 200, None),
        ("/api/v1/sessions?since=2020-01-01T00:00:00%2B01:00", 200, None),
        ("/api/v1/sessions?since=2020-01-01t00:00:00.123456789z", 200, None),
        ("/api/v1/sessions?since=2020-01-01", 200, None),
        ("/api/v1/sessions?since=9999d", 200, None),
        ("/api/v1/sessions?since=4000000001", 400, "since"),
        ("/api/v1/sessions?since=1h30m", 400, "since"),
        ("/api/v1/sessions?since=20200101T000000Z", 400, "since"),
        ("/api/v1/sessions?since=2020-02-30", 400, "since"),
        ("/api/v1/sessions?since=2020-01-01T00:00:00", 400, "since"),
        ("/api/v1/energy?by=colour", 400, "by"),
        ("/api/v1/energy?by=label:", 400, "by"),
        ("/api/v1/energy", 503, None),
        ("/api/v1/sessions?pod=%ff", 400, None),
        ("/api/v1/sessions?pod", 400, None),
        ("/api/v1/sessions?&&", 400, None),
        ("/api/v1/sessions?" + "&".join(f"a{n}=1" for n in range(40)), 400, None),
        ("/api/v1/events?limit=0", 400, "limit"),
        ("/api/v1/", 404, None),
        ("/api/v2/snapshot", 404, None),
        ("/api/v1/snapshot/", 404, None),
    ],
)
def test_an_invalid_request_gets_a_json_error_with_the_parameter(
    api: Handler, target: str, status: int, parameter: str | None
) -> None:
    response = request(api, target)
    assert (response.status, response.content_type) == (status, "application/json; charset=utf-8")
    body = json_of(response)
    assert body["version"] == "v1"
    if status != 200:
        assert body["error"]["parameter"] == parameter
        assert "\n" not in body["error"]["message"]


def test_an_unknown_parameter_name_is_truncated_in_the_error(api: Handler) -> None:
    error = json_of(request(api, "/api/v1/snapshot?" + "%3Cscript%3E" * 100 + "=1"))["error"]
    assert len(error["parameter"]) == 64


@pytest.mark.parametrize("name", ["snapshot", "recent"])
def test_a_matching_etag_gets_304(name: str) -> None:
    made = make_api()
    api = api_handler(made, ApiOptions())
    first = request(api, f"/api/v1/{name}")
    tag = header(first, "ETag")
    assert tag is not None
    for known in (tag, f'"x", {tag}', tag.removeprefix("W/"), "*"):
        again = request(api, f"/api/v1/{name}", if_none_match=known)
        assert (again.status, again.body, header(again, "ETag")) == (304, b"", tag)
    made.publish(node_state(snapshot(reading(gpu()), unix=1_700_000_100.0)))
    assert request(api, f"/api/v1/{name}", if_none_match=tag).status == 200


def test_another_run_has_other_etags() -> None:
    tags = [
        header(
            request(api_handler(make_api(clock=FakeClock(unix)), ApiOptions()), "/api/v1/snapshot"), "ETag"
        )
        for unix in (1_700_000_000.0, 1_700_000_001.0)
    ]
    assert tags[0] != tags[1]


def test_gzip_contains_the_same_body_and_is_compressed_once_per_state(api: Handler) -> None:
    plain = request(api, "/api/v1/snapshot")
    zipped = request(api, "/api/v1/snapshot", accept_encoding="gzip")
    assert header(zipped, "Content-Encoding") == "gzip"
    assert header(plain, "Vary") == header(zipped, "Vary") == "Accept-Encoding"
    assert gzip.decompress(zipped.body) == plain.body
    assert request(api, "/api/v1/snapshot", accept_encoding="gzip").body is zipped.body


def test_the_newest_state_is_returned() -> None:
    made = make_api()
    api = api_handler(made, ApiOptions("node-1"))
    assert json_of(request(api, "/api/v1/snapshot"))["status"]["readings"] is True
    made.publish(stale_state())
    assert json_of(request(api, "/api/v1/snapshot"))["status"]["readings"] is False


@pytest.mark.parametrize("shown", ["landing", "off"])
def test_without_the_full_page_the_error_names_the_reason(shown: str) -> None:
    response = request(disabled_api_handler(shown), "/api/v1/snapshot")
    assert response.status == 404
    assert f"web.page is {shown}" in json_of(response)["error"]["message"]


def test_a_failing_endpoint_returns_500_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    nothing: Any = None
    api = api_handler(Api(nothing, LedgerAccess(clock), clock), ApiOptions())
    response = request(api, "/api/v1/snapshot")
    assert (response.status, json_of(response)["error"]["code"]) == (500, "internal")
    assert "/api/v1/snapshot failed" in caplog.text


def diagnosing(found: Iterable[Finding]) -> tuple[Callable[[], list[Finding]], list[str]]:
    threads: list[str] = []

    def diagnose() -> list[Finding]:
        threads.append(threading.current_thread().name)
        return list(found)

    return diagnose, threads


def test_findings_are_computed_in_a_thread_with_the_first_request_and_rarely() -> None:
    clock = FakeClock()
    made = make_api(clock=clock)
    diagnose, threads = diagnosing([works("a", "alpha", "fine"), fails("b", "beta", "broken", "fix it")])
    api = api_handler(made, ApiOptions(diagnose=diagnose))
    body = [json_of(request(api, "/api/v1/health")) for _ in range(3)]
    assert threads == ["api health"]
    assert (
        body[0]["findings"]
        == body[2]["findings"]
        == [
            {"check": "a", "level": "works", "summary": "alpha: fine", "remedy": ""},
            {"check": "b", "level": "fails", "summary": "beta: broken", "remedy": "fix it"},
        ]
    )
    assert body[0]["findings_unix"] == clock.unix()
    clock.advance(DIAGNOSIS_INTERVAL)
    request(api, "/api/v1/health")
    assert len(threads) == 2


def test_requests_during_a_diagnosis_share_it() -> None:
    ready = threading.Event()
    runs: list[int] = []

    def diagnose() -> list[Finding]:
        runs.append(1)
        ready.wait(PATIENCE)
        return [works("a", "alpha", "fine")]

    api = api_handler(make_api(), ApiOptions(diagnose=diagnose))

    async def within() -> list[Any]:
        pending = [api(Request("GET", "/api/v1/health")) for _ in range(30)]
        ready.set()
        return [json_of(await one) for one in pending if not isinstance(one, Response)]

    body = asyncio.run(within())
    assert (len(body), len(runs)) == (30, 1)
    assert {one["findings"][0]["check"] for one in body} == {"a"}


def test_a_reload_does_not_reuse_the_diagnosis_of_the_previous_settings() -> None:
    ready = threading.Event()

    def before() -> list[Finding]:
        ready.wait(PATIENCE)
        return [works("before", "alpha", "fine")]

    api = make_api()
    old, new = (
        api_handler(api, ApiOptions(diagnose=one))
        for one in (before, lambda: [works("now", "alpha", "fine")])
    )

    async def within() -> list[Any]:
        pending = [handler(Request("GET", "/api/v1/health")) for handler in (old, new)]
        ready.set()
        return [json_of(await one) for one in pending if not isinstance(one, Response)]

    assert [[one["check"] for one in body["findings"]] for body in asyncio.run(within())] == [
        ["before"],
        ["now"],
    ]


def test_the_limit_of_streams_leaves_connections_for_short_requests() -> None:
    api = make_api()
    handler = api_handler(api, ApiOptions())

    async def within() -> tuple[Response, Response]:
        streams = []
        for _ in range(HttpLimits().max_streams):
            opened = handler(Request("GET", "/api/v1/events"))
            assert isinstance(opened, Response)
            assert opened.stream is not None
            streams.append(opened.stream())
            streams[-1].begin(lambda: None)
        refused = handler(Request("GET", "/api/v1/events"))
        streams[0].end()
        again = handler(Request("GET", "/api/v1/events"))
        assert isinstance(refused, Response)
        assert isinstance(again, Response)
        for stream in streams[1:]:
            stream.end()
        return refused, again

    refused, again = asyncio.run(within())
    assert (refused.status, json_of(refused)["error"]["code"], header(refused, "Retry-After")) == (
        503,
        "busy",
        "10",
    )
    assert (again.status, again.stream is not None) == (200, True)
    assert HttpLimits().connections >= 2 * HttpLimits().max_streams


@pytest.mark.parametrize("name", ["snapshot", "recent"])
def test_shared_caches_must_not_store_names(api: Handler, name: str) -> None:
    assert header(request(api, f"/api/v1/{name}"), "Cache-Control") == "private, no-cache"


def test_a_failing_diagnosis_returns_500_and_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    def diagnose() -> list[Finding]:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("a check has a bug")
        return []

    api = api_handler(make_api(), ApiOptions(diagnose=diagnose))
    assert [request(api, "/api/v1/health").status for _ in range(2)] == [500, 200]


def test_without_a_diagnosis_health_is_returned_immediately(api: Handler) -> None:
    body = json_of(request(api, "/api/v1/health"))
    assert (body["findings"], body["findings_unix"]) == ([], None)
    assert [one["name"] for one in body["maps"]] == ["pods", "pod_resources", "slurm"]
    assert body["collectors"][1] == {
        "name": "events",
        "success": False,
        "seconds": 0.5,
        "last_success": None,
        "error": "NOT_SUPPORTED",
        "failures": 0,
    }


# The description.

DESCRIPTION = openapi_document()
EXAMPLES = example_responses()


def test_exactly_the_accepted_parameters_are_described() -> None:
    for endpoint in ENDPOINTS:
        described = {one["name"] for one in DESCRIPTION["paths"][endpoint.path]["get"]["parameters"]}
        assert described == read_query("", endpoint.parameters).keys()


def test_exactly_the_served_endpoints_are_described(api: Handler) -> None:
    there = json_of(request(api, "/api/v1/nowhere"))["error"]["message"].partition(": ")[2].split(", ")
    assert there == list(DESCRIPTION["paths"])


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: one.name)
def test_each_example_and_default_is_accepted(endpoint: Any) -> None:
    for one in endpoint.parameters:
        for given in (one.example, one.schema.get("default")):
            if given is not None:
                assert one.name in read_query(f"{one.name}={given}", endpoint.parameters)


def test_every_described_endpoint_has_an_example_response() -> None:
    assert EXAMPLES.keys() == {one.name for one in ENDPOINTS} - {
        *("events", "books", "report", "explain", "idle", "openapi.json")
    }


def test_the_examples_are_those_that_make_docs_writes() -> None:
    assert build_examples() == EXAMPLES


def test_the_examples_are_in_the_description() -> None:
    for name, example in EXAMPLES.items():
        success = DESCRIPTION["paths"][f"/api/v1/{name}"]["get"]["responses"]["200"]
        assert success["content"]["application/json"]["example"] == example


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_match_the_schema(name: str) -> None:
    (schema,) = (one.schema for one in ENDPOINTS if one.name == name)
    jsonschema_accepts(schema, EXAMPLES[name])


@pytest.mark.parametrize("seen", [golden_state(), stale_state()], ids=["golden", "stale"])
@pytest.mark.parametrize("name", ["snapshot", "recent", "sessions", "health"])
def test_responses_match_the_schema(name: str, seen: NodeState) -> None:
    made = make_api()
    made.publish(seen)
    (schema,) = (one.schema for one in ENDPOINTS if one.name == name)
    jsonschema_accepts(schema, json_of(request(api_handler(made, ApiOptions("n")), f"/api/v1/{name}")))


def jsonschema_accepts(schema: str, instance: Any) -> None:
    import jsonschema_rs

    jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{schema}", "components": {"schemas": SCHEMAS}}
    ).validate(instance)


def test_the_snapshot_contains_the_processes_of_the_state(api: Handler) -> None:
    made = make_api(node_state(snapshot(reading(gpu(), process(gpu(), 7)))))
    assert [
        one["pid"]
        for one in json_of(request(api_handler(made, ApiOptions()), "/api/v1/snapshot"))["processes"]
    ] == [7]

"""What lies below /api/: how it is asked, what is refused, and that it is described as it is."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from builders import FakeClock, gpu, page, process, reading, snapshot
from golden_page import golden_page, stale_page
from gpuledger.http.limits import Limits
from gpuledger.http.routes import Handler, Request, Response
from gpuledger.model.checks import Finding, fails, works
from gpuledger.model.node_state import NodeState
from gpuledger.web.api.api import Api, Terms
from gpuledger.web.api.books import BooksAsRead, Worker
from gpuledger.web.api.endpoints import ENDPOINTS
from gpuledger.web.api.health import EVERY
from gpuledger.web.api.openapi import EXAMPLES, description
from gpuledger.web.api.parameters import read_query
from gpuledger.web.api.schemas import SCHEMAS
from gpuledger.web.routes import not_served, served


def an_api(seen: NodeState | None = None, clock: FakeClock | None = None) -> Api:
    clock = clock or FakeClock()
    return Api(seen or golden_page(), BooksAsRead(clock), clock)


def ask(handler: Handler, target: str, **headers: str) -> Response:
    """The answer to one request, also one that comes later."""
    path, _, query = target.partition("?")
    given = {name.replace("_", "-"): value for name, value in headers.items()}

    async def within() -> Response:
        answer = handler(Request("GET", path, query, given))
        return answer if isinstance(answer, Response) else await asyncio.wait_for(answer, 20)

    return asyncio.run(within())


def words(response: Response) -> Any:
    body = (
        gzip.decompress(response.body) if ("Content-Encoding", "gzip") in response.headers else response.body
    )
    return json.loads(body)


@pytest.fixture
def api() -> Handler:
    return served(an_api(), Terms("node-1"))


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
def test_what_is_wrong_is_said_in_json_with_the_parameter(
    api: Handler, target: str, status: int, parameter: str | None
) -> None:
    response = ask(api, target)
    assert (response.status, response.content_type) == (status, "application/json; charset=utf-8")
    told = words(response)
    assert told["version"] == "v1"
    if status != 200:
        assert told["error"]["parameter"] == parameter
        assert "\n" not in told["error"]["message"]


def test_a_parameter_s_name_comes_back_short_and_as_data(api: Handler) -> None:
    error = words(ask(api, "/api/v1/snapshot?" + "%3Cscript%3E" * 100 + "=1"))["error"]
    assert len(error["parameter"]) == 64


@pytest.mark.parametrize("name", ["snapshot", "recent"])
def test_what_a_client_has_already_is_not_sent_again(name: str) -> None:
    made = an_api()
    api = served(made, Terms())
    first = ask(api, f"/api/v1/{name}")
    tag = header(first, "ETag")
    assert tag is not None
    for known in (tag, f'"x", {tag}', tag.removeprefix("W/"), "*"):
        again = ask(api, f"/api/v1/{name}", if_none_match=known)
        assert (again.status, again.body, header(again, "ETag")) == (304, b"", tag)
    made.publish(page(snapshot(reading(gpu()), unix=1_700_000_100.0)))
    assert ask(api, f"/api/v1/{name}", if_none_match=tag).status == 200


def test_another_run_has_other_tags() -> None:
    tags = [
        header(ask(served(an_api(clock=FakeClock(unix)), Terms()), "/api/v1/snapshot"), "ETag")
        for unix in (1_700_000_000.0, 1_700_000_001.0)
    ]
    assert tags[0] != tags[1]


def test_gzip_is_of_the_same_words_and_made_once_a_page(api: Handler) -> None:
    plain = ask(api, "/api/v1/snapshot")
    zipped = ask(api, "/api/v1/snapshot", accept_encoding="gzip")
    assert header(zipped, "Content-Encoding") == "gzip"
    assert header(plain, "Vary") == header(zipped, "Vary") == "Accept-Encoding"
    assert gzip.decompress(zipped.body) == plain.body
    assert ask(api, "/api/v1/snapshot", accept_encoding="gzip").body is zipped.body


def test_the_newest_page_is_told() -> None:
    made = an_api()
    api = served(made, Terms("node-1"))
    assert words(ask(api, "/api/v1/snapshot"))["status"]["readings"] is True
    made.publish(stale_page())
    assert words(ask(api, "/api/v1/snapshot"))["status"]["readings"] is False


@pytest.mark.parametrize("shown", ["landing", "off"])
def test_where_the_page_is_not_full_the_reason_is_said(shown: str) -> None:
    response = ask(not_served(shown), "/api/v1/snapshot")
    assert response.status == 404
    assert f"web.page is {shown}" in words(response)["error"]["message"]


def test_an_endpoint_that_breaks_costs_its_own_answer_alone(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    nothing: Any = None
    api = served(Api(nothing, BooksAsRead(clock), clock), Terms())
    response = ask(api, "/api/v1/snapshot")
    assert (response.status, words(response)["error"]["code"]) == (500, "internal")
    assert "/api/v1/snapshot failed" in caplog.text


def diagnosing(found: Iterable[Finding]) -> tuple[Callable[[], list[Finding]], list[str]]:
    threads: list[str] = []

    def diagnose() -> list[Finding]:
        threads.append(threading.current_thread().name)
        return list(found)

    return diagnose, threads


def test_findings_are_made_beside_the_loop_at_the_first_ask_and_seldom() -> None:
    clock = FakeClock()
    made = an_api(clock=clock)
    diagnose, threads = diagnosing([works("a", "alpha", "fine"), fails("b", "beta", "broken", "mend it")])
    api = served(made, Terms(diagnose=diagnose))
    told = [words(ask(api, "/api/v1/health")) for _ in range(3)]
    assert threads == ["api health"]
    assert (
        told[0]["findings"]
        == told[2]["findings"]
        == [
            {"check": "a", "level": "works", "summary": "alpha: fine", "remedy": ""},
            {"check": "b", "level": "fails", "summary": "beta: broken", "remedy": "mend it"},
        ]
    )
    assert told[0]["findings_unix"] == clock.unix()
    clock.advance(EVERY)
    ask(api, "/api/v1/health")
    assert len(threads) == 2


def test_those_who_ask_during_a_diagnosis_share_it() -> None:
    ready = threading.Event()
    looks: list[int] = []

    def diagnose() -> list[Finding]:
        looks.append(1)
        ready.wait(20)
        return [works("a", "alpha", "fine")]

    api = served(an_api(), Terms(diagnose=diagnose))

    async def within() -> list[Any]:
        asked = [api(Request("GET", "/api/v1/health")) for _ in range(30)]
        ready.set()
        return [words(await one) for one in asked if not isinstance(one, Response)]

    told = asyncio.run(within())
    assert (len(told), len(looks)) == (30, 1)
    assert {one["findings"][0]["check"] for one in told} == {"a"}


def test_after_a_reload_a_diagnosis_of_the_settings_before_is_not_taken_for_one_of_these() -> None:
    ready = threading.Event()

    def before() -> list[Finding]:
        ready.wait(20)
        return [works("before", "alpha", "fine")]

    api = an_api()
    old, new = (served(api, Terms(diagnose=one)) for one in (before, lambda: [works("now", "alpha", "fine")]))

    async def within() -> list[Any]:
        asked = [handler(Request("GET", "/api/v1/health")) for handler in (old, new)]
        ready.set()
        return [words(await one) for one in asked if not isinstance(one, Response)]

    assert [[one["check"] for one in told["findings"]] for told in asyncio.run(within())] == [
        ["before"],
        ["now"],
    ]


def test_streams_leave_connections_to_those_who_ask_and_go() -> None:
    api = an_api()
    handler = served(api, Terms())

    async def within() -> tuple[Response, Response]:
        streams = []
        for number in range(Limits().most_streams):
            opened = handler(Request("GET", "/api/v1/events", client=b"%d" % (number % 4)))
            assert isinstance(opened, Response)
            assert opened.stream is not None
            streams.append(opened.stream())
            streams[-1].begin(lambda: None)
        refused = handler(Request("GET", "/api/v1/events", client=b"another"))
        streams[0].end()
        again = handler(Request("GET", "/api/v1/events"))
        assert isinstance(refused, Response)
        assert isinstance(again, Response)
        for stream in streams[1:]:
            stream.end()
        return refused, again

    refused, again = asyncio.run(within())
    assert (refused.status, words(refused)["error"]["code"], header(refused, "Retry-After")) == (
        503,
        "busy",
        "10",
    )
    assert (again.status, again.stream is not None) == (200, True)
    assert Limits().connections >= 2 * Limits().most_streams


def test_one_client_does_not_have_the_streams_of_all() -> None:
    api = an_api()
    handler = served(api, Terms(limits=Limits(client_streams=2)))

    def open_one(client: bytes) -> int:
        opened = handler(Request("GET", "/api/v1/events", client=client))
        assert isinstance(opened, Response)
        if opened.stream is not None:
            opened.stream().begin(lambda: None)
        return opened.status

    async def within() -> list[int]:
        return [open_one(client) for client in (b"a", b"a", b"a", b"b")]

    assert asyncio.run(within()) == [200, 200, 503, 200]


@pytest.mark.parametrize("name", ["snapshot", "recent"])
def test_no_cache_that_others_share_keeps_who_runs_what(api: Handler, name: str) -> None:
    assert header(ask(api, f"/api/v1/{name}"), "Cache-Control") == "private, no-cache"


def test_a_diagnosis_that_breaks_is_an_error_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    def diagnose() -> list[Finding]:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("a check has a bug")
        return []

    api = served(an_api(), Terms(diagnose=diagnose))
    assert [ask(api, "/api/v1/health").status for _ in range(2)] == [500, 200]


def test_without_a_diagnosis_health_is_told_at_once(api: Handler) -> None:
    told = words(ask(api, "/api/v1/health"))
    assert (told["findings"], told["findings_unix"]) == ([], None)
    assert [one["name"] for one in told["maps"]] == ["pods", "pod_resources", "slurm"]
    assert told["collectors"][1] == {
        "name": "events",
        "success": False,
        "seconds": 0.5,
        "last_success": None,
        "error": "NOT_SUPPORTED",
        "failures": 0,
    }


def test_too_many_who_wait_are_told_to_come_back() -> None:
    ready = threading.Event()
    worker = Worker("test", waiting=2)

    def compute() -> Response:
        ready.wait(20)
        return Response()

    async def within() -> list[int]:
        asked = [worker.ask(number, compute) for number in range(3)]
        ready.set()
        return [(one if isinstance(one, Response) else await one).status for one in asked]

    assert asyncio.run(within()) == [200, 200, 503]


def test_those_who_ask_for_the_same_at_the_same_time_share_one_computation() -> None:
    worker, computed = Worker("test", waiting=2), []

    def compute() -> Response:
        computed.append(1)
        return Response(body=b"x")

    async def within() -> set[bytes]:
        asked = [worker.ask("same", compute) for _ in range(50)]
        return {(one if isinstance(one, Response) else await one).body for one in asked}

    assert (asyncio.run(within()), len(computed)) == ({b"x"}, 1)


def test_an_answer_for_a_loop_that_has_ended_is_dropped_and_the_worker_goes_on() -> None:
    worker, ready = Worker("test"), threading.Event()

    def compute() -> Response:
        ready.wait(20)
        return Response()

    async def leave() -> None:
        worker.ask(1, compute)

    async def stay() -> int:
        answer = worker.ask(2, Response)
        return (answer if isinstance(answer, Response) else await answer).status

    asyncio.run(leave())
    ready.set()
    assert asyncio.run(stay()) == 200


# The description.

DESCRIPTION = description()


def test_each_parameter_that_is_taken_is_described_and_no_other() -> None:
    for endpoint in ENDPOINTS:
        described = {one["name"] for one in DESCRIPTION["paths"][endpoint.path]["get"]["parameters"]}
        assert described == read_query("", endpoint.parameters).keys()


def test_the_endpoints_that_are_served_are_those_described(api: Handler) -> None:
    there = words(ask(api, "/api/v1/nowhere"))["error"]["message"].partition(": ")[2].split(", ")
    assert there == list(DESCRIPTION["paths"])


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: one.name)
def test_each_example_and_default_is_one_that_is_taken(endpoint: Any) -> None:
    for one in endpoint.parameters:
        for given in (one.example, one.schema.get("default")):
            if given is not None:
                assert one.name in read_query(f"{one.name}={given}", endpoint.parameters)


def test_every_description_has_an_example_of_its_answer() -> None:
    assert EXAMPLES.keys() == {one.name for one in ENDPOINTS} - {"events", "openapi.json"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_of_the_described_shape(name: str) -> None:
    (schema,) = (one.schema for one in ENDPOINTS if one.name == name)
    jsonschema_accepts(schema, EXAMPLES[name])


@pytest.mark.parametrize("seen", [golden_page(), stale_page()], ids=["golden", "stale"])
@pytest.mark.parametrize("name", ["snapshot", "recent", "sessions", "health"])
def test_answers_are_of_the_described_shape(name: str, seen: NodeState) -> None:
    made = an_api()
    made.publish(seen)
    (schema,) = (one.schema for one in ENDPOINTS if one.name == name)
    jsonschema_accepts(schema, words(ask(served(made, Terms("n")), f"/api/v1/{name}")))


def jsonschema_accepts(schema: str, instance: Any) -> None:
    import jsonschema_rs

    jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{schema}", "components": {"schemas": SCHEMAS}}
    ).validate(instance)


def test_the_snapshot_says_the_processes_of_a_page(api: Handler) -> None:
    made = an_api(page(snapshot(reading(gpu(), process(gpu(), 7)))))
    assert [one["pid"] for one in words(ask(served(made, Terms()), "/api/v1/snapshot"))["processes"]] == [7]

"""The API of a real `gpuledger serve`: matches its description, streams events, requires credentials."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from gpuledger.web.api.endpoints import ENDPOINTS
from running import PATIENCE, Server, get, serving_prepared, wait_until

# All tests run in one worker, which starts one server.
pytestmark = pytest.mark.group("api")

API = "/api/v1/"

load_all_checks()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("books")
    # The hold is longer than any wait.
    arguments = ("--state-dir", str(folder), "--interval", "200ms", "--energy.zero-hold", "1h")
    with serving_prepared("--source", "simulator", *arguments) as found:
        found.wait_ticks(3)
        yield found


@pytest.fixture(scope="module")
def schema(server: Server) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(server.url + API + "openapi.json")


# They need one of two parameters, of which one names a row of the ledger.
_OF_ONE_ROW = ("receipt", "explain")


def has_only_independent_parameters(case: schemathesis.Case) -> bool:
    """A schema cannot express that since is before until, and that a cursor comes from a response."""
    if case.path.rpartition("/")[2] in _OF_ONE_ROW:
        return False
    given = set(case.query or {})
    if case.path.endswith("/idle"):
        # The others need a digest, and it their values.
        return given <= {"for", "digest"}
    # The rows of FOCUS are those of days.
    return not {"cursor", "since", "until"} & given and not {"every", "format"} <= given


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (one.name, mode)
        for one in ENDPOINTS
        for mode in schemathesis.GenerationMode
        # Without parameters there are no invalid ones.
        if one.parameters or mode is schemathesis.GenerationMode.POSITIVE
    ],
)
def test_every_response_matches_the_description(
    schema: schemathesis.BaseSchema, name: str, mode: schemathesis.GenerationMode
) -> None:
    operation = schema[API + name]["GET"]

    @settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        if name == "events" and mode is schemathesis.GenerationMode.POSITIVE:
            # The default limit of examples could be a million ticks.
            case.query = {"limit": 2}
        excluded = [] if has_only_independent_parameters(case) else [positive_data_acceptance]
        case.call_and_validate(timeout=PATIENCE, excluded_checks=excluded)

    ask()


def request(server: Server, path: str, **parameters: Any) -> Any:
    answer = get(server.url + API + path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_each_process_of_the_metrics_is_in_the_snapshot(server: Server) -> None:
    body = request(server, "snapshot")
    assert body["source"]["simulated"] is True
    assert {one["state"] for one in body["devices"]} <= {"active", "held", "idle", "unknown", None}
    pids = set(re.findall(r'^gpuledger_process_info\{.*?pid="(\d+)"', server.wait_ticks(), re.MULTILINE))
    assert {str(one["pid"]) for one in body["processes"]} & pids


def test_watts_and_joules_do_not_wait_for_the_zero_hold(server: Server) -> None:
    def booked() -> list[Any]:
        body = request(server, "snapshot")["processes"]
        return [one for one in body if one["joules"] and one["power_watts"]]

    found = wait_until(booked, "processes with joules")
    assert all(one["measured_joules"] <= one["joules"] for one in found)


def test_sessions_and_energy_come_from_the_same_ledger(server: Server) -> None:
    server.wait_ticks(5)
    sessions = request(server, "sessions", limit=1000)
    energy = request(server, "energy", by="gpu", since=0)
    assert sessions["from_books"] is energy["from_books"] is True
    assert {one["uuid"] for one in sessions["sessions"]} <= {one["uuid"] for one in energy["gpus"]}
    parts = sum(round(one["joules"] * 1000) for one in (*energy["rows"], *energy["own"]))
    assert parts == round(energy["total"]["joules"] * 1000)


def test_events_follow_the_ticks_and_end_with_the_program() -> None:
    with serving_prepared("--source", "simulator", "--interval", "200ms") as server:
        with httpx.stream("GET", server.url + API + "events", timeout=PATIENCE, trust_env=False) as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            lines = stream.iter_lines()
            ticks: list[int] = []
            for line in lines:
                if line.startswith("data: ") and "tick" in line:
                    ticks.append(json.loads(line.removeprefix("data: "))["tick"])
                if len(ticks) == 5:
                    break
            # On a busy machine this client may be slow, and a slow client skips ticks.
            assert ticks == sorted(set(ticks))
            server.process.terminate()
            # Read to the end of the stream: a truncated stream raises.
            for _ in lines:
                pass
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("page", ["landing", "off"])
def test_without_the_full_page_there_is_no_api(page: str) -> None:
    with serving_prepared("--source", "simulator", "--web.page", page) as server:
        answer = server.get("/api/v1/snapshot")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_served")


def test_without_a_ledger_on_disk_energy_names_the_remedy() -> None:
    with serving_prepared("--source", "simulator", "--state-dir", "none") as server:
        server.wait_ticks(2)
        answer = server.get("/api/v1/energy")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_books")
        sessions = server.get("/api/v1/sessions").json()
        assert sessions["from_books"] is False
        assert sessions["sessions"]


def test_the_api_requires_the_credentials_of_the_metrics(tmp_path: Path) -> None:
    import bcrypt

    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(f"basic_auth_users: {{ada: '{hashed}'}}\n")
    config = str(tmp_path / "web.yml")
    with serving_prepared("--source", "simulator", "--web.config.file", config) as server:
        paths = [API + one.name for one in ENDPOINTS]
        assert {server.get(path).status_code for path in paths} == {401}
        url = server.url + API + "events?limit=1"
        assert get(url, auth=("ada", "secret")).status_code == 200

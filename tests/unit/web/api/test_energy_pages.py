"""Pages of /api/v1/energy: they come from one report, which equal requests share for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.http.routes import Request, Response
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.history import History
from gpuledger.web.api import energy
from gpuledger.web.api.api import Api, ApiOptions
from gpuledger.web.api.energy import FRESH_SECONDS, HELD_SECONDS
from gpuledger.web.api.handlers import ApiHandlers
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.responses import ApiError, encode_cursor
from ledger_helpers import UNIX, Run
from running import PATIENCE
from unit.web.api.energy_client import CARD, PEOPLE, STATE, EnergyClient, shared_ledger

QUARTER = 900


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    found = shared_ledger(tmp_path)
    yield found
    found.store.close()


def test_equal_requests_share_a_report_for_a_while(run: Run) -> None:
    client = EnergyClient(run)
    for query in ("since=24h", "since=1440m", "since=24h&limit=3"):
        client.request(query)
    assert client.reports.computed == 1
    client.request("since=24h&by=pod")
    assert client.reports.computed == 2
    client.clock.now_elapsed += FRESH_SECONDS
    client.request("since=24h")
    assert client.reports.computed == 3


def test_all_pages_come_from_one_report(run: Run) -> None:
    client = EnergyClient(run)
    whole = [row["key"] for row in client.request("since=24h")["rows"]]
    body = client.request("since=24h&limit=3")
    found = [row["key"] for row in body["rows"]]
    energy = 10**6
    while body["next"] is not None:
        energy += 10**6
        # The last process uses the most energy from now on.
        run.tick({CARD: energy}, PEOPLE[-1:])
        client.clock.now_elapsed += FRESH_SECONDS
        body = client.request(f"since=24h&limit=3&cursor={body['next']}")
        found += [row["key"] for row in body["rows"]]
    assert (found, client.reports.computed) == (whole, 1)


def test_an_expired_report_returns_cursor_expired(run: Run) -> None:
    client = EnergyClient(run)
    cursor = client.request("since=24h&limit=3")["next"]
    client.clock.now_elapsed += HELD_SECONDS + 1
    with pytest.raises(ApiError) as refused:
        client.request(f"since=24h&cursor={cursor}")
    assert (refused.value.status, refused.value.code) == (404, "cursor_expired")


@pytest.mark.parametrize("numbers", [[1, 0], [1, -1], [1, 10**6], [1], [1, 2, 3]])
def test_a_forged_cursor_is_refused(run: Run, numbers: list[int]) -> None:
    client = EnergyClient(run)
    client.request("since=24h")
    with pytest.raises(ApiError) as refused:
        client.request(f"since=24h&cursor={encode_cursor(numbers)}")
    assert (refused.value.status, refused.value.parameter) == (400, "cursor")


def test_a_cursor_of_another_grouping_is_refused(run: Run) -> None:
    client = EnergyClient(run)
    cursor = client.request("since=24h&limit=3")["next"]
    with pytest.raises(ApiError, match="cursor"):
        client.request(f"since=24h&by=pod&cursor={cursor}")


def test_a_cursor_continues_alone_or_with_the_same_parameters(run: Run) -> None:
    client = EnergyClient(run)
    whole = [row["key"] for row in client.request("since=24h&by=pod")["rows"]]
    body = client.request("since=24h&by=pod&limit=2")
    times = f"since={body['since']}&until={body['until']}"
    for beside in ("limit=2", "since=24h", "until=now&by=pod", times):
        rest = client.request(f"cursor={body['next']}&{beside}")["rows"]
        assert [row["key"] for row in rest] == whole[2 : 2 + (2 if "limit" in beside else 200)]
    second = client.request(f"cursor={body['next']}&limit=2")["next"]
    assert client.request(f"cursor={second}&since=24h&by=pod")["rows"][0]["key"] == whole[4]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("since", "23h"),
        ("until", "1h"),
        ("by", "user"),
        ("in", "today"),
        ("every", "day"),
        ("basis", "residence"),
    ],
)
def test_a_parameter_that_differs_from_the_cursor_is_refused_and_named(
    run: Run, name: str, value: str
) -> None:
    client = EnergyClient(run)
    cursor = client.request("since=24h&limit=3")["next"]
    with pytest.raises(ApiError) as refused:
        client.request(f"cursor={cursor}&{name}={value}")
    assert (refused.value.status, refused.value.parameter) == (400, name)


def test_only_a_few_reports_are_cached(run: Run) -> None:
    client = EnergyClient(run)
    first = client.request("since=24h&limit=1")["next"]
    for by in ("pod", "user", "job", "gpu"):
        client.request(f"since=24h&by={by}")
    with pytest.raises(ApiError, match="no longer cached"):
        client.request(f"since=24h&cursor={first}")


def test_cached_reports_are_dropped_without_requests(run: Run) -> None:
    clock = FakeClock(run.clock.now_unix, 0.0)
    api = Api(STATE, LedgerAccess(clock, lambda: History(run.store.file)), clock)
    handlers = ApiHandlers(api, ApiOptions(), held=0.01)

    async def within() -> tuple[int, bool]:
        answer = handlers.respond(Request("GET", "/api/v1/energy", "since=24h"))
        assert not isinstance(answer, Response)
        body: Response = await answer
        while handlers.reports.has_reports:
            await asyncio.sleep(0)
        return body.status, handlers.reports.has_reports

    async def patiently() -> tuple[int, bool]:
        return await asyncio.wait_for(within(), PATIENCE)

    assert asyncio.run(patiently()) == (200, False)


def test_a_report_is_reused_as_long_as_it_takes_twenty_times(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = EnergyClient(run)
    build = energy.build_report

    def slow(*arguments: Any, **named: Any) -> UsageReport:
        client.clock.now_elapsed += 3.0
        return build(*arguments, **named)

    monkeypatch.setattr(energy, "build_report", slow)
    client.request("since=24h")
    client.clock.now_elapsed += 59.0
    client.request("since=24h")
    assert client.reports.computed == 1
    client.clock.now_elapsed += 2.0
    client.request("since=24h")
    assert client.reports.computed == 2


def test_a_range_that_has_ended_is_reported_once(run: Run) -> None:
    client = EnergyClient(run)
    run.tick({CARD: 10**6}, seconds=59.0)
    for second in range(30):
        run.tick({CARD: 10**6 + second}, seconds=59.0)
    until = int(UNIX // QUARTER + 1) * QUARTER
    for _ in range(3):
        body = client.request(f"since=24h&until={until}")
        client.clock.now_elapsed += 60
    assert (body["until"], client.reports.computed) == (until, 1)
    client.clock.now_elapsed += HELD_SECONDS
    client.request(f"since=24h&until={until}")
    assert client.reports.computed == 2

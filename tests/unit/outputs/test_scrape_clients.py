"""Which clients count as scrapers, and for how long new series are held at 0 for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from builders import FakeClock
from gpuledger.http.routes import Request
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.outputs.scrape_clients import ScrapeClients
from unit.http.support import FakeDialect, a_page

PROMETHEUS = {"user-agent": "Prometheus/3.5.0", "x-prometheus-scrape-timeout-seconds": "10"}


def scrape(
    clients: ScrapeClients,
    clock: FakeClock,
    gaps: Sequence[float],
    client: str = "10.0.0.1 4000",
    headers: dict[str, str] | None = None,
    method: str = "GET",
) -> float:
    """Scrape once, and again after each gap; return the longest hold."""
    for gap in (0.0, *gaps):
        clock.advance(gap)
        named = PROMETHEUS if headers is None else headers
        clients.add(Request(method, "/metrics", headers=named, client=client))
    return clients.longest_hold()


@pytest.mark.parametrize(
    ("gaps", "hold"),
    [
        ([], 0.0),
        ([60.0] * 3, 0.0),
        ([60.0] * 4, 70.0),
        ([15.0] * 4, 25.0),
        ([5.0] * 4, 10.0),
        ([59.5, 60.5, 60.0, 60.2], 70.5),
        ([1.2, 0.4, 0.9, 1.1], 2.4),
        ([1.0, 60.0, 3.0, 60.0], 0.0),
        ([60.0, 60.0, 60.0, 120.0], 0.0),
        ([*[60.0] * 4, 120.0], 70.0),
        ([*[60.0] * 4, *[120.0] * 4], 130.0),
        ([*[60.0] * 4, *[15.0] * 4], 25.0),
        ([3600.0] * 4, 3610.0),
        ([86_400.0] * 4, 0.0),
    ],
)
def test_a_client_counts_from_its_fifth_regular_scrape_on(gaps: list[float], hold: float) -> None:
    clock = FakeClock(elapsed=1024.0)
    assert scrape(ScrapeClients(clock), clock, gaps) == pytest.approx(hold)


@pytest.mark.parametrize(
    ("timeout", "hold"),
    [
        ("10", 70.0),
        ("45.5", 105.5),
        ("", 70.0),
        ("x", 70.0),
        ("-1", 70.0),
        ("inf", 70.0),
        ("nan", 70.0),
        ("900", 120.0),
    ],
)
def test_the_timeout_is_that_of_the_header_and_not_above_the_interval(timeout: str, hold: float) -> None:
    clock = FakeClock()
    headers = {"x-prometheus-scrape-timeout-seconds": timeout} if timeout else {}
    assert scrape(ScrapeClients(clock), clock, [60.0] * 4, headers=headers) == hold


def test_the_longest_interval_counts_until_its_client_has_left() -> None:
    clock = FakeClock()
    clients = ScrapeClients(clock)
    assert scrape(clients, clock, [60.0] * 4) == 70.0
    assert scrape(clients, clock, [15.0] * 4, client="10.0.0.2 4000") == 70.0
    clock.advance(240.0)
    assert clients.longest_hold() == 70.0
    clock.advance(1.0)
    assert clients.longest_hold() == 0.0


def test_replicas_behind_one_address_are_distinguished_by_their_connections() -> None:
    clock = FakeClock()
    clients = ScrapeClients(clock)
    for _ in range(5):
        scrape(clients, clock, [], client="10.0.0.1 4000")
        clock.advance(20.0)
        scrape(clients, clock, [], client="10.0.0.1 4001")
        clock.advance(40.0)
    assert clients.longest_hold() == 70.0


def test_a_client_with_a_connection_for_each_scrape_is_known_by_its_address() -> None:
    clock = FakeClock()
    clients = ScrapeClients(clock)
    for port in range(5):
        scrape(clients, clock, [], client=f"10.0.0.1 {4000 + port}")
        clock.advance(60.0)
    assert clients.longest_hold() == 70.0


def test_head_requests_are_no_scrapes() -> None:
    clock = FakeClock()
    assert scrape(ScrapeClients(clock), clock, [60.0] * 9, method="HEAD") == 0.0


def test_any_number_of_clients_takes_bounded_memory() -> None:
    clock = FakeClock()
    clients = ScrapeClients(clock)
    for number in range(2000):
        clock.advance(1.0)
        scrape(clients, clock, [], client=f"10.0.0.{number} 4000")
    assert len(clients._clients) <= 256


def test_scrapes_of_pages_count_and_survive_a_reload() -> None:
    clock = FakeClock()
    pages = MetricsPages({"process": FakeDialect()}, clock, a_page())
    serve = pages.handler(("process",))
    for _ in range(5):
        serve(Request("GET", "/metrics", headers=PROMETHEUS, client="10.0.0.1 4000"))
        clock.advance(60.0)
    after = MetricsPages({"process": FakeDialect()}, clock, a_page())
    after.continue_from(pages)
    assert (pages.clients.longest_hold(), after.clients.longest_hold()) == (70.0, 70.0)

"""The page with five thousand processes, and with thousands of sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect

from browser import Look, looking
from running import Server, serving

pytestmark = pytest.mark.xdist_group("browser")

COUNT = 5000
# So many rows at most are in the document, whatever there is.
MOST = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file: Path = tmp_path_factory.mktemp("many") / "many.yaml"
    lines = ["gpus:"]
    for gpu in range(8):
        lines += ["  - model: NVIDIA H100 80GB HBM3", "    memory: 640GB", "    processes:"]
        for number in range(COUNT // 8):
            name, user = f"/usr/bin/worker-{gpu}-{number}", f"user{number % 50}"
            lines.append(f"      - {{name: {name}, user: {user}, memory: {number + 1}MB}}")
    file.write_text("\n".join(lines))
    with serving(
        "--source", f"simulator:{file}", "--interval", "10s", "--process.max-per-device", "1000"
    ) as started:
        started.wait_ticks()
        yield started


@pytest.fixture
def look(browser: Browser, server: Server) -> Iterator[Look]:
    with looking(browser, server.url) as look:
        yield look.open()


def test_only_rows_in_sight_are_in_the_document_and_all_are_counted(look: Look) -> None:
    expect(look("#processes .found")).to_have_text("5,000 processes")
    expect(look("#processes [role=grid]")).to_have_attribute("aria-rowcount", str(COUNT + 1))
    assert 10 < look.rows().count() < MOST
    expect(look.rows().first).to_have_attribute("aria-rowindex", "2")


def test_scrolling_brings_the_rows_that_belong_there(look: Look) -> None:
    look("#processes .scroller").evaluate("(node) => { node.scrollTop = node.scrollHeight; }")
    last = look(f"#processes [role=row][aria-rowindex='{COUNT + 1}']")
    expect(last).to_be_visible()
    expect(last.locator(".c-gpu")).to_have_text("7")
    assert look.rows().count() < MOST


def test_a_keyboard_walks_from_the_first_to_the_last_row(look: Look) -> None:
    look("#processes .grid-body [role=row][tabindex='0']").focus()
    for key, number in [("End", COUNT + 1), ("PageUp", None), ("Home", 2), ("ArrowDown", 3)]:
        look.page.keyboard.press(key)
        if number is not None:
            expect(look(f"#processes [role=row][aria-rowindex='{number}']")).to_be_focused()
            expect(look(f"#processes [role=row][aria-rowindex='{number}']")).to_be_in_viewport()


def test_a_focused_row_stays_when_it_is_scrolled_out_of_sight(look: Look) -> None:
    row = look("#processes [role=row][aria-rowindex='3']")
    row.focus()
    look("#processes .scroller").evaluate("(node) => { node.scrollTop = 50000; }")
    expect(look("#processes [role=row][aria-rowindex='1480']")).to_be_attached()
    expect(row).to_be_focused()


def test_sorting_and_filtering_are_of_all_rows(look: Look) -> None:
    look.heading("Memory").get_by_role("button").click()
    expect(look.rows().first.locator(".c-command")).to_have_text(re.compile("-624$"))
    look("#processes input").fill("user7")
    expect(look("#processes .found")).to_have_text("104 of 5,000 processes")
    look("#processes input").fill("worker-3-17 gpu:3")
    expect(look("#processes .found")).to_have_text("11 of 5,000 processes")


def test_the_scrolled_place_stays_when_news_arrive(look: Look) -> None:
    scroller = look("#processes .scroller")
    scroller.evaluate("(node) => { node.scrollTop = 34 * 2000; }")
    expect(look("#processes [role=row][aria-rowindex='2010']")).to_be_visible()
    asked = "performance.getEntriesByName(location.origin + '/api/v1/snapshot').length"
    look.page.wait_for_function(f"(before) => {asked} > before", arg=look.page.evaluate(asked))
    expect(look("#processes [role=row][aria-rowindex='2010']")).to_be_visible()
    assert scroller.evaluate("(node) => node.scrollTop") == 34 * 2000


def a_day(server: Server, count: int) -> list[dict[str, object]]:
    """So many sessions of the last day, in the API's words, as books would have them."""
    now = server.get("/api/v1/snapshot").json()["unix"]
    return [
        {
            "id": f"s{number}",
            "uuid": f"GPU-{number % 8}",
            "gpu": str(number % 8),
            "instance": "",
            "pid": 10_000 + number,
            "command": f"job-{number}",
            "owner_kind": "user",
            **dict.fromkeys(("namespace", "pod", "container", "job"), ""),
            "user": f"user{number % 5}",
            "first_seen": now - 86_000 + number * 85_000 / count,
            "last_seen": now - 85_900 + number * 85_000 / count,
            "ended": now - 85_900 + number * 85_000 / count,
            "exit_seen": True,
            "peak_memory_bytes": 2**30,
            "sm_mean_ratio": 0.5,
            "sm_most_ratio": 1.0,
            "held_seconds": 0.0,
            "joules": 3600.0,
            "measured_joules": 0.0,
            "apportioned_joules": 3600.0,
            "low_joules": 0.0,
            "high_joules": 7200.0,
        }
        for number in range(count)
    ]


def test_thousands_of_sessions_are_fetched_by_pages_drawn_walked_and_listed(
    browser: Browser, server: Server
) -> None:
    sessions = a_day(server, 4500)

    def books(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        first = int(query.get("cursor", ["0"])[0])
        last = first + int(query["limit"][0])
        answer = {
            "version": "v1",
            "since": float(query["since"][0]),
            "until": sessions[-1]["ended"],
            "sessions": sessions[first:last],
            "next": str(last) if last < len(sessions) else None,
            "from_books": True,
        }
        route.fulfill(json=answer)

    with looking(browser, server.url) as look:
        # There are no books of energy to be asked.
        none = {"rows": [], "own": [], "gpus": [], "total": {"joules": 0, "cost": None, "co2_grams": None}}
        empty = {"since": 0, "until": 0, "by": "namespace", "complete": True, "next": None, "currency": ""}
        look.page.route("**/api/v1/energy*", lambda route: route.fulfill(json={**none, **empty}))
        look.page.route("**/api/v1/sessions*", books)
        look.open()
        expect(look.section("sessions").locator(".known")).to_have_text("4,500 sessions")
        expect(look.section("sessions").locator("[data-span='24']")).to_have_attribute("aria-pressed", "true")
        look(".stage").focus()
        for _ in range(20):
            look.page.keyboard.press("ArrowRight")
        expect(look("#said")).to_contain_text("user2, job-152 (10152) on GPU 0: ")
        bounds = "3.60_kJ, between 0_J and 7.20_kJ".replace("_", "\N{NO-BREAK SPACE}")
        expect(look("#said")).to_contain_text(bounds)
        look.section("sessions").locator("details").evaluate("(fold) => { fold.open = true; }")
        expect(look.section("sessions").locator("tbody tr")).to_have_count(200)
        expect(look.section("sessions").locator("caption")).to_have_text(
            "The newest 200 of 4,500 sessions in this window"
        )

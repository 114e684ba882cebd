"""The page with five thousand processes, and with thousands of sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect

from browser import BrowserTab, open_tab
from running import Server, serving_prepared

pytestmark = pytest.mark.group("page-scale")

COUNT = 5000
# The maximum number of rows in the document.
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
    with serving_prepared(
        "--source", f"simulator:{file}", "--interval", "10s", "--process.max-per-device", "1000"
    ) as started:
        started.wait_ticks()
        yield started


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[BrowserTab]:
    with open_tab(browser, server.url) as tab:
        yield tab.open()


def test_only_visible_rows_are_in_the_document_and_all_are_counted(tab: BrowserTab) -> None:
    expect(tab("#processes .found")).to_have_text("5,000 processes")
    expect(tab("#processes [role=grid]")).to_have_attribute("aria-rowcount", str(COUNT + 1))
    assert 10 < tab.rows().count() < MOST
    expect(tab.rows().first).to_have_attribute("aria-rowindex", "2")


def test_scrolling_shows_the_right_rows(tab: BrowserTab) -> None:
    tab("#processes .scroller").evaluate("(node) => { node.scrollTop = node.scrollHeight; }")
    last = tab(f"#processes [role=row][aria-rowindex='{COUNT + 1}']")
    expect(last).to_be_visible()
    expect(last.locator(".c-gpu")).to_have_text("7")
    assert tab.rows().count() < MOST


def test_keys_move_from_the_first_to_the_last_row(tab: BrowserTab) -> None:
    tab("#processes .grid-body [role=row][tabindex='0']").focus()
    for key, number in [("End", COUNT + 1), ("PageUp", None), ("Home", 2), ("ArrowDown", 3)]:
        tab.page.keyboard.press(key)
        if number is not None:
            expect(tab(f"#processes [role=row][aria-rowindex='{number}']")).to_be_focused()
            expect(tab(f"#processes [role=row][aria-rowindex='{number}']")).to_be_in_viewport()


def test_a_focused_row_remains_in_the_document_when_scrolled_away(tab: BrowserTab) -> None:
    row = tab("#processes [role=row][aria-rowindex='3']")
    row.focus()
    tab("#processes .scroller").evaluate("(node) => { node.scrollTop = 50000; }")
    expect(tab("#processes [role=row][aria-rowindex='1480']")).to_be_attached()
    expect(row).to_be_focused()


def test_sorting_and_filtering_apply_to_all_rows(tab: BrowserTab) -> None:
    tab.heading("Memory").get_by_role("button").click()
    expect(tab.rows().first.locator(".c-command")).to_have_text(re.compile("-624$"))
    tab("#processes input").fill("user7")
    expect(tab("#processes .found")).to_have_text("104 of 5,000 processes")
    tab("#processes input").fill("worker-3-17 gpu:3")
    expect(tab("#processes .found")).to_have_text("11 of 5,000 processes")


def test_updates_keep_the_scroll_position_of_the_table(tab: BrowserTab) -> None:
    scroller = tab("#processes .scroller")
    scroller.evaluate("(node) => { node.scrollTop = 34 * 2000; }")
    expect(tab("#processes [role=row][aria-rowindex='2010']")).to_be_visible()
    tab.page.wait_for_event("requestfinished", lambda request: request.url.endswith("/api/v1/snapshot"))
    expect(tab("#processes [role=row][aria-rowindex='2010']")).to_be_visible()
    assert scroller.evaluate("(node) => node.scrollTop") == 34 * 2000


def a_day(server: Server, count: int) -> list[dict[str, object]]:
    """`count` sessions of the last day, in the format of the API."""
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


def test_thousands_of_sessions_are_fetched_in_pages_and_shown(browser: Browser, server: Server) -> None:
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

    with open_tab(browser, server.url) as tab:
        # The node has no ledger on disk, so energy requests would fail.
        nothing = {"joules": 0, "millijoules": 0, "gpu_microseconds": 0, "cost": None, "co2_grams": None}
        none = {"rows": [], "own": [], "gpus": [], "groupings": [], "not_billed": [], "total": nothing}
        empty = {"since": 0, "until": 0, "by": "namespace", "complete": True, "next": None, "currency": ""}
        tab.page.route("**/api/v1/energy*", lambda route: route.fulfill(json={**none, **empty}))
        tab.page.route("**/api/v1/sessions*", books)
        tab.open()
        expect(tab.section("sessions").locator(".known")).to_have_text("4,500 sessions")
        expect(tab.section("sessions").locator("[data-span='24']")).to_have_attribute("aria-pressed", "true")
        tab(".stage").focus()
        for _ in range(20):
            tab.page.keyboard.press("ArrowRight")
        expect(tab("#announcement")).to_contain_text("user2, job-152 (10152) on GPU 0: ")
        bounds = "3.60_kJ, between 0_J and 7.20_kJ".replace("_", "\N{NO-BREAK SPACE}")
        expect(tab("#announcement")).to_contain_text(bounds)
        tab.section("sessions").locator("details").evaluate("(fold) => { fold.open = true; }")
        expect(tab.section("sessions").locator("tbody tr")).to_have_count(200)
        expect(tab.section("sessions").locator("caption")).to_have_text(
            "The newest 200 of 4,500 sessions in this window"
        )

"""The page with five thousand processes, and with thousands of sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

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
        lines += [
            f"      - {{name: /usr/bin/worker-{gpu}-{number}, user: user{number % 50}, memory: {number + 1}MB}}"
            for number in range(COUNT // 8)
        ]
    file.write_text("\n".join(lines))
    with serving("--source", f"simulator:{file}", "--interval", "10s") as started:
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
    expect(look("#processes [role=row][aria-rowindex='1500']")).to_be_attached()
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


def test_thousands_of_sessions_are_drawn_walked_and_listed(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "short.yaml"
    jobs = "\n".join(
        f"      - {{name: /usr/bin/job-{n}, user: ben, memory: 1GB, load: 0.1, every: 30s, for: 20s}}"
        for n in range(8)
    )
    file.write_text(f"gpus:\n  - model: NVIDIA L4\n    count: 4\n    memory: 80GB\n    processes:\n{jobs}\n")
    books = str(tmp_path / "books")
    with serving(
        "--source", f"simulator:{file}", "--speed", "60", "--interval", "250ms", "--state-dir", books
    ) as server:
        server.wait_ticks(240)
        with looking(browser, server.url) as look:
            look.open()
            expect(look.section("sessions").locator(".known")).to_have_text(
                re.compile(r"^\d,\d\d\d sessions$")
            )
            look(".stage").focus()
            for _ in range(20):
                look.page.keyboard.press("ArrowRight")
            expect(look("#said")).to_contain_text("ben, job-")
            look.section("sessions").locator("details").evaluate("(fold) => { fold.open = true; }")
            expect(look.section("sessions").locator("tbody tr")).to_have_count(200)
            expect(look.section("sessions").locator("caption")).to_contain_text("The newest 200 of")

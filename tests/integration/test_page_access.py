"""Accessibility of the page: keyboard, axe, live region, forced colors, print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from browser import DESKTOP, PHONE, BrowserTab, open_tab
from running import Server, serving_prepared

pytestmark = pytest.mark.group("page-access")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    books = tmp_path_factory.mktemp("books")
    with serving_prepared("--source", "simulator", "--speed", "10", "--state-dir", str(books)) as started:
        started.wait_ticks(5)
        yield started


def filled(tab: BrowserTab) -> BrowserTab:
    """The page with all sections loaded and all folds open."""
    tab.open()
    expect(tab.section("energy").locator("tbody tr").first).to_be_attached()
    expect(tab.section("health").locator(".parts tr").first).to_be_attached()
    for fold in tab("details").all():
        fold.evaluate("(node) => { node.open = true; }")
    expect(tab.section("sessions").locator("tbody tr").first).to_be_attached()
    return tab


@pytest.mark.parametrize("device", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(browser: Browser, server: Server, device: dict[str, Any]) -> None:
    with open_tab(browser, server.url, **device) as tab:
        assert filled(tab).axe() == []
        # Only colors depend on the scheme.
        tab.page.emulate_media(color_scheme="dark")
        assert tab.axe(runOnly=["color-contrast"]) == []


def test_the_page_has_a_language_one_main_heading_and_landmarks(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url) as tab:
        tab.open()
        expect(tab("html")).to_have_attribute("lang", "en")
        for selector in ("h1", "main", "body > header", "nav", "footer"):
            expect(tab(selector)).to_have_count(1)
        for name in ("Overview", "GPUs", "Processes", "Sessions, last 24 hours", "Usage", "Health"):
            expect(tab.page.get_by_role("heading", level=2, name=name)).to_have_count(1)


def test_everything_works_with_the_keyboard_alone(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url) as tab:
        tab.open()
        keys = tab.page.keyboard
        keys.press("Tab")
        expect(tab(".skip")).to_be_focused()
        expect(tab(".skip")).to_be_in_viewport()
        keys.press("Enter")
        expect(tab("#h-gpus")).to_be_focused()
        keys.press("Tab")
        expect(tab("[data-spark=utilization]")).to_be_focused()
        for _ in range(100):
            if tab("#processes input").evaluate("(node) => node === document.activeElement"):
                break
            keys.press("Tab")
        expect(tab("#processes input")).to_be_focused()
        keys.type("inference")
        expect(tab("#announcement")).to_have_text(re.compile(r"^\d processes shown$"))
        keys.press("Tab")
        expect(tab.heading("GPU").get_by_role("button")).to_be_focused()
        keys.press("Enter")
        expect(tab.heading("GPU")).to_have_attribute("aria-sort", "descending")
        for _ in range(11):
            keys.press("Tab")
        expect(tab.rows().first).to_be_focused()
        keys.press("ArrowDown")
        expect(tab("#processes [role=row][aria-rowindex='3']")).to_be_focused()
        keys.press("End")
        expect(tab("#processes [role=row]").last).to_be_focused()
        keys.press("Tab")
        expect(tab.section("sessions").locator("[data-span='1']")).to_be_focused()
        keys.press("Space")
        expect(tab.section("sessions").locator("[data-span='1']")).to_have_attribute("aria-pressed", "true")
        for _ in range(8):
            keys.press("Tab")
        expect(tab(".stage")).to_be_focused()
        keys.press("ArrowRight")
        expect(tab("#announcement")).to_contain_text("on GPU 0")
        keys.press("ArrowDown")
        expect(tab("#announcement")).to_contain_text("on GPU 1")
        keys.press("+")
        keys.press("Shift+ArrowLeft")
        keys.press("Escape")
        expect(tab.section("sessions").locator(".detail-who")).to_contain_text("Point at a session")
        keys.press("Tab")
        keys.press("Enter")
        expect(tab.section("sessions").locator("details")).to_have_attribute("open", "")


def test_the_focus_is_visible(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url) as tab:
        tab.open()
        tab.page.keyboard.press("Tab")
        tab.page.keyboard.press("Tab")
        outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


# Records the texts of the live region; counts the requests for snapshots.
_RECORD = """() => {
    window.announcements = [];
    const region = document.querySelector('#announcement');
    const listen = new MutationObserver(() => announcements.push(region.textContent));
    listen.observe(region, {childList: true, characterData: true, subtree: true});
}"""
SNAPSHOT_REQUESTS = "performance.getEntriesByName(location.origin + '/api/v1/snapshot').length"


def test_the_live_region_announces_changes_but_not_every_update(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url) as tab:
        tab.open()
        tab.page.evaluate(_RECORD)
        for _ in range(3):
            requests = tab.page.evaluate(SNAPSHOT_REQUESTS)
            tab.page.wait_for_function(f"(before) => {SNAPSHOT_REQUESTS} > before", arg=requests)
        assert tab.page.evaluate("announcements") == []
        regions = tab.page.evaluate(
            "[...document.querySelectorAll('[aria-live], [role=status], [role=alert], output')]"
            ".map((node) => node.id)"
        )
        assert regions == ["announcement"]


def test_forced_colors_keep_bars_and_states_distinguishable(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url, forced_colors="active") as tab:
        tab.open()
        bar = tab.card("0").locator(".meter .fill").first
        fill, ground = bar.evaluate(
            "(node) => [node, node.parentNode].map((one) => getComputedStyle(one).backgroundColor)"
        )
        assert fill != ground
        expect(tab.card("0").locator(".head .state")).to_have_css("border-top-style", "solid")


def test_printing_shows_all_rows_and_no_controls(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url) as tab:
        tab.open()
        tab.page.emulate_media(media="print")
        tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        # Both at one moment: processes begin and end.
        shown, total = tab("#processes [role=grid]").evaluate(
            "(grid) => [grid.querySelectorAll('.grid-body [role=row]').length, grid.ariaRowCount - 1]"
        )
        assert shown == total > 0
        tab.page.set_viewport_size({"width": 720, "height": 1000})
        assert tab.overflow() == 0
        expect(tab("#processes input")).to_be_hidden()
        expect(tab("nav")).to_be_hidden()

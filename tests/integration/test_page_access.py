"""The page with a keyboard alone, through axe's eyes, and in the reader's own colours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from browser import DESKTOP, PHONE, Look, looking
from running import Server, serving

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    books = tmp_path_factory.mktemp("books")
    with serving("--source", "simulator", "--speed", "10", "--state-dir", str(books)) as started:
        started.wait_ticks(5)
        yield started


def filled(look: Look) -> Look:
    """The page with every part of it shown and every fold open."""
    look.open()
    expect(look.section("energy").locator("tbody tr").first).to_be_attached()
    expect(look.section("health").locator(".parts tr").first).to_be_attached()
    for fold in look("details").all():
        fold.evaluate("(node) => { node.open = true; }")
    expect(look.section("sessions").locator("tbody tr").first).to_be_attached()
    return look


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(browser: Browser, server: Server, scheme: str, device: dict[str, Any]) -> None:
    with looking(browser, server.url, color_scheme=scheme, **device) as look:
        assert filled(look).axe() == []


def test_it_has_a_language_one_main_heading_and_landmarks(browser: Browser, server: Server) -> None:
    with looking(browser, server.url) as look:
        look.open()
        expect(look("html")).to_have_attribute("lang", "en")
        for selector in ("h1", "main", "body > header", "nav", "footer"):
            expect(look(selector)).to_have_count(1)
        for name in ("At a glance", "GPUs", "Processes", "Sessions, last 24 hours", "Energy today", "Health"):
            expect(look.page.get_by_role("heading", level=2, name=name)).to_have_count(1)


def test_a_keyboard_alone_reaches_and_works_everything(browser: Browser, server: Server) -> None:
    with looking(browser, server.url) as look:
        look.open()
        keys = look.page.keyboard
        keys.press("Tab")
        expect(look(".skip")).to_be_focused()
        expect(look(".skip")).to_be_in_viewport()
        keys.press("Enter")
        expect(look("#h-gpus")).to_be_focused()
        keys.press("Tab")
        expect(look("[data-spark=utilization]")).to_be_focused()
        for _ in range(100):
            if look("#processes input").evaluate("(node) => node === document.activeElement"):
                break
            keys.press("Tab")
        expect(look("#processes input")).to_be_focused()
        keys.type("inference")
        expect(look("#said")).to_have_text(re.compile(r"^\d processes shown$"))
        keys.press("Tab")
        expect(look.heading("GPU").get_by_role("button")).to_be_focused()
        keys.press("Enter")
        expect(look.heading("GPU")).to_have_attribute("aria-sort", "descending")
        for _ in range(11):
            keys.press("Tab")
        expect(look.rows().first).to_be_focused()
        keys.press("ArrowDown")
        expect(look("#processes [role=row][aria-rowindex='3']")).to_be_focused()
        keys.press("End")
        expect(look("#processes [role=row]").last).to_be_focused()
        keys.press("Tab")
        expect(look.section("sessions").locator("[data-span='1']")).to_be_focused()
        keys.press("Space")
        expect(look.section("sessions").locator("[data-span='1']")).to_have_attribute("aria-pressed", "true")
        for _ in range(8):
            keys.press("Tab")
        expect(look(".stage")).to_be_focused()
        keys.press("ArrowRight")
        expect(look("#said")).to_contain_text("on GPU 0")
        keys.press("ArrowDown")
        expect(look("#said")).to_contain_text("on GPU 1")
        keys.press("+")
        keys.press("Shift+ArrowLeft")
        keys.press("Escape")
        expect(look.section("sessions").locator(".detail-who")).to_contain_text("Point at a session")
        keys.press("Tab")
        keys.press("Enter")
        expect(look.section("sessions").locator("details")).to_have_attribute("open", "")


def test_the_focus_is_seen(browser: Browser, server: Server) -> None:
    with looking(browser, server.url) as look:
        look.open()
        look.page.keyboard.press("Tab")
        look.page.keyboard.press("Tab")
        outline = look.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


# What the live region says from here on, and how many snapshots were asked for.
_HEAR = """() => {
    window.heard = [];
    const said = document.querySelector('#said');
    const listen = new MutationObserver(() => heard.push(said.textContent));
    listen.observe(said, {childList: true, characterData: true, subtree: true});
}"""
_ASKED = "performance.getEntriesByName(location.origin + '/api/v1/snapshot').length"


def test_the_live_region_says_what_changes_and_not_every_second(browser: Browser, server: Server) -> None:
    with looking(browser, server.url) as look:
        look.open()
        look.page.evaluate(_HEAR)
        for _ in range(3):
            asked = look.page.evaluate(_ASKED)
            look.page.wait_for_function(f"(before) => {_ASKED} > before", arg=asked)
        assert look.page.evaluate("heard") == []
        regions = look.page.evaluate(
            "[...document.querySelectorAll('[aria-live], [role=status], [role=alert], output')]"
            ".map((node) => node.id)"
        )
        assert regions == ["said"]


def test_forced_colours_keep_bars_and_states_apart(browser: Browser, server: Server) -> None:
    with looking(browser, server.url, forced_colors="active") as look:
        look.open()
        bar = look.card("0").locator(".meter .fill").first
        fill, ground = bar.evaluate(
            "(node) => [node, node.parentNode].map((one) => getComputedStyle(one).backgroundColor)"
        )
        assert fill != ground
        expect(look.card("0").locator(".head .state")).to_have_css("border-top-style", "solid")


def test_print_shows_all_rows_and_no_controls(browser: Browser, server: Server) -> None:
    with looking(browser, server.url) as look:
        look.open()
        look.page.emulate_media(media="print")
        look.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        total = int(str(look("#processes [role=grid]").get_attribute("aria-rowcount"))) - 1
        assert look.rows().count() == total
        look.page.set_viewport_size({"width": 720, "height": 1000})
        assert look.overflow() == 0
        expect(look("#processes input")).to_be_hidden()
        expect(look("nav")).to_be_hidden()

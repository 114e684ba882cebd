"""The web page of a simulated Kubernetes node, used in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from browser import PHONE, BrowserTab, open_tab
from running import Server, serving_prepared

pytestmark = pytest.mark.group("page")

PRICES = ("--price.kwh", "0.32", "--price.currency", "EUR")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    books = tmp_path_factory.mktemp("books")
    source = ("--source", "simulator", "--speed", "10", "--state-dir", str(books))
    with serving_prepared(*source, *PRICES, env={"GPULEDGER_CONTROL_SOCKET": "none"}) as started:
        started.wait_ticks(5)
        yield started


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[BrowserTab]:
    with open_tab(browser, server.url) as tab:
        yield tab.open()


def part(tab: BrowserTab, section: str, name: str) -> Locator:
    return tab.section(section).locator(name)


def test_the_sparkline_shows_the_chosen_quantity(tab: BrowserTab) -> None:
    card = tab.card("0")
    expect(card.locator(".curve .line")).to_have_attribute("d", re.compile(r"^M[\d.]+ [\d.]+H"))
    expect(card.locator(".curve")).to_have_attribute("aria-label", re.compile("^utilization, .*mean"))
    tab.section("gpus").get_by_role("button", name="Power").click()
    expect(card.locator(".curve")).to_have_attribute("aria-label", re.compile(r"^power, .*\d\sW"))
    assert "spark=power" in tab.hash()


def test_the_button_of_a_card_filters_the_processes(tab: BrowserTab) -> None:
    tab.card("3").get_by_role("button", name="of GPU 3").click()
    expect(tab("#processes input")).to_have_value("gpu:3")
    expect(tab("#h-processes")).to_be_focused()
    expect(tab.rows().first).to_contain_text("inference")
    assert set(tab.column("gpu")) == {"3"}


def test_clicking_a_heading_sorts_the_processes(tab: BrowserTab) -> None:
    expect(tab.heading("GPU")).to_have_attribute("aria-sort", "ascending")
    tab.heading("Memory").get_by_role("button").click()
    expect(tab.heading("Memory")).to_have_attribute("aria-sort", "descending")
    expect(tab.heading("GPU")).not_to_have_attribute("aria-sort", "ascending")
    assert tab.column("memory")[:2] == ["71.0\N{NO-BREAK SPACE}GiB"] * 2
    tab.heading("Memory").get_by_role("button").click()
    expect(tab.heading("Memory")).to_have_attribute("aria-sort", "ascending")
    assert tab.column("memory")[0] == "30.0\N{NO-BREAK SPACE}MiB"


def test_the_view_is_stored_in_the_url(tab: BrowserTab, browser: Browser, server: Server) -> None:
    tab("#processes input").fill("inference")
    tab.heading("Memory").get_by_role("button").click()
    tab.section("energy").get_by_role("button", name="Pod").click()
    tab.section("sessions").get_by_role("button", name="6 h").click()
    with open_tab(browser, server.url) as other:
        other.open(f"#{tab.hash()}")
        expect(other("#processes input")).to_have_value("inference")
        expect(other.heading("Memory")).to_have_attribute("aria-sort", "descending")
        expect(other.section("energy").locator("[data-by=pod]")).to_have_attribute("aria-pressed", "true")
        expect(other.section("sessions").locator("[data-span='6']")).to_have_attribute("aria-pressed", "true")


def window(tab: BrowserTab) -> tuple[int, int]:
    """The range that the timeline shows, in unix seconds."""
    begin, end = str(tab(".stage").get_attribute("data-window")).split()
    return int(begin), int(end)


def wide(tab: BrowserTab) -> int:
    begin, end = window(tab)
    return end - begin


# Whether the timeline shows less than `length` seconds.
NARROWER = """(length) => {
    const [begin, end] = document.querySelector('.stage').dataset.window.split(' ');
    return end - begin < length;
}"""


def show_last_hour(tab: BrowserTab) -> None:
    """Wait until the timeline shows the sessions of the last hour: a pointer finds what it points at."""
    tab.section("sessions").get_by_role("button", name="1 h", exact=True).click()
    expect(part(tab, "sessions", ".known")).to_have_text(re.compile(r"^\d+ sessions$"))
    tab.page.wait_for_function(NARROWER, arg=2 * 3600)
    tab(".stage canvas").scroll_into_view_if_needed()


def test_buttons_zoom_and_pan_the_timeline(tab: BrowserTab) -> None:
    for name, length in [("1 h", 3600), ("6 h", 6 * 3600), ("24 h", 86400)]:
        tab.section("sessions").get_by_role("button", name=name, exact=True).click()
        tab.page.wait_for_function(
            "(length) => { const [a, b] = document.querySelector('.stage').dataset.window.split(' ');"
            " return Math.abs(b - a - length) < 0.03 * length; }",
            arg=length,
        )
    for name in ("Zoom in", "Zoom in", "Earlier"):
        before = window(tab)
        tab.section("sessions").get_by_role("button", name=name, exact=True).click()
        expect(tab(".stage")).not_to_have_attribute("data-window", f"{before[0]} {before[1]}")
    assert wide(tab) == pytest.approx(86400 / 4, rel=0.03)
    assert window(tab)[1] < before[1]
    tab.section("sessions").get_by_role("button", name="Zoom out").click()
    tab.page.wait_for_function(
        "(before) => { const [a, b] = document.querySelector('.stage').dataset.window.split(' ');"
        " return b - a > 1.5 * before; }",
        arg=86400 / 4,
    )


def test_the_mouse_pans_and_the_wheel_zooms_the_timeline(tab: BrowserTab) -> None:
    show_last_hour(tab)
    canvas = tab(".stage canvas")
    box = canvas.bounding_box()
    assert box is not None
    # In the middle: when a process begins or ends, the canvas moves by a row.
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = window(tab)
    tab.page.mouse.move(x, y)
    tab.page.mouse.down()
    tab.page.mouse.move(x + 200, y, steps=4)
    tab.page.mouse.up()
    tab.page.wait_for_function(
        "(end) => +document.querySelector('.stage').dataset.window.split(' ')[1] < end - 60", arg=before[1]
    )
    length = wide(tab)
    tab.page.keyboard.down("Control")
    tab.page.mouse.wheel(0, -300)
    tab.page.keyboard.up("Control")
    tab.page.wait_for_function(
        "(length) => { const [a, b] = document.querySelector('.stage').dataset.window.split(' ');"
        " return b - a < 0.6 * length; }",
        arg=length,
    )


def hover_first_track(tab: BrowserTab, from_right: float) -> None:
    """Point at the track of the training pod alone, which runs now. `from_right` is in pixels."""
    canvas = tab(".stage canvas")
    box = canvas.bounding_box()
    assert box is not None
    canvas.hover(position={"x": box["width"] - from_right, "y": 26 + 9})


def test_a_resting_pointer_shows_the_session_that_appears_below_it(tab: BrowserTab) -> None:
    show_last_hour(tab)
    held: list[Route] = []
    tab.page.route("**/api/v1/sessions?*", lambda route: held.append(route))
    tab.page.reload()
    expect(part(tab, "sessions", ".known")).to_have_text("loading\u2026")
    hover_first_track(tab, 40)
    held[-1].continue_()
    expect(part(tab, "sessions", ".detail-who")).to_have_text("ml-research/llama-pretrain-worker-0")


def test_a_hovered_session_shows_owner_times_and_energy_with_bounds(tab: BrowserTab) -> None:
    show_last_hour(tab)
    hover_first_track(tab, 40)
    expect(part(tab, "sessions", ".detail-who")).to_have_text("ml-research/llama-pretrain-worker-0")
    expect(part(tab, "sessions", ".detail-what")).to_contain_text("on GPU 0")
    expect(part(tab, "sessions", ".detail-when")).to_contain_text("to now")
    expect(part(tab, "sessions", ".detail-energy")).to_have_text(
        re.compile(r"\d\s[kM]?J, (measured|between)")
    )


def test_the_sessions_are_also_shown_as_a_table(tab: BrowserTab) -> None:
    tab.section("sessions").get_by_text("The sessions in this window as a table").click()
    rows = tab.section("sessions").locator("tbody tr")
    expect(rows.filter(has_text="inference/chat-small-1")).to_have_count(1)
    expect(rows.filter(has_text="llama-pretrain-worker-0").first).to_contain_text("running")


def test_a_link_with_a_key_that_does_not_exist_here_opens_on_another(
    browser: Browser, server: Server
) -> None:
    with open_tab(browser, server.url) as tab:
        tab.node_may_stop = True
        tab.open("#by=team")
        expect(part(tab, "energy", ".keys [aria-pressed=true]")).to_have_text("Namespace")
        assert "by=" not in tab.hash()


def test_usage_of_this_month_or_of_yesterday_is_shown_on_request(tab: BrowserTab) -> None:
    section = tab.section("energy")
    expect(part(tab, "energy", ".when")).to_have_text(re.compile("^since "))
    with tab.page.expect_request("**/api/v1/energy?*since=month*"):
        section.get_by_role("button", name="This month").click()
    expect(part(tab, "energy", ".when")).to_have_text(
        re.compile(r"^1 \w+ .* to .*; the ledger begins later$")
    )
    assert "period=month" in tab.hash()
    tab.node_may_stop = True
    with tab.page.expect_request("**/api/v1/energy?*in=yesterday*"):
        section.get_by_role("button", name="Yesterday").click()
    expect(part(tab, "energy", ".missing")).to_contain_text("nothing was watched from")
    # The tiles remain those of today.
    expect(tab("#tile-energy")).to_have_text(re.compile(r"^[\d.,]+\sk?Wh$"))


def test_energy_is_grouped_by_namespace_pod_or_user(tab: BrowserTab) -> None:
    section = tab.section("energy")
    section.get_by_role("button", name="Pod").click()
    expect(section.locator("tbody")).to_contain_text("ml-research/llama-pretrain-worker-0")
    section.get_by_role("button", name="User").click()
    expect(section.locator("tbody")).to_contain_text("mira")


def test_health_opens_from_the_header_and_lists_collectors(tab: BrowserTab) -> None:
    fold = tab.section("health").locator("details")
    expect(part(tab, "health", ".verdict-line")).not_to_have_text("loading…")
    tab("#verdict").click()
    expect(fold).to_have_attribute("open", "")
    expect(fold.locator(".parts tr").first).to_contain_text("ok")
    expect(fold.locator(".facts-line")).to_contain_text("one every")


def test_the_page_honors_dark_mode_and_reduced_motion(browser: Browser, server: Server) -> None:
    def background(**options: str) -> str:
        with open_tab(browser, server.url, **options) as tab:
            tab.open()
            animation = tab.page.evaluate(
                "getComputedStyle(document.querySelector('#fresh .icon')).animationName"
            )
            assert (animation == "none") == (options["reduced_motion"] == "reduce")
            return str(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert background(color_scheme="light", reduced_motion="no-preference") == "rgb(244, 246, 248)"
    assert background(color_scheme="dark", reduced_motion="reduce") == "rgb(14, 19, 25)"


def test_on_a_phone_nothing_overflows_and_a_list_sorts_the_rows(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url, **PHONE) as tab:
        tab.open()
        expect(tab.section("energy").locator("tbody tr").first).to_be_attached()
        assert tab.overflow() == 0
        tab("#processes select").select_option("memory desc")
        expect(tab.rows().filter(has_text="llama-pretrain-worker-0").first).to_be_visible()
        assert tab.column("memory")[0] == "71.0\N{NO-BREAK SPACE}GiB"
        tab.card("3").get_by_role("button", name="of GPU 3").tap()
        expect(tab("#processes input")).to_have_value("gpu:3")


def test_on_a_phone_a_tap_on_a_session_shows_its_details(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url, **PHONE) as tab:
        tab.open()
        show_last_hour(tab)
        canvas = tab(".stage canvas")
        box = canvas.bounding_box()
        assert box is not None
        # Just before now: at first all sessions are short.
        canvas.tap(position={"x": box["width"] - 10, "y": 26 + 9})
        expect(part(tab, "sessions", ".detail-who")).to_have_text("ml-research/llama-pretrain-worker-0")


def test_on_a_phone_pinching_zooms_the_timeline(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url, **PHONE) as tab:
        tab.open()
        tab.section("sessions").get_by_role("button", name="6 h").tap()
        canvas = tab(".stage canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        fingers = tab.page.context.new_cdp_session(tab.page)
        middle, y = box["x"] + box["width"] / 2, box["y"] + 60
        for kind, apart in [("touchStart", 30), ("touchMove", 60), ("touchMove", 90), ("touchEnd", None)]:
            points = [] if apart is None else [{"x": middle + apart * side, "y": y} for side in (-1, 1)]
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        tab.page.wait_for_function(NARROWER, arg=4 * 3600)


def test_the_page_loads_less_than_150_kilobytes(tab: BrowserTab) -> None:
    assert {"/", "/page/app.js", "/page/style.css"} <= tab.weight.keys()
    assert sum(tab.weight.values()) < 150_000


def test_a_file_is_cached_after_the_first_load(tab: BrowserTab) -> None:
    tab.page.reload()
    expect(tab("#fresh")).to_have_text("live")
    sizes = tab.page.evaluate(
        "performance.getEntriesByType('resource').filter((one) => one.name.includes('/page/'))"
        ".map((one) => one.transferSize)"
    )
    assert sizes and set(sizes) == {0}


@pytest.mark.parametrize(("mode", "words"), [("landing", "GPUs of this machine"), ("off", None)])
def test_web_page_landing_and_off_replace_the_full_page(
    browser: Browser, tmp_path: Path, mode: str, words: str | None
) -> None:
    with serving_prepared("--source", "simulator", "--web.page", mode) as server:
        server.wait_ticks()
        assert server.get("/page/app.js").status_code == 404
        if words is None:
            assert server.get("/").status_code == 404
            return
        with open_tab(browser, server.url, java_script_enabled=False) as tab:
            tab.page.goto(server.url)
            expect(tab("table")).to_contain_text(words)


def test_without_scripts_the_page_links_to_the_plain_table(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url, java_script_enabled=False) as tab:
        tab.page.goto(server.url)
        tab.page.get_by_role("link", name="The same GPUs as a plain table").click()
        expect(tab("table")).to_contain_text("NVIDIA H100 80GB HBM3")

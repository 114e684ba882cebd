"""The messages of the page when the node has problems or values are absent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from browser import BrowserTab, open_tab
from running import Server, serving_prepared

pytestmark = pytest.mark.xdist_group("page-messages")

NO_SESSIONS: dict[str, Any] = {
    "sessions": [],
    "next": None,
    "from_books": True,
    "since": 0,
    "until": 1_790_010_000,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving_prepared("--source", "simulator", "--speed", "5") as started:
        started.wait_ticks(3)
        yield started


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[BrowserTab]:
    with open_tab(browser, server.url) as tab:
        yield tab


def energy(**changes: Any) -> dict[str, Any]:
    """An energy report of 3600 idle joules; `changes` overrides its values."""
    amounts = {"joules": 3600, "measured_joules": 0, "apportioned_joules": 0, "cost": None, "co2_grams": None}
    return {
        "since": 1_790_000_000,
        "until": 1_790_010_000,
        "by": "namespace",
        "complete": True,
        "rows": [],
        "gpus": [{"joules": 3600}],
        "currency": "",
        "next": None,
        "own": [{"account": "idle", "joules": 3600, "cost": None}],
        "total": {**amounts, "gpu_seconds": 0, "held_gpu_seconds": None, "sessions": 0},
        "notes": [],
        **changes,
    }


def serve_energy(tab: BrowserTab, body: dict[str, Any]) -> None:
    tab.page.route("**/api/v1/energy?*", lambda route: route.fulfill(json=body))
    tab.page.route("**/api/v1/sessions?*", lambda route: route.fulfill(json=NO_SESSIONS))


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (3600, "which equals the GPUs' energy counters, to the millijoule"),
        (3602.5, "but the GPUs' energy counters show 1.001 Wh: 2.500 J more. The ledger does not balance"),
        (3599.999, "but the GPUs' energy counters show 1.000 Wh: 0.001 J less. The ledger does not balance"),
    ],
)
def test_a_difference_between_counters_and_rows_is_shown(tab: BrowserTab, gpus: float, words: str) -> None:
    serve_energy(tab, energy(gpus=[{"joules": gpus}]))
    tab.open()
    expect(tab.section("energy").locator(".sum")).to_contain_text(words)


def test_notes_of_the_energy_report_are_shown(tab: BrowserTab) -> None:
    serve_energy(tab, energy(notes=["The ledger begins at 09:12.", "Times 1.4 (pue)."]))
    tab.open()
    notes = tab.section("energy").locator(".notes")
    expect(notes).to_have_text("The ledger begins at 09:12. Times 1.4 (pue).")


def test_without_notes_the_line_is_hidden(tab: BrowserTab) -> None:
    serve_energy(tab, energy())
    tab.open()
    expect(tab.section("energy").locator(".sum")).not_to_be_empty()
    expect(tab.section("energy").locator(".notes")).to_be_hidden()


def test_names_are_removed_from_an_open_tab_when_the_node_no_longer_serves_them(tab: BrowserTab) -> None:
    words = "web.page is landing: the API is served only with web.page: full, because it names users"
    tab.open()
    expect(tab.card("0")).to_contain_text("llama-pretrain-worker-0")
    tab.node_may_stop = True
    refusal = {"error": {"code": "not_served", "message": words}}
    tab.page.route("**/api/v1/**", lambda route: route.fulfill(status=404, json=refusal))
    expect(tab("main #refused")).to_have_text(words)
    expect(tab("#fresh")).to_have_attribute("data-state", "refused")
    expect(tab("#fresh")).to_have_text("not served")
    expect(tab("body")).not_to_contain_text("llama-pretrain")
    assert "llama-pretrain" not in tab.page.content()
    expect(tab("#verdict")).to_be_hidden()


def test_a_refusal_is_retried_much_later_than_a_lost_connection(tab: BrowserTab) -> None:
    script = """async () => {
        const { LiveConnection } = await import('./page/live.js');
        const pauses = [];
        for (const gone of ['connectionLost', 'onRefusal']) {
            const live = new LiveConnection({ state() {}, refused() {} });
            live[gone]('not served');
            pauses.push(live.retryAt - performance.now());
            clearTimeout(live.retry);
        }
        return pauses;
    }"""
    tab.open()
    lost, refused = tab.page.evaluate(script)
    assert refused > 10 * lost


def color(tab: BrowserTab, selector: str, name: str = "backgroundColor") -> str:
    found: str = tab(selector).first.evaluate("(node, name) => getComputedStyle(node)[name]", name)
    return found


def nothing_read(body: Any) -> None:
    body["status"]["readings"] = False
    body["devices"] = []


def no_states(body: Any) -> None:
    for device in body["devices"]:
        device["state"] = None


@pytest.mark.parametrize("change", [nothing_read, no_states])
def test_tiles_of_unknown_states_have_no_state_color(tab: BrowserTab, change: Callable[[Any], None]) -> None:
    tab.change_response("snapshot", change)
    tab.open()
    for name in ("free", "held"):
        expect(tab(f"#tile-{name}")).to_have_text("\N{EN DASH}")
        expect(tab(f"#tile-{name}-detail")).to_have_text("not reported")
        assert color(tab, f"[data-tile={name}]") == color(tab, "[data-tile=power]")
        assert color(tab, f"#tile-{name}", "color") == color(tab, "#tile-power-detail", "color")


def test_a_skipped_check_is_not_shown_as_a_failure(tab: BrowserTab) -> None:
    def one_fails(body: Any) -> None:
        body["status"].update(healthy=False, text="ledger: the disk is full")
        finding = {"check": "smi", "summary": "nothing to tab at", "remedy": ""}
        levels = ("fails", "skipped")
        body["findings"] = [{**finding, "check": level, "level": level} for level in levels]

    tab.change_response("health", one_fails)
    tab.open()
    expect(tab("#health")).to_have_attribute("data-level", "failure")
    skipped = "#health .findings li[data-level=unknown] .state"
    expect(tab(skipped)).to_have_text("skipped")
    assert color(tab, skipped, "color") != color(tab, "#health li[data-level=failure] .state", "color")


def test_in_a_narrow_header_only_the_verdict_is_truncated(browser: Browser, server: Server) -> None:
    wrong = "ledger: the disk is full; " * 6
    with open_tab(browser, server.url, viewport={"width": 1280, "height": 800}) as tab:
        tab.change_response("snapshot", lambda body: body["status"].update(healthy=False, text=wrong))
        tab.open()
        expect(tab("#verdict")).to_have_attribute("data-healthy", "no")
        whole = "(node) => node.scrollWidth <= node.clientWidth + 1"
        assert tab("#node").evaluate(whole)
        assert tab("#fresh").evaluate(whole)
        assert not tab("#verdict-text").evaluate(whole)
        expect(tab("#verdict-text")).to_have_attribute("title", wrong)
        expect(tab("nav a").last).to_be_in_viewport()
        assert tab.overflow() <= 0


def test_the_table_is_busy_until_another_grouping_arrives(
    tab: BrowserTab,
) -> None:
    serve_energy(tab, energy())
    held: list[Route] = []
    tab.page.route("**/api/v1/energy?by=pod*", lambda route: held.append(route))
    tab.open()
    report = tab.section("energy").locator(".report")
    expect(report).to_be_visible()
    with tab.page.expect_request("**/api/v1/energy?by=pod*"):
        tab.section("energy").get_by_role("button", name="Pod").click()
        expect(report).to_have_attribute("aria-busy", "true")
    assert color(tab, "#energy .report table", "opacity") == "0.5"
    held[0].fulfill(json=energy(by="pod"))
    expect(report).not_to_have_attribute("aria-busy", "true")
    expect(tab.section("energy").locator(".key")).to_have_text("Pod")


def test_idle_energy_has_its_co2_when_reported(tab: BrowserTab) -> None:
    body = energy(own=[{"account": "idle", "joules": 3600, "cost": None, "co2_grams": 420.0}])
    body["total"]["co2_grams"] = 420.0
    serve_energy(tab, body)
    tab.open()
    expect(tab.section("energy").locator("tr[data-own=idle] .e-co2")).to_have_text("0.42")


def test_a_very_narrow_window_does_not_scroll_sideways(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url, viewport={"width": 320, "height": 700}) as tab:
        serve_energy(tab, energy(total={**energy()["total"], "joules": 3.6e12, "cost": 1_234_567.8}))
        tab.open()
        expect(tab("#tile-energy-detail")).to_contain_text("1,234,567.80")
        assert tab.overflow() <= 0
        beyond = "(node) => node.scrollWidth - node.clientWidth"
        for text in tab("dl.tiles .tile:not([hidden]) :is(dt, dd)").all():
            assert text.evaluate(beyond) <= 0


def jobs(body: Any) -> None:
    for row in body["processes"]:
        row.update(job="4711")


@pytest.mark.parametrize("change", [lambda _: None, jobs], ids=["pods", "pods and jobs"])
def test_the_table_of_processes_fits_its_box_or_scrolls_to_its_last_column(
    browser: Browser, server: Server, change: Callable[[Any], None]
) -> None:
    with open_tab(browser, server.url, viewport={"width": 1280, "height": 800}) as tab:
        tab.change_response("snapshot", change)
        tab.open()
        inside = """(scroller) => {
            scroller.scrollLeft = scroller.scrollWidth;
            const { left } = scroller.getBoundingClientRect();
            const edge = left + scroller.clientLeft + scroller.clientWidth;
            const ages = [...scroller.querySelectorAll('.c-age')];
            return edge - Math.max(...ages.map((cell) => cell.getBoundingClientRect().right));
        }"""
        # The padding of a row.
        assert tab("#processes .scroller").evaluate(inside) >= 11


@pytest.mark.parametrize(("ago", "words"), [(None, r"^no readings yet$"), (125, r"^stale since \d+\smin")])
def test_no_readings_yet_is_shown_only_if_there_never_were_any(
    tab: BrowserTab, ago: float | None, words: str
) -> None:
    def source(body: Any) -> None:
        (part,) = (one for one in body["collectors"] if one["name"] == "source")
        part["last_success"] = None if ago is None else part["last_success"] - ago

    tab.change_response("snapshot", nothing_read)
    tab.change_response("health", source)
    tab.open()
    expect(tab("#fresh")).to_have_text(re.compile(words))

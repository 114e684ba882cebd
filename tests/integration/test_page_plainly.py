"""What the page says when not all is well or known: plainly, and no more than the node told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from browser import Look, looking
from running import Server, serving

pytestmark = pytest.mark.xdist_group("browser")

NO_SESSIONS: dict[str, Any] = {
    "sessions": [],
    "next": None,
    "from_books": True,
    "since": 0,
    "until": 1_790_010_000,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--source", "simulator", "--speed", "5") as started:
        started.wait_ticks(3)
        yield started


@pytest.fixture
def look(browser: Browser, server: Server) -> Iterator[Look]:
    with looking(browser, server.url) as look:
        yield look


def energy(**said: Any) -> dict[str, Any]:
    """An answer of the books: 3600 J, all of them idle, and whatever else is `said`."""
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
        **said,
    }


def tell_energy(look: Look, told: dict[str, Any]) -> None:
    look.page.route("**/api/v1/energy?*", lambda route: route.fulfill(json=told))
    look.page.route("**/api/v1/sessions?*", lambda route: route.fulfill(json=NO_SESSIONS))


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (3600, "that is what the GPUs' own counters say, to the millijoule"),
        (3602.5, "but the GPUs' own counters say 1.001 Wh: 2.500 J more. The books do not meet"),
        (3599.999, "but the GPUs' own counters say 1.000 Wh: 0.001 J less. The books do not meet"),
    ],
)
def test_counters_that_differ_from_the_rows_are_said_to_differ(look: Look, gpus: float, words: str) -> None:
    tell_energy(look, energy(gpus=[{"joules": gpus}]))
    look.open()
    expect(look.section("energy").locator(".sum")).to_contain_text(words)


def test_what_the_node_notes_of_its_books_is_shown(look: Look) -> None:
    tell_energy(look, energy(notes=["The books begin at 09:12.", "Times 1.4 (pue)."]))
    look.open()
    notes = look.section("energy").locator(".notes")
    expect(notes).to_have_text("The books begin at 09:12. Times 1.4 (pue).")


def test_no_notes_take_no_room(look: Look) -> None:
    tell_energy(look, energy())
    look.open()
    expect(look.section("energy").locator(".sum")).not_to_be_empty()
    expect(look.section("energy").locator(".notes")).to_be_hidden()


def test_a_node_that_no_longer_tells_names_has_them_cleared_from_an_open_tab(look: Look) -> None:
    words = "web.page is landing: the API is served with web.page: full alone, since it names users"
    look.open()
    expect(look.card("0")).to_contain_text("llama-pretrain-worker-0")
    look.node_may_go = True
    refusal = {"error": {"code": "not_served", "message": words}}
    look.page.route("**/api/v1/**", lambda route: route.fulfill(status=404, json=refusal))
    expect(look("main #refused")).to_have_text(words)
    expect(look("#fresh")).to_have_attribute("data-state", "refused")
    expect(look("#fresh")).to_have_text("not served")
    expect(look("body")).not_to_contain_text("llama-pretrain")
    assert "llama-pretrain" not in look.page.content()
    expect(look("#verdict")).to_be_hidden()


def test_who_was_refused_asks_again_much_later_than_who_lost_the_node(look: Look) -> None:
    script = """async () => {
        const { Live } = await import('./page/live.js');
        const pauses = [];
        for (const gone of ['lost', 'refuse']) {
            const live = new Live({ state() {}, refused() {} });
            live[gone]('not served');
            pauses.push(live.retryAt - performance.now());
            clearTimeout(live.retry);
        }
        return pauses;
    }"""
    look.open()
    lost, refused = look.page.evaluate(script)
    assert refused > 10 * lost


def colour(look: Look, selector: str, name: str = "backgroundColor") -> str:
    found: str = look(selector).first.evaluate("(node, name) => getComputedStyle(node)[name]", name)
    return found


def nothing_read(told: Any) -> None:
    told["status"]["readings"] = False
    told["devices"] = []


def no_states(told: Any) -> None:
    for device in told["devices"]:
        device["state"] = None


@pytest.mark.parametrize("change", [nothing_read, no_states])
def test_tiles_of_what_is_not_known_have_no_colour_of_a_state(
    look: Look, change: Callable[[Any], None]
) -> None:
    look.families("snapshot", change)
    look.open()
    for name in ("free", "held"):
        expect(look(f"#tile-{name}")).to_have_text("\N{EN DASH}")
        expect(look(f"#tile-{name}-detail")).to_have_text("not told")
        assert colour(look, f"[data-tile={name}]") == colour(look, "[data-tile=power]")
        assert colour(look, f"#tile-{name}", "color") == colour(look, "#tile-power-detail", "color")


def test_a_check_that_was_skipped_is_no_failure_in_a_panel_of_failures(look: Look) -> None:
    def one_fails(told: Any) -> None:
        told["status"].update(healthy=False, text="ledger: the disk is full")
        finding = {"check": "smi", "summary": "nothing to look at", "remedy": ""}
        levels = ("fails", "skipped")
        told["findings"] = [{**finding, "check": level, "level": level} for level in levels]

    look.families("health", one_fails)
    look.open()
    expect(look("#health")).to_have_attribute("data-level", "failure")
    skipped = "#health .findings li[data-level=unknown] .state"
    expect(look(skipped)).to_have_text("skipped")
    assert colour(look, skipped, "color") != colour(look, "#health li[data-level=failure] .state", "color")


def test_in_a_narrow_header_a_long_verdict_gives_way_to_the_node_and_the_freshness(
    browser: Browser, server: Server
) -> None:
    wrong = "ledger: the disk is full; " * 6
    with looking(browser, server.url, viewport={"width": 1280, "height": 800}) as look:
        look.families("snapshot", lambda told: told["status"].update(healthy=False, text=wrong))
        look.open()
        expect(look("#verdict")).to_have_attribute("data-healthy", "no")
        whole = "(node) => node.scrollWidth <= node.clientWidth + 1"
        assert look("#node").evaluate(whole)
        assert look("#fresh").evaluate(whole)
        assert not look("#verdict-text").evaluate(whole)
        expect(look("#verdict-text")).to_have_attribute("title", wrong)
        expect(look("nav a").last).to_be_in_viewport()
        assert look.overflow() <= 0


def test_another_grouping_is_asked_for_at_once_and_the_table_is_busy_until_it_is_there(look: Look) -> None:
    tell_energy(look, energy())
    held: list[Route] = []
    look.page.route("**/api/v1/energy?by=pod*", lambda route: held.append(route))
    look.open()
    books = look.section("energy").locator(".books")
    expect(books).to_be_visible()
    with look.page.expect_request("**/api/v1/energy?by=pod*"):
        look.section("energy").get_by_role("button", name="Pod").click()
        expect(books).to_have_attribute("aria-busy", "true")
    assert colour(look, "#energy .books table", "opacity") == "0.5"
    held[0].fulfill(json=energy(by="pod"))
    expect(books).not_to_have_attribute("aria-busy", "true")
    expect(look.section("energy").locator(".key")).to_have_text("Pod")


def test_idle_energy_has_its_co2_where_the_node_tells_it(look: Look) -> None:
    told = energy(own=[{"account": "idle", "joules": 3600, "cost": None, "co2_grams": 420.0}])
    told["total"]["co2_grams"] = 420.0
    tell_energy(look, told)
    look.open()
    expect(look.section("energy").locator("tr[data-own=idle] .e-gas")).to_have_text("0.42")


def test_the_page_of_a_very_narrow_window_does_not_scroll_sideways(browser: Browser, server: Server) -> None:
    with looking(browser, server.url, viewport={"width": 320, "height": 700}) as look:
        tell_energy(look, energy(total={**energy()["total"], "joules": 3.6e12, "cost": 1_234_567.8}))
        look.open()
        expect(look("#tile-energy-detail")).to_contain_text("1,234,567.80")
        assert look.overflow() <= 0
        beyond = "(node) => node.scrollWidth - node.clientWidth"
        for text in look("dl.tiles .tile:not([hidden]) :is(dt, dd)").all():
            assert text.evaluate(beyond) <= 0


def jobs(told: Any) -> None:
    for row in told["processes"]:
        row.update(job="4711")


@pytest.mark.parametrize("change", [lambda _: None, jobs], ids=["pods", "pods and jobs"])
def test_the_table_of_processes_fits_its_box_or_scrolls_with_all_its_columns(
    browser: Browser, server: Server, change: Callable[[Any], None]
) -> None:
    with looking(browser, server.url, viewport={"width": 1280, "height": 800}) as look:
        look.families("snapshot", change)
        look.open()
        inside = """(scroller) => {
            scroller.scrollLeft = scroller.scrollWidth;
            const { left } = scroller.getBoundingClientRect();
            const edge = left + scroller.clientLeft + scroller.clientWidth;
            const ages = [...scroller.querySelectorAll('.c-age')];
            return edge - Math.max(...ages.map((cell) => cell.getBoundingClientRect().right));
        }"""
        # Up to the padding of a row.
        assert look("#processes .scroller").evaluate(inside) >= 11


@pytest.mark.parametrize(("ago", "words"), [(None, r"^no readings yet$"), (125, r"^stale since \d+\smin")])
def test_only_where_nothing_was_ever_read_there_are_no_readings_yet(
    look: Look, ago: float | None, words: str
) -> None:
    def source(told: Any) -> None:
        (part,) = (one for one in told["collectors"] if one["name"] == "source")
        part["last_success"] = None if ago is None else part["last_success"] - ago

    look.families("snapshot", nothing_read)
    look.families("health", source)
    look.open()
    expect(look("#fresh")).to_have_text(re.compile(words))

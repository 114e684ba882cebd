"""The messages of the page when the node has problems or values are absent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from browser import BrowserTab, open_tab
from running import Server, serving_prepared

pytestmark = pytest.mark.group("page-messages")

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


HOUR = 3_600_000_000


def energy(**changes: Any) -> dict[str, Any]:
    """A report of an idle hour and 3600 idle joules; `changes` overrides its values."""
    amounts = {
        "joules": 3600,
        "millijoules": 3_600_000,
        "gpu_microseconds": HOUR,
        "cost": None,
        "co2_grams": None,
    }
    return {
        "since": 1_790_000_000,
        "until": 1_790_010_000,
        "by": "namespace",
        "groupings": [{"by": "namespace", "names": 2}, {"by": "pod", "names": 2}],
        "complete": True,
        "rows": [],
        "gpus": [{"millijoules": 3_600_000, "microseconds_by_account": {"idle": HOUR}}],
        "currency": "",
        "next": None,
        "own": [{"account": "idle", "key": [""], **amounts}],
        "total": {**amounts, "measured_joules": 0, "apportioned_joules": 0, "sessions": 0},
        "not_billed": [],
        "notes": [],
        **changes,
    }


def row(name: str, **amounts: Any) -> dict[str, Any]:
    """A row of a namespace that had a GPU for an hour."""
    values = {
        "joules": 0,
        "millijoules": 0,
        "gpu_microseconds": HOUR,
        "held_gpu_seconds": 0,
        "co2_grams": None,
    }
    bounds = dict.fromkeys(("measured_joules", "apportioned_joules", "low_joules", "high_joules"), 0)
    return {"key": [name], **values, **bounds, "cost": None, **amounts}


def money(text: str) -> dict[str, Any]:
    """The cost of a row."""
    return {"cost": float(text), "decimals": {"cost": text}}


def serve_energy(tab: BrowserTab, body: dict[str, Any]) -> None:
    tab.page.route("**/api/v1/energy?*", lambda route: route.fulfill(json=body))
    tab.page.route("**/api/v1/sessions?*", lambda route: route.fulfill(json=NO_SESSIONS))


@pytest.mark.parametrize(
    ("millijoules", "microseconds", "words"),
    [
        (3_600_000, HOUR, "to the microsecond, and the GPUs' energy counters, to the millijoule"),
        (3_602_500, HOUR, "but the GPUs' energy counters show 2.500 J more. The ledger does not balance"),
        (3_599_999, HOUR, "but the GPUs' energy counters show 0.001 J less. The ledger does not balance"),
        (3_600_000, HOUR + 1, "the total 3,600.000000, the GPUs 3,600.000001: please report this"),
    ],
)
def test_a_difference_between_counters_and_rows_is_shown(
    tab: BrowserTab, millijoules: int, microseconds: int, words: str
) -> None:
    accounts = {"idle": microseconds, "down": HOUR}
    serve_energy(tab, energy(gpus=[{"millijoules": millijoules, "microseconds_by_account": accounts}]))
    tab.open()
    expect(tab.section("energy").locator(".sum")).to_contain_text(words)


@pytest.mark.parametrize(
    ("integrated", "words"),
    [
        (0, "and the GPUs' energy counters, to the millijoule"),
        (
            900,
            "and the GPUs' energy counters and power readings (0.250 Wh are power summed over time), to the",
        ),
        (
            3600,
            "and the GPUs' power readings, summed over time (no energy counter was read), to the millijoule",
        ),
    ],
)
def test_energy_without_a_counter_is_called_power_summed_over_time(
    tab: BrowserTab, integrated: int, words: str
) -> None:
    gpu = {
        "millijoules": 3_600_000,
        "integrated_joules": integrated,
        "microseconds_by_account": {"idle": HOUR},
    }
    serve_energy(tab, energy(gpus=[gpu]))
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
    body = energy()
    body["own"][0]["co2_grams"] = 420.0
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


def test_rows_are_rounded_to_their_printed_total(tab: BrowserTab) -> None:
    third = HOUR // 3
    parts = [money(text) for text in ("0.0333333334", "0.0333333333", "0.0333333333")]
    rows = [row(name, gpu_microseconds=third, **part) for name, part in zip("abc", parts, strict=True)]
    total = {
        **energy()["total"],
        "gpu_microseconds": HOUR,
        **money("0.1000000000"),
        "millijoules": 0,
        "joules": 0,
    }
    gpus = [{"millijoules": 0, "microseconds_by_account": {"owner": HOUR}}]
    serve_energy(tab, energy(rows=rows, own=[], total=total, gpus=gpus, currency="EUR"))
    tab.open()
    section = tab.section("energy")
    expect(section.locator("tbody .e-cost")).to_have_text(["€0.0334", "€0.0333", "€0.0333"])
    expect(section.locator("tfoot .e-cost")).to_have_text("€0.1000")
    expect(section.locator("tbody .e-hours")).to_have_text(["0.34", "0.33", "0.33"])
    expect(section.locator("tfoot .e-hours")).to_have_text("1.00")


def test_the_rows_that_are_not_shown_are_one_row_so_that_the_table_adds_up(tab: BrowserTab) -> None:
    rows = [row(f"team-{number:02}", joules=100 - number, millijoules=0) for number in range(20)]
    total = {**energy()["total"], "gpu_microseconds": 20 * HOUR, "millijoules": 0}
    gpus = [{"millijoules": 0, "microseconds_by_account": {"owner": 20 * HOUR}}]
    serve_energy(tab, energy(rows=rows, own=[], total=total, gpus=gpus))
    tab.open()
    section = tab.section("energy")
    expect(section.locator("tbody tr")).to_have_count(13)
    expect(section.locator("tr[data-own=rest]")).to_contain_text("8 others")
    expect(section.locator("tr[data-own=rest] .e-hours")).to_have_text("8.00")
    expect(section.locator("tr[data-own=rest] .e-held")).to_have_text("\N{EN DASH}")
    section.get_by_role("button", name="Show all 20").click()
    expect(section.locator("tbody tr")).to_have_count(20)


def test_time_that_is_not_billed_is_below_the_table(tab: BrowserTab) -> None:
    unbilled = [
        {"account": "down", "gpu_microseconds": HOUR // 2, "cost": 1.2},
        {"account": "down", "gpu_microseconds": HOUR, "cost": 2.4},
        {"account": "unobserved", "gpu_microseconds": 0, "cost": None},
        {"account": "unwatched", "gpu_microseconds": 3 * HOUR, "cost": None},
    ]
    serve_energy(tab, energy(not_billed=unbilled, currency="EUR"))
    tab.open()
    expect(tab.section("energy").locator(".sum")).to_contain_text(
        "Not billed: 1.50 GPU-hours (GPU failed, €3.60 at these prices); "
        "3.00 GPU-hours (gpuledger was not running)."
    )


def test_estimates_and_what_has_no_price_are_marked(tab: BrowserTab) -> None:
    marked = {"estimated_microseconds": 1, "unpriced_microseconds": 1}
    rows = [row("a", **money("2.0000000000"), **marked), row("b", **money("0.0000000000"))]
    total = {**energy()["total"], "gpu_microseconds": 3 * HOUR, **money("2.0000000000"), **marked}
    serve_energy(tab, energy(rows=rows, total=total))
    tab.open()
    section = tab.section("energy")
    expect(section.locator("tbody .e-cost")).to_have_text(["2.00+", "0.00", "\N{EN DASH}"])
    expect(section.locator("tbody .e-hours")).to_have_text(["1.00~", "1.00", "1.00"])
    expect(section.locator(".notes")).to_have_text(
        "~ rests on allocations of an unknown part of the GPU. "
        "+ without what no entry of the price list matches."
    )


@pytest.mark.parametrize("width", [320, 390, 1440])
def test_wide_numbers_fit_into_the_table_of_usage(browser: Browser, server: Server, width: int) -> None:
    big = {"gpu_microseconds": 123_456 * HOUR, "joules": 3.6e12, "millijoules": 36 * 10**14}
    held = {"held_gpu_seconds": 3600 * 123_456.78}
    rows = [
        row(
            "a-name-that-is-much-longer-than-a-phone-is-wide-" * 3,
            **big,
            **held,
            **money("1234567.8000000000"),
        )
    ]
    total = {**energy()["total"], **big, **money("1234567.8000000000")}
    with open_tab(browser, server.url, viewport={"width": width, "height": 700}) as tab:
        serve_energy(tab, energy(rows=rows, own=[], total=total, currency="EUR"))
        tab.open()
        expect(tab.section("energy").locator("tbody .e-cost")).to_have_text("€1,234,567.80")
        assert tab.overflow() <= 0
        for cell in tab("#energy :is(tbody, tfoot) td.number:visible").all():
            assert cell.evaluate("(node) => node.scrollWidth - node.clientWidth") <= 0
        if width >= 390:
            assert tab("#energy .wide").evaluate("(node) => node.scrollWidth - node.clientWidth") <= 0


def test_the_report_of_a_day_that_is_over_is_not_requested_again_and_again(tab: BrowserTab) -> None:
    tab.open()
    script = (
        "async () => { const { refreshSeconds: of } = await import('./page/report.js');"
        " return ['today', 'month', 'yesterday'].map(of); }"
    )
    today, month, yesterday = tab.page.evaluate(script)
    assert 20 <= today < month < yesterday

"""The page during changes: lost nodes and GPUs, updates while the user reads, pauses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from browser import BrowserTab, open_tab
from running import Server, free_port, serving_prepared, wait_until

pytestmark = pytest.mark.group("page-live")

TWO = """
gpus:
  - {model: NVIDIA A100-SXM4-80GB, memory: 80GB, empty_watts: 60, load_watts: 300, limit_watts: 400,
     processes: [{name: /usr/bin/python3, user: ada, memory: 30GB, load: 0.8}]}
  - {model: NVIDIA A100-SXM4-80GB, memory: 80GB, empty_watts: 60, load_watts: 300, limit_watts: 400}
"""
# Simulates hiding and showing the tab.
DISPATCH = "document.dispatchEvent(new Event('visibilitychange'));"
HIDE = "Object.defineProperty(document, 'hidden', {value: true, configurable: true});" + DISPATCH
SHOW = "delete document.hidden;" + DISPATCH
SNAPSHOT_REQUESTS = "performance.getEntriesByName(location.origin + '/api/v1/snapshot').length"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving_prepared("--source", "simulator", "--speed", "5") as started:
        started.wait_ticks(3)
        yield started


def scenario(folder: Path, text: str) -> str:
    file = folder / "scenario.yaml"
    file.write_text(text)
    return f"simulator:{file}"


def pass_snapshots(tab: BrowserTab, number: int = 3) -> None:
    """Wait until the page has fetched `number` more snapshots."""
    tab.page.wait_for_function(
        f"(wanted) => {SNAPSHOT_REQUESTS} >= wanted", arg=tab.page.evaluate(SNAPSHOT_REQUESTS) + number
    )


def test_a_stopped_node_is_shown_as_disconnected_and_a_restarted_one_as_live(browser: Browser) -> None:
    port = free_port()
    here = ("--source", "simulator", "--listen-address", f"127.0.0.1:{port}")
    with open_tab(browser, f"http://127.0.0.1:{port}") as tab:
        with serving_prepared(*here) as server:
            server.wait_ticks()
            tab.open()
            expect(tab("#fresh")).to_have_text("live")
            tab.node_may_stop = True
        expect(tab("#fresh")).to_have_text(
            re.compile(r"^disconnected, retrying.*; data from \d\d:\d\d:\d\d$")
        )
        expect(tab("#fresh use")).to_have_attribute("href", "#i-lost")
        expect(tab("#announcement")).to_have_text("Disconnected, retrying.")
        # The last data remains.
        expect(tab.card("0")).to_contain_text("llama-pretrain-worker-0")
        assert tab.axe(runOnly=["color-contrast"]) == []
        with serving_prepared(*here) as server:
            server.wait_ticks()
            expect(tab("#fresh")).to_have_text("live")
            expect(tab("#announcement")).to_have_text("Live again.")
            expect(tab.section("sessions").locator(".known")).to_have_text(re.compile("sessions$"))


def test_a_lost_gpu_is_down_and_the_others_continue(browser: Browser, tmp_path: Path) -> None:
    lost = "faults:\n  - {kind: gpu_lost, gpu: 0, at: 30s, for: 20s}\n"
    with serving_prepared("--source", scenario(tmp_path, TWO + lost), "--speed", "3") as server:
        server.wait_ticks()
        with open_tab(browser, server.url) as tab:
            tab.open()
            state = tab.card("0").locator(".head .state")
            expect(state).to_have_text("active")
            expect(state).to_have_text("down")
            expect(state.locator("use")).to_have_attribute("href", "#i-down")
            expect(tab.card("0").locator(".meters")).to_be_hidden()
            expect(tab("#tile-problems-detail")).to_have_text("GPU 0 down")
            expect(tab("#announcement")).to_have_text("New problem. GPU 0: Down")
            expect(tab.card("1").locator(".head .state")).to_have_text("idle")
            expect(state).to_have_text("active")
            expect(tab("#tile-problems")).to_be_hidden()


def test_a_hanging_driver_makes_the_page_stale_and_its_age_is_shown(browser: Browser, tmp_path: Path) -> None:
    hang = "faults:\n  - {kind: hang, at: 6s, for: 1h}\n"
    with serving_prepared("--source", scenario(tmp_path, TWO + hang)) as server:
        server.wait_ticks()
        with open_tab(browser, server.url) as tab:
            tab.open()
            expect(tab("#fresh")).to_have_text(re.compile(r"^stale since \d+\ss$"))
            expect(tab("#verdict")).to_have_attribute("data-healthy", "no")
            # Old data remains readable.
            assert tab.axe(runOnly=["color-contrast"]) == []
            expect(tab("#no-gpus")).to_contain_text("nothing could be read")
            expect(tab("#tile-free")).to_have_text("\N{EN DASH}")


def test_a_failed_process_list_is_not_shown_as_empty(browser: Browser, tmp_path: Path) -> None:
    fails = "faults:\n  - {kind: process_list_fails, gpu: 1, at: 0s, for: 1h}\n"
    with serving_prepared("--source", scenario(tmp_path, TWO + fails)) as server:
        server.wait_ticks()
        with open_tab(browser, server.url) as tab:
            tab.open()
            expect(tab.card("1")).to_contain_text("could not be listed")
            expect(tab.card("1").locator(".head .state")).to_have_text("unknown")
            expect(tab("#tile-free")).to_have_text("0")


def test_without_a_ledger_on_disk_the_page_says_why_there_is_no_energy(tab: BrowserTab) -> None:
    expect(tab("#tile-energy-detail")).to_have_text("no ledger on disk")
    expect(tab.section("energy").locator(".missing")).to_contain_text("--state-dir")
    expect(tab.section("sessions").locator(".notes")).to_contain_text("only running sessions are known")


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[BrowserTab]:
    with open_tab(browser, server.url) as tab:
        yield tab.open()


def test_updates_keep_the_focus(tab: BrowserTab) -> None:
    row = tab.rows().filter(has_text="tritonserver")
    row.focus()
    number = row.get_attribute("aria-rowindex")
    pass_snapshots(tab)
    expect(row).to_be_focused()
    expect(row).to_have_attribute("aria-rowindex", str(number))
    tab("#processes input").focus()
    pass_snapshots(tab)
    expect(tab("#processes input")).to_be_focused()


def test_updates_keep_a_selection(tab: BrowserTab) -> None:
    cell = tab.rows().filter(has_text="tritonserver").locator(".c-pod")
    cell.scroll_into_view_if_needed()
    cell.click(click_count=3)
    chosen = tab.page.evaluate("getSelection().toString()")
    assert "detector-api" in chosen
    pass_snapshots(tab)
    assert tab.page.evaluate("getSelection().toString()") == chosen


def test_updates_keep_the_scroll_position(browser: Browser, tmp_path: Path) -> None:
    with serving_prepared("--source", scenario(tmp_path, TWO)) as server:
        server.wait_ticks()
        with open_tab(browser, server.url) as tab:
            tab.open()
            expect(tab.section("energy").locator(".missing")).to_be_visible()
            tab("footer").scroll_into_view_if_needed()
            pass_snapshots(tab, 1)
            before = tab("#h-health").bounding_box()
            assert tab.page.evaluate("scrollY") > 0
            pass_snapshots(tab)
            assert tab("#h-health").bounding_box() == before


def test_rows_keep_their_order_while_the_pointer_is_on_them(tab: BrowserTab) -> None:
    tab.heading("SM").get_by_role("button").click()
    tab.rows().first.hover()
    expect(tab("#processes .order-paused")).to_be_visible()
    before = tab.column("pid")
    pass_snapshots(tab, 4)
    assert tab.column("pid")[: len(before)] == before
    tab("#h-gpus").hover()
    expect(tab("#processes .order-paused")).to_be_hidden()

    body = [text.split("\N{NO-BREAK SPACE}")[0] for text in tab.column("sm")]
    shares = [float(text) if text != "\N{EN DASH}" else -1 for text in body]
    assert shares == sorted(shares, reverse=True)


def test_a_hidden_tab_sends_no_requests(tab: BrowserTab, server: Server) -> None:
    tab.page.evaluate(HIDE)
    expect(tab("#fresh")).to_have_text("connecting…")
    requests = tab.page.evaluate(SNAPSHOT_REQUESTS)
    server.wait_ticks(server.get("/api/v1/snapshot").json()["tick"] + 4)
    # One running request may have finished.
    assert tab.page.evaluate(SNAPSHOT_REQUESTS) <= requests + 1
    tab.page.evaluate(SHOW)
    pass_snapshots(tab)
    expect(tab("#fresh")).to_have_text("live")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"paused": True, "paused_until": None, "readings": False}, r"^paused$"),
        ({"paused": True, "paused_until": 2e9, "readings": False}, r"^paused until 18 May \d\d:\d\d:\d\d$"),
        ({"readings": False, "stalled": True}, r"^stale since \d+\s"),
    ],
)
def test_a_pause_is_shown_as_paused_and_a_stall_as_stale(
    tab: BrowserTab, status: dict[str, object], words: str
) -> None:
    tab.change_response("snapshot", lambda body: body["status"].update(status))
    expect(tab("#fresh")).to_have_text(re.compile(words))


def test_the_header_shows_what_is_wrong_and_links_to_health(tab: BrowserTab) -> None:
    wrong = {"healthy": False, "text": "ledger: the disk is full"}
    tab.change_response("snapshot", lambda body: body["status"].update(wrong))
    expect(tab("#verdict")).to_have_text("ledger: the disk is full")
    tab("#verdict").click()
    expect(tab.section("health").locator("details")).to_have_attribute("open", "")
    expect(tab("#h-health")).to_be_focused()


def test_a_recording_is_not_called_simulated(tab: BrowserTab) -> None:
    played = {"name": "replay", "detail": "bug.jsonl.gz"}
    tab.change_response("snapshot", lambda body: body["source"].update(played))
    expect(tab("#banner")).to_have_text(
        re.compile(r"^Recorded data \(bug.jsonl.gz\): played back, not live data")
    )


def test_returning_to_a_hidden_tab_does_not_announce_stale_data(tab: BrowserTab) -> None:
    tab.page.evaluate(HIDE)
    expect(tab("#fresh")).to_have_text("connecting…")
    tab.page.evaluate(SHOW)
    expect(tab("#fresh")).to_have_text("live")
    expect(tab("#announcement")).to_be_empty()


def test_updates_cause_no_layout_shift(browser: Browser, tmp_path: Path) -> None:
    with serving_prepared("--source", scenario(tmp_path, TWO)) as server:
        server.wait_ticks()
        with open_tab(browser, server.url) as tab:
            tab.open()
            expect(tab.section("energy").locator(".missing")).to_be_visible()
            expect(tab.section("health").locator(".verdict-line")).to_contain_text("finding")
            tab.page.evaluate(
                "window.shifts = []; new PerformanceObserver((list) => shifts.push("
                "...list.getEntries().map((entry) => entry.value))).observe({type: 'layout-shift'})"
            )
            pass_snapshots(tab, 5)
            # A number with another digit may move its own text.
            assert sum(tab.page.evaluate("shifts")) < 0.0005


def test_a_past_owner_is_not_shown_as_the_owner(tab: BrowserTab) -> None:
    def before(body: Any) -> None:
        (device,) = (one for one in body["devices"] if one["gpu"] == "4")
        gone = {**device["owners"][0], "pod": "gone-before", "present": False, "processes": None}
        device["owners"].insert(0, gone)

    tab.change_response("snapshot", before)
    pass_snapshots(tab)
    expect(tab.card("4").locator(".owner")).to_have_text(["jupyter-pavel"])


def test_large_snapshots_are_fetched_less_often(tab: BrowserTab) -> None:
    ticks: list[int] = []

    def large(body: Any) -> None:
        body["padding"] = "x" * 500_000
        ticks.append(body["tick"])

    tab.change_response("snapshot", large)

    def skips_a_tick() -> bool:
        pass_snapshots(tab, 1)
        return any(later - earlier > 1 for earlier, later in pairwise(ticks[2:]))

    # On a busy machine ticks are late, too, so that some intervals have one tick only.
    wait_until(skips_a_tick, "a tick without a snapshot")


def test_a_pointer_on_the_rows_keeps_only_some_ended_processes(
    tab: BrowserTab,
) -> None:
    def others(body: Any) -> None:
        one = body["processes"][0]
        body["processes"] = [{**one, "pid": body["tick"] * 1000 + n} for n in range(60)]

    tab.change_response("snapshot", others)
    pass_snapshots(tab, 2)
    tab.rows().first.hover()
    most = 0
    for _ in range(5):
        pass_snapshots(tab, 1)
        most = max(most, int(tab("#processes [role=grid]").get_attribute("aria-rowcount") or 0))
    # The heading, the current processes, and the ended ones that are kept.
    assert most <= 1 + 60 + 100


def test_the_filter_finds_a_job_that_becomes_known_later(tab: BrowserTab) -> None:
    ticks: list[int] = []

    def later(body: Any) -> None:
        ticks.append(body["tick"])
        body["processes"][0]["job"] = "4711" if len(ticks) > 3 else ""

    tab.change_response("snapshot", later)
    tab("#processes input").fill("4711")
    expect(tab.rows()).to_have_count(1)


def test_the_start_of_the_day_is_shown_in_the_browser_s_time_zone(tab: BrowserTab) -> None:
    amounts = {
        "joules": 3600,
        "millijoules": 3_600_000,
        "gpu_microseconds": 10**6,
        "cost": None,
        "co2_grams": None,
    }
    body = {
        "since": 1_790_000_000,
        "until": 1_790_010_000,
        "by": "namespace",
        "groupings": [],
        "complete": False,
        "rows": [],
        "gpus": [],
        "currency": "",
        "next": None,
        "own": [{"account": "unattributed", "key": [""], **amounts}],
        "total": {**amounts, "sessions": 0},
        "not_billed": [],
    }
    tab.page.route("**/api/v1/energy?*", lambda route: route.fulfill(json=body))
    tab.page.route("**/api/v1/sessions?*", with_ledger)
    tab.open()
    clock = tab.page.evaluate("new Intl.DateTimeFormat('en-GB', {timeStyle: 'short'}).format(1790000000000)")
    expect(tab("#tile-energy-detail")).to_have_text(f"since {clock}; no price is set")
    # Idle was not reported: it is not zero.
    expect(tab("#tile-idle")).to_have_text("\N{EN DASH}")
    expect(tab("#tile-idle-detail")).to_have_text("of today's GPU time; \N{EN DASH} of its energy")
    expect(tab.section("energy").locator(".when")).to_have_text(f"since {clock}; the ledger begins later")


def with_ledger(route: Route) -> None:
    answer = route.fetch()
    route.fulfill(response=answer, json={**answer.json(), "from_books": True})

"""The page while things change: a node that goes and comes, GPUs that fall silent, a reader who reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from browser import Look, looking
from running import Server, free_port, serving

pytestmark = pytest.mark.xdist_group("browser")

TWO = """
gpus:
  - {model: NVIDIA A100-SXM4-80GB, memory: 80GB, empty_watts: 60, load_watts: 300, limit_watts: 400,
     processes: [{name: /usr/bin/python3, user: ada, memory: 30GB, load: 0.8}]}
  - {model: NVIDIA A100-SXM4-80GB, memory: 80GB, empty_watts: 60, load_watts: 300, limit_watts: 400}
"""
# What a browser does with a tab that is behind another, and when it comes to the front.
FIRE = "document.dispatchEvent(new Event('visibilitychange'));"
HIDE = "Object.defineProperty(document, 'hidden', {value: true, configurable: true});" + FIRE
SHOW = "delete document.hidden;" + FIRE
ASKED = "performance.getEntriesByName(location.origin + '/api/v1/snapshot').length"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--source", "simulator", "--speed", "5") as started:
        started.wait_ticks(3)
        yield started


def scenario(folder: Path, text: str) -> str:
    file = folder / "scenario.yaml"
    file.write_text(text)
    return f"simulator:{file}"


def pass_snapshots(look: Look, number: int = 3) -> None:
    """Wait until the page has been given so many more."""
    look.page.wait_for_function(f"(wanted) => {ASKED} >= wanted", arg=look.page.evaluate(ASKED) + number)


def test_a_node_that_stops_is_said_to_be_gone_and_one_that_comes_back_is_live(browser: Browser) -> None:
    port = free_port()
    here = ("--source", "simulator", "--listen-address", f"127.0.0.1:{port}")
    with looking(browser, f"http://127.0.0.1:{port}") as look:
        with serving(*here) as server:
            server.wait_ticks()
            look.open()
            expect(look("#fresh")).to_have_text("live")
            look.node_may_go = True
        expect(look("#fresh")).to_have_text(
            re.compile(r"^disconnected, trying again.*; shown is \d\d:\d\d:\d\d$")
        )
        expect(look("#fresh use")).to_have_attribute("href", "#i-lost")
        expect(look("#said")).to_have_text("Disconnected, trying again.")
        # The last picture stays.
        expect(look.card("0")).to_contain_text("llama-pretrain-worker-0")
        with serving(*here) as server:
            server.wait_ticks()
            expect(look("#fresh")).to_have_text("live")
            expect(look("#said")).to_have_text("Live again.")
            expect(look.section("sessions").locator(".known")).to_have_text(re.compile("sessions$"))


def test_a_lost_gpu_is_not_answering_and_the_others_go_on(browser: Browser, tmp_path: Path) -> None:
    lost = "faults:\n  - {kind: gpu_lost, gpu: 0, at: 30s, for: 20s}\n"
    with serving("--source", scenario(tmp_path, TWO + lost), "--speed", "3") as server:
        server.wait_ticks()
        with looking(browser, server.url) as look:
            look.open()
            state = look.card("0").locator(".head .state")
            expect(state).to_have_text("active")
            expect(state).to_have_text("not answering")
            expect(state.locator("use")).to_have_attribute("href", "#i-down")
            expect(look.card("0").locator(".meters")).to_be_hidden()
            expect(look("#tile-other-detail")).to_have_text("1 device not answering")
            expect(look.card("1").locator(".head .state")).to_have_text("idle")
            expect(state).to_have_text("active")


def test_a_driver_that_hangs_makes_the_page_stale_and_it_says_since_when(
    browser: Browser, tmp_path: Path
) -> None:
    hang = "faults:\n  - {kind: hang, at: 6s, for: 1h}\n"
    with serving("--source", scenario(tmp_path, TWO + hang)) as server:
        server.wait_ticks()
        with looking(browser, server.url) as look:
            look.open()
            expect(look("#fresh")).to_have_text(re.compile(r"^stale since \d+\ss$"))
            expect(look("#verdict")).to_have_attribute("data-healthy", "no")
            expect(look("#no-gpus")).to_contain_text("nothing could be read")
            expect(look("#tile-free")).to_have_text("\N{EN DASH}")


def test_a_process_list_that_fails_is_not_an_empty_one(browser: Browser, tmp_path: Path) -> None:
    fails = "faults:\n  - {kind: process_list_fails, gpu: 1, at: 0s, for: 1h}\n"
    with serving("--source", scenario(tmp_path, TWO + fails)) as server:
        server.wait_ticks()
        with looking(browser, server.url) as look:
            look.open()
            expect(look.card("1")).to_contain_text("could not be listed")
            expect(look.card("1").locator(".head .state")).to_have_text("unknown")
            expect(look("#tile-free")).to_have_text("0")


def test_without_books_energy_says_why_and_the_rest_is_there(look: Look) -> None:
    expect(look("#tile-energy-detail")).to_have_text("no books are kept")
    expect(look.section("energy").locator(".missing")).to_contain_text("--state-dir")
    expect(look.section("sessions").locator(".notes")).to_contain_text("only what runs now is known")


@pytest.fixture
def look(browser: Browser, server: Server) -> Iterator[Look]:
    with looking(browser, server.url) as look:
        yield look.open()


def test_updates_leave_the_focus_where_it_is(look: Look) -> None:
    row = look.rows().filter(has_text="tritonserver")
    row.focus()
    number = row.get_attribute("aria-rowindex")
    pass_snapshots(look)
    expect(row).to_be_focused()
    expect(row).to_have_attribute("aria-rowindex", str(number))
    look("#processes input").focus()
    pass_snapshots(look)
    expect(look("#processes input")).to_be_focused()


def test_updates_leave_a_selection_as_it_is(look: Look) -> None:
    cell = look.rows().filter(has_text="tritonserver").locator(".c-pod")
    cell.scroll_into_view_if_needed()
    cell.click(click_count=3)
    chosen = look.page.evaluate("getSelection().toString()")
    assert "detector-api" in chosen
    pass_snapshots(look)
    assert look.page.evaluate("getSelection().toString()") == chosen


def test_updates_leave_the_page_where_it_was_scrolled_to(browser: Browser, tmp_path: Path) -> None:
    with serving("--source", scenario(tmp_path, TWO)) as server:
        server.wait_ticks()
        with looking(browser, server.url) as look:
            look.open()
            expect(look.section("energy").locator(".missing")).to_be_visible()
            look("footer").scroll_into_view_if_needed()
            pass_snapshots(look, 1)
            before = look("#h-health").bounding_box()
            assert look.page.evaluate("scrollY") > 0
            pass_snapshots(look)
            assert look("#h-health").bounding_box() == before


def test_rows_rest_while_the_reader_points_at_them_and_are_sorted_anew_after(look: Look) -> None:
    look.heading("SM").get_by_role("button").click()
    look.rows().first.hover()
    expect(look("#processes .resting")).to_be_visible()
    before = look.column("pid")
    pass_snapshots(look, 4)
    assert look.column("pid")[: len(before)] == before
    look("#h-gpus").hover()
    expect(look("#processes .resting")).to_be_hidden()

    def shares() -> list[float]:
        told = [text.split("\N{NO-BREAK SPACE}")[0] for text in look.column("sm")]
        return [float(text) if text != "\N{EN DASH}" else -1 for text in told]

    assert shares() == sorted(shares(), reverse=True)


def test_nothing_is_asked_for_while_nobody_looks(look: Look, server: Server) -> None:
    look.page.evaluate(HIDE)
    expect(look("#fresh")).to_have_text("connecting…")
    asked = look.page.evaluate(ASKED)
    server.wait_ticks(server.get("/api/v1/snapshot").json()["tick"] + 4)
    # One that was on its way may have arrived.
    assert look.page.evaluate(ASKED) <= asked + 1
    look.page.evaluate(SHOW)
    pass_snapshots(look)
    expect(look("#fresh")).to_have_text("live")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"paused": True, "paused_until": None, "readings": False}, r"^paused$"),
        ({"paused": True, "paused_until": 2e9, "readings": False}, r"^paused until 18 May \d\d:\d\d:\d\d$"),
        ({"readings": False, "stalled": True}, r"^stale since \d+\s"),
    ],
)
def test_a_pause_is_no_failure_and_a_stall_is_stale(
    look: Look, status: dict[str, object], words: str
) -> None:
    look.families("snapshot", lambda told: told["status"].update(status))
    expect(look("#fresh")).to_have_text(re.compile(words))


def test_what_is_wrong_stands_in_the_header_and_leads_to_health(look: Look) -> None:
    wrong = {"healthy": False, "text": "ledger: the disk is full"}
    look.families("snapshot", lambda told: told["status"].update(wrong))
    expect(look("#verdict")).to_have_text("ledger: the disk is full")
    look("#verdict").click()
    expect(look.section("health").locator("details")).to_have_attribute("open", "")
    expect(look("#h-health")).to_be_focused()


def test_a_recording_is_not_called_simulated(look: Look) -> None:
    played = {"name": "replay", "detail": "bug.jsonl.gz"}
    look.families("snapshot", lambda told: told["source"].update(played))
    expect(look("#banner")).to_have_text(re.compile(r"^Recorded data \(bug.jsonl.gz\): played back"))


def test_who_comes_back_to_the_page_is_not_told_that_it_was_stale(look: Look) -> None:
    look.page.evaluate(HIDE)
    expect(look("#fresh")).to_have_text("connecting…")
    look.page.evaluate(SHOW)
    expect(look("#fresh")).to_have_text("live")
    expect(look("#said")).to_be_empty()


def test_updates_shift_nothing(browser: Browser, tmp_path: Path) -> None:
    with serving("--source", scenario(tmp_path, TWO)) as server:
        server.wait_ticks()
        with looking(browser, server.url) as look:
            look.open()
            expect(look.section("energy").locator(".missing")).to_be_visible()
            expect(look.section("health").locator(".verdict-line")).to_contain_text("finding")
            look.page.evaluate(
                "window.shifts = []; new PerformanceObserver((list) => shifts.push("
                "...list.getEntries().map((entry) => entry.value))).observe({type: 'layout-shift'})"
            )
            pass_snapshots(look, 5)
            # Of a number that got a digit more its own text is all that moves.
            assert sum(look.page.evaluate("shifts")) < 0.0005


def test_who_held_a_device_before_is_not_called_its_holder(look: Look) -> None:
    def before(told: Any) -> None:
        (device,) = (one for one in told["devices"] if one["gpu"] == "4")
        gone = {**device["owners"][0], "pod": "gone-before", "present": False, "processes": None}
        device["owners"].insert(0, gone)

    look.families("snapshot", before)
    pass_snapshots(look)
    expect(look.card("4").locator(".owner")).to_have_text(["jupyter-pavel"])


def test_of_large_snapshots_not_every_one_is_asked_for(look: Look) -> None:
    ticks: list[int] = []

    def large(told: Any) -> None:
        told["padding"] = "x" * 500_000
        ticks.append(told["tick"])

    look.families("snapshot", large)
    pass_snapshots(look, 3)
    assert ticks[-1] - ticks[-2] > 1


def test_a_pointer_left_on_the_rows_does_not_gather_all_that_ever_ended(look: Look) -> None:
    def others(told: Any) -> None:
        one = told["processes"][0]
        told["processes"] = [{**one, "pid": told["tick"] * 1000 + n} for n in range(60)]

    look.families("snapshot", others)
    pass_snapshots(look, 2)
    look.rows().first.hover()
    most = 0
    for _ in range(5):
        pass_snapshots(look, 1)
        most = max(most, int(look("#processes [role=grid]").get_attribute("aria-rowcount") or 0))
    # The heading, those of now, and the ended that rest.
    assert most <= 1 + 60 + 100


def test_a_job_that_becomes_known_later_is_found_by_the_filter(look: Look) -> None:
    told_of: list[int] = []

    def later(told: Any) -> None:
        told_of.append(told["tick"])
        told["processes"][0]["job"] = "4711" if len(told_of) > 3 else ""

    look.families("snapshot", later)
    look("#processes input").fill("4711")
    expect(look.rows()).to_have_count(1)


def test_the_energy_of_the_day_says_since_when_by_the_reader_s_clock(look: Look) -> None:
    amounts = {"joules": 3600, "measured_joules": 0, "apportioned_joules": 0, "cost": None, "co2_grams": None}
    told = {
        "since": 1_790_000_000,
        "until": 1_790_010_000,
        "by": "namespace",
        "complete": False,
        "rows": [],
        "gpus": [],
        "currency": "",
        "next": None,
        "own": [{"account": "unattributed", "joules": 3600, "cost": None}],
        "total": {**amounts, "gpu_seconds": 0, "held_gpu_seconds": None, "sessions": 0},
    }
    look.page.route("**/api/v1/energy?*", lambda route: route.fulfill(json=told))
    look.page.route("**/api/v1/sessions?*", books)
    look.open()
    clock = look.page.evaluate("new Intl.DateTimeFormat('en-GB', {timeStyle: 'short'}).format(1790000000000)")
    expect(look("#tile-energy-detail")).to_have_text(f"since {clock}; no price is set")
    # Idle and held were not told: neither is zero.
    expect(look("#tile-idle")).to_have_text("\N{EN DASH}")
    expect(look("#tile-idle-detail")).to_have_text("of today's energy")
    expect(look.section("energy").locator(".when")).to_have_text(f"since {clock}; the books begin later")


def books(route: Route) -> None:
    answer = route.fetch()
    route.fulfill(response=answer, json={**answer.json(), "from_books": True})

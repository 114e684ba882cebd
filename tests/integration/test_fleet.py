"""A lab of fifty real nodes: the page while nodes are killed, the terminal, the sum of the reports."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from browser import DESKTOP, PHONE, BrowserTab, open_tab
from lab import MODELS, PRICES, Lab, running_lab
from running import Server, gpuledger, wait_until
from terminal import terminal

# One worker: the nodes are started once.
pytestmark = pytest.mark.group("lab")

NODES = 24
# All cells: the GPUs of the nodes, and that of the old one.
CELLS = 3 * NODES + 1


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab"), NODES) as made:
        yield made


@pytest.fixture
def tab(browser: Browser, lab: Lab) -> Iterator[BrowserTab]:
    with open_tab(browser, lab.fleet.url, **DESKTOP) as tab:
        yield tab.open()


def rows(*arguments: str) -> Counter[tuple[str, ...]]:
    """All exact amounts of a report by name and kind."""
    done = gpuledger("report", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: Counter[tuple[str, ...]] = Counter()
    content = json.loads(done.stdout)
    for row in content["rows"]:
        name = tuple(str(row.get(key)) for key in ("account", "kind", "namespace", "owner"))
        for key in ("gpu_microseconds", "millijoules"):
            found[(*name, key)] += row.get(key) or 0
    return +found


def test_every_gpu_of_the_lab_is_one_cell(tab: BrowserTab) -> None:
    expect(tab("#groups .cell")).to_have_count(CELLS)
    expect(tab("#tile-free")).to_have_text(re.compile(r"^\d+$"))
    expect(tab("#gpus .found")).to_have_text(f"{CELLS} GPUs")


def test_a_node_of_another_version_costs_only_its_own_row(tab: BrowserTab) -> None:
    expect(tab("#tile-problems")).to_have_text("1")
    gone = tab("#nodes-table tr[data-up=false]")
    expect(gone).to_contain_text("version 'v2' of the API, and this fleet reads v1")
    expect(tab("#free-table")).to_contain_text("Tesla V100")


def test_cells_are_grouped_and_filtered(tab: BrowserTab) -> None:
    tab("[data-group=model]").click()
    expect(tab("#groups .group")).to_have_count(len(MODELS) + 1)
    tab("#gpus input[type=search]").fill("state:held owner:user3")
    expect(tab("#groups .cell")).to_have_count(len([number for number in range(NODES) if number % 7 == 3]))
    assert tab.hash() == "q=state%3Aheld+owner%3Auser3&group=model"


def test_keys_move_between_cells_and_enter_opens_the_node(tab: BrowserTab, lab: Lab) -> None:
    first = tab("#groups .cell[tabindex='0']")
    expect(first).to_have_count(1)
    first.focus()
    tab.page.keyboard.press("ArrowRight")
    focused = tab("#groups .cell:focus")
    expect(focused).to_have_attribute("aria-label", re.compile("GPU 1"))
    expect(tab("#detail")).to_contain_text("GPU 1")
    expect(focused).to_have_attribute("href", f"{lab.nodes[0].url}/")
    for key in ("End", "Home", "ArrowDown", "PageUp"):
        tab.page.keyboard.press(key)
        expect(tab("#groups .cell:focus")).to_have_count(1)


def test_the_cell_with_the_focus_is_never_behind_its_description(browser: Browser, lab: Lab) -> None:
    with open_tab(browser, lab.fleet.url, **PHONE) as tab:
        tab.open()
        tab("#groups .cell[tabindex='0']").focus()
        for _ in range(NODES - 2):
            tab.page.keyboard.press("PageDown")
            cell, detail = tab("#groups .cell:focus").bounding_box(), tab("#detail").bounding_box()
            assert cell is not None
            assert detail is not None
            assert cell["y"] + cell["height"] <= detail["y"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE, {"viewport": {"width": 900, "height": 700}}])
def test_three_sizes_light_and_dark(browser: Browser, lab: Lab, size: dict[str, Any], scheme: str) -> None:
    with open_tab(browser, lab.fleet.url, **size, color_scheme=scheme) as tab:
        tab.open()
        expect(tab("#groups .cell")).to_have_count(CELLS)
        assert tab.overflow() <= 0
        assert tab.axe() == []


def test_the_state_of_each_node_is_read_on_a_small_phone(browser: Browser, lab: Lab) -> None:
    with open_tab(browser, lab.fleet.url, **{**PHONE, "viewport": {"width": 360, "height": 740}}) as tab:
        tab.open()
        states = tab("#nodes-table tbody td.words")
        expect(states).to_have_count(NODES + 2)
        for box in (states.first.bounding_box(), states.last.bounding_box()):
            assert box is not None
            assert box["width"] > 280
            assert box["x"] + box["width"] <= 360


def test_names_are_text_and_long_ones_do_not_widen_the_page(browser: Browser, lab: Lab) -> None:
    evil = '<img src=x onerror="alert(1)">' + "\u202e" + "x" * 300

    def rename(body: Any) -> None:
        for node in body["nodes"]:
            node["name"] = evil
            for gpu in node["gpus"]:
                gpu["model"] = evil
                gpu["owners"] = [{**owner, "name": evil, "group": evil} for owner in gpu["owners"]]

    with open_tab(browser, lab.fleet.url, **PHONE) as tab:
        tab.change_response("fleet*", rename)
        tab.open()
        expect(tab("#holders-table tbody tr")).to_have_count(1)
        expect(tab("#holders-table button").first).to_contain_text("<img src=x")
        assert tab.page.locator("img").count() == 0
        assert "\u202e" not in tab("main").inner_text()
        assert tab.overflow() <= 0


def test_the_terminal_shows_the_same(lab: Lab) -> None:
    done = gpuledger("top", "--fleet", lab.fleet.url, "--once")
    assert done.returncode == 0, done.stderr
    assert f"of {CELLS} GPUs" in done.stdout
    assert "Who holds most" in done.stdout
    found = json.loads(gpuledger("top", "--fleet", lab.fleet.url, "--json").stdout)
    assert len(found["nodes"]) == NODES + 2


def test_a_live_terminal_shows_what_fits_and_is_left_as_it_was(lab: Lab) -> None:
    with terminal("top", "--fleet", lab.fleet.url, "--interval", "1s", size=(100, 20)) as shown:
        screen = shown.wait(f"of {CELLS} GPUs")
        assert "Free now" in screen
        shown.resize(60, 8)
        wait_until(lambda: len(shown.lines()) <= 8 and "Free now" in shown.screen(), "the smaller view")
        shown.press("C-c")
        assert "Free now" not in shown.wait("ENDED 0")


def test_two_nodes_in_one_table(lab: Lab) -> None:
    done = gpuledger("top", "--url", lab.nodes[0].url, "--url", lab.nodes[1].url, "--json")
    found = json.loads(done.stdout)
    assert [one["gpu"] for one in found["devices"]] == [
        f"gpu-{node:02}:{gpu}" for node in (0, 1) for gpu in range(3)
    ]


def test_killed_and_slow_nodes_cost_only_their_own_rows(browser: Browser, lab: Lab) -> None:
    dead, slow = lab.nodes[-3:], lab.nodes[-4]
    with open_tab(browser, lab.fleet.url, **DESKTOP) as tab:
        tab.open()
        for node in dead:
            node.process.kill()
        slow.process.send_signal(signal.SIGSTOP)
        try:
            expect(tab("#tile-problems")).to_have_text("5")
            expect(tab("#groups .cell[data-state=unknown]")).to_have_count(12)
            expect(tab("#groups .cell")).to_have_count(CELLS)
            gone = tab("#nodes-table tr[data-up=false]")
            expect(gone).to_have_count(5)
            expect(gone.first).to_contain_text("since")
            assert lab.states()["unknown"] == 12
        finally:
            slow.process.send_signal(signal.SIGCONT)
        expect(tab("#tile-problems")).to_have_text("4")


def test_the_report_of_the_lab_is_the_sum_of_the_reports_of_its_nodes(lab: Lab) -> None:
    listed, alive = lab.folder / "nodes", lab.nodes[:5]
    listed.write_text("\n".join(node.url for node in alive) + "\n")
    wait_until(lambda: len(lab.json()["keys"]) == len(alive), "the shorter list is read")
    ends = wait_until(lambda: _passed_quarter(alive), "a quarter of an hour of simulated time")
    span = ("--since", _iso(ends - 86_400), "--until", _iso(ends))
    whole = rows("--fleet", lab.fleet.url, *span)
    own: Counter[tuple[str, ...]] = Counter()
    for number in range(len(alive)):
        own += rows("--state-dir", str(lab.folder / f"state-{number}"), *span, *PRICES)
    assert whole == own
    assert sum(whole.values()) > 0


def _passed_quarter(nodes: list[Server]) -> float:
    """A quarter of an hour that all nodes have passed, in simulated time; 0 before there is one."""
    begun = [node.get("/api/v1/recent").json()["until"] for node in nodes]
    first = [
        min(session["first_seen"] for session in node.get("/api/v1/sessions").json()["sessions"])
        for node in nodes
    ]
    quarter = min(begun) // 900 * 900
    return quarter if quarter > max(first) else 0.0


def _iso(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat()

"""The page of a node with faulty GPUs: a person sees each fault, and nothing is claimed of healthy GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from browser import PHONE, BrowserTab, open_tab
from running import Server, serving_prepared

pytestmark = pytest.mark.group("page-problems")

MIG = "{instances: [{gi: 1, profile: 1g.10gb, sm_count: 16, memory: 10GB}]}"
SCENARIO = f"""
gpus: [{{}}, {{}}, {{processes: [{{name: train, load: 0.5}}]}}, {MIG}, {{}}, {{}}]
faults:
  - {{kind: gpu_lost, gpu: 1, xid: 79, at: 0}}
  - {{kind: throttle, gpu: 2, by: hw_thermal, at: 0}}
  - {{kind: reset_required, gpu: 3, xid: 95, at: 0}}
  - {{kind: pcie_link, gpu: 4, width: 4, at: 0}}
  - {{kind: xid, gpu: 5, xid: 13, at: 0}}
"""
FAULTS = {
    "1": ("failure", "Xid 79", "is lost: it has fallen off the bus", "power-cycle the machine"),
    "2": ("warning", "Thermal throttling", "of the last", "check fans"),
    "3": ("failure", "Xid 95", "requires a reset", "nvidia-smi --gpu-reset -i 00000000:28:00.0"),
    "4": ("warning", "PCIe x4 of x16", "uses 4 of the 16 PCIe lanes", "Reseat the card"),
}


PROBLEM = {
    "kind": "nvlink",
    "level": "failure",
    "label": "",
    "summary": "has a broken link",
    "remedy": "reset it",
    "since": None,
    "count": 1,
    "ratio": None,
    "observed_seconds": None,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("scenario") / "faulty.yaml"
    file.write_text(SCENARIO)
    flags = ("--source", f"simulator:{file}", "--interval", "500ms", "--speed", "20")
    with serving_prepared(*flags, env={"GPULEDGER_CONTROL_SOCKET": "none"}) as started:
        started.wait_ticks(20)
        yield started


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_fault_is_seen_on_its_card_on_a_small_phone(
    browser: Browser, server: Server, scheme: str
) -> None:
    small = {**PHONE, "viewport": {"width": 320, "height": 640}, "color_scheme": scheme}
    with open_tab(browser, server.url, **small) as tab:
        tab.open()
        for gpu, (level, *words) in FAULTS.items():
            card = tab.card(gpu)
            expect(card).to_have_attribute("data-worst", level)
            for word in words:
                expect(card.locator(".problems")).to_contain_text(re.compile(re.escape(word), re.IGNORECASE))
            # The icon beside the words differs by level, not only the color.
            expect(card.locator(".problems use").first).to_have_attribute("href", f"#i-{level}")
        expect(tab("#tile-problems")).to_have_text("4")
        expect(tab("#tile-problems-detail")).to_have_text("GPU 1, 3 down; GPU 2, 4 degraded")
        assert (tab.overflow(), tab.axe()) == (0, [])


def test_long_errors_of_health_have_the_width_of_a_phone(browser: Browser, server: Server) -> None:
    small = {**PHONE, "viewport": {"width": 360, "height": 740}}
    with open_tab(browser, server.url, **small) as tab:
        tab.open()
        health = tab.section("health")
        texts = (
            health.locator(".verdict-line"),
            health.locator(".parts tr", has_text="devices").locator("td").last,
            health.locator("#xids tbody td:last-child").first,
        )
        for text in texts:
            expect(text).to_contain_text(re.compile(r"\w+ \w+"))
            box = text.bounding_box()
            assert box is not None
            assert box["width"] > 280
        # The name of a program is not changed.
        process = tab("#xids tbody td:nth-child(4)").first
        style = "(cell) => getComputedStyle(cell, '::first-letter').textTransform"
        assert process.evaluate(style) == "none"
        # Half a second is not 0 s.
        expect(health.locator(".facts-line")).to_contain_text("one every 0.5\u00a0s")


@pytest.fixture(scope="module")
def tab(browser: Browser, server: Server) -> Iterator[BrowserTab]:
    with open_tab(browser, server.url) as tab:
        yield tab.open()


def test_a_healthy_card_shows_no_problem_and_an_error_of_a_program_is_only_a_note(tab: BrowserTab) -> None:
    expect(tab.card("0").locator(".problems")).to_be_hidden()
    note = tab.card("5").locator(".problems li")
    expect(note).to_contain_text(re.compile(r"^Xid 13 at \d\d:\d\d:\d\d"))
    expect(note).to_have_attribute("data-level", "info")
    for gpu in ("0", "5"):
        expect(tab.card(gpu)).not_to_have_attribute("data-worst", re.compile(""))
    # An instance of the GPU that requires a reset says only that its GPU is down.
    expect(tab.instance("3/1_0").locator(".note")).to_have_text("The GPU is down.")


def test_the_last_xids_are_listed_with_time_and_what_to_do(tab: BrowserTab) -> None:
    rows = tab("#xids tbody tr")
    expect(rows).to_have_count(3)
    texts = sorted(row.locator("td").all_text_contents() for row in rows.all())
    assert [(gpu, xid[:3]) for gpu, xid, *_ in texts] == [("1", "79:"), ("3", "95:"), ("5", "13:")]
    assert all(advice for *_, advice in texts)


def test_times_shares_and_counts_are_shown_as_far_as_the_node_knows_them(
    browser: Browser, server: Server
) -> None:
    rows = [
        {**PROBLEM, "kind": "xid", "label": "Xid 74", "since": 1.7e9, "count": 3},
        {**PROBLEM, "kind": "a", "label": "Hot", "ratio": 0.42, "observed_seconds": 3600},
        {**PROBLEM, "kind": "b", "label": "Hot", "ratio": 0.5, "observed_seconds": 90},
        {**PROBLEM, "kind": "c", "label": "Old"},
    ]

    def change(body: Any) -> None:
        body["devices"][0]["problems"] = rows
        body["invalid_values"] = 2

    with open_tab(browser, server.url) as tab:
        tab.change_response("snapshot*", change)
        tab.open()
        found = tab.card("0").locator(".problems li p:first-child")
        expect(found).to_have_text(
            [
                re.compile(r"^Xid 74 3 times, last at 1\d Nov \d\d:\d\d:\d\d$"),
                "Hot 42\N{NO-BREAK SPACE}% of the last hour",
                "Hot 50\N{NO-BREAK SPACE}% of the last 1\N{NO-BREAK SPACE}min",
                re.compile("^Old ?$"),
            ]
        )
        expect(tab("#facts")).to_contain_text("2 impossible values rejected since the start")


def test_a_new_problem_is_announced(browser: Browser, server: Server) -> None:
    rows: list[Any] = []
    with open_tab(browser, server.url) as tab:
        tab.change_response("snapshot*", lambda body: body["devices"][0].update(problems=list(rows)))
        tab.open()
        expect(tab("#tile-problems")).to_have_text("4")
        expect(tab("#announcement")).to_have_text("")
        rows.append({**PROBLEM, "label": "Memory row not remapped"})
        expect(tab("#announcement")).to_have_text("New problem. GPU 0: Memory row not remapped")
        expect(tab("#tile-problems")).to_have_text("5")

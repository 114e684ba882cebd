"""What the page of a simulated Kubernetes node shows, in one tab: tests read it, or write its filter."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from browser import BrowserTab, open_tab
from running import Server, get, serving_prepared

pytestmark = pytest.mark.group("page")


PRICES = ("--price.kwh", "0.32", "--price.currency", "EUR")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    books = tmp_path_factory.mktemp("books")
    source = ("--source", "simulator", "--speed", "10", "--state-dir", str(books))
    with serving_prepared(*source, *PRICES, env={"GPULEDGER_CONTROL_SOCKET": "none"}) as started:
        started.wait_ticks(5)
        yield started


@pytest.fixture(scope="module")
def tab(browser: Browser, server: Server) -> Iterator[BrowserTab]:
    with open_tab(browser, server.url) as tab:
        yield tab.open()


def test_the_header_shows_node_freshness_and_health(tab: BrowserTab) -> None:
    expect(tab("#fresh")).to_have_text("live")
    expect(tab("#verdict")).to_have_text("healthy")
    expect(tab("#node")).not_to_be_empty()
    expect(tab("#facts")).to_contain_text("driver 570.172.08")


def test_the_banner_of_simulated_data_is_visible(tab: BrowserTab) -> None:
    expect(tab("#banner")).to_be_in_viewport()
    expect(tab("#banner")).to_contain_text("Simulated data (k8s-node")


def test_the_tiles_show_free_held_and_active_devices_power_energy_and_cost(tab: BrowserTab) -> None:
    expect(tab("#tile-free-detail")).to_contain_text("GPU 5")
    expect(tab("#tile-held-detail")).to_contain_text("6/10_0")
    expect(tab("#tile-active-detail")).to_contain_text("GPU 0")
    expect(tab("#tile-power")).to_have_text(re.compile(r"^[\d,]+\sW$"))
    expect(tab("#tile-energy")).to_have_text(re.compile(r"^[\d.,]+\sk?Wh$"))
    expect(tab("#tile-energy-detail")).to_contain_text("€")
    expect(tab("#tile-idle")).to_have_text(re.compile(r"^\d+\s%$"))
    for tile in tab("dl.tiles .tile:not([hidden])").all():
        expect(tile).to_be_in_viewport()


@pytest.mark.parametrize(
    ("gpu", "state", "words"),
    [
        ("0", "active", "ml-research/llama-pretrain-worker-0"),
        ("4", "held", "notebooks/jupyter-pavel"),
        ("5", "idle", "Free: neither allocated nor used by a process."),
    ],
)
def test_a_card_shows_the_state_as_word_and_icon_and_the_owner(
    tab: BrowserTab, gpu: str, state: str, words: str
) -> None:
    card = tab.card(gpu)
    expect(card.locator(".head .state")).to_have_text(state)
    expect(card.locator(".head .state use")).to_have_attribute("href", f"#i-{state}")
    expect(card).to_contain_text(words)


def test_a_holder_without_processes_is_marked(tab: BrowserTab) -> None:
    expect(tab.card("4").locator(".doing")).to_contain_text("no\N{NO-BREAK SPACE}process")


def test_mig_instances_are_shown_in_the_card_of_their_gpu(tab: BrowserTab) -> None:
    inside = tab.card("6").locator("li.instance h4 > span:first-child")
    expect(inside).to_have_text(["6/2_0", "6/3_0", "6/9_0", "6/10_0"])
    expect(tab.instance("6/10_0")).to_contain_text("notebooks/jupyter-ines")
    expect(tab.instance("6/2_0").locator(".meter").nth(1)).to_contain_text("/ 40 GiB")


def test_a_card_has_four_meters_and_an_absent_value_is_not_zero(tab: BrowserTab) -> None:
    meters = tab.card("0").locator(".meter")
    expect(meters).to_have_text(
        [
            re.compile(r"^Utilization\d+\s%$"),
            re.compile(r"^Memory[\d.]+ / 80\sGiB$"),
            re.compile(r"^Power\d+ / 700\sW$"),
            re.compile(r"^Temperature\d+\s°C$"),
        ]
    )
    # The driver reports no utilization of a GPU with MIG instances.
    expect(tab.card("6").locator(".meter").first).to_have_text("Utilizationnot reported")


def test_a_process_has_all_its_columns(tab: BrowserTab) -> None:
    tab("#processes input").fill("detector-api")
    expect(tab.rows()).to_have_count(1)
    row = tab.rows().first
    for name, words in {
        "gpu": "2",
        "namespace": "vision",
        "pod": "detector-api-6c9d7f5b8-x2k4m",
        "command": "tritonserver",
        "memory": "18.0\N{NO-BREAK SPACE}GiB",
    }.items():
        expect(row.locator(f".c-{name}")).to_have_text(words)
    expect(row.locator(".c-pid")).to_have_text(re.compile(r"^\d+$"))
    expect(row.locator(".c-sm")).to_have_text(re.compile(r"^\d+\s%$"))
    expect(row.locator(".c-watts")).to_have_text(re.compile(r"^[\d.,]+\sW$"))
    expect(row.locator(".c-joules")).to_have_text(re.compile(r"^[\d.,]+\s[kM]?J$"))
    expect(row.locator(".c-age")).to_have_text(re.compile(r"^1\sd"))


@pytest.mark.parametrize(
    ("words", "fit"),
    [
        ("VISION", {"vision"}),
        ("mira", {""}),
        ("ml-research llama", {"ml-research"}),
        ("gpu:6/2_0", {"ml-research"}),
        ("ollama inference", {"inference"}),
    ],
)
def test_the_filter_matches_every_word_in_any_column(tab: BrowserTab, words: str, fit: set[str]) -> None:
    tab("#processes input").fill("")
    expect(tab("#processes .found")).to_have_text(re.compile(r"^\d+ processes$"))
    tab("#processes input").fill(words)
    expect(tab("#processes .found")).to_have_text(re.compile(r"^\d+ of \d+ processes$"))
    assert set(tab.column("namespace")) == fit


def test_a_filter_without_matches_shows_a_message(tab: BrowserTab) -> None:
    tab("#processes input").fill("no such thing")
    expect(tab("#processes .scroller .empty")).to_have_text("No process matches the filter.")


def test_the_timeline_has_a_track_per_device(tab: BrowserTab) -> None:
    expect(tab.section("sessions").locator(".known")).to_have_text(re.compile(r"^\d\d+ sessions$"))
    expect(tab(".stage")).to_have_attribute("aria-label", re.compile(r"\d+ sessions on 13 devices$"))


def test_energy_of_today_lists_owners_and_accounts_that_add_up(tab: BrowserTab) -> None:
    rows = tab.section("energy").locator("tbody tr")
    expect(rows.filter(has_text="ml-research")).to_contain_text("€")
    expect(tab.section("energy").locator("tr[data-own=idle]")).to_contain_text("nobody had the GPU")
    expect(tab.section("energy").locator(".sum")).to_contain_text(
        "equals all billed time of the GPUs, to the microsecond"
    )
    expect(tab.section("energy").locator(".sum")).to_contain_text(
        "the GPUs' energy counters, to the millijoule"
    )
    expect(tab.section("energy").locator("tfoot")).to_contain_text("Total")
    bars = rows.filter(has_text="inference").first.locator(".stack")
    for name in ("measured", "apportioned", "range"):
        expect(bars.locator(f".{name}")).to_have_count(1)


def test_usage_opens_on_the_first_key_with_several_names_and_offers_those_that_exist(
    tab: BrowserTab,
) -> None:
    keys = tab.section("energy").locator(".keys button")
    expect(keys).to_have_text(["User", "Namespace", "Pod", "GPU", "Command"])
    expect(tab.section("energy").locator(".keys [aria-pressed=true]")).to_have_text("Namespace")
    expect(tab.section("energy").locator("thead .key")).to_have_text("Namespace")
    expect(tab.section("energy").locator("thead th:visible")).to_have_text(
        [
            "Namespace",
            *("Cost", "GPU-hours", "Held idle,hours", re.compile("^Energy,k?Wh$")),
            *("Measured, apportioned, bounds", "Measured,at least", "Apportioned", "At most"),
        ]
    )


def test_every_link_works(tab: BrowserTab, server: Server) -> None:
    links = tab("footer a").all()
    assert len(links) > 8
    for link in links:
        answer = get(f"{server.url}/{link.get_attribute('href')}")
        assert answer.status_code == 200, link.get_attribute("href")

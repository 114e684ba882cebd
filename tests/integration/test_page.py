"""The page at `/` of a simulated Kubernetes node, as it is seen and used in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from browser import PHONE, Look, looking
from running import Server, get, serving

pytestmark = pytest.mark.xdist_group("browser")

PRICES = ("--price.kwh", "0.32", "--price.currency", "EUR")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    books = tmp_path_factory.mktemp("books")
    source = ("--source", "simulator", "--speed", "10", "--state-dir", str(books))
    with serving(*source, *PRICES, env={"GPULEDGER_CONTROL_SOCKET": "none"}) as started:
        started.wait_ticks(5)
        yield started


@pytest.fixture
def look(browser: Browser, server: Server) -> Iterator[Look]:
    with looking(browser, server.url) as look:
        yield look.open()


def part(look: Look, section: str, name: str) -> Locator:
    return look.section(section).locator(name)


def test_the_header_tells_which_node_how_fresh_and_how_healthy(look: Look) -> None:
    expect(look("#fresh")).to_have_text("live")
    expect(look("#verdict")).to_have_text("healthy")
    expect(look("#node")).not_to_be_empty()
    expect(look("#facts")).to_contain_text("driver 570.172.08")


def test_simulated_data_cannot_be_missed(look: Look) -> None:
    expect(look("#banner")).to_be_in_viewport()
    expect(look("#banner")).to_contain_text("Simulated data (k8s-node")


def test_the_strip_tells_free_held_and_active_devices_power_energy_and_cost(look: Look) -> None:
    expect(look("#tile-free-detail")).to_contain_text("GPU 5")
    expect(look("#tile-held-detail")).to_contain_text("6/10_0")
    expect(look("#tile-active-detail")).to_contain_text("GPU 0")
    expect(look("#tile-power")).to_have_text(re.compile(r"^[\d,]+\sW$"))
    expect(look("#tile-energy")).to_have_text(re.compile(r"^[\d.,]+\sk?Wh$"))
    expect(look("#tile-energy-detail")).to_contain_text("€")
    expect(look("#tile-idle")).to_have_text(re.compile(r"^\d+\s%$"))
    for tile in look("dl.tiles .tile:not([hidden])").all():
        expect(tile).to_be_in_viewport()


@pytest.mark.parametrize(
    ("gpu", "state", "words"),
    [
        ("0", "active", "ml-research/llama-pretrain-worker-0"),
        ("4", "held", "notebooks/jupyter-pavel"),
        ("5", "idle", "Free: nobody holds it."),
    ],
)
def test_a_card_tells_the_state_in_a_word_and_a_shape_and_who_is_there(
    look: Look, gpu: str, state: str, words: str
) -> None:
    card = look.card(gpu)
    expect(card.locator(".head .state")).to_have_text(state)
    expect(card.locator(".head .state use")).to_have_attribute("href", f"#i-{state}")
    expect(card).to_contain_text(words)


def test_a_holder_that_runs_nothing_is_named_as_such(look: Look) -> None:
    expect(look.card("4").locator(".doing")).to_contain_text("runs nothing")


def test_mig_instances_stand_in_the_card_of_their_gpu(look: Look) -> None:
    inside = look.card("6").locator("li.instance h4 > span:first-child")
    expect(inside).to_have_text(["6/2_0", "6/3_0", "6/9_0", "6/10_0"])
    expect(look.instance("6/10_0")).to_contain_text("notebooks/jupyter-ines")
    expect(look.instance("6/2_0").locator(".meter").nth(1)).to_contain_text("/ 40 GiB")


def test_a_card_has_four_meters_of_which_an_untold_one_is_not_zero(look: Look) -> None:
    meters = look.card("0").locator(".meter")
    expect(meters).to_have_text(
        [
            re.compile(r"^Utilization\d+\s%$"),
            re.compile(r"^Memory[\d.]+ / 80\sGiB$"),
            re.compile(r"^Power\d+ / 700\sW$"),
            re.compile(r"^Temperature\d+\s°C$"),
        ]
    )
    # Of a Gpu that is cut in instances the driver tells no utilization.
    expect(look.card("6").locator(".meter").first).to_have_text("Utilizationnot told")


def test_the_last_hour_is_a_curve_of_the_chosen_quantity(look: Look) -> None:
    card = look.card("0")
    expect(card.locator(".curve .line")).to_have_attribute("d", re.compile(r"^M[\d.]+ [\d.]+H"))
    expect(card.locator(".curve")).to_have_attribute("aria-label", re.compile("^utilization, .*mean"))
    look.section("gpus").get_by_role("button", name="Power").click()
    expect(card.locator(".curve")).to_have_attribute("aria-label", re.compile(r"^power, .*\d\sW"))
    assert "spark=power" in look.hash()


def test_the_processes_of_a_card_are_one_click_away(look: Look) -> None:
    look.card("3").get_by_role("button", name="of GPU 3").click()
    expect(look("#processes input")).to_have_value("gpu:3")
    expect(look("#h-processes")).to_be_focused()
    expect(look.rows().first).to_contain_text("inference")
    assert set(look.column("gpu")) == {"3"}


def test_processes_are_sorted_by_the_buttons_of_their_headings(look: Look) -> None:
    expect(look.heading("GPU")).to_have_attribute("aria-sort", "ascending")
    look.heading("Memory").get_by_role("button").click()
    expect(look.heading("Memory")).to_have_attribute("aria-sort", "descending")
    expect(look.heading("GPU")).not_to_have_attribute("aria-sort", "ascending")
    assert look.column("memory")[:2] == ["71.0\N{NO-BREAK SPACE}GiB"] * 2
    look.heading("Memory").get_by_role("button").click()
    expect(look.heading("Memory")).to_have_attribute("aria-sort", "ascending")
    assert look.column("memory")[0] == "30.0\N{NO-BREAK SPACE}MiB"


def test_a_process_has_all_its_columns(look: Look) -> None:
    look("#processes input").fill("detector-api")
    expect(look.rows()).to_have_count(1)
    row = look.rows().first
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
def test_the_filter_wants_every_word_in_whatever_column(look: Look, words: str, fit: set[str]) -> None:
    look("#processes input").fill(words)
    expect(look("#processes .found")).to_have_text(re.compile(r"^\d+ of \d+ processes$"))
    assert set(look.column("namespace")) == fit


def test_a_filter_that_nothing_fits_says_so(look: Look) -> None:
    look("#processes input").fill("no such thing")
    expect(look("#processes .scroller .empty")).to_have_text("No process fits the filter.")


def test_a_view_is_in_the_address_and_can_be_sent_to_a_colleague(
    look: Look, browser: Browser, server: Server
) -> None:
    look("#processes input").fill("inference")
    look.heading("Memory").get_by_role("button").click()
    look.section("energy").get_by_role("button", name="Pod").click()
    look.section("sessions").get_by_role("button", name="6 h").click()
    with looking(browser, server.url) as other:
        other.open(f"#{look.hash()}")
        expect(other("#processes input")).to_have_value("inference")
        expect(other.heading("Memory")).to_have_attribute("aria-sort", "descending")
        expect(other.section("energy").locator("[data-by=pod]")).to_have_attribute("aria-pressed", "true")
        expect(other.section("sessions").locator("[data-span='6']")).to_have_attribute("aria-pressed", "true")


def window(look: Look) -> tuple[int, int]:
    """From when to when the timeline shows, in unix seconds."""
    begin, end = str(look(".stage").get_attribute("data-window")).split()
    return int(begin), int(end)


def wide(look: Look) -> int:
    begin, end = window(look)
    return end - begin


# Whether the timeline shows less than so many seconds.
NARROWER = """(length) => {
    const [begin, end] = document.querySelector('.stage').dataset.window.split(' ');
    return end - begin < length;
}"""


def test_the_timeline_has_a_lane_per_device_and_knows_the_sessions(look: Look) -> None:
    expect(part(look, "sessions", ".known")).to_have_text(re.compile(r"^\d\d+ sessions$"))
    expect(look(".stage")).to_have_attribute("aria-label", re.compile(r"\d+ sessions on 13 devices$"))


def test_the_timeline_is_zoomed_and_moved_by_buttons(look: Look) -> None:
    for name, length in [("1 h", 3600), ("6 h", 6 * 3600), ("24 h", 86400)]:
        look.section("sessions").get_by_role("button", name=name, exact=True).click()
        look.page.wait_for_function(
            "(length) => { const [a, b] = document.querySelector('.stage').dataset.window.split(' ');"
            " return Math.abs(b - a - length) < 0.03 * length; }",
            arg=length,
        )
    for name in ("Zoom in", "Zoom in", "Earlier"):
        before = window(look)
        look.section("sessions").get_by_role("button", name=name, exact=True).click()
        expect(look(".stage")).not_to_have_attribute("data-window", f"{before[0]} {before[1]}")
    assert wide(look) == pytest.approx(86400 / 4, rel=0.03)
    assert window(look)[1] < before[1]
    look.section("sessions").get_by_role("button", name="Zoom out").click()
    look.page.wait_for_function(
        "(before) => { const [a, b] = document.querySelector('.stage').dataset.window.split(' ');"
        " return b - a > 1.5 * before; }",
        arg=86400 / 4,
    )


def test_the_timeline_is_moved_by_the_mouse_and_zoomed_by_the_wheel(look: Look) -> None:
    look.section("sessions").get_by_role("button", name="1 h", exact=True).click()
    canvas = look(".stage canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    # In the middle: a process that begins or ends above moves the canvas by a row.
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = window(look)
    look.page.mouse.move(x, y)
    look.page.mouse.down()
    look.page.mouse.move(x + 200, y, steps=4)
    look.page.mouse.up()
    look.page.wait_for_function(
        "(end) => +document.querySelector('.stage').dataset.window.split(' ')[1] < end - 60", arg=before[1]
    )
    length = wide(look)
    look.page.keyboard.down("Control")
    look.page.mouse.wheel(0, -300)
    look.page.keyboard.up("Control")
    look.page.wait_for_function(
        "(length) => { const [a, b] = document.querySelector('.stage').dataset.window.split(' ');"
        " return b - a < 0.6 * length; }",
        arg=length,
    )


def test_a_session_under_the_mouse_tells_who_when_and_joules_with_bounds(look: Look) -> None:
    look.section("sessions").get_by_role("button", name="1 h", exact=True).click()
    canvas = look(".stage canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    # The first lane is the training pod's alone, and it runs now.
    look.page.mouse.move(box["x"] + box["width"] - 40, box["y"] + 26 + 9)
    expect(part(look, "sessions", ".detail-who")).to_have_text("ml-research/llama-pretrain-worker-0")
    expect(part(look, "sessions", ".detail-what")).to_contain_text("on GPU 0")
    expect(part(look, "sessions", ".detail-when")).to_contain_text("to now")
    expect(part(look, "sessions", ".detail-energy")).to_have_text(
        re.compile(r"\d\s[kM]?J, (measured|between)")
    )


def test_the_sessions_are_a_table_too(look: Look) -> None:
    look.section("sessions").get_by_text("The sessions in this window as a table").click()
    rows = look.section("sessions").locator("tbody tr")
    expect(rows.filter(has_text="inference/chat-small-1")).to_have_count(1)
    expect(rows.filter(has_text="llama-pretrain-worker-0").first).to_contain_text("running")


def test_energy_of_today_has_its_owners_and_nobodys_share_in_rows_that_add_up(look: Look) -> None:
    rows = look.section("energy").locator("tbody tr")
    expect(rows.filter(has_text="ml-research")).to_contain_text("€")
    expect(look.section("energy").locator("tr[data-own=idle]")).to_contain_text("nobody was on the GPU")
    expect(part(look, "energy", ".sum")).to_contain_text("GPUs' own counters say, to the millijoule")
    expect(look.section("energy").locator("tfoot")).to_contain_text("Total")
    bars = rows.filter(has_text="inference").first.locator(".stack")
    for name in ("measured", "apportioned", "range"):
        expect(bars.locator(f".{name}")).to_have_count(1)


def test_energy_is_told_by_namespace_pod_or_user(look: Look) -> None:
    section = look.section("energy")
    section.get_by_role("button", name="Pod").click()
    expect(section.locator("tbody")).to_contain_text("ml-research/llama-pretrain-worker-0")
    section.get_by_role("button", name="User").click()
    expect(section.locator("tbody")).to_contain_text("mira")


def test_health_is_folded_when_all_is_well_and_tells_findings(look: Look) -> None:
    fold = look.section("health").locator("details")
    expect(part(look, "health", ".verdict-line")).not_to_have_text("asking…")
    look("#verdict").click()
    expect(fold).to_have_attribute("open", "")
    expect(fold.locator(".parts tr").first).to_contain_text("ok")
    expect(fold.locator(".facts-line")).to_contain_text("one every")


def test_every_link_leads_somewhere(look: Look, server: Server) -> None:
    links = look("footer a").all()
    assert len(links) > 8
    for link in links:
        answer = get(f"{server.url}/{link.get_attribute('href')}", timeout=20)
        assert answer.status_code == 200, link.get_attribute("href")


def test_it_is_dark_where_dark_is_wanted_and_still_where_motion_is_not(
    browser: Browser, server: Server
) -> None:
    def background(**options: str) -> str:
        with looking(browser, server.url, **options) as look:
            look.open()
            animation = look.page.evaluate(
                "getComputedStyle(document.querySelector('#fresh .icon')).animationName"
            )
            assert (animation == "none") == ("reduced_motion" in options)
            return str(look.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert background(color_scheme="light") == "rgb(244, 246, 248)"
    assert background(color_scheme="dark", reduced_motion="reduce") == "rgb(14, 19, 25)"


def test_on_a_phone_nothing_is_wider_than_the_phone_and_rows_are_sorted_by_a_list(
    browser: Browser, server: Server
) -> None:
    with looking(browser, server.url, **PHONE) as look:
        look.open()
        expect(look.section("energy").locator("tbody tr").first).to_be_attached()
        assert look.overflow() == 0
        look("#processes select").select_option("memory desc")
        expect(look.rows().filter(has_text="llama-pretrain-worker-0").first).to_be_visible()
        assert look.column("memory")[0] == "71.0\N{NO-BREAK SPACE}GiB"
        look.card("3").get_by_role("button", name="of GPU 3").tap()
        expect(look("#processes input")).to_have_value("gpu:3")


def test_on_a_phone_a_tap_on_a_session_tells_of_it(browser: Browser, server: Server) -> None:
    with looking(browser, server.url, **PHONE) as look:
        look.open()
        look.section("sessions").get_by_role("button", name="1 h", exact=True).tap()
        canvas = look(".stage canvas")
        box = canvas.bounding_box()
        assert box is not None
        canvas.tap(position={"x": box["width"] - 30, "y": 26 + 9})
        expect(part(look, "sessions", ".detail-who")).to_have_text("ml-research/llama-pretrain-worker-0")


def test_on_a_phone_two_fingers_zoom_the_timeline(browser: Browser, server: Server) -> None:
    with looking(browser, server.url, **PHONE) as look:
        look.open()
        look.section("sessions").get_by_role("button", name="6 h").tap()
        canvas = look(".stage canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        fingers = look.page.context.new_cdp_session(look.page)
        middle, y = box["x"] + box["width"] / 2, box["y"] + 60
        for kind, apart in [("touchStart", 30), ("touchMove", 60), ("touchMove", 90), ("touchEnd", None)]:
            points = [] if apart is None else [{"x": middle + apart * side, "y": y} for side in (-1, 1)]
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        look.page.wait_for_function(NARROWER, arg=4 * 3600)


def test_all_that_is_loaded_weighs_less_than_150_kilobytes(look: Look) -> None:
    assert {"/", "/page/app.js", "/page/style.css"} <= look.weight.keys()
    assert sum(look.weight.values()) < 150_000


def test_a_file_is_loaded_once_and_then_kept(look: Look) -> None:
    look.page.reload()
    expect(look("#fresh")).to_have_text("live")
    sizes = look.page.evaluate(
        "performance.getEntriesByType('resource').filter((one) => one.name.includes('/page/'))"
        ".map((one) => one.transferSize)"
    )
    assert sizes and set(sizes) == {0}


@pytest.mark.parametrize(("mode", "words"), [("landing", "GPUs of this machine"), ("off", None)])
def test_the_page_gives_way_to_the_landing_page_or_to_none(
    browser: Browser, tmp_path: Path, mode: str, words: str | None
) -> None:
    with serving("--source", "simulator", "--web.page", mode) as server:
        server.wait_ticks()
        assert server.get("/page/app.js").status_code == 404
        if words is None:
            assert server.get("/").status_code == 404
            return
        with looking(browser, server.url, java_script_enabled=False) as look:
            look.page.goto(server.url)
            expect(look("table")).to_contain_text(words)


def test_without_scripts_there_is_a_way_to_the_plain_table(browser: Browser, server: Server) -> None:
    with looking(browser, server.url, java_script_enabled=False) as look:
        look.page.goto(server.url)
        look.page.get_by_role("link", name="The same GPUs as a plain table").click()
        expect(look("table")).to_contain_text("NVIDIA H100 80GB HBM3")

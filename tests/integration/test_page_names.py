"""Hostile names of processes and pods: shown as text, with invisible characters made visible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, expect

from browser import PHONE, BrowserTab, open_tab
from running import Server, serving_prepared

pytestmark = pytest.mark.group("page-names")

IMAGE = "<img src=x onerror=document.title='owned'>"
# Pod names (which a real API server would reject) and how the page shows them. The process has the same name,
# of which the source keeps less.
NAMES = {
    IMAGE: IMAGE,
    "<b>bold<!--": "<b>bold<!--",
    "a</script><svg onload=owned>": "a</script><svg onload=owned>",
    "\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe": "U+202Egpj.exe",
    "two\nlines": "twoLFlines",
    "\x1b[31mred": "ESC[31mred",
    "zero\N{ZERO WIDTH SPACE}width": "zeroU+200Bwidth",
    "\N{ROCKET}\N{PILE OF POO} train": "\N{ROCKET}\N{PILE OF POO} train",
    "&amp;&lt;": "&amp;&lt;",
    "two  blanks": "two  blanks",
    "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET}": "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET}",
}
LONG = "x" * 10_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("names")
    names = [*NAMES, LONG]
    processes = [
        {
            "name": name,
            "pod": {"namespace": f"{IMAGE}\N{RIGHT-TO-LEFT ISOLATE}", "name": f"{number}{name}"},
            "memory": "1GiB",
            "load": 0.05,
        }
        for number, name in enumerate(names)
    ]
    gpu = {
        "model": f"{IMAGE}\N{RIGHT-TO-LEFT OVERRIDE}",
        "memory": "80GiB",
        "empty_watts": 50,
        "load_watts": 200,
        "limit_watts": 300,
        "processes": processes,
    }
    file = folder / "hostile.yaml"
    file.write_text(yaml.safe_dump({"gpus": [gpu]}))
    books = str(folder / "books")
    with serving_prepared("--source", f"simulator:{file}", "--speed", "10", "--state-dir", books) as started:
        started.wait_ticks(5)
        yield started


def whole(tab: BrowserTab) -> BrowserTab:
    tab.open("#by=pod")
    for name in ("sessions", "health"):
        tab.section(name).locator("details").evaluate("(fold) => { fold.open = true; }")
    expect(tab.section("energy").locator("tbody tr").first).to_be_attached()
    expect(tab.section("sessions").locator("tbody tr").first).to_be_attached()
    return tab


def test_no_name_becomes_markup_or_runs_as_a_script(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url) as tab:
        whole(tab)
        tab.rows().first.focus()
        tab(".stage").focus()
        for _ in NAMES:
            tab.page.keyboard.press("ArrowRight")
        assert tab("img, b, script:not([src])").count() == 0
        assert "owned" not in tab.page.title()
        assert (
            tab.page.evaluate(
                "[...document.querySelectorAll('*')].filter((n) => n.onerror || n.onload).length"
            )
            == 0
        )


def test_invisible_characters_in_names_are_made_visible(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url) as tab:
        tab.open()
        expect(tab.rows()).to_have_count(len(NAMES) + 1)
        shown = [f"{number}{name}" for number, name in enumerate(NAMES.values())]
        assert set(shown) <= set(tab.column("pod"))
        boxes = tab.rows().filter(has_text="gpj.exe").locator(".c-pod .code")
        expect(boxes).to_have_text(["U+202E"])
        expect(boxes).to_have_css("border-top-style", "solid")


def test_a_name_of_ten_kilobytes_is_one_line_with_its_length(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url) as tab:
        tab.open()
        cell = tab.rows().filter(has_text="xxxx").locator(".c-pod")
        expect(cell).to_contain_text("more characters")
        assert len(cell.text_content() or "") < 300
        row = tab.rows().filter(has_text="xxxx").bounding_box()
        other = tab.rows().filter(has_text="blanks").bounding_box()
        assert row is not None and other is not None
        assert row["height"] == other["height"]


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desktop", "phone"])
def test_names_do_not_break_the_page(browser: Browser, server: Server, options: dict[str, object]) -> None:
    with open_tab(browser, server.url, **options) as tab:
        whole(tab)
        assert tab.overflow() == 0
        assert tab.axe() == []


def test_the_filter_finds_hostile_names(browser: Browser, server: Server) -> None:
    with open_tab(browser, server.url) as tab:
        tab.open()
        tab("#processes input").fill("<b>bold<!--")
        expect(tab("#processes .found")).to_have_text(f"1 of {len(NAMES) + 1} processes")
        with open_tab(browser, server.url) as other:
            other.open(f"#{tab.hash()}")
            expect(other("#processes input")).to_have_value("<b>bold<!--")
            expect(other.rows()).to_have_count(1)

"""Pages of receipts in Chromium: on a phone, in the dark, on paper, and linked by the page of a node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import DESKTOP, PHONE, BrowserTab, open_tab
from gpuledger.ledger.report.receipt.advice import advise
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.page import receipt_page
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from receipt_helpers import BEGIN, HOUR, gpu_row, host_row, receipt, unused_gpu
from running import Server, serving_prepared

# One worker: each would start a browser and a server.
pytestmark = pytest.mark.group("receipt-page")

HOSTILE = "<script>alert(1)</script>\"' onload=x \x1b[31m\n\u202eevil"
COUNT = 48


def bars(place: int) -> dict[str, list[Any]]:
    """Bars of a device that was there from the fourth bar on, with some that are not known."""
    used = [None if at % 16 == 7 else (at * (place + 1) % 11) / 10 for at in range(COUNT)]
    present = [0, 0, 0, *[75] * (COUNT - 3)]
    return {
        "present": present,
        "active": [round(75 * (one or 0)) for one in used],
        "unknown": [75 if one is None else 0 for one in used],
        "utilization": used,
    }


def node_of_eight() -> ReceiptJson:
    """A job with eight GPUs, of which one was never used, and with hostile names."""
    gpus = [gpu_row(index=str(place), bars=bars(place), throttled={"power": 720.0}) for place in range(7)]
    gpus.append(unused_gpu(index="7", bars=bars(7)))
    processes = [
        {
            "node": "n1",
            "pid": 4000 + place,
            "command": HOSTILE,
            "device": "GPU-n1-0",
            "gpu": str(place),
            "instance": "",
            "begins": BEGIN,
            "ends": BEGIN + HOUR,
            "running": False,
        }
        for place in range(7)
    ]
    host = host_row(is_limited=True)
    found = receipt("n1", *gpus, processes=processes, hosts=[host], notes=["x" * 200])
    assert found["owner"] is not None
    found["owner"]["user"], found["owner"]["job_name"] = HOSTILE, "train-" + "y" * 120
    found["bars"] = {"begins": int(BEGIN), "step_seconds": 75, "count": COUNT}
    found["advice"] = advise(found, AdviceSettings())
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("options", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_fits_the_screen_and_is_accessible(browser: Browser, options: dict[str, Any], scheme: Any) -> None:
    context = browser.new_context(**options, color_scheme=scheme)
    page = context.new_page()
    tab = BrowserTab(page, "")
    page.on("console", lambda message: tab.problems.append(message.text))
    page.on("dialog", lambda dialog: tab.problems.append(dialog.message))
    page.set_content(receipt_page(node_of_eight()))
    assert (tab.overflow(), tab.problems) == (0, [])
    assert tab.axe() == []
    # On a phone, wide tables scroll.
    assert cut_tables(page) == 0 or options is PHONE
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    context.close()


def cut_tables(page: Page) -> int:
    """The number of tables that are wider than their place."""
    script = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).length"
    return int(page.eval_on_selector_all(".wide", script))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_prints_on_one_or_two_light_sheets(browser: Browser, scheme: Any) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.set_content(receipt_page(node_of_eight()))
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True))) in (1, 2)
    page.emulate_media(media="print")
    # An A4 sheet without its margins.
    page.set_viewport_size({"width": 703, "height": 1031})
    assert cut_tables(page) == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    books = tmp_path_factory.mktemp("books")
    source = ("--source", "simulator", "--speed", "20", "--state-dir", str(books))
    with serving_prepared(*source, env={"GPULEDGER_CONTROL_SOCKET": "none"}) as started:
        started.wait_ticks(5)
        yield started


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[BrowserTab]:
    with open_tab(browser, server.url) as tab:
        yield tab.open()


OWNER = "ml-research/llama-pretrain-worker-0"


@pytest.mark.parametrize(
    "link",
    [
        f"li.card a >> text={OWNER.partition('/')[2]}",
        f"#energy tbody a >> text={OWNER.partition('/')[0]}",
    ],
)
def test_owners_on_the_page_of_the_node_link_to_their_receipts(tab: BrowserTab, link: str) -> None:
    tab(link).first.click()
    expect(tab("h1")).to_contain_text("GPU receipt")
    expect(tab("main")).to_contain_text("H100 80GB HBM3")
    tab("nav a").click()
    expect(tab("body[data-ready]")).to_have_count(1)


def test_an_owner_of_a_namespace_links_to_its_own_receipt(tab: BrowserTab) -> None:
    tab.page.goto(f"{tab.origin}/receipt/namespace:ml-research?since=1d")
    tab(".owners a").first.click()
    expect(tab("h1")).to_contain_text(OWNER)

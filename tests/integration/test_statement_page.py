"""The page of a statement in Chromium: readable on a phone, and one or two sheets of paper."""

from __future__ import annotations

import re

from playwright.sync_api import Browser

from browser import BrowserTab
from builders import gpu
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.statement.page import statement_page
from money_helpers import HOUR, KWH_MJ, Entries, pod
from statement_helpers import PRICED, statement_of

CARDS = [gpu(number, name="NVIDIA H100 80GB HBM3", sm_count=132) for number in range(8)]
HOSTILE = "<script>alert(1)</script>\"' onload=x \x1b[31m\n\u202eevil"
NAMES = [HOSTILE, "yolo-" + "x" * 240, "a b  c", *(f"train-{number}" for number in range(15))]


def week() -> str:
    """The page of a week of eight GPUs and eighteen owners with all kinds of names."""
    found = Entries(CARDS)
    for hour in range(7 * 24):
        for place, card in enumerate(CARDS):
            owner = pod(NAMES[(hour // 8 + place) % len(NAMES)], "research", card)
            found.time(4 * hour, card, owner, HOUR // 2)
            found.time(4 * hour, card, "idle", HOUR // 2)
            found.joules(4 * hour, card, {owner: KWH_MJ // 3}, idle=KWH_MJ // 9)
    return statement_page(statement_of(found.report(PRICED)), "ab" * 32, "october.json")


def test_a_week_of_eight_gpus_is_one_or_two_sheets_and_fits_a_phone(browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    tab = BrowserTab(page, "")
    page.on("console", lambda message: tab.problems.append(message.text))
    page.on("dialog", lambda dialog: tab.problems.append(dialog.message))
    page.set_content(week())
    assert (tab.overflow(), tab.problems) == (0, [])
    # The cost is read without scrolling.
    for cost in (page.locator("tr.total > *").last, page.locator("table tbody tr > *:last-child").first):
        box = cost.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
    # A row of several names is no column of single letters.
    assert page.locator("table").nth(1).locator("tbody tr").first.evaluate("row => row.offsetHeight") < 60
    sheets = len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True)))
    assert sheets in (1, 2)
    assert tab.axe() == []
    page.close()


def test_short_names_are_not_broken_beside_long_ones(browser: Browser) -> None:
    found = Entries(CARDS)
    for hour in range(3 * 24):
        for card in CARDS:
            owner = pod("finetune-lora-7b-qk8fz", "bioinformatics", card)
            found.time(4 * hour, card, owner, HOUR // 2)
            found.time(4 * hour, card, "idle", HOUR // 2)
            found.joules(4 * hour, card, {owner: KWH_MJ // 3}, idle=KWH_MJ // 9)
    parts = [ReportPart(96 * day, 96 * (day + 1), f"1970-01-0{1 + day}") for day in range(3)]
    report = found.report(PRICED, "namespace,pod,gpu,node,command", parts)
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    page.set_content(statement_page(statement_of(report), "ab" * 32, "october.json"))
    lines = "cells => cells.map(cell => [cell.textContent, cell.firstChild.getClientRects().length])"
    cells = page.locator("table").first.locator("tbody th:nth-child(2)").evaluate_all(lines)
    assert {(text, count) for text, count in cells} == {("bioinformatics", 1), ("(idle)", 1)}
    page.close()

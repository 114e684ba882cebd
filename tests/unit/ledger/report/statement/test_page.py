"""The page of a statement: all rows, safe for any name, without other files."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.statement.content import PreviousStatement, Statement
from gpuledger.ledger.report.statement.page import statement_page
from gpuledger.ledger.report.teams import parse_teams
from money_helpers import H100, H100_TOO, HOUR, pod
from statement_helpers import PRICED, entries, statement_of

HOSTILE = "<script>alert(1)</script>\"' onload=x &amp; \x1b[31m\n\u202eevil"
SHA = "ab" * 32
_VOID = frozenset(("meta", "br"))


class Page(HTMLParser):
    """The cells, tags and attributes of a page; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in _VOID:
            self.open.append(tag)
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"th", "td"} & set(self.open):
            self.cells[-1] += data


def page_of(statement: Statement, file: str = "october.json") -> Page:
    return Page(statement_page(statement, SHA, file))


def test_a_page_has_all_rows_of_any_number_of_owners() -> None:
    found = entries()
    names = [f"worker-{number}" for number in range(60)]
    for name in names:
        found.time(4, H100_TOO, pod(name), HOUR // 60)
    cells = page_of(statement_of(found.report(PRICED))).cells
    assert {f"pod/ml/{name}" for name in names} <= set(cells)
    assert {"pod/web/chat-0", "idle: no owner", "total", "not billed: down"} <= set(cells)
    # As in the table, only time that there is.
    assert not {"not billed: unobserved time", "not billed: not watched"} & set(cells)


def test_no_name_can_be_markup_or_leave_its_line() -> None:
    found = entries()
    found.time(4, H100_TOO, pod(HOSTILE, HOSTILE, command=HOSTILE), HOUR)
    for by in ("owner", "namespace,command", "pod"):
        statement = statement_of(
            found.report(PRICED, by), parse_teams([{"team": "<b>x</b>", "namespace": "<i>*"}])
        )
        text = statement_page(statement, SHA, 'x"><img src=y>.json')
        page = Page(text)
        assert not page.tags & {"script", "img", "b", "i", "a", "link", "iframe"}
        assert not page.attributes & {"onload", "src", "href", "style"}
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
        assert any("<script>alert(1)</script>" in cell for cell in page.cells)


def test_a_page_is_right_in_any_encoding() -> None:
    found = entries()
    found.time(4, H100_TOO, pod("bäcker-\N{SNOWMAN}"), HOUR)
    text = statement_page(statement_of(found.report(PRICED)), SHA, "")
    assert text.isascii()
    assert "pod/ml/bäcker-\N{SNOWMAN}" in Page(text).cells


def test_a_page_needs_no_other_file() -> None:
    text = statement_page(statement_of(entries().report(PRICED)), SHA, "october.json")
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|url\(|@import", text)


def test_the_foot_says_how_to_verify_the_statement() -> None:
    link = PreviousStatement("cd" * 32, 0, 1)
    text = statement_page(replace(statement_of(entries().report(PRICED)), previous=link), SHA, "october.json")
    foot = text.partition("<footer>")[2]
    assert f"SHA-256 of the statement: <code>{SHA}</code>" in foot
    assert "gpuledger report --verify october.json" in foot
    assert "cd" * 32 in foot
    alone = statement_page(statement_of(entries().report(PRICED)), SHA, "")
    assert "not kept (add --statement FILE)" in alone


def test_periods_and_several_keys_have_columns_of_their_own() -> None:
    parts = [ReportPart(4, 8, "2026-10-01"), ReportPart(8, 12, "2026-10-02")]
    found = entries()
    found.time(8, H100, pod("train-0"), HOUR)
    cells = page_of(statement_of(found.report(PRICED, "namespace,model", parts))).cells
    assert cells[:3] == ["period", "namespace", "model"]
    assert {"2026-10-01", "2026-10-02", "ml", "web", "NVIDIA H100"} <= set(cells)


@pytest.mark.parametrize("prices", [Prices(), PRICED])
def test_the_total_is_that_of_the_rows(prices: Prices) -> None:
    text = statement_page(statement_of(entries().report(prices)), SHA, "")
    assert ('class="due"' in text) == prices.any_price
    if prices.any_price:
        due = re.search(r"<strong>([\d.]+) EUR</strong>", text)
        assert due
        assert f'<td class="n">{due[1]}</td>' in text


def test_the_gpus_of_a_large_fleet_are_summed_by_node_and_model() -> None:
    statement = statement_of(entries().report(PRICED))
    gpus = [
        replace(statement.report.gpus[0], uuid=f"GPU-{number}", accounts={"owner": HOUR})
        for number in range(40)
    ]
    nodes = {gpu.uuid: f"node-{number // 20}" for number, gpu in enumerate(gpus)}
    fleet = replace(statement, report=replace(statement.report, gpus=gpus), nodes=nodes)
    cells = page_of(fleet).cells
    assert cells[cells.index("node-1") :][:4] == ["node-1", "NVIDIA H100", "20", "20.00"]
    assert "GPU-7" not in cells

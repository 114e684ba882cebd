"""The page cache returns HELP, TYPE and UNIT of a page when they change."""

from __future__ import annotations

import asyncio

import pytest

from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.scrape.line_parser import OPENMETRICS, TEXT_FORMAT, PageFormat
from gpuledger.agent.scrape.loop import ScrapeLoop
from gpuledger.agent.scrape.page_cache import PageCache, PageError, parse_metadata
from gpuledger.agent.scrape.series_labels import SeriesLabeler
from gpuledger.host.clock import SystemClock
from scraped_blocks import ALL, Accepted, target
from scripted_target import Answer, scripted

TEXT_PAGE = b"""\
# HELP a_total All of "it" \\\\ and\\nmore  \x20
# TYPE a_total counter
a_total 1
# TYPE b gauge
# just a comment
#TYPE c counter
b 2
 # \tTYPE \t d\tuntyped\t
# HELP e
e 3
"""
OPEN_PAGE = b"""\
# TYPE b_bytes gauge
# UNIT b_bytes bytes
# HELP b_bytes A \\"size\\".
b_bytes 1
# TYPE c counter
c_total 2
# EOF
"""


@pytest.mark.parametrize(
    ("page", "fmt", "expected"),
    [
        (
            TEXT_PAGE,
            TEXT_FORMAT,
            [
                ("a_total", 1, 'All of "it" \\ and\nmore   ', ""),
                ("b", 2, "", ""),
                ("d", 0, "", ""),
                ("e", 0, "", ""),
            ],
        ),
        (OPEN_PAGE, OPENMETRICS, [("b_bytes", 2, 'A "size".', "bytes"), ("c", 1, "", "")]),
        (b"a 1\n", TEXT_FORMAT, []),
    ],
)
def test_metadata_of_a_page(page: bytes, fmt: PageFormat, expected: list[tuple[str, int, str, str]]) -> None:
    found = PageCache(SeriesLabeler({})).read_page(page, fmt, honor=False).metadata
    assert found is not None
    assert list(found.families) == expected


def test_metadata_is_returned_again_only_if_it_changed() -> None:
    pages = PageCache(SeriesLabeler({}))

    def read(page: bytes) -> list[str] | None:
        found = pages.read_page(page, TEXT_FORMAT, honor=False).metadata
        return None if found is None else [one.help for one in found.families]

    assert read(b"# HELP a one\na 1\n") == ["one"]
    assert read(b"# HELP a one\na 2\n") is None
    assert read(b'# HELP a one\na 2\na{b="c"} 2\n') is None
    assert read(b"# HELP a two\na 2\n") == ["two"]
    assert read(b"a 2\n") == []
    assert read(b"a 3\n") is None


def test_metadata_is_known_after_the_first_reading_was_rejected() -> None:
    pages = PageCache(SeriesLabeler({}))
    page = b"# HELP a one\na 1\nb 1\n"
    with pytest.raises(PageError):
        pages.read_page(page, TEXT_FORMAT, honor=False, limit=1)
    found = pages.read_page(page, TEXT_FORMAT, honor=False).metadata
    assert found is not None
    assert [one.help for one in found.families] == ["one"]


def test_targets_with_equal_comments_share_their_metadata() -> None:
    first, second = (
        PageCache(SeriesLabeler({"instance": name})).read_page(
            b"# HELP a one\na %d\n" % len(name), TEXT_FORMAT, honor=False
        )
        for name in ("x", "yy")
    )
    assert first.metadata is second.metadata


def test_other_comments_do_not_make_the_metadata_another() -> None:
    """A page may have the time in a comment: it must not displace the metadata of other pages."""
    first, second = (
        parse_metadata([b"# HELP a one", b"# at 12:00:0%d" % second, b"a 1"], TEXT_FORMAT)
        for second in range(2)
    )
    assert first is second


def test_long_metadata_is_not_shared_and_its_memory_is_bounded() -> None:
    pages = [[b"# HELP a%d " % number + b"x" * 10_000 for number in range(size)] for size in (20, 5000)]
    some, many = (parse_metadata(page, TEXT_FORMAT) for page in pages)
    assert (len(some.families), some is parse_metadata(pages[0], TEXT_FORMAT)) == (20, False)
    assert 400 < len(many.families) < 420


def test_a_target_stores_its_metadata_until_its_series_end() -> None:
    store = MetadataStore()

    async def run(port: int) -> None:
        loop = ScrapeLoop(target(port), ALL, Accepted().accept, SystemClock(), metadata=store)
        for number in range(3):
            await loop.scrape(1_700_000_000_000 + number)
            # A failed scrape changes nothing.
            assert [one.family for one in store.families()] == ["a"]
        loop.end_series(1_700_000_000_003)
        loop.close()
        await asyncio.sleep(0)

    pages = [Answer("# HELP a one\na 1\n"), Answer("", status=500), Answer("# HELP a one\na 1\n")]
    with scripted(lambda path: pages.pop(0)) as server:
        asyncio.run(run(server.port))
    assert store.families() == ()

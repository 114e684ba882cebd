"""How many bytes a page has: what every scraper pays for at every scrape, held where it is."""

from __future__ import annotations

import gzip
from functools import cache
from itertools import chain

import pytest

from gpuledger.dialects.catalogue import dialects
from gpuledger.dialects.settings import DEFAULT, DialectSettings
from gpuledger.exposition import text
from gpuledger.exposition.merging import merge
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.node_state import Health, NodeState
from unit.sources.simulator.support import UNIX, Node

EVERY = dialects(DialectSettings(), "0")
KIB = 1024
# Of 8 GPUs with 64 processes, in KiB: what it is now, and a tenth more. Who makes it longer says so here.
MOST: dict[tuple[str, ...], float] = {
    DEFAULT: 306,
    ("process",): 23.4,
    ("session",): 23.4,
    ("energy",): 68.7,
    ("native",): 214,
    ("dcgm",): 144,
}


@cache
def body(names: tuple[str, ...], processes: int) -> bytes:
    """The page after one minute, of 8 GPUs with so many processes on each."""
    each = ", ".join(["{name: python, load: 0.1}"] * processes)
    node = Node(f"gpus:\n  - {{count: 8, memory: 80GB, processes: [{each}]}}\n")
    ledger = Ledger(LedgerSettings())
    for second in (0.0, 30.0, 60.0):
        seen = node.at(second)
        state = ledger.post(seen)
    page = NodeState(UNIX, node.source.info, seen, state, Health())
    return text.encode_text(merge(chain.from_iterable(EVERY[name].families(page) for name in names)))


@pytest.mark.parametrize("names", MOST, ids=",".join)
def test_a_page_of_the_budgets_size_is_no_longer_than_it_was(names: tuple[str, ...]) -> None:
    size = len(body(names, 8)) / KIB
    assert MOST[names] / 1.2 < size <= MOST[names]


def test_a_page_grows_by_the_same_for_each_process() -> None:
    none, some, twice = (len(body(DEFAULT, processes)) for processes in (0, 8, 16))
    assert (twice - some) <= 1.05 * (some - none)
    # Of one process: its rows in four dialects.
    assert (twice - some) / 64 < 2.6 * KIB


def test_gzip_leaves_less_than_an_eighth_of_it() -> None:
    page = body(DEFAULT, 8)
    assert len(gzip.compress(page, 1)) < len(page) / 8

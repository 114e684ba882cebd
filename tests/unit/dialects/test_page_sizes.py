"""Budgets for the size of pages, which every scrape transfers."""

from __future__ import annotations

import gzip
from functools import cache
from itertools import chain

import pytest

from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DEFAULT_DIALECTS, DialectSettings
from gpuledger.exposition import text
from gpuledger.exposition.merging import merge_families
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.node_state import Health, NodeState
from unit.sources.simulator.support import UNIX, Node

EVERY = create_dialects(DialectSettings(), "0")
KIB = 1024
# For 8 GPUs with 64 processes, in KiB: the current size plus a tenth. A change that needs more changes it
# here.
BUDGETS: dict[tuple[str, ...], float] = {
    DEFAULT_DIALECTS: 394,
    ("process",): 23.4,
    ("session",): 23.4,
    ("energy",): 68.7,
    ("native",): 301,
    ("dcgm",): 144,
}


@cache
def body(names: tuple[str, ...], processes: int) -> bytes:
    """Returns the page of 8 GPUs with this number of processes on each, after one minute."""
    each = ", ".join(["{name: python, load: 0.1}"] * processes)
    node = Node(f"gpus:\n  - {{count: 8, memory: 80GB, processes: [{each}]}}\n")
    ledger = Ledger(LedgerSettings())
    for second in (0.0, 30.0, 60.0):
        seen = node.at(second)
        state = ledger.post(seen)
    complete = NodeState(UNIX, node.source.info, seen, state, Health())
    families = chain.from_iterable(EVERY[name].families(complete) for name in names)
    return text.encode_text(merge_families(families))


@pytest.mark.parametrize("names", BUDGETS, ids=",".join)
def test_a_page_does_not_exceed_its_size_budget(names: tuple[str, ...]) -> None:
    size = len(body(names, 8)) / KIB
    assert BUDGETS[names] / 1.2 < size <= BUDGETS[names]


def test_a_page_grows_linearly_with_processes() -> None:
    none, some, twice = (len(body(DEFAULT_DIALECTS, processes)) for processes in (0, 8, 16))
    assert (twice - some) <= 1.05 * (some - none)
    # The rows of one process in four dialects.
    assert (twice - some) / 64 < 2.6 * KIB


def test_gzip_compresses_to_less_than_an_eighth() -> None:
    page = body(DEFAULT_DIALECTS, 8)
    assert len(gzip.compress(page, 1)) < len(page) / 8

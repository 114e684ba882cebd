"""Whole pages, byte for byte. With UPDATE_GOLDENS=1 in the environment they are written anew, for review."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from builders import gpu, process, reading, snapshot
from golden_page import golden_page, stale_page
from gpuledger.dialects.catalogue import dialects
from gpuledger.dialects.settings import DEFAULT, DialectSettings
from gpuledger.exposition import text
from gpuledger.exposition.merging import merge
from gpuledger.model.node_state import NodeState

FOLDER = Path(__file__).parents[2] / "golden"
EVERY = dialects(DialectSettings(), "0.0.0")
PAGES = {"good": golden_page, "stale": stale_page}


def body(page: NodeState, names: tuple[str, ...], suffix: str) -> bytes:
    families = merge(chain.from_iterable(EVERY[name].families(page) for name in names))
    return (text.encode_text if suffix == "prom" else text.encode_openmetrics)(families)


@pytest.mark.parametrize("suffix", ["prom", "openmetrics"])
@pytest.mark.parametrize("dialect", EVERY)
@pytest.mark.parametrize("state", PAGES)
def test_the_page_is_as_reviewed(state: str, dialect: str, suffix: str) -> None:
    golden = FOLDER / f"{dialect}-{state}.{suffix}"
    found = body(PAGES[state](), (dialect,), suffix)
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_bytes(found)
    assert found.decode() == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("state", PAGES)
def test_the_default_page_parses_in_both_formats_and_has_no_series_twice(state: str) -> None:
    page = PAGES[state]()
    for suffix, read in (("prom", read_text), ("openmetrics", read_openmetrics)):
        families = list(read(body(page, DEFAULT, suffix).decode()))
        series = [
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in families
            for sample in family.samples
        ]
        assert series
        assert len(series) == len(set(series))
        assert len({family.name for family in families}) == len(families)


def test_every_line_comes_from_the_one_page_given() -> None:
    """A page with other values, told in between, leaves no trace: nothing is kept from page to page."""
    other = NodeState(1.0, golden_page().source, snapshot(reading(gpu(9), process(gpu(9), 99))))
    before, between, after = (body(page, DEFAULT, "prom") for page in (golden_page(), other, golden_page()))
    assert before == after
    assert b"GPU-9" in between
    assert b"GPU-0" not in between
    assert b"\ngpu_process" not in body(stale_page(), DEFAULT, "prom")

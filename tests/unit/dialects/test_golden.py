"""Complete pages, byte for byte. `make goldens` writes the golden files."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from builders import gpu, process, reading, snapshot
from golden_state import golden_state, stale_state
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DEFAULT_DIALECTS, DialectSettings
from gpuledger.exposition import text
from gpuledger.exposition.merging import merge_families
from gpuledger.model.node_state import NodeState

FOLDER = Path(__file__).parents[2] / "golden"
EVERY = create_dialects(DialectSettings(), "0.0.0", price=lambda device, _: 1.25 if device.instance else 2.4)
STATES = {"good": golden_state, "stale": stale_state}


def body(state: NodeState, names: tuple[str, ...], suffix: str) -> bytes:
    families = merge_families(chain.from_iterable(EVERY[name].families(state) for name in names))
    return (text.encode_text if suffix == "prom" else text.encode_openmetrics)(families)


@pytest.mark.parametrize("suffix", ["prom", "openmetrics"])
@pytest.mark.parametrize("dialect", EVERY)
@pytest.mark.parametrize("state", STATES)
def test_the_page_equals_the_golden_file(state: str, dialect: str, suffix: str) -> None:
    golden = FOLDER / f"{dialect}-{state}.{suffix}"
    found = body(STATES[state](), (dialect,), suffix)
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_bytes(found)
    kept = golden.read_text(encoding="utf-8") if golden.exists() else ""
    assert found.decode() == kept, "is the new one right? run `make goldens`"


@pytest.mark.parametrize("state", STATES)
def test_the_default_page_parses_in_both_formats_without_duplicate_series(state: str) -> None:
    page = STATES[state]()
    for suffix, read in (("prom", read_text), ("openmetrics", read_openmetrics)):
        families = list(read(body(page, DEFAULT_DIALECTS, suffix).decode()))
        series = [
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in families
            for sample in family.samples
        ]
        assert series
        assert len(series) == len(set(series))
        assert len({family.name for family in families}) == len(families)


@pytest.mark.parametrize("dialect", EVERY)
def test_the_page_needs_only_the_required_quantities(dialect: str) -> None:
    state, required = golden_state(), EVERY[dialect].required_quantities
    assert state.snapshot is not None
    readings = tuple(
        replace(
            each, values={quantity: value for quantity, value in each.values.items() if quantity in required}
        )
        for each in state.snapshot.readings
    )
    reduced = replace(state, snapshot=replace(state.snapshot, readings=readings))
    assert body(reduced, (dialect,), "prom").decode() == body(state, (dialect,), "prom").decode(), (
        f"add the missing quantities to `required_quantities` of the dialect {dialect}"
    )


def test_every_line_comes_from_the_given_state() -> None:
    """Encoding another state in between has no effect: dialects keep no data of former states."""
    other = NodeState(1.0, golden_state().source, snapshot(reading(gpu(9), process(gpu(9), 99))))
    before, between, after = (
        body(page, DEFAULT_DIALECTS, "prom") for page in (golden_state(), other, golden_state())
    )
    assert before == after
    assert b"GPU-9" in between
    assert b"GPU-0" not in between
    assert b"\ngpu_process" not in body(stale_state(), DEFAULT_DIALECTS, "prom")

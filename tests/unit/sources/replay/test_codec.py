"""A recording carries every field of a Snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import gpu, instance, process, reading, snapshot
from gpuledger.model.quantities import ENERGY, POWER, QUANTITIES, Quantity
from gpuledger.model.snapshot import Snapshot, XidEvent
from gpuledger.sources.replay.codec import ReadTable, WriteTable, form_of, layout_of, record_of
from gpuledger.sources.replay.masking import parts_of
from gpuledger.sources.replay.recording import Outage
from unit.sources.replay.support import at, deep, read, values, write


@settings(deadline=None, max_examples=60)
@given(st.lists(values(Snapshot), min_size=1, max_size=2))
def test_what_is_decoded_is_what_was_encoded(snapshots: list[Snapshot]) -> None:
    written, found = WriteTable(), ReadTable(layout_of(Snapshot))
    for one in snapshots:
        line = json.loads(json.dumps(record_of(Snapshot).encode(one, written)))
        entries, written.new = written.new, []
        for entry in json.loads(json.dumps(entries)):
            found.add(entry)
        assert deep(record_of(Snapshot).decode(line, found)) == deep(one)


def test_every_field_that_a_snapshot_is_made_of_is_in_the_layout() -> None:
    # The walk is this test's own: a class that the layout forgets is found here.
    waiting, seen = [Snapshot], set()
    layout = layout_of(Snapshot)
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        assert layout[kind.__name__] == [item.name for item in fields(kind) if item.init]
        for hint in get_type_hints(kind).values():
            waiting += [part for part in parts_of(hint) if is_dataclass(part) and part is not Quantity]
    assert {kind.__name__ for kind in seen} == set(layout)
    assert {"Gpu", "Instance", "HostFacts", "UtilizationSample", "Allocation", "XidEvent"} <= set(layout)


@pytest.mark.parametrize("hint", [bytes, list[int], dict[int, str], str | int, complex])
def test_a_type_that_a_recording_cannot_carry_is_refused_not_left_out(hint: object) -> None:
    with pytest.raises(TypeError, match="cannot carry"):
        form_of(hint)


@dataclass(frozen=True)
class Newer:
    a: int
    b: Mapping[str, float] = field(default_factory=dict)
    c: str | None = None


@pytest.mark.parametrize(
    ("names", "row", "expected"),
    [
        (["a", "b", "c"], [1], Newer(1)),
        (["a"], [1], Newer(1)),
        (["was_dropped", "a"], [{"any": "thing"}, 1], Newer(1)),
        (["c", "a"], [None, 1], Newer(1)),
    ],
)
def test_fields_go_by_the_names_in_the_file(names: list[str], row: list[object], expected: Newer) -> None:
    assert record_of(Newer).decode(row, ReadTable({"Newer": names})) == expected


@pytest.mark.parametrize(
    "raw", [["x"], [True], [1.5], [1, 2, 3, 4], {"a": 1}, None, [], [1, [0, []]], [1, 0]]
)
def test_a_row_that_cannot_be_is_refused(raw: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        record_of(Newer).decode(raw, ReadTable({"Newer": ["a", "b", "c"]}))


def test_absent_zero_and_failed_stay_three_things(tmp_path: Path) -> None:
    one, two, three = gpu(0), gpu(1), gpu(2)
    told = snapshot(
        reading(one, values={POWER: 0.0, ENERGY: 2**63}),
        reading(two, values={}, samples=None),
        reading(three, failed=True, up=False),
    )
    (found,) = read(write(tmp_path / "r", [told]))
    assert deep(found) == deep(told)
    first, second, third = found.readings  # type: ignore[union-attr]  # a Snapshot was written
    assert (first.values, second.values) == ({POWER: 0.0, ENERGY: 2**63}, {})
    assert (first.processes, third.processes, first.samples, second.samples) == ((), None, (), None)


def test_a_gpu_that_changed_its_index_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    before, after = snapshot(reading(gpu(0))), snapshot(reading(gpu(0, name="NVIDIA L4")))
    assert [deep(found) for found in read(write(tmp_path / "r", [before, after]))] == [
        deep(before),
        deep(after),
    ]


def test_what_stays_the_same_is_written_once(tmp_path: Path) -> None:
    card = gpu(0, name="NVIDIA H100 80GB HBM3")
    cut = instance(card, 1)
    told = snapshot(
        reading(card),
        reading(cut, process(cut, name="/opt/very/long/path/python3")),
        xids=(XidEvent(card, 31, 1.0),),
    )
    text = write(tmp_path / "r", [at(told, tick) for tick in range(20)]).read_text()
    assert text.count("NVIDIA H100 80GB HBM3") == text.count("/opt/very/long/path/python3") == 1


def test_a_quantity_that_this_version_does_not_know_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "r", [snapshot(reading(gpu(0), values={POWER: 1.0, ENERGY: 5}))])
    path.write_text(path.read_text().replace('"power"', '"warp_factor"'))
    (found,) = read(path)
    assert isinstance(found, Snapshot)
    assert found.readings[0].values == {QUANTITIES["energy"]: 5}


def test_a_tick_without_a_source_travels_too(tmp_path: Path) -> None:
    later = snapshot().elapsed + 1
    lost = Outage(1.5, later, "LIBRARY_NOT_FOUND", "libnvidia-ml.so.1 not found: install the driver")
    assert read(write(tmp_path / "r", [snapshot(), lost])) == [snapshot(), lost]

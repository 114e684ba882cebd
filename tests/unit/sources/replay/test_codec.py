"""A recording has every field of a Snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, instance, process, reading, snapshot
from gpuledger.model.quantities import ENERGY, POWER, QUANTITIES, Quantity
from gpuledger.model.snapshot import Snapshot, XidEvent
from gpuledger.sources.replay.codec import (
    ReadTable,
    WriteTable,
    build_codec,
    file_name,
    get_record_codec,
    list_field_names,
)
from gpuledger.sources.replay.masking import parts_of
from gpuledger.sources.replay.recording import Outage
from unit.sources.replay.support import at, deep, read, values, write

CORPUS = Path(__file__).parents[3] / "corpus" / "recording"


@given(st.lists(values(Snapshot), min_size=1, max_size=2))
def test_decoding_returns_the_encoded_value(snapshots: list[Snapshot]) -> None:
    written, found = WriteTable(), ReadTable(list_field_names(Snapshot))
    for item in snapshots:
        line = json.loads(json.dumps(get_record_codec(Snapshot).encode(item, written)))
        entries, written.new = written.new, []
        for entry in json.loads(json.dumps(entries)):
            found.add(entry)
        assert deep(get_record_codec(Snapshot).decode(line, found)) == deep(item)


def test_the_layout_has_every_field_of_a_snapshot() -> None:
    # Walks the types independently of `list_field_names`, to find a class that it omits.
    waiting, seen = [Snapshot], set()
    layout = list_field_names(Snapshot)
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        assert layout[file_name(kind)] == [item.name for item in fields(kind) if item.init]
        for hint in get_type_hints(kind).values():
            waiting += [part for part in parts_of(hint) if is_dataclass(part) and part is not Quantity]
    assert {file_name(kind) for kind in seen} == set(layout)
    assert {"Gpu", "Instance", "HostFacts", "UtilizationSample", "Allocation", "XidEvent"} <= set(layout)


def test_the_layout_is_that_of_earlier_recordings() -> None:
    with (CORPUS / "three-ticks.jsonl").open() as recording:
        header = json.loads(recording.readline())
    # New fields come last and have a default value.
    known = list_field_names(Snapshot) | list_field_names(Outage)
    assert {name: known[name][: len(names)] for name, names in header["layout"].items()} == header["layout"]


def test_a_snapshot_of_an_earlier_recording_has_no_suspend_and_no_interval() -> None:
    old = list_field_names(Snapshot)
    old["Snapshot"] = old["Snapshot"][: old["Snapshot"].index("suspended")]
    written, found = WriteTable(), ReadTable(old)
    line = get_record_codec(Snapshot).encode(snapshot(), written)
    for entry in written.new:
        found.add(entry)
    read_back = get_record_codec(Snapshot).decode(line, found)
    assert (read_back.suspended, read_back.interval) == (None, None)


@pytest.mark.parametrize("hint", [bytes, list[int], dict[int, str], str | int, complex])
def test_an_unsupported_type_is_rejected_not_omitted(hint: object) -> None:
    with pytest.raises(TypeError, match="cannot carry"):
        build_codec(hint)


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
def test_fields_are_matched_by_the_names_in_the_file(
    names: list[str], row: list[object], expected: Newer
) -> None:
    assert get_record_codec(Newer).decode(row, ReadTable({"Newer": names})) == expected


@pytest.mark.parametrize(
    "raw", [["x"], [True], [1.5], [1, 2, 3, 4], {"a": 1}, None, [], [1, [0, []]], [1, 0]]
)
def test_an_impossible_row_is_rejected(raw: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        get_record_codec(Newer).decode(raw, ReadTable({"Newer": ["a", "b", "c"]}))


def test_absent_zero_and_failed_remain_distinct(tmp_path: Path) -> None:
    first_gpu, second_gpu, third_gpu = gpu(0), gpu(1), gpu(2)
    original = snapshot(
        reading(first_gpu, values={POWER: 0.0, ENERGY: 2**63}),
        reading(second_gpu, values={}, samples=None),
        reading(third_gpu, failed=True, up=False),
    )
    (found,) = read(write(tmp_path / "r", [original]))
    assert deep(found) == deep(original)
    first, second, third = found.readings  # type: ignore[union-attr]  # a Snapshot was written
    assert (first.values, second.values) == ({POWER: 0.0, ENERGY: 2**63}, {})
    assert (first.processes, third.processes, first.samples, second.samples) == ((), None, (), None)


def test_a_gpu_with_a_changed_index_is_a_new_entry(tmp_path: Path) -> None:
    before, after = snapshot(reading(gpu(0))), snapshot(reading(gpu(0, name="NVIDIA L4")))
    assert [deep(found) for found in read(write(tmp_path / "r", [before, after]))] == [
        deep(before),
        deep(after),
    ]


def test_unchanged_objects_are_written_once(tmp_path: Path) -> None:
    device = gpu(0, name="NVIDIA H100 80GB HBM3")
    mig_instance = instance(device, 1)
    original = snapshot(
        reading(device),
        reading(mig_instance, process(mig_instance, name="/opt/very/long/path/python3")),
        xids=(XidEvent(device, 31, 1.0),),
    )
    text = write(tmp_path / "r", [at(original, tick) for tick in range(20)]).read_text()
    assert text.count("NVIDIA H100 80GB HBM3") == text.count("/opt/very/long/path/python3") == 1


def test_an_unknown_quantity_is_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "r", [snapshot(reading(gpu(0), values={POWER: 1.0, ENERGY: 5}))])
    path.write_text(path.read_text().replace('"power"', '"warp_factor"'))
    (found,) = read(path)
    assert isinstance(found, Snapshot)
    assert found.readings[0].values == {QUANTITIES["energy"]: 5}


def test_an_outage_is_recorded(tmp_path: Path) -> None:
    later = snapshot().elapsed + 1
    lost = Outage(1.5, later, "LIBRARY_NOT_FOUND", "libnvidia-ml.so.1 not found: install the driver")
    assert read(write(tmp_path / "r", [snapshot(), lost])) == [snapshot(), lost]

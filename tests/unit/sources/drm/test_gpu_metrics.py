"""The parser of gpu_metrics against offsets from compilers and the published dumps."""

from __future__ import annotations

import json
from struct import pack, pack_into
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drm_machine import DUMPS, file_bytes, load_dump, metrics_table
from gpuledger.sources.drm.gpu_metrics import (
    VERSIONS,
    UnreadableMetrics,
    metrics_layout,
    parse_gpu_metrics,
)

LAYOUTS = json.loads((DUMPS / "gpu_metrics-layouts.json").read_text())
WIDTHS = {"B": 1, "H": 2, "I": 4, "Q": 8}
KERNEL = {
    tuple(map(int, name.removeprefix("gpu_metrics_v").split("_"))): layout
    for name, layout in LAYOUTS["linux_6_12"].items()
}
ROCM = {
    (1, int(name.removeprefix("AMDGpuMetrics_v1").removesuffix("_t"))): layout
    for name, layout in LAYOUTS["rocm_smi"].items()
    if name.startswith("AMDGpuMetrics_v1")
}
# The two headers name it differently.
RENAMED = {"current_socket_power": "curr_socket_power"}
WITH_TABLE = ["phoenix", "strixpoint", "rx6900xt", "rx7600s", "rx7800xt", "rx9070"]


def places_of(version: tuple[int, int]) -> dict[str, tuple[int, int, int]]:
    return {
        place.name: (place.offset, WIDTHS[place.code], place.count or 1)
        for place in metrics_layout(version).places
        if place.code != "X"
    }


def expected_places(layout: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {
        name: (field["offset"], field["width"], field["count"]) for name, field in layout["fields"].items()
    }


@pytest.mark.parametrize("version", sorted(KERNEL), ids=str)
def test_a_layout_is_that_of_the_compiled_kernel_header(version: tuple[int, int]) -> None:
    assert metrics_layout(version).size == KERNEL[version]["size"]
    assert places_of(version) == expected_places(KERNEL[version])


@pytest.mark.parametrize("version", sorted(ROCM), ids=str)
def test_a_layout_is_that_of_the_compiled_rocm_header(version: tuple[int, int]) -> None:
    expected = {
        RENAMED.get(name.removeprefix("m_"), name.removeprefix("m_")): place
        for name, place in expected_places(ROCM[version]).items()
        if not name.startswith(("m_padding", "m_xcp_stats"))
    }
    found = {name: place for name, place in places_of(version).items() if name != "padding"}
    assert metrics_layout(version).size == ROCM[version]["size"]
    assert found == expected


@pytest.mark.parametrize(
    ("version", "block"), [((1, 7), "amdgpu_xcp_metrics_v1_1"), ((1, 8), "amdgpu_xcp_metrics_v1_2")]
)
def test_the_block_of_a_partition_is_that_of_the_compiled_header(
    version: tuple[int, int], block: str
) -> None:
    expected, layout = LAYOUTS["rocm_smi"][block], metrics_layout(version)
    assert layout.partition is not None
    found = {
        place.name: (place.offset, WIDTHS[place.code], place.count or 1) for place in layout.partition.places
    }
    assert (layout.partition.size, found) == (expected["size"], expected_places(expected))
    blocks = next(place for place in layout.places if place.code == "X")
    assert blocks.offset == ROCM[version]["fields"]["m_xcp_stats"]["offset"]


def test_every_version_of_the_headers_is_known() -> None:
    assert {*KERNEL, *ROCM, (1, 9)} == set(VERSIONS)


@pytest.mark.parametrize("name", WITH_TABLE)
def test_every_field_of_a_dump_has_its_expected_value(name: str) -> None:
    dump = load_dump(name)
    raw = next(value for path, value in dump["files"].items() if path.endswith("/gpu_metrics"))
    expected = dump["gpu_metrics"]
    metrics = parse_gpu_metrics(file_bytes(raw))
    assert metrics.version == (expected["format_revision"], expected["content_revision"])
    assert metrics.fields == expected["fields"]


@pytest.mark.parametrize("version", [version for version in VERSIONS if version != (1, 9)], ids=str)
def test_a_value_of_all_ones_is_absent_and_zero_is_not(version: tuple[int, int]) -> None:
    scalars = [place for place in metrics_layout(version).places if place.code in WIDTHS and not place.count]
    absent = parse_gpu_metrics(metrics_table(version))
    zero = parse_gpu_metrics(metrics_table(version, **{place.name: 0 for place in scalars}))
    named = [place.name for place in scalars if place.name != "padding"]
    assert {absent.scalar(name) for name in named} == {None}
    assert {zero.scalar(name) for name in named} == {0}


def test_partitions_have_their_own_counters() -> None:
    raw = bytearray(metrics_table((1, 7), num_partition=2, energy_accumulator=5 << 16))
    layout = metrics_layout((1, 7))
    start = next(place.offset for place in layout.places if place.code == "X")
    assert layout.partition is not None
    acc = next(place.offset for place in layout.partition.places if place.name == "gfx_busy_acc")
    pack_into("<4Q", raw, start + layout.partition.size + acc, 7, 8, 9, 10)
    metrics = parse_gpu_metrics(bytes(raw))
    assert len(metrics.partitions) == 8
    assert metrics.partitions[1]["gfx_busy_acc"] == [7, 8, 9, 10, None, None, None, None]
    assert metrics.scalar("energy_accumulator") == 5 << 16


def attributes(*entries: tuple[int, int, list[int]]) -> bytes:
    """A table of version 1.9: for each attribute its number, type (0 u8 to 7 s64) and values."""
    body = pack("<i", len(entries))
    for number, kind, values in entries:
        body += pack("<Q", 1 << 24 | kind << 20 | number << 10 | len(values))
        body += pack(f"<{len(values)}{'BbHhIiQq'[kind]}", *values)
    return pack("<HBB", len(body) + 4, 1, 9) + body


def test_version_1_9_describes_its_fields() -> None:
    raw = attributes((0, 2, [61]), (3, 4, [712]), (900, 6, [1, 2, 3]), (7, 6, [123 << 16]), (4, 2, [0xFFFF]))
    metrics = parse_gpu_metrics(raw)
    assert metrics.fields == {
        "temperature_hotspot": 61,
        "curr_socket_power": 712,
        "energy_accumulator": 123 << 16,
        "average_gfx_activity": None,
    }


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "0 bytes, less than its header"),
        (metrics_table((1, 3))[:119], "gpu_metrics of 120 bytes, format 1, content 3: only 119 bytes"),
        (pack("<HBB", 4, 4, 0), "gpu_metrics of 4 bytes, format 4, content 0: this version is unknown"),
        (pack("<HBB", 328, 1, 5) + bytes(400), "this version has 360 bytes"),
        (attributes((7, 6, [1]))[:-1], "only"),
        (pack("<HBBi", 8, 1, 9, 3), "cut short"),
        (pack("<HBBiQ", 16, 1, 9, 1, 9 << 20 | 1), "unknown type"),
    ],
)
def test_a_table_that_cannot_be_trusted_is_refused_with_its_version(raw: bytes, text: str) -> None:
    with pytest.raises(UnreadableMetrics, match=text):
        parse_gpu_metrics(raw)


@given(st.binary(max_size=400), st.sampled_from(VERSIONS), st.booleans())
def test_no_bytes_cause_another_error(body: bytes, version: tuple[int, int], fits: bool) -> None:
    size = len(body) + 4 if fits or version == (1, 9) else metrics_layout(version).size
    try:
        parse_gpu_metrics(pack("<HBB", size & 0xFFFF, *version) + body)
    except UnreadableMetrics as error:
        assert "\n" not in str(error)

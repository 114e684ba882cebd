"""DrmSource: partitions of AMD's GPUs, and their processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from drm_machine import amd_client, metrics_table
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu, Instance
from unit.sources.drm.support import (
    AMD,
    MIB,
    DrmNode,
    process_of,
)


@pytest.fixture
def node(tmp_path: Path) -> DrmNode:
    return DrmNode(tmp_path)


PACKAGE = "1d8b0ab57a9dd2c3"


def add_partitioned(node: DrmNode, busy: list[int], sums: list[int]) -> None:
    """An MI300X in DPX: two partitions, with these momentary and summed activities per die."""
    raw = bytearray(
        metrics_table((1, 7), num_partition=2, energy_accumulator=50 << 16, accumulation_counter=1)
    )
    _write_partitions(raw, busy, sums)
    node.machine.add_card(
        0,
        "0000:05:00.0",
        "1002:74a1",
        render=128,
        unique_id=PACKAGE,
        current_compute_partition="DPX",
        current_memory_partition="NPS1",
        gpu_busy_percent=40,
        mem_info_vram_total=192 << 30,
        mem_info_vram_used=5,
        gpu_metrics=bytes(raw),
    )
    for number in (0, 1):
        node.machine.add_node(
            2 + number,
            700 + number,
            location_id=0x500 + number,
            drm_render_minor=128 + number,
            simd_count=608,
            gfx_target_version=90402,
        )
        bank = f"sys/class/kfd/kfd/topology/nodes/{2 + number}/mem_banks/0/properties"
        node.machine.write(bank, f"heap_type 1\nsize_in_bytes {96 << 30}\n")


def _write_partitions(raw: bytearray, busy: list[int], sums: list[int]) -> None:
    from struct import pack_into

    from gpuledger.sources.drm.gpu_metrics import metrics_layout

    layout = metrics_layout((1, 7))
    start = next(place.offset for place in layout.places if place.code == "X")
    assert layout.partition is not None
    places = {place.name: place.offset for place in layout.partition.places}
    for number, (now, total) in enumerate(zip(busy, sums, strict=True)):
        block = start + number * layout.partition.size
        pack_into("<4I", raw, block + places["gfx_busy_inst"], *[now] * 4)
        pack_into("<4Q", raw, block + places["gfx_busy_acc"], *[total] * 4)


def test_partitions_are_instances_with_their_memory_activity_and_compute_units(node: DrmNode) -> None:
    add_partitioned(node, [80, 0], [1000, 1000])
    first = node.read()
    add_partitioned(node, [80, 0], [1300, 1100])
    package, *parts = node.read().readings
    assert isinstance(package.device, Gpu)
    assert (package.mig_enabled, package.device.sm_count, package.processes) == (True, 304, ())
    assert package.get(q.ENERGY) == 50_000
    assert package.get(q.MEMORY_TOTAL) == 192 << 30
    devices = [one.device for one in parts]
    assert [
        (one.uuid, one.instance, one.profile, one.sm_count) for one in devices if isinstance(one, Instance)
    ] == [
        (f"GPU-{PACKAGE}/0", "0_0", "dpx_nps1", 152),
        (f"GPU-{PACKAGE}/1", "1_0", "dpx_nps1", 152),
    ]
    # Their mean is what the package was busy: 40 %; three quarters of it in the first.
    assert [one.get(q.ENGINE_ACTIVITY) for one in parts] == pytest.approx([0.6, 0.2])
    # Nothing to compare with at first: what the dies report.
    assert [one.get(q.ENGINE_ACTIVITY) for one in first.readings[1:]] == [0.8, 0.0]
    assert [one.get(q.MEMORY_TOTAL) for one in parts] == [96 << 30] * 2
    assert all(q.POWER not in one.values and q.ENERGY not in one.values for one in parts)


def test_a_client_of_a_partition_is_found_by_its_render_node(node: DrmNode) -> None:
    add_partitioned(node, [0, 0], [0, 0])
    # Its fdinfo names the parent's address.
    node.machine.add_process(9, {3: ("renderD129", amd_client("0000:05:00.0", 1, vram=MIB))})
    node.machine.use_kfd(9, 701, vram=2 * MIB, occupancy=38)
    node.machine.use_kfd(10, 700, vram=MIB, occupancy=0)
    package, first, second = node.read().readings
    assert [[one.pid for one in reading.processes or ()] for reading in (package, first, second)] == [
        [],
        [10],
        [9],
    ]
    # Both describe the same bytes.
    assert process_of(second, 9).memory == 2 * MIB
    assert process_of(second, 9).usage.sm == 0.25
    assert (first.samples, second.samples) == (None, None)


def test_without_kfd_the_partitions_are_equal_parts(node: DrmNode) -> None:
    node.machine.add_card(
        0,
        AMD,
        "1002:74a1",
        unique_id=PACKAGE,
        current_compute_partition="CPX",
        current_memory_partition="NPS4",
    )
    package, *parts = node.read().readings
    assert [one.device.instance for one in parts] == [f"{number}_0" for number in range(8)]
    assert (package.device.gpu.sm_count, {one.device.sm_count for one in parts}) == (8, {1})


def test_a_partition_without_a_node_leaves_its_units_uncovered(node: DrmNode) -> None:
    node.machine.add_topology("mi300-cpx")
    for number, address in enumerate(("0000:05:00.0", "0000:27:00.0")):
        node.machine.add_card(number, address, "1002:74a1", current_compute_partition="CPX")
    found = node.read()
    packages = [one.device for one in found.readings if isinstance(one.device, Gpu)]
    assert [(one.sm_count, one.uuid) for one in packages] == [
        (304, "GPU-e3aa140f9a5f9e31"),
        (304, "GPU-2250f807caf2231a"),
    ]
    assert len(found.readings) == 2 + 16

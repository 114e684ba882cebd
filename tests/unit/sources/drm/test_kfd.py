"""KFD: published topologies, and processes of ROCm."""

from __future__ import annotations

from pathlib import Path

import pytest

from drm_machine import DrmMachine, load_dump
from gpuledger.sources.drm.kfd import KfdReader, KfdUse

TOPOLOGIES = ["mi210", "mi300-cpx", "mi308", "vega20-3node"]


@pytest.fixture
def machine(tmp_path: Path) -> DrmMachine:
    return DrmMachine(tmp_path)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_gpu_node_of_a_published_topology_is_read(machine: DrmMachine, name: str) -> None:
    machine.add_topology(name)
    expected = load_dump(f"kfd-{name}")["expected"]
    nodes = KfdReader(machine.sysfs).nodes()
    assert len(nodes) == expected["gpu_nodes"]
    assert len({node.address for node in nodes}) == expected["physical_gpus"]
    assert len({node.unique_id for node in nodes}) == expected["distinct_unique_ids"]
    for node, given in zip(nodes, expected["nodes"], strict=True):
        assert (node.number, node.address, node.partition) == (given["node"], given["pci"], given["low3bits"])
        assert f"{node.unique_id:016x}" == given["unique_id"].rjust(16, "0")
        assert (node.render_minor, node.compute_units) == (given["render_minor"], given["compute_units"])
        assert node.device_id == int(given["device_id"], 16)
        assert node.gpu_id == given.get("gpu_id")
        assert node.memory == given.get("mem_bank_bytes", 0)


def test_a_node_that_may_not_be_read_is_omitted(machine: DrmMachine) -> None:
    machine.add_node(1, 100, location_id=0x300)
    machine.add_node(2, 200, location_id=0x400)

    def read(path: str) -> bytes:
        if "/nodes/1/properties" in path:
            raise PermissionError(1, "Operation not permitted")
        return Path(path).read_bytes()

    assert [node.gpu_id for node in KfdReader(machine.sysfs, read).nodes()] == [200]


def test_a_process_holds_memory_queues_and_compute_units_by_gpu(machine: DrmMachine) -> None:
    machine.use_kfd(41, 100, vram=4096, occupancy=30, queues=2)
    machine.use_kfd(41, 200, vram=0, queues=1)
    machine.use_kfd(42, 100, vram=8192, queues=0)
    found = KfdReader(machine.sysfs).uses(frozenset({100, 200}))
    assert found == {
        41: {100: KfdUse(4096, 2, 30), 200: KfdUse(0, 1, None)},
        42: {100: KfdUse(8192, 0, None)},
    }


def test_a_daemon_that_only_opened_kfd_is_no_user(machine: DrmMachine) -> None:
    machine.use_kfd(41, 100, vram=0, occupancy=0, queues=0)
    assert KfdReader(machine.sysfs).uses(frozenset({100})) == {}


def test_further_contexts_of_a_process_are_added(machine: DrmMachine) -> None:
    machine.use_kfd(41, 100, vram=4096, occupancy=3, queues=1)
    folder = "sys/class/kfd/kfd/proc/41/context_2"
    machine.write(f"{folder}/vram_100", "1000\n")
    machine.write(f"{folder}/stats_100/cu_occupancy", "4\n")
    machine.write(f"{folder}/queues/9/gpuid", "100\n")
    assert KfdReader(machine.sysfs).uses(frozenset({100})) == {41: {100: KfdUse(5096, 2, 7)}}


def test_a_gpu_of_another_container_is_ignored(machine: DrmMachine) -> None:
    machine.use_kfd(41, 300, vram=4096)
    assert KfdReader(machine.sysfs).uses(frozenset({100})) == {}


def test_a_machine_without_kfd_has_no_nodes_and_processes(tmp_path: Path) -> None:
    reader = KfdReader(str(tmp_path))
    assert (reader.nodes(), reader.uses(frozenset({1}))) == ((), {})

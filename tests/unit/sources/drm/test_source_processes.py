"""DrmSource: processes, and what is summed over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from drm_machine import amd_client, xe_client
from gpuledger.model import quantities as q
from gpuledger.model.process import NO_USAGE, ProcessType, Usage
from unit.sources.drm.support import (
    AMD,
    MI210,
    MIB,
    SECOND,
    XE,
    DrmNode,
    hide_process,
    only,
    process_of,
)


@pytest.fixture
def node(tmp_path: Path) -> DrmNode:
    return DrmNode(tmp_path)


def test_a_process_has_engine_time_memory_type_and_identity(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:740f", render=128, **MI210)
    for gfx in (0, SECOND // 2):
        client = amd_client(AMD, 1, gfx=gfx + 1, dec=gfx // 2, vram=MIB)
        node.machine.add_process(9, {3: ("renderD128", client)})
        reading = only(node)
    process = process_of(reading, 9)
    assert process.usage == Usage(sm=0.5, memory=None, encoder=0.0, decoder=0.25, jpeg=0.0)
    assert (process.memory, process.type_text, process.host.start.ticks) == (MIB, "G", 5009)
    assert reading.samples is not None
    (sample,) = reading.samples
    assert (sample.pid, sample.sm, sample.decoder, sample.at) == (9, 0.5, 0.25, 502_000_000)
    assert reading.rules.basis == "engine_time"


def test_a_queueing_process_shows_at_most_all_of_the_time_but_weighs_more(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:740f", render=128, **MI210)
    for compute in (0, 3 * SECOND):
        node.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, compute=compute + 1))})
        reading = only(node)
    assert process_of(reading, 9).usage.sm == 1.0
    assert reading.samples is not None
    assert reading.samples[0].sm == 3.0


def test_the_usage_of_a_client_seen_once_is_unknown_not_zero(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:740f", render=128, **MI210)
    node.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=SECOND))})
    assert process_of(only(node), 9).usage == NO_USAGE


def test_rocm_processes_share_what_the_gpu_was_busy_beyond_its_clients(node: DrmNode) -> None:
    node.machine.add_node(1, 100, location_id=0x300, gfx_target_version=90010, drm_render_minor=128)
    node.machine.add_card(0, AMD, "1002:740f", render=128, gpu_busy_percent=90, unique_id="a")
    for gfx in (0, SECOND // 10):
        node.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=gfx + 1))})
        node.machine.add_process(20, {5: ("renderD128", amd_client(AMD, 2, vram=MIB))})
        node.machine.add_process(21)
        node.machine.use_kfd(20, 100, vram=2 * MIB, occupancy=78)
        node.machine.use_kfd(21, 100, vram=MIB, occupancy=26)
        reading = only(node)
    samples = {sample.pid: sample.sm for sample in reading.samples or ()}
    assert samples == pytest.approx({9: 0.1, 20: 0.6, 21: 0.2})
    assert reading.rules.basis == "occupancy"
    assert {one.pid: one.type_text for one in reading.processes or ()} == {9: "G", 20: "C", 21: "C"}
    assert process_of(reading, 20).types == {ProcessType.COMPUTE}
    assert process_of(reading, 20).memory == 2 * MIB
    assert process_of(reading, 20).usage.sm == 0.75


def test_without_nodes_of_kfd_a_rocm_process_is_known_by_its_files(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:740f", render=128, **(MI210 | {"gpu_busy_percent": 80}))
    for pid, memory in ((20, MIB), (21, MIB), (22, 0)):
        node.machine.add_process(pid, {3: ("renderD128", amd_client(AMD, pid, vram=memory))})
        if pid != 21:
            (node.machine.proc / f"{pid}/fd/4").symlink_to("/dev/kfd")
    reading = only(node)
    assert {one.pid: one.type_text for one in reading.processes or ()} == {20: "C", 21: "G", 22: "G"}
    assert {sample.pid: sample.sm for sample in reading.samples or ()} == {20: 0.8, 21: 0.0, 22: 0.0}
    assert reading.rules.basis == "equal"


def test_rocm_on_rdna_is_split_equally_and_says_so(node: DrmNode) -> None:
    node.machine.add_node(1, 100, location_id=0x300, gfx_target_version=110000)
    node.machine.add_card(0, AMD, "1002:744c", gpu_busy_percent=80, unique_id="a")
    for pid in (20, 21):
        node.machine.add_process(pid)
        node.machine.use_kfd(pid, 100, vram=MIB)
    reading = only(node)
    assert {sample.pid: sample.sm for sample in reading.samples or ()} == {20: 0.4, 21: 0.4}
    assert reading.rules.basis == "equal"
    assert process_of(reading, 20).usage == NO_USAGE


def test_pids_of_kfd_are_not_used_where_host_pids_are_hidden(tmp_path: Path) -> None:
    node = DrmNode(tmp_path, sees_host_pids=lambda: False)
    node.machine.add_node(1, 100, location_id=0x300)
    node.machine.add_card(0, AMD, "1002:740f", **MI210)
    node.machine.use_kfd(20, 100, vram=MIB)
    assert only(node).processes == ()


def test_utilization_and_memory_of_intel_are_sums_over_clients(node: DrmNode) -> None:
    node.machine.add_card(0, XE, "8086:e20b", "xe", render=129)
    for step in (0, 1):
        for pid in (9, 10):
            client = xe_client(XE, pid, total=1000 + 1000 * step, rcs=100 * step, ccs=300 * step, vram=MIB)
            node.machine.add_process(pid, {3: ("renderD129", client)})
        reading = only(node)
    assert reading.get(q.UTILIZATION) == pytest.approx(0.6)
    assert reading.get(q.MEMORY_USED) == 2 * MIB
    assert process_of(reading, 9).usage == Usage(sm=pytest.approx(0.3))


def test_a_sum_over_clients_that_were_read_once_is_unknown(node: DrmNode) -> None:
    node.machine.add_card(0, XE, "8086:e20b", "xe", render=129)
    node.machine.add_process(9, {3: ("renderD129", xe_client(XE, 9, total=1000, ccs=500))})
    assert q.UTILIZATION not in only(node).values
    assert only(node).get(q.UTILIZATION) == 0.0


def test_without_all_clients_there_is_no_sum(tmp_path: Path) -> None:
    node = DrmNode(tmp_path)
    hide_process(node, 10)
    node.machine.add_card(0, XE, "8086:e20b", "xe", render=129)
    for pid in (9, 10):
        node.machine.add_process(pid, {3: ("renderD129", xe_client(XE, pid, total=1000, vram=MIB))})
    reading = only(node)
    assert [one.pid for one in reading.processes or ()] == [9]
    assert not {q.UTILIZATION, q.MEMORY_USED} & reading.values.keys()
    assert node.source.hidden_processes == (1, 2)


def test_what_a_gpu_does_beyond_visible_processes_is_not_theirs(tmp_path: Path) -> None:
    node = DrmNode(tmp_path)
    hide_process(node, 10)
    node.machine.add_card(0, AMD, "1002:740f", render=128, **(MI210 | {"gpu_busy_percent": 70}))
    node.machine.add_process(10)
    for gfx in (0, SECOND // 2):
        node.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=gfx + 1))})
        reading = only(node)
    assert reading.unseen == pytest.approx(0.2)
    node.machine.end_process(10)
    assert only(node).unseen == 0.0


def test_the_last_work_of_a_client_that_ended_is_not_that_of_others(node: DrmNode) -> None:
    card = {**MI210, "gpu_busy_percent": 90}
    node.machine.add_card(0, AMD, "1002:740f", render=128, **card)
    unseen = []
    for tick in range(5):
        own = amd_client(AMD, 1, gfx=1 + tick * SECOND // 10)
        node.machine.add_process(9, {3: ("renderD128", own)})
        if tick < 3:
            node.machine.add_process(10, {3: ("renderD128", amd_client(AMD, 2, gfx=1 + tick * SECOND // 2))})
        elif tick == 3:
            node.machine.end_process(10)
        unseen.append(only(node).unseen)
    assert unseen == [0.0, 0.0, 0.0, pytest.approx(0.8), 0.0]


def _without_engines(driver: str) -> str:
    """The fdinfo of a client without engine time: i915 before generation 8, xe before Linux 6.11."""
    return f"drm-driver:\t{driver}\ndrm-client-id:\t7\ndrm-pdev:\t{XE}\ndrm-total-vram0:\t8 MiB\n"


@pytest.mark.parametrize(
    ("driver", "ids", "text"),
    [
        ("xe", "8086:e20b", _without_engines("xe")),
        ("i915", "8086:0166", _without_engines("i915")),
        ("radeon", "1002:6798", "pos:\t0\nflags:\t02400002\n"),
        ("nouveau", "10de:1c82", "pos:\t0\nflags:\t02400002\n"),
    ],
)
def test_without_engine_time_in_the_kernel_utilization_is_unknown_and_its_processes_are_listed(
    node: DrmNode, driver: str, ids: str, text: str
) -> None:
    node.machine.add_card(0, XE, ids, driver, render=129)
    for _ in range(3):
        # Two descriptors of one process.
        node.machine.add_process(9, {3: ("renderD129", text), 5: ("card0", text)})
        reading = only(node)
        assert q.UTILIZATION not in reading.values
        assert [one.pid for one in reading.processes or ()] == [9]
        assert process_of(reading, 9).usage == NO_USAGE
        assert (reading.samples, reading.rules.basis) == (None, "equal")


@pytest.mark.parametrize("driver", ["radeon", "nouveau"])
def test_a_driver_without_clients_in_fdinfo_does_not_show_an_idle_gpu(node: DrmNode, driver: str) -> None:
    node.machine.add_card(0, XE, "1002:6798", driver, render=129)
    assert q.UTILIZATION not in only(node).values


def test_a_process_that_holds_a_sleeping_gpu_is_listed_though_nothing_of_it_is_read(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:740f", render=128, power__runtime_status="suspended", **MI210)
    node.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=90 * SECOND, vram=MIB))})
    for _ in range(2):
        reading = only(node)
        assert [(one.pid, one.memory) for one in reading.processes or ()] == [(9, None)]
    node.machine.write("sys/class/drm/card0/device/power/runtime_status", "active\n")
    reading = only(node)
    assert [(one.pid, one.memory) for one in reading.processes or ()] == [(9, MIB)]
    # What it did before is not work of this second.
    assert reading.samples is not None
    assert [sample.sm for sample in reading.samples] == [0.0]


def test_memory_in_use_is_no_sum_if_that_of_one_process_is_unknown(node: DrmNode) -> None:
    node.machine.add_card(0, XE, "8086:e20b", "xe", render=129)
    text = xe_client(XE, 2, total=1000, rcs=1)
    lines = [line for line in text.splitlines() if "vram" not in line]
    node.machine.add_process(9, {3: ("renderD129", xe_client(XE, 1, total=1000, rcs=1, vram=MIB))})
    node.machine.add_process(10, {3: ("renderD129", "\n".join(lines) + "\n")})
    assert q.MEMORY_USED not in only(node).values


@pytest.mark.parametrize("hidden_by", ["container", "hidepid", "hidepid of which root is exempt", ""])
def test_of_some_of_the_machine_s_processes_there_is_no_sum_and_the_rest_is_not_theirs(
    tmp_path: Path, hidden_by: str
) -> None:
    node = DrmNode(tmp_path, sees_host_pids=lambda: hidden_by != "container")
    if hidden_by.startswith("hidepid"):
        node.machine.write("proc/mounts", "proc /proc proc rw,nosuid,hidepid=invisible 0 0\n")
    if hidden_by.endswith("exempt"):
        node.machine.add_process(1)
    node.machine.add_card(0, AMD, "1002:740f", render=128, **(MI210 | {"gpu_busy_percent": 80}))
    node.machine.add_card(1, XE, "8086:e20b", "xe", render=129)
    for gfx in (0, SECOND // 10):
        node.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=gfx + 1))})
        amd, intel = node.read().readings
    is_hidden = hidden_by in ("container", "hidepid")
    assert amd.unseen == (pytest.approx(0.7) if is_hidden else 0.0)
    assert (intel.get(q.UTILIZATION), intel.get(q.MEMORY_USED)) == ((None, None) if is_hidden else (0.0, 0))
    assert node.source.lists_all_processes is not is_hidden

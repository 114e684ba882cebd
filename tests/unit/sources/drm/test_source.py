"""DrmSource: identity, order, sleep, permissions, partitions, processes and counters of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from drm_machine import amd_client, metrics_table, xe_client
from gpuledger.host.files import read_whole
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.process import NO_USAGE, GpuProcess, ProcessType, Usage
from gpuledger.model.snapshot import Reading
from unit.sources.drm.support import DrmNode, by_device, hide_process

SECOND = 10**9
MIB = 1 << 20
AMD, XE = "0000:03:00.0", "0000:04:00.0"
MI210 = {"unique_id": "1901ead3a2ecd4a6", "gpu_busy_percent": 0, "mem_info_vram_total": 1000}


@pytest.fixture
def node(tmp_path: Path) -> DrmNode:
    return DrmNode(tmp_path)


def only(found: DrmNode, seconds: float = 1.0) -> Reading:
    (reading,) = found.read(seconds).readings
    return reading


def process_of(reading: Reading, pid: int) -> GpuProcess:
    assert reading.processes is not None
    return next(process for process in reading.processes if process.pid == pid)


# Discovery and identity.


def test_cards_are_numbered_by_pci_address_from_the_given_index(node: DrmNode) -> None:
    node.machine.add_card(5, "0000:03:00.0", "1002:740f")
    node.machine.add_card(1, "0000:84:00.0", "8086:e20b", "xe")
    node.machine.add_card(0, "0000:0c:00.0", "1002:740f")
    found = [(one.device.gpu.index, one.device.gpu.pci_bus_id) for one in node.read().readings]
    assert found == [(0, "0000:03:00.0"), (1, "0000:0c:00.0"), (2, "0000:84:00.0")]
    node.source.indexes_from = 8
    assert [one.device.gpu.index for one in node.read().readings] == [8, 9, 10]


def test_a_card_is_the_same_gpu_with_another_number_and_address(node: DrmNode) -> None:
    node.machine.add_card(1, AMD, "1002:740f", **MI210)
    first = only(node).device
    (node.machine.sys / "class/drm/card1").rename(node.machine.sys / "class/drm/card2")
    node.machine.write(
        "sys/class/drm/card2/device/uevent", f"DRIVER=amdgpu\nPCI_ID=1002:740F\nPCI_SLOT_NAME={XE}\n"
    )
    second = only(node).device
    assert first == second
    assert (first.gpu.pci_bus_id, second.gpu.pci_bus_id, second.gpu.minor) == (AMD, XE, 2)


@pytest.mark.parametrize(
    ("unique_id", "node_id", "uuid"),
    [
        ("1901ead3a2ecd4a6", 0, "GPU-1901ead3a2ecd4a6"),
        ("901ead3a2ecd4a6", 0, "GPU-0901ead3a2ecd4a6"),
        ("", 0x1901EAD3A2ECD4A6, "GPU-1901ead3a2ecd4a6"),
        ("0000000000000000", 0, f"PCI-{AMD}-1002:740f"),
        ("", 0, f"PCI-{AMD}-1002:740f"),
        ("not hex", 0, f"PCI-{AMD}-1002:740f"),
    ],
)
def test_the_unique_id_is_the_identity_else_the_pci_address(
    node: DrmNode, unique_id: str, node_id: int, uuid: str
) -> None:
    node.machine.add_card(1, AMD, "1002:740f", unique_id=unique_id)
    node.machine.add_node(1, 100, location_id=0x300, unique_id=node_id, gfx_target_version=90010)
    gpu = only(node).device.gpu
    assert gpu.uuid == uuid
    assert (gpu.name, gpu.architecture, gpu.sm_count) == ("AMD Instinct MI210", "CDNA 2", 104)


def test_cards_in_the_same_slot_of_two_machines_are_two_gpus(tmp_path: Path) -> None:
    gpus = []
    for machine in ("7a1f0c93b2de", "0d5e6c2f9a41"):
        node = DrmNode(tmp_path / machine, machine=machine)
        node.machine.add_card(0, XE, "8086:e20b", "xe")
        gpus.append(only(node).device)
    assert gpus[0] != gpus[1]
    assert gpus[0].uuid == f"PCI-{XE}-8086:e20b-7a1f0c93b2de"


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        (("0x10000000",), 1 << 28),
        (("0x10000000", "268435456"), 1 << 29),
        (("0x10000000", ""), None),
        ((), None),
    ],
)
def test_the_memory_of_a_card_is_that_of_all_tiles(
    node: DrmNode, sizes: tuple[str, ...], total: int | None
) -> None:
    files = {f"tile{number}__physical_vram_size_bytes": size for number, size in enumerate(sizes)}
    node.machine.add_card(0, XE, "8086:0bd5", "xe", **files)
    assert only(node).get(q.MEMORY_TOTAL) == total


def test_the_name_of_the_board_s_chip_is_preferred(node: DrmNode) -> None:
    node.machine.add_card(1, AMD, "1002:740f", product_name="AMD Instinct MI210 OEM", serial_number="PCB-7")
    gpu = only(node).device.gpu
    assert (gpu.name, gpu.serial) == ("AMD Instinct MI210 OEM", "PCB-7")


@pytest.mark.parametrize("driver", ["ast", "mgag200", "virtio-pci", "nvidia", "vc4", ""])
def test_other_drivers_are_no_gpus_of_this_source(node: DrmNode, driver: str) -> None:
    node.machine.add_card(0, AMD, "1002:740f", driver)
    with pytest.raises(SourceUnavailable, match="no GPU of the drivers amdgpu, i915 or xe"):
        node.read()


def test_a_card_that_appears_or_disappears_is_found_at_the_next_read(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:740f", **MI210)
    assert len(node.read().readings) == 1
    node.machine.add_card(1, XE, "8086:e20b", "xe")
    assert [one.device.gpu.vendor for one in node.read().readings] == ["amd", "intel"]
    (node.machine.sys / "class/drm/card0").rename(node.machine.sys.parent / "gone")
    assert [one.device.gpu.vendor for one in node.read().readings] == ["intel"]


def test_selected_devices_are_read_alone(tmp_path: Path) -> None:
    node = DrmNode(tmp_path, devices=("GPU-1901EAD3A2ECD4A6",))
    node.machine.add_card(0, AMD, "1002:740f", **MI210)
    node.machine.add_card(1, XE, "8086:e20b", "xe")
    assert [one.device.gpu.vendor for one in node.read().readings] == ["amd"]
    assert "leaves out GPU 1 of 2" in node.source.selection.omission


# What can fail.


def test_a_sleeping_gpu_is_not_woken(tmp_path: Path) -> None:
    opened: list[str] = []

    def read(path: str) -> bytes:
        opened.append(path)
        return read_whole(path)

    node = DrmNode(tmp_path, read=read)
    node.machine.add_card(0, AMD, "1002:740f", render=128, hwmon={"power1_average": 9_000_000}, **MI210)
    node.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=SECOND, vram=MIB))})
    assert only(node).get(q.POWER) == 9.0
    node.machine.write("sys/class/drm/card0/device/power/runtime_status", "suspended\n")
    opened.clear()
    reading = only(node)
    touched = [path for path in opened if "card0/device" in path or "fdinfo" in path]
    assert {Path(path).name for path in touched} <= {"runtime_status", "current_compute_partition"}
    assert (reading.up, reading.values) == (True, {q.UTILIZATION: 0.0})
    assert reading.supported["power"] is True
    # The process is still there, and used nothing.
    assert process_of(reading, 9).memory == MIB
    node.machine.write("sys/class/drm/card0/device/power/runtime_status", "active\n")
    assert only(node).get(q.POWER) == 9.0


def test_a_file_that_may_not_be_read_loses_that_value_alone(tmp_path: Path) -> None:
    def read(path: str) -> bytes:
        if path.endswith("power1_average"):
            raise PermissionError(1, "Operation not permitted")
        return read_whole(path)

    node = DrmNode(tmp_path, read=read)
    hwmon = {"power1_average": 9, "temp1_label": "edge", "temp1_input": 41000}
    node.machine.add_card(0, AMD, "1002:740f", hwmon=hwmon, **MI210)
    snapshot = node.read()
    (reading,) = snapshot.readings
    assert (q.POWER in reading.values, reading.get(q.TEMPERATURE)) == (False, 41.0)
    assert [(one.part, one.reason) for one in snapshot.failures] == [("readings", "NO_PERMISSION")]
    assert "power1_average: Operation not permitted" in snapshot.failures[0].detail


def test_an_unknown_table_is_refused_by_name_and_hwmon_is_read(node: DrmNode) -> None:
    table = b"\x08\x00\x05\x07" + bytes(4)
    node.machine.add_card(
        0, AMD, "1002:740f", hwmon={"power1_average": 7_000_000}, gpu_metrics=table, **MI210
    )
    snapshot = node.read()
    (reading,) = snapshot.readings
    assert (reading.get(q.POWER), q.ENERGY in reading.values) == (7.0, False)
    assert snapshot.failures[0].reason == "UNKNOWN_VERSION"
    assert "gpu_metrics of 8 bytes, format 5, content 7" in snapshot.failures[0].detail


def test_an_impossible_value_is_dropped_and_counted(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:740f", gpu_busy_percent=4294967295)
    snapshot = node.read()
    assert q.UTILIZATION not in snapshot.readings[0].values
    assert snapshot.invalid == 1


def test_errors_of_memory_are_summed_over_blocks(node: DrmNode) -> None:
    node.machine.add_card(
        0,
        AMD,
        "1002:740f",
        ras__umc_err_count="ue: 1\nce: 40",
        ras__gfx_err_count="ue: 2\nce: 2\nde: 9",
        ras__features="feature mask: 0x0",
    )
    reading = only(node)
    assert (reading.get(q.ECC_UNCORRECTED_VOLATILE), reading.get(q.ECC_CORRECTED_VOLATILE)) == (3, 42)


@pytest.mark.parametrize(
    ("status", "busy", "reasons"),
    [
        (1 << 36, 0, 0x1),
        (0, 90, 0),
        (1 << 36, 90, 0x20),
        (1 << 0 | 1 << 17, 90, 0x4),
        (1 << 44 | 1 << 36, 90, 0x40 | 0x8 | 0x20),
        ((1 << 64) - 1, 90, None),
        # It is not known whether the limit means anything.
        (1 << 36, None, None),
    ],
)
def test_throttling_has_the_bits_of_nvml(
    node: DrmNode, status: int, busy: int | None, reasons: int | None
) -> None:
    table = metrics_table((1, 3), indep_throttle_status=status)
    node.machine.add_card(0, AMD, "1002:7480", gpu_busy_percent=busy, gpu_metrics=table)
    assert only(node).get(q.CLOCK_EVENT_REASONS) == reasons


@pytest.mark.parametrize(
    ("files", "reasons"),
    [
        ({"reason_pl1": 0, "reason_thermal": 0, "status": 1}, 0),
        ({"reason_pl1": 1, "reason_prochot": 0}, 0x4),
        ({"reason_thermal": 1, "reason_prochot": 1}, 0x20 | 0x40 | 0x8),
        ({}, None),
    ],
)
def test_throttling_of_xe_is_by_its_reason_files(
    node: DrmNode, files: dict[str, int], reasons: int | None
) -> None:
    throttle = {f"tile0__gt0__freq0__throttle__{name}": value for name, value in files.items()}
    node.machine.add_card(0, XE, "8086:e20b", "xe", **throttle)
    assert only(node).get(q.CLOCK_EVENT_REASONS) == reasons


def test_sensors_are_found_again_after_a_driver_reload(node: DrmNode) -> None:
    hwmon = {"temp1_label": "edge", "temp1_input": 41000}
    node.machine.add_card(0, AMD, "1002:740f", hwmon=hwmon, **MI210)
    assert only(node).get(q.TEMPERATURE) == 41.0
    parent = node.machine.sys / "class/drm/card0/device/hwmon"
    (parent / "hwmon0").rename(parent / "hwmon9")
    (parent / "hwmon9/temp1_label").write_text("junction\n")
    assert only(node).get(q.TEMPERATURE) == 41.0


# Energy.


def energy_of(reading: Reading) -> float | None:
    return reading.get(q.ENERGY)


def test_an_instinct_card_has_an_energy_counter_that_is_not_booked_from_zero(node: DrmNode) -> None:
    for joules in (7, 9):
        table = metrics_table((1, 3), energy_accumulator=joules << 16)
        node.machine.add_card(0, AMD, "1002:740f", gpu_metrics=table, **MI210)
        reading = only(node)
        assert energy_of(reading) == joules * 1000
    assert (reading.rules.starts_at_zero, reading.rules.epoch) == (False, "")


@pytest.mark.parametrize("counts", [0, (1 << 64) - 1])
def test_a_counter_that_firmware_does_not_keep_is_absent(node: DrmNode, counts: int) -> None:
    table = metrics_table((1, 4), energy_accumulator=counts)
    node.machine.add_card(0, AMD, "1002:74a1", gpu_metrics=table, **MI210)
    reading = only(node)
    assert energy_of(reading) is None
    assert reading.supported["energy"] is False


def test_the_dies_of_an_mi250_share_the_counter_of_the_first(node: DrmNode) -> None:
    readings: list[Reading] = []
    for joules, first, second in ((100, 0, 0), (500, 300, 100)):
        for number, (energy, activity, power) in enumerate(((joules, first, 400), (0, second, 0))):
            node.machine.add_card(
                number,
                f"0000:0{3 + number}:00.0",
                "1002:740c",
                hwmon={"power1_average": power * 1_000_000, "power1_cap": 560_000_000 if power else 0},
                gpu_metrics=metrics_table((1, 3), energy_accumulator=energy << 16, gfx_activity_acc=activity),
                unique_id=f"a{number}",
                serial_number="PCB-1",
            )
        readings = list(node.read().readings)
    assert [energy_of(reading) for reading in readings] == [300_000, 100_000]
    # The first die's power is that of both.
    assert [reading.get(q.POWER) for reading in readings] == [400.0, None]
    # These counters begin with the program.
    assert {reading.rules.epoch for reading in readings} == {"run-1700000500"}


def test_an_intel_counter_names_its_file(node: DrmNode) -> None:
    hwmon = {"energy1_label": "card", "energy1_input": 0, "energy2_label": "pkg", "energy2_input": 5_000_000}
    node.machine.add_card(0, XE, "8086:e20b", "xe", hwmon=hwmon)
    assert energy_of(only(node)) == 5000
    node.machine.write("sys/class/drm/card0/device/hwmon/hwmon0/energy2_input", "65000000\n")
    reading = only(node)
    assert (energy_of(reading), reading.get(q.POWER), reading.rules.epoch) == (65_000, 60.0, "pkg")


def test_another_index_of_the_same_gpu_changes_nothing_else(node: DrmNode) -> None:
    node.machine.add_card(
        0, XE, "8086:e20b", "xe", hwmon={"energy1_label": "card", "energy1_input": 5_000_000}
    )
    node.read()
    node.source.indexes_from = 4
    node.machine.write("sys/class/drm/card0/device/hwmon/hwmon0/energy1_input", "9000000\n")
    reading = only(node)
    assert (reading.device.gpu.index, reading.get(q.POWER)) == (4, 4.0)


# Partitions.

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


# Processes.


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


def test_throttled_time_comes_from_the_residencies_of_the_firmware(node: DrmNode) -> None:
    for periods, limited in ((1000, 0), (2000, 250)):
        table = metrics_table((1, 7), accumulation_counter=periods, ppt_residency_acc=limited)
        node.machine.add_card(0, AMD, "1002:74a1", gpu_metrics=table, **MI210)
        reading = only(node)
    assert reading.get(q.POWER_VIOLATION) == 250_000_000
    assert q.THERMAL_VIOLATION not in reading.values


def test_the_boot_is_the_epoch_and_no_driver_load(node: DrmNode) -> None:
    node.machine.write("proc/sys/kernel/random/boot_id", "8c1f0f0e-0000-4000-8000-000000000001\n")
    node.machine.add_card(0, AMD, "1002:740f", **MI210)
    snapshot = node.read()
    assert (snapshot.boot_id, snapshot.driver_load) == ("8c1f0f0e-0000-4000-8000-000000000001", "")
    assert [run.name for run in snapshot.collected] == ["devices", "readings", "processes"]
    assert len(by_device(snapshot)) == 1


def test_the_source_can_be_closed_and_read_again(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:740f", **MI210)
    node.read()
    node.source.close()
    node.source.close()
    assert len(node.read().readings) == 1

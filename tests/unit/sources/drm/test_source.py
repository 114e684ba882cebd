"""DrmSource: identity, order, sleep, permissions and counters of a machine."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from drm_machine import amd_client, metrics_table
from gpuledger.host.files import read_whole
from gpuledger.model import quantities as q
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.snapshot import Reading
from unit.sources.drm.support import (
    AMD,
    MI210,
    MIB,
    SECOND,
    XE,
    DrmNode,
    by_device,
    only,
    process_of,
)


@pytest.fixture
def node(tmp_path: Path) -> DrmNode:
    return DrmNode(tmp_path)


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


@pytest.mark.parametrize(
    ("error", "files", "up"),
    [
        (errno.ENODEV, "", False),
        (errno.EPERM, "", True),
        (errno.EBUSY, "", True),
        (errno.ENODEV, "power1_average", True),
    ],
)
def test_a_card_that_the_kernel_calls_gone_is_down_until_it_answers(
    tmp_path: Path, error: int, files: str, up: bool
) -> None:
    fails: list[int] = []

    def read(path: str) -> bytes:
        name = path.rpartition("/")[2]
        if fails and "/device/" in path and name.endswith(files) and name not in ("uevent", "unique_id"):
            raise OSError(fails[0], "")
        return read_whole(path)

    node = DrmNode(tmp_path, read=read)
    node.machine.add_card(0, AMD, "1002:740f", render=128, hwmon={"power1_average": 9_000_000}, **MI210)
    node.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=SECOND, vram=MIB))})
    assert only(node).up
    fails.append(error)
    reading = only(node)
    assert (reading.up, reading.down_reason) == (up, "" if up else "GPU_IS_LOST")
    assert (reading.processes is None) is (not up)
    fails.clear()
    assert only(node).up


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


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        ("16.0 GT/s PCIe", 4),
        ("16 GT/s", 4),
        ("8 GT/s", 3),
        ("5 GT/s", 2),
        ("2.5 GT/s PCIe", 1),
        ("Unknown speed", None),
        ("", None),
        ("inf", None),
    ],
)
def test_the_generation_of_the_link_follows_from_its_speed(
    node: DrmNode, speed: str, generation: int | None
) -> None:
    node.machine.add_card(0, AMD, "1002:740f", current_link_speed=speed, **MI210)
    assert only(node).get(q.PCIE_GENERATION) == generation


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


def add_mi250(node: DrmNode, joules: int, first: int, second: int) -> None:
    """Both dies, with sums of their activity."""
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


def test_the_dies_of_an_mi250_share_the_counter_of_the_first(node: DrmNode) -> None:
    readings: list[Reading] = []
    for joules, first, second in ((100, 0, 0), (500, 300, 100)):
        add_mi250(node, joules, first, second)
        readings = list(node.read().readings)
    assert [energy_of(reading) for reading in readings] == [300_000, 100_000]
    # The first die's power is that of both.
    assert [reading.get(q.POWER) for reading in readings] == [400.0, None]
    # These counters begin with the program.
    assert {reading.rules.epoch for reading in readings} == {"run-1700000500"}


@pytest.mark.parametrize(("selected", "joules"), [("0", 300), ("1", 100)])
def test_a_die_that_is_selected_alone_has_its_part_of_the_energy(
    tmp_path: Path, selected: str, joules: int
) -> None:
    node = DrmNode(tmp_path, devices=(selected,))
    add_mi250(node, 100, 0, 0)
    node.read()
    add_mi250(node, 500, 300, 100)
    assert energy_of(only(node)) == joules * 1000


def test_an_intel_counter_names_its_file(node: DrmNode) -> None:
    hwmon = {"energy1_label": "card", "energy1_input": 0, "energy2_label": "pkg", "energy2_input": 5_000_000}
    node.machine.add_card(0, XE, "8086:e20b", "xe", hwmon=hwmon)
    assert energy_of(only(node)) == 5000
    node.machine.write("sys/class/drm/card0/device/hwmon/hwmon0/energy2_input", "65000000\n")
    reading = only(node)
    assert (energy_of(reading), reading.get(q.POWER), reading.rules.epoch) == (65_000, 60.0, "pkg")


def test_the_power_of_a_counter_that_leapt_is_left_out_and_counted(node: DrmNode) -> None:
    node.machine.add_card(0, XE, "8086:e20b", "xe", hwmon={"energy1_input": 5_000_000})
    node.read()
    node.machine.write("sys/class/drm/card0/device/hwmon/hwmon0/energy1_input", f"{1 << 62}\n")
    snapshot = node.read()
    assert (snapshot.readings[0].get(q.POWER), snapshot.invalid) == (None, 1)


def test_another_index_of_the_same_gpu_changes_nothing_else(node: DrmNode) -> None:
    node.machine.add_card(
        0, XE, "8086:e20b", "xe", hwmon={"energy1_label": "card", "energy1_input": 5_000_000}
    )
    node.read()
    node.source.indexes_from = 4
    node.machine.write("sys/class/drm/card0/device/hwmon/hwmon0/energy1_input", "9000000\n")
    reading = only(node)
    assert (reading.device.gpu.index, reading.get(q.POWER)) == (4, 4.0)


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


def test_cards_that_changed_names_between_two_ticks_keep_their_identity(node: DrmNode) -> None:
    other = {**MI210, "unique_id": "00000000000000b2"}
    node.machine.add_card(0, AMD, "1002:740f", hwmon={"power1_average": 100_000_000}, **MI210)
    node.machine.add_card(1, XE, "1002:740f", hwmon={"power1_average": 200_000_000}, **other)
    before = {one.device.uuid: one.get(q.POWER) for one in node.read().readings}
    assert sorted(before.values()) == [100.0, 200.0]
    drm = node.machine.sys / "class/drm"
    for old, new in (("card0", "third"), ("card1", "card0"), ("third", "card1")):
        (drm / old).rename(drm / new)
    assert {one.device.uuid: one.get(q.POWER) for one in node.read().readings} == before


def test_integrated_gpus_that_are_left_out_are_no_missing_driver(tmp_path: Path) -> None:
    node = DrmNode(tmp_path, skip_integrated=True)
    node.machine.add_card(1, "0000:0c:00.0", "1002:164e", gpu_metrics=metrics_table((2, 2)))
    node.machine.add_card(2, "0000:00:02.0", "8086:a780", "i915")
    snapshot = node.read()
    assert (snapshot.readings, snapshot.failures, snapshot.devices_failed) == ((), (), False)

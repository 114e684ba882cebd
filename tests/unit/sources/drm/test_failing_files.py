"""DrmSource: files that fail for one reading, and numbers that cannot be true."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from drm_machine import amd_client, xe_client
from gpuledger.host.files import read_whole
from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from unit.sources.drm.support import AMD, MI210, MIB, SECOND, XE, DrmNode, only, process_of

INTEL_SENSORS = {
    "energy1_label": "card",
    "energy1_input": 5_000_000,
    "energy2_label": "pkg",
    "energy2_input": 3_000_000,
    "temp2_label": "pkg",
    "temp2_input": 50_000,
    "temp3_label": "vram",
    "temp3_input": 40_000,
}


class FlakyNode(DrmNode):
    """A machine with files that fail while they are in `failing`."""

    def __init__(self, folder: Path) -> None:
        self.failing: set[str] = set()

        def read(path: str) -> bytes:
            if path.rpartition("/")[2] in self.failing:
                raise OSError(errno.EIO, "Input/output error")
            return read_whole(path)

        super().__init__(folder, read=read)


@pytest.fixture
def node(tmp_path: Path) -> FlakyNode:
    return FlakyNode(tmp_path)


@pytest.mark.parametrize("file", ["energy1_label", "energy1_input", "energy2_label", "temp2_label"])
def test_a_sensor_of_intel_that_fails_once_is_the_same_one_afterwards(node: FlakyNode, file: str) -> None:
    node.machine.add_card(0, XE, "8086:e20b", "xe", hwmon=INTEL_SENSORS)
    node.failing.add(file)
    reading = only(node)
    assert reading.get(q.ENERGY) in (None, 5000)
    assert reading.get(q.TEMPERATURE) in (None, 50.0)
    node.failing.clear()
    reading = only(node)
    assert (reading.get(q.ENERGY), reading.rules.epoch) == (5000, "card")
    assert (reading.get(q.TEMPERATURE), reading.get(q.MEMORY_TEMPERATURE)) == (50.0, 40.0)


def test_a_counter_that_fails_for_a_minute_is_replaced_by_the_other_one(node: FlakyNode) -> None:
    node.machine.add_card(0, XE, "8086:e20b", "xe", hwmon=INTEL_SENSORS)
    node.failing.add("energy1_input")
    found = [only(node, 20.0).get(q.ENERGY) for _ in range(5)]
    assert found == [None, None, None, 3000, 3000]


def test_a_sensor_of_amd_that_failed_once_is_found_again(node: FlakyNode) -> None:
    hwmon = {"temp1_label": "edge", "temp1_input": 41_000, "temp2_label": "mem", "temp2_input": 60_000}
    node.machine.add_card(0, AMD, "1002:740f", hwmon=hwmon, **MI210)
    node.failing.add("temp1_label")
    assert q.TEMPERATURE not in only(node).values
    node.failing.clear()
    assert only(node).get(q.TEMPERATURE) == 41.0


def test_a_count_of_errors_without_one_block_is_no_count(node: FlakyNode) -> None:
    """It would fall, and `increase()` would count all errors again at the next reading."""
    blocks = {"ras__umc_err_count": "ue: 5\nce: 40", "ras__gfx_err_count": "ue: 1\nce: 2"}
    node.machine.add_card(0, AMD, "1002:740f", **MI210, **blocks)
    found = []
    for failing in ((), ("umc_err_count",), ()):
        node.failing = set(failing)
        found.append(only(node, 100.0).get(q.ECC_UNCORRECTED_VOLATILE))
    assert found == [6, None, 6]


@pytest.mark.parametrize(
    ("driver", "files", "quantity"),
    [
        ("xe", {"hwmon": {"energy1_input": -5_000_000}}, q.ENERGY),
        ("amdgpu", {"hwmon": {"power1_average": -3_000_000}}, q.POWER),
        ("amdgpu", {"mem_info_vram_used": -1}, q.MEMORY_USED),
        ("amdgpu", {"gpu_busy_percent": 255}, q.UTILIZATION),
    ],
)
def test_a_negative_or_absurd_value_is_left_out_with_what_follows_from_it_and_counted(
    node: FlakyNode, driver: str, files: dict[str, Any], quantity: Quantity
) -> None:
    node.machine.add_card(0, AMD, "1002:740f", driver, **{"mem_info_vram_total": 1000, **files})
    snapshot = node.read()
    assert not {quantity, q.MEMORY_FREE} & snapshot.readings[0].values.keys()
    assert snapshot.invalid == 1


def test_gpus_with_the_same_unique_id_are_two_gpus(node: FlakyNode) -> None:
    node.machine.add_card(0, AMD, "1002:74b5", **MI210)
    node.machine.add_card(1, XE, "1002:74b5", **MI210)
    node.machine.add_card(2, "0000:05:00.0", "1002:740f", **(MI210 | {"unique_id": "b"}))
    assert [one.device.uuid for one in node.read().readings] == [
        f"PCI-{AMD}-1002:74b5",
        f"PCI-{XE}-1002:74b5",
        "GPU-000000000000000b",
    ]


@pytest.mark.parametrize(
    ("amounts", "shares"),
    [
        # Seconds of engine time at each reading, one second apart.
        ((5.0, 5.5, 9e9, 6.5, 7.0), [None, 0.5, None, 0.5, 0.5]),
        ((5.0, 9e9, 9e9 + 0.5, 9e9 + 1.0), [None, None, 0.5, 0.5]),
        ((9e9, 5.0, 5.5, 6.0), [None, None, 0.5, 0.5]),
        ((5.0, 9e9, 7e9, 6.5, 7.0), [None, None, None, 0.5, 0.5]),
        ((5.0, 8.0, 8.5), [None, 3.0, 0.5]),
    ],
)
def test_engine_time_that_leaps_is_unknown_until_it_goes_on(
    node: FlakyNode, amounts: tuple[float, ...], shares: list[float | None]
) -> None:
    """Else all of the energy is that process's, and later none."""
    node.machine.add_card(0, AMD, "1002:740f", render=128, **MI210)
    found, invalid = [], 0
    for amount in amounts:
        text = amd_client(AMD, 1, gfx=round(amount * SECOND))
        node.machine.add_process(9, {3: ("renderD128", text)})
        (reading,) = (snapshot := node.read()).readings
        assert reading.samples is not None
        invalid += snapshot.invalid
        found.append(None if process_of(reading, 9).usage.sm is None else reading.samples[0].sm)
    assert found == [None if share is None else pytest.approx(share) for share in shares]
    assert invalid == shares.count(None) - 1


def test_memory_below_zero_is_left_out_and_counted(node: FlakyNode) -> None:
    node.machine.add_card(0, XE, "8086:e20b", "xe", render=129)
    text = xe_client(XE, 1, total=1000, rcs=1).replace("vram0:\t0", f"vram0:\t{2**54 - 8}")
    node.machine.add_process(9, {3: ("renderD129", text)})
    node.machine.add_process(10, {3: ("renderD129", xe_client(XE, 2, total=1000, rcs=1, vram=MIB))})
    snapshot = node.read()
    (reading,) = snapshot.readings
    assert [one.memory for one in reading.processes or ()] == [None, MIB]
    assert (q.MEMORY_USED in reading.values, snapshot.invalid) == (False, 1)

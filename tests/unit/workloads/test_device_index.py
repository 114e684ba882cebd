"""Finding Devices by UUID, minor number, MIG id and index."""

from __future__ import annotations

import pytest

from builders import gpu, instance
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.workloads.device_index import DeviceIndex, DeviceRef, parse_uuids, same_objects

FULL = "GPU-21a5757c-414f-8dd6-7fff-4a409de596f3"
MIG = "MIG-4f421ec4-5175-50ef-8452-d6abb13cb1d2"

# Minor numbers and indexes are swapped, as on some boards.
PLAIN = Gpu(FULL, 0, minor=1)
CUT = Gpu("GPU-ede6b90f-50d8-42f2-57a1-8a531adc3192", 1, minor=0)
ONE = Instance(MIG, CUT, 1, 0, 0)
TWO = Instance("MIG-2", CUT, 2, 0, 1)
THREE = Instance("MIG-3", CUT, 2, 1, 2)


@pytest.mark.parametrize(
    ("by", "name", "found"),
    [
        ("uuid", FULL, (PLAIN,)),
        ("uuid", FULL.upper(), (PLAIN,)),
        ("uuid", MIG, (ONE,)),
        ("uuid", f"MIG-{CUT.uuid}/2/1", (THREE,)),
        ("uuid", CUT.uuid, (ONE, TWO, THREE)),
        ("uuid", "GPU-none", ()),
        ("minor", "1", (PLAIN,)),
        ("minor", "0", (ONE, TWO, THREE)),
        ("minor", "7", ()),
        ("mig", "0/1", (ONE,)),
        ("mig", "0/2", (TWO, THREE)),
        ("mig", "0/2/1", (THREE,)),
        ("mig", "0/9", ()),
        ("mig", "1/1", ()),
        ("mig", "0", ()),
        ("minor", "x", ()),
        ("minor", "", ()),
    ],
)
def test_a_name_finds_its_device_and_a_partitioned_gpu_its_instances(
    by: str, name: str, found: tuple[Device, ...]
) -> None:
    assert DeviceIndex([PLAIN, CUT, ONE, TWO, THREE]).find(DeviceRef(by, name)) == found


@pytest.mark.parametrize(
    ("devices", "by", "position"),
    [
        ([gpu(0, minor=1), gpu(1, minor=0)], "index", 1),
        ([gpu(0, minor=1), gpu(1, minor=0)], "number", None),
        ([gpu(0, minor=0), gpu(1, minor=1)], "number", 1),
        ([gpu(0), gpu(1)], "number", None),
        ([gpu(0), gpu(1)], "minor", None),
        ([gpu(0, minor=0), gpu(1, minor=1), instance(gpu(1, minor=1), 1)], "number", None),
        ([gpu(0, minor=0), gpu(1, minor=1), instance(gpu(1, minor=1), 1)], "index", None),
        ([], "number", None),
    ],
)
def test_a_plain_number_is_used_only_if_it_is_unambiguous(
    devices: list[Device], by: str, position: int | None
) -> None:
    found = () if position is None else (devices[position],)
    assert DeviceIndex(devices).find(DeviceRef(by, "1")) == found


@pytest.mark.parametrize(
    ("minors", "names"),
    [
        # By index and then minor: GPU 1 is not in gres.conf.
        ("0 1 2 3", {"0/0/2/3": 0, "1/0/2/3": 2, "2/0/2/3": 3, "3/0/2/3": None}),
        ("2 3 0 1", {"0/0/2/3": 0, "1/0/2/3": 1, "2/0/2/3": 2}),
        # A GPU is lost, or left out here: its place is known if minors and indexes have the same order.
        ("0 1 2", {"0/0/2/3": 0, "1/0/2/3": 2, "2/0/2/3": None, "1/0/1/2": 1}),
        ("2 3 0", {"0/0/1/2": None, "1/0/1/2": None}),
    ],
)
def test_listed_gpus_are_counted_in_the_order_of_the_driver(
    minors: str, names: dict[str, int | None]
) -> None:
    gpus = [gpu(at, minor=int(minor)) for at, minor in enumerate(minors.split())]
    index = DeviceIndex(gpus)
    found = {name: index.find(DeviceRef("listed", name)) for name in names}
    assert {name: one[0].gpu.index if one else None for name, one in found.items()} == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (FULL, (FULL,)),
        (f"{FULL}, {MIG}", (FULL, MIG)),
        (f"MIG-{FULL}/7/0", (f"MIG-{FULL}/7/0",)),
        (f"{FULL},0", ()),
        ("0,1", ()),
        ("GPU-21a5757c", ()),
        ("all", ()),
        ("", ()),
    ],
)
def test_only_complete_uuids_are_parsed(text: str, names: tuple[str, ...]) -> None:
    assert parse_uuids(text) == tuple(DeviceRef("uuid", name) for name in names)


def test_equal_devices_are_not_always_the_same_object() -> None:
    assert same_objects([PLAIN, ONE], (PLAIN, ONE))
    assert not same_objects([PLAIN], [Gpu(FULL, 5)])
    assert not same_objects([PLAIN], [])

"""Names of files in a job-mapping directory, and the Devices that they name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.workloads.device_index import DeviceIndex
from gpuledger.workloads.job_map.file_names import is_leftover, parse_file_name

BEGIN = "GPU-31b00009-0000-4000-8000-00000000000"
ZERO, ONE, CUT = (Gpu(f"{BEGIN}{index}", index, minor=index) for index in range(3))
SMALL = Instance("MIG-31b00009-0000-5000-8000-000000000003", CUT, 3, 0, 0)
HALF = Instance("MIG-99b00009-0000-5000-8000-000000000005", CUT, 5, 1, 1)
DEVICES = (ZERO, ONE, CUT, SMALL, HALF)


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("0", [ZERO]),
        ("01", [ONE]),
        ("2.5", [HALF]),
        (ONE.uuid, [ONE]),
        (ONE.uuid.upper().replace("GPU", "gpu"), [ONE]),
        # A GPU in MIG mode has no processes itself.
        (CUT.uuid, [SMALL, HALF]),
        (SMALL.uuid, [SMALL]),
        ("MIG-99", [HALF]),
        (f"MIG-{CUT.uuid}/5/1", [HALF]),
        (f"MIG-{CUT.uuid}_5_1", [HALF]),
        (f"MIG-{CUT.uuid}.3.0", [SMALL]),
        (f"MIG-{CUT.uuid}/9/0", []),
        (BEGIN, []),
        ("GPU-99b00009-0000-4000-8000-000000000009", []),
        (f"{ZERO.uuid},1", [ZERO, ONE]),
        ("0,1", [ZERO, ONE]),
    ],
)
def test_a_name_is_that_of_the_devices_that_cuda_would_use(name: str, devices: list[Device]) -> None:
    refs = parse_file_name(name)
    assert refs
    assert [device for ref in refs for device in DeviceIndex(DEVICES).find(ref)] == devices


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu0",
        "GPU-",
        "GPU-xyz",
        "MIG-",
        "0,",
        "0,x",
        "all",
        "NoDevFiles",
        "-1",
        "0:1",
        "0/1",
        "00000",
        f"{BEGIN}0x",
    ],
)
def test_other_names_name_no_device(name: str) -> None:
    assert parse_file_name(name) == ()


@pytest.mark.parametrize("name", ["0", "1.3", ZERO.uuid, "gpu0", "x"])
def test_names_of_devices_are_no_leftovers(name: str) -> None:
    assert not is_leftover(name)


@given(st.integers(4, len(BEGIN) + 1), st.sampled_from([ZERO, ONE, SMALL, HALF]))
def test_a_shortened_uuid_names_the_only_device_that_begins_with_it(length: int, device: Device) -> None:
    name = device.uuid[:length]
    matching = [one for one in DEVICES if one.uuid.startswith(name)]
    found = [one for ref in parse_file_name(name) for one in DeviceIndex(DEVICES).find(ref)]
    if len(matching) == 1:
        assert found == (matching if length > 4 else [])
    else:
        assert found == []

"""Device names of device plugins, CDI and DRA drivers, and the Devices that they match."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from builders import gpu, instance
from gpuledger.model.devices import Gpu, Instance
from gpuledger.workloads.pod_resources.device_names import (
    ClaimedDevice,
    DeviceNames,
    NoMatch,
    find_claimed_device,
)
from gpuledger.workloads.pods.pod import NO_SLICES, ResourceSlices

# Minor numbers and indexes differ on purpose.
FIRST = gpu(0, minor=1, pci_bus_id="00000000:3B:00.0")
SECOND = gpu(1, minor=0, pci_bus_id="00000001:AF:00.0")
SMALL = instance(SECOND, 7, 0, 0, profile="1g.10gb")
LARGE = instance(SECOND, 2, 0, 1, profile="3g.40gb")
TWIN = instance(SECOND, 5, 0, 2, profile="2g.20gb")
OTHER_TWIN = instance(SECOND, 5, 1, 3, profile="2g.20gb")
NAMES = DeviceNames((FIRST, SECOND, SMALL, LARGE, TWIN, OTHER_TWIN))


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("GPU-0", FIRST),
        ("gpu-0", FIRST),
        ("GPU-0::3", FIRST),
        ("MIG-1-7-0", SMALL),
        ("MIG-1-7-0::0", SMALL),
        ("MIG-GPU-1/2/0", LARGE),
        ("MIG-GPU-1/2/0::1", LARGE),
        ("nvidia0", SECOND),
        ("nvidia1", FIRST),
        ("/dev/nvidia1", FIRST),
        ("nvidia1::2", FIRST),
        ("nvidia0/gi7", SMALL),
        ("nvidia0/gi7::2", SMALL),
        ("nvidia1/vgpu3", FIRST),
        ("nvidia0/gi2/vgpu1", LARGE),
        ("0", FIRST),
        ("1::0", SECOND),
        ("00000000:3B:00.0", FIRST),
        ("0000:3b:00.0", FIRST),
        ("3b:00.0", FIRST),
        ("0001:af:00.0", SECOND),
        ("nvidia.com/gpu=0", FIRST),
        ("nvidia.com/gpu=GPU-1", SECOND),
        ("nvidia.com/gpu=MIG-1-7-0", SMALL),
        ("nvidia.com/mig=1:1", LARGE),
        ("nvidia.com/mig=MIG-1-2-0", LARGE),
        ("k8s.gpu.nvidia.com/claim=0a1b-22cc-gpu-0", SECOND),
        ("k8s.gpu.nvidia.com/claim=0a1b-22cc-gpu-0-mig-1g.10gb-19-0", SMALL),
    ],
)
def test_every_known_form_finds_its_device(name: str, device: object) -> None:
    assert NAMES.find(name) is device


UUID = "31b00003-0000-4000-8000-000000000001"
FULL = Gpu(f"GPU-{UUID}", 0)
PART = Instance(f"MIG-{UUID}", FULL, 7, 0, 0)


TAILS = ("-17", "-0", "_-_-3", "-core-99", "-vgpu-1", "::replica-2", ":1", "[0-1]", ".x", "vgpu", "-\n")


@pytest.mark.parametrize(
    ("name", "device"),
    [
        (f"GPU-{UUID}", FULL),
        (f"MIG-{UUID}", PART),
        (f"MIG-GPU-{UUID}/7/0", PART),
        (f"nvidia.com/gpu=GPU-{UUID}", FULL),
    ],
)
@pytest.mark.parametrize("change", [str, str.upper, str.lower])
def test_what_follows_a_full_uuid_does_not_count(
    name: str, device: object, change: Callable[[str], str]
) -> None:
    names = DeviceNames([FULL, PART])
    assert [tail for tail in TAILS if names.find(change(name + tail)) is not device] == []


@pytest.mark.parametrize("tail", ["", "-17", "-core-1"])
def test_a_share_of_a_gpu_that_is_not_here_reports_the_uuid(tail: str) -> None:
    other = f"GPU-{UUID[:-1]}9"
    found = DeviceNames([FULL, PART]).find(other + tail)
    assert found == NoMatch("uuid", f"no device here has the UUID {other.lower()}")


def test_a_longer_uuid_is_another_device() -> None:
    assert isinstance(DeviceNames([FULL]).find(f"{FULL.uuid}a"), NoMatch)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("GPU-9", "uuid"),
        ("MIG-9", "uuid"),
        ("MIG-GPU-1/9/0", "mig-gpu"),
        ("nvidia9", "nvidiaN"),
        ("nvidia1/gi7", "nvidiaN/giM"),
        # Ambiguous: two compute instances share the GPU instance.
        ("nvidia0/gi5", "nvidiaN/giM"),
        ("9", "index"),
        ("0001:3b:00.0", "pci"),
        ("nvidia.com/gpu=all", "cdi"),
        ("nvidia.com/mig=0:0", "mig=N:M"),
        ("nvidia.com/mig=a:0", "cdi"),
        ("k8s.gpu.nvidia.com/claim=0a1b", "cdi"),
        ("", "unknown"),
        ("²", "unknown"),
        ("something", "unknown"),
    ],
)
def test_a_name_without_a_device_reports_its_form(name: str, form: str) -> None:
    found = NAMES.find(name)
    assert isinstance(found, NoMatch)
    assert found.form == form
    assert found.why


def claimed(device: str) -> ClaimedDevice:
    return ClaimedDevice("gpu.nvidia.com", "node", device)


def test_a_uuid_from_resource_slices_takes_precedence_over_the_name() -> None:
    uuids = {("gpu.nvidia.com", "node", "gpu-0"): "GPU-0"}
    assert find_claimed_device(NAMES, claimed("gpu-0"), ResourceSlices(uuids)) == (FIRST, "dra")


def test_without_a_uuid_the_minor_number_in_the_name_is_used() -> None:
    assert find_claimed_device(NAMES, claimed("gpu-0"), NO_SLICES) == (SECOND, "dra_name")


def test_an_unknown_uuid_does_not_fall_back_to_the_name() -> None:
    found, _ = find_claimed_device(
        NAMES, claimed("gpu-0"), ResourceSlices({("gpu.nvidia.com", "node", "gpu-0"): "GPU-9"})
    )
    assert isinstance(found, NoMatch)


def test_a_dynamic_instance_is_found_by_its_parent_and_profile() -> None:
    parents = {("gpu.nvidia.com", "node", "gpu-5-mig-3g.40gb-9-0"): "GPU-1"}
    assert find_claimed_device(NAMES, claimed("gpu-5-mig-3g.40gb-9-0"), ResourceSlices(parents=parents)) == (
        LARGE,
        "dra",
    )


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.10gb", "1g10gb"),
        ("1g.10gb+me", "1g10gb-me"),
        ("1g.10gb+me.all", "1g10gb-meall"),
        ("1g.24gb-gfx", "1g24gb-gfx"),
        ("1c.3g.40gb", "1c3g40gb"),
        ("7g.141gb", "7g141gb"),
    ],
)
def test_the_names_of_dynamic_instances_have_no_dots(profile: str, name: str) -> None:
    parent = gpu(0, minor=3)
    others = [
        instance(parent, gi, 0, gi, profile=one)
        for gi, one in ((8, "1g.20gb"), (9, "2g.10gb"), (10, "1g.1gb"))
    ]
    mine = instance(parent, 7, 0, 0, profile=profile)
    names = DeviceNames((parent, *others, mine))
    assert names.by_dra_name(f"gpu-3-mig-{name}-19-0") is mine
    assert names.find(f"k8s.gpu.nvidia.com/claim=0a1b-22cc-gpu-3-mig-{name}-19-0") is mine
    assert isinstance(DeviceNames((parent, *others)).by_dra_name(f"gpu-3-mig-{name}-19-0"), NoMatch)


def test_an_ambiguous_profile_matches_no_instance() -> None:
    found, _ = find_claimed_device(NAMES, claimed("gpu-0-mig-2g.20gb-14-0"), NO_SLICES)
    assert isinstance(found, NoMatch)
    assert "several" in found.why

"""GPUs of AMD and Intel, beside NVIDIA's, by the names of device plugins, DRA drivers and Slurm."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuledger.model.devices import AMD, INTEL, Device, Gpu, Instance
from gpuledger.workloads.device_index import DeviceIndex, DeviceRef, parse_uuids
from gpuledger.workloads.pod_resources.allocation_matching import match_allocations
from gpuledger.workloads.pod_resources.device_names import (
    ClaimedDevice,
    DeviceNames,
    KubeletAllocation,
    NoMatch,
    PodResources,
    find_claimed_device,
)
from gpuledger.workloads.pod_resources.replicas import count_replicas
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.pod import NO_SLICES, ResourceSlices
from gpuledger.workloads.slurm.device_files import refs_from_device_files, refs_from_device_rules
from gpuledger.workloads.slurm.gres_conf import GpuNumbering, gpu_numbering, parse_gres_conf
from gpuledger.workloads.slurm.jobs import gpus_in_environments

NVIDIA_GPU = Gpu("GPU-5c1b8e8e-3f5a-4b1c-9d2e-0123456789ab", 0, minor=0, pci_bus_id="00000000:3B:00.0")
MI210 = Gpu(
    "GPU-1901ead3a2ecd4a6",
    1,
    minor=0,
    pci_bus_id="0000:63:00.0",
    vendor=AMD,
    nodes=("card0", "renderD128"),
)
MI300 = Gpu(
    "GPU-e3aa140f9a5f9e31",
    2,
    minor=1,
    pci_bus_id="0000:85:00.0",
    vendor=AMD,
    nodes=("card1", "renderD129"),
)
PARTS = tuple(
    Instance(f"{MI300.uuid}/{number}", MI300, number, 0, number, "cpx_nps4", 38, nodes)
    for number, nodes in enumerate(
        (("renderD129",), ("renderD130", "amdgpu_xcp_1"), ("renderD131", "amdgpu_xcp.2"))
    )
)
ARC = Gpu(
    "PCI-0000:03:00.0-8086:56a0",
    3,
    minor=2,
    pci_bus_id="0000:03:00.0",
    vendor=INTEL,
    nodes=("card2", "renderD132"),
)
MIXED: tuple[Device, ...] = (NVIDIA_GPU, MI210, MI300, *PARTS, ARC)


@pytest.mark.parametrize(
    ("device_id", "device"),
    [
        # AMD's plugin: the PCI address, and the platform devices of further partitions.
        ("0000:63:00.0", MI210),
        ("0000:85:00.0", PARTS[0]),
        ("amdgpu_xcp_1", PARTS[1]),
        ("amdgpu_xcp.1", PARTS[1]),
        ("amdgpu_xcp_2", PARTS[2]),
        # Intel's plugin: card and number of the share.
        ("card2-0", ARC),
        ("card2-7", ARC),
        ("card0", MI210),
        ("renderD132", ARC),
        ("GPU-1901ead3a2ecd4a6", MI210),
        # NVIDIA's minor numbers are another sequence.
        ("nvidia0", NVIDIA_GPU),
        ("0", NVIDIA_GPU),
    ],
)
def test_a_device_id_of_a_plugin_names_a_device(device_id: str, device: Device) -> None:
    assert DeviceNames(MIXED).find(device_id) == device


@pytest.mark.parametrize(
    "device_id", ["amdgpu_xcp_9", "card7-0", "0000:99:00.0", "nvidia1", "renderD999", "cardiff"]
)
def test_a_name_of_no_device_here_is_no_match(device_id: str) -> None:
    assert isinstance(DeviceNames(MIXED).find(device_id), NoMatch)


@pytest.mark.parametrize(
    ("driver", "name", "device"),
    [
        ("gpu.amd.com", "gpu-0-128", MI210),
        ("gpu.amd.com", "gpu-1-130", PARTS[1]),
        ("gpu.intel.com", "0000-03-00-0-0x56a0", ARC),
    ],
)
def test_a_device_of_a_dra_driver_is_found_by_its_name(driver: str, name: str, device: Device) -> None:
    claimed = ClaimedDevice(driver, "node", name)
    assert find_claimed_device(DeviceNames(MIXED), claimed, NO_SLICES) == (device, "dra")
    # A UUID in the slices has another form, and is not needed.
    slices = ResourceSlices({(driver, "node", name): "8cff74b9-0000-1000-802c-c938055be37b"}, {}, {})
    assert find_claimed_device(DeviceNames(MIXED), claimed, slices) == (device, "dra")


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("gpu.amd.com", "gpu-0"),
        ("gpu.amd.com", "gpu-0-999"),
        ("gpu.intel.com", "gpu-0"),
        ("gpu.intel.com", "0000-99-00-0-0x1"),
    ],
)
def test_another_name_of_a_dra_driver_is_no_match(driver: str, name: str) -> None:
    found, _ = find_claimed_device(DeviceNames(MIXED), ClaimedDevice(driver, "node", name), NO_SLICES)
    assert isinstance(found, NoMatch)


@pytest.mark.parametrize(
    ("resource", "is_gpu"),
    [
        ("amd.com/gpu", True),
        ("amd.com/cpx_nps4", True),
        ("amd.com/spx_nps1", True),
        ("amd.com/nic", False),
        ("gpu.intel.com/i915", True),
        ("gpu.intel.com/xe", True),
        ("gpu.intel.com/monitoring", False),
        ("nvidia.com/gpu", True),
    ],
)
def test_resources_of_the_plugins_are_gpus_by_default(resource: str, is_gpu: bool) -> None:
    given = KubeletAllocation("team", "a", "main", resource, "0000:63:00.0")
    found = match_allocations(PodResources((given,)), MIXED, settings=PodResourcesSettings())
    assert [one.device for one in found.allocations] == ([MI210] if is_gpu else [])
    assert found.skipped.total() == (0 if is_gpu else 1)


def test_shares_of_an_intel_card_are_equal_parts_of_it() -> None:
    resource = "gpu.intel.com/i915"
    pods = tuple(
        KubeletAllocation("team", name, "main", resource, f"card2-{share}") for share, name in enumerate("ab")
    )
    replicas = count_replicas((resource, f"card2-{share}") for share in range(4))
    found = match_allocations(PodResources(pods, replicas=replicas), MIXED, settings=PodResourcesSettings())
    assert [(one.device, one.fraction) for one in found.allocations] == [(ARC, Fraction(1, 4))] * 2


def test_a_whole_intel_card_is_one_share() -> None:
    resource = "gpu.intel.com/xe"
    given = KubeletAllocation("team", "a", "main", resource, "card2-0")
    replicas = count_replicas([(resource, "card2-0")])
    found = match_allocations(
        PodResources((given,), replicas=replicas), MIXED, settings=PodResourcesSettings()
    )
    assert [(one.device, one.fraction) for one in found.allocations] == [(ARC, Fraction(1))]


@pytest.mark.parametrize(
    ("text", "numbering"),
    [
        ("AutoDetect=rsmi", GpuNumbering(by_driver=True, vendor=AMD)),
        ("AutoDetect=oneapi", GpuNumbering(by_driver=True, vendor=INTEL)),
        ("AutoDetect=RSMI\nName=gpu Type=mi210", GpuNumbering(by_driver=True, vendor=AMD)),
        ("AutoDetect=nvml", GpuNumbering(by_driver=True)),
        (
            "Name=gpu File=/dev/dri/renderD[128-129]",
            GpuNumbering(files=(("/dev/dri/renderD128",), ("/dev/dri/renderD129",))),
        ),
    ],
)
def test_autodetect_names_the_maker_of_the_gpus_that_slurm_counts(text: str, numbering: GpuNumbering) -> None:
    assert gpu_numbering(parse_gres_conf(text), "n1") == numbering


@pytest.mark.parametrize(
    ("by", "name", "devices"),
    [
        ("index:amd", "0", (MI210,)),
        ("index:amd", "1", ()),
        ("index:intel", "0", (ARC,)),
        ("index:intel", "1", ()),
        ("node", "renderD128", (MI210,)),
        ("node", "card2", (ARC,)),
        ("node", "renderD130", (PARTS[1],)),
        ("node", "card1", (PARTS[0],)),
        ("node", "renderD999", ()),
        ("minor", "0", (NVIDIA_GPU,)),
        ("uuid", "GPU-1901ead3a2ecd4a6", (MI210,)),
        ("uuid", "GPU-e3aa140f9a5f9e31", PARTS),
    ],
)
def test_a_device_of_a_job_is_found(by: str, name: str, devices: tuple[Device, ...]) -> None:
    uncut = tuple(device for device in MIXED if device.gpu != MI300)
    given = uncut if by.startswith("index") else MIXED
    assert DeviceIndex(given).find(DeviceRef(by, name)) == devices


def test_numbers_are_not_guessed_where_partitions_are_in_the_same_row() -> None:
    assert DeviceIndex(MIXED).find(DeviceRef("index:amd", "0")) == ()
    assert DeviceIndex(MIXED).find(DeviceRef("index:intel", "0")) == (ARC,)


def test_rules_of_the_cgroup_and_device_files_name_render_nodes() -> None:
    rules = "c 1:3 rwm\nc 226:0 rwm\nc 226:128 rwm\nc 226:128 rw\nc 195:255 rwm\nc 226:* m\n"
    assert refs_from_device_rules(rules) == (DeviceRef("node", "renderD128"),)
    assert refs_from_device_files(["/dev/dri/renderD129"]) == (DeviceRef("node", "renderD129"),)
    assert refs_from_device_files(["/dev/dri/card1", "/dev/dri/renderD129"]) == (DeviceRef("node", "card1"),)


def test_rocm_s_variable_can_name_gpus_by_their_unique_id() -> None:
    assert parse_uuids("GPU-1901ead3a2ecd4a6,GPU-e3aa140f9a5f9e31") == (
        DeviceRef("uuid", "GPU-1901ead3a2ecd4a6"),
        DeviceRef("uuid", "GPU-e3aa140f9a5f9e31"),
    )
    environment = {"SLURM_JOB_GPUS": "1", "ROCR_VISIBLE_DEVICES": "GPU-1901ead3a2ecd4a6"}
    assert gpus_in_environments([environment]) == (DeviceRef("uuid", "GPU-1901ead3a2ecd4a6"),)
    assert gpus_in_environments([environment | {"ROCR_VISIBLE_DEVICES": "0"}]) == (DeviceRef("number", "1"),)

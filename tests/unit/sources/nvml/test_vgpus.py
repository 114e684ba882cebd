"""Virtual GPUs of a host: when they are read, and what is unknown of one."""

from __future__ import annotations

import pytest

from gpuledger.model import quantities as q
from gpuledger.model.quantities import COLUMNS
from gpuledger.model.snapshot import VgpuInstance
from nvml.library import NvmlGpu
from nvml.machine import Machine, reading_of

WANTED = frozenset({q.POWER, COLUMNS})
NOT_SUPPORTED, NOT_FOUND, UNKNOWN = 3, 6, 999


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def vgpu_uuid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012}"


def test_the_virtual_gpus_of_a_host_are_read_every_ten_seconds(machine):
    machine.state.gpus = [NvmlGpu(virtualization=3, vgpus=2), NvmlGpu(virtualization=3), NvmlGpu()]
    snapshot = machine.tick(WANTED)
    first, second, third = (each.vgpus for each in snapshot.readings)
    assert first == (
        VgpuInstance(vgpu_uuid(0), "vm-0", "NVIDIA A100-10C", 1 << 30),
        VgpuInstance(vgpu_uuid(1), "vm-1", "NVIDIA A100-10C", 2 << 30),
    )
    # None is no host of virtual GPUs.
    assert (second, third) == ((), None)
    machine.gpus[0].numbers["vgpus"] = 40
    assert len(reading_of(machine.tick(WANTED)).vgpus) == 2
    assert len(reading_of(machine.tick(WANTED, seconds=10)).vgpus) == 40
    assert reading_of(machine.tick()).vgpus is None


def test_what_is_unknown_of_a_virtual_gpu_is_absent_alone(machine):
    machine.state.gpus = [NvmlGpu(virtualization=3, vgpus=3)]
    machine.state.errors = {
        # It ended between two calls.
        "nvmlVgpuInstanceGetUUID.1": NOT_FOUND,
        "nvmlVgpuInstanceGetVmID.2": UNKNOWN,
        "nvmlVgpuInstanceGetFbUsage.2": NOT_SUPPORTED,
        "nvmlVgpuInstanceGetType.2": UNKNOWN,
    }
    whole, part = reading_of(machine.tick(WANTED)).vgpus
    assert (whole.uuid, part) == (vgpu_uuid(0), VgpuInstance(vgpu_uuid(2)))
    machine.state.errors = {"nvmlDeviceGetActiveVgpus": UNKNOWN}
    snapshot = machine.tick(WANTED, seconds=10)
    assert [each.reason for each in snapshot.failures] == ["UNKNOWN"]
    assert reading_of(snapshot).vgpus is None

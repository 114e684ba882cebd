"""Label values that several dialects share, and GPUs by maker."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.devices import NVIDIA, Device, Gpu
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Reading, Snapshot


def gpu_label(device: Device, settings: DialectSettings) -> str:
    """Returns the `gpu` label: the GPU index, or for MIG `GPU_GI_CI` or `GPU_DEVICE_0` (see mig_label)."""
    if isinstance(device, Gpu):
        return str(device.index)
    if settings.mig_label == "device":
        return f"{device.gpu.index}_{device.index}_0"
    return f"{device.gpu.index}_{device.gi}_{device.ci}"


def readings_of_maker(snapshot: Snapshot, vendor: str) -> tuple[Reading, ...]:
    """Returns the Readings of the GPUs of one maker."""
    return tuple([reading for reading in snapshot.readings if reading.device.gpu.vendor == vendor])


def nvidia_only(state: NodeState) -> NodeState:
    """Returns the state without GPUs of other makers, for dialects with the names of NVIDIA's tools."""
    snapshot = state.snapshot
    if snapshot is None or all(reading.device.gpu.vendor == NVIDIA for reading in snapshot.readings):
        return state
    return replace(state, snapshot=replace(snapshot, readings=readings_of_maker(snapshot, NVIDIA)))

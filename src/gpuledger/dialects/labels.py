"""Label values that several dialects share."""

from __future__ import annotations

from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.devices import Device, Gpu


def gpu_label(device: Device, settings: DialectSettings) -> str:
    """Returns the `gpu` label: the GPU index, or for MIG `GPU_GI_CI` or `GPU_DEVICE_0` (see mig_label)."""
    if isinstance(device, Gpu):
        return str(device.index)
    if settings.mig_label == "device":
        return f"{device.gpu.index}_{device.index}_0"
    return f"{device.gpu.index}_{device.gi}_{device.ci}"

"""Static facts of a Gpu and of an Instance, read once per start of the driver or per cut."""

from __future__ import annotations

from ctypes import byref, c_int, c_void_p, create_string_buffer
from typing import Final

from gpuledger.model.devices import Gpu, Instance
from gpuledger.sources.nvml.codes import NOT_SUPPORTED, SUCCESS
from gpuledger.sources.nvml.library import Library
from gpuledger.sources.nvml.structs import ATTRIBUTES, MEMORY_V1, PCI

_ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
# CUDA cores in one multiprocessor by compute capability (CUDA programming guide): NVML tells cores, not
# multiprocessors. A capability that is not in it leaves the count unknown.
_CORES_PER_SM: Final = {
    **dict.fromkeys(("3.0", "3.5", "3.7"), 192),
    **dict.fromkeys(("5.0", "5.2", "5.3", "6.1", "6.2"), 128),
    **dict.fromkeys(("6.0", "7.0", "7.2", "7.5", "8.0"), 64),
    **dict.fromkeys(("8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"), 128),
}


def read_gpu(library: Library, handle: c_void_p, index: int) -> tuple[Gpu, int | None] | None:
    """What does not change while the driver is loaded, and the memory in bytes; None without a UUID.

    Raises GpuGone.
    """
    uuid = library.text("nvmlDeviceGetUUID", handle)
    if not uuid:
        return None
    capability = _capability(library, handle)
    memory = _memory_total(library, handle)
    gpu = Gpu(
        uuid=uuid,
        index=index,
        name=library.text("nvmlDeviceGetName", handle) or "",
        pci_bus_id=_pci_bus_id(library, handle),
        minor=library.number("nvmlDeviceGetMinorNumber", handle),
        serial=library.text("nvmlDeviceGetSerial", handle),
        vbios=library.text("nvmlDeviceGetVbiosVersion", handle),
        architecture=_ARCHITECTURES.get(library.number("nvmlDeviceGetArchitecture", handle) or 0),
        compute_capability=capability,
        sm_count=_sm_count(library, handle, capability),
        unified_memory=memory == 0,
    )
    return gpu, memory


def read_instance(
    library: Library, gpu: Gpu, handle: c_void_p, index: int, uuid: str, attributes: bytes
) -> tuple[Instance, int | None] | None:
    """The MIG device behind `handle`, and its memory in bytes; None if it does not tell its ids.

    `attributes` is what nvmlDeviceGetAttributes_v2 told, empty if it told nothing. Raises GpuGone.
    """
    gi = library.number("nvmlDeviceGetGpuInstanceId", handle)
    ci = library.number("nvmlDeviceGetComputeInstanceId", handle)
    if gi is None or ci is None:
        return None
    # "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb": the profile is the last word.
    name = library.text("nvmlDeviceGetName", handle) or ""
    instance = Instance(
        uuid=uuid,
        parent=gpu,
        gi=gi,
        ci=ci,
        index=index,
        profile=name.rpartition(" MIG ")[2] if " MIG " in name else "",
        sm_count=ATTRIBUTES.unpack(attributes)[0] if attributes else None,
    )
    return instance, _memory_total(library, handle)


def _memory_total(library: Library, handle: c_void_p) -> int | None:
    """Bytes; 0 on a chip without memory of its own, which answers NOT_SUPPORTED or 0 (nvml.h, GB10)."""
    memory = create_string_buffer(MEMORY_V1.size)
    code = library.ask("nvmlDeviceGetMemoryInfo", handle, memory)
    if code == NOT_SUPPORTED:
        return 0
    return int(MEMORY_V1.unpack(memory.raw)[0]) if code == SUCCESS else None


def _pci_bus_id(library: Library, handle: c_void_p) -> str:
    """In nvidia-smi's form, `00000000:01:00.0`; the numbers stand in the same place in every version."""
    pci = create_string_buffer(PCI.size)
    for call in ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"):
        if library.ask(call, handle, pci) == SUCCESS:
            _, domain, bus, device, _ = PCI.unpack(pci.raw)
            return f"{domain:08X}:{bus:02X}:{device:02X}.0"
    return ""


def _capability(library: Library, handle: c_void_p) -> str | None:
    major, minor = c_int(), c_int()
    code = library.ask("nvmlDeviceGetCudaComputeCapability", handle, byref(major), byref(minor))
    return f"{major.value}.{minor.value}" if code == SUCCESS else None


def _sm_count(library: Library, handle: c_void_p, capability: str | None) -> int | None:
    cores = library.number("nvmlDeviceGetNumGpuCores", handle)
    per_sm = _CORES_PER_SM.get(capability or "")
    if not cores or not per_sm or cores % per_sm:
        return None
    return cores // per_sm

"""Read static facts of Gpus and Instances; retry each call until it succeeds or is not supported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ctypes import byref, c_int, c_void_p, create_string_buffer
from typing import Final

from gpuledger.model.devices import Gpu, Instance
from gpuledger.sources.nvml.codes import UNSUPPORTED, Code
from gpuledger.sources.nvml.library import NvmlLibrary
from gpuledger.sources.nvml.structs import MEMORY_V1, PCI

UUID: Final = "nvmlDeviceGetUUID"
NAME: Final = "nvmlDeviceGetName"
PCI_INFO: Final = "nvmlDeviceGetPciInfo_v3"
_MEMORY_INFO: Final = "nvmlDeviceGetMemoryInfo"
_MINOR: Final = "nvmlDeviceGetMinorNumber"
_SERIAL: Final = "nvmlDeviceGetSerial"
_VBIOS: Final = "nvmlDeviceGetVbiosVersion"
_ARCHITECTURE: Final = "nvmlDeviceGetArchitecture"
_CAPABILITY: Final = "nvmlDeviceGetCudaComputeCapability"
_CORES: Final = "nvmlDeviceGetNumGpuCores"

FACTS_OF_GPU: Final = (
    NAME,
    PCI_INFO,
    _MEMORY_INFO,
    _MINOR,
    _SERIAL,
    _VBIOS,
    _ARCHITECTURE,
    _CAPABILITY,
    _CORES,
)
FACTS_OF_INSTANCE: Final = (NAME, _MEMORY_INFO)
_TEXTS: Final = (NAME, _SERIAL, _VBIOS)

# nvmlDeviceArchitecture_t.
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
# CUDA cores per multiprocessor by compute capability (CUDA programming guide): NVML reports only cores. For
# other capabilities the number of multiprocessors is unknown.
_CORES_PER_SM: Final = {
    **dict.fromkeys(("3.0", "3.5", "3.7"), 192),
    **dict.fromkeys(("5.0", "5.2", "5.3", "6.1", "6.2"), 128),
    **dict.fromkeys(("6.0", "7.0", "7.2", "7.5", "8.0"), 64),
    **dict.fromkeys(("8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"), 128),
}


class StaticFacts:
    """Static facts that one Device reported.

    `pending` maps each call that has not succeeded to its return code; `read` retries these. Calls that the
    Device does not support are not retried.
    """

    def __init__(self, calls: Iterable[str]) -> None:
        self._calls = tuple(calls)
        self._values: dict[str, str | int] = {}
        self.pending: dict[str, int] = {}
        self.mark_all_unread()

    def mark_all_unread(self) -> None:
        """Read everything again with the next `read`; known facts are kept until then."""
        self.pending = dict.fromkeys(self._calls, Code.NO_DATA)

    def read(self, library: NvmlLibrary, handle: c_void_p) -> bool:
        """Query pending facts; return whether any was read. Raises GpuLost."""
        any_read = False
        for call in tuple(self.pending):
            code, value = _query_fact(library, handle, call)
            if code == Code.SUCCESS:
                self._values[call] = value
                any_read = True
            if code == Code.SUCCESS or code in UNSUPPORTED:
                del self.pending[call]
            else:
                self.pending[call] = code
        return any_read

    @property
    def memory(self) -> int | None:
        """Bytes of memory; 0 for a chip without dedicated memory, None if unknown."""
        return self.number(_MEMORY_INFO)

    def text(self, call: str) -> str | None:
        """Return the text that `call` reported, None if unknown."""
        value = self._values.get(call)
        return value if isinstance(value, str) else None

    def number(self, call: str) -> int | None:
        """Return the number that `call` reported, None if unknown."""
        value = self._values.get(call)
        return value if isinstance(value, int) else None


def make_gpu(uuid: str, index: int, facts: StaticFacts) -> Gpu:
    """Build the Gpu from the facts known so far."""
    capability = facts.text(_CAPABILITY)
    return Gpu(
        uuid=uuid,
        index=index,
        name=facts.text(NAME) or "",
        pci_bus_id=facts.text(PCI_INFO) or "",
        minor=facts.number(_MINOR),
        serial=facts.text(_SERIAL),
        vbios=facts.text(_VBIOS),
        architecture=_ARCHITECTURES.get(facts.number(_ARCHITECTURE) or 0),
        compute_capability=capability,
        sm_count=_sm_count(facts.number(_CORES), capability),
        unified_memory=facts.memory == 0,
    )


def make_instance(
    uuid: str, parent: Gpu, ids: tuple[int, int], index: int, sm_count: int | None, facts: StaticFacts
) -> Instance:
    """Build the Instance from the facts known so far; `ids` are the GPU and the compute instance id."""
    # "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb": the profile is the last word.
    name = facts.text(NAME) or ""
    profile = name.rpartition(" MIG ")[2] if " MIG " in name else ""
    return Instance(uuid, parent, *ids, index=index, profile=profile, sm_count=sm_count)


def _query_fact(library: NvmlLibrary, handle: c_void_p, call: str) -> tuple[int, str | int]:
    special = _SPECIAL.get(call)
    if special:
        return special(library, handle)
    return library.query_text(call, handle) if call in _TEXTS else library.query_number(call, handle)


def _query_memory_total(library: NvmlLibrary, handle: c_void_p) -> tuple[int, int]:
    """Return bytes of memory. A chip without dedicated memory returns NOT_SUPPORTED or 0 (nvml.h, GB10)."""
    memory = create_string_buffer(MEMORY_V1.size)
    code = library.call_device(_MEMORY_INFO, handle, memory)
    return (Code.SUCCESS, 0) if code == Code.NOT_SUPPORTED else (code, int(MEMORY_V1.unpack(memory.raw)[0]))


def _query_pci_bus_id(library: NvmlLibrary, handle: c_void_p) -> tuple[int, str]:
    """Return the id in nvidia-smi's form, `00000000:01:00.0`. All structure versions share these members."""
    pci = create_string_buffer(PCI.size)
    code = library.call_device(PCI_INFO, handle, pci)
    if code == Code.FUNCTION_NOT_FOUND:
        code = library.call_device("nvmlDeviceGetPciInfo_v2", handle, pci)
    _, domain, bus, device, _ = PCI.unpack(pci.raw)
    return code, f"{domain:08X}:{bus:02X}:{device:02X}.0"


def _query_compute_capability(library: NvmlLibrary, handle: c_void_p) -> tuple[int, str]:
    major, minor = c_int(), c_int()
    code = library.call_device(_CAPABILITY, handle, byref(major), byref(minor))
    return code, f"{major.value}.{minor.value}"


_SPECIAL: Final[dict[str, Callable[[NvmlLibrary, c_void_p], tuple[int, str | int]]]] = {
    _MEMORY_INFO: _query_memory_total,
    PCI_INFO: _query_pci_bus_id,
    _CAPABILITY: _query_compute_capability,
}


def _sm_count(cores: int | None, capability: str | None) -> int | None:
    per_sm = _CORES_PER_SM.get(capability or "")
    if not cores or not per_sm or cores % per_sm:
        return None
    return cores // per_sm

"""Static facts of a Gpu and of an Instance, each asked until it is told or known not to exist."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ctypes import byref, c_int, c_void_p, create_string_buffer
from typing import Final

from gpuledger.model.devices import Gpu, Instance
from gpuledger.sources.nvml.codes import FUNCTION_NOT_FOUND, NO_DATA, NOT_SUPPORTED, SUCCESS, UNSUPPORTED
from gpuledger.sources.nvml.library import Library
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

_OF_A_GPU: Final = (
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
_OF_AN_INSTANCE: Final = (NAME, _MEMORY_INFO)
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
# CUDA cores in one multiprocessor by compute capability (CUDA programming guide): NVML tells cores, not
# multiprocessors. A capability that is not in it leaves the count unknown.
_CORES_PER_SM: Final = {
    **dict.fromkeys(("3.0", "3.5", "3.7"), 192),
    **dict.fromkeys(("5.0", "5.2", "5.3", "6.1", "6.2"), 128),
    **dict.fromkeys(("6.0", "7.0", "7.2", "7.5", "8.0"), 64),
    **dict.fromkeys(("8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"), 128),
}


class Facts:
    """What one Device told of itself.

    `unread` holds, by call, the code of what did not answer and is asked again with the next `read`. What the
    driver says that the Device does not have is not asked again.
    """

    def __init__(self, calls: Iterable[str]) -> None:
        self._calls = tuple(calls)
        self._told: dict[str, str | int] = {}
        self.unread: dict[str, int] = {}
        self.again()

    @classmethod
    def of_gpu(cls) -> Facts:
        """Nothing told yet, of a Gpu."""
        return cls(_OF_A_GPU)

    @classmethod
    def of_instance(cls) -> Facts:
        """Nothing told yet, of an Instance."""
        return cls(_OF_AN_INSTANCE)

    def again(self) -> None:
        """Ask everything anew; what was told stands until then."""
        self.unread = dict.fromkeys(self._calls, NO_DATA)

    def read(self, library: Library, handle: c_void_p) -> bool:
        """Ask what is unread; whether anything was told. Raises GpuGone."""
        told = False
        for call in tuple(self.unread):
            code, value = _ask(library, handle, call)
            if code == SUCCESS:
                self._told[call] = value
                told = True
            if code == SUCCESS or code in UNSUPPORTED:
                del self.unread[call]
            else:
                self.unread[call] = code
        return told

    @property
    def memory(self) -> int | None:
        """Bytes; 0 on a chip without memory of its own."""
        return self.number(_MEMORY_INFO)

    def text(self, call: str) -> str | None:
        """What the call told, None if nothing."""
        value = self._told.get(call)
        return value if isinstance(value, str) else None

    def number(self, call: str) -> int | None:
        """What the call told, None if nothing."""
        value = self._told.get(call)
        return value if isinstance(value, int) else None


def make_gpu(uuid: str, index: int, facts: Facts) -> Gpu:
    """The Gpu as far as its facts were told."""
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
    uuid: str, parent: Gpu, ids: tuple[int, int], index: int, sm_count: int | None, facts: Facts
) -> Instance:
    """The Instance as far as its facts were told; `ids` are those of the GPU and the compute instance."""
    # "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb": the profile is the last word.
    name = facts.text(NAME) or ""
    profile = name.rpartition(" MIG ")[2] if " MIG " in name else ""
    return Instance(uuid, parent, *ids, index=index, profile=profile, sm_count=sm_count)


def _ask(library: Library, handle: c_void_p, call: str) -> tuple[int, str | int]:
    special = _SPECIAL.get(call)
    if special:
        return special(library, handle)
    return library.text(call, handle) if call in _TEXTS else library.number(call, handle)


def _memory(library: Library, handle: c_void_p) -> tuple[int, int]:
    """A chip without memory of its own answers NOT_SUPPORTED or 0 (nvml.h, GB10)."""
    memory = create_string_buffer(MEMORY_V1.size)
    code = library.ask(_MEMORY_INFO, handle, memory)
    return (SUCCESS, 0) if code == NOT_SUPPORTED else (code, int(MEMORY_V1.unpack(memory.raw)[0]))


def _pci_bus_id(library: Library, handle: c_void_p) -> tuple[int, str]:
    """In nvidia-smi's form, `00000000:01:00.0`; the numbers stand in the same place in every version."""
    pci = create_string_buffer(PCI.size)
    code = library.ask(PCI_INFO, handle, pci)
    if code == FUNCTION_NOT_FOUND:
        code = library.ask("nvmlDeviceGetPciInfo_v2", handle, pci)
    _, domain, bus, device, _ = PCI.unpack(pci.raw)
    return code, f"{domain:08X}:{bus:02X}:{device:02X}.0"


def _capability(library: Library, handle: c_void_p) -> tuple[int, str]:
    major, minor = c_int(), c_int()
    code = library.ask(_CAPABILITY, handle, byref(major), byref(minor))
    return code, f"{major.value}.{minor.value}"


_SPECIAL: Final[dict[str, Callable[[Library, c_void_p], tuple[int, str | int]]]] = {
    _MEMORY_INFO: _memory,
    PCI_INFO: _pci_bus_id,
    _CAPABILITY: _capability,
}


def _sm_count(cores: int | None, capability: str | None) -> int | None:
    per_sm = _CORES_PER_SM.get(capability or "")
    if not cores or not per_sm or cores % per_sm:
        return None
    return cores // per_sm

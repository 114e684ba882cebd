"""Read the virtual GPUs that virtual machines of this host have."""

from __future__ import annotations

from ctypes import byref, c_uint, c_ulonglong, c_void_p, create_string_buffer
from struct import Struct
from typing import Final

from gpuledger.model.snapshot import VgpuInstance
from gpuledger.model.text import clean_name, decode_utf8
from gpuledger.sources.nvml.codes import Code
from gpuledger.sources.nvml.library import ListBuffer, NvmlLibrary, buffer_view
from gpuledger.sources.nvml.structs import BLANK_64

ACTIVE_CALL: Final = "nvmlDeviceGetActiveVgpus"
_ID: Final = Struct("@I")
_MAX_VGPUS: Final = 1024
_TEXT_SIZE: Final = 96


class VgpuReader:
    """Reads the virtual GPUs of a Gpu into reused buffers."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._ids = ListBuffer(32, _ID.size, _MAX_VGPUS)
        self._text = create_string_buffer(_TEXT_SIZE)
        self._number = c_uint()
        self._bytes = c_ulonglong()

    def read(self, handle: c_void_p) -> tuple[int, tuple[VgpuInstance, ...]]:
        """Return the code and the virtual GPUs; one that ended meanwhile is omitted. Raises GpuLost."""
        code, count = self._ids.read(self._library, ACTIVE_CALL, handle)
        if code:
            return code, ()
        ids = [each for (each,) in _ID.iter_unpack(buffer_view(self._ids.data, count * _ID.size))]
        found = (self._read_one(c_uint(each)) for each in ids)
        return Code.SUCCESS, tuple(each for each in found if each is not None)

    def _read_one(self, vgpu: c_uint) -> VgpuInstance | None:
        code, uuid = self._library.query_text("nvmlVgpuInstanceGetUUID", vgpu)
        if code or not uuid:
            return None
        code = self._library.call_device(
            "nvmlVgpuInstanceGetVmID", vgpu, self._text, _TEXT_SIZE, byref(self._number)
        )
        vm = "" if code else self._read_text()
        code = self._library.call_device("nvmlVgpuInstanceGetFbUsage", vgpu, byref(self._bytes))
        memory = None if code or self._bytes.value >= BLANK_64 else self._bytes.value
        return VgpuInstance(uuid, vm, self._read_profile(vgpu), memory)

    def _read_profile(self, vgpu: c_uint) -> str:
        code, kind = self._library.query_number("nvmlVgpuInstanceGetType", vgpu)
        if code:
            return ""
        self._number.value = _TEXT_SIZE
        code = self._library.call_device("nvmlVgpuTypeGetName", c_uint(kind), self._text, byref(self._number))
        return "" if code else self._read_text()

    def _read_text(self) -> str:
        return clean_name(decode_utf8(self._text.value))

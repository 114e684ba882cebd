"""Load and initialize libnvidia-ml.so.1; all calls to the driver go through NvmlLibrary."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CDLL, byref, c_uint, c_void_p, create_string_buffer
from typing import Final

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.text import clean_name, decode_utf8
from gpuledger.sources.nvml.codes import GONE, Code, name_of

LIBRARY_NAME: Final = "libnvidia-ml.so.1"

_IN_A_CONTAINER: Final = (
    "in a container run with the NVIDIA container toolkit and NVIDIA_DRIVER_CAPABILITIES=utility"
)
_REMEDIES: Final = {
    "DRIVER_NOT_LOADED": "the kernel driver is not loaded: `modprobe nvidia`, or wait for its installer",
    "UNINITIALIZED": "the NVIDIA driver was unloaded or replaced: gpuledger retries until it is back",
    "LIB_RM_VERSION_MISMATCH": (
        f"{LIBRARY_NAME} and the loaded kernel driver differ in version: load the new driver or reboot, "
        "then restart this program (in Kubernetes: delete its pod)"
    ),
    "NO_PERMISSION": "no permission on /dev/nvidiactl and /dev/nvidia*: run as a user with access",
    "UNKNOWN": (
        "the driver returned an unknown error; a container may have lost access to /dev/nvidia* (`systemctl "
        "daemon-reload` causes this): restart the container"
    ),
}
_NO_REMEDY: Final = "check the kernel log (`dmesg | grep -i nvrm`)"
_TEXT_BUFFER_SIZE: Final = 256


class GpuLost(Exception):
    """A call returned that the whole device is unreachable (GPU_IS_LOST, RESET_REQUIRED)."""

    def __init__(self, code: int, call: str) -> None:
        super().__init__(call)
        self.code = code
        self.call = call


def unavailable_error(code: int, call: str) -> SourceUnavailable:
    """Build the error for a driver that cannot be read, with its remedy."""
    reason = name_of(code)
    return SourceUnavailable(f"NVML: {call}: {reason}: {_REMEDIES.get(reason, _NO_REMEDY)}", reason)


def load_library() -> CDLL:
    """Load the driver's library with the usual search (ld.so cache, LD_LIBRARY_PATH). Raises OSError."""
    try:
        return CDLL(LIBRARY_NAME)
    except OSError as error:
        # In the executables, the loader of PyInstaller replaces the reason by one about frozen programs.
        raise (error.__cause__ if isinstance(error.__cause__, OSError) else error) from None


class NvmlLibrary:
    """Calls NVML functions by name and returns their return code; FUNCTION_NOT_FOUND for a missing symbol.

    Use it in one thread only: output buffers are shared.
    """

    def __init__(self, load: Callable[[], CDLL] = load_library) -> None:
        self._load = load
        self._loaded: CDLL | None = None
        self._functions: dict[str, Callable[..., int]] = {}
        self._number = c_uint()
        self._text = create_string_buffer(_TEXT_BUFFER_SIZE)
        self.started = False

    def start(self) -> None:
        """Load the library if it is not loaded yet, and initialize NVML. Raises SourceUnavailable."""
        if self._loaded is None:
            try:
                self._loaded = self._load()
            except OSError as error:
                text = f"{LIBRARY_NAME} not found: install the NVIDIA driver; {_IN_A_CONTAINER} ({error})"
                raise SourceUnavailable(text, "LIBRARY_NOT_FOUND") from error
        call = "nvmlInitWithFlags" if self.has_symbol("nvmlInitWithFlags") else "nvmlInit_v2"
        code = self.call(call, *((0,) if call == "nvmlInitWithFlags" else ()))
        if code:
            raise unavailable_error(code, call)
        self.started = True

    def stop(self) -> None:
        """Shut NVML down and release the driver. Idempotent; the library remains loaded."""
        if self.started:
            self.started = False
            self.call("nvmlShutdown")

    def has_symbol(self, call: str) -> bool:
        """Return whether the loaded library has the function."""
        return (self._functions.get(call) or self._resolve(call)) is not _missing_symbol

    def call(self, call: str, *arguments: object) -> int:
        """Call the function and return its return code."""
        return (self._functions.get(call) or self._resolve(call))(*arguments)

    def call_device(self, call: str, *arguments: object) -> int:
        """Like `call`, for calls on a device: raises GpuLost if the whole device is unreachable."""
        code = (self._functions.get(call) or self._resolve(call))(*arguments)
        if code in GONE:
            raise GpuLost(code, call)
        return code

    def query_text(self, call: str, *arguments: object) -> tuple[int, str]:
        """Return the code and the sanitized text that `call(*arguments, buffer, length)` writes; "" on error.

        With arguments it is a call on a device and raises GpuLost; without, it is a call on the driver.
        """
        invoke = self.call_device if arguments else self.call
        code = invoke(call, *arguments, self._text, _TEXT_BUFFER_SIZE)
        return code, "" if code else clean_name(decode_utf8(self._text.value))

    def query_number(self, call: str, *arguments: object) -> tuple[int, int]:
        """Return the code and the number that `call(*arguments, &unsigned)` writes (0 on error).

        Raises like `query_text`.
        """
        invoke = self.call_device if arguments else self.call
        code = invoke(call, *arguments, byref(self._number))
        return code, 0 if code else self._number.value

    def _resolve(self, call: str) -> Callable[..., int]:
        try:
            function: Callable[..., int] = getattr(self._loaded, call)
        except AttributeError:
            function = _missing_symbol
        self._functions[call] = function
        return function


def _missing_symbol(*_: object) -> int:
    return Code.FUNCTION_NOT_FOUND


class ListBuffer:
    """A growing buffer for `capacity` entries of `size` bytes each, up to `max_capacity` entries."""

    def __init__(self, capacity: int, size: int, max_capacity: int) -> None:
        self.capacity = capacity
        self._size = size
        self._max_capacity = max_capacity
        self._count = c_uint()
        self.data = create_string_buffer(capacity * size)

    def fill(self, query: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        """Return the code and the number of entries of `query`, repeated while the buffer is too small.

        The buffer grows to twice the number, in case the list grows before the next call. A number that is
        implausible (above `max_capacity`, or not above the current capacity) is an error.
        """
        while True:
            code, count = query()
            if code != Code.INSUFFICIENT_SIZE or not self.capacity < count <= self._max_capacity:
                return code, count
            self.capacity = 2 * count
            self.data = create_string_buffer(self.capacity * self._size)

    def read(self, library: NvmlLibrary, call: str, handle: c_void_p) -> tuple[int, int]:
        """Return the code and the number of entries of `call(handle, &count, buffer)`. Raises GpuLost."""

        def query() -> tuple[int, int]:
            self._count.value = self.capacity
            code = library.call_device(call, handle, byref(self._count), self.data)
            return code, self._count.value

        return self.fill(query)


def buffer_view(buffer: ctypes.Array[ctypes.c_char], length: int) -> memoryview:
    """Return the first `length` bytes of a buffer without copying them."""
    return memoryview(buffer).cast("B")[:length]

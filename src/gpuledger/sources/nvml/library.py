"""libnvidia-ml.so.1, loaded and started: every call to the driver passes here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CDLL, byref, c_uint, create_string_buffer
from typing import Final

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.text import clean_name, from_bytes
from gpuledger.sources.nvml.codes import FUNCTION_NOT_FOUND, GONE, name_of

LIBRARY: Final = "libnvidia-ml.so.1"

_IN_A_CONTAINER: Final = (
    "in a container run with the NVIDIA container toolkit and NVIDIA_DRIVER_CAPABILITIES=utility"
)
_REMEDIES: Final = {
    "DRIVER_NOT_LOADED": "the kernel driver is not loaded: `modprobe nvidia`, or wait for its installer",
    "UNINITIALIZED": "the NVIDIA driver was unloaded or replaced: it is tried again until it is back",
    "LIB_RM_VERSION_MISMATCH": (
        f"{LIBRARY} and the loaded kernel driver differ in version: load the new driver or reboot, "
        "then restart this program (in Kubernetes: delete its pod)"
    ),
    "NO_PERMISSION": "no permission on /dev/nvidiactl and /dev/nvidia*: run as a user who has it",
    "UNKNOWN": (
        "the driver answers with an unknown error; in a container access to /dev/nvidia* may have been lost "
        "(`systemctl daemon-reload` does that): restart it"
    ),
}
_NO_REMEDY: Final = "look into the kernel log (`dmesg | grep -i nvrm`)"
_ROOM: Final = 256


class GpuGone(Exception):
    """The driver says that the whole device is out of reach (GPU_IS_LOST, RESET_REQUIRED)."""

    def __init__(self, code: int, call: str) -> None:
        super().__init__(call)
        self.code = code
        self.call = call


def unavailable(code: int, call: str) -> SourceUnavailable:
    """The error for a driver that cannot be read at all, with what can be done about it."""
    reason = name_of(code)
    return SourceUnavailable(f"NVML: {call}: {reason}: {_REMEDIES.get(reason, _NO_REMEDY)}", reason)


def load_library() -> CDLL:
    """Load the driver's library, found as every program finds it (ld.so cache, LD_LIBRARY_PATH)."""
    return CDLL(LIBRARY)


class Library:
    """Calls by name, with the return code as the answer; a symbol that is missing answers FUNCTION_NOT_FOUND.

    `calls` counts the calls that reached the driver. Used by one thread: output buffers are shared.
    """

    def __init__(self, load: Callable[[], CDLL] = load_library) -> None:
        self._load = load
        self._loaded: CDLL | None = None
        self._functions: dict[str, Callable[..., int]] = {}
        self._number = c_uint()
        self._text = create_string_buffer(_ROOM)
        self.calls = 0
        self.started = False

    def start(self) -> None:
        """Load (again, if it was not there before) and initialise. Raises SourceUnavailable."""
        if self._loaded is None:
            try:
                self._loaded = self._load()
            except OSError as error:
                text = f"{LIBRARY} not found: install the NVIDIA driver; {_IN_A_CONTAINER} ({error})"
                raise SourceUnavailable(text, "LIBRARY_NOT_FOUND") from error
        call = "nvmlInitWithFlags" if self.has("nvmlInitWithFlags") else "nvmlInit_v2"
        code = self.call(call, *((0,) if call == "nvmlInitWithFlags" else ()))
        if code:
            raise unavailable(code, call)
        self.started = True

    def stop(self) -> None:
        """Let the driver go. Idempotent; the library stays loaded."""
        if self.started:
            self.started = False
            self.call("nvmlShutdown")

    def has(self, call: str) -> bool:
        """Whether the loaded library has the symbol."""
        return (self._functions.get(call) or self._resolve(call)) is not _missing

    def call(self, call: str, *arguments: object) -> int:
        """The return code of `call`."""
        self.calls += 1
        return (self._functions.get(call) or self._resolve(call))(*arguments)

    def ask(self, call: str, *arguments: object) -> int:
        """As `call`, for calls on a device: raises GpuGone when the device as a whole is out of reach."""
        self.calls += 1
        code = (self._functions.get(call) or self._resolve(call))(*arguments)
        if code in GONE:
            raise GpuGone(code, call)
        return code

    def text(self, call: str, *arguments: object) -> tuple[int, str]:
        """The code and what `call(*arguments, buffer, length)` writes, safe to carry; "" with an error.

        Without arguments it is the driver that is asked, not a device: then it raises nothing.
        """
        ask = self.ask if arguments else self.call
        code = ask(call, *arguments, self._text, _ROOM)
        return code, "" if code else clean_name(from_bytes(self._text.value))

    def number(self, call: str, *arguments: object) -> tuple[int, int]:
        """The code and what `call(*arguments, &unsigned)` writes; 0 with an error. Else as `text`."""
        ask = self.ask if arguments else self.call
        code = ask(call, *arguments, byref(self._number))
        return code, 0 if code else self._number.value

    def _resolve(self, call: str) -> Callable[..., int]:
        try:
            function: Callable[..., int] = getattr(self._loaded, call)
        except AttributeError:
            function = _missing
        self._functions[call] = function
        return function


def _missing(*_: object) -> int:
    return FUNCTION_NOT_FOUND


class ListBuffer:
    """A buffer for lists of entries of `size` bytes, with `room` for so many, and for `most` at the most."""

    def __init__(self, room: int, size: int, most: int) -> None:
        self.room = room
        self._size = size
        self._most = most
        self.data = create_string_buffer(room * size)

    def grow(self, count: int) -> bool:
        """Make room for a list of `count` entries, and for what is added to it before the next call.

        False for a driver that is not believed: it asks for more than `most`, or for less than it got.
        """
        if not self.room < count <= self._most:
            return False
        self.room = 2 * count
        self.data = create_string_buffer(self.room * self._size)
        return True


def view(buffer: ctypes.Array[ctypes.c_char], length: int) -> memoryview:
    """The first `length` bytes of a buffer, not copied."""
    return memoryview(buffer).cast("B")[:length]

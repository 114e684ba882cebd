"""Read the process lists of Devices and the driver's names of processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ctypes import c_void_p, create_string_buffer
from struct import Struct
from typing import Final

from gpuledger.model.devices import Instance
from gpuledger.model.process import ProcessStart, ProcessType
from gpuledger.model.text import clean_name, decode_utf8
from gpuledger.sources.nvml.codes import Code
from gpuledger.sources.nvml.device_state import DeviceState, GpuState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import ListBuffer, NvmlLibrary, buffer_view
from gpuledger.sources.nvml.structs import BLANK_32, BLANK_64, PROCESS_R535, PROCESS_V1, PROCESS_V2

PART: Final = "processes"

_LISTS: Final = (
    ("nvmlDeviceGetComputeRunningProcesses", ProcessType.COMPUTE),
    ("nvmlDeviceGetGraphicsRunningProcesses", ProcessType.GRAPHICS),
    ("nvmlDeviceGetMPSComputeRunningProcesses", ProcessType.MPS),
)
# One bit per list, so that types are merged with `|`; indexed by the bits.
TYPES_BY_BITS: Final = tuple(
    frozenset(kind for bit, (_, kind) in enumerate(_LISTS) if bits >> bit & 1) for bits in range(8)
)
_NO_SUCH_LIST: Final = (Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND)
_MAX_ENTRIES: Final = 1 << 16
# PID_MAX_LIMIT of a 64-bit kernel; the limit of instance ids is far above any real one.
_MAX_PID: Final = 1 << 22
_MAX_INSTANCE_ID: Final = 1 << 16
# A name may be a path (PATH_MAX is 4096); truncation must not remove the base name at its end.
_NAME_BUFFER_SIZE: Final = 4096
_MAX_NAME_LENGTH: Final = 1024

# Type bits, pid, memory, gi, ci.
ListEntry = tuple[int, int, int, int, int]
# Per pid: type bits, and bytes used on the Device if the driver reports them.
ListedProcesses = dict[int, tuple[int, int | None]]


class ProcessListReader:
    """Reads the lists of a Device, with one call each, into a growing buffer of first `capacity` entries."""

    def __init__(self, library: NvmlLibrary, capacity: int = 128) -> None:
        self._library = library
        self._buffer = ListBuffer(capacity, PROCESS_R535.size, _MAX_ENTRIES)
        self._calls: list[tuple[str, Struct]] = []
        self._layout_v3 = PROCESS_V2

    def prepare(self) -> None:
        """Choose the newest version of each call that the loaded library has."""
        has = self._library.has_symbol
        newer_layout = has("nvmlDeviceGetConfComputeMemSizeInfo")
        layout_settled = has("nvmlDeviceGetRunningProcessDetailList")
        self._layout_v3 = PROCESS_R535 if newer_layout and not layout_settled else PROCESS_V2
        self._calls = []
        for call, _ in _LISTS:
            if has(f"{call}_v3"):
                self._calls.append((f"{call}_v3", self._layout_v3))
            elif has(f"{call}_v2"):
                self._calls.append((f"{call}_v2", PROCESS_V2))
            else:
                self._calls.append((call, PROCESS_V1))

    def read(self, gpu: GpuState, findings: NvmlFindings) -> None:
        """Set `listed` of each Device of the Gpu that can run processes; None if a list cannot be read.

        Raises GpuLost.
        """
        whole: list[ListEntry] | None = None
        for state in gpu.process_devices:
            instance = state.device if isinstance(state.device, Instance) else None
            before = len(findings.failures)
            entries = self._read_entries(state, findings)
            if entries is None and instance:
                # vGPU hosts have no lists per MIG device handle, but the GPU's lists name the instance.
                whole = whole if whole is not None else self._read_entries(gpu, findings)
                if whole is not None:
                    ids = (instance.gi, instance.ci)
                    entries = [entry for entry in whole if entry[3:] == ids]
                    del findings.failures[before:]
            state.listed = None if entries is None else _merge_entries(entries, state.facts.memory, findings)
            if state.listed is not None:
                gpu.answered = state.answered = True
                state.pids = frozenset(state.listed)

    def _read_entries(self, state: DeviceState, findings: NvmlFindings) -> list[ListEntry] | None:
        """Return the entries of all lists of the Device; None if a list failed or the Device has no list."""
        all_entries: list[ListEntry] = []
        exists, failed = False, False
        for bit, (call, layout) in enumerate(self._calls):
            code, entries = self._read_list(call, layout, state.handle, 1 << bit, state.facts.memory)
            if code == Code.SUCCESS:
                exists = True
                all_entries += entries
            elif code not in _NO_SUCH_LIST:
                failed = True
                findings.add_error(PART, code, call, state.device)
                if code != Code.NO_PERMISSION:
                    state.first_error = state.first_error or code
        if not exists and not failed:
            findings.add_error(PART, Code.NOT_SUPPORTED, self._calls[0][0], state.device)
        return all_entries if exists and not failed else None

    def _read_list(
        self, call: str, layout: Struct, handle: c_void_p, bit: int, total: int | None
    ) -> tuple[int, list[ListEntry]]:
        code, count = self._buffer.read(self._library, call, handle)
        if code or not count:
            return code, []
        if layout is not PROCESS_V1 and call.endswith("_v3"):
            return code, self._unpack_v3(count, bit, total)
        return code, self._unpack(layout, count, bit)

    def _unpack_v3(self, count: int, bit: int, total: int | None) -> list[ListEntry]:
        """Unpack entries in the layout under which all are plausible.

        A few drivers of branch 535 made the structure longer under the same version. Their symbols are a good
        hint at the layout, but no proof. A single entry is the same in both layouts. With several, a wrong
        layout shows as impossible pids or instance ids. The layout is changed only if every entry is
        plausible in the other one.
        """
        entries = self._unpack(self._layout_v3, count, bit)
        if count > 1 and not _are_plausible(entries, total):
            other = PROCESS_V2 if self._layout_v3 is PROCESS_R535 else PROCESS_R535
            reread = self._unpack(other, count, bit)
            if _are_plausible(reread, total):
                self._layout_v3 = other
                return reread
        return entries

    def _unpack(self, layout: Struct, count: int, bit: int) -> list[ListEntry]:
        rows = layout.iter_unpack(buffer_view(self._buffer.data, count * layout.size))
        if layout is PROCESS_V1:
            return [(bit, pid, memory, BLANK_32, BLANK_32) for pid, memory in rows]
        return [(bit, pid, memory, gi, ci) for pid, memory, gi, ci, *_ in rows]


def _are_plausible(entries: Iterable[ListEntry], total: int | None) -> bool:
    return all(
        0 < pid <= _MAX_PID
        and (gi == BLANK_32 or gi < _MAX_INSTANCE_ID)
        and (ci == BLANK_32 or ci < _MAX_INSTANCE_ID)
        and (memory >= BLANK_64 or not total or memory <= total)
        for _, pid, memory, gi, ci in entries
    )


def _merge_entries(
    entries: Iterable[ListEntry], total: int | None, findings: NvmlFindings
) -> ListedProcesses:
    """Merge entries into one per pid: all types, and the largest memory. Pid 0 is skipped."""
    processes: ListedProcesses = {}
    for bit, pid, used, _, _ in entries:
        if not pid:
            continue
        bits = bit
        memory: int | None = used
        if used >= BLANK_64:
            memory = None
        elif total and used > total:
            findings.reject("memory of a process in bytes", f"{used} of {total}")
            memory = None
        known = processes.get(pid)
        if known:
            bits |= known[0]
            memory = known[1] if memory is None else max(memory, known[1] or 0)
        processes[pid] = (bits, memory)
    return processes


class ProcessNameCache:
    """Names from nvmlSystemGetProcessName, queried once per process (pid and start)."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._buffer = create_string_buffer(_NAME_BUFFER_SIZE)
        self._names: dict[tuple[int, ProcessStart], str] = {}

    def name_of(self, pid: int, start: ProcessStart) -> str:
        """Return the driver's name of the process, usually a path; empty if it has none."""
        name = self._names.get((pid, start))
        if name is None:
            code = self._library.call("nvmlSystemGetProcessName", pid, self._buffer, _NAME_BUFFER_SIZE)
            raw = self._buffer.value if code in (Code.SUCCESS, Code.INSUFFICIENT_SIZE) else b""
            name = self._names[pid, start] = clean_name(decode_utf8(raw), _MAX_NAME_LENGTH)
        return name

    def forget_others(self, living: Collection[tuple[int, ProcessStart]]) -> None:
        """Forget the names of all processes except `living`."""
        if len(self._names) > len(living):
            self._names = {key: name for key, name in self._names.items() if key in living}

"""Which processes sit on a Device, from the driver's three lists, and what the driver calls them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ctypes import byref, c_uint, c_void_p, create_string_buffer
from struct import Struct
from typing import Final

from gpuledger.model.devices import Instance
from gpuledger.model.process import ProcessType, Start
from gpuledger.model.text import clean_name, from_bytes
from gpuledger.sources.nvml.codes import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SUCCESS,
)
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library, ListBuffer, view
from gpuledger.sources.nvml.state import DeviceState, GpuState
from gpuledger.sources.nvml.structs import BLANK_32, BLANK_64, PROCESS_R535, PROCESS_V1, PROCESS_V2

PART: Final = "processes"

_LISTS: Final = (
    ("nvmlDeviceGetComputeRunningProcesses", ProcessType.COMPUTE),
    ("nvmlDeviceGetGraphicsRunningProcesses", ProcessType.GRAPHICS),
    ("nvmlDeviceGetMPSComputeRunningProcesses", ProcessType.MPS),
)
# One bit per list, so that joining types is an `or`; the table gives the set for the bits.
TYPES: Final = tuple(
    frozenset(kind for bit, (_, kind) in enumerate(_LISTS) if bits >> bit & 1) for bits in range(8)
)
_NO_SUCH_LIST: Final = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
_MOST_ENTRIES: Final = 1 << 16
# PID_MAX_LIMIT of a 64-bit kernel, and far above any GPU or compute instance id.
_HIGHEST_PID: Final = 1 << 22
_HIGHEST_INSTANCE: Final = 1 << 16
# A name may be a path (PATH_MAX is 4096); the base name at its end must survive the cut.
_NAME_ROOM: Final = 4096
_LONGEST_NAME: Final = 1024

# Type bits, pid, memory, gi, ci.
Entry = tuple[int, int, int, int, int]
# Per pid: type bits, and bytes held on the Device if the driver says so.
Held = dict[int, tuple[int, int | None]]


class ProcessLists:
    """Reads the lists of a Device with one call each, into a buffer that grows."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._count = c_uint()
        self._told = ListBuffer(128, PROCESS_R535.size, _MOST_ENTRIES)
        self._calls: list[tuple[str, Struct]] = []
        self._layout_v3 = PROCESS_V2

    def prepare(self) -> None:
        """Choose the newest version of each call that the loaded library has."""
        has = self._library.has
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

    def read(self, gpu: GpuState, findings: Findings) -> None:
        """Set `held` of every Device of the Gpu that holds processes; None where that is not known.

        Raises GpuGone.
        """
        whole: list[Entry] | None = None
        for part in gpu.parts:
            instance = part.device if isinstance(part.device, Instance) else None
            before = len(findings.failures)
            entries = self._entries(part, findings)
            if entries is None and instance:
                # vGPU hosts tell no lists by MIG handle; the card's own lists name the instance.
                whole = whole if whole is not None else self._entries(gpu, findings)
                if whole is not None:
                    ids = (instance.gi, instance.ci)
                    entries = [entry for entry in whole if entry[3:] == ids]
                    del findings.failures[before:]
            part.held = None if entries is None else _merge(entries, part.memory_total, findings)
            if part.held is not None:
                gpu.answered = part.answered = True
                part.pids = frozenset(part.held)

    def _entries(self, state: DeviceState, findings: Findings) -> list[Entry] | None:
        """All lists of the Device in one; None if one failed or if there is none at all."""
        told: list[Entry] = []
        exists, failed = False, False
        for bit, (call, layout) in enumerate(self._calls):
            code, entries = self._list(call, layout, state.handle, 1 << bit, state.memory_total)
            if code == SUCCESS:
                exists = True
                told += entries
            elif code not in _NO_SUCH_LIST:
                failed = True
                findings.fail(PART, code, call, state.device)
                if code != NO_PERMISSION:
                    state.fault = state.fault or code
        if not exists and not failed:
            findings.fail(PART, NOT_SUPPORTED, self._calls[0][0], state.device)
        return told if exists and not failed else None

    def _list(
        self, call: str, layout: Struct, handle: c_void_p, bit: int, total: int | None
    ) -> tuple[int, list[Entry]]:
        told = self._told
        while True:
            self._count.value = told.room
            code = self._library.ask(call, handle, byref(self._count), told.data)
            if code != INSUFFICIENT_SIZE or not told.grow(self._count.value):
                break
        count = self._count.value
        if code or not count:
            return code, []
        if layout is not PROCESS_V1 and call.endswith("_v3"):
            return code, self._entries_v3(count, bit, total)
        return code, self._unpack(layout, count, bit)

    def _entries_v3(self, count: int, bit: int, total: int | None) -> list[Entry]:
        """Entries in the layout that makes sense of them.

        A few drivers of branch 535 made the structure longer without saying so; which symbols they have is a
        good guess but a guess. One entry reads the same both ways. With more, a wrong layout shows as pids or
        instance ids that cannot be; it is changed only if the other layout makes sense of every entry.
        """
        entries = self._unpack(self._layout_v3, count, bit)
        if count > 1 and not _plausible(entries, total):
            other = PROCESS_V2 if self._layout_v3 is PROCESS_R535 else PROCESS_R535
            reread = self._unpack(other, count, bit)
            if _plausible(reread, total):
                self._layout_v3 = other
                return reread
        return entries

    def _unpack(self, layout: Struct, count: int, bit: int) -> list[Entry]:
        told = layout.iter_unpack(view(self._told.data, count * layout.size))
        if layout is PROCESS_V1:
            return [(bit, pid, memory, BLANK_32, BLANK_32) for pid, memory in told]
        return [(bit, pid, memory, gi, ci) for pid, memory, gi, ci, *_ in told]


def _plausible(entries: Iterable[Entry], total: int | None) -> bool:
    return all(
        0 < pid <= _HIGHEST_PID
        and (gi == BLANK_32 or gi < _HIGHEST_INSTANCE)
        and (ci == BLANK_32 or ci < _HIGHEST_INSTANCE)
        and (memory >= BLANK_64 or not total or memory <= total)
        for _, pid, memory, gi, ci in entries
    )


def _merge(entries: Iterable[Entry], total: int | None, findings: Findings) -> Held:
    """One row per pid: types joined, memory the greatest told. No process has pid 0."""
    held: Held = {}
    for bit, pid, told, _, _ in entries:
        if not pid:
            continue
        bits = bit
        memory: int | None = told
        if told >= BLANK_64:
            memory = None
        elif total and told > total:
            findings.invalid += 1
            memory = None
        known = held.get(pid)
        if known:
            bits |= known[0]
            memory = known[1] if memory is None else max(memory, known[1] or 0)
        held[pid] = (bits, memory)
    return held


class ProcessNames:
    """nvmlSystemGetProcessName, asked once per process: `(pid, start)`."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._buffer = create_string_buffer(_NAME_ROOM)
        self._names: dict[tuple[int, Start], str] = {}

    def of(self, pid: int, start: Start) -> str:
        """The driver's name of the process, usually a path; empty when it tells none."""
        name = self._names.get((pid, start))
        if name is None:
            code = self._library.call("nvmlSystemGetProcessName", pid, self._buffer, _NAME_ROOM)
            told = self._buffer.value if code in (SUCCESS, INSUFFICIENT_SIZE) else b""
            name = self._names[pid, start] = clean_name(from_bytes(told), _LONGEST_NAME)
        return name

    def keep(self, living: Collection[tuple[int, Start]]) -> None:
        """Forget the names of all others."""
        if len(self._names) > len(living):
            self._names = {key: name for key, name in self._names.items() if key in living}

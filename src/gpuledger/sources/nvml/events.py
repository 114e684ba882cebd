"""Read Xid errors from an NVML event set, once per tick and without waiting."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref, c_ulonglong, c_void_p, create_string_buffer
from typing import Final

from gpuledger.model.snapshot import XidEvent
from gpuledger.sources.nvml.codes import UNSUPPORTED, Code
from gpuledger.sources.nvml.device_state import GpuState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import GpuLost, NvmlLibrary
from gpuledger.sources.nvml.structs import BLANK_32, EVENT

PART: Final = "events"
_WAIT: Final = "nvmlEventSetWait_v2"
# nvmlEventTypeXidCriticalError.
_XID: Final = 8
# A faulty GPU can send events endlessly; the rest is read in the next tick.
_MAX_EVENTS_PER_TICK: Final = 256


class XidEventSet:
    """One event set for all Gpus that support Xid events, recreated when a Gpu returns.

    A failed registration is retried each tick.
    """

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._set: c_void_p | None = None
        self._gpus: dict[int, GpuState] = {}
        self._unregistered: dict[str, tuple[GpuState, int, str]] = {}
        self._broken = False
        self._event = create_string_buffer(EVENT.size)

    def reset(self) -> None:
        """Free the set, before the driver is released or to register all Gpus again."""
        if self._set is not None:
            self._library.call("nvmlEventSetFree", self._set)
        self._set, self._broken = None, False
        self._gpus, self._unregistered = {}, {}

    def drain(self, states: Iterable[GpuState], unix: float, findings: NvmlFindings) -> tuple[XidEvent, ...]:
        """Return the events since the last tick, with the time `unix` (NVML events have no timestamp)."""
        up = [state for state in states if state.up]
        events: list[XidEvent] = []
        if self._broken or any(state.needs_event_registration for state in up):
            # Only a new set is certain to use the current device handles.
            events += [] if self._broken else self._wait(unix, findings)
            self.reset()
            self._register_all(up, findings)
        elif self._set is not None:
            for state, _, _ in tuple(self._unregistered.values()):
                if state.up:
                    self._register_gpu(state, self._set)
        for state, code, call in self._unregistered.values():
            findings.add_error(PART, code, call, state.gpu)
        return (*events, *self._wait(unix, findings))

    def _register_all(self, states: list[GpuState], findings: NvmlFindings) -> None:
        created = c_void_p()
        code = self._library.call("nvmlEventSetCreate", byref(created))
        for state in states:
            state.needs_event_registration = state.receives_events = False
        if code:
            self._handle_error(code, "nvmlEventSetCreate", findings)
            return
        self._set = created
        for state in states:
            self._register_gpu(state, created)

    def _register_gpu(self, state: GpuState, event_set: c_void_p) -> None:
        types = c_ulonglong()
        call = "nvmlDeviceGetSupportedEventTypes"
        try:
            code = self._library.call_device(call, state.handle, byref(types))
            if code == Code.SUCCESS and types.value & _XID:
                call = "nvmlDeviceRegisterEvents"
                code = self._library.call_device(call, state.handle, c_ulonglong(_XID), event_set)
                if code == Code.SUCCESS:
                    self._gpus[state.handle.value or 0] = state
                    state.receives_events = True
        except GpuLost as lost:
            code = lost.code
        self._unregistered.pop(state.gpu.uuid, None)
        if code != Code.SUCCESS and code not in UNSUPPORTED:
            self._unregistered[state.gpu.uuid] = (state, code, call)

    def _wait(self, unix: float, findings: NvmlFindings) -> list[XidEvent]:
        events: list[XidEvent] = []
        if self._set is None or not self._gpus:
            return events
        for _ in range(_MAX_EVENTS_PER_TICK):
            EVENT.pack_into(self._event, 0, 0, 0, 0, BLANK_32, BLANK_32)
            code = self._library.call(_WAIT, self._set, self._event, 0)
            if code:
                if code not in (Code.TIMEOUT, Code.NOT_FOUND):
                    self._handle_error(code, _WAIT, findings)
                break
            handle, kind, xid, gi, ci = EVENT.unpack(self._event)
            state = self._gpus.get(handle)
            if state and kind == _XID:
                events.append(XidEvent(state.gpu, xid, unix, _instance_id(gi), _instance_id(ci)))
        return events

    def _handle_error(self, code: int, call: str, findings: NvmlFindings) -> None:
        if code in UNSUPPORTED:
            for state in self._gpus.values():
                state.receives_events = False
            self._gpus = {}
        else:
            self._broken = True
            findings.add_error(PART, code, call)


def _instance_id(instance: int) -> int | None:
    return None if instance == BLANK_32 else instance

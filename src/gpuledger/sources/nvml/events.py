"""Xid errors, from the driver's event set: drained without waiting, once per tick."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref, c_ulonglong, c_void_p, create_string_buffer
from typing import Final

from gpuledger.model.snapshot import XidEvent
from gpuledger.sources.nvml.codes import NOT_FOUND, SUCCESS, TIMEOUT, UNSUPPORTED
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import GpuGone, Library
from gpuledger.sources.nvml.state import GpuState
from gpuledger.sources.nvml.structs import BLANK_32, EVENT

PART: Final = "events"
_WAIT: Final = "nvmlEventSetWait_v2"
# nvmlEventTypeXidCriticalError.
_XID: Final = 8
# A card in trouble can send without end; what is left is read in the next tick.
_MOST_PER_TICK: Final = 256


class XidEvents:
    """One event set with every Gpu in it that supports Xid events; made again when a Gpu came back.

    A Gpu that could not be put in is tried again each tick.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._set: c_void_p | None = None
        self._gpus: dict[int, GpuState] = {}
        self._unwatched: dict[str, tuple[GpuState, int, str]] = {}
        self._broken = False
        self._event = create_string_buffer(EVENT.size)

    def reset(self) -> None:
        """Free the set. Called before the driver is let go, and to register anew."""
        if self._set is not None:
            self._library.call("nvmlEventSetFree", self._set)
        self._set, self._broken = None, False
        self._gpus, self._unwatched = {}, {}

    def drain(self, states: Iterable[GpuState], unix: float, findings: Findings) -> tuple[XidEvent, ...]:
        """Events since the last tick, each told once, as of `unix` (NVML tells no time)."""
        up = [state for state in states if state.up]
        events: list[XidEvent] = []
        if self._broken or any(state.fresh for state in up):
            # Only a set that is made anew is sure to hold the handles that Gpus have now.
            events += [] if self._broken else self._wait(unix, findings)
            self.reset()
            self._register(up, findings)
        elif self._set is not None:
            for state, _, _ in tuple(self._unwatched.values()):
                if state.up:
                    self._watch(state, self._set)
        for state, code, call in self._unwatched.values():
            findings.fail(PART, code, call, state.gpu)
        return (*events, *self._wait(unix, findings))

    def _register(self, states: list[GpuState], findings: Findings) -> None:
        made = c_void_p()
        code = self._library.call("nvmlEventSetCreate", byref(made))
        for state in states:
            state.fresh = state.watched = False
        if code:
            self._refused(code, "nvmlEventSetCreate", findings)
            return
        self._set = made
        for state in states:
            self._watch(state, made)

    def _watch(self, state: GpuState, event_set: c_void_p) -> None:
        types = c_ulonglong()
        call = "nvmlDeviceGetSupportedEventTypes"
        try:
            code = self._library.ask(call, state.handle, byref(types))
            if code == SUCCESS and types.value & _XID:
                call = "nvmlDeviceRegisterEvents"
                code = self._library.ask(call, state.handle, c_ulonglong(_XID), event_set)
                if code == SUCCESS:
                    self._gpus[state.handle.value or 0] = state
                    state.watched = True
        except GpuGone as gone:
            code = gone.code
        self._unwatched.pop(state.gpu.uuid, None)
        if code != SUCCESS and code not in UNSUPPORTED:
            self._unwatched[state.gpu.uuid] = (state, code, call)

    def _wait(self, unix: float, findings: Findings) -> list[XidEvent]:
        events: list[XidEvent] = []
        if self._set is None or not self._gpus:
            return events
        for _ in range(_MOST_PER_TICK):
            EVENT.pack_into(self._event, 0, 0, 0, 0, BLANK_32, BLANK_32)
            code = self._library.call(_WAIT, self._set, self._event, 0)
            if code:
                if code not in (TIMEOUT, NOT_FOUND):
                    self._refused(code, _WAIT, findings)
                break
            handle, kind, xid, gi, ci = EVENT.unpack(self._event)
            state = self._gpus.get(handle)
            if state and kind == _XID:
                events.append(XidEvent(state.gpu, xid, unix, _known(gi), _known(ci)))
        return events

    def _refused(self, code: int, call: str, findings: Findings) -> None:
        if code in UNSUPPORTED:
            for state in self._gpus.values():
                state.watched = False
            self._gpus = {}
        else:
            self._broken = True
            findings.fail(PART, code, call)


def _known(instance: int) -> int | None:
    return None if instance == BLANK_32 else instance

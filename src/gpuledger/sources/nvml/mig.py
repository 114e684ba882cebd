"""MIG: how each Gpu is cut, followed from tick to tick."""

from __future__ import annotations

from ctypes import byref, c_uint, c_void_p, create_string_buffer
from dataclasses import replace
from typing import Final

from gpuledger.model.devices import Instance
from gpuledger.model.quantities import MIG_MAX_SLICES, MIG_MODE
from gpuledger.sources.nvml.codes import INVALID_ARGUMENT, NOT_FOUND, SUCCESS, UNSUPPORTED
from gpuledger.sources.nvml.facts import UUID, Facts, make_instance
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library
from gpuledger.sources.nvml.state import DeviceState, GpuState, Slot
from gpuledger.sources.nvml.structs import ATTRIBUTES

_MOST_UUID: Final = 96
_MODE: Final = "nvmlDeviceGetMigMode"
_IDS: Final = ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")


class MigCuts:
    """Follows re-partitioning, which NVML does not announce.

    Costs one call a tick on cards that can be cut and are not; on cut ones also one per possible slot and two
    per Instance (23 on a card cut in seven). Handles, ids and UUIDs may come back for an Instance of another
    size; together with the attributes they tell one cut from another. What else is static is read only when
    these are new.
    """

    def __init__(self, library: Library, part: str) -> None:
        self._library = library
        self._part = part
        self._uuid = create_string_buffer(_MOST_UUID)
        self._mode = c_uint()
        self._pending = c_uint()
        self._attributes = create_string_buffer(ATTRIBUTES.size)

    def follow(self, state: GpuState, findings: Findings) -> bool:
        """Compare the cut of a Gpu with what is known; whether it changed. Raises GpuGone."""
        state.cut_read = True
        state.cut_numbers.clear()
        if not state.mig_capable:
            return False
        code = self._library.ask(_MODE, state.handle, byref(self._mode), byref(self._pending))
        if code in UNSUPPORTED:
            state.mig_capable = False
            self._mode.value = 0
        elif code:
            self._fail(state, code, _MODE, findings)
            return False
        enabled = self._mode.value == 1
        state.cut_numbers[MIG_MODE] = self._mode.value
        if not enabled:
            state.cut_numbers[MIG_MAX_SLICES] = 0
        changed = enabled != state.mig_enabled
        if changed:
            # What a cut card does not tell, an uncut one may.
            state.mig_enabled, state.cut_known = enabled, False
            state.forget()
            state.samples_call, state.last_sample = "", None
        slots = self._slots(state, findings) if enabled else []
        if slots is not None and slots != state.cut:
            changed = self._recut(state, slots, findings) or changed
        if state.cut_read and not state.cut_known:
            state.cut_known = changed = True
        self._ask_facts(state, findings)
        return changed

    def is_as_known(self, state: GpuState) -> bool:
        """Whether a Gpu is cut as `follow` has found it; also where that cannot be told now.

        A handle, too, may be another Instance's after a new cut: what was read by it since is not believed.
        Raises GpuGone.
        """
        if not state.mig_capable or self._library.ask(
            _MODE, state.handle, byref(self._mode), byref(self._pending)
        ):
            return True
        enabled = self._mode.value == 1
        slots = self._slots(state, Findings()) if enabled else []
        return enabled == state.mig_enabled and slots in (None, state.cut)

    def _slots(self, state: GpuState, findings: Findings) -> list[Slot] | None:
        """Every MIG device in the driver's order; None if that cannot be told."""
        library = self._library
        call = "nvmlDeviceGetMaxMigDeviceCount"
        code, most = library.number(call, state.handle)
        if code:
            if code in UNSUPPORTED:
                return []
            self._fail(state, code, call, findings)
            return None
        state.cut_numbers[MIG_MAX_SLICES] = most
        slots: list[Slot] = []
        for index in range(most):
            handle = c_void_p()
            call = "nvmlDeviceGetMigDeviceHandleByIndex"
            code = library.ask(call, state.handle, index, byref(handle))
            if code in (NOT_FOUND, INVALID_ARGUMENT):
                continue  # Slots are not filled from the front.
            if code == SUCCESS:
                call = UUID
                code = library.ask(call, handle, self._uuid, _MOST_UUID)
            if code:
                self._fail(state, code, f"{call} of MIG device {index}", findings)
                return None
            place = (index, handle.value or 0, self._uuid.value)
            slots.append((*place, self._attributes_of(state, handle, place, findings)))
        return slots

    def _attributes_of(
        self, state: GpuState, handle: c_void_p, place: tuple[int, int, bytes], findings: Findings
    ) -> bytes:
        """What the MIG device says of its size; while it does not answer, what it said before."""
        call = "nvmlDeviceGetAttributes_v2"
        code = self._library.ask(call, handle, self._attributes)
        if code == SUCCESS:
            return self._attributes.raw
        if code not in UNSUPPORTED:
            findings.fail(self._part, code, f"{call} of MIG device {place[0]}", state.gpu)
        return next((known for *slot, known in state.cut if tuple(slot) == place), b"")

    def _recut(self, state: GpuState, slots: list[Slot], findings: Findings) -> bool:
        kept = dict(zip(state.cut, state.instances, strict=True))
        instances: list[DeviceState] = []
        for slot in slots:
            part = kept.get(slot) or self._adopt(state, slot, findings)
            if part is None:
                return False
            instances.append(part)
        state.instances, state.cut = instances, slots
        return True

    def _adopt(self, state: GpuState, slot: Slot, findings: Findings) -> DeviceState | None:
        index, address, uuid, attributes = slot
        handle = c_void_p(address)
        ids: list[int] = []
        for call in _IDS:
            code, number = self._library.number(call, handle)
            if code:
                self._fail(state, code, f"{call} of MIG device {index}", findings)
                return None
            ids.append(number)
        facts = Facts.of_instance()
        facts.read(self._library, handle)
        name = uuid.decode("ascii", "backslashreplace")
        sm_count = ATTRIBUTES.unpack(attributes)[0] if attributes else None
        return DeviceState(
            make_instance(name, state.gpu, (ids[0], ids[1]), index, sm_count, facts), handle, facts
        )

    def _ask_facts(self, state: GpuState, findings: Findings) -> None:
        for part in state.instances:
            known = part.device
            if not part.facts.unread or not isinstance(known, Instance):
                continue
            if part.facts.read(self._library, part.handle):
                ids = (known.gi, known.ci)
                told = make_instance(known.uuid, state.gpu, ids, known.index, known.sm_count, part.facts)
                part.device = replace(known, profile=told.profile)
            part.report_unread(self._part, findings)

    def _fail(self, state: GpuState, code: int, call: str, findings: Findings) -> None:
        state.cut_read = False
        findings.fail(self._part, code, call, state.gpu)

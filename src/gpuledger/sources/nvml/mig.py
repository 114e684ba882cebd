"""Track the MIG layout of each Gpu: its GPU instances and compute instances."""

from __future__ import annotations

from ctypes import byref, c_uint, c_void_p, create_string_buffer
from dataclasses import replace
from typing import Final

from gpuledger.model.devices import Instance
from gpuledger.model.quantities import MIG_MAX_SLICES, MIG_MODE
from gpuledger.sources.nvml.codes import UNSUPPORTED, Code
from gpuledger.sources.nvml.device_state import DeviceState, GpuState, MigSlot
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import NvmlLibrary
from gpuledger.sources.nvml.static_facts import FACTS_OF_INSTANCE, UUID, StaticFacts, make_instance
from gpuledger.sources.nvml.structs import ATTRIBUTES

_UUID_BUFFER_SIZE: Final = 96
_MODE: Final = "nvmlDeviceGetMigMode"
_IDS: Final = ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")


class MigLayouts:
    """Detects changes of MIG layouts, which NVML does not announce.

    Each tick costs one call per card that supports MIG. If MIG is enabled, it also costs one call per
    possible slot and two per Instance (23 on a card with seven). Handles, ids and UUIDs may be reused for an
    Instance of another size, so layouts are compared including attributes. Other static facts are read only
    for a new Instance.
    """

    def __init__(self, library: NvmlLibrary, collector: str) -> None:
        self._library = library
        self._collector = collector
        self._uuid = create_string_buffer(_UUID_BUFFER_SIZE)
        self._mode = c_uint()
        self._pending = c_uint()
        self._attributes = create_string_buffer(ATTRIBUTES.size)

    def update(self, state: GpuState, findings: NvmlFindings) -> bool:
        """Compare the layout of a Gpu with the known one; return whether it changed. Raises GpuLost."""
        state.mig_layout_read = True
        state.mig_values.clear()
        if not state.mig_capable:
            return False
        code = self._library.call_device(_MODE, state.handle, byref(self._mode), byref(self._pending))
        if code in UNSUPPORTED:
            state.mig_capable = False
            self._mode.value = 0
        elif code:
            self._fail(state, code, _MODE, findings)
            return False
        enabled = self._mode.value == 1
        state.mig_values[MIG_MODE] = self._mode.value
        if not enabled:
            state.mig_values[MIG_MAX_SLICES] = 0
        changed = enabled != state.mig_enabled
        if changed:
            # Other quantities are supported with another MIG mode.
            state.mig_enabled, state.mig_layout_known = enabled, False
            state.reset()
            state.utilization_call, state.last_sample = "", None
        slots = self._slots(state, findings) if enabled else []
        if slots is not None and slots != state.mig_slots:
            changed = self._update_instances(state, slots, findings) or changed
        if state.mig_layout_read and not state.mig_layout_known:
            state.mig_layout_known = changed = True
        self._read_pending_facts(state, findings)
        return changed

    def is_unchanged(self, state: GpuState) -> bool:
        """Return whether the layout is still the one that `update` found; True also if it cannot be read.

        After a change a handle may belong to another Instance, so values read since then must be discarded.
        Raises GpuLost.
        """
        if not state.mig_capable or self._library.call_device(
            _MODE, state.handle, byref(self._mode), byref(self._pending)
        ):
            return True
        enabled = self._mode.value == 1
        slots = self._slots(state, NvmlFindings()) if enabled else []
        return enabled == state.mig_enabled and slots in (None, state.mig_slots)

    def _slots(self, state: GpuState, findings: NvmlFindings) -> list[MigSlot] | None:
        """Return all MIG devices in the driver's order; None if they cannot be read."""
        library = self._library
        call = "nvmlDeviceGetMaxMigDeviceCount"
        code, most = library.query_number(call, state.handle)
        if code:
            if code in UNSUPPORTED:
                return []
            self._fail(state, code, call, findings)
            return None
        state.mig_values[MIG_MAX_SLICES] = most
        slots: list[MigSlot] = []
        for index in range(most):
            handle = c_void_p()
            call = "nvmlDeviceGetMigDeviceHandleByIndex"
            code = library.call_device(call, state.handle, index, byref(handle))
            if code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):
                continue  # An empty slot; later slots may be in use.
            if code == Code.SUCCESS:
                call = UUID
                code = library.call_device(call, handle, self._uuid, _UUID_BUFFER_SIZE)
            if code:
                self._fail(state, code, f"{call} of MIG device {index}", findings)
                return None
            position = (index, handle.value or 0, self._uuid.value)
            slots.append((*position, self._attributes_of(state, handle, position, findings)))
        return slots

    def _attributes_of(
        self, state: GpuState, handle: c_void_p, position: tuple[int, int, bytes], findings: NvmlFindings
    ) -> bytes:
        """Return the attributes of a MIG device; the last known ones if the call fails."""
        call = "nvmlDeviceGetAttributes_v2"
        code = self._library.call_device(call, handle, self._attributes)
        if code == Code.SUCCESS:
            return self._attributes.raw
        if code not in UNSUPPORTED:
            findings.add_error(self._collector, code, f"{call} of MIG device {position[0]}", state.gpu)
        return next((known for *slot, known in state.mig_slots if tuple(slot) == position), b"")

    def _update_instances(self, state: GpuState, slots: list[MigSlot], findings: NvmlFindings) -> bool:
        kept = dict(zip(state.mig_slots, state.instances, strict=True))
        instances: list[DeviceState] = []
        for slot in slots:
            instance = kept.get(slot) or self._add_instance(state, slot, findings)
            if instance is None:
                return False
            instances.append(instance)
        state.instances, state.mig_slots = instances, slots
        return True

    def _add_instance(self, state: GpuState, slot: MigSlot, findings: NvmlFindings) -> DeviceState | None:
        index, address, uuid, attributes = slot
        handle = c_void_p(address)
        ids: list[int] = []
        for call in _IDS:
            code, number = self._library.query_number(call, handle)
            if code:
                self._fail(state, code, f"{call} of MIG device {index}", findings)
                return None
            ids.append(number)
        facts = StaticFacts(FACTS_OF_INSTANCE)
        facts.read(self._library, handle)
        name = uuid.decode("ascii", "backslashreplace")
        sm_count = ATTRIBUTES.unpack(attributes)[0] if attributes else None
        return DeviceState(
            make_instance(name, state.gpu, (ids[0], ids[1]), index, sm_count, facts), handle, facts
        )

    def _read_pending_facts(self, state: GpuState, findings: NvmlFindings) -> None:
        for instance in state.instances:
            known = instance.device
            if not instance.facts.pending or not isinstance(known, Instance):
                continue
            if instance.facts.read(self._library, instance.handle):
                ids = (known.gi, known.ci)
                updated = make_instance(
                    known.uuid, state.gpu, ids, known.index, known.sm_count, instance.facts
                )
                instance.device = replace(known, profile=updated.profile)
            instance.report_pending(self._collector, findings)

    def _fail(self, state: GpuState, code: int, call: str, findings: NvmlFindings) -> None:
        state.mig_layout_read = False
        findings.add_error(self._collector, code, call, state.gpu)

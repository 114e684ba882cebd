"""List the machine's Gpus, detect lost ones and retry them."""

from __future__ import annotations

import logging
from ctypes import byref, c_void_p
from dataclasses import replace
from typing import Final

from gpuledger.host.pci import PciBus
from gpuledger.model.devices import Gpu, is_selected
from gpuledger.model.errors import SourceUnavailable
from gpuledger.sources.device_selection import DeviceSelection
from gpuledger.sources.nvml.codes import Code
from gpuledger.sources.nvml.device_state import GpuState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import GpuLost, NvmlLibrary, unavailable_error
from gpuledger.sources.nvml.mig import MigLayouts
from gpuledger.sources.nvml.static_facts import FACTS_OF_GPU, PCI_INFO, UUID, StaticFacts, make_gpu

log = logging.getLogger("gpuledger.nvml")

PART: Final = "devices"
_COUNT: Final = "nvmlDeviceGetCount_v2"
_BY_INDEX: Final = "nvmlDeviceGetHandleByIndex_v2"
_BY_UUID: Final = "nvmlDeviceGetHandleByUUID"
_MISSING: Final = (
    "on the PCI bus but unknown to the driver: check the kernel log (`dmesg | grep -i nvrm`), then reset the "
    "GPU or reboot"
)


class GpuDiscovery:
    """The machine's Gpus: listed when the driver starts, checked each tick, counted every `slow_interval`.

    `complete` is False while a Gpu is known to exist that cannot be read. `changed` is True once processes
    may be on other Devices than before; the caller resets it. `unreachable` maps the index of each Gpu that
    does not answer to the return code and the call that failed.
    """

    def __init__(
        self, library: NvmlLibrary, selected: tuple[str, ...], slow_interval: float, pci: PciBus | None = None
    ) -> None:
        self._library = library
        self._selected = selected
        self._selection = DeviceSelection(selected)
        self._slow_interval = slow_interval
        self._pci = pci
        self.mig_layouts = MigLayouts(library, PART)
        self._total = 0
        self._recount_at: float | None = None
        self._uncounted_addresses: tuple[str, ...] = ()
        self._unbound: tuple[str, ...] = ()
        self.states: list[GpuState] = []
        self.unreachable: dict[int, tuple[int, str]] = {}
        self.changed = True
        self.complete = True

    def list_gpus(self) -> None:
        """List all Gpus after a start of the driver. `update` retries those that do not answer.

        Raises SourceUnavailable if there is no Gpu and none was known before.
        """
        code, total = self._library.query_number(_COUNT)
        if code:
            raise unavailable_error(code, _COUNT)
        before, self.states, self._recount_at = self.states, [], None
        skipped = self._relist(total, before)
        if self.states:
            return
        if self.unreachable:
            raise unavailable_error(*next(iter(self.unreachable.values())))
        if skipped:
            available = ", ".join(gpu.uuid for gpu in skipped)
            text = f"--devices: {', '.join(self._selected)} not found; available are {available}"
            raise SourceUnavailable(text, "NO_DEVICES")
        raise SourceUnavailable(
            "NVML: no GPU is visible: in a container set NVIDIA_VISIBLE_DEVICES=all", "NO_DEVICES"
        )

    def update(self, now: float, findings: NvmlFindings) -> None:
        """Run once per tick, at `now`: retry unreachable and lost Gpus, and update MIG layouts."""
        counted = self._recount(now, findings)
        for index in tuple(self.unreachable):
            self._query_gpu(index)
        self._forget_unselected()
        for index, (code, call) in self.unreachable.items():
            findings.add_error(PART, code, f"{call} of index {index}")
        for state in self.states:
            if not state.up:
                self._retry(state, findings)
            if state.up:
                try:
                    self._read_pending_facts(state, findings)
                    self.changed |= self.mig_layouts.update(state, findings)
                except GpuLost as lost:
                    state.mark_lost(lost.code, lost.call, PART, findings)
        for address in self._uncounted_addresses:
            findings.note(PART, "MISSING", f"{address}: {_MISSING}")
        # A Gpu that was lost before its MIG layout was read may have Instances that are not listed.
        read = all(
            not state.uncounted and (state.mig_layout_read if state.up else state.mig_layout_known)
            for state in self.states
        )
        self.complete = counted and read and not self.unreachable and not self._uncounted_addresses

    def _recount(self, now: float, findings: NvmlFindings) -> bool:
        """Compare the driver's count with the known Gpus and the PCI bus, every `slow_interval`.

        Return False if the count cannot be read.
        """
        if self._recount_at is not None:
            if now < self._recount_at:
                return True
            code, total = self._library.query_number(_COUNT)
            if code:
                findings.add_error(PART, code, _COUNT)
                return False
            if total != self._total:
                self._relist(total, list(self.states))
        self._recount_at = now + self._slow_interval
        self._uncounted_addresses = self._find_uncounted()
        return True

    def _relist(self, total: int, before: list[GpuState]) -> list[Gpu]:
        """List all Gpus again and keep those of `before` that are missing. Return unselected ones."""
        self._total, self.unreachable, self.changed = total, {}, True
        skipped: list[Gpu] = []
        found: dict[str, str] = {}
        for index in range(total):
            found.update([self._query_gpu(index, skipped)])
        for state in before:
            if state.gpu.uuid not in found:
                self._mark_missing(state, found)
        self._sort()
        self._forget_unselected()
        if self.states and not self.unreachable:
            self._selection.compare([*(state.gpu for state in self.states), *skipped])
            self._selection.log_omission()
        return skipped

    def _query_gpu(self, index: int, skipped: list[Gpu] | None = None) -> tuple[str, str]:
        """Return UUID and PCI bus id of the Gpu at the driver's index; empty if it does not answer."""
        handle = c_void_p()
        call = _BY_INDEX
        code, uuid = self._library.call(call, index, byref(handle)), ""
        try:
            if not code:
                call = UUID
                code, uuid = self._library.query_text(call, handle)
            if not code and uuid:
                gpu = self._add_or_update(index, handle, uuid, skipped)
                return gpu.gpu.uuid, gpu.gpu.pci_bus_id
        except GpuLost as lost:
            code, call = lost.code, lost.call
        self.unreachable[index] = (code or Code.NOT_FOUND, call)
        return "", ""

    def _add_or_update(self, index: int, handle: c_void_p, uuid: str, skipped: list[Gpu] | None) -> GpuState:
        """Add or update a Gpu that answers, if it is selected. Raises GpuLost."""
        state = next((each for each in self.states if each.gpu.uuid == uuid), None)
        if state is None:
            facts = StaticFacts(FACTS_OF_GPU)
            facts.read(self._library, handle)
            gpu = make_gpu(uuid, index, facts)
            state = GpuState(gpu, handle, facts, gpu=gpu)
            if not self._selection.takes(gpu):
                self.unreachable.pop(index, None)
                if PCI_INFO in facts.pending:
                    # It may be selected by the PCI bus id, which could not be read.
                    self.unreachable[index] = (facts.pending[PCI_INFO], PCI_INFO)
                elif skipped is not None:
                    skipped.append(gpu)
                return state
            self.states.append(state)
        else:
            if not state.up or state.handle.value != handle.value:
                state.mark_found(handle)
            state.set_gpu(replace(state.gpu, index=index))
        self.unreachable.pop(index, None)
        self.changed = True
        self._sort()
        return state

    def _mark_missing(self, state: GpuState, found: dict[str, str]) -> None:
        """Mark a known Gpu that was not found as down."""
        index, gpu = state.gpu.index, state.gpu
        if state in self.states:
            self.states.remove(state)
        if index in self.unreachable:
            # Assume that the unreachable Gpu at this index is the known one.
            state.up, state.uncounted, state.code = False, False, self.unreachable.pop(index)[0]
        elif gpu.pci_bus_id and gpu.pci_bus_id in found.values():
            return  # Another Gpu is in this slot now.
        else:
            state.up, state.uncounted, state.code = False, True, Code.NOT_FOUND
        self.states.append(state)

    def _sort(self) -> None:
        self.states.sort(key=lambda state: (state.gpu.index, state.uncounted))

    def _forget_unselected(self) -> None:
        # If all selected Gpus were found, an unreachable one is not selected.
        if not self._selected or not self.unreachable:
            return
        gpus = [state.gpu for state in self.states]
        if all(any(is_selected(gpu, (choice,)) for gpu in gpus) for choice in self._selected):
            self.unreachable.clear()

    def _find_uncounted(self) -> tuple[str, ...]:
        """Return PCI addresses of Gpus that the driver certainly should count but does not."""
        counted = {state.gpu.pci_bus_id for state in self.states}
        if self._pci is None or self._selected or self.unreachable or "" in counted:
            return ()
        if (unbound := self._pci.without_driver()) != self._unbound:
            self._unbound = unbound
            for address in unbound:
                log.warning("%s has no kernel driver and is not read: run `gpuledger doctor`", address)
        absent = tuple(address for address in self._pci.gpus() if address not in counted)
        return self._pci.usable(absent) if absent else ()

    def _retry(self, state: GpuState, findings: NvmlFindings) -> None:
        # This single call fails for a lost GPU. A GPU that was reset may have another handle.
        handle = c_void_p()
        code = self._library.call(_BY_UUID, state.gpu.uuid.encode(), byref(handle))
        if code:
            state.mark_lost(code, _BY_UUID, PART, findings)
        else:
            state.mark_found(handle)

    def _read_pending_facts(self, state: GpuState, findings: NvmlFindings) -> None:
        if not state.facts.pending:
            return
        if state.facts.read(self._library, state.handle):
            state.set_gpu(make_gpu(state.gpu.uuid, state.gpu.index, state.facts))
        state.report_pending(PART, findings)

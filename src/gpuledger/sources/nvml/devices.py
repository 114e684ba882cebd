"""Which Gpus there are, and which of them answer."""

from __future__ import annotations

from ctypes import byref, c_void_p
from dataclasses import replace
from typing import Final

from gpuledger.host.pci import PciBus
from gpuledger.model.devices import is_chosen
from gpuledger.model.errors import SourceUnavailable
from gpuledger.sources.nvml.codes import NOT_FOUND
from gpuledger.sources.nvml.facts import PCI_INFO, UUID, Facts, make_gpu
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import GpuGone, Library, unavailable
from gpuledger.sources.nvml.mig import MigCuts
from gpuledger.sources.nvml.state import GpuState

PART: Final = "devices"
_COUNT: Final = "nvmlDeviceGetCount_v2"
_BY_INDEX: Final = "nvmlDeviceGetHandleByIndex_v2"
_BY_UUID: Final = "nvmlDeviceGetHandleByUUID"
_MISSING: Final = (
    "on the PCI bus but not known to the driver: look into the kernel log (`dmesg | grep -i nvrm`), "
    "then reset it or reboot"
)


class Devices:
    """The machine's Gpus: listed when the driver starts, checked each tick, counted every `slow_interval`.

    `whole` is False while it is known that a Gpu is there of which nothing can be told. `changed` is True
    after processes may sit on other Devices than before; who has seen to that resets it.
    """

    def __init__(
        self, library: Library, chosen: tuple[str, ...], slow_interval: float, pci: PciBus | None = None
    ) -> None:
        self._library = library
        self._chosen = chosen
        self._slow_interval = slow_interval
        self._pci = pci
        self._cuts = MigCuts(library, PART)
        self._total = 0
        self._slow_at: float | None = None
        self._absent: tuple[str, ...] = ()
        self._ever_told: set[str] = set()
        self.states: list[GpuState] = []
        self.missing: dict[int, tuple[int, str]] = {}
        self.changed = True
        self.whole = True

    def find_all(self) -> None:
        """List all Gpus after a start of the driver. One that does not answer is retried by `check`.

        Raises SourceUnavailable when there is none at all, and none was known.
        """
        code, total = self._library.number(_COUNT)
        if code:
            raise unavailable(code, _COUNT)
        before, self.states, self._slow_at = self.states, [], None
        skipped = self._list(total, before)
        if self.states:
            return
        if self.missing:
            raise unavailable(*next(iter(self.missing.values())))
        if skipped:
            text = f"devices: none of {', '.join(self._chosen)} is here; there are {', '.join(skipped)}"
            raise SourceUnavailable(text, "NO_DEVICES")
        raise SourceUnavailable(
            "NVML: no GPU is visible: in a container set NVIDIA_VISIBLE_DEVICES=all", "NO_DEVICES"
        )

    def check(self, now: float, findings: Findings) -> None:
        """One look per tick at `now`: the missing and the lost are tried again, MIG cuts are compared."""
        counted = self._count(now, findings)
        for index in tuple(self.missing):
            self._find(index)
        self._forget_unchosen()
        for index, (code, call) in self.missing.items():
            findings.fail(PART, code, f"{call} of index {index}")
        for state in self.states:
            if not state.up:
                self._try_again(state, findings)
            if state.up:
                try:
                    self._ask_facts(state, findings)
                    self.changed |= self._cuts.follow(state, findings)
                except GpuGone as gone:
                    state.lose(gone.code, gone.call, PART, findings)
        for address in self._absent:
            findings.note(PART, "MISSING", f"{address}: {_MISSING}")
        # Of a card that went before it told how it is cut, the Instances are not known to be gone.
        read = all(
            not state.gone and (state.cut_read if state.up else state.cut_known) for state in self.states
        )
        self.whole = counted and read and not self.missing and not self._absent

    def is_cut_as_known(self, state: GpuState) -> bool:
        """See `MigCuts.is_as_known`."""
        return self._cuts.is_as_known(state)

    def _count(self, now: float, findings: Findings) -> bool:
        """At the slow period: does the driver still count as many, and as many as the PCI bus has?"""
        if self._slow_at is not None:
            if now < self._slow_at:
                return True
            code, total = self._library.number(_COUNT)
            if code:
                findings.fail(PART, code, _COUNT)
                return False
            if total != self._total:
                self._list(total, list(self.states))
        self._slow_at = now + self._slow_interval
        self._absent = self._not_told()
        return True

    def _list(self, total: int, before: list[GpuState]) -> list[str]:
        """Find every Gpu anew, and keep those of `before` that cannot be found; UUIDs that are not chosen."""
        self._total, self.missing, self.changed = total, {}, True
        skipped: list[str] = []
        found: dict[str, str] = {}
        for index in range(total):
            found.update([self._find(index, skipped)])
        for state in before:
            if state.gpu.uuid not in found:
                self._miss(state, found)
        self._sort()
        self._forget_unchosen()
        return skipped

    def _find(self, index: int, skipped: list[str] | None = None) -> tuple[str, str]:
        """UUID and PCI bus id of the Gpu that the driver has at the index; empty if it does not answer."""
        handle = c_void_p()
        call = _BY_INDEX
        code, uuid = self._library.call(call, index, byref(handle)), ""
        try:
            if not code:
                call = UUID
                code, uuid = self._library.text(call, handle)
            if not code and uuid:
                gpu = self._meet(index, handle, uuid, skipped)
                return gpu.gpu.uuid, gpu.gpu.pci_bus_id
        except GpuGone as gone:
            code, call = gone.code, gone.call
        self.missing[index] = (code or NOT_FOUND, call)
        return "", ""

    def _meet(self, index: int, handle: c_void_p, uuid: str, skipped: list[str] | None) -> GpuState:
        """Take up a Gpu that answers, unless it is not chosen. Raises GpuGone."""
        state = next((each for each in self.states if each.gpu.uuid == uuid), None)
        if state is None:
            facts = Facts.of_gpu()
            facts.read(self._library, handle)
            gpu = make_gpu(uuid, index, facts)
            state = GpuState(gpu, handle, facts, gpu=gpu)
            # Identity is the UUID: a Gpu that was chosen by its index remains so under another one.
            if uuid not in self._ever_told and not is_chosen(gpu, self._chosen):
                self.missing.pop(index, None)
                if PCI_INFO in facts.unread:
                    # It may be chosen by what it did not tell.
                    self.missing[index] = (facts.unread[PCI_INFO], PCI_INFO)
                elif skipped is not None:
                    skipped.append(uuid)
                return state
            self._ever_told.add(uuid)
            self.states.append(state)
        else:
            if not state.up or state.handle.value != handle.value:
                state.revive(handle)
            state.describe(replace(state.gpu, index=index))
        self.missing.pop(index, None)
        self.changed = True
        self._sort()
        return state

    def _miss(self, state: GpuState, found: dict[str, str]) -> None:
        """A known Gpu was not found."""
        index, gpu = state.gpu.index, state.gpu
        if state in self.states:
            self.states.remove(state)
        if index in self.missing:
            # The index that does not answer is taken for the Gpu's own.
            state.up, state.gone, state.code = False, False, self.missing.pop(index)[0]
        elif gpu.pci_bus_id and gpu.pci_bus_id in found.values():
            return  # Another one is in its place now.
        else:
            state.up, state.gone, state.code = False, True, NOT_FOUND
        self.states.append(state)

    def _sort(self) -> None:
        self.states.sort(key=lambda state: (state.gpu.index, state.gone))

    def _forget_unchosen(self) -> None:
        # With every chosen Gpu found, one that does not answer is none of the user's concern.
        if not self._chosen or not self.missing:
            return
        names = {
            name.lower()
            for gpu in (state.gpu for state in self.states)
            for name in (str(gpu.index), gpu.uuid, gpu.pci_bus_id)
        }
        if all(choice.lower() in names for choice in self._chosen):
            self.missing.clear()

    def _not_told(self) -> tuple[str, ...]:
        """PCI addresses of Gpus that the driver does not count, where it is certain that it should."""
        told = {state.gpu.pci_bus_id for state in self.states}
        if self._pci is None or self._chosen or self.missing or "" in told:
            return ()
        absent = tuple(address for address in self._pci.gpus() if address not in told)
        return absent if absent and self._pci.all_usable() else ()

    def _try_again(self, state: GpuState, findings: Findings) -> None:
        # One call, and one that a lost card refuses. A card that was reset may have another handle.
        handle = c_void_p()
        code = self._library.call(_BY_UUID, state.gpu.uuid.encode(), byref(handle))
        if code:
            state.lose(code, _BY_UUID, PART, findings)
        else:
            state.revive(handle)

    def _ask_facts(self, state: GpuState, findings: Findings) -> None:
        if not state.facts.unread:
            return
        if state.facts.read(self._library, state.handle):
            state.describe(make_gpu(state.gpu.uuid, state.gpu.index, state.facts))
        state.report_unread(PART, findings)

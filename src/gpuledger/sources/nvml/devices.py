"""Which Gpus and Instances there are, which of them answer, and what is remembered of each between ticks."""

from __future__ import annotations

from ctypes import byref, c_uint, c_void_p, create_string_buffer
from dataclasses import dataclass, field
from typing import Final

from gpuledger.model.devices import Device, Gpu, is_chosen
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.codes import INVALID_ARGUMENT, NOT_FOUND, SUCCESS
from gpuledger.sources.nvml.facts import read_gpu, read_instance
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import GpuGone, Library, unavailable
from gpuledger.sources.nvml.structs import ATTRIBUTES

PART: Final = "devices"
_MOST_UUID: Final = 96

# Slot index, handle, UUID and attributes of a MIG device: what tells one cut from another.
Slot = tuple[int, int, bytes, bytes]


@dataclass(slots=True, eq=False)
class DeviceState:
    """What is kept of one Device between ticks.

    `support` says per quantity whether the Device has it, once that is known; `no_field` holds field ids
    that it does not tell. `held` are the processes of the last list by pid, with type bits and bytes, None
    if it could not be read; `pids` are those of the last list that could. `answered` and `fault` are of the
    running tick: whether anything was told, and the first error code met.
    """

    device: Device
    handle: c_void_p
    memory_total: int | None = None
    memory_v1: bool = False
    support: dict[str, bool] = field(default_factory=dict)
    no_field: set[int] = field(default_factory=set)
    plans: dict[object, object] = field(default_factory=dict)
    slow_values: dict[Quantity, float] = field(default_factory=dict)
    slow_at: float = 0.0
    slow_wanted: frozenset[Quantity] | None = None
    held: dict[int, tuple[int, int | None]] | None = None
    pids: frozenset[int] = frozenset()
    up: bool = True
    answered: bool = False
    fault: int = SUCCESS

    def learn(self, quantity: Quantity, has: bool) -> None:
        """Remember whether the Device has the quantity; a plan that asks for a thing it lacks is void."""
        if self.support.get(quantity.key) is not has:
            self.support[quantity.key] = has
            self.plans.clear()

    def forget(self) -> None:
        """Ask everything anew: the card came back or was cut differently."""
        self.support.clear()
        self.no_field.clear()
        self.plans.clear()
        self.slow_values = {}
        self.slow_wanted = None
        self.memory_v1 = False


@dataclass(slots=True, eq=False)
class GpuState(DeviceState):
    """A Gpu, its Instances, and what only a Gpu has.

    `last_sample` is the newest utilization sample seen, in the driver's microseconds. `code` says why a Gpu
    that is not `up` is not. `fresh` asks the owner of driver-side registrations to make them again.
    """

    gpu: Gpu = field(kw_only=True)
    index: int = field(kw_only=True)
    mig_capable: bool = False
    mig_enabled: bool = False
    instances: list[DeviceState] = field(default_factory=list)
    cut: list[Slot] = field(default_factory=list)
    last_sample: int | None = None
    samples_call: str | None = ""
    code: int = SUCCESS
    fresh: bool = True

    @property
    def parts(self) -> list[DeviceState]:
        """The Devices that processes can sit on: the Instances if there are any, else the Gpu."""
        return list(self.instances) or [self]

    def lose(self, code: int, call: str, part: str, findings: Findings) -> None:
        """The whole Gpu is out of reach."""
        self.up = False
        self.code = code
        findings.fail(part, code, call, self.gpu)

    def revive(self, handle: c_void_p) -> None:
        """The Gpu has a handle again, perhaps after a reset: nothing learnt of it before counts."""
        self.handle = handle
        self.up = True
        self.fresh = True
        self.last_sample = None
        self.samples_call = ""
        for part in (self, *self.instances):
            part.held = None
            part.forget()


class Devices:
    """The machine's Gpus, listed once per start of the driver and then only checked."""

    def __init__(self, library: Library, chosen: tuple[str, ...]) -> None:
        self._library = library
        self._chosen = chosen
        self._uuid = create_string_buffer(_MOST_UUID)
        self._mode = c_uint()
        self._pending = c_uint()
        self._attributes = create_string_buffer(ATTRIBUTES.size)
        self.states: list[GpuState] = []
        self.missing: dict[int, int] = {}
        self.changed = True
        self.whole = True

    def find_all(self) -> None:
        """List all Gpus. One that does not answer is kept if it was known, else retried by `check`.

        Raises SourceUnavailable when there is none at all.
        """
        total = c_uint()
        code = self._library.call("nvmlDeviceGetCount_v2", byref(total))
        if code:
            raise unavailable(code, "nvmlDeviceGetCount_v2")
        known = {state.index: state.gpu for state in self.states}
        self.states, self.missing, self.changed = [], {}, True
        skipped: list[str] = []
        for index in range(total.value):
            self._find(index, known.get(index), skipped)
        self._drop_renumbered()
        self._forget_unchosen()
        if self.states:
            return
        if self.missing:
            raise unavailable(next(iter(self.missing.values())), "nvmlDeviceGetHandleByIndex_v2")
        if skipped:
            text = f"devices: none of {', '.join(self._chosen)} is here; there are {', '.join(skipped)}"
            raise SourceUnavailable(text, "NO_DEVICES")
        raise SourceUnavailable(
            "NVML: no GPU is visible: in a container set NVIDIA_VISIBLE_DEVICES=all", "NO_DEVICES"
        )

    def check(self, findings: Findings) -> None:
        """One look per tick: the missing and the lost are tried again, MIG cuts are compared."""
        for index in tuple(self.missing):
            self._find(index, None, [])
        for index, code in self.missing.items():
            findings.fail(PART, code, f"nvmlDeviceGetHandleByIndex_v2 of index {index}")
        self.whole = not self.missing
        for state in self.states:
            if not state.up:
                self._try_again(state, findings)
            if state.up and state.mig_capable:
                try:
                    self._compare_cut(state, findings)
                except GpuGone as gone:
                    state.lose(gone.code, gone.call, PART, findings)

    def _find(self, index: int, known: Gpu | None, skipped: list[str]) -> None:
        handle = c_void_p()
        code = self._library.call("nvmlDeviceGetHandleByIndex_v2", index, byref(handle))
        state: GpuState | None = None
        if code == SUCCESS:
            try:
                state = self._adopt(handle, index)
                code = SUCCESS if state else NOT_FOUND
            except GpuGone as gone:
                code = gone.code
        if state is None and known is not None:
            state = GpuState(known, handle, gpu=known, index=index, up=False, code=code)
        if state is None:
            self.missing[index] = code
            return
        self.missing.pop(index, None)
        if not is_chosen(state.gpu, self._chosen):
            skipped.append(state.gpu.uuid)
            return
        self.states.append(state)
        self.states.sort(key=lambda each: each.index)
        self.changed = True

    def _adopt(self, handle: c_void_p, index: int) -> GpuState | None:
        told = read_gpu(self._library, handle, index)
        if told is None:
            return None
        gpu, memory = told
        state = GpuState(gpu, handle, memory_total=memory, gpu=gpu, index=index)
        code = self._library.ask("nvmlDeviceGetMigMode", handle, byref(self._mode), byref(self._pending))
        state.mig_capable = code == SUCCESS
        return state

    def _drop_renumbered(self) -> None:
        # A known Gpu stands for the index that does not answer, unless it answers under another one now.
        found = {state.gpu for state in self.states if state.up}
        for state in [state for state in self.states if not state.up and state.gpu in found]:
            self.states.remove(state)
            self.missing[state.index] = state.code

    def _forget_unchosen(self) -> None:
        # With every chosen Gpu found, one that does not answer is none of the user's concern.
        names = {
            name.lower()
            for state in self.states
            for name in (str(state.index), state.gpu.uuid, state.gpu.pci_bus_id)
        }
        if self._chosen and all(choice.lower() in names for choice in self._chosen):
            self.missing.clear()

    def _try_again(self, state: GpuState, findings: Findings) -> None:
        # One call, and one that a lost card refuses. A card that was reset may have another handle.
        handle = c_void_p()
        uuid = state.gpu.uuid.encode()
        code = self._library.call("nvmlDeviceGetHandleByUUID", uuid, byref(handle))
        if code == SUCCESS:
            state.revive(handle)
        else:
            state.lose(code, "nvmlDeviceGetHandleByUUID", PART, findings)

    def _compare_cut(self, state: GpuState, findings: Findings) -> None:
        """Follow MIG re-partitioning.

        Costs one call a tick on cards that can be cut and are not; on cut ones also one per possible slot and
        two per Instance (23 on a card cut in seven). NVML announces no change, and handles, ids and UUIDs may
        come back for an Instance of another size; with the attributes they tell. The rest of what is static
        is read only when these are new.
        """
        code = self._library.ask(
            "nvmlDeviceGetMigMode", state.handle, byref(self._mode), byref(self._pending)
        )
        if code:
            self._fail(state, code, "nvmlDeviceGetMigMode", findings)
            return
        enabled = self._mode.value == 1
        if enabled != state.mig_enabled:
            # What a cut card does not tell, an uncut one may.
            state.mig_enabled = enabled
            state.forget()
            state.samples_call, state.last_sample = "", None
            self.changed = True
        slots = self._slots(state, findings) if enabled else []
        if slots is not None and slots != state.cut:
            self._recut(state, slots, findings)

    def _slots(self, state: GpuState, findings: Findings) -> list[Slot] | None:
        """Every MIG device in the driver's order; None if that cannot be told."""
        library = self._library
        slots: list[Slot] = []
        for index in range(library.number("nvmlDeviceGetMaxMigDeviceCount", state.handle) or 0):
            handle = c_void_p()
            call = "nvmlDeviceGetMigDeviceHandleByIndex"
            code = library.ask(call, state.handle, index, byref(handle))
            if code in (NOT_FOUND, INVALID_ARGUMENT):
                continue  # Slots are not filled from the front.
            if code == SUCCESS:
                call = "nvmlDeviceGetUUID"
                code = library.ask(call, handle, self._uuid, _MOST_UUID)
            if code:
                self._fail(state, code, f"{call} of MIG device {index}", findings)
                return None
            told = library.ask("nvmlDeviceGetAttributes_v2", handle, self._attributes) == SUCCESS
            slots.append((index, handle.value or 0, self._uuid.value, self._attributes.raw if told else b""))
        return slots

    def _recut(self, state: GpuState, slots: list[Slot], findings: Findings) -> None:
        kept = dict(zip(state.cut, state.instances, strict=True))
        instances: list[DeviceState] = []
        for slot in slots:
            index, address, uuid, attributes = slot
            part = kept.get(slot)
            if part is None:
                handle = c_void_p(address)
                text = uuid.decode("ascii", "backslashreplace")
                told = read_instance(self._library, state.gpu, handle, index, text, attributes)
                if told is None:
                    self._fail(
                        state, NOT_FOUND, f"nvmlDeviceGetGpuInstanceId of MIG device {index}", findings
                    )
                    return
                part = DeviceState(told[0], handle, memory_total=told[1])
            instances.append(part)
        state.instances, state.cut, self.changed = instances, slots, True

    def _fail(self, state: GpuState, code: int, call: str, findings: Findings) -> None:
        self.whole = False
        findings.fail(PART, code, call, state.gpu)

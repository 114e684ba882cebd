"""The quantities of one Device in one tick: only the wanted ones, each on its own."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import create_string_buffer
from typing import Final

from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.answers import PART, accept, refuse, scale
from gpuledger.sources.nvml.codes import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    UNSUPPORTED,
)
from gpuledger.sources.nvml.fields import (
    FIELDS,
    GROUPS,
    LINK_RATE,
    LINKS,
    MEMORY,
    MEMORY_CALL,
    Field,
    Group,
    Plan,
)
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library, view
from gpuledger.sources.nvml.numbers import Numbers
from gpuledger.sources.nvml.state import DeviceState, GpuState
from gpuledger.sources.nvml.structs import (
    BLANK_32,
    BLANK_64,
    FIELD,
    MEMORY_V1,
    MEMORY_V2,
    MEMORY_V2_VERSION,
    UNSIGNED_INT,
    VALUE_TYPES,
)

_CALL: Final = "nvmlDeviceGetFieldValues"


class FieldValues:
    """Reads the batch into a buffer that is made once. What a Device tells by no field `numbers` ask for."""

    def __init__(self, library: Library, numbers: Numbers) -> None:
        self._library = library
        self._numbers = numbers
        self._buffer = create_string_buffer(FIELD.size * len(FIELDS))

    def read(self, state: DeviceState, plan: Plan, values: dict[Quantity, float], findings: Findings) -> None:
        """Put what is told into `values`. Raises GpuGone."""
        told = view(self._buffer, len(plan.request))
        told[:] = plan.request
        whole = self._library.ask(_CALL, state.handle, len(plan.fields), self._buffer)
        for field, entry in zip(plan.fields, FIELD.iter_unpack(told), strict=True):
            *_, value_type, answer, raw = entry
            if field.value_type is not None:
                value_type = field.value_type
            layout = VALUE_TYPES.get(value_type)
            code = whole or answer or (SUCCESS if layout else ARGUMENT_VERSION_MISMATCH)
            if code == SUCCESS and layout:
                value = layout.unpack(raw)[0]
                if value < (BLANK_32 if value_type == UNSIGNED_INT else BLANK_64):
                    accept(
                        state, field.quantity, scale(value, field.multiply, field.divide), values, findings
                    )
            elif code in UNSUPPORTED or code == INVALID_ARGUMENT:
                # INVALID_ARGUMENT: an id that this driver does not know yet.
                self._without(state, field, values, findings)
            else:
                self._despite(state, field, code, values, findings)

    def _without(
        self, state: DeviceState, field: Field, values: dict[Quantity, float], findings: Findings
    ) -> None:
        """The Device does not tell the field id: from now on its fallback is asked instead."""
        state.no_field.add(field.field_id)
        state.plans.clear()
        if field.fallback:
            self._numbers.read(state, field.fallback, values, findings)
        else:
            state.learn(field.quantity, False)

    def _despite(
        self, state: DeviceState, field: Field, code: int, values: dict[Quantity, float], findings: Findings
    ) -> None:
        """The field failed this time: the fallback tells the same."""
        before = len(findings.failures)
        if field.fallback:
            self._numbers.read(state, field.fallback, values, findings)
        if field.quantity not in values and len(findings.failures) == before:
            refuse(state, field.quantity, code, f"{_CALL} id {field.field_id}", findings)


def tell_link_rate(state: DeviceState, values: dict[Quantity, float], now: float, findings: Findings) -> None:
    """NVLINK_RATE from this tick's and the last tick's counters, both of which must be good.

    A counter that was set back, or whose low reading is held back until it is confirmed, tells no rate.
    """
    before, state.links = state.links, None
    if any(state.support.get(quantity.key) is False for quantity in LINKS):
        state.learn(LINK_RATE, False)
        return
    if any(quantity not in values or state.holds_back(quantity) for quantity in LINKS):
        return
    total = sum(values[quantity] for quantity in LINKS)
    state.links = total, now
    state.learn(LINK_RATE, True)
    if before and total >= before[0] and now > before[1]:
        accept(state, LINK_RATE, (total - before[0]) / (now - before[1]), values, findings)


# A driver older than nvmlDeviceGetMemoryInfo_v2 or than this version of its structure.
_TRY_V1: Final = (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NOT_SUPPORTED, INVALID_ARGUMENT)
# Seconds after which what a Device does not have is asked for once more.
_ASK_AGAIN: Final = 600.0


class Readings:
    """Reads quantities, into buffers that are made once."""

    def __init__(self, library: Library, slow_interval: float) -> None:
        self._library = library
        self._slow_interval = slow_interval
        self._numbers = Numbers(library)
        self._fields = FieldValues(library, self._numbers)
        self._group = create_string_buffer(max(group.layout.size for group in GROUPS))
        self._memory_v1 = create_string_buffer(MEMORY_V1.size)
        self._memory_v2 = create_string_buffer(MEMORY_V2.size)

    def read(
        self, state: DeviceState, wanted: frozenset[Quantity], now: float, findings: Findings
    ) -> dict[Quantity, float]:
        """Values of this tick; slow quantities from the last time they were due. Raises GpuGone."""
        same = state.slow_wanted is wanted or state.slow_wanted == wanted
        slow = now >= state.slow_at or not same
        if slow and (state.doubt_at is None or now >= state.doubt_at):
            if state.doubt_at is not None:
                state.doubt_lacks()
            state.doubt_at = now + _ASK_AGAIN
        if slow:
            state.slow_faults.clear()
        # A value that is not there is a failure until it is read again, not only in the tick that failed.
        for code, call in state.slow_faults:
            findings.fail(PART, code, call, state.device)
        values: dict[Quantity, float] = {}
        plan = state.plan(wanted, slow)
        for group, asked in plan.groups:
            self._read_group(state, group, asked, values, findings)
        if plan.memory:
            self._read_memory(state, plan.memory, values, findings)
        if plan.cut and isinstance(state, GpuState):
            _tell_cut(state, plan.cut, values, findings)
        for number in plan.numbers:
            self._numbers.read(state, number, values, findings)
        if plan.fields:
            self._fields.read(state, plan, values, findings)
        if plan.link_rate:
            tell_link_rate(state, values, now, findings)
        else:
            state.links = None
        state.answered = state.answered or bool(values)
        for quantity in plan.unasked:
            values.pop(quantity, None)
        if slow:
            state.slow_at, state.slow_wanted = now + self._slow_interval, wanted
            state.slow_values = {quantity: value for quantity, value in values.items() if quantity.slow}
        else:
            values.update(state.slow_values)
        return values

    def supported(self, state: DeviceState, wanted: frozenset[Quantity]) -> Mapping[str, bool]:
        """For the wanted quantities whether the Device has them, as far as known by now."""
        return state.plan(wanted, False).supported

    def _read_group(
        self,
        state: DeviceState,
        group: Group,
        asked: tuple[Quantity, ...],
        values: dict[Quantity, float],
        findings: Findings,
    ) -> None:
        code = self._library.ask(group.call, state.handle, self._group)
        told = group.layout.unpack_from(self._group)
        for quantity in asked:
            value = told[group.tells.index(quantity)]
            if code:
                refuse(state, quantity, code, group.call, findings)
            elif value < BLANK_64:
                accept(state, quantity, value / group.divide if group.divide > 1 else value, values, findings)

    def _read_memory(
        self,
        state: DeviceState,
        asked: tuple[Quantity, ...],
        values: dict[Quantity, float],
        findings: Findings,
    ) -> None:
        call, code = MEMORY_CALL, FUNCTION_NOT_FOUND
        told: tuple[int | None, ...] = ()
        if not state.memory_v1:
            MEMORY_V2.pack_into(self._memory_v2, 0, MEMORY_V2_VERSION, 0, 0, 0, 0)
            code = self._library.ask(call, state.handle, self._memory_v2)
            told = MEMORY_V2.unpack(self._memory_v2)[1:]
        if code in _TRY_V1:
            # The two differ in what counts as used, so a Device keeps to one of them.
            call, state.memory_v1 = "nvmlDeviceGetMemoryInfo", True
            code = self._library.ask(call, state.handle, self._memory_v1)
            total, available, used = MEMORY_V1.unpack(self._memory_v1)
            told = (total, None, available, used)
        if code == SUCCESS and told[0] == 0:
            code = NOT_SUPPORTED  # Unified memory, as some drivers say it.
        for quantity in asked:
            value = None if code else told[MEMORY.index(quantity)]
            if code or value is None:
                refuse(state, quantity, code or NOT_SUPPORTED, call, findings)
            elif value < BLANK_64:
                accept(state, quantity, value, values, findings)


def _tell_cut(
    state: GpuState, asked: tuple[Quantity, ...], values: dict[Quantity, float], findings: Findings
) -> None:
    for quantity in asked:
        if not state.mig_capable:
            state.learn(quantity, False)
        elif state.cut_numbers.get(quantity, BLANK_32) != BLANK_32:
            accept(state, quantity, state.cut_numbers[quantity], values, findings)

"""The quantities of one Device in one tick: only the wanted ones, each on its own."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import byref, c_uint, c_ulonglong, create_string_buffer, sizeof
from typing import Final

from gpuledger.model.quantities import Level, Quantity
from gpuledger.sources.nvml.codes import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    NOTHING_YET,
    SUCCESS,
    UNSUPPORTED,
)
from gpuledger.sources.nvml.fields import (
    CUMULATIVE,
    FIELDS,
    MEMORY,
    MEMORY_CALL,
    RATES,
    RATES_CALL,
    Field,
    Number,
)
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library, view
from gpuledger.sources.nvml.plan import Plan, make_plan
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

PART: Final = "readings"
_FIELD_VALUES: Final = "nvmlDeviceGetFieldValues"
# A driver older than nvmlDeviceGetMemoryInfo_v2 or than this version of its structure.
_TRY_V1: Final = (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NOT_SUPPORTED, INVALID_ARGUMENT)


class Readings:
    """Reads quantities through buffers that are kept."""

    def __init__(self, library: Library, slow_interval: float) -> None:
        self._library = library
        self._slow_interval = slow_interval
        self._rates = (c_uint * 2)()
        first = byref(self._rates)
        self._outputs = {1: (first,), 2: (first, byref(self._rates, sizeof(c_uint)))}
        self._wide = c_ulonglong()
        self._memory_v1 = create_string_buffer(MEMORY_V1.size)
        self._memory_v2 = create_string_buffer(MEMORY_V2.size)
        self._fields = create_string_buffer(FIELD.size * len(FIELDS))

    def read(
        self, state: DeviceState, wanted: frozenset[Quantity], now: float, findings: Findings
    ) -> dict[Quantity, float]:
        """Values of this tick; slow quantities from the last time they were due. Raises GpuGone."""
        same = state.slow_wanted is wanted or state.slow_wanted == wanted
        slow = now >= state.slow_at or not same
        values: dict[Quantity, float] = {}
        plan = self._plan(state, wanted, slow)
        if plan.rates:
            self._read_rates(state, plan.rates, values, findings)
        if plan.memory:
            self._read_memory(state, plan.memory, values, findings)
        for number in plan.numbers:
            self._read_number(state, number, values, findings)
        if plan.fields:
            self._read_fields(state, plan, values, findings)
        state.answered = state.answered or bool(values)
        if slow:
            state.slow_at, state.slow_wanted = now + self._slow_interval, wanted
            state.slow_values = {quantity: value for quantity, value in values.items() if quantity.slow}
        else:
            values.update(state.slow_values)
        return values

    def supported(self, state: DeviceState, wanted: frozenset[Quantity]) -> Mapping[str, bool]:
        """For the wanted quantities whether the Device has them, as far as known by now."""
        return self._plan(state, wanted, False).supported

    def _plan(self, state: DeviceState, wanted: frozenset[Quantity], slow: bool) -> Plan:
        plan = state.plans.get((wanted, slow))
        if plan is None:
            if len(state.plans) > 8:
                state.plans.clear()
            level = Level.GPU if isinstance(state, GpuState) else Level.INSTANCE
            plan = make_plan(level, wanted, slow, state.support, state.no_field)
            state.plans[wanted, slow] = plan
        return plan

    def _read_rates(
        self,
        state: DeviceState,
        asked: tuple[Quantity, ...],
        values: dict[Quantity, float],
        findings: Findings,
    ) -> None:
        code = self._library.ask(RATES_CALL, state.handle, self._outputs[1][0])
        for quantity in asked:
            if code:
                refuse(state, quantity, code, RATES_CALL, findings)
            else:
                accept(state, quantity, self._rates[RATES.index(quantity)] / 100, values, findings)

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

    def _read_number(
        self, state: DeviceState, number: Number, values: dict[Quantity, float], findings: Findings
    ) -> None:
        outputs = (byref(self._wide),) if number.wide else self._outputs[number.outputs]
        code = self._library.ask(number.call, state.handle, *number.arguments, *outputs)
        if code:
            refuse(state, number.quantity, code, number.call, findings)
            return
        raw = self._wide.value if number.wide else self._rates[number.take]
        if raw == number.blank or (number.wide and raw >= number.blank):
            return
        value = raw * number.multiply
        accept(
            state, number.quantity, value / number.divide if number.divide > 1 else value, values, findings
        )

    def _read_fields(
        self, state: DeviceState, plan: Plan, values: dict[Quantity, float], findings: Findings
    ) -> None:
        buffer = self._fields
        view(buffer, len(plan.request))[:] = plan.request
        whole = self._library.ask(_FIELD_VALUES, state.handle, len(plan.fields), buffer)
        for place, field in enumerate(plan.fields):
            *_, value_type, answer, raw = FIELD.unpack_from(buffer, place * FIELD.size)
            layout = VALUE_TYPES.get(value_type)
            code = whole or answer or (SUCCESS if layout else ARGUMENT_VERSION_MISMATCH)
            if code == SUCCESS and layout:
                value = layout.unpack(raw)[0]
                if value < (BLANK_32 if value_type == UNSIGNED_INT else BLANK_64):
                    accept(state, field.quantity, value, values, findings)
            elif code in UNSUPPORTED or code == INVALID_ARGUMENT:
                # INVALID_ARGUMENT: an id that this driver does not know yet.
                self._without_field(state, field, values, findings)
            else:
                self._despite_field(state, field, code, values, findings)

    def _without_field(
        self, state: DeviceState, field: Field, values: dict[Quantity, float], findings: Findings
    ) -> None:
        """The Device does not tell the field id: from now on its fallback is asked instead."""
        state.no_field.add(field.field_id)
        state.plans.clear()
        if field.fallback:
            self._read_number(state, field.fallback, values, findings)
        else:
            state.learn(field.quantity, False)

    def _despite_field(
        self, state: DeviceState, field: Field, code: int, values: dict[Quantity, float], findings: Findings
    ) -> None:
        """The field failed this time: the fallback tells the same counter."""
        before = len(findings.failures)
        if field.fallback:
            self._read_number(state, field.fallback, values, findings)
        if field.quantity not in values and len(findings.failures) == before:
            refuse(state, field.quantity, code, f"{_FIELD_VALUES} id {field.field_id}", findings)


def accept(
    state: DeviceState, quantity: Quantity, value: float, values: dict[Quantity, float], findings: Findings
) -> None:
    """Take in what the Device told of the quantity, in its unit."""
    if quantity.believes(value):
        values[quantity] = state.steady(quantity, value) if quantity in CUMULATIVE else value
    else:
        findings.invalid += 1
    if state.support.get(quantity.key) is not True:
        state.learn(quantity, True)


def refuse(state: DeviceState, quantity: Quantity, code: int, call: str, findings: Findings) -> None:
    """Take in why the Device did not tell the quantity."""
    if code in UNSUPPORTED:
        state.learn(quantity, False)
    elif code not in NOTHING_YET:
        findings.fail(PART, code, f"{quantity.key}: {call}", state.device)
        if code != NO_PERMISSION:
            state.fault = state.fault or code

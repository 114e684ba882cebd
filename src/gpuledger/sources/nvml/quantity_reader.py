"""Read the wanted quantities of one Device in one tick; a failed call affects only its own quantities."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import byref, c_uint, c_ulonglong, create_string_buffer, sizeof
from typing import Final

from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.codes import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    UNSUPPORTED,
)
from gpuledger.sources.nvml.device_state import DeviceState, GpuState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import NvmlLibrary, buffer_view
from gpuledger.sources.nvml.quantity_values import PART, record_error, record_value, scale_value
from gpuledger.sources.nvml.queries import (
    FIELD_QUERIES,
    MEMORY_CALL,
    MEMORY_QUANTITIES,
    NVLINK_COUNTERS,
    NVLINK_RATE,
    STRUCT_QUERIES,
    FieldQuery,
    NumberQuery,
    QueryPlan,
    StructQuery,
)
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


class NumberReader:
    """Makes calls that return one number; the output variables are reused."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._narrow = (c_uint * 2)()
        self._wide = c_ulonglong()
        first = byref(self._narrow)
        self._outputs = {1: (first,), 2: (first, byref(self._narrow, sizeof(c_uint)))}

    def read(
        self, state: DeviceState, number: NumberQuery, values: dict[Quantity, float], findings: NvmlFindings
    ) -> None:
        """Add the number to `values` if the Device reports it. Raises GpuLost."""
        call = number.call
        if number.older_call and not self._library.has_symbol(call):
            call = number.older_call
        outputs = (byref(self._wide),) if number.is_64_bit else self._outputs[number.outputs]
        code = self._library.call_device(call, state.handle, *number.arguments, *outputs)
        if code:
            record_error(state, number.quantity, code, call, findings)
            return
        raw = self._wide.value if number.is_64_bit else self._narrow[number.output_index]
        if raw == number.blank or (number.is_64_bit and raw >= number.blank):
            return
        record_value(
            state, number.quantity, scale_value(raw, number.multiply, number.divide), values, findings
        )


_CALL: Final = "nvmlDeviceGetFieldValues"


class FieldValueReader:
    """Reads the batch of fields into a reused buffer; `numbers` makes the fallback calls."""

    def __init__(self, library: NvmlLibrary, numbers: NumberReader) -> None:
        self._library = library
        self._numbers = numbers
        self._buffer = create_string_buffer(FIELD.size * len(FIELD_QUERIES))

    def read(
        self, state: DeviceState, plan: QueryPlan, values: dict[Quantity, float], findings: NvmlFindings
    ) -> None:
        """Add the reported fields to `values`. Raises GpuLost."""
        entries = buffer_view(self._buffer, len(plan.request))
        entries[:] = plan.request
        batch_code = self._library.call_device(_CALL, state.handle, len(plan.fields), self._buffer)
        for field, entry in zip(plan.fields, FIELD.iter_unpack(entries), strict=True):
            *_, value_type, field_code, raw = entry
            if field.value_type is not None:
                value_type = field.value_type
            layout = VALUE_TYPES.get(value_type)
            code = batch_code or field_code or (SUCCESS if layout else ARGUMENT_VERSION_MISMATCH)
            if code == SUCCESS and layout:
                value = layout.unpack(raw)[0]
                if value < (BLANK_32 if value_type == UNSIGNED_INT else BLANK_64):
                    record_value(
                        state,
                        field.quantity,
                        scale_value(value, field.multiply, field.divide),
                        values,
                        findings,
                    )
            elif code in UNSUPPORTED or code == INVALID_ARGUMENT:
                # INVALID_ARGUMENT: this driver does not know the field id.
                self._use_fallback(state, field, values, findings)
            else:
                self._recover(state, field, code, values, findings)

    def _use_fallback(
        self, state: DeviceState, field: FieldQuery, values: dict[Quantity, float], findings: NvmlFindings
    ) -> None:
        """Remember that the Device lacks the field id, and use the fallback call from now on."""
        state.missing_fields.add(field.field_id)
        state.plans.clear()
        if field.fallback:
            self._numbers.read(state, field.fallback, values, findings)
        else:
            state.set_support(field.quantity, False)

    def _recover(
        self,
        state: DeviceState,
        field: FieldQuery,
        code: int,
        values: dict[Quantity, float],
        findings: NvmlFindings,
    ) -> None:
        """The field failed in this tick: try the fallback call once."""
        before = len(findings.failures)
        if field.fallback:
            self._numbers.read(state, field.fallback, values, findings)
        if field.quantity not in values and len(findings.failures) == before:
            record_error(state, field.quantity, code, f"{_CALL} id {field.field_id}", findings)


def record_nvlink_rate(
    state: DeviceState, values: dict[Quantity, float], now: float, findings: NvmlFindings
) -> None:
    """Compute NVLINK_RATE from the counters of this and the last tick.

    No rate follows from a counter that was reset, or that has an unconfirmed low reading.
    """
    before, state.last_nvlink_total = state.last_nvlink_total, None
    if any(state.support.get(quantity.key) is False for quantity in NVLINK_COUNTERS):
        state.set_support(NVLINK_RATE, False)
        return
    if any(quantity not in values or state.is_held_back(quantity) for quantity in NVLINK_COUNTERS):
        return
    total = sum(values[quantity] for quantity in NVLINK_COUNTERS)
    state.last_nvlink_total = total, now
    state.set_support(NVLINK_RATE, True)
    if before and total >= before[0] and now > before[1]:
        record_value(state, NVLINK_RATE, (total - before[0]) / (now - before[1]), values, findings)


# The driver is older than nvmlDeviceGetMemoryInfo_v2 or this version of its structure.
_FALL_BACK_TO_V1: Final = (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, NOT_SUPPORTED, INVALID_ARGUMENT)
# Seconds after which unsupported quantities are queried again.
_RETRY_UNSUPPORTED_AFTER: Final = 600.0


class QuantityReader:
    """Reads quantities into reused buffers."""

    def __init__(self, library: NvmlLibrary, slow_interval: float) -> None:
        self._library = library
        self._slow_interval = slow_interval
        self._numbers = NumberReader(library)
        self._fields = FieldValueReader(library, self._numbers)
        self._struct_buffer = create_string_buffer(max(query.layout.size for query in STRUCT_QUERIES))
        self._memory_v1 = create_string_buffer(MEMORY_V1.size)
        self._memory_v2 = create_string_buffer(MEMORY_V2.size)

    def read(
        self, state: DeviceState, wanted: frozenset[Quantity], now: float, findings: NvmlFindings
    ) -> dict[Quantity, float]:
        """Return the values of this tick; slow quantities are repeated until they are due. Raises GpuLost."""
        unchanged = wanted is state.slow_wanted or wanted == state.slow_wanted
        slow = now >= state.slow_due_at or not unchanged
        if slow and (state.retry_unsupported_at is None or now >= state.retry_unsupported_at):
            if state.retry_unsupported_at is not None:
                state.retry_unsupported()
            state.retry_unsupported_at = now + _RETRY_UNSUPPORTED_AFTER
        if slow:
            state.slow_errors.clear()
        # Report a failed slow quantity in each tick until it is read again.
        for code, call in state.slow_errors:
            findings.add_error(PART, code, call, state.device)
        values: dict[Quantity, float] = {}
        plan = state.plan(wanted, slow)
        for query, quantities in plan.structs:
            self._read_struct(state, query, quantities, values, findings)
        if plan.memory:
            self._read_memory(state, plan.memory, values, findings)
        if plan.mig and isinstance(state, GpuState):
            _record_mig_values(state, plan.mig, values, findings)
        for number in plan.numbers:
            self._numbers.read(state, number, values, findings)
        if plan.fields:
            self._fields.read(state, plan, values, findings)
        if plan.nvlink_rate:
            record_nvlink_rate(state, values, now, findings)
        else:
            state.last_nvlink_total = None
        state.answered = state.answered or bool(values)
        for quantity in plan.intermediate:
            values.pop(quantity, None)
        if slow:
            state.slow_due_at, state.slow_wanted = now + self._slow_interval, wanted
            state.slow_values = {quantity: value for quantity, value in values.items() if quantity.slow}
        else:
            values.update(state.slow_values)
        return values

    def supported(self, state: DeviceState, wanted: frozenset[Quantity]) -> Mapping[str, bool]:
        """Return whether the Device has each wanted quantity, by key, as far as known."""
        return state.plan(wanted, False).supported

    def _read_struct(
        self,
        state: DeviceState,
        query: StructQuery,
        quantities: tuple[Quantity, ...],
        values: dict[Quantity, float],
        findings: NvmlFindings,
    ) -> None:
        code = self._library.call_device(query.call, state.handle, self._struct_buffer)
        numbers = query.layout.unpack_from(self._struct_buffer)
        for quantity in quantities:
            value = numbers[query.quantities.index(quantity)]
            if code:
                record_error(state, quantity, code, query.call, findings)
            elif value < BLANK_64:
                record_value(
                    state, quantity, value / query.divide if query.divide > 1 else value, values, findings
                )

    def _read_memory(
        self,
        state: DeviceState,
        quantities: tuple[Quantity, ...],
        values: dict[Quantity, float],
        findings: NvmlFindings,
    ) -> None:
        call, code = MEMORY_CALL, FUNCTION_NOT_FOUND
        sizes: tuple[int | None, ...] = ()
        if not state.uses_memory_v1:
            MEMORY_V2.pack_into(self._memory_v2, 0, MEMORY_V2_VERSION, 0, 0, 0, 0)
            code = self._library.call_device(call, state.handle, self._memory_v2)
            sizes = MEMORY_V2.unpack(self._memory_v2)[1:]
        if code in _FALL_BACK_TO_V1:
            # The two calls define used memory differently, so a Device keeps using the same one.
            call, state.uses_memory_v1 = "nvmlDeviceGetMemoryInfo", True
            code = self._library.call_device(call, state.handle, self._memory_v1)
            total, available, used = MEMORY_V1.unpack(self._memory_v1)
            sizes = (total, None, available, used)
        if code == SUCCESS and sizes[0] == 0:
            code = NOT_SUPPORTED  # Some drivers report unified memory as a total of 0.
        for quantity in quantities:
            value = None if code else sizes[MEMORY_QUANTITIES.index(quantity)]
            if code or value is None:
                record_error(state, quantity, code or NOT_SUPPORTED, call, findings)
            elif value < BLANK_64:
                record_value(state, quantity, value, values, findings)


def _record_mig_values(
    state: GpuState, quantities: tuple[Quantity, ...], values: dict[Quantity, float], findings: NvmlFindings
) -> None:
    for quantity in quantities:
        if not state.mig_capable:
            state.set_support(quantity, False)
        elif state.mig_values.get(quantity, BLANK_32) != BLANK_32:
            record_value(state, quantity, state.mig_values[quantity], values, findings)

"""Read the wanted quantities of one Device in one tick; a failed call affects only its own quantities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import byref, c_uint, c_ulonglong, create_string_buffer, sizeof
from typing import Final

from gpuledger.model.quantities import (
    PCIE_GENERATION,
    PCIE_LINK_BUSY,
    PCIE_WIDTH_MAX,
    Quantity,
    is_link_busy,
    limit_link_width,
    link_busy_needs,
)
from gpuledger.sources.nvml.codes import UNSUPPORTED, Code
from gpuledger.sources.nvml.device_state import DeviceState, GpuState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import NvmlLibrary, buffer_view
from gpuledger.sources.nvml.link_states import LinkStates
from gpuledger.sources.nvml.quantity_values import PART, ValueRecorder
from gpuledger.sources.nvml.queries import (
    ALL_FIELD_QUERIES,
    MAX_LINKS,
    MEMORY_CALL,
    MEMORY_QUANTITIES,
    MOST_OUTPUTS,
    NVLINK_COUNTERS,
    NVLINK_RATE,
    RATE_COUNTERS,
    STRUCT_QUERIES,
    Depth,
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

_FIELDS: Final = "nvmlDeviceGetFieldValues"
# The driver is older than nvmlDeviceGetMemoryInfo_v2 or this version of its structure.
_FALL_BACK_TO_V1: Final = (
    Code.FUNCTION_NOT_FOUND,
    Code.ARGUMENT_VERSION_MISMATCH,
    Code.NOT_SUPPORTED,
    Code.INVALID_ARGUMENT,
)
# Seconds after which unsupported quantities are queried again.
_RETRY_UNSUPPORTED_AFTER: Final = 600.0


class QuantityReader:
    """Reads quantities into reused buffers."""

    def __init__(
        self,
        library: NvmlLibrary,
        slow_interval: float,
        slot_width: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """`slot_width` returns the lanes of the slot of a PCI bus id, None if unknown."""
        self._slot_width = slot_width
        self._library = library
        self._slow_interval = slow_interval
        self._narrow = (c_uint * MOST_OUTPUTS)()
        self._wide = c_ulonglong()
        self._outputs = tuple(byref(self._narrow, n * sizeof(c_uint)) for n in range(MOST_OUTPUTS))
        self._field_buffer = create_string_buffer(FIELD.size * (len(ALL_FIELD_QUERIES) + MAX_LINKS))
        self._links = LinkStates(library)
        self._struct_buffer = create_string_buffer(max(query.layout.size for query in STRUCT_QUERIES))
        self._memory_v1 = create_string_buffer(MEMORY_V1.size)
        self._memory_v2 = create_string_buffer(MEMORY_V2.size)

    def read(
        self, state: DeviceState, wanted: frozenset[Quantity], now: float, findings: NvmlFindings
    ) -> ValueRecorder:
        """Return the values of this tick; slow quantities are repeated until they are due. Raises GpuLost."""
        unchanged = wanted is state.slow_wanted or wanted == state.slow_wanted
        slow = now >= state.slow_due_at or not unchanged
        depth = Depth.CONSTANT if not unchanged or state.lacks_constants else Depth.SLOW
        if slow and (state.retry_unsupported_at is None or now >= state.retry_unsupported_at):
            if state.retry_unsupported_at is not None:
                state.retry_unsupported()
            depth = Depth.CONSTANT
            state.retry_unsupported_at = now + _RETRY_UNSUPPORTED_AFTER
        if slow:
            state.slow_errors.clear()
        # Report a failed slow quantity in each tick until it is read again.
        for code, call in state.slow_errors:
            findings.add_error(PART, code, call, state.device)
        recorder = ValueRecorder(state, findings)
        values = recorder.values
        plan = state.plan(wanted, depth if slow else Depth.FAST)
        for query, quantities in plan.structs:
            self._read_struct(recorder, query, quantities)
        if plan.memory:
            self._read_memory(recorder, plan.memory)
        if plan.mig and isinstance(state, GpuState):
            _record_mig_values(recorder, state, plan.mig)
        for number in plan.numbers:
            self._read_number(recorder, number)
        if plan.request:
            self._read_fields(recorder, plan)
        if plan.links is not None:
            self._links.finish(recorder)
        if plan.nvlink_rate:
            _record_nvlink_rate(recorder, now)
        else:
            state.last_nvlink_total = None
        for rate in plan.counted_rates:
            _record_counted_rate(recorder, rate, now)
        if state.last_counters and not plan.counted_rates:
            state.last_counters.clear()
        if plan.link_busy:
            _record_link_busy(recorder)
        if PCIE_WIDTH_MAX in values:
            limit_link_width(values, self._slot_width(state.device.gpu.pci_bus_id))
        state.answered = state.answered or bool(values)
        for quantity in plan.intermediate:
            values.pop(quantity, None)
        if slow:
            state.slow_due_at, state.slow_wanted = now + self._slow_interval, wanted
            if depth is Depth.CONSTANT:
                state.lacks_constants = any(
                    number.quantity.constant and number.quantity not in values for number in plan.numbers
                )
            else:
                constant = {each: value for each, value in state.slow_values.items() if each.constant}
                values.update(constant)
            state.slow_values = {quantity: value for quantity, value in values.items() if quantity.slow}
        else:
            values.update(state.slow_values)
        return recorder

    def supported(self, state: DeviceState, wanted: frozenset[Quantity]) -> Mapping[str, bool]:
        """Return whether the Device has each wanted quantity, by key, as far as known."""
        plan = state.plan(wanted, Depth.FAST)
        if not state.last_counters:
            return plan.supported
        last = {rate: state.last_counters.get(RATE_COUNTERS[rate]) for rate in plan.counted_rates}
        return {**plan.supported, **{rate.key: True for rate, seen in last.items() if seen and seen[2]}}

    def _read_number(self, recorder: ValueRecorder, number: NumberQuery) -> None:
        call = number.call
        if number.older_call and not self._library.has_symbol(call):
            call = number.older_call
        outputs = (byref(self._wide),) if number.is_64_bit else self._outputs[: number.outputs]
        code = self._library.call_device(call, recorder.state.handle, *number.arguments, *outputs)
        if code:
            recorder.record_error(number.quantity, code, call)
            return
        raw = self._wide.value if number.is_64_bit else self._narrow[number.output_index]
        blank = raw >= BLANK_64 if number.is_64_bit else raw == number.blank
        if not blank:
            recorder.record_raw(number, raw)

    def _read_fields(self, recorder: ValueRecorder, plan: QueryPlan) -> None:
        entries = buffer_view(self._field_buffer, len(plan.request))
        entries[:] = plan.request
        batch_code = self._library.call_device(
            _FIELDS, recorder.state.handle, len(entries) // FIELD.size, self._field_buffer
        )
        unpacked = tuple(FIELD.iter_unpack(entries))
        self._links.take_fields(batch_code, plan.links or (), unpacked[len(plan.fields) :])
        for field, entry in zip(plan.fields, unpacked, strict=False):
            *_, value_type, field_code, raw = entry
            if field.replaced_by is not None and self._is_replaced(recorder, field):
                continue
            if field.value_type is not None:
                value_type = field.value_type
            layout = VALUE_TYPES.get(value_type)
            code = batch_code or field_code or (Code.SUCCESS if layout else Code.ARGUMENT_VERSION_MISMATCH)
            if code == Code.SUCCESS and layout:
                value = layout.unpack(raw)[0]
                blank = BLANK_32 if value_type == UNSIGNED_INT else BLANK_64
                # An older field that is 0 does not change the action of another.
                if value < blank and (
                    value or not field.replaced_by or field.quantity not in recorder.values
                ):
                    recorder.record_raw(field, value)
            elif code in UNSUPPORTED or code == Code.INVALID_ARGUMENT:
                # INVALID_ARGUMENT: this driver does not know the field id.
                self._use_fallback(recorder, field)
            else:
                self._recover(recorder, field, code)

    def _is_replaced(self, recorder: ValueRecorder, field: FieldQuery) -> bool:
        """Whether the Device has, or may have, the later field; if it has, do not query this one again."""
        state = recorder.state
        if field.replaced_by in state.missing_fields:
            return False
        if field.quantity in recorder.values:
            state.missing_fields.add(field.field_id)
            state.plans.clear()
        return True

    def _use_fallback(self, recorder: ValueRecorder, field: FieldQuery) -> None:
        """Remember that the Device lacks the field id, and use the fallback call from now on."""
        state = recorder.state
        state.missing_fields.add(field.field_id)
        state.plans.clear()
        if field.fallback:
            self._read_number(recorder, field.fallback)
        elif state.missing_fields.issuperset(
            each.field_id for each in ALL_FIELD_QUERIES if each.quantity is field.quantity
        ):
            state.set_support(field.quantity, False)

    def _recover(self, recorder: ValueRecorder, field: FieldQuery, code: int) -> None:
        """The field failed in this tick: try the fallback call once."""
        before = len(recorder.findings.failures)
        if field.fallback:
            self._read_number(recorder, field.fallback)
        if field.replaced_by and not recorder.values.get(field.quantity):
            # Without this field, nothing says that the other one is the whole truth.
            recorder.values.pop(field.quantity, None)
        if field.quantity not in recorder.values and len(recorder.findings.failures) == before:
            recorder.record_error(field.quantity, code, f"{_FIELDS} id {field.field_id}")

    def _read_struct(
        self, recorder: ValueRecorder, query: StructQuery, quantities: tuple[Quantity, ...]
    ) -> None:
        code = self._library.call_device(query.call, recorder.state.handle, self._struct_buffer)
        numbers = query.layout.unpack_from(self._struct_buffer)
        for quantity in quantities:
            value = numbers[query.quantities.index(quantity)]
            if code:
                recorder.record_error(quantity, code, query.call)
            elif value < BLANK_64:
                recorder.record(quantity, value / query.divide if query.divide > 1 else value)

    def _read_memory(self, recorder: ValueRecorder, quantities: tuple[Quantity, ...]) -> None:
        state = recorder.state
        call = MEMORY_CALL
        code: int = Code.FUNCTION_NOT_FOUND
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
        if code == Code.SUCCESS and sizes[0] == 0:
            code = Code.NOT_SUPPORTED  # Some drivers report unified memory as a total of 0.
        for quantity in quantities:
            value = None if code else sizes[MEMORY_QUANTITIES.index(quantity)]
            if code or value is None:
                recorder.record_error(quantity, code or Code.NOT_SUPPORTED, call)
            elif value < BLANK_64:
                recorder.record(quantity, value)


def _record_link_busy(recorder: ValueRecorder) -> None:
    """Record PCIE_LINK_BUSY with the generation of the link."""
    state, values = recorder.state, recorder.values
    mig = isinstance(state, GpuState) and state.mig_enabled
    if any(state.support.get(each.key) is False for each in (PCIE_GENERATION, *link_busy_needs(mig=mig))):
        state.set_support(PCIE_LINK_BUSY, False)
    elif PCIE_GENERATION in values and (busy := is_link_busy(values, mig=mig)) is not None:
        recorder.record(PCIE_LINK_BUSY, int(busy))


def _record_nvlink_rate(recorder: ValueRecorder, now: float) -> None:
    """Compute NVLINK_RATE from the counters of this and the last tick.

    No rate follows from a counter that was reset, or that has an unconfirmed low reading.
    """
    state, values = recorder.state, recorder.values
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
        recorder.record(NVLINK_RATE, (total - before[0]) / (now - before[1]))


def _record_counted_rate(recorder: ValueRecorder, rate: Quantity, now: float) -> None:
    """Compute a rate that GPM lacks from the counter of this and the last tick.

    The support of the rate is that of GPM and is not recorded here. No rate follows from a wrapped counter.
    """
    state, values, counter = recorder.state, recorder.values, RATE_COUNTERS[rate]
    before = state.last_counters.pop(counter, None)
    if counter not in values or state.is_held_back(counter):
        return
    if before and values[counter] >= before[0] and now > before[1]:
        value = (values[counter] - before[0]) / (now - before[1])
        if rate.is_possible(value) and state.support.get(rate.key) is False:
            values[rate] = value
    state.last_counters[counter] = values[counter], now, rate in values or (before is not None and before[2])


def _record_mig_values(recorder: ValueRecorder, state: GpuState, quantities: tuple[Quantity, ...]) -> None:
    for quantity in quantities:
        if not state.mig_capable:
            state.set_support(quantity, False)
        elif state.mig_values.get(quantity, BLANK_32) != BLANK_32:
            recorder.record(quantity, state.mig_values[quantity])

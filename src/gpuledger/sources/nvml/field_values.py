"""Everything that has a field id, in one call a Device and tick: nvmlDeviceGetFieldValues."""

from __future__ import annotations

from ctypes import create_string_buffer
from typing import Final

from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.answers import accept, refuse, scale
from gpuledger.sources.nvml.codes import ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT, SUCCESS, UNSUPPORTED
from gpuledger.sources.nvml.fields import FIELDS, LINK_RATE, LINKS, Field
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library, view
from gpuledger.sources.nvml.numbers import Numbers
from gpuledger.sources.nvml.plan import Plan
from gpuledger.sources.nvml.state import DeviceState
from gpuledger.sources.nvml.structs import BLANK_32, BLANK_64, FIELD, UNSIGNED_INT, VALUE_TYPES

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

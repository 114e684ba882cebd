"""Record the result of a driver call for a quantity: a value, an invalid value, no support, or an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.codes import NOTHING_YET, UNSUPPORTED, Code
from gpuledger.sources.nvml.device_state import DeviceState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.queries import CUMULATIVE_COUNTERS, FieldQuery, GpmQuery, NumberQuery

PART: Final = "readings"


@dataclass(slots=True)
class ValueRecorder:
    """The values that one Device reports in one tick. Errors are added to `findings`."""

    state: DeviceState
    findings: NvmlFindings
    values: dict[Quantity, float] = field(default_factory=dict)

    def record(self, quantity: Quantity, value: float) -> None:
        """Store a value in the quantity's unit; count it if it is impossible."""
        state = self.state
        if not quantity.is_possible(value):
            self.findings.reject(quantity.key, value, state.device)
        elif quantity in CUMULATIVE_COUNTERS:
            refuted = state.refuted_reading(quantity, value)
            if refuted is not None:
                self.findings.reject(quantity.key, refuted, state.device)
            self.values[quantity] = state.confirmed_value(quantity, value)
        else:
            self.values[quantity] = value
        if state.support.get(quantity.key) is not True:
            state.set_support(quantity, True)

    def record_raw(self, query: NumberQuery | FieldQuery | GpmQuery, raw: float) -> None:
        """Store the result of a query; the value is an integer unless a division is needed."""
        value = raw * query.multiply
        self.record(query.quantity, value if query.divide == 1 else value / query.divide)

    def record_error(self, quantity: Quantity, code: int, call: str) -> None:
        """Record that `call` returned the error `code` for the quantity."""
        state = self.state
        if code in UNSUPPORTED:
            state.set_support(quantity, False)
        elif code not in NOTHING_YET:
            call = f"{quantity.key}: {call}"
            self.findings.add_error(PART, code, call, state.device)
            if quantity.slow:
                state.slow_errors.append((code, call))
            if code != Code.NO_PERMISSION:
                state.first_error = state.first_error or code

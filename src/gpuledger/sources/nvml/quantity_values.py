"""Record the result of a driver call for a quantity: a value, an invalid value, no support, or an error."""

from __future__ import annotations

from typing import Final

from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.codes import NO_PERMISSION, NOTHING_YET, UNSUPPORTED
from gpuledger.sources.nvml.device_state import DeviceState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.queries import CUMULATIVE_COUNTERS

PART: Final = "readings"


def scale_value(raw: float, multiply: int, divide: int) -> float:
    """Return `raw * multiply / divide`; an integer unless a division is needed."""
    return raw * multiply if divide == 1 else raw * multiply / divide


def record_value(
    state: DeviceState,
    quantity: Quantity,
    value: float,
    values: dict[Quantity, float],
    findings: NvmlFindings,
) -> None:
    """Store a value that the Device reported, in the quantity's unit; count it if it is impossible."""
    if quantity.is_possible(value):
        values[quantity] = (
            state.confirmed_value(quantity, value) if quantity in CUMULATIVE_COUNTERS else value
        )
    else:
        findings.invalid += 1
    if state.support.get(quantity.key) is not True:
        state.set_support(quantity, True)


def record_error(
    state: DeviceState, quantity: Quantity, code: int, call: str, findings: NvmlFindings
) -> None:
    """Record that `call` returned the error `code` for the quantity."""
    if code in UNSUPPORTED:
        state.set_support(quantity, False)
    elif code not in NOTHING_YET:
        call = f"{quantity.key}: {call}"
        findings.add_error(PART, code, call, state.device)
        if quantity.slow:
            state.slow_errors.append((code, call))
        if code != NO_PERMISSION:
            state.first_error = state.first_error or code

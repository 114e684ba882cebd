"""What an answer of the driver means for a quantity: told, not believed, not there, or failed."""

from __future__ import annotations

from typing import Final

from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.codes import NO_PERMISSION, NOTHING_YET, UNSUPPORTED
from gpuledger.sources.nvml.fields import CUMULATIVE
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.state import DeviceState

PART: Final = "readings"


def scale(raw: float, multiply: int, divide: int) -> float:
    """`raw * multiply / divide`; a whole number stays one unless it is divided."""
    return raw * multiply if divide == 1 else raw * multiply / divide


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
        call = f"{quantity.key}: {call}"
        findings.fail(PART, code, call, state.device)
        if quantity.slow:
            state.slow_faults.append((code, call))
        if code != NO_PERMISSION:
            state.fault = state.fault or code

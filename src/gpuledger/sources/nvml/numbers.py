"""Calls that answer with one number."""

from __future__ import annotations

from ctypes import byref, c_uint, c_ulonglong, sizeof

from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.answers import accept, refuse, scale
from gpuledger.sources.nvml.fields import Number
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library
from gpuledger.sources.nvml.state import DeviceState


class Numbers:
    """Makes these calls; the variables that they write to are made once."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._narrow = (c_uint * 2)()
        self._wide = c_ulonglong()
        first = byref(self._narrow)
        self._outputs = {1: (first,), 2: (first, byref(self._narrow, sizeof(c_uint)))}

    def read(
        self, state: DeviceState, number: Number, values: dict[Quantity, float], findings: Findings
    ) -> None:
        """Put the number into `values` if it is told. Raises GpuGone."""
        call = number.call
        if number.older and not self._library.has(call):
            call = number.older
        outputs = (byref(self._wide),) if number.wide else self._outputs[number.outputs]
        code = self._library.ask(call, state.handle, *number.arguments, *outputs)
        if code:
            refuse(state, number.quantity, code, call, findings)
            return
        raw = self._wide.value if number.wide else self._narrow[number.take]
        if raw == number.blank or (number.wide and raw >= number.blank):
            return
        accept(state, number.quantity, scale(raw, number.multiply, number.divide), values, findings)

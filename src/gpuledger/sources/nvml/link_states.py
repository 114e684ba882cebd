"""Read the state of each NVLink of a Gpu: as fields of the batch, or by calls to older drivers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint
from typing import Any, Final

from gpuledger.model.quantities import NVLINKS_DOWN, NVLINKS_UP, Quantity
from gpuledger.sources.nvml.codes import UNSUPPORTED, Code
from gpuledger.sources.nvml.library import NvmlLibrary
from gpuledger.sources.nvml.quantity_values import ValueRecorder
from gpuledger.sources.nvml.queries import LINK_QUANTITIES, LINK_STATE_CALL, LINK_STATE_FIELD
from gpuledger.sources.nvml.structs import VALUE_TYPES

# nvmlNvlinkState_t: 0 is down; active, asleep to save power, and active without traffic are up.
_STATES: Final[dict[float, Quantity]] = {0: NVLINKS_DOWN, 1: NVLINKS_UP, 2: NVLINKS_UP, 3: NVLINKS_UP}
# Link, error code, value.
_Answer = tuple[int, int, float]
_ABSENT: Final = UNSUPPORTED | {Code.INVALID_ARGUMENT}


class LinkStates:
    """Collects the states of the links of one Device at a time: `take_fields`, then `finish`.

    The number of links differs by GPU. All possible links are requested until the driver has said which of
    them the GPU has; a GPU without links is unsupported.
    """

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._answers: list[_Answer] = []

    def take_fields(self, batch_code: int, links: Sequence[int], entries: Sequence[tuple[Any, ...]]) -> None:
        """Take the entries of the batch with the states of these links."""
        self._answers = []
        for link, (*_, value_type, code, raw) in zip(links, entries, strict=True):
            layout = VALUE_TYPES.get(value_type)
            self._answers.append((link, batch_code or code, layout.unpack(raw)[0] if layout else -1))

    def finish(self, recorder: ValueRecorder) -> None:
        """Record what was taken, or what calls return if the driver lacks the field. Raises GpuLost."""
        state = recorder.state
        answers, self._answers = self._answers, []
        where = f"nvmlDeviceGetFieldValues id {LINK_STATE_FIELD}"
        if all(code in _ABSENT for _, code, _ in answers):
            answers, where = list(self._call_each(recorder)), LINK_STATE_CALL
        existing = tuple(link for link, code, _ in answers if code not in _ABSENT)
        if not existing:
            for quantity in LINK_QUANTITIES:
                state.set_support(quantity, False)
            return
        state.set_links(existing, by_call=where == LINK_STATE_CALL)
        self._record(recorder, answers, where)

    def _record(self, recorder: ValueRecorder, answers: Sequence[_Answer], where: str) -> None:
        masks = dict.fromkeys(LINK_QUANTITIES, 0)
        failed = {code for _, code, _ in answers if code and code not in _ABSENT}
        for code in sorted(failed):
            recorder.record_error(NVLINKS_UP, code, where)
        known = [(link, value) for link, code, value in answers if code == Code.SUCCESS and value in _STATES]
        for link, value in known:
            masks[_STATES[value]] |= 1 << link
        if known:
            for quantity, mask in masks.items():
                recorder.record(quantity, mask)

    def _call_each(self, recorder: ValueRecorder) -> Iterator[_Answer]:
        active = c_uint()
        for link in recorder.state.links:
            code = self._library.call_device(
                LINK_STATE_CALL, recorder.state.handle, c_uint(link), byref(active)
            )
            yield link, code, active.value
            # The links of a GPU are numbered from 0 on.
            if code in _ABSENT:
                return

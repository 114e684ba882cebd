"""Read the columns of nvidia-smi that are no quantities, as nvidia-smi prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ctypes import byref, create_string_buffer, memset
from struct import Struct
from typing import Final

from gpuledger.model.enumeration_words import (
    ABSENT,
    DEPRECATED,
    NO_PERMISSION,
    UNKNOWN_ERROR,
    UNKNOWN_TO_DRIVER,
)
from gpuledger.model.quantities import Quantity
from gpuledger.sources.nvml.codes import NOTHING_YET, UNSUPPORTED, Code
from gpuledger.sources.nvml.column_queries import (
    ACTIVE_VGPUS,
    COLUMN_CALLS,
    COLUMN_FIELDS,
    HOST_GENERATION,
    ColumnCall,
    ColumnField,
    Members,
    PrintedColumn,
)
from gpuledger.sources.nvml.device_state import ColumnState, GpuState
from gpuledger.sources.nvml.findings import NvmlFindings
from gpuledger.sources.nvml.library import NvmlLibrary, buffer_view
from gpuledger.sources.nvml.quantity_values import PART
from gpuledger.sources.nvml.queries import RATE_COUNTERS, Depth
from gpuledger.sources.nvml.structs import BLANK_32, BLANK_64, FIELD, UNSIGNED_INT, VALUE_TYPES
from gpuledger.sources.nvml.vgpus import ACTIVE_CALL, VgpuReader

# The first member of a structure with versions.
_VERSION: Final = Struct("@I")
_PCIE: Final = "nvmlDeviceGetPcieThroughput"
_FIELDS: Final = "nvmlDeviceGetFieldValues"
# Seconds after which constant columns, and those that are not supported, are queried again.
_ALL_AFTER: Final = 600.0
# nvidia-smi's words for a cell without a value.
_WORDS: Final[Mapping[int, str]] = {
    Code.FUNCTION_NOT_FOUND: UNKNOWN_TO_DRIVER,
    Code.ARGUMENT_VERSION_MISMATCH: UNKNOWN_TO_DRIVER,
    Code.NO_PERMISSION: NO_PERMISSION,
    Code.DEPRECATED: DEPRECATED,
}
# A place or field id that the driver does not know is an invalid argument.
_LACKING: Final = UNSUPPORTED | {Code.NO_PERMISSION, Code.INVALID_ARGUMENT}


class NvmlColumnReader:
    """Reads columns into a reused buffer: some in each tick, others every `slow_interval` seconds."""

    def __init__(
        self, library: NvmlLibrary, slow_interval: float, slot_generation: Callable[[str], int | None]
    ) -> None:
        """`slot_generation` returns the highest PCIe generation of a PCI bus id's slot, None if unknown."""
        self._library = library
        self._slow_interval = slow_interval
        self._slot_generation = slot_generation
        self._vgpus = VgpuReader(library)
        self._buffer = create_string_buffer(max(query.layout.size for query in COLUMN_CALLS))
        self._fields = create_string_buffer(FIELD.size * len(COLUMN_FIELDS))

    def read(self, gpu: GpuState, now: float, findings: NvmlFindings, *, measures_pcie: bool) -> None:
        """Update `gpu.columns`. Raises GpuLost.

        `measures_pcie` includes the PCIe rates of a Gpu that has neither GPM nor counters of bytes.
        """
        state = gpu.columns = gpu.columns or ColumnState()
        depth = Depth.FAST
        if now >= state.slow_due_at:
            depth, state.slow_due_at = Depth.SLOW, now + self._slow_interval
        if depth and now >= state.all_due_at:
            depth, state.all_due_at = Depth.CONSTANT, now + _ALL_AFTER
            state.lacking.clear()
            generation = self._slot_generation(gpu.gpu.pci_bus_id)
            _record(state, HOST_GENERATION, ABSENT if generation is None else str(generation))
        for call in COLUMN_CALLS:
            if _is_due(state, call, call.depth, depth):
                self._read_call(gpu, state, call)
        self._read_fields(
            gpu, state, [each for each in COLUMN_FIELDS if _is_due(state, each, each.depth, depth)]
        )
        if _is_due(state, ACTIVE_VGPUS, Depth.SLOW, depth):
            self._read_vgpus(gpu, state)
        for rate in RATE_COUNTERS:
            self._read_rate(gpu, state, rate, depth, wanted=measures_pcie)
        for code, name in state.failed.values():
            findings.add_error(PART, code, name, gpu.gpu)

    def _read_rate(
        self, gpu: GpuState, state: ColumnState, rate: Quantity, depth: Depth, *, wanted: bool
    ) -> None:
        """Measure a rate of a Gpu that lacks it and its counter, which takes 20 ms; otherwise forget it."""
        lacks = gpu.support.get(rate.key) is gpu.support.get(RATE_COUNTERS[rate].key) is False
        if lacks and wanted and not _is_due(state, rate, Depth.SLOW, depth):
            return
        state.pcie_rates.pop(rate, None)
        state.supported.pop(rate.key, None)
        if not (lacks and wanted):
            return
        code, kilobytes = self._library.query_number(_PCIE, gpu.handle, tuple(RATE_COUNTERS).index(rate))
        if code:
            _record_error(state, rate, (), code, f"{rate.key}: {_PCIE}")
        elif kilobytes != BLANK_32:
            _record_values(state, rate, (), ())
            state.pcie_rates[rate] = kilobytes * 1000
            state.supported[rate.key] = True

    def _read_call(self, gpu: GpuState, state: ColumnState, query: ColumnCall) -> None:
        if query.replaced_by and self._library.has_symbol(query.replaced_by):
            state.lacking.add(query)
            return
        name = query.call
        if query.older_call and not self._library.has_symbol(name):
            name = query.older_call
        code: int = Code.ARGUMENT_VERSION_MISMATCH
        for version in query.versions or (0,):
            if code == Code.ARGUMENT_VERSION_MISMATCH:
                code = self._call(gpu, name, query, version)
        if code == Code.SUCCESS:
            _record_values(state, query, query.columns, query.layout.unpack_from(self._buffer))
        else:
            _record_error(state, query, query.columns, code, name)

    def _call(self, gpu: GpuState, name: str, query: ColumnCall, version: int) -> int:
        memset(self._buffer, 0, len(self._buffer))
        if version:
            for offset in query.outputs:
                _VERSION.pack_into(self._buffer, offset, version)
        outputs = (byref(self._buffer, offset) for offset in query.outputs)
        if query.of_driver:
            return self._library.call(name, *outputs)
        return self._library.call_device(name, gpu.handle, *query.arguments, *outputs, *query.after)

    def _read_vgpus(self, gpu: GpuState, state: ColumnState) -> None:
        code, found = self._vgpus.read(gpu.handle)
        state.vgpus = None if code else found
        if code:
            _record_error(state, ACTIVE_VGPUS, (ACTIVE_VGPUS,), code, ACTIVE_CALL)
        else:
            _record_values(state, ACTIVE_VGPUS, (ACTIVE_VGPUS,), (len(found),))

    def _read_fields(self, gpu: GpuState, state: ColumnState, queries: list[ColumnField]) -> None:
        if not queries:
            return
        size = FIELD.size * len(queries)
        for number, query in enumerate(queries):
            FIELD.pack_into(
                self._fields, number * FIELD.size, query.field_id, 0, 0, 0, 0, Code.NOT_SUPPORTED, b""
            )
        batch_code = self._library.call_device(_FIELDS, gpu.handle, len(queries), self._fields)
        entries = FIELD.iter_unpack(buffer_view(self._fields, size))
        for query, (*_, value_type, field_code, raw) in zip(queries, entries, strict=True):
            layout = VALUE_TYPES.get(value_type)
            code = batch_code or field_code or (Code.SUCCESS if layout else Code.ARGUMENT_VERSION_MISMATCH)
            value = layout.unpack(raw)[0] if layout and not code else 0
            if value >= (BLANK_32 if value_type == UNSIGNED_INT else BLANK_64):
                code = Code.NOT_SUPPORTED
            if code:
                _record_error(state, query, (query.column,), code, f"{_FIELDS} id {query.field_id}")
            else:
                _record_values(state, query, (query.column,), (value,))


def _is_due(state: ColumnState, query: object, needed: Depth, depth: Depth) -> bool:
    """Return whether to make a query that is `needed` from this depth on; a failed one is made again soon."""
    return query not in state.lacking and (needed <= depth or (depth >= Depth.SLOW and query in state.failed))


def _record_values(
    state: ColumnState, query: object, columns: Iterable[PrintedColumn], members: Members
) -> None:
    state.failed.pop(query, None)
    for column in columns:
        _record(state, column, column.write(members))


def _record(state: ColumnState, column: PrintedColumn, cell: str) -> None:
    state.cells[column.header] = cell
    state.supported[column.field] = cell != ABSENT


def _record_error(
    state: ColumnState, query: object, columns: Iterable[PrintedColumn], code: int, name: str
) -> None:
    """Keep the reason as the cells; report errors other than a lack of support until the next success."""
    state.failed.pop(query, None)
    if code in _LACKING:
        state.lacking.add(query)
    elif code not in NOTHING_YET:
        state.failed[query] = code, name
    for column in columns:
        if code in _LACKING:
            _record(state, column, ABSENT)
            state.cells[column.header] = _WORDS.get(code, ABSENT)
        else:
            state.cells[column.header] = ABSENT if code in NOTHING_YET else UNKNOWN_ERROR

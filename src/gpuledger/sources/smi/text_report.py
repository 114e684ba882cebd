"""Parser for `nvidia-smi -q` without `-x`: the text report, read when the XML is not available.

Unlike the CSV, it reports the MIG instance of a process, and graphics processes.
"""

from __future__ import annotations

from re import compile as pattern

from gpuledger.sources.smi.cell_names import PROCESS_NAME
from gpuledger.sources.smi.parsed_output import (
    LONGEST_NAME,
    MERGED_GPUS_LIMIT,
    MOST_GPUS,
    MOST_UNREADABLE,
    GpuBlock,
    SmiOutput,
    SmiProblem,
    normalize_bus_id,
    parse_problem,
    too_many_gpus,
    without_note,
)

# An integrated GPU has no bus id.
_GPU = pattern(r"GPU ([0-9A-Fa-f:.]+|N/A)")
_NOT_NAME = pattern(r"[^a-z0-9]+")
# A process's lines have this order; a line out of order begins the next process.
_ROW = ("gpu_instance_id", "compute_instance_id", "process_id", "type", "name", "used_gpu_memory")


def parse_text_report(text: str) -> SmiOutput:
    """Parse a report. Accepts any text and never raises.

    A report without a final newline is truncated: its last line is ignored, and so is the process list that
    contains that line.
    """
    output = SmiOutput()
    reader: _GpuReader | None = None
    *lines, rest = text.split("\n")
    for number, line in enumerate(lines):
        heading = _GPU.fullmatch(without_note(line.rstrip())) if line.startswith("GPU ") else None
        if heading:
            _finish_block(reader, output)
            if len(output.blocks) + len(output.problems) >= MOST_GPUS:
                output.problems.append(too_many_gpus())
                return output
            reader = _GpuReader(normalize_bus_id(heading[1]))
        elif found := parse_problem(line):
            output.problems.append(found)
            if len(output.problems) >= MOST_UNREADABLE:
                return output
        elif reader is not None:
            reader.read_line(line)
        elif number < MOST_UNREADABLE:
            _read_head(line, output)
        else:
            return output
    if reader is not None and rest.strip():
        reader.handle_truncation(rest)
    _finish_block(reader, output)
    return output


def _finish_block(reader: _GpuReader | None, output: SmiOutput) -> None:
    if reader is None:
        return
    block = reader.finish_block()
    if block.invalid_cells >= MERGED_GPUS_LIMIT:
        output.problems.append(SmiProblem("MANGLED", f"two GPUs under the heading of {block.bus}"))
    else:
        output.blocks.append(block)


def _read_head(line: str, output: SmiOutput) -> None:
    key, colon, value = line.partition(" : ")
    values = {_normalize_key(key): without_note(value.strip())} if colon else {}
    output.read_machine_cells(values)


class _GpuReader:
    """Reads the lines of one GPU, nested by their indentation."""

    def __init__(self, bus: str) -> None:
        self._block = GpuBlock(bus)
        self._path: list[tuple[int, str]] = []
        self._duplicates: set[str] = set()
        self._list_count = 0
        self._position = len(_ROW)

    def read_line(self, line: str) -> None:
        """Read one line: a heading, or a cell after a spaced colon."""
        indent = len(line) - len(line.lstrip(" "))
        key, colon, value = line.strip().partition(" : ")
        name = _normalize_key(key.removesuffix(" :"))
        if not name or indent == 0 or len(name) > LONGEST_NAME:
            return
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        top = self._path[0][1] if self._path else name
        if top == "mig_device":
            self._add_mig_line(name, value if colon else None)
        elif top == "processes":
            self._add_process_line(name, value if colon else None)
        elif colon:
            path = "/".join([*(part for _, part in self._path), name])
            if path in self._block.cells:
                self._duplicates.add(path)
            self._block.cells[path] = without_note(value.strip())
        self._path.append((indent, name))

    def handle_truncation(self, rest: str) -> None:
        """Handle a report that ends in the middle of `rest`: drop the process list that contains it."""
        indent = len(rest) - len(rest.lstrip(" "))
        if indent and self._path and self._path[0][1] == "processes" and indent > self._path[0][0]:
            self._block.processes = None

    def finish_block(self) -> GpuBlock:
        """Drop the cells with duplicate paths, and return the GpuBlock."""
        for path in self._duplicates:
            del self._block.cells[path]
        self._block.invalid_cells = len(self._duplicates)
        return self._block

    def _add_mig_line(self, name: str, value: str | None) -> None:
        if not self._path:
            self._block.mig_devices.append({})
        elif value is not None:
            path = "/".join([*(part for _, part in self._path[1:]), name])
            self._block.mig_devices[-1].setdefault(path, without_note(value.strip()))

    def _add_process_line(self, name: str, value: str | None) -> None:
        if not self._path:
            # `Processes : None` is an empty list; any other text says why there is no list. A second list
            # belongs to a GPU with a lost heading, so the processes cannot be attributed.
            self._list_count += 1
            if self._list_count > 1:
                self._block.processes = None
            elif value is None or value.strip().lower() == "none":
                self._block.processes = []
            else:
                self._block.process_list_message = value.strip()
        elif value is not None and self._block.processes is not None and name in _ROW:
            position = _ROW.index(name)
            if position <= self._position:
                self._block.processes.append({})
            text = value.strip()
            self._block.processes[-1][name] = text if name in PROCESS_NAME else without_note(text)
            self._position = position


def _normalize_key(key: str) -> str:
    return _NOT_NAME.sub("_", without_note(key.strip()).lower()).strip("_")

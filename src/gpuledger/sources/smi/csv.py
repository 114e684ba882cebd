"""Parser for `--query-gpu` and `--query-compute-apps` with `--format=csv`.

nvidia-smi does not quote its CSV. A row with more cells than the header is split from both ends; the cells
in between belong to the one free-text column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from re import compile as pattern

from gpuledger.host.commands import CommandResult
from gpuledger.sources.smi import cell_names
from gpuledger.sources.smi.cell_values import absent_reason
from gpuledger.sources.smi.parsed_output import (
    MOST_GPUS,
    MOST_UNREADABLE,
    GpuBlock,
    SmiOutput,
    SmiProblem,
    decode_output,
    first_present,
    normalize_bus_id,
    parse_problem,
    too_many_gpus,
    without_note,
)

_COLUMN = pattern(r"([A-Za-z][A-Za-z0-9_.]*)(?: \[([^\[\]]+)\])?")
_BARE_NUMBER = pattern(r"[+-]?[0-9]+(?:\.[0-9]+)?")
# Those of integrated GPUs (Jetson) have no prefix.
_UUID = pattern(r"(?:GPU|MIG)-|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
# A note with commas, which would look like further cells.
_LIST_NOTE = pattern(r" \[[^\[\],]*,[^\[\]]*\]")
_REJECTED = pattern(r"[Ff]ield \"([^\"\s]+)\" is not a valid field to query")
_HEADER_NAMES = frozenset({"uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "index", "pid"})


@dataclass(slots=True)
class ComputeApps:
    """Processes of `--query-compute-apps` by PCI bus id and by GPU UUID.

    `has_table` is false when the output has no table. `problems` are lines that are not rows.
    """

    by_bus: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    by_uuid: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    problems: list[SmiProblem] = field(default_factory=list)
    has_table: bool = False

    def take_processes(self, bus: str, uuid: str) -> list[dict[str, str]]:
        """Processes of one GPU, looked up by bus id if it and the table have one, else by UUID.

        Each is returned once: no two GPUs have the same processes, even if their ids are equal.
        """
        table, name = (self.by_bus, bus) if bus and self.by_bus else (self.by_uuid, uuid)
        found = table.get(name, [])
        table[name] = []
        return found


def rejected_field(result: CommandResult) -> str | None:
    """Return the field that the error message of nvidia-smi rejects; None without such a message."""
    found = _REJECTED.search(decode_output(result.stdout) + "\n" + decode_output(result.stderr))
    return found[1] if found else None


def replace_field(fields: tuple[str, ...], rejected: str) -> tuple[str, ...]:
    """Return the fields without the rejected one, or with its newer name in its place."""
    newer = cell_names.SUCCESSORS.get(rejected, rejected)
    return tuple(
        newer if name == rejected else name
        for name in fields
        if name != rejected or (newer != rejected and newer not in fields)
    )


def parse_query_gpu(text: str) -> SmiOutput:
    """Parse each row to a GpuBlock; `raw` holds its columns, header and cell as printed. Never raises."""
    output = SmiOutput()
    for header, cells in _rows(text, ("name", "gpu_name"), output.problems):
        row_cells = header.row_by_name(cells)
        raw = {
            title: cell
            for title, name, cell in zip(header.titles, header.names, cells, strict=True)
            if name not in header.duplicates
        }
        block = GpuBlock(
            normalize_bus_id(first_present(row_cells, cell_names.BUS) or ""),
            row_cells,
            raw=raw,
            invalid_cells=len(header.duplicates),
        )
        output.blocks.append(block)
        output.read_machine_cells(row_cells)
        if len(output.blocks) > MOST_GPUS:
            output.problems.append(too_many_gpus())
            del output.blocks[MOST_GPUS:]
            break
    return output


def parse_query_apps(text: str) -> ComputeApps:
    """Parse the table of compute processes. Never raises."""
    apps = ComputeApps()
    for header, cells in _rows(text, cell_names.PROCESS_NAME, apps.problems):
        row = {**header.row_by_name(cells), "type": "C"}
        if bus := normalize_bus_id(first_present(row, cell_names.BUS) or ""):
            apps.by_bus.setdefault(bus, []).append(row)
        if uuid := first_present(row, cell_names.UUID):
            apps.by_uuid.setdefault(uuid, []).append(row)
    apps.has_table = _find_header(text) is not None
    return apps


@dataclass(frozen=True, slots=True)
class _CsvHeader:
    # As printed (`memory.total [MiB]`) and without the unit.
    titles: tuple[str, ...]
    names: tuple[str, ...]
    # By name; for a duplicate name, the unit of its first column.
    units: Mapping[str, str]
    duplicates: frozenset[str]

    def row_by_name(self, cells: tuple[str, ...]) -> dict[str, str]:
        """The row's cells by column name, without duplicate columns."""
        row = zip(self.names, cells, strict=True)
        return {name: self._with_unit(name, cell) for name, cell in row if name not in self.duplicates}

    def _with_unit(self, name: str, cell: str) -> str:
        """Append the header's unit to a bare number (`--format=csv,nounits`)."""
        unit = self.units[name]
        return f"{cell} {unit}" if unit and _BARE_NUMBER.fullmatch(cell) else cell


def _find_header(text: str) -> _CsvHeader | None:
    lines = text.split("\n", MOST_UNREADABLE)[:MOST_UNREADABLE]
    return next((header for line in lines if (header := _parse_header(line))), None)


def _parse_header(line: str) -> _CsvHeader | None:
    titles = tuple(_without_header_note(cell.strip()) for cell in _LIST_NOTE.sub("", line).split(","))
    found = [_COLUMN.fullmatch(title) for title in titles]
    matches = [match for match in found if match]
    if len(matches) != len(found):
        return None
    names = tuple(match[1] for match in matches)
    if _HEADER_NAMES.isdisjoint(names):
        return None
    duplicates = frozenset(name for name, times in Counter(names).items() if times > 1)
    units = {match[1]: match[2] or "" for match in reversed(matches)}
    return _CsvHeader(titles, names, units, duplicates)


def _without_header_note(title: str) -> str:
    """A title without a note such as `[Deprecated; ...]`, which, unlike a unit, has several words."""
    head, bracket, note = title.removesuffix("]").rpartition("[")
    is_note = title.endswith("]") and bracket and "]" not in note and any(map(str.isspace, note))
    return head.rstrip() if is_note else title


def _rows(
    text: str, free_text: tuple[str, ...], problems: list[SmiProblem]
) -> Iterator[tuple[_CsvHeader, tuple[str, ...]]]:
    header: _CsvHeader | None = None
    lines = text.split("\n")
    unreadable = 0
    for number, line in enumerate(lines, 1):
        if unreadable == MOST_UNREADABLE:
            detail = f"{unreadable} lines are not rows of this table: the rest is not read"
            problems.append(SmiProblem("ROW_UNREADABLE", detail))
            return
        unreadable += 1
        bare = line.rstrip("\r")
        # A warning beside the rows, such as that the infoROM is corrupted, is reported with the exit code.
        if not bare.strip() or bare.lstrip().lower().startswith("warning:"):
            continue
        if found := parse_problem(bare):
            problems.append(found)
        elif header is None:
            header = _parse_header(bare)
        else:
            cells = _split_row(bare, header, free_text)
            if cells is None:
                problems.append(SmiProblem("ROW_UNREADABLE", f"not a row of this table: {bare[:200]}"))
            else:
                # Without a final newline the output may end in the middle of this cell.
                unreadable -= 1
                cut = number == len(lines) and _BARE_NUMBER.fullmatch(cells[-1])
                yield header, (*cells[:-1], "") if cut else cells


def _split_row(line: str, header: _CsvHeader, free_text: tuple[str, ...]) -> tuple[str, ...] | None:
    # If the last cell is empty, the blank before it may have been stripped.
    line = f"{line} " if line.endswith(",") else line
    # The name of a process may have such a text.
    if "pid" not in header.names:
        line = _LIST_NOTE.sub("", line)
    cells = [cell.strip() for cell in line.split(", ")]
    extra = len(cells) - len(header.names)
    if extra > 0:
        position = next((header.names.index(name) for name in free_text if name in header.names), None)
        if position is None:
            return None
        parts = line.split(", ")
        middle = ", ".join(parts[position : position + extra + 1]).strip()
        cells = [*cells[:position], middle, *cells[position + extra + 1 :]]
    if len(cells) != len(header.names):
        return None
    row = [
        cell if name in free_text else without_note(cell)
        for name, cell in zip(header.names, cells, strict=True)
    ]
    return tuple(row) if _is_plausible(row, header) else None


def _is_plausible(cells: list[str], header: _CsvHeader) -> bool:
    """Whether UUIDs, pids and cells with units look like values of their columns."""
    for name, cell in zip(header.names, cells, strict=True):
        if absent_reason(cell):
            continue
        if name in cell_names.UUID and not _UUID.match(cell):
            return False
        if name == "pid" and not (cell.isascii() and cell.isdigit()):
            return False
        if header.units[name] and not (cell[:1].isdigit() or cell[:1] in "+-"):
            return False
    return True

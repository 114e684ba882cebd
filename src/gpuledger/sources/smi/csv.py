"""`--query-gpu` and `--query-compute-apps` with `--format=csv`: columns by the header's names.

There is no quoting in this CSV, so a row with more cells than columns is read from both ends, and what is
between them is the one column of free text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from re import compile as pattern

from gpuledger.sources.smi import names
from gpuledger.sources.smi.answer import Answer, Block, Row, Trouble, bus_id, first, trouble_of
from gpuledger.sources.smi.values import ordinal, why_absent

_COLUMN = pattern(r"([A-Za-z][A-Za-z0-9_.]*)(?: \[([^\[\]]+)\])?")
_BARE_NUMBER = pattern(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_REFUSED = pattern(r"[Ff]ield \"([^\"\s]+)\" is not a valid field to query")
_KNOWN = frozenset({"uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "index", "pid"})


@dataclass(slots=True)
class Apps:
    """The rows of `--query-compute-apps` by PCI bus id and by GPU UUID.

    `told` is false when there was no table at all. `troubles` are lines that are no rows.
    """

    by_bus: dict[str, list[Row]] = field(default_factory=dict)
    by_uuid: dict[str, list[Row]] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    told: bool = False

    def of(self, bus: str, uuid: str) -> list[Row]:
        """The rows of one GPU; the bus id decides where it is a column."""
        return self.by_bus.get(bus, []) if self.by_bus else self.by_uuid.get(uuid, [])


def refused_field(text: str) -> str | None:
    """The field that this driver's nvidia-smi does not know, where that is its answer."""
    found = _REFUSED.search(text)
    return found[1] if found else None


def parse_query_gpu(text: str) -> Answer:
    """A Block for each row; its columns travel in `raw`, header and cell as printed. Nothing is raised."""
    answer = Answer()
    for columns, cells in _rows(text, ("name", "gpu_name"), answer.troubles):
        told = columns.told(cells)
        raw = {
            header: cell
            for header, name, cell in zip(columns.headers, columns.names, cells, strict=True)
            if name not in columns.twice
        }
        block = Block(bus_id(first(told, names.BUS) or ""), told, raw=raw, spoiled=len(columns.twice))
        answer.blocks.append(block)
        answer.driver = told.get("driver_version", answer.driver)
        if (count := ordinal(told.get("count", ""))) is not None:
            answer.expected = count
    return answer


def parse_query_apps(text: str) -> Apps:
    """The rows of the compute processes. Nothing is raised."""
    apps = Apps()
    for columns, cells in _rows(text, ("process_name", "name"), apps.troubles):
        told = columns.told(cells)
        row = Row(
            pid=told.get("pid"),
            name=first(told, ("process_name", "name")),
            type="C",
            memory=first(told, ("used_gpu_memory", "used_memory")),
        )
        if bus := first(told, ("gpu_bus_id", "pci.bus_id")):
            apps.by_bus.setdefault(bus_id(bus), []).append(row)
        if uuid := first(told, ("gpu_uuid", "uuid")):
            apps.by_uuid.setdefault(uuid, []).append(row)
    apps.told = _header_of(text) is not None
    return apps


@dataclass(frozen=True, slots=True)
class _Columns:
    headers: tuple[str, ...]
    names: tuple[str, ...]
    # By name; of one that is there twice, that of the first.
    units: Mapping[str, str]
    twice: frozenset[str]

    def told(self, cells: tuple[str, ...]) -> dict[str, str]:
        """A row by name, without the columns that are there twice."""
        row = zip(self.names, cells, strict=True)
        return {name: self._with_unit(name, cell) for name, cell in row if name not in self.twice}

    def _with_unit(self, name: str, cell: str) -> str:
        """The cell with the header's unit where it has none of its own (`nounits`)."""
        unit = self.units[name]
        return f"{cell} {unit}" if unit and _BARE_NUMBER.fullmatch(cell) else cell


def _header_of(text: str) -> _Columns | None:
    return next((columns for line in text.split("\n") if (columns := _columns(line))), None)


def _columns(line: str) -> _Columns | None:
    headers = tuple(cell.strip() for cell in line.split(","))
    found = [_COLUMN.fullmatch(header) for header in headers]
    matches = [match for match in found if match]
    if len(matches) != len(found):
        return None
    titles = tuple(match[1] for match in matches)
    if _KNOWN.isdisjoint(titles):
        return None
    twice = frozenset(title for title, times in Counter(titles).items() if times > 1)
    units = {match[1]: match[2] or "" for match in reversed(matches)}
    return _Columns(headers, titles, units, twice)


def _rows(
    text: str, free: tuple[str, ...], troubles: list[Trouble]
) -> Iterator[tuple[_Columns, tuple[str, ...]]]:
    columns: _Columns | None = None
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        bare = line.rstrip("\r")
        if not bare.strip():
            continue
        if found := trouble_of(bare):
            troubles.append(found)
        elif columns is None:
            columns = _columns(bare)
        else:
            cells = _cells(bare, columns, free)
            if cells is None:
                troubles.append(Trouble("ROW_UNREADABLE", f"no row of this table: {bare[:200]}"))
            else:
                # No newline at the end: the answer may have been cut in the middle of this cell.
                cut = number == len(lines) and _BARE_NUMBER.fullmatch(cells[-1])
                yield columns, (*cells[:-1], "") if cut else cells


def _cells(line: str, columns: _Columns, free: tuple[str, ...]) -> tuple[str, ...] | None:
    # The last cell may be empty, and the blank before it lost on the way.
    line = f"{line} " if line.endswith(",") else line
    cells = [cell.strip() for cell in line.split(", ")]
    more = len(cells) - len(columns.names)
    if more > 0:
        place = next((columns.names.index(name) for name in free if name in columns.names), None)
        if place is None:
            return None
        parts = line.split(", ")
        middle = ", ".join(parts[place : place + more + 1]).strip()
        cells = [*cells[:place], middle, *cells[place + more + 1 :]]
    if len(cells) != len(columns.names) or not _plausible(cells, columns):
        return None
    return tuple(cells)


def _plausible(cells: list[str], columns: _Columns) -> bool:
    """Whether the cells that say whose row it is look like what their columns are."""
    for name, cell in zip(columns.names, cells, strict=True):
        if name in ("uuid", "gpu_uuid") and not (why_absent(cell) or cell.startswith(("GPU-", "MIG-"))):
            return False
        if name == "pid" and not (why_absent(cell) or (cell.isascii() and cell.isdigit())):
            return False
        if columns.units[name] and not _measure_like(cell):
            return False
    return True


def _measure_like(cell: str) -> bool:
    return bool(why_absent(cell)) or cell[:1].isdigit() or cell[:1] in "+-"

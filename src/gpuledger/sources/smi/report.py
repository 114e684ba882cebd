"""`nvidia-smi -q` without `-x`: the report for people, read where the XML is not to be had.

It alone tells beside the CSV which MIG instance a process sits on, and the processes that only draw.
"""

from __future__ import annotations

from re import compile as pattern

from gpuledger.sources.smi.answer import RUN_TOGETHER, Answer, Block, Cells, Row, Trouble, bus_id, trouble_of
from gpuledger.sources.smi.values import ordinal

_GPU = pattern(r"GPU ([0-9A-Fa-f:.]+)")
_NOT_NAME = pattern(r"[^a-z0-9]+")
# The lines of a process come in this order; one that comes too early is the next process's.
_ROW = ("gpu_instance_id", "compute_instance_id", "process_id", "type", "name", "used_gpu_memory")


def parse_report(text: str) -> Answer:
    """What a report holds; anything at all is taken, nothing is raised.

    A report without its final newline was cut off: its last line is not believed, nor a process list that
    the line belongs to.
    """
    answer = Answer()
    reader: _GpuReader | None = None
    *lines, rest = text.split("\n")
    for line in lines:
        heading = _GPU.fullmatch(line.rstrip())
        if heading:
            _close(reader, answer)
            reader = _GpuReader(bus_id(heading[1]))
        elif found := trouble_of(line):
            answer.troubles.append(found)
        elif reader is not None:
            reader.take(line)
        else:
            _read_head(line, answer)
    if reader is not None and rest.strip():
        reader.cut_off(rest)
    _close(reader, answer)
    return answer


def _close(reader: _GpuReader | None, answer: Answer) -> None:
    if reader is None:
        return
    block = reader.close()
    if block.spoiled >= RUN_TOGETHER:
        answer.troubles.append(Trouble("MANGLED", f"two GPUs under the heading of {block.bus}"))
    else:
        answer.blocks.append(block)


def _read_head(line: str, answer: Answer) -> None:
    key, colon, value = line.partition(" : ")
    told = {_name(key): value.strip()} if colon else {}
    answer.driver = told.get("driver_version", answer.driver)
    answer.cuda = told.get("cuda_version", answer.cuda)
    if (count := ordinal(told.get("attached_gpus", ""))) is not None:
        answer.expected = count


class _GpuReader:
    """The lines of one GPU, by their indentation."""

    def __init__(self, bus: str) -> None:
        self.block = Block(bus)
        self._path: list[tuple[int, str]] = []
        self._twice: set[str] = set()
        self._rows: list[dict[str, str]] | None = None
        self._parts: list[dict[str, str]] = []
        self._lists = 0
        self._place = len(_ROW)

    def take(self, line: str) -> None:
        """Read one line: a heading, or a cell after a spaced colon."""
        indent = len(line) - len(line.lstrip(" "))
        key, colon, value = line.strip().partition(" : ")
        name = _name(key.removesuffix(" :"))
        if not name or indent == 0:
            return
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        top = self._path[0][1] if self._path else name
        if top == "mig_device":
            self._take_part(name, value if colon else None)
        elif top == "processes":
            self._take_row(name, value if colon else None)
        elif colon:
            self._put(self.block.cells, "/".join([*(part for _, part in self._path), name]), value)
        self._path.append((indent, name))

    def cut_off(self, rest: str) -> None:
        """The report ends in the middle of the line `rest`: a process list that it is in is not whole."""
        indent = len(rest) - len(rest.lstrip(" "))
        if indent and self._path and self._path[0][1] == "processes" and indent > self._path[0][0]:
            self._rows = None

    def close(self) -> Block:
        """The finished Block."""
        for path in self._twice:
            self.block.cells.pop(path, None)
        self.block.spoiled = len(self._twice)
        self.block.parts.extend(self._parts)
        if self._rows is not None:
            self.block.rows = [_row(cells) for cells in self._rows]
        return self.block

    def _put(self, cells: dict[str, str], path: str, value: str) -> None:
        if path in cells:
            self._twice.add(path)
        cells[path] = value.strip()

    def _take_part(self, name: str, value: str | None) -> None:
        if not self._path:
            if value is None:
                self._parts.append({})
        elif value is not None:
            path = "/".join([*(part for _, part in self._path[1:]), name])
            self._parts[-1].setdefault(path, value.strip())

    def _take_row(self, name: str, value: str | None) -> None:
        if not self._path:
            # `Processes : None` is an empty list, any other word is why there is none. A second list is
            # another GPU's, whose heading was lost: whose rows are whose is not known any more.
            self._lists += 1
            if self._lists > 1:
                self._rows = None
            elif value is None or value.strip().lower() == "none":
                self._rows = []
            else:
                self.block.rows_said = value.strip()
        elif value is not None and self._rows is not None and name in _ROW:
            place = _ROW.index(name)
            if place <= self._place:
                self._rows.append({})
            self._rows[-1][name] = value.strip()
            self._place = place


def _row(cells: Cells) -> Row:
    return Row(
        pid=cells.get("process_id"),
        name=cells.get("name"),
        type=cells.get("type"),
        memory=cells.get("used_gpu_memory"),
        gi=cells.get("gpu_instance_id"),
        ci=cells.get("compute_instance_id"),
    )


def _name(key: str) -> str:
    return _NOT_NAME.sub("_", key.strip().lower()).strip("_")

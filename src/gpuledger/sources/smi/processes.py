"""Conversion of nvidia-smi's process lists to GpuProcesses, one per Device and pid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from re import compile as pattern
from typing import Final

from gpuledger.model.devices import Device, Gpu
from gpuledger.model.process import NO_USAGE, GpuProcess, HostFacts, ProcessType, Usage
from gpuledger.model.quantities import MEMORY_USED, UTILIZATION
from gpuledger.model.text import clean_name
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi import cell_names
from gpuledger.sources.smi.cell_values import absent_reason, parse_index, parse_quantity, parse_whole
from gpuledger.sources.smi.parsed_gpus import ParsedGpu
from gpuledger.sources.smi.parsed_output import Cells, first_present

_MAX_NAME_LENGTH: Final = 1024
_TYPES = {kind.value: kind for kind in ProcessType}
# Texts without brackets that the report prints instead of a name.
_NAME_PLACEHOLDERS = frozenset({"N/A", "-", "Insufficient Permissions"})


@dataclass(slots=True)
class ListedProcess:
    """All rows of one pid on one Device combined: the union of types, the highest memory."""

    types: set[ProcessType] = field(default_factory=set)
    name: str = ""
    memory: int | None = None


# By Device UUID: the processes by pid, or None if the list could not be read.
ProcessLists = dict[str, dict[int, ListedProcess] | None]


def collect_process_lists(parsed_gpus: Iterable[ParsedGpu], findings: SourceFindings) -> ProcessLists:
    """Return the process list of every Gpu without Instances and of every Instance."""
    lists: ProcessLists = {}
    for parsed in parsed_gpus:
        holders: tuple[Device, ...] = tuple(parsed.instances) or (parsed.gpu,)
        rows = None if parsed.down else parsed.block.processes
        if rows is None:
            lists.update((holder.uuid, None) for holder in holders)
            if not parsed.down:
                _note_missing_list(parsed, findings)
            continue
        lists.update((holder.uuid, {}) for holder in holders)
        for row in rows:
            _add_process(row, parsed, lists, findings)
    return lists


def _note_missing_list(parsed: ParsedGpu, findings: SourceFindings) -> None:
    message = parsed.block.process_list_message
    reason = (absent_reason(message) or "UNKNOWN") if message else "NOT_TOLD"
    detail = f"{parsed.gpu.uuid}: no process list: {message or 'the output contains none'}"
    findings.note("processes", reason, detail, parsed.gpu)


def _add_process(row: Cells, parsed: ParsedGpu, lists: ProcessLists, findings: SourceFindings) -> None:
    pid_cell = first_present(row, cell_names.PROCESS_PID)
    pid = parse_whole(pid_cell, findings)
    if pid is None:
        if pid_cell is None or not absent_reason(pid_cell):
            detail = f"{parsed.gpu.uuid}: a process without a readable pid"
            findings.note("processes", "PID_UNREADABLE", detail, parsed.gpu)
        return
    device = _find_device(row, parsed, findings)
    if device is None:
        detail = f"{parsed.gpu.uuid}: pid {pid}: its MIG instance is not in the output"
        findings.note("processes", "INSTANCE_UNKNOWN", detail, parsed.gpu)
        return
    listed = lists[device.uuid]
    if listed is None:
        return
    process = listed.setdefault(pid, ListedProcess())
    letters = (first_present(row, cell_names.PROCESS_TYPE) or "").strip().split("+")
    process.types |= {_TYPES[letter] for letter in letters if letter in _TYPES}
    process.name = process.name or _name(first_present(row, cell_names.PROCESS_NAME))
    memory = parse_quantity(first_present(row, cell_names.PROCESS_MEMORY), MEMORY_USED, findings)
    if memory is not None:
        process.memory = max(process.memory or 0, int(memory))


def _name(cell: str | None) -> str:
    # A process may be named `error`, so only bracketed words count as placeholders of nvidia-smi.
    name = (cell or "").strip()
    bracketed = name[:1] + name[-1:] in ("[]", "()")
    return "" if name in _NAME_PLACEHOLDERS or (bracketed and absent_reason(name)) else name


def _find_device(row: Cells, parsed: ParsedGpu, findings: SourceFindings) -> Device | None:
    if not parsed.instances:
        return parsed.gpu
    ids = tuple(
        parse_whole(first_present(row, names), findings) for names in (cell_names.MIG_GI, cell_names.MIG_CI)
    )
    return next((instance for instance in parsed.instances if (instance.gi, instance.ci) == ids), None)


def build_processes(
    device: Device,
    listed: Mapping[int, ListedProcess] | None,
    facts: Mapping[int, HostFacts],
    usage: Mapping[tuple[int, int], Usage],
) -> tuple[GpuProcess, ...] | None:
    """Return the processes of one Device in order of pid; None if the list could not be read."""
    if listed is None:
        return None
    whole_gpu = isinstance(device, Gpu)
    return tuple(
        GpuProcess(
            device,
            pid,
            facts[pid],
            # Its last part names the program: a longer one loses its beginning.
            name=clean_name(process.name[-_MAX_NAME_LENGTH:], _MAX_NAME_LENGTH),
            types=frozenset(process.types),
            memory=process.memory,
            usage=usage.get((device.gpu.index, pid), NO_USAGE) if whole_gpu else NO_USAGE,
        )
        for pid, process in sorted(listed.items())
    )


# Column of pmon -> field of Usage. `mem` is the time that the memory bus is busy; memory used is `fb`.
_ENGINES = {
    "sm": "sm",
    "mem": "memory",
    "enc": "encoder",
    "dec": "decoder",
    "jpg": "jpeg",
    "ofa": "ofa",
}
_BARE_NUMBER = pattern(r"[0-9]+")

# By GPU index and pid.
PmonUsage = dict[tuple[int, int], Usage]


def parse_pmon(text: str, findings: SourceFindings) -> PmonUsage | None:
    """Parse one sample of each process; `-` means not reported, not zero. Never raises.

    If the output has several samples, the last one is used. Returns None if it is not a table of pmon.
    """
    usage: PmonUsage = {}
    titles: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    *lines, rest = text.split("\n")
    for line in lines:
        words = line.split()
        if words[:1] == ["#"]:
            head = tuple(word.lower() for word in words[1:])
            if "pid" in head and "gpu" in head:
                titles, units = head, ()
            else:
                units = head
        elif words and titles:
            _add_row(words, titles, units, usage, findings)
    # A last line without newline is complete only if it has the command column.
    if titles and titles[-1] == "command" and len(rest.split()) >= len(titles):
        _add_row(rest.split(), titles, units, usage, findings)
    return usage if titles else None


def listed_gpus(text: str) -> frozenset[int]:
    """The indexes of the GPUs that have a row in the output of pmon, also if it has no process."""
    first = (line.split(maxsplit=1)[:1] for line in text.split("\n"))
    return frozenset(index for words in first for word in words if (index := parse_index(word)) is not None)


def _add_row(
    words: list[str],
    titles: tuple[str, ...],
    units: tuple[str, ...],
    usage: PmonUsage,
    findings: SourceFindings,
) -> None:
    by_title = dict(zip(titles, words, strict=False))
    if not any(_BARE_NUMBER.fullmatch(by_title.get(title, "")) for title in ("gpu", "pid")):
        # No row, but a message beside them, such as that the infoROM is corrupted. The exit code reports it.
        return
    has_command = titles[-1] == "command"
    if len(words) < len(titles) or (not has_command and len(words) > len(titles)):
        findings.reject("a row of nvidia-smi pmon", " ".join(words))
        return
    counts = Counter(titles)
    cells = {title: word for title, word in zip(titles, words, strict=False) if counts[title] == 1}
    pid, index = parse_whole(cells.get("pid"), findings), parse_whole(cells.get("gpu"), findings)
    if pid is None or index is None:
        return
    unit_by_title = dict(zip(titles, units, strict=False))
    shares: dict[str, float | None] = {}
    for title, name in _ENGINES.items():
        cell = cells.get(title)
        if cell is not None and (not units or unit_by_title.get(title) == "%"):
            scaled = f"{cell} %" if _BARE_NUMBER.fullmatch(cell) else cell
            shares[name] = parse_quantity(scaled, UTILIZATION, findings)
    usage[index, pid] = Usage(**shares)

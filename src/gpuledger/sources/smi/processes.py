"""Rows made GpuProcesses: where each sits, one per Device and pid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from re import compile as pattern

from gpuledger.model.devices import Device, Gpu
from gpuledger.model.process import NO_USAGE, GpuProcess, HostFacts, ProcessType, Usage
from gpuledger.model.quantities import MEMORY_USED, UTILIZATION
from gpuledger.model.text import clean_name
from gpuledger.sources.findings import Findings
from gpuledger.sources.smi.answer import Row
from gpuledger.sources.smi.machine import Card
from gpuledger.sources.smi.values import measure, whole, why_absent

_TYPES = {kind.value: kind for kind in ProcessType}
# What the report has in a name's place without brackets.
_NO_NAME = frozenset({"N/A", "-", "Insufficient Permissions"})


@dataclass(slots=True)
class Seen:
    """What the rows of one pid on one Device say together: types joined, memory the highest."""

    types: set[ProcessType] = field(default_factory=set)
    name: str = ""
    memory: int | None = None


# By Device UUID: the pids on it, or None where the list could not be read.
Lists = dict[str, dict[int, Seen] | None]


def gather(cards: Iterable[Card], findings: Findings) -> Lists:
    """The process list of every Gpu and Instance that tells processes."""
    lists: Lists = {}
    for card in cards:
        holders: tuple[Device, ...] = card.instances or (card.gpu,)
        rows = None if card.down else card.block.rows
        if rows is None:
            lists.update((holder.uuid, None) for holder in holders)
            if not card.down:
                _explain(card, findings)
            continue
        lists.update((holder.uuid, {}) for holder in holders)
        for row in rows:
            _place(row, card, lists, findings)
    return lists


def _explain(card: Card, findings: Findings) -> None:
    said = card.block.rows_said
    reason = (why_absent(said) or "UNKNOWN") if said else "NOT_TOLD"
    detail = f"{card.gpu.uuid}: no process list: {said or 'the answer holds none'}"
    findings.note("processes", reason, detail, card.gpu)


def _place(row: Row, card: Card, lists: Lists, findings: Findings) -> None:
    pid = whole(row.pid, findings)
    if pid is None:
        if row.pid is None or not why_absent(row.pid):
            detail = f"{card.gpu.uuid}: a process without a readable pid"
            findings.note("processes", "PID_UNREADABLE", detail, card.gpu)
        return
    device = _device(row, card, findings)
    if device is None:
        detail = f"{card.gpu.uuid}: pid {pid}: on no MIG instance that is told"
        findings.note("processes", "INSTANCE_UNKNOWN", detail, card.gpu)
        return
    listed = lists[device.uuid]
    if listed is None:
        return
    seen = listed.setdefault(pid, Seen())
    seen.types |= {_TYPES[letter] for letter in (row.type or "").strip().split("+") if letter in _TYPES}
    seen.name = seen.name or _name(row.name)
    memory = measure(row.memory, MEMORY_USED, findings)
    if memory is not None:
        seen.memory = max(seen.memory or 0, int(memory))


def _name(cell: str | None) -> str:
    # A process may be called `error`; only what no program would be called is nvidia-smi's own word.
    told = (cell or "").strip()
    bracketed = told[:1] + told[-1:] in ("[]", "()")
    return "" if told in _NO_NAME or (bracketed and why_absent(told)) else told


def _device(row: Row, card: Card, findings: Findings) -> Device | None:
    if not card.instances:
        return card.gpu
    gi, ci = whole(row.gi, findings), whole(row.ci, findings)
    return next((one for one in card.instances if (one.gi, one.ci) == (gi, ci)), None)


def build(
    device: Device,
    listed: Mapping[int, Seen] | None,
    facts: Mapping[int, HostFacts],
    usage: Mapping[tuple[int, int], Usage],
) -> tuple[GpuProcess, ...] | None:
    """The processes of one Device by pid; None where the list could not be read."""
    if listed is None:
        return None
    whole_gpu = isinstance(device, Gpu)
    return tuple(
        GpuProcess(
            device,
            pid,
            facts[pid],
            name=clean_name(seen.name),
            types=frozenset(seen.types),
            memory=seen.memory,
            usage=usage.get((device.gpu.index, pid), NO_USAGE) if whole_gpu else NO_USAGE,
        )
        for pid, seen in sorted(listed.items())
    )


# Column to the field of Usage. `mem` is time on the memory bus, not memory held (that is `fb`).
_ENGINES = {
    "sm": "sm",
    "mem": "memory",
    "enc": "encoder",
    "dec": "decoder",
    "jpg": "jpeg",
    "ofa": "ofa",
}
_BARE_NUMBER = pattern(r"[0-9]+")


@dataclass(slots=True)
class Activity:
    """Usage by `(GPU index, pid)`. `told` is false when the answer is no table of pmon."""

    usage: dict[tuple[int, int], Usage] = field(default_factory=dict)
    told: bool = False


def parse_pmon(text: str, findings: Findings) -> Activity:
    """One sample of every process; `-` is not told, which is not zero. Nothing is raised.

    With several samples in the answer the last one stands.
    """
    activity = Activity()
    titles: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    *lines, rest = text.split("\n")
    for line in lines:
        words = line.split()
        if words[:1] == ["#"]:
            head = tuple(word.lower() for word in words[1:])
            if "pid" in head and "gpu" in head:
                titles, units = head, ()
                activity.told = True
            else:
                units = head
        elif words and titles:
            _take(words, titles, units, activity, findings)
    # Only a row that ends in its command is known to be whole without a newline.
    if titles and titles[-1] == "command" and len(rest.split()) >= len(titles):
        _take(rest.split(), titles, units, activity, findings)
    return activity


def _take(
    words: list[str], titles: tuple[str, ...], units: tuple[str, ...], activity: Activity, findings: Findings
) -> None:
    named = titles[-1] == "command"
    if len(words) < len(titles) or (not named and len(words) > len(titles)):
        findings.invalid += 1
        return
    counts = Counter(titles)
    cells = {title: word for title, word in zip(titles, words, strict=False) if counts[title] == 1}
    pid, index = whole(cells.get("pid"), findings), whole(cells.get("gpu"), findings)
    if pid is None or index is None:
        return
    percent = (
        {title for title, unit in zip(titles, units, strict=False) if unit == "%"} if units else set(titles)
    )
    activity.usage[index, pid] = _usage(cells, percent, findings)


def _usage(cells: Mapping[str, str], percent: set[str], findings: Findings) -> Usage:
    told: dict[str, float | None] = {}
    for title, name in _ENGINES.items():
        cell = cells.get(title)
        if cell is not None and title in percent:
            scaled = f"{cell} %" if _BARE_NUMBER.fullmatch(cell) else cell
            told[name] = measure(scaled, UTILIZATION, findings)
    return Usage(**told)

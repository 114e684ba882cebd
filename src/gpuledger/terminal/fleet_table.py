"""Renders a fleet as lines: free GPUs first, then the GPUs of each node as symbols, then who holds most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gpuledger.model.text import list_some
from gpuledger.terminal import number_format
from gpuledger.terminal.fleet_picture import FleetGpu, FleetNodeRow, FleetPicture
from gpuledger.terminal.layout import (
    Glyphs,
    Line,
    Span,
    TableColumn,
    place_columns,
    row_line,
    text_cell,
    truncate_line,
)
from gpuledger.terminal.plain_output import column_gap, heading_line
from gpuledger.terminal.snapshot import printable_name
from gpuledger.terminal.top_view import format_clock

R = TypeVar("R")
HOLDERS_SHOWN: Final = 10
_ROLES: Final = {"free": "idle", "held": "held", "active": "active", "down": "down", "unknown": "unknown"}
_FIELDS: Final[dict[str, Callable[[FleetGpu], Iterable[str]]]] = {
    "node": lambda gpu: (gpu.node,),
    "model": lambda gpu: (gpu.kind,),
    "owner": lambda gpu: (*gpu.owners, *gpu.groups),
    "state": lambda gpu: (gpu.state,),
    "gpu": lambda gpu: (gpu.place, gpu.uuid),
}
_EXACT: Final = ("state", "gpu")


def is_shown(gpu: FleetGpu, words: Sequence[str]) -> bool:
    """Whether all words match: `!word` excludes; node:, model:, owner:, state: and gpu: match one field."""
    return all(_matches(gpu, word.lower()) for word in words)


def _matches(gpu: FleetGpu, word: str) -> bool:
    if len(word) > 1 and word.startswith("!"):
        return not _matches(gpu, word[1:])
    name, colon, wanted = word.partition(":")
    if colon and name in _FIELDS:
        values = [value.lower() for value in _FIELDS[name](gpu)]
        return wanted in values if name in _EXACT else any(wanted in value for value in values)
    return any(word in value.lower() for read in _FIELDS.values() for value in read(gpu))


@dataclass(slots=True)
class _FreeKind:
    """Free GPUs of one model and memory, by node."""

    model: str
    memory: int | None
    total: int = 0
    free: int = 0
    places: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Holder:
    """A user or namespace with GPUs."""

    name: str
    states: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)


def fleet_lines(
    picture: FleetPicture, words: Sequence[str], origin: str, width: int | None, glyphs: Glyphs
) -> list[Line]:
    """Render the fleet; `width` None is unlimited. `words` filter the GPUs."""
    gpus = [gpu for gpu in picture.gpus if is_shown(gpu, words)]
    shown = {gpu.node for gpu in gpus}
    nodes = [node for node in picture.nodes if not words or node.name in shown]
    lines: list[Line] = [_title(picture, origin, glyphs), _counts(gpus, words, glyphs)]
    lines += _week_lines(picture, glyphs)
    gap = column_gap(width)
    free = _free_kinds(gpus)
    lines += [(), (("Free now", "bold"),)]
    lines += _table(_free_columns(), free, width, gap, glyphs) or [(("  none", "dim"),)]
    if nodes:
        lines += [(), (("Nodes", "bold"),)]
        lines += _table(_node_columns(picture, words, glyphs), nodes, width, gap, glyphs)
    holders = _holders(gpus)
    if holders:
        lines += [(), (("Who holds most", "bold"),)]
        lines += _table(_holder_columns(), holders[:HOLDERS_SHOWN], width, gap, glyphs)
    if width is not None:
        lines = [truncate_line(line, width, glyphs) for line in lines]
    # Notes are not truncated: the terminal wraps them.
    notes = [*picture.list_errors, *_node_notes(nodes)]
    return [*lines, *([()] if notes else []), *(((printable_name(note), "dim"),) for note in notes)]


def _table(
    columns: Sequence[TableColumn[R]], rows: Sequence[R], width: int | None, gap: int, glyphs: Glyphs
) -> list[Line]:
    if not rows:
        return []
    placed = place_columns(columns, rows, width, gap)
    return [heading_line(placed, glyphs, gap), *(row_line(placed, row, glyphs, gap) for row in rows)]


def _title(picture: FleetPicture, origin: str, glyphs: Glyphs) -> Line:
    gone = sum(1 for node in picture.nodes if node.status)
    count = f"{len(picture.nodes)} nodes" if len(picture.nodes) != 1 else "1 node"
    spans: list[Span] = [
        (f"gpuledger top {glyphs.dot} ", "dim"),
        ("fleet", "node"),
        (f" {glyphs.dot} {format_clock(picture.unix)} {glyphs.dot} {origin} {glyphs.dot} {count}", "dim"),
    ]
    if gone:
        spans += [(" ", ""), (f"{gone} not read", "stale")]
    return tuple(spans)


def _counts(gpus: Sequence[FleetGpu], words: Sequence[str], glyphs: Glyphs) -> Line:
    states = Counter(gpu.state for gpu in gpus)
    free = sum(gpu.free_now for gpu in gpus)
    names = {"held": "idle but allocated", "active": "active", "down": "down", "unknown": "unknown"}
    spans: list[Span] = [(f"{free} free now", "bold"), (f" of {len(gpus)} GPUs", "")]
    if states["free"] > free:
        spans.append((f" ({states['free'] - free} unused, not available)", "dim"))
    for state, name in names.items():
        if states[state]:
            spans += [(f" {glyphs.dot} ", "dim"), (f"{states[state]} {name}", "")]
    if words:
        spans += [(f" {glyphs.dot} ", "dim"), (f"filter: {' '.join(words)}", "chosen")]
    return tuple(spans)


def _week_lines(picture: FleetPicture, glyphs: Glyphs) -> list[Line]:
    week = picture.week
    idle, held = week.get("idle_gpu_microseconds"), week.get("held_gpu_seconds")
    if not isinstance(idle, int) or not isinstance(held, int):
        return []
    count = week.get("nodes")
    partly = f" ({count} of {len(picture.nodes)} nodes)" if count != len(picture.nodes) else ""
    text = f"this week{partly}: idle {_amount(week, idle / 3.6e9, 'idle_cost')} {glyphs.dot} "
    notes = [note for note in week.get("notes") or () if isinstance(note, str)]
    lines: list[Line] = [((f"{text}allocated, unused {_amount(week, held / 3600, 'held_cost')}", ""),)]
    return lines + [((f"  {printable_name(note)}", "dim"),) for note in notes]


def _amount(week: Any, hours: float, key: str) -> str:
    cost, currency = week.get(key), week.get("currency") or ""
    shown = f"{hours:,.1f} GPU-hours"
    return f"{shown}, {printable_name(f'{cost} {currency}'.strip())}" if isinstance(cost, str) else shown


def _free_kinds(gpus: Iterable[FleetGpu]) -> list[_FreeKind]:
    """The kinds with a free GPU, those with the most memory first."""
    kinds: dict[tuple[str, int | None], _FreeKind] = {}
    for gpu in gpus:
        kind = kinds.setdefault((gpu.kind, gpu.memory_total), _FreeKind(gpu.kind, gpu.memory_total))
        kind.total += 1
        if gpu.free_now:
            kind.free += 1
            kind.places.setdefault(gpu.node, []).append(gpu.place)
    found = [kind for kind in kinds.values() if kind.free]
    return sorted(found, key=lambda kind: (-(kind.memory or 0), kind.model))


def _free_columns() -> list[TableColumn[_FreeKind]]:
    def places(kind: _FreeKind) -> Line:
        texts = (f"{printable_name(node)}: {','.join(found)}" for node, found in kind.places.items())
        return text_cell("  ".join(texts))

    return [
        TableColumn(
            "model",
            "MODEL",
            12,
            1,
            lambda kind: text_cell(printable_name(kind.model)),
            flexible=True,
            most=40,
        ),
        TableColumn(
            "memory", "MEMORY", 6, 3, lambda kind: text_cell(number_format.size(kind.memory)), right=True
        ),
        TableColumn("free", "FREE", 9, 0, lambda kind: text_cell(f"{kind.free} of {kind.total}"), right=True),
        TableColumn("where", "WHERE", 10, 2, places, flexible=True, most=400),
    ]


def _node_columns(
    picture: FleetPicture, words: Sequence[str], glyphs: Glyphs
) -> list[TableColumn[FleetNodeRow]]:
    signs = {
        "free": glyphs.idle,
        "held": glyphs.held,
        "active": glyphs.active,
        "down": glyphs.down,
        "unknown": glyphs.unknown,
    }

    def cells(node: FleetNodeRow) -> Line:
        shown = [gpu for gpu in node.gpus if is_shown(gpu, words)]
        return tuple((signs.get(gpu.state, "?"), _ROLES.get(gpu.state, "unknown")) for gpu in shown)

    def status(node: FleetNodeRow) -> Line:
        if not node.status:
            return (
                ((f"{node.counted_elsewhere} GPUs counted elsewhere", "dim"),)
                if node.counted_elsewhere
                else ()
            )
        since = "" if node.since is None else f", for {number_format.lasting(picture.unix - node.since)}"
        return ((f"{printable_name(node.status)}{since}", "alarm"),)

    return [
        TableColumn(
            "node",
            "NODE",
            8,
            0,
            lambda node: ((printable_name(node.name), "node"),),
            flexible=True,
            most=40,
        ),
        TableColumn("gpus", "GPUS", 8, 1, cells, flexible=True, most=128),
        TableColumn(
            "free",
            "FREE",
            4,
            2,
            lambda node: text_cell("" if node.status else str(sum(gpu.free_now for gpu in node.gpus))),
            right=True,
        ),
        TableColumn("status", "STATUS", 6, 3, status, flexible=True, most=100),
    ]


def _node_notes(nodes: Iterable[FleetNodeRow]) -> list[str]:
    simulated = [node.name for node in nodes if node.simulated]
    return [f"Simulated data: {list_some(simulated, 5)}"] if simulated else []


def _holders(gpus: Iterable[FleetGpu]) -> list[_Holder]:
    """Users and namespaces, those with the most GPUs first. A shared GPU counts for each."""
    found: dict[str, _Holder] = {}
    for gpu in gpus:
        for group in gpu.groups:
            holder = found.setdefault(group, _Holder(group))
            holder.states[gpu.state] += 1
            holder.models[gpu.kind] += 1
    return sorted(found.values(), key=lambda one: (-one.states.total(), -one.states["held"], one.name))


def _holder_columns() -> list[TableColumn[_Holder]]:
    def models(holder: _Holder) -> Line:
        return text_cell(
            ", ".join(f"{count} x {printable_name(name)}" for name, count in holder.models.most_common())
        )

    return [
        TableColumn(
            "owner",
            "OWNER",
            10,
            0,
            lambda one: ((printable_name(one.name), "owner"),),
            flexible=True,
            most=40,
        ),
        TableColumn("gpus", "GPUS", 4, 1, lambda one: text_cell(str(one.states.total())), right=True),
        TableColumn("active", "ACTIVE", 6, 3, lambda one: text_cell(str(one.states["active"])), right=True),
        TableColumn("held", "IDLE", 4, 2, lambda one: text_cell(str(one.states["held"])), right=True),
        TableColumn("models", "MODELS", 10, 4, models, flexible=True, most=200),
    ]

"""The user's selection of a snapshot (order, filter, GPUs), and the texts around the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuledger.terminal import number_format
from gpuledger.terminal.columns import sort_arrow
from gpuledger.terminal.filters import ProcessFilter, select_devices, select_processes
from gpuledger.terminal.layout import Glyphs, Line, Span
from gpuledger.terminal.snapshot import DeviceRow, DeviceXid, NodeSnapshot, ProblemRow, ProcessRow
from gpuledger.terminal.sort_order import SortOrder, sort_processes
from gpuledger.workloads.checks import REASONS


@dataclass(frozen=True, slots=True)
class TopView:
    """Sort order, filter, selected GPUs (none: all), and whether MIG instances are hidden."""

    order: SortOrder = field(default_factory=SortOrder)
    filter: ProcessFilter = field(default_factory=ProcessFilter)
    gpus: tuple[str, ...] = ()
    folded: bool = False

    def devices(self, snapshot: NodeSnapshot) -> list[DeviceRow]:
        """The selected GPUs, each followed by its MIG instances."""
        rows = select_devices(snapshot.devices, self.gpus)
        return [row for row in rows if not row.instance] if self.folded else rows

    def processes(self, snapshot: NodeSnapshot) -> list[ProcessRow]:
        """The selected processes, sorted."""
        rows = select_processes(snapshot.processes, self.gpus)
        return sort_processes((row for row in rows if self.filter.matches(row)), self.order)

    def on_gpu(self, name: str) -> TopView:
        """Select only this GPU; the same GPU again: all."""
        return replace(self, gpus=() if self.gpus == (name,) else (name,))


@dataclass(frozen=True, slots=True)
class SnapshotOrigin:
    """The node that snapshots come from.

    `began` is the time from which joules count, as text; empty for a node with a ledger on disk.
    """

    name: str
    remote: bool = False
    began: str = ""


def format_clock(unix: float) -> str:
    """A time of day in local time; empty for one that no calendar has, as a broken node can send."""
    try:
        return datetime.fromtimestamp(unix).astimezone().strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return ""


def title_line(snapshot: NodeSnapshot, origin: SnapshotOrigin, clock: str, glyphs: Glyphs) -> Line:
    """The title: node, time, driver and source."""
    parts = [
        clock,
        origin.name if origin.remote else "",
        f"driver {snapshot.driver_version}" if snapshot.driver_version else "",
        f"CUDA {snapshot.cuda_version}" if snapshot.cuda_version else "",
        f"source {snapshot.source}",
    ]
    rest = f" {glyphs.dot} ".join(part for part in parts if part)
    return (
        (f"gpuledger top {glyphs.dot} ", "dim"),
        (snapshot.node or origin.name, "node"),
        (f" {glyphs.dot} {rest}", "dim"),
    )


def banner_lines(snapshot: NodeSnapshot) -> list[Line]:
    """The banners: simulated data, a pause, an unhealthy node, an incomplete list of GPUs."""
    lines: list[Line] = []
    if snapshot.simulated:
        detail = snapshot.detail or snapshot.source
        lines.append(((f" SIMULATED DATA: {detail}. Nothing here was measured. ", "banner"),))
    if snapshot.paused:
        lines.append(((f" {snapshot.status} ", "banner"),))
    elif not snapshot.healthy:
        lines.append((("Health: ", "bold"), (snapshot.status or "unknown", "alarm")))
    if snapshot.readings and not snapshot.devices_complete:
        lines.append((("Not all GPUs could be listed.", "alarm"),))
    return lines


def totals_line(devices: Iterable[DeviceRow], glyphs: Glyphs) -> Line:
    """The number of GPUs by state, how many of those that are up are degraded, and their power and memory.

    A quantity that a GPU lacks has no total.
    """
    rows = list(devices)
    gpus = [row for row in rows if not row.instance]
    places = [row for row in rows if row.holds_processes]
    states = Counter("down" if not row.up else row.state or "unknown" for row in places)
    states["degraded"] = sum(row.up and bool(row.serious) for row in rows)
    parts = len(rows) - len(gpus)
    heading = _many(len(gpus), "GPU") + (f", {_many(parts, 'instance')}" if parts else "")
    spans: list[Span] = [(f"{heading}:", "bold")]
    for state in ("active", "held", "idle", "unknown", "degraded", "down"):
        if states[state]:
            symbol, number = getattr(glyphs, state), states[state]
            role = {"held": "held", "degraded": "held", "down": "down"}.get(state)
            quiet: Line = ((symbol, state), (f" {number} {state}", ""))
            spans += [(" ", ""), *(((f"{symbol} {number} {state.upper()}", role),) if role else quiet)]
    spans += _sums(gpus, glyphs)
    return tuple(spans)


def _sums(gpus: list[DeviceRow], glyphs: Glyphs) -> list[Span]:
    up = [row for row in gpus if row.up]
    parts = []
    drawn, limit = _sum(row.power_watts for row in up), _sum(row.power_limit_watts for row in up)
    if drawn is not None:
        parts.append(
            number_format.kilowatts(drawn) + ("" if limit is None else f"/{limit / 1000:.1f}") + " kW"
        )
    used, total = _sum(row.memory_used_bytes for row in up), _sum(row.memory_total_bytes for row in up)
    if used is not None:
        parts.append(number_format.sizes(used, total))
    return [(f" {glyphs.dot} {part}", "") for part in parts]


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    present = [value for value in found if value is not None]
    return sum(present) if present and len(present) == len(found) else None


def caption_line(snapshot: NodeSnapshot, shown: list[ProcessRow], view: TopView, glyphs: Glyphs) -> Line:
    """The number of processes shown and in total, and the active filters."""
    count = _processes(shown)
    of = _processes(snapshot.processes)
    text = _many(count, "process") if count == of else f"{count} of {_many(of, 'process')}"
    spans: list[Span] = [(text, "bold"), (f" by {view.order.by} {sort_arrow(view.order, glyphs)}", "")]
    if view.gpus:
        spans += [(f" {glyphs.dot} ", "dim"), (f"GPU {', '.join(view.gpus)} only", "chosen")]
    if view.filter.text:
        spans += [(f" {glyphs.dot} ", "dim"), (f"filter: {view.filter.text}", "chosen")]
    return tuple(spans)


def _processes(rows: Iterable[ProcessRow]) -> int:
    return sum(1 if row.count is None else row.count for row in rows)


def no_process_text(snapshot: NodeSnapshot) -> str:
    """Why no process is shown."""
    if not snapshot.readings:
        return f"No readings: {snapshot.status or 'the node gives no reason'}"
    if not snapshot.devices:
        return "This machine has no GPU." if snapshot.devices_complete else "The GPUs could not be listed."
    if snapshot.processes:
        return "No process matches the filter."
    if any(row.holds_processes and row.processes is None for row in snapshot.devices):
        return "The processes could not be listed."
    return "No process uses a GPU."


def missing_owner_text(reason: str) -> str:
    """Why the owner of a process is not fully known, and the remedy."""
    why, remedy = REASONS.get(reason, ("without an owner", "run gpuledger doctor"))
    return f"{why} ({reason}): {remedy}"


def describe_problem(problem: ProblemRow, xids: Iterable[DeviceXid], now: float) -> str:
    """The end of a sentence about a GPU: what, when and how much of the last hour; then what to do."""
    is_xid = problem.kind == "xid"
    parts = [problem.summary]
    if problem.since is not None:
        times = f"{problem.count} times, last " if is_xid and (problem.count or 1) > 1 else ""
        parts.append(f"{times}{'at' if is_xid else 'since'} {_moment(problem.since, now)}")
    parts += [
        f"while {row.command or 'a process'} (pid {row.pid}) was on it"
        for row in xids
        if is_xid and (row.unix, f"Xid {row.xid}") == (problem.since, problem.label) and row.pid is not None
    ]
    if problem.ratio is not None:
        part = number_format.share(problem.ratio)
        parts.append(f"{part} of the last {number_format.lasting(problem.observed_seconds)}")
    remedy = f" {problem.remedy[0].upper()}{problem.remedy[1:]}." if problem.remedy else ""
    return f"{', '.join(parts)}.{remedy}"


def _moment(unix: float, now: float) -> str:
    """A time of day, with the date if it is another day."""
    day = datetime.fromtimestamp(unix).astimezone().date()
    today = datetime.fromtimestamp(now).astimezone().date()
    return format_clock(unix) if day == today else f"{day} {format_clock(unix)}"


def data_notes(snapshot: NodeSnapshot, origin: SnapshotOrigin) -> list[str]:
    """Problems of GPUs, then notes about the data: what the numbers are based on, and what is missing."""
    lines = [
        f"GPU {row.place} {describe_problem(problem, row.xids, snapshot.unix)}"
        for row in snapshot.devices
        for problem in row.problems
    ]
    if origin.began:
        lines.append(
            f"Joules and held times count from {origin.began}, when this top started; gpuledger serve keeps "
            "a ledger, which --url shows."
        )
    missing = Counter(row.unresolved for row in snapshot.processes if row.unresolved)
    for reason, number in sorted(missing.items()):
        lines.append(f"{_many(number, 'process')} {missing_owner_text(reason)}.")
    unlisted = [row for row in snapshot.devices if row.up and row.holds_processes and row.processes is None]
    if unlisted:
        names = ", ".join(row.place for row in unlisted)
        lines.append(f"The processes of GPU {names} could not be listed.")
    return lines


def _many(number: int, word: str) -> str:
    plural = {"process": "processes"}.get(word, f"{word}s")
    return f"{number} {word if number == 1 else plural}"

"""What of a picture is looked at, and how: the choices a user makes, and the rows they leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuledger.terminal import figures
from gpuledger.terminal.columns import sign
from gpuledger.terminal.line import Glyphs, Line, Span
from gpuledger.terminal.order import Order, ordered
from gpuledger.terminal.picture import DeviceRow, Picture, ProcessRow
from gpuledger.terminal.search import Filter, of_gpus, on_gpus
from gpuledger.workloads.checks import REASONS


@dataclass(frozen=True, slots=True)
class View:
    """Order, filter, GPUs (none: all), and whether Instances are left out."""

    order: Order = field(default_factory=Order)
    filter: Filter = field(default_factory=Filter)
    gpus: tuple[str, ...] = ()
    folded: bool = False

    def devices(self, picture: Picture) -> list[DeviceRow]:
        """The GPUs shown, each before its Instances."""
        rows = of_gpus(picture.devices, self.gpus)
        return [row for row in rows if not row.instance] if self.folded else rows

    def processes(self, picture: Picture) -> list[ProcessRow]:
        """The processes shown, in order."""
        rows = on_gpus(picture.processes, self.gpus)
        return ordered((row for row in rows if self.filter.matches(row)), self.order)

    def on_gpu(self, name: str) -> View:
        """Only this GPU; named again, all."""
        return replace(self, gpus=() if self.gpus == (name,) else (name,))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where pictures come from.

    `began` is when joules began to be counted, as a text; empty for a node that keeps books.
    """

    name: str
    remote: bool = False
    began: str = ""


def clock_text(unix: float) -> str:
    """A moment of today, in local time."""
    return datetime.fromtimestamp(unix).astimezone().strftime("%H:%M:%S")


def title(picture: Picture, origin: Origin, clock: str, glyphs: Glyphs) -> Line:
    """Which node, which driver, and when."""
    parts = [
        clock,
        origin.name if origin.remote else "",
        f"driver {picture.driver}" if picture.driver else "",
        f"CUDA {picture.cuda}" if picture.cuda else "",
        f"source {picture.source}",
    ]
    rest = f" {glyphs.dot} ".join(part for part in parts if part)
    return (
        (f"gpuledger top {glyphs.dot} ", "dim"),
        (picture.node or origin.name, "node"),
        (f" {glyphs.dot} {rest}", "dim"),
    )


def banners(picture: Picture) -> list[Line]:
    """What must not be overlooked: numbers that nobody measured, and a node that is not well."""
    lines: list[Line] = []
    if picture.simulated:
        what = picture.detail or picture.source
        lines.append(((f" SIMULATED DATA: {what}. Nothing here was measured. ", "banner"),))
    if picture.paused:
        lines.append(((f" {picture.status} ", "banner"),))
    elif not picture.healthy:
        lines.append((("Health: ", "bold"), (picture.status or "not told", "alarm")))
    if picture.readings and not picture.complete:
        lines.append((("Not all GPUs could be listed.", "alarm"),))
    return lines


def totals(devices: Iterable[DeviceRow], glyphs: Glyphs) -> Line:
    """How many GPUs are free, at work or held, and what they draw. What is not told by all has no sum."""
    rows = list(devices)
    gpus = [row for row in rows if not row.instance]
    places = [row for row in rows if row.holds]
    states = Counter("lost" if not row.up else row.state or "unknown" for row in places)
    parts = len(rows) - len(gpus)
    heading = _many(len(gpus), "GPU") + (f", {_many(parts, 'instance')}" if parts else "")
    spans: list[Span] = [(f"{heading}:", "bold")]
    for state in ("active", "held", "idle", "unknown", "lost"):
        if states[state]:
            sign, number = getattr(glyphs, state), states[state]
            loud = state in ("held", "lost")
            told: Line = ((sign, state), (f" {number} {state}", ""))
            spans += [(" ", ""), *(((f"{sign} {number} {state.upper()}", state),) if loud else told)]
    spans += _sums(gpus, glyphs)
    return tuple(spans)


def _sums(gpus: list[DeviceRow], glyphs: Glyphs) -> list[Span]:
    up = [row for row in gpus if row.up]
    parts = []
    drawn, limit = _sum(row.power for row in up), _sum(row.power_limit for row in up)
    if drawn is not None:
        parts.append(figures.kilowatts(drawn) + ("" if limit is None else f"/{limit / 1000:.1f}") + " kW")
    used, total = _sum(row.memory_used for row in up), _sum(row.memory_total for row in up)
    if used is not None:
        parts.append(figures.sizes(used, total))
    return [(f" {glyphs.dot} {part}", "") for part in parts]


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    told = [value for value in found if value is not None]
    return sum(told) if told and len(told) == len(found) else None


def caption(picture: Picture, shown: list[ProcessRow], view: View, glyphs: Glyphs) -> Line:
    """How many processes are shown, of how many, and why not all."""
    count = _processes(shown)
    of = _processes(picture.processes)
    text = _many(count, "process") if count == of else f"{count} of {_many(of, 'process')}"
    spans: list[Span] = [(text, "bold"), (f" by {view.order.by} {sign(view.order, glyphs)}", "")]
    if view.gpus:
        spans += [(f" {glyphs.dot} ", "dim"), (f"GPU {', '.join(view.gpus)} only", "chosen")]
    if view.filter.text:
        spans += [(f" {glyphs.dot} ", "dim"), (f"filter: {view.filter.text}", "chosen")]
    return tuple(spans)


def _processes(rows: Iterable[ProcessRow]) -> int:
    return sum(1 if row.count is None else row.count for row in rows)


def empty(picture: Picture) -> str:
    """Why there is no process to be seen."""
    if not picture.readings:
        return f"No readings: {picture.status or 'the node says no more'}"
    if not picture.devices:
        return "This machine has no GPU." if picture.complete else "The GPUs could not be listed."
    if picture.processes:
        return "No process is shown: the filter hides all."
    if any(row.holds and row.processes is None for row in picture.devices):
        return "The processes could not be listed."
    return "No process is on the GPUs."


def notes(picture: Picture, origin: Origin) -> list[str]:
    """What the numbers rest on, and what is missing of them."""
    lines = []
    if origin.began:
        lines.append(
            f"Joules and held times count from {origin.began}, when this top began; gpuledger serve keeps "
            "books, which --url shows."
        )
    missing = Counter(row.unresolved for row in picture.processes if row.unresolved)
    for reason, number in sorted(missing.items()):
        why, remedy = REASONS.get(reason, ("without an owner", "see gpuledger doctor"))
        lines.append(f"{_many(number, 'process')} {why} ({reason}): {remedy}.")
    unlisted = [row for row in picture.devices if row.up and row.holds and row.processes is None]
    if unlisted:
        names = ", ".join(row.place for row in unlisted)
        lines.append(f"The processes of GPU {names} could not be listed.")
    return lines


def _many(number: int, word: str) -> str:
    plural = {"process": "processes"}.get(word, f"{word}s")
    return f"{number} {word if number == 1 else plural}"

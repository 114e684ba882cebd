"""Everything that is known of one process or one GPU, as lines."""

from __future__ import annotations

from datetime import datetime

from gpuledger.terminal import figures
from gpuledger.terminal.picture import DeviceRow, Picture, ProcessRow
from gpuledger.workloads.checks import REASONS

Fact = tuple[str, str]

_JOULES_PER_WH = 3600


def facts_of_process(row: ProcessRow, picture: Picture) -> list[Fact]:
    """Name and text; what is not known is not listed, but for quantities, where that is news."""
    device = next(
        (one for one in picture.devices if (one.uuid, one.instance) == (row.uuid, row.instance)), None
    )
    owner = row.owner
    names = [
        ("kind of owner", owner.kind),
        ("namespace", owner.namespace),
        ("pod", owner.pod),
        ("container", owner.container),
        ("job", owner.job),
        ("user", owner.user),
    ]
    return [
        ("command", row.command or figures.ABSENT),
        ("pid", figures.count(row.pid)),
        ("on", _where(row, device)),
        *((name, text) for name, text in names if text),
        *_unresolved(row),
        ("type", row.types or figures.ABSENT),
        ("memory", _memory(row, device)),
        ("SM", figures.share(row.sm)),
        ("memory bandwidth", figures.share(row.bandwidth)),
        ("power", _watts(row.watts)),
        ("energy", _energy(row.joules)),
        ("measured", _energy(row.measured)),
        ("apportioned", _energy(_difference(row.joules, row.measured))),
        ("began", _began(row, picture.unix)),
    ]


def _where(row: ProcessRow, device: DeviceRow | None) -> str:
    named = "" if device is None else f", {device.name}" + (f" ({device.profile})" if device.profile else "")
    return f"GPU {row.place}{named}, {row.uuid}"


def _unresolved(row: ProcessRow) -> list[Fact]:
    if not row.unresolved:
        return []
    why, remedy = REASONS.get(row.unresolved, ("without an owner", "see gpuledger doctor"))
    return [("owner missing", f"a process {why} ({row.unresolved}): {remedy}")]


def _memory(row: ProcessRow, device: DeviceRow | None) -> str:
    told = figures.size(row.memory)
    total = None if device is None else device.memory_total
    if row.memory is None or not total:
        return told
    return f"{told} of {figures.size(total)} ({figures.share(row.memory / total)})"


def _watts(number: float | None) -> str:
    return figures.ABSENT if number is None else f"{figures.watts(number)} W"


def _energy(number: float | None) -> str:
    if number is None:
        return figures.ABSENT
    hours = number / _JOULES_PER_WH
    return f"{figures.joules(number)} ({hours:,.2f} Wh)" if hours >= 0.01 else figures.joules(number)


def _difference(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else max(0.0, whole - part)


def _began(row: ProcessRow, now: float) -> str:
    if row.start is None:
        return figures.ABSENT
    at = datetime.fromtimestamp(row.start).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    lasting = figures.lasting(now - row.start)
    return f"{at}, {lasting} ago" if row.exact else f"before {at}: first seen {lasting} ago"

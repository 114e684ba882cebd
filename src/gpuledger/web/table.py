"""One row per Device: what it does now, and plainly what was not told."""

from __future__ import annotations

from html import escape

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.quantities import (
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    POWER_LIMIT,
    TEMPERATURE,
    UTILIZATION,
)
from gpuledger.model.snapshot import Reading, Snapshot

_ABSENT = '<span title="not told by the driver">\N{EN DASH}</span>'
_COLUMNS = ("GPU", "Name", "Processes", "Utilization", "Memory", "Power", "Temperature")
_GIB = 2**30


def table(snapshot: Snapshot) -> str:
    """The table of a Snapshot's Readings, in their order."""
    head = "".join(f'<th scope="col">{column}</th>' for column in _COLUMNS)
    holders = {reading.device for reading in snapshot.holders}
    rows = "\n".join(_row(reading, holds=reading.device in holders) for reading in snapshot.readings)
    return f"""\
<div class="wide" role="region" aria-label="GPUs" tabindex="0">
<table>
<caption>GPUs of this machine. \N{EN DASH} is a value that the driver does not tell; it is not zero.</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>"""


def _row(reading: Reading, *, holds: bool) -> str:
    device = reading.device
    part = ' class="part"' if isinstance(device, Instance) else ""
    start = (
        f'<tr{part}><th scope="row">{escape(_place(device))}</th>'
        f'<td class="name">{escape(_name(device))}</td>'
    )
    if not reading.up:
        return f'{start}<td class="down" colspan="{len(_COLUMNS) - 2}">not answering</td></tr>'
    cells = (
        _processes(reading) if holds else "below",
        _share(reading),
        _memory(reading),
        _power(reading),
        _told(reading.get(TEMPERATURE), "{:.0f} °C"),
    )
    return start + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _place(device: Gpu | Instance) -> str:
    if isinstance(device, Instance):
        return f"{device.parent.index} / {device.instance}"
    return str(device.index)


def _name(device: Gpu | Instance) -> str:
    return f"MIG {device.profile}".rstrip() if isinstance(device, Instance) else device.name or device.uuid


def _processes(reading: Reading) -> str:
    # A list that could not be read is not an empty one.
    return "unknown" if reading.processes is None else str(len(reading.processes))


def _share(reading: Reading) -> str:
    ratio = reading.get(UTILIZATION)
    return _told(None if ratio is None else ratio * 100, "{:.0f} %")


def _memory(reading: Reading) -> str:
    return _pair(_gibibytes(reading.get(MEMORY_USED)), _gibibytes(reading.get(MEMORY_TOTAL)), "{:.1f}", "GiB")


def _power(reading: Reading) -> str:
    return _pair(reading.get(POWER), reading.get(POWER_LIMIT), "{:.0f}", "W")


def _pair(value: float | None, most: float | None, form: str, unit: str) -> str:
    if most is None:
        return _told(value, form + " " + unit)
    return f"{_told(value, form)} / {form.format(most)} {unit}"


def _gibibytes(size: float | None) -> float | None:
    return None if size is None else size / _GIB


def _told(value: float | None, form: str) -> str:
    return _ABSENT if value is None else form.format(value)

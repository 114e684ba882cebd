"""Compare every number with nvidia-smi's: the quantities of its XML, the columns of its CSV, the processes.

nvidia-smi reads the same driver a moment earlier or later. So it runs between two readings, and a number is
equal if it lies between those two or one printed unit beside them. Numbers that move are compared again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final

from gpuledger.dialects.smi.emulated_row import emulate_row
from gpuledger.model import quantities as q
from gpuledger.model.checks import Finding, Subject, fails, skipped, split_remedy, unknown, warning, works
from gpuledger.model.devices import Device, Gpu
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.text import list_some
from gpuledger.selftest.driver_checks import MOST_NAMED, device_name
from gpuledger.sources.smi.cell_values import absent_reason

NUMBERS: Final = Subject("selftest.nvidia_smi", "numbers of nvidia-smi")
PROCESSES: Final = Subject("selftest.nvidia_smi_processes", "processes of nvidia-smi")
TRIES: Final = 5
# Seconds after which no further try begins. One try of a slow nvidia-smi can take most of a minute.
LIMIT: Final = 60.0
_REPORT: Final = (
    "run it again on an idle machine; if it remains, attach the report (--report FILE) to an issue"
)
# What nvidia-smi's last digit is worth, in the unit of the quantity.
_PRINTED_UNITS: Final = {
    "ratio": 0.01,
    "bytes": float(1 << 20),
    "watts": 0.01,
    "hertz": 1e6,
    "celsius": 1.0,
    "nanoseconds": 1000.0,
}
# The source reads the requested limit under this name, NVML the enforced one. The columns have both.
_OTHER_MEANING: Final = frozenset({q.POWER_LIMIT})
_NUMBER: Final = re.compile(r"(-?\d+(?:\.\d+)?)(?: .*)?")
_HEXADECIMAL: Final = re.compile(r"0[xX][0-9a-fA-F]+")
# The number of GPUs that are read, of which `--devices` can leave out some.
_OF_THE_SELECTION: Final = frozenset({"count"})
# These cells identify a GPU or its machine, and are not shown.
_IDENTIFYING: Final = re.compile(
    r"uuid|guid|serial|chassis|hostname|host_id|bus_id|pci\.(?:domain|bus|device)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class NumberComparison:
    """One number of one Device: `name` is the key of a quantity or the header of a column.

    `ours` and `theirs` are texts, empty if absent there. `equal` is None if it is not on both sides. `moved`
    is True if it had another value at any other reading: it cannot be compared exactly. `column` is True for
    a column of `--query-gpu`.
    """

    device: str
    name: str
    ours: str
    theirs: str
    equal: bool | None
    moved: bool = False
    column: bool = False

    @property
    def key(self) -> tuple[str, str, bool]:
        """Identifies the number."""
        return self.device, self.name, self.column


@dataclass(slots=True)
class SmiComparison:
    """All numbers by their keys, and the processes that differ, as texts.

    `processes` is the number of processes that nvidia-smi lists, `hidden` that of those that only gpuledger
    lists. `unavailable` is why nvidia-smi cannot be read. `is_cut` is True if LIMIT ended the tries: numbers
    that differ then may only have moved.
    """

    numbers: dict[tuple[str, str, bool], NumberComparison] = field(default_factory=dict)
    differing_processes: tuple[str, ...] = ()
    processes: int = 0
    hidden: int = 0
    tries: int = 0
    is_cut: bool = False
    unavailable: SourceUnavailable | None = None

    @property
    def different(self) -> list[NumberComparison]:
        """The numbers that are on both sides and never were equal."""
        return [one for one in self.numbers.values() if one.equal is False]


def compare_with_smi(
    read: Callable[[], Snapshot],
    read_smi: Callable[[], Snapshot],
    elapsed: Callable[[], float] = monotonic,
) -> SmiComparison:
    """Compare the Snapshots of the two functions until all numbers were equal once.

    At most TRIES times, and no further time when LIMIT is over. Raises SourceUnavailable if `read` does.
    """
    result = SmiComparison()
    until = elapsed() + LIMIT
    before = read()
    for _ in range(TRIES):
        if result.tries and elapsed() >= until:
            result.is_cut = True
            break
        try:
            smi = read_smi()
        except SourceUnavailable as error:
            result.unavailable = error
            return result
        after = read()
        result.tries += 1
        for one in compare_snapshots(before, smi, after):
            known = result.numbers.get(one.key)
            # A number that was equal once is right; one that is absent in a later reading was not compared.
            if known is None or known.equal is None:
                result.numbers[one.key] = one
            elif known.equal is False and one.equal is not None:
                moved = one.moved or known.moved or known.theirs != one.theirs
                result.numbers[one.key] = replace(one, moved=moved)
        _compare_processes(result, before, smi, after)
        if not result.different and not result.differing_processes:
            break
        before = after
    return result


def compare_snapshots(before: Snapshot, smi: Snapshot, after: Snapshot) -> Iterator[NumberComparison]:
    """Yield each number of nvidia-smi's Snapshot, and each that only the others have."""
    ours = [{_identity(each.device): each for each in snapshot.readings} for snapshot in (before, after)]
    count = sum(1 for each in before.readings if isinstance(each.device, Gpu))
    for reading in smi.readings:
        pair = [readings.get(_identity(reading.device)) for readings in ours]
        if pair[0] is None or pair[1] is None or not reading.up:
            continue
        own = (pair[0], pair[1])
        yield from _compare_quantities(own, reading)
        if reading.raw:
            # As the dialect `smi` exports it.
            rows = (
                {**emulate_row(own[0], before.source, count), **own[0].raw},
                {**emulate_row(own[1], after.source, count), **own[1].raw},
            )
            yield from _compare_cells(device_name(reading.device), rows, reading.raw)


def _identity(device: Device) -> tuple[str, str]:
    """The same of a Device in both sources: nvidia-smi does not always print UUIDs of instances."""
    return device.gpu.uuid, device.instance


def _compare_quantities(own: tuple[Reading, Reading], smi: Reading) -> Iterator[NumberComparison]:
    name = device_name(smi.device)
    keys = {*own[0].values, *own[1].values, *smi.values} - _OTHER_MEANING
    for quantity in sorted(keys, key=lambda each: each.key):
        mine = [value for each in own if (value := each.get(quantity)) is not None]
        theirs = smi.get(quantity)
        equal = None if theirs is None or not mine else _is_between(theirs, mine, quantity)
        yield NumberComparison(
            name,
            quantity.key,
            _show(mine[-1] if mine else None),
            _show(theirs),
            equal,
            len(set(mine)) > 1,
        )


def _is_between(value: float, bounds: list[float], quantity: Quantity) -> bool:
    unit = _PRINTED_UNITS.get(quantity.unit, 0.0)
    return min(bounds) - unit <= value <= max(bounds) + unit


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:.15g}"


def _compare_cells(
    device: str, rows: tuple[Mapping[str, str], Mapping[str, str]], raw: Mapping[str, str]
) -> Iterator[NumberComparison]:
    for header in sorted({*rows[0], *rows[1], *raw} - _OF_THE_SELECTION):
        cells = [row[header] for row in rows if not _is_absent(row.get(header, ""))]
        theirs = "" if _is_absent(raw.get(header, "")) else raw[header]
        equal = None if not theirs or not cells else _are_equal_cells(cells, theirs)
        ours, moved = cells[-1] if cells else "", len(set(cells)) > 1
        if _IDENTIFYING.search(header):
            ours, theirs = ("(not shown)" if each else "" for each in (ours, theirs))
        yield NumberComparison(device, header, ours, theirs, equal, moved, column=True)


def _is_absent(cell: str) -> bool:
    # Words without digits, such as `Enabled`, are values here.
    return absent_reason(cell) not in ("", "OTHER")


def _are_equal_cells(cells: list[str], theirs: str) -> bool:
    if any(cell.casefold() == theirs.casefold() for cell in cells):
        return True
    if _HEXADECIMAL.fullmatch(theirs):
        # The number of digits is no part of the value.
        return any(_HEXADECIMAL.fullmatch(cell) and int(cell, 16) == int(theirs, 16) for cell in cells)
    numbers = [_NUMBER.fullmatch(cell) for cell in (*cells, theirs)]
    found = [float(match[1]) for match in numbers if match]
    if len(found) < len(numbers):
        return False
    unit = 0.01 if "." in theirs else 1.0
    # A bare count, such as of errors, is not rounded.
    unit = unit if " " in theirs else 0.0
    return min(found[:-1]) - unit <= found[-1] <= max(found[:-1]) + unit


def _compare_processes(result: SmiComparison, before: Snapshot, smi: Snapshot, after: Snapshot) -> None:
    """Compare pid and types: nvidia-smi must list no process that gpuledger does not."""
    ours: dict[tuple[tuple[str, str], int], set[str]] = {}
    for snapshot in (before, after):
        for process in snapshot.processes:
            ours.setdefault((_identity(process.device), process.pid), set()).add(process.type_text)
    # Neither counts an entry without a pid: the driver has such ones of processes of other sandboxes.
    theirs = {(_identity(each.device), each.pid): each for each in smi.processes if each.pid}
    result.processes, result.hidden = len(theirs), len(ours.keys() - theirs.keys())
    result.differing_processes = tuple(
        f"{device_name(process.device)}: pid {process.pid}, type {process.type_text} of nvidia-smi, "
        f"{' and '.join(sorted(ours.get(key, {'not listed'})))} here"
        for key, process in theirs.items()
        if process.type_text not in ours.get(key, ())
    )


def check_numbers(result: SmiComparison) -> Iterator[Finding]:
    """Judge the numbers."""
    if result.unavailable is not None:
        why, remedy = split_remedy(result.unavailable)
        yield unknown(*NUMBERS, f"not compared: {why}", remedy)
        return
    compared = [one for one in result.numbers.values() if one.equal is not None]
    by_name: dict[tuple[str, bool], list[str]] = {}
    for one in result.different:
        text = f"{one.theirs} and {one.ours} ({one.device})"
        by_name.setdefault((one.name, one.moved), []).append(text)
    for (name, moved), texts in by_name.items():
        # A number that moves between all readings may be right: it changes faster than it can be compared.
        verdict = warning if moved or result.is_cut else fails
        tries = f"{result.tries} {'try' if result.tries == 1 else 'tries'}"
        if result.is_cut:
            tries += f" (nvidia-smi is slow: no more after {LIMIT:.0f} s)"
        why = f"{name} of nvidia-smi and gpuledger, in {tries}: {list_some(texts, MOST_NAMED)}"
        yield verdict(*NUMBERS, why, _REPORT)
    only_smi = sorted(
        {one.name for one in result.numbers.values() if one.theirs and not one.ours and not one.column}
    )
    if only_smi:
        some = list_some(only_smi, MOST_NAMED)
        why = f"nvidia-smi has {some}, and gpuledger does not read them on this GPU"
        yield warning(*NUMBERS, why, "attach the report (--report FILE) to an issue")
    if not compared:
        yield skipped(*NUMBERS, "nvidia-smi printed no number that gpuledger reads")
    elif not result.different:
        yield works(*NUMBERS, f"all {len(compared)} numbers that both read are equal")


def check_processes(result: SmiComparison) -> Iterator[Finding]:
    """Judge the processes."""
    if result.unavailable is not None:
        yield skipped(*PROCESSES, f"because of: {NUMBERS.what}")
    elif result.differing_processes:
        why = list_some(result.differing_processes, MOST_NAMED)
        verdict = warning if result.is_cut else fails
        yield verdict(*PROCESSES, why, _REPORT)
    elif not result.processes and result.hidden:
        why = f"nvidia-smi lists none, gpuledger {result.hidden}: usual in a container with its own pids"
        yield skipped(*PROCESSES, why)
    elif not result.processes:
        yield skipped(*PROCESSES, "no process is on a GPU")
    else:
        more = f"; {result.hidden} more are listed only here" if result.hidden else ""
        yield works(*PROCESSES, f"the same {result.processes} with the same types{more}")

"""What a recording may say: a file is a stranger's word, and every number in it is billed from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from gpuledger.model.process import GpuProcess, Usage
from gpuledger.model.snapshot import Reading, Snapshot

_MOST_PID: Final = 2**32
# Above the microseconds of samples and the millijoules of counters, which have 64 bits.
_BEYOND: Final = 2**64


def no_number(written: str) -> float:
    """Refuse NaN and the infinities, which JSON does not know and Python's reader does: raises ValueError."""
    raise ValueError(f"{written} is no number of JSON")


def check_time(unix: float, elapsed: float, before: float) -> None:
    """Raise ValueError for moments that are none, and for one that lies before the last one."""
    _check_numbers(unix, elapsed)
    if elapsed < before:
        raise ValueError("time goes back")


def admitted(snapshot: Snapshot) -> Snapshot:
    """The Snapshot without values that are not believed: they are absent, whoever says them.

    Raises ValueError for what no source tells: a Device twice, a pid that is none, a share of time above one.
    """
    _once(reading.device.uuid for reading in snapshot.readings)
    if not 0 <= snapshot.invalid < _BEYOND:
        raise ValueError("a count that is none")
    for reading in snapshot.readings:
        _check_reading(reading)
    if all(_believed(reading) is reading for reading in snapshot.readings):
        return snapshot
    return replace(snapshot, readings=tuple([_believed(reading) for reading in snapshot.readings]))


def _believed(reading: Reading) -> Reading:
    values = {
        quantity: value
        for quantity, value in reading.values.items()
        if -_BEYOND < value < _BEYOND and quantity.believes(value)
    }
    return reading if len(values) == len(reading.values) else replace(reading, values=values)


def _check_reading(reading: Reading) -> None:
    _once(process.pid for process in reading.processes or ())
    for process in reading.processes or ():
        _check_process(process)
        if process.device != reading.device:
            raise ValueError(f"pid {process.pid} is told of another device")
    for sample in reading.samples or ():
        _check_numbers(sample.at)
        _check_shares(sample.sm, sample.memory, sample.encoder, sample.decoder, sample.jpeg, sample.ofa)
    for record in reading.accounting:
        _check_numbers(record.began, 0 if record.ended is None else record.ended)


def _check_process(process: GpuProcess) -> None:
    if not 0 <= process.pid < _MOST_PID:
        raise ValueError(f"{process.pid} is no pid")
    if process.memory is not None and not 0 <= process.memory < _BEYOND:
        raise ValueError(f"pid {process.pid} holds memory that there is not")
    _check_numbers(process.host.start.unix)
    usage: Usage = process.usage
    _check_shares(usage.sm, usage.memory, usage.encoder, usage.decoder, usage.jpeg, usage.ofa)


def _check_numbers(*numbers: float) -> None:
    if not all(-_BEYOND < number < _BEYOND for number in numbers):
        raise ValueError("a number beyond all that are told")


def _check_shares(*shares: float | None) -> None:
    if not all(share is None or 0 <= share <= 1 for share in shares):
        raise ValueError("a share of time is not between none and all")


def _once(names: Iterable[object]) -> None:
    told: set[object] = set()
    for name in names:
        if name in told:
            raise ValueError(f"{name} is told twice")
        told.add(name)

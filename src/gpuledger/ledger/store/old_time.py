"""Reads the time of hours from before the time books: from seconds of presence and observed energy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from gpuledger.ledger.energy.shares import device_share
from gpuledger.ledger.report.gpu_time import GpuPart, GpuTime
from gpuledger.ledger.report.grouping import Party
from gpuledger.ledger.report.old_hours import OldDevice, PresentParty, old_hour_time
from gpuledger.ledger.store.folding import microseconds, times_from
from gpuledger.ledger.watched_time import HOUR, MICRO, QUARTER, QUARTERS_PER_HOUR, unpack_seconds
from gpuledger.model.devices import Instance
from gpuledger.model.session import UNOBSERVED

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

_HOURS = """
SELECT quarter, uuid, sum(microseconds) FROM hours WHERE quarter >= ? AND quarter < ? AND method != ?
    GROUP BY quarter, uuid
"""
_SPANS = "SELECT quarter, uuid, begins, ends FROM spans WHERE quarter >= ? AND quarter < ? AND method != ?"
_TIMES = """
SELECT quarter, party, resident, allocated FROM hour_times WHERE quarter >= ? AND quarter < ? ORDER BY quarter
"""
_BOOKED = f"""
SELECT quarter / {QUARTERS_PER_HOUR} FROM time_spans WHERE quarter >= ? AND quarter < ?
    UNION SELECT quarter / {QUARTERS_PER_HOUR} FROM hour_gpu_time WHERE quarter >= ? AND quarter < ?
"""

# Microseconds by unix hour and uuid of a Gpu.
_Observed = dict[int, Counter[str]]
# Parties with their seconds resident and allocated, by Device and identity of the party, of one unix hour.
_Presence = dict[str, dict[int, list[Any]]]


def old_gpu_time(history: History, since: int, until: int) -> Iterator[GpuTime]:
    """Sums of the time in these quarters that is older than the time books, all with the quarter `since`."""
    end = until if history.time_from is None else min(history.time_from, until)
    if since >= end:
        return
    reader = _OldTimeReader(history, end)
    observed = _observed(history, since, end)
    booked = _booked_hours(history, since, end)
    pending: dict[int, _Presence] = {}
    for hour, party, resident, allocated in _presence(history, since, end):
        if hour not in pending:
            reader.add_hours(pending, observed)
            if hour not in booked:
                pending[hour] = {}
        if hour in pending:
            both = pending[hour].setdefault(party.device, {}).setdefault(id(party), [party, 0, 0])
            both[1] |= resident
            both[2] |= allocated
    reader.add_hours(pending, observed)
    reader.add_hours({hour: {} for hour in observed if hour not in booked}, observed)
    yield from reader.sums(since)


def _presence(history: History, since: int, until: int) -> Iterator[tuple[int, Party, int, int]]:
    """Unix hour, party, and seconds of the hour resident and allocated, in the order of hours.

    Equal parties are the same object: their hashes are slow.
    """
    parties: dict[Party, Party] = {}
    party_of = cache(lambda number: parties.setdefault(history.party(number), history.party(number)))
    detail = times_from(history.connection)
    folded = until if detail is None else min(max(detail, since), until)
    for quarter, party, resident, allocated in history.connection.execute(_TIMES, (since, folded)):
        hour, place = divmod(quarter, QUARTERS_PER_HOUR)
        seconds = place * QUARTER
        times = (unpack_seconds(resident) << seconds, unpack_seconds(allocated) << seconds)
        yield hour, party_of(party), *times
    for hour in range(folded // QUARTERS_PER_HOUR, -(-until // QUARTERS_PER_HOUR)):
        quarters = (max(hour * QUARTERS_PER_HOUR, folded), min((hour + 1) * QUARTERS_PER_HOUR, until))
        for entry in history.times(*quarters, _nothing) if quarters[0] < quarters[1] else ():
            seconds = entry.quarter % QUARTERS_PER_HOUR * QUARTER
            one = parties.setdefault(entry.party, entry.party)
            yield hour, one, entry.resident << seconds, entry.allocated << seconds


def _nothing() -> None:
    """Hours are read one by one."""


def _observed(history: History, since: int, until: int) -> _Observed:
    """Microseconds in which the energy of a Gpu was observed."""
    found: _Observed = defaultdict(Counter)
    within = (since, until, UNOBSERVED)
    for quarter, uuid, length in history.connection.execute(_HOURS, within):
        found[quarter // QUARTERS_PER_HOUR][uuid] += length
    for quarter, uuid, begins, ends in history.connection.execute(_SPANS, within):
        found[quarter // QUARTERS_PER_HOUR][uuid] += microseconds(begins, ends)
    return found


def _booked_hours(history: History, since: int, until: int) -> frozenset[int]:
    """The unix hours that the time books have, although they are older: the clock was set back."""
    found = history.connection.execute(_BOOKED, (since, until, since, until))
    return frozenset(hour for (hour,) in found)


class _OldTimeReader:
    """Converts hours to time entries. `end` is the quarter at which they end."""

    def __init__(self, history: History, end: int) -> None:
        self._devices = history.devices
        self._end = end
        self._sums: dict[tuple[int, str, int, bool], list[Any]] = {}
        self._parts = lru_cache(None)(self._find_parts)

    def add_hours(self, pending: dict[int, _Presence], observed: _Observed) -> None:
        """Add the time of these hours; take them out of both."""
        for hour, presence in pending.items():
            watched = observed.pop(hour, Counter())
            by_gpu: dict[GpuPart, list[OldDevice]] = {self._parts(uuid)[0]: [] for uuid in watched}
            for uuid, parties in presence.items():
                gpu, part = self._parts(uuid)
                by_gpu.setdefault(gpu, []).append(self._device(hour, part, parties))
            for gpu, devices in by_gpu.items():
                seen = min(watched[gpu.gpu], self._seconds_left(hour) * MICRO)
                whole = [one for one in devices if one.part == gpu]
                cut = [one for one in devices if one.part != gpu]
                if cut and whole:
                    # The Gpu was cut, or made whole, in this hour: no process is on it while it is cut.
                    uncut = _resident_seconds(whole)
                    self._add_all(old_hour_time(hour * QUARTERS_PER_HOUR, gpu, 0, _within(whole, uncut)))
                    seen = max(seen - uncut.bit_count() * MICRO, 0)
                    cut = _within(cut, ~uncut)
                self._add_all(old_hour_time(hour * QUARTERS_PER_HOUR, gpu, seen, cut or whole))
        pending.clear()

    def _add_all(self, times: Iterator[GpuTime]) -> None:
        for time in times:
            self._add(time)

    def _add(self, time: GpuTime) -> None:
        # Few objects are equal, so that their identity is enough; their hashes are slow.
        _, part, account, party, is_estimate, allocation, residence = time
        key = (id(part), account, id(party), is_estimate)
        both = self._sums.setdefault(key, [part, party, 0, 0])
        both[2] += allocation
        both[3] += residence

    def sums(self, quarter: int) -> Iterator[GpuTime]:
        """The sums of all hours."""
        for (_, account, _, is_estimate), (part, party, *both) in self._sums.items():
            yield GpuTime(quarter, part, account, party, is_estimate, *both)

    def _seconds_left(self, hour: int) -> int:
        """Seconds of the hour, and of a folded one that begins within it, before the end."""
        return min(max(self._end * QUARTER - hour * QUARTERS_PER_HOUR * QUARTER, 0), 2 * HOUR)

    def _device(self, hour: int, part: GpuPart, parties: Mapping[int, list[Any]]) -> OldDevice:
        within = (1 << self._seconds_left(hour)) - 1
        return OldDevice(
            part,
            [
                PresentParty(party, resident & within, allocated & within)
                for party, resident, allocated in parties.values()
            ],
        )

    def _find_parts(self, uuid: str) -> tuple[GpuPart, GpuPart]:
        """The whole Gpu of a Device, and the Device's part of it."""
        device = self._devices.get(uuid)
        if device is None:
            return GpuPart(uuid), GpuPart(uuid)
        gpu = GpuPart(device.gpu.uuid, device.gpu.name)
        if not isinstance(device, Instance):
            return gpu, gpu
        return gpu, gpu._replace(instance=device.instance, profile=device.profile, share=device_share(device))


def _resident_seconds(devices: Sequence[OldDevice]) -> int:
    """The seconds in which any party was resident."""
    seconds = 0
    for device in devices:
        for one in device.parties:
            seconds |= one.resident
    return seconds


def _within(devices: Sequence[OldDevice], seconds: int) -> list[OldDevice]:
    """The same devices, with presence in these seconds only."""
    return [
        device._replace(
            parties=[
                one._replace(resident=one.resident & seconds, allocated=one.allocated & seconds)
                for one in device.parties
            ]
        )
        for device in devices
    ]

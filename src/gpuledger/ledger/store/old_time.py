"""Reads the time of hours from before the time books: from seconds of presence and observed energy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from gpuledger.ledger.energy.shares import device_share
from gpuledger.ledger.report.gpu_time import GpuPart, GpuTime
from gpuledger.ledger.report.old_hours import OldDevice, PresentParty, old_hour_time
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.store.folding import microseconds, times_from
from gpuledger.ledger.watched_time import HOUR, MICRO, QUARTER, QUARTERS_PER_HOUR, unpack_seconds
from gpuledger.model.devices import Device, Instance
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
# A unix hour, and the seconds of a party in it.
_Presence = tuple[int, PresentParty]
# Different hours that are collected before their time is computed.
_COLLECTED = 4096


def old_gpu_time(history: History, since: int, until: int) -> Iterator[GpuTime]:
    """Sums of the time in these quarters that is older than the time books."""
    end = until if history.time_from is None else min(history.time_from, until)
    if since >= end:
        return
    reader = _OldTimeReader(history, end)
    observed = observed_time(history, since, end)
    booked = _booked_hours(history, since, end)
    for hour, presence in groupby(_presence(history, since, end), key=itemgetter(0)):
        watched = observed.pop(hour, Counter())
        if hour not in booked:
            reader.add_hour(hour, presence, watched)
    for hour, watched in observed.items():
        if hour not in booked:
            reader.add_hour(hour, (), watched)
    yield from reader.sums()


def _presence(history: History, since: int, until: int) -> Iterator[_Presence]:
    """The presence of all parties, in the order of hours.

    Equal parties are the same object: their hashes are slow.
    """
    parties: dict[Party, Party] = {}
    party_of = cache(lambda number: parties.setdefault(history.party(number), history.party(number)))
    detail = times_from(history.connection)
    folded = until if detail is None else min(max(detail, since), until)
    for quarter, party, resident, allocated in history.connection.execute(_TIMES, (since, folded)):
        hour, place = divmod(quarter, QUARTERS_PER_HOUR)
        one = PresentParty(party_of(party), unpack_seconds(resident), unpack_seconds(allocated))
        yield hour, _later(one, place * QUARTER) if place else one
    for hour in range(folded // QUARTERS_PER_HOUR, -(-until // QUARTERS_PER_HOUR)):
        quarters = (max(hour * QUARTERS_PER_HOUR, folded), min((hour + 1) * QUARTERS_PER_HOUR, until))
        for entry in history.times(*quarters, _nothing) if quarters[0] < quarters[1] else ():
            party = parties.setdefault(entry.party, entry.party)
            one = PresentParty(party, entry.resident, entry.allocated)
            yield hour, _later(one, entry.quarter % QUARTERS_PER_HOUR * QUARTER)


def _later(one: PresentParty, seconds: int) -> PresentParty:
    return PresentParty(one.party, one.resident << seconds, one.allocated << seconds)


def _nothing() -> None:
    """Hours are read one by one."""


def observed_time(history: History, since: int, until: int) -> _Observed:
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
    """Sums the time of hours. `end` is the quarter at which they end.

    Most hours of a Gpu equal others in all but their begin: the time of equal ones is computed once.
    """

    def __init__(self, history: History, end: int) -> None:
        self._end = end
        # Few objects are equal, so that keys have their identity: their hashes are slow.
        self._sums: dict[tuple[int, str, int, bool], list[Any]] = {}
        self._parts = lru_cache(None)(partial(_find_parts, history.devices))
        # The number of equal hours of a Gpu, the Gpu, its microseconds observed, and its Devices.
        self._hours: dict[tuple[Any, ...], list[Any]] = {}

    def add_hour(self, hour: int, presence: Iterable[_Presence], watched: Counter[str]) -> None:
        """Add the time of an hour; `watched` are the microseconds in which a Gpu's energy was observed."""
        left = self._seconds_left(hour)
        by_gpu: dict[GpuPart, list[OldDevice]] = {self._parts(uuid)[0]: [] for uuid in watched}
        for uuid, parties in _by_device(presence).items():
            gpu, part = self._parts(uuid)
            by_gpu.setdefault(gpu, []).append(OldDevice(part, list(parties.values())))
        for gpu, found in by_gpu.items():
            devices = found if left == 2 * HOUR else _within(found, (1 << left) - 1)
            seen = min(watched[gpu.gpu], left * MICRO)
            whole = [one for one in devices if one.part == gpu]
            cut = [one for one in devices if one.part != gpu]
            if cut and whole:
                # The Gpu was cut, or made whole, in this hour: no process is on it while it is cut.
                uncut = _resident_seconds(whole)
                self._add(gpu, 0, _within(whole, uncut))
                seen = max(seen - uncut.bit_count() * MICRO, 0)
                cut = _within(cut, ~uncut)
            self._add(gpu, seen, cut or whole)

    def _add(self, gpu: GpuPart, observed: int, devices: Sequence[OldDevice]) -> None:
        key = (id(gpu), observed, *[(id(part), *_identities(parties)) for part, parties in devices])
        self._hours.setdefault(key, [0, gpu, observed, devices])[0] += 1
        if len(self._hours) >= _COLLECTED:
            self._sum_hours()

    def _sum_hours(self) -> None:
        for number, *hour in self._hours.values():
            for part, account, party, is_estimate, allocation, residence in old_hour_time(*hour):
                key = (id(part), account, id(party), is_estimate)
                both = self._sums.setdefault(key, [part, party, 0, 0])
                both[2] += number * allocation
                both[3] += number * residence
        self._hours.clear()

    def sums(self) -> Iterator[GpuTime]:
        """The sums of all hours."""
        self._sum_hours()
        for (_, account, _, is_estimate), (part, party, *both) in self._sums.items():
            yield GpuTime(part, account, party, is_estimate, *both)

    def _seconds_left(self, hour: int) -> int:
        """Seconds of the hour, and of a folded one that begins within it, before the end."""
        return min(max(self._end * QUARTER - hour * QUARTERS_PER_HOUR * QUARTER, 0), 2 * HOUR)


def _find_parts(devices: Mapping[str, Device], uuid: str) -> tuple[GpuPart, GpuPart]:
    """The whole Gpu of a Device, and the Device's part of it."""
    device = devices.get(uuid)
    if device is None:
        return GpuPart(uuid), GpuPart(uuid)
    gpu = GpuPart(device.gpu.uuid, device.gpu.name)
    if not isinstance(device, Instance):
        return gpu, gpu
    return gpu, gpu._replace(instance=device.instance, profile=device.profile, share=device_share(device))


def _by_device(presence: Iterable[_Presence]) -> dict[str, dict[int, PresentParty]]:
    """The parties of an hour by their identity, by Device."""
    found: dict[str, dict[int, PresentParty]] = defaultdict(dict)
    for _, one in presence:
        party, resident, allocated = one
        parties, number = found[party.device], id(party)
        before = parties.get(number)
        if before is None:
            parties[number] = one
        else:
            parties[number] = PresentParty(party, before.resident | resident, before.allocated | allocated)
    return found


def _identities(parties: Iterable[PresentParty]) -> list[tuple[int, int, int]]:
    """The parties by their identity, with their seconds."""
    return [(id(party), resident, allocated) for party, resident, allocated in parties]


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

"""Time of hours from before the time books, computed from the seconds that the old ledger kept.

Fractions of Allocations are unknown, so each owner with an Allocation keeps an equal part of the Device from
others. Sums obey the law of the time books: for each Gpu, the accounts sum to the watched time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import lcm
from operator import itemgetter
from typing import NamedTuple

from gpuledger.ledger.energy.shares import round_parts
from gpuledger.ledger.report.gpu_time import NONE_RUNNING, GpuPart, GpuTime
from gpuledger.ledger.report.party import Party, party_text
from gpuledger.ledger.time.account import OWNER, UNCUT, OwnerKey, container_of, owner_key
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.session import IDLE


class PresentParty(NamedTuple):
    """A party on a Device, and the seconds (`ledger.watched_time`) in which it was resident or allocated."""

    party: Party
    resident: int
    allocated: int


class OldDevice(NamedTuple):
    """A Gpu, or a MIG Instance that was in use, and the parties on it."""

    part: GpuPart
    parties: Sequence[PresentParty]


class _Pattern(NamedTuple):
    """The numbers of a party's owner and container, and its seconds."""

    owner: int
    container: int
    resident: int
    allocated: int


# The fields of a pattern: plain tuples are faster.
_PatternKey = tuple[int, int, int, int]


class _Shares(NamedTuple):
    """Seconds by both bases in units of 1/`unit`: of each row, and of nobody while somebody was present."""

    unit: int
    allocation: tuple[int, ...]
    residence: tuple[int, ...]
    idle: int
    estimated: tuple[bool, ...]


def old_hour_time(gpu: GpuPart, observed: int, devices: Sequence[OldDevice]) -> Iterator[GpuTime]:
    """The watched time of one Gpu in an hour or less, by account.

    `observed` are microseconds in which its energy was observed. Time with a process or an Allocation was
    watched too, and it is all that is known of a Gpu without energy.
    """
    identified = [
        sorted([(*_identity(one.party), one) for one in device.parties], key=itemgetter(0))
        for device in devices
    ]
    parties = [[one for *_, one in ones] for ones in identified]
    present = [_union(ones).bit_count() * MICRO for ones in parties]
    watched = max([observed, *present])
    if not watched:
        return
    weights, rest = _weights(tuple(device.part.share for device in devices))
    shares = [_device_shares(_patterns(ones)) for ones in identified]
    unit = lcm(*(one.unit * weight.denominator for one, weight in zip(shares, weights, strict=True)))
    # Their microseconds are in units of the hour.
    rows: list[GpuTime] = []
    for device, weight, ones, found, seconds in zip(devices, weights, parties, shares, present, strict=True):
        scale = unit * weight.numerator // weight.denominator
        micro = scale // found.unit * MICRO
        rows += _owner_rows(device.part, ones, found, micro)
        empty = scale * (watched - seconds)
        rows.append(GpuTime(device.part, IDLE, None, False, empty, empty + micro * found.idle))
    uncovered = unit * rest.numerator // rest.denominator * watched
    rows.append(GpuTime(gpu, UNCUT if devices else IDLE, None, False, uncovered, uncovered))
    by_allocation = round_parts(watched, [row.allocation for row in rows], unit)
    by_residence = round_parts(watched, [row.residence for row in rows], unit)
    for row, allocation, residence in zip(rows, by_allocation, by_residence, strict=True):
        if allocation or residence:
            yield row._replace(allocation=allocation, residence=residence)


@lru_cache(1024)
def _weights(shares: tuple[Fraction, ...]) -> tuple[tuple[Fraction, ...], Fraction]:
    """The parts of the Gpu that its Devices are, and the rest.

    Instances of one hour can be more than the Gpu, if it was cut again meanwhile: then they are scaled to it.
    """
    total = sum(shares, Fraction(0))
    if total > 1:
        return tuple(share / total for share in shares), Fraction(0)
    return shares, 1 - total


def _owner_rows(
    part: GpuPart, parties: Sequence[PresentParty], shares: _Shares, micro: int
) -> Iterator[GpuTime]:
    """The rows of the parties; `micro` are units of the hour in a unit of the shares."""
    for one, allocation, residence, is_estimate in zip(
        parties, shares.allocation, shares.residence, shares.estimated, strict=True
    ):
        if allocation or residence:
            party = one.party
            if one.allocated and not one.resident:
                party = _none_running(party)
            yield GpuTime(part, OWNER, party, is_estimate, allocation * micro, residence * micro)


@lru_cache(2048)
def _identity(party: Party) -> tuple[str, OwnerKey, str]:
    """A text by which parties are sorted, the owner, and the container."""
    return party_text(party), owner_key(party.owner), container_of(party.owner)


@lru_cache(2048)
def _none_running(party: Party) -> Party:
    return replace(party, command=NONE_RUNNING)


def _union(parties: Iterable[PresentParty]) -> int:
    union = 0
    for one in parties:
        union |= one.resident | one.allocated
    return union


def _patterns(parties: Iterable[tuple[str, OwnerKey, str, PresentParty]]) -> tuple[_PatternKey, ...]:
    owners: dict[OwnerKey, int] = {}
    containers: dict[tuple[int, str], int] = {}
    found = []
    for _, key, name, one in parties:
        owner = owners.setdefault(key, len(owners))
        container = containers.setdefault((owner, name), len(containers))
        found.append((owner, container, one.resident, one.allocated))
    return tuple(found)


@lru_cache(4096)
def _device_shares(keys: tuple[_PatternKey, ...]) -> _Shares:
    """Cached: most hours have a pattern that other hours have, too."""
    rows = [_Pattern(*key) for key in keys]
    shares = ([Fraction(0)] * len(rows), [Fraction(0)] * len(rows))
    estimated = [False] * len(rows)
    idle = 0
    for seconds, resident, allocated in _constellations(rows):
        owners = {rows[place].owner for place in resident}
        holders = {rows[place].owner for place in allocated}
        for owner in holders or owners:
            for place, part in _within_owner(rows, owner, resident, allocated):
                shares[0][place] += part * seconds / len(holders or owners)
                estimated[place] |= bool(holders)
        for owner in owners:
            for place, part in _within_owner(rows, owner, resident, ()):
                shares[1][place] += part * seconds / len(owners)
        idle += 0 if owners else seconds
    unit = lcm(*(share.denominator for share in (*shares[0], *shares[1])))
    allocation, residence = (tuple(int(share * unit) for share in found) for found in shares)
    return _Shares(unit, allocation, residence, idle * unit, tuple(estimated))


def _within_owner(
    rows: Sequence[_Pattern], owner: int, resident: Sequence[int], allocated: Sequence[int]
) -> Iterator[tuple[int, Fraction]]:
    """The parts of an owner's rows: equal for containers with a process, else for those allocated to."""
    own = [place for place in resident if rows[place].owner == owner]
    own = own or [place for place in allocated if rows[place].owner == owner]
    containers = [rows[place].container for place in own]
    for place, container in zip(own, containers, strict=True):
        yield place, Fraction(1, len(set(containers)) * containers.count(container))


def _constellations(rows: Sequence[_Pattern]) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Numbers of seconds with the same rows resident and the same rows allocated; at least one is present."""
    union = 0
    for row in rows:
        union |= row.resident | row.allocated
    found: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [(union, (), ())]
    for place, row in enumerate(rows):
        divided = []
        for bits, resident, allocated in found:
            for is_resident in (True, False):
                here = bits & row.resident if is_resident else bits & ~row.resident
                for is_allocated in (True, False):
                    both = here & row.allocated if is_allocated else here & ~row.allocated
                    if both:
                        divided.append(
                            (
                                both,
                                (*resident, place) if is_resident else resident,
                                (*allocated, place) if is_allocated else allocated,
                            )
                        )
        found = divided
    for bits, resident, allocated in found:
        if bits:
            yield bits.bit_count(), resident, allocated

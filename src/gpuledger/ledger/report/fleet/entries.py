"""Converts the rises of a fleet's counters to a ledger's entries: time and energy by party."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import lcm
from typing import Any

from gpuledger.ledger.report.fleet.account_rises import AccountRises
from gpuledger.ledger.report.fleet.fleet import Fleet
from gpuledger.ledger.report.fleet.inventory import ScrapedPod
from gpuledger.ledger.report.fleet.scraped import Name
from gpuledger.ledger.report.gpu_time import GpuPart, GpuTime
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.tally import EnergyEntry
from gpuledger.ledger.report.usage_report import UNSEEN
from gpuledger.ledger.time.account import DOWN, OWNER, UNCUT
from gpuledger.ledger.time.split import largest_remainder
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.session import IDLE, PROCESS, UNATTRIBUTED, UNOBSERVED
from gpuledger.model.workload import Workload

_MILLI = 1000
_ONE = Fraction(1)


def party_of_series(uuid: str, owner: Name, fleet: Fleet) -> Party:
    """The party of an account's owner labels."""
    kind, namespace, pod, container, user, job = owner
    known = fleet.inventory.pods.get((namespace, pod), ScrapedPod()) if pod else ScrapedPod()
    facts: dict[str, Any] = {**known.facts, **(fleet.inventory.jobs.get(job, {}) if job else {})}
    # The energy series of a pod have its containers' user, its time series do not.
    return Party(
        uuid,
        Workload(
            kind=kind or "unknown",
            namespace=namespace,
            pod=pod,
            container=container,
            job=job,
            user="" if kind == "pod" else user,
            labels=known.labels,
            **facts,
        ),
    )


def gpu_times(fleet: Fleet, quarter: int) -> Iterator[GpuTime]:
    """The time of all accounts in the part of the period that begins at `quarter`."""
    by_gpu: dict[str, list[tuple[Name, int]]] = defaultdict(list)
    for name, gained in fleet.time.by_quarter[quarter].items():
        by_gpu[name[0]].append((name, round(MICRO * gained.amount)))
    for uuid, accounts in by_gpu.items():
        model = _model(fleet, uuid)
        owners = [(name, amount) for name, amount in accounts if name[2] == OWNER]
        own: Counter[str] = Counter()
        for name, amount in accounts:
            if name[2] != OWNER:
                own[name[2]] += amount
        for (_, instance, _, *owner), amount in owners:
            part = _part(fleet, quarter, GpuPart(uuid, model, instance))
            party = party_of_series(uuid, tuple(owner), fleet)
            yield GpuTime(part, OWNER, party, False, amount, amount)
        spent: Counter[str] = Counter()
        for name, amount in owners:
            spent[name[1]] += amount
        yield from _own_times(fleet, GpuPart(uuid, model), own, spent, quarter)
    for uuid, amount in _unseen(fleet.time, quarter, MICRO).items():
        yield GpuTime(GpuPart(uuid, _model(fleet, uuid)), UNSEEN, None, False, amount, amount)


def _own_times(
    fleet: Fleet, whole: GpuPart, own: Mapping[str, int], owners: Mapping[str, int], quarter: int
) -> Iterator[GpuTime]:
    """The time of a Gpu's own accounts, which series have without an Instance.

    Under MIG each Instance has what its owners leave of its time. If several own accounts have time, it is
    not known which of them had which Instance: each gets the same parts. `owners` is their time by Instance.
    """
    shares = {
        instance: share for (uuid, instance), share in fleet.shares[quarter].items() if uuid == whole.gpu
    }
    uncut = _ONE - sum(shares.values())
    watched = sum(own.values()) + sum(owners.values()) - own.get(DOWN, 0)
    rests = [
        max(watched * share - owners.get(instance, 0), Fraction(0))
        for instance, share in (*shares.items(), ("", uncut))
    ]
    common = lcm(*(rest.denominator for rest in rests))
    numerators = [int(rest * common) for rest in rests]
    parts = [_part(fleet, quarter, whole._replace(instance=instance)) for instance in shares]
    parts.append(whole._replace(share=uncut))
    if uncut < 0:
        fleet.recut.add(whole.gpu)
    for account, amount in own.items():
        if not shares or uncut < 0 or not any(numerators) or account == DOWN:
            yield GpuTime(whole, account, None, False, amount, amount)
            continue
        for part, each in zip(parts, largest_remainder(numerators, sum(numerators), amount), strict=True):
            name = UNCUT if account == IDLE and not part.instance else account
            yield GpuTime(part, name, None, False, each, each)


def energy_entries(fleet: Fleet, quarter: int) -> Iterator[EnergyEntry]:
    """The energy of all accounts in the part of the period that begins at `quarter`."""
    shares: dict[tuple[str, str], list[tuple[Party, int]]] = defaultdict(list)
    own: dict[str, Counter[str]] = defaultdict(Counter)
    for (uuid, account, method, *owner), gained in fleet.energy.by_quarter[quarter].items():
        amount = round(_MILLI * gained.amount)
        if account == PROCESS:
            shares[uuid, method].append((party_of_series(uuid, tuple(owner), fleet), amount))
        else:
            own[uuid][account] += amount
    for (uuid, method), parties in shares.items():
        yield EnergyEntry(uuid, method, 0, 0, 0, 0, parties)
    for uuid, accounts in own.items():
        yield EnergyEntry(uuid, IDLE, 0, accounts[IDLE], accounts[UNATTRIBUTED], accounts[UNOBSERVED], ())


def unseen_energy(fleet: Fleet, quarter: int) -> Mapping[str, int]:
    """Millijoules by Gpu that are in its counter, but in no scraped account."""
    return _unseen(fleet.energy, quarter, _MILLI)


def _unseen(rises: AccountRises, quarter: int, per_unit: int) -> Mapping[str, int]:
    """What was unseen in the period, as far as it belongs to this part, by Gpu.

    In proportion to the rise of the Gpu's counter beyond that of its accounts in each part.
    """
    found: dict[str, int] = {}
    unseen = rises.uncertainty.unseen
    beyond: dict[int, dict[str, float]] = {}
    for number in rises.totals_by_quarter if unseen else ():
        counted = beyond[number] = defaultdict(float)
        for (uuid,), gained in rises.totals_by_quarter[number].items():
            counted[uuid] = gained.amount
        for name, gained in rises.by_quarter[number].items():
            counted[name[0]] -= gained.amount
    for uuid, amount in unseen.items():
        total = sum(max(counted[uuid], 0.0) for counted in beyond.values())
        part = max(beyond[quarter][uuid], 0.0) / total * amount if total and quarter in beyond else 0.0
        if round(per_unit * part):
            found[uuid] = round(per_unit * part)
    return found


def _model(fleet: Fleet, uuid: str) -> str:
    gpu = fleet.inventory.gpus.get(uuid)
    return "" if gpu is None else gpu.name


def _part(fleet: Fleet, quarter: int, part: GpuPart) -> GpuPart:
    """The part with the profile and the share that its Instance had then: layouts use its name again."""
    if not part.instance:
        return part
    key, last = (part.gpu, part.instance), fleet.inventory
    profile = fleet.profiles[quarter].get(key, last.profiles.get(key, ""))
    share = fleet.shares[quarter].get(key, last.shares.get(key, _ONE))
    return part._replace(profile=profile, share=share)

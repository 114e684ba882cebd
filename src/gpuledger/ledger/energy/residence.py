"""From when to when each process was on its Device within one interval, and how long it worked (rules 3, 4).

All times are integer microseconds from the interval's beginning, so that what follows is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from gpuledger.ledger.energy.evidence import Evidence, Sighting, engine_time
from gpuledger.model.process import (
    AccountingRecord,
    GpuProcess,
    HostFacts,
    ProcessKey,
    ProcessType,
    Start,
    UtilizationSample,
)

MPS_SERVER = "nvidia-cuda-mps-server"

# Clocks of one machine that tell the start of one process differ by less than this, in seconds.
_SKEW = 0.5


class Residence(NamedTuple):
    """One process in one interval.

    `work` is engine time in ten-thousandths of a sample period, summed. `certain` is true when the process
    stands in both of the interval's lists. `draws` marks a graphics-only process: it bears work, no floor.
    `rank` is its place among all of the interval in the order of identities, `key` whose it is.
    """

    process: GpuProcess
    begins: int
    ends: int
    work: int
    certain: bool
    draws: bool
    rank: int
    key: ProcessKey


def residences(evidence: Evidence, last: Sighting, unix: float) -> list[Residence]:
    """Everybody who was on the Gpu or its Instances: from the lists, from samples, from accounting.

    `unix` is the wall time of the interval's end, to which process starts are related.
    """
    everybody = evidence.seen(last)
    worked = _samples_by_process(evidence, everybody, last, unix)
    drawing = evidence.graphics_pids(everybody)
    servers = _servers_with_clients(everybody)
    shared = _split_over_clients(worked, servers, everybody)
    records = _records_by_process(evidence, everybody, unix - last.at)
    ranked = sorted((key for key in everybody if key not in servers), key=order)
    return [
        _residence(
            everybody[key],
            rank,
            evidence,
            last,
            unix,
            worked.get(key, []),
            shared.get(key, 0),
            drawing,
            records.get(key),
        )
        for rank, key in enumerate(ranked)
    ]


def order(key: ProcessKey) -> tuple[str | int | float, ...]:
    """A total order of identities, for ties."""
    device, pid, boot_id, ticks, seen = key
    return (device, pid, boot_id, ticks or 0, seen or 0.0)


def _samples_by_process(
    evidence: Evidence, everybody: dict[ProcessKey, GpuProcess], last: Sighting, unix: float
) -> dict[ProcessKey, list[UtilizationSample]]:
    """Samples by identity. Pids that no list has lived between two ticks: they join `everybody`."""
    by_pid = _by_pid(everybody)
    samples: dict[int, list[UtilizationSample]] = defaultdict(list)
    for sample in evidence.samples:
        samples[sample.pid].append(sample)
    for ghost in _ghosts(evidence, everybody, by_pid, samples.keys(), unix - last.at):
        everybody[ghost.key] = ghost
        by_pid[ghost.pid].append(ghost.key)
    found: dict[ProcessKey, list[UtilizationSample]] = defaultdict(list)
    for pid, told in samples.items():
        keys = by_pid[pid]
        if len(keys) == 1:
            found[keys[0]] = told
            continue
        for sample in told:
            at = unix - last.at + _seconds(sample, evidence)
            found[_lived_at(keys, everybody, at)].append(sample)
    return found


def _by_pid(everybody: Iterable[ProcessKey]) -> dict[int, list[ProcessKey]]:
    found: dict[int, list[ProcessKey]] = defaultdict(list)
    for key in everybody:
        found[key[1]].append(key)
    return found


def _records_by_process(
    evidence: Evidence, everybody: Mapping[ProcessKey, GpuProcess], shift: float
) -> dict[ProcessKey, AccountingRecord]:
    """The newest record of each process."""
    if not evidence.records:
        return {}
    by_pid = _by_pid(everybody)
    found: dict[ProcessKey, AccountingRecord] = {}
    for pid, records in evidence.records.items():
        for _, record in sorted(records.items()):
            owner = _of_record(by_pid[pid], evidence, everybody, record, shift)
            if owner is not None:
                found[owner] = record
    return found


def _lived_at(keys: list[ProcessKey], everybody: Mapping[ProcessKey, GpuProcess], unix: float) -> ProcessKey:
    """Which of the processes that had this pid: the latest that had begun, else the first."""
    starts = {key: everybody[key].host.start.unix for key in keys}
    begun = [key for key in keys if starts[key] <= unix]
    return max(begun, key=starts.__getitem__) if begun else min(keys, key=starts.__getitem__)


def _ghosts(
    evidence: Evidence,
    everybody: Mapping[ProcessKey, GpuProcess],
    by_pid: Mapping[int, list[ProcessKey]],
    sampled: Set[int],
    shift: float,
) -> list[GpuProcess]:
    """Processes that no list has: those of records that fit none that is listed, and of samples."""
    found: dict[int, list[GpuProcess]] = defaultdict(list)
    for pid, records in evidence.records.items():
        for record in records.values():
            if _of_record(by_pid.get(pid, ()), evidence, everybody, record, shift) is None:
                found[pid].append(_ghost(evidence, pid, record.began, shift))
    for pid in sampled - by_pid.keys() - found.keys():
        found[pid].append(_ghost(evidence, pid, evidence.began, shift))
    return [ghost for ghosts in found.values() for ghost in ghosts]


def _ghost(evidence: Evidence, pid: int, began: float, shift: float) -> GpuProcess:
    """One that lasts over intervals keeps its identity: it is known from when it was first noticed."""
    before = evidence.ghosts.get(pid)
    if before is not None and began <= evidence.began:
        return before
    at = shift + began
    return GpuProcess(evidence.gpu, pid, HostFacts(Start("", None, at, seen=round(at, 3)), missing="exited"))


def _of_record(
    keys: Iterable[ProcessKey],
    evidence: Evidence,
    everybody: Mapping[ProcessKey, GpuProcess],
    record: AccountingRecord,
    shift: float,
) -> ProcessKey | None:
    """Which of the processes that had its pid an accounting record is of: the latest that had begun."""
    at = record.began + shift + _SKEW
    starts = {key: everybody[key].host.start for key in keys}
    # One that was there when the interval began, and by its start began later: the clock was set back since.
    began = evidence.began + shift
    begun = [
        key
        for key, start in starts.items()
        if not start.exact or start.unix <= at or (start.unix > began and key in evidence.first.processes)
    ]
    return max(begun, key=lambda key: starts[key].unix, default=None)


def _servers_with_clients(everybody: Mapping[ProcessKey, GpuProcess]) -> frozenset[ProcessKey]:
    clients = {key[0] for key, process in everybody.items() if ProcessType.MPS in process.types}
    if not clients:
        return frozenset()
    return frozenset(
        key for key, process in everybody.items() if process.command == MPS_SERVER and key[0] in clients
    )


def _split_over_clients(
    worked: Mapping[ProcessKey, list[UtilizationSample]],
    servers: frozenset[ProcessKey],
    everybody: Mapping[ProcessKey, GpuProcess],
) -> dict[ProcessKey, int]:
    """Work that the driver put on an MPS server, by client: equally, the odd units to the first."""
    extra: dict[ProcessKey, int] = defaultdict(int)
    for server in servers:
        total = _work(worked.get(server, ()))
        clients = sorted(
            (
                key
                for key, process in everybody.items()
                if key[0] == server[0] and key not in servers and ProcessType.MPS in process.types
            ),
            key=order,
        )
        each, odd = divmod(total, len(clients))
        for number, client in enumerate(clients):
            extra[client] += each + (number < odd)
    return extra


def _residence(
    process: GpuProcess,
    rank: int,
    evidence: Evidence,
    last: Sighting,
    unix: float,
    samples: list[UtilizationSample],
    extra: int,
    drawing: frozenset[int],
    record: AccountingRecord | None,
) -> Residence:
    key, draws = process.key, process.pid in drawing
    work = _work(samples) + extra
    at_begin, at_end = key in evidence.first.processes, key in last.processes
    if at_begin and at_end:
        length = _microseconds(last.at - evidence.began)
        return Residence(process, 0, length, work, certain=True, draws=draws, rank=rank, key=key)
    times = sorted(_seconds(sample, evidence) for sample in samples)
    begins = evidence.began if at_begin else _begin(process, evidence, last, unix, record, times)
    ends = last.at if at_end else _end(key, evidence, last, record, times, begins)
    begins = min(max(begins, evidence.began), last.at)
    ends = min(max(ends, begins), last.at)
    return Residence(
        process,
        _microseconds(begins - evidence.began),
        _microseconds(ends - evidence.began),
        work,
        certain=False,
        draws=draws,
        rank=rank,
        key=key,
    )


def _begin(
    process: GpuProcess,
    evidence: Evidence,
    last: Sighting,
    unix: float,
    record: AccountingRecord | None,
    times: list[float],
) -> float:
    if record is not None:
        return record.began
    if times:
        return times[0]
    start = process.host.start
    # A start that is only a first sight says nothing of the time before: the interval bounds it.
    born = last.at - (unix - start.unix) if start.exact else evidence.began
    absent = [sighting.at for sighting in _before_first(process.key, evidence)]
    return max(born, evidence.began, *absent[-1:])


def _end(
    key: ProcessKey,
    evidence: Evidence,
    last: Sighting,
    record: AccountingRecord | None,
    times: list[float],
    begins: float,
) -> float:
    if record is not None and record.ended is not None:
        return record.ended
    if times:
        return times[-1]
    present = [seen.at for seen in (evidence.first, *evidence.between) if key in seen.processes]
    known = max(present, default=begins)
    gone = min((seen.at for seen in evidence.between if seen.at > known), default=last.at)
    return (max(known, begins) + gone) / 2


def _before_first(key: ProcessKey, evidence: Evidence) -> Iterable[Sighting]:
    for sighting in (evidence.first, *evidence.between):
        if key in sighting.processes:
            return
        yield sighting


def _seconds(sample: UtilizationSample, evidence: Evidence) -> float:
    return sample.at / 1e6 + evidence.offset


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _work(samples: Iterable[UtilizationSample]) -> int:
    """Engine time in ten-thousandths of a sample period; drivers tell whole percents, so nothing is lost."""
    return round(sum(map(engine_time, samples)) * 10_000)

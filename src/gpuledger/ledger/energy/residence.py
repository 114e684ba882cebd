"""Residence and engine time of each process within one interval (rules 3 and 4).

All times are integer microseconds from the interval's beginning, so later computations are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from itertools import takewhile
from typing import NamedTuple

from gpuledger.ledger.energy.evidence import Evidence, engine_time
from gpuledger.ledger.service_processes import NO_PROCESSES
from gpuledger.model.process import (
    AccountingRecord,
    GpuProcess,
    HostFacts,
    ProcessKey,
    ProcessStart,
    ProcessType,
    UtilizationSample,
)

# Units of work in a sample period.
WORK_UNIT = 10_000
# Maximum difference in seconds between clocks of one machine that report the start of a process.
_SKEW = 0.5


class Residence(NamedTuple):
    """One process in one interval.

    `work` is engine time in ten-thousandths of a sample period, summed. `certain` is True if the process is
    in both the first and the last list. `draws` marks a graphics-only process: it gets work energy, no floor.
    `rank` is its position among all processes of the interval, ordered by `key`.
    """

    process: GpuProcess
    begins: int
    ends: int
    work: int
    certain: bool
    draws: bool
    rank: int
    key: ProcessKey


def residences(evidence: Evidence) -> list[Residence]:
    """All processes that were on the Gpu or its Instances, from lists, samples and accounting records."""
    processes = evidence.all_processes()
    worked = _samples_by_process(evidence, processes)
    drawing = evidence.graphics_pids(processes)
    servers = NO_PROCESSES.union(*(lists.serving for lists in evidence.lists)) & processes.keys()
    shared = _split_over_clients(worked, servers, processes)
    records = _records_by_process(evidence, processes)
    first, last = evidence.lists[0].processes, evidence.lists[-1].processes
    length = evidence.length
    found = []
    ranked = sorted((key for key in processes if key not in servers), key=identity_order)
    for rank, key in enumerate(ranked):
        process, samples = processes[key], worked.get(key, ())
        work = _work(samples) + shared.get(key, 0)
        certain = key in first and key in last
        begins, ends = (0, length) if certain else _period(process, evidence, samples, records.get(key))
        found.append(Residence(process, begins, ends, work, certain, process.pid in drawing, rank, key))
    return found


def identity_order(key: ProcessKey) -> tuple[str | int | float, ...]:
    """A total order of process keys, for ties."""
    device, pid, boot_id, ticks, seen = key
    return (device, pid, boot_id, ticks or 0, seen or 0.0)


def _samples_by_process(
    evidence: Evidence, processes: dict[ProcessKey, GpuProcess]
) -> dict[ProcessKey, list[UtilizationSample]]:
    """Samples by process key. Pids in no list lived between two ticks: they are added to `processes`."""
    by_pid = _by_pid(processes)
    samples: dict[int, list[UtilizationSample]] = defaultdict(list)
    for sample in evidence.samples:
        samples[sample.pid].append(sample)
    for ghost in _ghosts(evidence, processes, by_pid, samples.keys()):
        processes[ghost.key] = ghost
        by_pid[ghost.pid].append(ghost.key)
    found: dict[ProcessKey, list[UtilizationSample]] = defaultdict(list)
    for pid, pid_samples in samples.items():
        keys = by_pid[pid]
        if len(keys) == 1:
            found[keys[0]] = pid_samples
            continue
        for sample in pid_samples:
            at = evidence.unix_shift + _seconds(sample, evidence)
            found[_lived_at(keys, processes, at)].append(sample)
    return found


def _by_pid(processes: Iterable[ProcessKey]) -> dict[int, list[ProcessKey]]:
    found: dict[int, list[ProcessKey]] = defaultdict(list)
    for key in processes:
        found[key[1]].append(key)
    return found


def _records_by_process(
    evidence: Evidence, processes: Mapping[ProcessKey, GpuProcess]
) -> dict[ProcessKey, AccountingRecord]:
    """The newest record of each process."""
    if not evidence.records:
        return {}
    by_pid = _by_pid(processes)
    found: dict[ProcessKey, AccountingRecord] = {}
    for pid, records in evidence.records.items():
        for _, record in sorted(records.items()):
            owner = _of_record(by_pid[pid], evidence, processes, record)
            if owner is not None:
                found[owner] = record
    return found


def _lived_at(keys: list[ProcessKey], processes: Mapping[ProcessKey, GpuProcess], unix: float) -> ProcessKey:
    """The process that had this pid at a time: the latest that had begun, else the first."""
    starts = {key: processes[key].host.start.unix for key in keys}
    begun = [key for key in keys if starts[key] <= unix]
    return max(begun, key=starts.__getitem__) if begun else min(keys, key=starts.__getitem__)


def _ghosts(
    evidence: Evidence,
    processes: Mapping[ProcessKey, GpuProcess],
    by_pid: Mapping[int, list[ProcessKey]],
    sampled: Set[int],
) -> list[GpuProcess]:
    """Processes in no list: those of samples, and of records that match no listed process."""
    found: dict[int, list[GpuProcess]] = defaultdict(list)
    for pid, records in evidence.records.items():
        for record in records.values():
            if _of_record(by_pid.get(pid, ()), evidence, processes, record) is None:
                found[pid].append(_ghost(evidence, pid, record.began))
    for pid in sampled - by_pid.keys() - found.keys():
        found[pid].append(_ghost(evidence, pid, evidence.began))
    return [ghost for ghosts in found.values() for ghost in ghosts]


def _ghost(evidence: Evidence, pid: int, began: float) -> GpuProcess:
    """A process in no list. Its identity, from when it was first noticed, is kept over intervals."""
    before = evidence.ghosts.get(pid)
    if before is not None and began <= evidence.began:
        return before
    at = evidence.unix_shift + began
    return GpuProcess(
        evidence.gpu, pid, HostFacts(ProcessStart("", None, at, seen=round(at, 3)), missing="exited")
    )


def _of_record(
    keys: Iterable[ProcessKey],
    evidence: Evidence,
    processes: Mapping[ProcessKey, GpuProcess],
    record: AccountingRecord,
) -> ProcessKey | None:
    """The process of an accounting record: the latest with its pid that had begun."""
    shift = evidence.unix_shift
    at = record.began + shift + _SKEW
    starts = {key: processes[key].host.start for key in keys}
    # A listed process that seems to start after the interval began: the clock was set back since.
    began = evidence.began + shift
    begun = [
        key
        for key, start in starts.items()
        if not start.exact or start.unix <= at or (start.unix > began and key in evidence.lists[0].processes)
    ]
    return max(begun, key=lambda key: starts[key].unix, default=None)


def _split_over_clients(
    worked: Mapping[ProcessKey, list[UtilizationSample]],
    servers: frozenset[ProcessKey],
    processes: Mapping[ProcessKey, GpuProcess],
) -> dict[ProcessKey, int]:
    """Work that the driver attributed to an MPS server, split equally over its clients.

    Remaining units go to the first clients. Without a client on this Device it belongs to no process.
    """
    extra: dict[ProcessKey, int] = defaultdict(int)
    for server in servers:
        total = _work(worked.get(server, ()))
        clients = sorted(
            (
                key
                for key, process in processes.items()
                if key[0] == server[0] and key not in servers and ProcessType.MPS in process.types
            ),
            key=identity_order,
        )
        each, odd = divmod(total, max(len(clients), 1))
        for number, client in enumerate(clients):
            extra[client] += each + (number < odd)
    return extra


def _period(
    process: GpuProcess,
    evidence: Evidence,
    samples: Iterable[UtilizationSample],
    record: AccountingRecord | None,
) -> tuple[int, int]:
    """Beginning and end of a process that is not in both the first and the last list."""
    key, times = process.key, sorted(_seconds(sample, evidence) for sample in samples)
    begins, ends = evidence.began, evidence.ended
    if key not in evidence.lists[0].processes:
        begins = _begin(process, evidence, record, times)
    if key not in evidence.lists[-1].processes:
        ends = _end(key, evidence, record, times, begins)
    begins = min(max(begins, evidence.began), evidence.ended)
    ends = min(max(ends, begins), evidence.ended)
    return _microseconds(begins - evidence.began), _microseconds(ends - evidence.began)


def _begin(
    process: GpuProcess, evidence: Evidence, record: AccountingRecord | None, times: list[float]
) -> float:
    if record is not None:
        return record.began
    if times:
        return times[0]
    start = process.host.start
    # An inexact start is only the time of first sight: use the beginning of the interval instead.
    born = evidence.ended - (evidence.ended_unix - start.unix) if start.exact else evidence.began
    absent = list(takewhile(lambda lists: process.key not in lists.processes, evidence.lists[:-1]))
    return max(born, absent[-1].at if absent else evidence.began)


def _end(
    key: ProcessKey, evidence: Evidence, record: AccountingRecord | None, times: list[float], begins: float
) -> float:
    if record is not None and record.ended is not None:
        return record.ended
    if times:
        return times[-1]
    present = [seen.at for seen in evidence.lists if key in seen.processes]
    known = max(present, default=begins)
    gone = min((seen.at for seen in evidence.lists[1:] if seen.at > known), default=evidence.ended)
    return (max(known, begins) + gone) / 2


def _seconds(sample: UtilizationSample, evidence: Evidence) -> float:
    return sample.at / 1e6 + evidence.offset


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _work(samples: Iterable[UtilizationSample]) -> int:
    """Engine time in ten-thousandths of a sample period. Drivers report whole percents: nothing is lost."""
    return round(sum(map(engine_time, samples)) * WORK_UNIT)

"""Reads the job-mapping directory that prologs and epilogs of a batch system write.

One file per device, `<minor>`, `<minor>.<gpu instance id>` or a UUID (file_names.py), one job id per line; an
empty file or `0` means idle. The number is the minor, not the index: inside the device cgroup of a job they
differ, outside they can. Prologs write without locking: an incomplete file is ignored until it has not
changed for one second.
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

from gpuledger.host.files import ReadFile, read_at_most
from gpuledger.model.devices import Device
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.model.text import decode_utf8, list_some, to_short_line
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex, DeviceRef
from gpuledger.workloads.job_map.file_names import is_device_folder, is_leftover, parse_file_name
from gpuledger.workloads.slurm.jobs import SlurmJobs

log = logging.getLogger("gpuledger.workloads")

# Slurm: 123, 123_4. PBS: 123[4].server. LSF: 123[4]. Grid Engine: 123.1.
_JOB: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\[\]@:+-]{0,63}", re.ASCII)
# In seconds. A younger file without a final newline is considered half-written.
_SETTLE_SECONDS: Final = 1.0
_MAX_BYTES: Final = 64 * 1024
_MOST_STRANGE: Final = 1000
_IDLE: Final = frozenset({"", "0"})


@dataclass(frozen=True, slots=True)
class MappedJob:
    """One job on one device. `file` is the path of the file below the directory."""

    device: DeviceRef
    job: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class JobMap:
    """Every job of the directory at one moment.

    `files` counts the files of devices, including idle ones. `devices` are those that the files name, with
    the file. `strange` are other files and directories; `damaged` are files with a line that is no job id, or
    that cannot be read, with the reason.
    """

    jobs: tuple[MappedJob, ...] = ()
    files: int = 0
    devices: tuple[tuple[DeviceRef, str], ...] = ()
    strange: tuple[str, ...] = ()
    damaged: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.jobs)


EMPTY_JOB_MAP = JobMap()

# Modification time in ns, size and inode: the content changes only with these.
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _FileEntry:
    stamp: _Stamp | None
    jobs: tuple[str, ...]
    problem: str = ""


_read_file = partial(read_at_most, longest=_MAX_BYTES)


class JobMapReader:
    """Reads JobMaps from the directory, for a PolledIndex; unchanged files only once. Not thread-safe."""

    def __init__(self, directory: Path, *, clock: Clock, read: ReadFile = _read_file) -> None:
        self._directory = directory
        self._clock = clock
        self._read = read
        self._known: Mapping[str, _FileEntry] = {}

    def read(self) -> JobMap:
        """The jobs in the directory now. Raises GpuledgerError if it cannot be read."""
        known: dict[str, _FileEntry] = {}
        jobs: list[MappedJob] = []
        devices: list[tuple[DeviceRef, str]] = []
        names, strange = self._names()
        for name, refs in names:
            if entry := self._entry(name):
                known[name] = entry
                devices += [(ref, name) for ref in refs]
                jobs += [MappedJob(ref, job, name) for ref in refs for job in entry.jobs]
        self._known = known
        damaged = tuple((name, entry.problem) for name, entry in known.items() if entry.problem)
        return JobMap(tuple(jobs), len(known), tuple(devices), strange, damaged)

    def _names(self) -> tuple[list[tuple[str, tuple[DeviceRef, ...]]], tuple[str, ...]]:
        """The files of devices, and the other names."""
        found: list[tuple[str, tuple[DeviceRef, ...]]] = []
        strange: list[str] = []
        for name, is_folder in self._entries():
            refs = () if is_folder else parse_file_name(name)
            if refs:
                found.append((name, refs))
            else:
                strange.append(name)
        return sorted(found, key=lambda item: _order(*item)), tuple(sorted(strange)[:_MOST_STRANGE])

    def _entries(self, below: str = "") -> Iterator[tuple[str, bool]]:
        """Paths below the directory, and whether they are directories; without leftovers of editors."""
        try:
            with os.scandir(self._directory / below) as listed:
                entries = list(listed)
        except OSError as error:
            if below:
                # Removed meanwhile.
                return
            raise GpuledgerError(
                f"{self._directory}: {error.strerror}; set --hpc-job-mapping-dir to the directory that the "
                "batch system's prolog writes, and make it readable to gpuledger"
            ) from None
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if is_leftover(entry.name):
                continue
            is_folder = _is_folder(entry)
            if is_folder and is_device_folder(path):
                yield from self._entries(path)
            else:
                yield path, is_folder

    def _entry(self, name: str) -> _FileEntry | None:
        path = self._directory / name
        before = self._known.get(name)
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if before and before.stamp == stamp:
                return before
            raw = self._read(str(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            # A file that is not readable now does not mean that the job ended.
            return _FileEntry(None, before.jobs if before else (), error.strerror or "cannot be read")
        # A time in the future comes from the clock of a file server: waiting for it is useless.
        is_settled = not 0 <= self._clock.unix() - found.st_mtime_ns / 1e9 < _SETTLE_SECONDS
        whole = raw.endswith(b"\n") and b"\0" not in raw
        if not whole and not is_settled and before:
            return _FileEntry(None, before.jobs)
        # No stamp for a young file: two writes can fall into one tick of the file system's clock.
        return _FileEntry(stamp if is_settled else None, *_jobs(raw, whole or is_settled))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link to itself.
        return False


def _order(name: str, refs: Sequence[DeviceRef]) -> tuple[bool, list[int], str]:
    """Files with numbers first, in the order of these."""
    first = refs[0]
    numbers = [] if first.by == "uuid" else [int(number) for number in first.name.split("/")]
    return (first.by == "uuid", numbers, name)


def _jobs(raw: bytes, is_complete: bool) -> tuple[tuple[str, ...], str]:
    """The job ids, and what is wrong with the first line that has none."""
    lines = decode_utf8(raw).split("\n")
    # A last line without a newline may be cut: 12 of 1234.
    job_ids = [line.strip() for line in (lines if is_complete else lines[:-1])]
    jobs = dict.fromkeys(job for job in job_ids if job not in _IDLE and _JOB.fullmatch(job))
    wrong = next((job for job in job_ids if job not in _IDLE and not _JOB.fullmatch(job)), "")
    return tuple(jobs), f"'{to_short_line(wrong)}' is no job id" if wrong else ""


FOUND_BY: Final = "job_map"


def job_map_allocations(
    jobs: JobMap, devices: Sequence[Device], slurm_jobs: SlurmJobs | None = None, *, kind: str = "slurm"
) -> tuple[Allocation, ...]:
    """One Allocation per job and Device, in the order of files and lines.

    `kind` must equal the owner kind of the jobs' processes (`slurm`, or `job` for other batch systems), so
    that allocation and process have the same owner. `slurm_jobs` know the users, and the numbers of jobs that
    a file names otherwise: 123_4 for a task of an array, or a SLUID.
    """
    index = DeviceIndex(devices)
    # The file of a GPU and the file of its instance can both name the job.
    found: dict[tuple[str, str], Allocation] = {}
    for item in jobs.jobs:
        known = None if slurm_jobs is None else slurm_jobs.get(item.job)
        job, facts, user = (known.job, known.facts, known.user) if known else (item.job, {}, "")
        workload = Workload(kind=kind, job=job, user=user, found_by=FOUND_BY, **facts)
        for device in index.find(item.device):
            found.setdefault((job, device.uuid), Allocation(device, workload, found_by=FOUND_BY))
    return tuple(found.values())


class MapProblems(NamedTuple):
    """Files with a job but no device here, and pairs of files with different jobs for one device."""

    unknown: tuple[str, ...]
    contradicting: tuple[tuple[str, str], ...]


def find_map_problems(jobs: JobMap, devices: Sequence[Device]) -> MapProblems:
    """What is wrong with a JobMap on a machine with these Devices."""
    index = DeviceIndex(devices)
    listed: defaultdict[str, set[str]] = defaultdict(set)
    for item in jobs.jobs:
        listed[item.file].add(item.job)
    unknown: list[str] = []
    files: defaultdict[str, list[str]] = defaultdict(list)
    for ref, file in jobs.devices:
        found = index.find(ref)
        if listed[file] and not found:
            unknown.append(file)
        for device in found:
            files[device.uuid].append(file)
    contradicting = {
        (first, other)
        for names in files.values()
        for first, other in combinations(names, 2)
        if listed[first] and listed[other] and listed[first] != listed[other]
    }
    return MapProblems(tuple(dict.fromkeys(unknown)), tuple(sorted(contradicting)))


class IgnoredFilesLog:
    """Logs files that are ignored, because they name no GPU that is read here, when they are new."""

    def __init__(self) -> None:
        self._logged: frozenset[str] = frozenset()

    def log_new(self, jobs: JobMap, devices: Sequence[Device]) -> None:
        """Log the ignored files of a JobMap that the last one did not have."""
        if not devices:
            return
        ignored = frozenset((*jobs.strange, *find_map_problems(jobs, devices).unknown))
        if new := sorted(ignored - self._logged):
            log.warning(
                "job-mapping files are ignored, because no GPU that is read here has their names, or several "
                "have: %s; `gpuledger doctor` has the remedy",
                list_some(new),
            )
        self._logged = ignored

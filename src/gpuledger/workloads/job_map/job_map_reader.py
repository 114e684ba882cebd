"""Reads the job-mapping directory that prologs and epilogs of a batch system write.

One file per device, `<minor>` or `<minor>.<gpu instance id>`, one job id per line; an empty file or `0` means
idle. The number is the minor, not the index: inside the device cgroup of a job they differ, outside they can.
Prologs write without locking: an incomplete file is ignored until it has not changed for one second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from gpuledger.host.files import ReadFile, read_at_most
from gpuledger.model.devices import Device
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.model.text import decode_utf8
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex, DeviceRef

_NAME: Final = re.compile(r"(\d{1,4})(?:\.(\d{1,4}))?", re.ASCII)
# Slurm: 123, 123_4. PBS: 123[4].server. LSF: 123[4]. Grid Engine: 123.1.
_JOB: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\[\]@:+-]{0,63}", re.ASCII)
# In seconds. A younger file without a final newline is considered half-written.
_SETTLE_SECONDS: Final = 1.0
_MAX_BYTES: Final = 64 * 1024
_IDLE: Final = frozenset({"", "0"})


@dataclass(frozen=True, slots=True)
class MappedJob:
    """One job on one device."""

    device: DeviceRef
    job: str


class JobMap:
    """Every job of the directory at one moment. Immutable. `files` counts devices, including idle ones."""

    def __init__(self, jobs: Iterable[MappedJob] = (), files: int = 0) -> None:
        self.jobs = tuple(jobs)
        self.files = files

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[MappedJob]:
        return iter(self.jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobMap) and (self.jobs, self.files) == (other.jobs, other.files)

    def __hash__(self) -> int:
        return hash((self.jobs, self.files))


EMPTY_JOB_MAP = JobMap()

# Modification time in ns, size and inode: the content changes only with these.
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _FileEntry:
    stamp: _Stamp | None
    jobs: tuple[str, ...]


_read_file = partial(read_at_most, longest=_MAX_BYTES)


class JobMapReader:
    """Reads JobMaps from the directory, for a PolledIndex. Not thread-safe.

    Unchanged files are not read again, and `read` returns the same object while nothing changes.
    """

    def __init__(self, directory: Path, *, clock: Clock, read: ReadFile = _read_file) -> None:
        self._directory = directory
        self._clock = clock
        self._read = read
        self._known: Mapping[str, _FileEntry] = {}
        self._last = EMPTY_JOB_MAP

    def read(self) -> JobMap:
        """The jobs in the directory now. Raises GpuledgerError if it cannot be read."""
        known: dict[str, _FileEntry] = {}
        jobs: list[MappedJob] = []
        for name, device in self._devices():
            if entry := self._entry(name):
                known[name] = entry
                jobs += [MappedJob(device, job) for job in entry.jobs]
        self._known = known
        found = JobMap(jobs, len(known))
        self._last = self._last if found == self._last else found
        return self._last

    def _devices(self) -> Iterator[tuple[str, DeviceRef]]:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except OSError as error:
            raise GpuledgerError(
                f"{self._directory}: {error.strerror}; set --hpc-job-mapping-dir to the directory that the "
                "batch system's prolog writes, and make it readable to gpuledger"
            ) from None
        found = [(match, name) for name in names if (match := _NAME.fullmatch(name))]
        for match, name in sorted(found, key=lambda item: (int(item[0][1]), int(item[0][2] or -1))):
            minor, gi = str(int(match[1])), match[2]
            yield name, DeviceRef("minor", minor) if gi is None else DeviceRef("mig", f"{minor}/{int(gi)}")

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
        except OSError:
            # A file that is not readable now does not mean that the job ended.
            return before or _FileEntry(None, ())
        # A time in the future comes from the clock of a file server: waiting for it is useless.
        is_settled = not 0 <= self._clock.unix() - found.st_mtime_ns / 1e9 < _SETTLE_SECONDS
        whole = raw.endswith(b"\n") and b"\0" not in raw
        if not whole and not is_settled and before:
            return _FileEntry(None, before.jobs)
        # No stamp for a young file: two writes can fall into one tick of the file system's clock.
        return _FileEntry(stamp if is_settled else None, _jobs(raw, whole or is_settled))


def _jobs(raw: bytes, is_complete: bool) -> tuple[str, ...]:
    lines = decode_utf8(raw).split("\n")
    # A last line without a newline may be cut: 12 of 1234.
    job_ids = [line.strip() for line in (lines if is_complete else lines[:-1])]
    return tuple(dict.fromkeys(job for job in job_ids if job not in _IDLE and _JOB.fullmatch(job)))


FOUND_BY: Final = "job_map"


class JobUsers(Protocol):
    """Maps jobs to users; SlurmJobs implements it."""

    def user(self, name: str) -> str:
        """The user of the job; empty if not known."""


def job_map_allocations(
    jobs: JobMap, devices: Sequence[Device], users: JobUsers | None = None, *, kind: str = "slurm"
) -> tuple[Allocation, ...]:
    """One Allocation per job and Device, in the order of files and lines.

    `kind` must equal the owner kind of the jobs' processes (`slurm`, or `job` for other batch systems), so
    that allocation and process have the same owner.
    """
    return tuple(_iter_allocations(jobs, DeviceIndex(devices), kind, users))


def _iter_allocations(
    jobs: JobMap, index: DeviceIndex, kind: str, users: JobUsers | None
) -> Iterator[Allocation]:
    yielded: set[tuple[str, str]] = set()
    for item in jobs:
        user = users.user(item.job) if users is not None else ""
        workload = Workload(kind=kind, job=item.job, user=user, found_by=FOUND_BY)
        for device in index.find(item.device):
            # The file of a GPU and the file of its instance can both name the job.
            if (item.job, device.uuid) not in yielded:
                yielded.add((item.job, device.uuid))
                yield Allocation(device, workload, found_by=FOUND_BY)

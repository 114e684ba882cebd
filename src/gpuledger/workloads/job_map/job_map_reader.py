"""Reads the job-mapping directory that prologs and epilogs of a batch system write.

One file per device, `<minor>` or `<minor>.<gpu instance id>`, one job id per line; an empty file or `0` means
idle. The number is the minor, not the index: inside the device cgroup of a job they differ, outside they can.
Prologs write without locking: an incomplete file is ignored until it has not changed for one second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpuledger.host.files import ReadFile, read_at_most
from gpuledger.model.devices import Device
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.model.text import decode_utf8
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex, DeviceRef
from gpuledger.workloads.slurm.jobs import NO_JOBS, SlurmJobs

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


@dataclass(frozen=True, slots=True)
class JobMap:
    """Every job of the directory at one moment. `files` counts devices, including idle ones."""

    jobs: tuple[MappedJob, ...] = ()
    files: int = 0

    def __len__(self) -> int:
        return len(self.jobs)


EMPTY_JOB_MAP = JobMap()

# Modification time in ns, size and inode: the content changes only with these.
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _FileEntry:
    stamp: _Stamp | None
    jobs: tuple[str, ...]


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
        for name, device in self._devices():
            if entry := self._entry(name):
                known[name] = entry
                jobs += [MappedJob(device, job) for job in entry.jobs]
        self._known = known
        return JobMap(tuple(jobs), len(known))

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


def job_map_allocations(
    jobs: JobMap, devices: Sequence[Device], slurm_jobs: SlurmJobs = NO_JOBS, *, kind: str = "slurm"
) -> tuple[Allocation, ...]:
    """One Allocation per job and Device, in the order of files and lines.

    `kind` must equal the owner kind of the jobs' processes (`slurm`, or `job` for other batch systems), so
    that allocation and process have the same owner. `slurm_jobs` know the users.
    """
    index = DeviceIndex(devices)
    # The file of a GPU and the file of its instance can both name the job.
    found: dict[tuple[str, str], Allocation] = {}
    for item in jobs.jobs:
        known = slurm_jobs.get(item.job)
        workload = Workload(kind=kind, job=item.job, user=known.user if known else "", found_by=FOUND_BY)
        for device in index.find(item.device):
            found.setdefault((item.job, device.uuid), Allocation(device, workload, found_by=FOUND_BY))
    return tuple(found.values())

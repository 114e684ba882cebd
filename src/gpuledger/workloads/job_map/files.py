"""Reads the job-mapping directory that prologs and epilogs of a batch system write.

One file per device, `<minor>` or `<minor>.<gpu instance id>`, one job id per line; empty, or `0`, is idle.
The number is the minor, not an index: the two are equal only outside the device cgroup of a job, and not
always then. Who writes does not lock: what is read half-way is not believed until it has stood still.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gpuledger.host.files import Read, read_at_most
from gpuledger.model.devices import Device
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.model.text import from_bytes
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex, DeviceRef

_NAME: Final = re.compile(r"(\d{1,4})(?:\.(\d{1,4}))?", re.ASCII)
# Of Slurm 123, 123_4; of PBS 123[4].server; of LSF 123[4]; of Grid Engine 123.1.
_JOB: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\[\]@:+-]{0,63}", re.ASCII)
# So long a file that looks half-written is taken to be so.
_SETTLED_AFTER: Final = 1.0
_LONGEST: Final = 64 * 1024
_IDLE: Final = frozenset({"", "0"})


@dataclass(frozen=True, slots=True)
class MappedJob:
    """One job on one device."""

    device: DeviceRef
    job: str


class JobMap:
    """Every job of the directory at one moment. Immutable. `files` counts devices, idle ones too."""

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


NO_MAP = JobMap()

# When a file was last written, its size and its inode: while these stand, so does its content.
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Known:
    stamp: _Stamp | None
    jobs: tuple[str, ...]


def _read_file(path: str) -> bytes:
    return read_at_most(Path(path), _LONGEST)


class JobMapReader:
    """Reads JobMaps of the directory, to be polled. Used by one thread.

    A file is read only when it was written since, and `read` answers the same object while nothing changes.
    """

    def __init__(self, directory: Path, *, clock: Clock, read: Read = _read_file) -> None:
        self._directory = directory
        self._clock = clock
        self._read = read
        self._known: Mapping[str, _Known] = {}
        self._last = NO_MAP

    def read(self) -> JobMap:
        """The directory as it is now. Raises GpuledgerError where it cannot be read."""
        known: dict[str, _Known] = {}
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
                f"{self._directory}: {error.strerror}; name the directory that the batch system's prolog "
                "writes with --hpc-job-mapping-dir, and let gpuledger read it"
            ) from None
        found = [(match, name) for name in names if (match := _NAME.fullmatch(name))]
        for match, name in sorted(found, key=lambda item: (int(item[0][1]), int(item[0][2] or -1))):
            minor, gi = str(int(match[1])), match[2]
            yield name, DeviceRef("minor", minor) if gi is None else DeviceRef("mig", f"{minor}/{int(gi)}")

    def _entry(self, name: str) -> _Known | None:
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
            # Not readable now, which says nothing of the job.
            return before or _Known(None, ())
        # A time to come is another clock's, that of a file server: no use waiting for it.
        settled = not 0 <= self._clock.unix() - found.st_mtime_ns / 1e9 < _SETTLED_AFTER
        whole = raw.endswith(b"\n") and b"\0" not in raw
        if not whole and not settled and before:
            return _Known(None, before.jobs)
        # Two writings may be nearer to each other than the file system's clock ticks.
        return _Known(stamp if settled else None, _jobs(raw, whole or settled))


def _jobs(raw: bytes, settled: bool) -> tuple[str, ...]:
    lines = from_bytes(raw).split("\n")
    # A last line without its end may go on: 12 of 1234.
    words = [line.strip() for line in (lines if settled else lines[:-1])]
    return tuple(dict.fromkeys(word for word in words if word not in _IDLE and _JOB.fullmatch(word)))


FOUND_BY: Final = "job_map"


class Users(Protocol):
    """Who knows whose a job is, such as SlurmJobs."""

    def user(self, name: str) -> str:
        """The user; empty where not known."""


def allocations(
    jobs: JobMap, devices: Sequence[Device], users: Users | None = None, *, kind: str = "slurm"
) -> tuple[Allocation, ...]:
    """One Allocation per job and Device, in the order of files and lines.

    `kind` is that of the processes of these jobs (`slurm`, or `job` for other batch systems), for the two to
    be one owner.
    """
    return tuple(_each(jobs, DeviceIndex(devices), kind, users))


def _each(jobs: JobMap, index: DeviceIndex, kind: str, users: Users | None) -> Iterator[Allocation]:
    told: set[tuple[str, str]] = set()
    for item in jobs:
        user = users.user(item.job) if users is not None else ""
        workload = Workload(kind=kind, job=item.job, user=user, found_by=FOUND_BY)
        for device in index.find(item.device):
            # The file of a GPU and that of its instance may both name the job.
            if (item.job, device.uuid) not in told:
                told.add((item.job, device.uuid))
                yield Allocation(device, workload, found_by=FOUND_BY)

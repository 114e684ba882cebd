"""What `doctor` says of owners: how many processes have one, and of the others what is missing and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, fails, parted, skipped, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.source import Clock
from gpuledger.workloads.containers.open import ContainerReader, is_socket
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.job_map.files import JobMapReader
from gpuledger.workloads.job_map.settings import JobMapSettings

OWNERS: Final = "owners"
_WHAT: Final = "owners of processes"

_HOST_PIDS: Final = "let gpuledger see the host's pids (Kubernetes: hostPID: true; Docker: --pid=host)"
_CGROUPS: Final = (
    "run gpuledger in the host's cgroup namespace (Docker: --cgroupns=host), or mount the host's /proc and "
    "name it with --procfs"
)

# Why a process has no (whole) owner, as in gpuledger_unresolved_processes, and what to do about it.
REASONS: Final = {
    "pod_name": (
        "of a pod whose name nobody tells",
        "see the lines about Kubernetes; a pod of another cluster on this machine has no name here",
    ),
    "container_name": (
        "of a container whose name nobody tells",
        "in Kubernetes it comes within seconds; for Docker and Podman see the lines about their sockets",
    ),
    "no_cgroup": (
        "in no cgroup but the root, which is nobody's",
        "start them as a service, in a login session or in a container (Podman: not --cgroups=disabled)",
    ),
    "cgroup_namespace": ("in a cgroup outside of what gpuledger can see", _CGROUPS),
    "unknown_cgroup": ("in a cgroup of an unknown form", "report the line of /proc/PID/cgroup, please"),
    "pid_namespace": ("with pids of the host, which are others here", _HOST_PIDS),
    "not_found": ("with a pid that is not here", _HOST_PIDS),
    "exited": ("that ended before anybody could look", "nothing: so short a process has no owner"),
    "permission": ("that may not be looked at", "run gpuledger as root, or with CAP_SYS_PTRACE"),
    "remote": ("on another machine", "run gpuledger there"),
}


def owner_checks(read: Callable[[], Snapshot | None], needs: tuple[str, ...]) -> tuple[Check, ...]:
    """One Check that reads once and names everybody. `read` answers None when there are no readings; `needs`
    are the checks of the driver.
    """
    return (Check(OWNERS, _WHAT, lambda: _check_owners(read()), needs=needs, limit=30.0),)


def _check_owners(snapshot: Snapshot | None) -> Iterator[Finding]:
    if snapshot is None:
        yield warning(OWNERS, _WHAT, "no readings", "see the lines about the driver")
        return
    everybody = {(process.pid, process.host.start): process.workload for process in snapshot.processes}
    known = sum(not owner.missing for owner in everybody.values())
    handed = len({item.device.uuid for item in snapshot.allocations})
    devices = f"; {handed} devices are handed out" if snapshot.allocations else ""
    yield works(OWNERS, _WHAT, f"{known} of {len(everybody)} processes have one{devices}")
    for reason, number in sorted(snapshot.unresolved.items()):
        why, remedy = REASONS.get(reason, ("", "see docs/troubleshooting.md"))
        word = "process" if number == 1 else "processes"
        yield warning(f"{OWNERS}.{reason}", _WHAT, f"{number} {word} {why} ({reason})", remedy)


NAMES: Final = "containers.names"


def container_checks(settings: ContainerSettings) -> tuple[Check, ...]:
    """One check for each socket of the settings."""
    sockets = tuple(settings.sockets())
    if not sockets:
        what = "names of containers"
        return (Check(NAMES, what, lambda: (skipped(NAMES, what, "switched off"),)),)
    return tuple(
        Check(NAMES, _what(name), _check_containers(name, path, flag), limit=15.0)
        for name, path, flag in sockets
    )


def _what(name: str) -> str:
    return f"{name.capitalize()} containers"


def _check_containers(name: str, path: str, flag: str) -> Callable[[], Iterator[Finding]]:
    def look() -> Iterator[Finding]:
        if not is_socket(path):
            yield skipped(NAMES, _what(name), f"no socket at {path}")
            return
        try:
            found = ContainerReader(path, flag).read()
        except GpuledgerError as error:
            why, remedy = parted(error)
            # Without names containers are told by their ids.
            yield warning(NAMES, _what(name), why, remedy)
        else:
            yield works(NAMES, _what(name), f"{len(found)} running at {path}")

    return look


JOB_MAP: Final = "job_map.directory"

_JOB_MAP_SUBJECT: Final = "job-mapping directory"


def job_map_checks(settings: JobMapSettings, clock: Clock) -> tuple[Check, ...]:
    """One check of the directory that the settings name."""
    return (Check(JOB_MAP, _JOB_MAP_SUBJECT, lambda: _check_job_map(settings, clock)),)


def _check_job_map(settings: JobMapSettings, clock: Clock) -> Iterator[Finding]:
    if not settings.directory:
        yield skipped(JOB_MAP, _JOB_MAP_SUBJECT, "no --hpc-job-mapping-dir")
        return
    try:
        found = JobMapReader(Path(settings.directory), clock=clock).read()
    except GpuledgerError as error:
        why, remedy = parted(error)
        yield fails(JOB_MAP, _JOB_MAP_SUBJECT, why, remedy)
        return
    if not found.files:
        yield warning(
            JOB_MAP,
            _JOB_MAP_SUBJECT,
            f"{settings.directory} has no file of a GPU",
            "let the prolog write a file named for the minor number of each GPU, such as 0 or 0.1",
        )
        return
    yield works(
        JOB_MAP,
        _JOB_MAP_SUBJECT,
        f"{found.files} devices, {len(found)} entries of jobs in {settings.directory}",
    )

"""Checks of `doctor` for owners, container names and the job-mapping directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, fails, skipped, split_remedy, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.source import Clock
from gpuledger.workloads.containers.container_reader import ContainerReader, is_socket
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.job_map.job_map_reader import JobMapReader
from gpuledger.workloads.job_map.settings import JobMapSettings

OWNERS: Final = "owners"
_WHAT: Final = "owners of processes"

_HOST_PIDS: Final = "let gpuledger see the host's pids (Kubernetes: hostPID: true; Docker: --pid=host)"
_CGROUPS: Final = (
    "run gpuledger in the host's cgroup namespace (Docker: --cgroupns=host), or mount the host's /proc and "
    "name it with --procfs"
)

# For each `reason` of gpuledger_unresolved_processes: what it means and what to do.
REASONS: Final = {
    "pod_name": (
        "in a pod with an unknown name",
        "see the lines about Kubernetes; a pod of another cluster on this machine has no name here",
    ),
    "container_name": (
        "in a container with an unknown name",
        "in Kubernetes it appears within seconds; for Docker and Podman see the lines about their sockets",
    ),
    "no_cgroup": (
        "in the root cgroup, which has no owner",
        "start them as a service, in a login session or in a container (Podman: not --cgroups=disabled)",
    ),
    "cgroup_namespace": ("in a cgroup outside of gpuledger's cgroup namespace", _CGROUPS),
    "unknown_cgroup": ("in a cgroup of an unknown form", "report the line of /proc/PID/cgroup, please"),
    "pid_namespace": ("with pids of another pid namespace", _HOST_PIDS),
    "not_found": ("with a pid that does not exist here", _HOST_PIDS),
    "exited": ("that ended before they could be read", "nothing: such short processes have no owner"),
    "permission": (
        "that gpuledger has no permission to read",
        "run gpuledger as root, or with CAP_SYS_PTRACE",
    ),
    "remote": ("on another machine", "run gpuledger there"),
}


def owner_checks(read: Callable[[], Snapshot | None], needs: tuple[str, ...]) -> tuple[Check, ...]:
    """One Check: takes a Snapshot with `read` (None: no readings) and counts the processes with an owner.

    `needs` are the checks of the driver.
    """
    return (Check(OWNERS, _WHAT, lambda: _check_owners(read()), needs=needs, limit=30.0),)


def _check_owners(snapshot: Snapshot | None) -> Iterator[Finding]:
    if snapshot is None:
        yield warning(OWNERS, _WHAT, "no readings", "see the lines about the driver")
        return
    owners = {(process.pid, process.host.start): process.workload for process in snapshot.processes}
    known = sum(not owner.missing for owner in owners.values())
    allocated = len({item.device.uuid for item in snapshot.allocations})
    devices = f"; {allocated} devices are allocated" if snapshot.allocations else ""
    yield works(OWNERS, _WHAT, f"{known} of {len(owners)} processes have one{devices}")
    for reason, number in sorted(snapshot.unresolved.items()):
        why, remedy = REASONS.get(reason, ("", "see docs/troubleshooting.md"))
        word = "process" if number == 1 else "processes"
        yield warning(f"{OWNERS}.{reason}", _WHAT, f"{number} {word} {why} ({reason})", remedy)


NAMES: Final = "containers.names"


def container_checks(settings: ContainerSettings) -> tuple[Check, ...]:
    """One check per container runtime socket in the settings."""
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
    def check_names() -> Iterator[Finding]:
        if not is_socket(path):
            yield skipped(NAMES, _what(name), f"no socket at {path}")
            return
        try:
            found = ContainerReader(path, flag).read()
        except GpuledgerError as error:
            why, remedy = split_remedy(error)
            # Only a warning: without names, containers are identified by their ids.
            yield warning(NAMES, _what(name), why, remedy)
        else:
            yield works(NAMES, _what(name), f"{len(found)} running at {path}")

    return check_names


JOB_MAP: Final = "job_map.directory"

_JOB_MAP_SUBJECT: Final = "job-mapping directory"


def job_map_checks(settings: JobMapSettings, clock: Clock) -> tuple[Check, ...]:
    """One check of the job-mapping directory."""
    return (Check(JOB_MAP, _JOB_MAP_SUBJECT, lambda: _check_job_map(settings, clock)),)


def _check_job_map(settings: JobMapSettings, clock: Clock) -> Iterator[Finding]:
    if not settings.directory:
        yield skipped(JOB_MAP, _JOB_MAP_SUBJECT, "no --hpc-job-mapping-dir")
        return
    try:
        found = JobMapReader(Path(settings.directory), clock=clock).read()
    except GpuledgerError as error:
        why, remedy = split_remedy(error)
        yield fails(JOB_MAP, _JOB_MAP_SUBJECT, why, remedy)
        return
    if not found.files:
        yield warning(
            JOB_MAP,
            _JOB_MAP_SUBJECT,
            f"{settings.directory} has no file for a GPU",
            "let the prolog write one file per GPU, named after its minor number, such as 0 or 0.1",
        )
        return
    yield works(
        JOB_MAP,
        _JOB_MAP_SUBJECT,
        f"{found.files} devices, {len(found)} job entries in {settings.directory}",
    )

"""Check of `doctor` for owners of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gpuledger.model.checks import Check, Finding, Subject, warning, works
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.text import list_some

_OWNERS: Final = Subject("owners", "owners of processes")

_HOST_PIDS: Final = "let gpuledger see the host's pids (Kubernetes: hostPID: true; Docker: --pid=host)"
_CGROUPS: Final = (
    "run gpuledger in the host's cgroup namespace (Docker: --cgroupns=host), or mount the host's /proc and "
    "name it with --procfs"
)

# For each `reason` of gpuledger_unresolved_processes: what it means and what to do.
REASONS: Final = {
    "pod_name": (
        "in a pod with an unknown name",
        "see the lines about Kubernetes. A pod of another cluster on this machine has no name here. Without "
        "names from the API server or /var/log, pods are named only if a single one has and uses the device",
    ),
    "container_name": (
        "in a container with an unknown name",
        "in Kubernetes it appears within seconds; for Docker and Podman see the lines about their sockets",
    ),
    "container_unnamed": (
        "in a container with only an id, by which it is exported",
        "let gpuledger read the socket of its runtime: see the lines about containers",
    ),
    "inner_name": (
        "in a pod or container inside another one, which is their owner",
        "nothing, unless you need names of the inner cluster: then run gpuledger there, too",
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
    return (Check(*_OWNERS, lambda: _check_owners(read()), needs=needs, limit=30.0),)


def _check_owners(snapshot: Snapshot | None) -> Iterator[Finding]:
    if snapshot is None:
        yield warning(*_OWNERS, "no readings", "see the lines above about the GPUs and their driver")
        return
    owners = {(process.pid, process.host.start): process.workload for process in snapshot.processes}
    known = sum(not owner.missing for owner in owners.values())
    allocated = len({item.device.uuid for item in snapshot.allocations})
    devices = f"; {allocated} devices are allocated" if snapshot.allocations else ""
    yield works(*_OWNERS, f"{known} of {len(owners)} processes have one{devices}")
    for reason, number in sorted(snapshot.unresolved.items()):
        why, remedy = REASONS.get(reason, ("", "see docs/troubleshooting.md"))
        word = "process" if number == 1 else "processes"
        yield warning(f"{_OWNERS.check}.{reason}", _OWNERS.what, f"{number} {word} {why} ({reason})", remedy)
    numbers = {process.workload.user for process in snapshot.processes if _has_number_only(process)}
    if numbers:
        yield _numbers_only(sorted(numbers, key=int))


def _has_number_only(process: GpuProcess) -> bool:
    owner, host = process.workload, process.host
    if owner.kind == "pod" or not owner.user.isdigit():
        # A pod's user is one of its containers, and is not exported.
        return False
    # Some sites give their users numbers as names.
    is_name = host.user == owner.user and host.uid is not None and str(host.uid) != host.user
    return not is_name


def _numbers_only(uids: Sequence[str]) -> Finding:
    noun = "user has" if len(uids) == 1 else "users have"
    return warning(
        f"{_OWNERS.check}.user_names",
        "names of GPU users",
        f"{len(uids)} {noun} only a number: {list_some(uids, 5)}",
        f"if `getent passwd {uids[0]}` on the machine has a name: --name-service true, or in a container "
        "`getent passwd > FILE` on the machine, mount FILE, and --passwd-file FILE",
    )

"""Processes that serve others and own nothing: the MPS server, its control daemon, persistenced."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.model.process import GpuProcess, ProcessKey, ProcessType

# The last name is what the kernel keeps of the first two, in 15 bytes.
_SERVER, _CONTROL, _SHORT = "nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-cuda-mps"
_PERSISTENCE = ("nvidia-persistenced", "nvidia-persiste")
# Users as which the distributions run persistenced. Another user's process of that name is not the daemon.
_DAEMON_USERS = ("nvidia-persistenced", "nvpd")
_COMMANDS = frozenset({_SERVER, _CONTROL, _SHORT, *_PERSISTENCE})

# A process on any Device.
Identity = tuple[object, ...]

NO_PROCESSES: frozenset[ProcessKey] = frozenset()


def is_service(command: str) -> bool:
    """Return whether a process of this command is no owner, unless it works itself."""
    return command in _COMMANDS


def serving_processes(processes: Iterable[GpuProcess]) -> frozenset[ProcessKey]:
    """The processes that serve others now, of all processes of the machine or of one interval of a Gpu.

    An MPS server serves if one of its Devices has an MPS client: then also on its Devices without clients,
    where it only holds a context. Without clients it waits for them, like the control daemon: both own
    nothing, unless they use an engine themselves. Then a process merely has the name, or the driver reports
    the work of clients as the server's, and the server's user is all that is known of them.

    Each user can give a program this name: only those of root and of the user of all their clients serve.
    """
    present = list(processes)
    services = [process for process in present if _has_service_name(process)]
    if not services:
        return NO_PROCESSES
    keys = {process.key for process in services}
    # The users of the clients of each Device, by its uuid.
    clients: dict[str, set[object]] = {}
    for process in present:
        if ProcessType.MPS in process.types and process.key not in keys:
            clients.setdefault(process.device.uuid, set()).add(_user(process))
    served: dict[Identity, set[object]] = {}
    for process in services:
        served.setdefault(_identity(process), set()).update(clients.get(process.device.uuid, ()))
    working = {_identity(process) for process in services if _is_working(process)}
    everyone = set().union(*clients.values())
    return frozenset(
        process.key
        for process in services
        if _serves(process, served[_identity(process)], everyone, _identity(process) in working)
    )


def _has_service_name(process: GpuProcess) -> bool:
    if process.command not in _COMMANDS or ProcessType.MPS in process.types:
        return False
    return process.computes or not process.types or process.command in _PERSISTENCE


def _serves(process: GpuProcess, served: set[object], everyone: set[object], is_working: bool) -> bool:
    """Whether it serves `served`, the users of clients of its Devices; `everyone` has those of all."""
    if process.command in _PERSISTENCE:
        return _is_root(process) or process.host.user in _DAEMON_USERS
    clients = everyone if process.command == _CONTROL else served
    # A source that knows no users at all gives no reason for doubt.
    is_known = bool(clients) or _user(process) is None
    if not _is_root(process) and not (is_known and clients <= {_user(process)}):
        return False
    return bool(clients) or not is_working


def _is_root(process: GpuProcess) -> bool:
    return _user(process) in (0, "root")


def _user(process: GpuProcess) -> object:
    """The uid, or the name where a Host knows only that; None if neither is known."""
    host = process.host
    return host.uid if host.uid is not None else host.user or None


def _is_working(process: GpuProcess) -> bool:
    usage = process.usage
    return bool(usage.sm or usage.encoder or usage.decoder or usage.jpeg or usage.ofa)


def _identity(process: GpuProcess) -> Identity:
    """The process on any Device."""
    return process.key[1:]

"""Processes that serve others and own nothing: the MPS server, its control daemon, persistenced."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.model.process import GpuProcess, ProcessKey, ProcessType

# The last name is what the kernel keeps of the first two, in 15 bytes.
_SERVER, _CONTROL, _SHORT = "nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-cuda-mps"
_PERSISTENCE = ("nvidia-persistenced", "nvidia-persiste")
# Users as which the distributions run persistenced. Another user's process of that name is not the daemon.
_DAEMON_USERS = ("root", "nvidia-persistenced", "nvpd")
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
    """
    present = list(processes)
    services = [
        process
        for process in present
        if process.command in _COMMANDS and ProcessType.MPS not in process.types
    ]
    if not services:
        return NO_PROCESSES
    keys = {process.key for process in services}
    occupied = {
        process.device.uuid
        for process in present
        if ProcessType.MPS in process.types and process.key not in keys
    }
    servers = {_identity(process) for process in services if process.device.uuid in occupied}
    working = {_identity(process) for process in services if _is_working(process)}
    return frozenset(
        process.key
        for process in services
        if _is_persistence(process)
        or (process.command == _CONTROL and occupied)
        or (process.command not in _PERSISTENCE and _serves(_identity(process), servers, working))
    )


def _serves(server: Identity, serving: set[Identity], working: set[Identity]) -> bool:
    return server in serving or server not in working


def _is_working(process: GpuProcess) -> bool:
    usage = process.usage
    return bool(usage.sm or usage.encoder or usage.decoder or usage.jpeg or usage.ofa)


def _identity(process: GpuProcess) -> Identity:
    """The process on any Device."""
    return process.key[1:]


def _is_persistence(process: GpuProcess) -> bool:
    host = process.host
    return process.command in _PERSISTENCE and (host.uid == 0 or host.user in _DAEMON_USERS)

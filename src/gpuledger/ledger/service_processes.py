"""Processes that serve others and own nothing meanwhile: the MPS server, its control daemon, persistenced."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.model.process import GpuProcess, ProcessKey, ProcessType

# The last name is what the kernel keeps of the first two, in 15 bytes.
_SERVER, _CONTROL, _SHORT = "nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-cuda-mps"
_PERSISTENCE = ("nvidia-persistenced", "nvidia-persiste")
# Users as which the distributions run persistenced. Another user's process of that name is not the daemon.
_DAEMON_USERS = ("root", "nvidia-persistenced", "nvpd")
_COMMANDS = frozenset({_SERVER, _CONTROL, _SHORT, *_PERSISTENCE})

NO_PROCESSES: frozenset[ProcessKey] = frozenset()


def is_service(command: str) -> bool:
    """Return whether a process of this command is no owner while it serves others."""
    return command in _COMMANDS


def serving_processes(processes: Iterable[GpuProcess]) -> frozenset[ProcessKey]:
    """The processes that serve others now, of all processes of the machine or of one interval of a Gpu.

    An MPS server serves if one of its Devices has an MPS client: then also on its Devices without clients,
    where it only holds a context. The control daemon serves if there is any client.
    """
    present = list(processes)
    services = [process for process in present if process.command in _COMMANDS]
    if not services:
        return NO_PROCESSES
    keys = {process.key for process in services}
    occupied = {
        process.device.uuid
        for process in present
        if ProcessType.MPS in process.types and process.key not in keys
    }
    servers = {_identity(process) for process in services if process.device.uuid in occupied}
    return frozenset(
        process.key
        for process in services
        if _is_persistence(process)
        or (process.command == _CONTROL and occupied)
        or (process.command not in _PERSISTENCE and _identity(process) in servers)
    )


def _identity(process: GpuProcess) -> tuple[object, ...]:
    """The process on any Device."""
    return process.key[1:]


def _is_persistence(process: GpuProcess) -> bool:
    host = process.host
    return process.command in _PERSISTENCE and (host.uid == 0 or host.user in _DAEMON_USERS)

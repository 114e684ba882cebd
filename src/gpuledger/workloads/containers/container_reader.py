"""Indexes of running containers, read from the sockets of Docker and Podman.

The HTTP client is imported lazily, by the first read: machines without a socket do not load it.
"""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

from gpuledger.host.owner_index import PolledIndex, is_tried
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.workloads.containers.container import Containers, RuntimeList, parse_containers
from gpuledger.workloads.containers.settings import ContainerSettings

CONTAINER_PERIOD = 30.0
_SOCKETS_OF_LOGINS = ("/run/user/", "/var/run/user/")


class ContainerIndex(PolledIndex[Containers]):
    """The running containers of one runtime: `name` is that of the runtime, as in its forms of cgroups.

    `is_rootless` if the socket is that of a login.
    """

    def __init__(self, name: str, path: str, flag: str, clock: Clock) -> None:
        super().__init__(name, partial(read_containers, path, flag), {}, period=CONTAINER_PERIOD, clock=clock)
        self.is_rootless = path.startswith(_SOCKETS_OF_LOGINS)


def open_container_indexes(settings: ContainerSettings, *, clock: Clock) -> tuple[ContainerIndex, ...]:
    """One index, not started, for each socket that exists. No socket is not an error."""
    return tuple(
        ContainerIndex(name, path, flag, clock) for name, path, flag in settings.sockets() if is_socket(path)
    )


def list_runtime(index: ContainerIndex) -> RuntimeList:
    """The containers that an index knows now, and how new the list is."""
    health = index.health
    tried = is_tried(health)
    return RuntimeList(index.value, health.last_success, tried, health.success, index.name, index.is_rootless)


def is_socket(path: str) -> bool:
    """Whether `path` is a socket. An unreadable directory counts as one: the read reports the reason."""
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def read_containers(path: str, flag: str, *, timeout: float = 5.0) -> Containers:
    """The containers that run now, from a socket. Raises GpuledgerError with a one-line remedy.

    `flag` is the command-line flag of the socket, for error messages.
    """
    from gpuledger.workloads.containers.docker_api import list_containers

    try:
        return parse_containers(list_containers(path, flag, timeout=timeout))
    except ValueError as error:
        remedy = f"check that Docker or Podman serves this socket, or set another with {flag}"
        raise GpuledgerError(f"{path}: {error}; {remedy}") from None

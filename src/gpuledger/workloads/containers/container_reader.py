"""Indexes of running containers, read from the sockets of Docker and Podman.

The HTTP client is imported lazily, by the first read: machines without a socket do not load it.
"""

from __future__ import annotations

import stat
from pathlib import Path

from gpuledger.host.owner_index import PolledIndex
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.workloads.containers.container import NO_CONTAINERS, Containers, parse_containers
from gpuledger.workloads.containers.settings import ContainerSettings

CONTAINER_PERIOD = 30.0


def open_container_indexes(
    settings: ContainerSettings, *, clock: Clock
) -> tuple[PolledIndex[Containers], ...]:
    """One index, not started, for each socket that exists. No socket is not an error."""
    return tuple(
        PolledIndex(
            name, ContainerReader(path, flag).read, NO_CONTAINERS, period=CONTAINER_PERIOD, clock=clock
        )
        for name, path, flag in settings.sockets()
        if is_socket(path)
    )


def is_socket(path: str) -> bool:
    """Whether `path` is a socket. An unreadable directory counts as one: the read reports the reason."""
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


class ContainerReader:
    """Reads Containers from a socket; returns the same object while nothing changes.

    `flag` is the command-line flag of the socket, for error messages.
    """

    def __init__(self, path: str, flag: str, *, timeout: float = 5.0) -> None:
        self._path = path
        self._flag = flag
        self._timeout = timeout
        self._last = NO_CONTAINERS

    def read(self) -> Containers:
        """The containers that run now. Raises GpuledgerError with a one-line remedy."""
        from gpuledger.workloads.containers.docker_api import list_containers

        try:
            found = parse_containers(list_containers(self._path, self._flag, timeout=self._timeout))
        except ValueError as error:
            remedy = f"check that Docker or Podman serves this socket, or set another with {self._flag}"
            raise GpuledgerError(f"{self._path}: {error}; {remedy}") from None
        self._last = self._last if found == self._last else found
        return self._last
